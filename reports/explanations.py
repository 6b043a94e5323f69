"""Explanations as a Markdown page: what `dst explain` says of each killed mutant, to be read and judged."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from dst.records import ExplanationRecord, MutantRecord
from reports.explanation import explanation


def page(rows: Sequence[tuple[MutantRecord, ExplanationRecord]], repeat: str) -> str:
    """Return the page; `repeat` is the command that makes it."""
    runs = [record.runs for _, record in rows]
    how_many = f"{statistics.median(runs):,.0f} in the median, {max(runs):,} at most" if runs else "none"
    lines = [
        "# Explanations",
        "",
        "For each mutant, of the schedules that killed it the shortest, as `dst explain` tells it. "
        f"Runs made to explain one: {how_many}.",
        "",
    ]
    for mutant, record in rows:
        lines += _section(mutant, record)
    return "\n".join([*lines, f"Made by `{repeat}`.", ""])


def _section(mutant: MutantRecord, record: ExplanationRecord) -> Iterator[str]:
    yield f"## `{mutant.name}`"
    yield ""
    yield f"The mutant: {mutant.breaks}."
    yield ""
    yield "```"
    yield from (line.text for line in explanation(record))
    yield "```"
    yield ""
