"""Who stands where: the page of a comparison, computed from its record alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]

OURS = "dst"
LEVEL = 1.5
"""Who takes at most so many times as much as the best is level with it."""

STORIES = {
    "order-of-5": "Five tasks of one step; one order of the 120 breaks: which, the seed says, the same for every tool.",
    "starvation": "Breaks if one task is not run while two others make their six steps.",
    "lost-update": "Two tasks read a counter and then write it; calmly one is through before the other begins.",
    "crash-done-twice": "A workflow of six steps whose process dies and starts again. The fourth is done twice if it "
    "dies between doing it and writing it down.",
    "crash-in-recovery": "The same workflow. It counts steps twice if it dies a second time, in recovery, between "
    "the snapshot and the cut of the log.",
    "independent": "Three tasks of three steps that share nothing. No bug: what is asked is how many runs it takes to "
    "have seen all of it.",
}


def page(record: Record) -> str:
    """Return the page."""
    return "\n".join([*_head(record), *_summary(record), *_rows(record), *_foot(record)])


def _head(record: Record) -> Iterator[str]:
    yield "# dst and its peers"
    yield ""
    yield (
        "The same bodies (`tests/benchmarks/compared/bodies.py`) under every tool, from the same seeds. Each tool was "
        "tried by several ways of its own and stands here with the one that found the bug from most seeds, and then in "
        "the fewest runs; all ways are below. Median / worst. A way that draws nothing is tried from one seed where "
        "the bug is the same from all. After two searches that found nothing a way is not tried again. What an old "
        "search has found is used by none."
    )
    yield ""
    for tool in record["tools"]:
        yield f"- {_name(tool)}: {_version(tool)}"
    yield ""
    yield (
        f"Arguments: `{' '.join(record['arguments'])}`. Processors: {record['processors']}; load at the beginning "
        f"{record['load'][0]}, at the end {record['load'][1]}: above the number of processors, seconds say little."
    )
    yield ""


def _version(tool: Record) -> str:
    if not tool["rows"]:
        return f"not run: {tool['not_run']}"
    said = f"{tool['version']}, Python {tool['python']}"
    return f"{said}; {tool['not_run']}" if tool["not_run"] else said


def _name(tool: Record) -> str:
    return tool.get("tool", tool["name"])


# ---- where dst stands ------------------------------------------------------------------------------------------------


def _summary(record: Record) -> Iterator[str]:
    yield f"## Where {OURS} stands"
    yield ""
    yield (
        f"Level is at most {LEVEL:g} times the best. A space counts as exhausted where nothing is left out: every "
        "order, and any number of crashes."
    )
    yield ""
    yield "| row | runs to the bug | seconds to the bug | runs a second | runs to exhaust it |"
    yield "|---|---|---|---|---|"
    for name in STORIES:
        rows = {_name(tool): row for tool in record["tools"] for row in tool["rows"] if row["row"] == name}
        if OURS in rows:
            cells = [_standing({tool: value(row) for tool, row in rows.items()}) for value in _VALUES]
            yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _runs(row: Record) -> float | None:
    way = best(row)
    return None if way is None else _median(way, "runs")


def _seconds(row: Record) -> float | None:
    way = best(row)
    return None if way is None else _median(way, "seconds")


def _slowness(row: Record) -> float | None:
    rates = [rate(way) for way in row["ways"]]
    return 1 / max(rates) if rates and max(rates) else None


def _exhausted(row: Record) -> float | None:
    said = [each["runs"] for each in row["exhausted"] if each["ended"] and each["whole"]]
    return min(said, default=None)


_VALUES: Sequence[Callable[[Record], float | None]] = (_runs, _seconds, _slowness, _exhausted)


def _standing(values: Mapping[str, float | None]) -> str:
    """Return where we stand among those that have a value; less is better."""
    known = {tool: value for tool, value in values.items() if value is not None}
    own = known.get(OURS)
    if own is None:
        return (
            "none does"
            if not known
            else f"not at all; {' and '.join(sorted(known))} {'does' if len(known) == 1 else 'do'}"
        )
    others = {tool: value for tool, value in known.items() if tool != OURS}
    if not others:
        return "the only one"
    first = min(others, key=lambda tool: others[tool])
    ratio = own / max(others[first], 1e-9)
    if ratio <= 1:
        return "first"
    place = 1 + sum(value < own for value in others.values())
    return (
        f"level with {first}"
        if ratio <= LEVEL
        else f"**{place} of {len(known)}**: {first} is {ratio:.1f} times as good"
    )


# ---- row by row ------------------------------------------------------------------------------------------------------


def best(row: Record) -> Record | None:
    """Return the way that found the bug from most seeds, in the fewest runs; None if none found it."""
    ways = [way for way in row["ways"] if _found(way)]
    return min(ways, key=lambda way: (-_share(way), _median(way, "runs"), _median(way, "seconds")), default=None)


def _share(way: Record) -> float:
    return len(_found(way)) / len(way["tries"])


def _found(way: Record) -> list[Record]:
    return [each for each in way["tries"] if each["found"]]


def _median(way: Record, what: str) -> float:
    return float(statistics.median(each[what] for each in _found(way)))


def rate(way: Record) -> float:
    """Return runs a second."""
    return way["rate_runs"] / way["rate_seconds"] if way["rate_seconds"] else 0.0


def _rows(record: Record) -> Iterator[str]:
    for name, story in STORIES.items():
        yield f"## {name}"
        yield ""
        yield story
        yield ""
        yield "| tool | way | runs | seconds | runs a second | replayed | shrunk to | exhausted |"
        yield "|---|---|---|---|---|---|---|---|"
        for tool in record["tools"]:
            yield from (_line(tool, row) for row in tool["rows"] if row["row"] == name)
        yield ""


def _line(tool: Record, row: Record) -> str:
    way = best(row)
    if way is not None:
        cells = [way["name"], *_search_cells(way)]
    elif any(each["tries"] for each in row["ways"]):
        cells = ["none of its ways", _never(row), "-", f"{max(map(rate, row['ways'])):,.0f}", "-", "-"]
    else:
        fastest = max(row["ways"], key=rate)
        cells = [fastest["name"], "-", "-", f"{rate(fastest):,.0f}", "-", "-"]
    return f"| {_name(tool)} | {' | '.join(cells)} | {_exhausted_cell(row)} |"


def _never(row: Record) -> str:
    most = max(each["runs"] for way in row["ways"] for each in way["tries"])
    return f"not found in {most:,}"


def _search_cells(way: Record) -> list[str]:
    found = _found(way)
    runs = [each["runs"] for each in found]
    seconds = [each["seconds"] for each in found]
    missed = (
        f"; not found from {len(way['tries']) - len(found)} of {len(way['tries'])}"
        if len(found) < len(way["tries"])
        else ""
    )
    said = [each["replayed"] for each in found if each["replayed"] is not None]
    sizes = [each["size"] for each in found if each["size"] is not None]
    return [
        f"{statistics.median(runs):,g} / {max(runs):,}{missed}",
        f"{statistics.median(seconds):.3f} / {max(seconds):.3f}",
        f"{rate(way):,.0f}",
        f"{sum(said)} of {len(said)}" if said else "gives nothing to replay",
        f"{statistics.median(sizes):g} / {max(sizes)} {way['size_of']}" if sizes else "does not shrink",
    ]


def _exhausted_cell(row: Record) -> str:
    if not row["exhausted"]:
        return "never says"
    return "; ".join(
        f"{each['runs']:,} runs: {each['says'] or 'ends, says nothing'}"
        if each["ended"]
        else f"{each['way']}: no end in {each['runs']:,} runs"
        for each in row["exhausted"]
    )


# ---- the rest --------------------------------------------------------------------------------------------------------


def _foot(record: Record) -> Iterator[str]:
    yield "## All ways"
    yield ""
    yield "| row | tool | way | found | runs | seconds | runs a second |"
    yield "|---|---|---|---|---|---|---|"
    for name in STORIES:
        for tool in record["tools"]:
            for way in (way for row in tool["rows"] if row["row"] == name for way in row["ways"] if way["tries"]):
                found = _found(way)
                runs = f"{_median(way, 'runs'):,g} / {max(each['runs'] for each in found):,}" if found else "-"
                seconds = (
                    f"{_median(way, 'seconds'):.3f} / {max(each['seconds'] for each in found):.3f}" if found else "-"
                )
                share = f"{len(found)} of {len(way['tries'])}{'' if way['draws'] else ', draws nothing'}"
                yield f"| {name} | {_name(tool)} | {way['name']} | {share} | {runs} | {seconds} | {rate(way):,.0f} |"
    yield ""
    yield f"Made by `{record['repeat']}`."
    yield ""
