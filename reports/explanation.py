"""A failure explained, in lines of text, computed from its stored record alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dst.records import ExplanationRecord, NearestRecord, ShareRecord
from reports.summary import Line, Style, failure, line, said_time

_BAR = 20
_LINE_MAX = 118
_NAMED_MAX = 8  # kinds of faults


def explanation(record: ExplanationRecord) -> Iterator[Line]:
    """Yield the story: what failed and how, the moment and its curve, the nearest passing run; last, the command."""
    *story, reproduce = failure(record.failure)
    yield from story
    yield line("")
    yield from _curve(record)
    yield line("")
    yield from _nearest(record)
    if record.stopped:
        yield line(f"stopped: {record.stopped}; this is what is known by then", Style.DOUBT)
    yield line("")
    yield reproduce


def _curve(record: ExplanationRecord) -> Iterator[Line]:
    yield line("How many fail alike of the runs that follow it up to a moment", Style.HEAD)
    yield line(f"and go on from there {_drawn(record.faults)}:")
    turn = record.turn.at.followed if record.turn is not None else None
    width = max((len(said_time(share.when_ns)) for share in record.curve), default=0)
    digits = max((len(str(share.record)) for share in record.curve), default=0)
    for share in record.curve:
        mark = "=>" if share.followed == turn else "  "
        when = f"{share.record:>{digits}}  {said_time(share.when_ns):>{width}}"
        said = f"{mark} {when}  {_bar(share)} {share.failing:>3} of {share.of:<3} {share.says}"
        yield line(said, Style.BAD if share.followed == turn else Style.PLAIN)
    if not record.curve:
        yield line("  no moment was measured", Style.DOUBT)
    yield from _moment(record)


def _drawn(faults: Sequence[str]) -> str:
    """Return how the runs go on, in words."""
    if not faults:
        return "calmly"
    named = ", ".join(faults) if len(faults) <= _NAMED_MAX else f"faults of any of {len(faults)} kinds"
    return f"calmly, or with {named} by chance"


def _moment(record: ExplanationRecord) -> Iterator[Line]:
    """Yield where the moment named is, and where the failure shows."""
    if record.turn is None:
        return
    at, failure = record.turn.at, record.failure
    named = f"is the moment named: record {at.record}, at {said_time(at.when_ns)}"
    yield line(f"  => {named}; the failure shows at record {failure.record}, at {said_time(failure.when_ns)}")


def _bar(share: ShareRecord) -> str:
    full = share.failing * _BAR // share.of
    return "#" * full + "." * (_BAR - full)


def _nearest(record: ExplanationRecord) -> Iterator[Line]:
    tried = f"{record.tried} {'schedule that differs' if record.tried == 1 else 'schedules that differ'} least"
    if not record.tried:
        why = "none was looked for" if record.stopped else "there is nothing to leave out, change or add"
        yield line(f"No passing run is known: {why}", Style.HEAD)
        return
    if record.nearest is None:
        yield line(f"No passing run is known: none of the {tried} passes", Style.HEAD)
        return
    near = record.nearest
    yield line(f"The nearest passing run is the one {near.change}", Style.HEAD)
    yield line(f"  of {tried}, {record.passing} pass; this one is like the failing run for longest")
    yield line(f"  they part at record {near.record}, at {said_time(near.when_ns)}:")
    yield line(f"    failing: {near.failing}", Style.BAD)
    yield line(f"    passing: {near.passing}", Style.GOOD)
    yield from _around(near)


def _around(near: NearestRecord) -> Iterator[Line]:
    for title, texts in (
        ("both:", near.common_lines),
        ("failing run:", near.failing_lines),
        ("passing run:", near.passing_lines),
    ):
        yield line(f"  {title}")
        for text in texts:
            yield line(f"  {_cut(text)}")


def _cut(text: str) -> str:
    return text if len(text) <= _LINE_MAX else text[: _LINE_MAX - 1] + "…"
