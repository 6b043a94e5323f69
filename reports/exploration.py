"""An exploration in lines of text, computed from its stored record alone."""

from __future__ import annotations

from collections.abc import Iterator

from dst.records import ExplorationRecord, ExplorationsRecord
from reports.summary import Line, Style, failure, line

_SUSPECTS_SHOWN = 3
_VACUOUS = 5  # the exit code of what has explored nothing


def exploration(record: ExplorationRecord, *, quiet: bool = False, verbose: bool = False) -> list[Line]:
    """Return the whole report: what was explored, then the verdict; failures first, unless there is one to end with."""
    lines: list[Line] = []
    if not quiet:
        lines += [*_coverage(record, verbose=verbose), line("")]
    lines += _verdict(record)
    for found in record.failures:  # last, so that the line that reproduces it is where the eye is
        lines += [line(""), *failure(found)]
    return lines


def _coverage(record: ExplorationRecord, *, verbose: bool) -> Iterator[Line]:
    name = f"{record.scenario} over {record.mutant}" if record.mutant else record.scenario
    yield line(f"{name}: {said_closed(record)}", Style.HEAD)
    for bound in record.bounded_by:
        yield line(f"  bounded by: {bound}", Style.DOUBT if bound in record.stopped else Style.PLAIN)
    unvisited = f" ({record.unvisited:,} of them not run)" if record.unvisited else ""
    rows: tuple[tuple[str, str], ...] = (
        ("states", f"{record.states:,}{unvisited}"),
        ("transitions", f"{record.transitions:,}"),
        ("runs", f"{record.runs:,}"),
        ("pairs of a state and an invariant's", f"{record.pairs:,}"),
    )
    if record.orders == "all":
        rows += (("orders run", f"{record.orders_run:,} ({record.orders_pruned:,} cut: all left was run elsewhere)"),)
    width = max(len(title) for title, _ in rows)
    for title, text in rows:
        yield line(f"  {title:{width}}  {text}")
    yield from _schedules(record)
    if record.judged_raw_only:
        yield line(f"  judged on each state's own run only: {', '.join(record.judged_raw_only)}")
    never = [name for name, count in record.judged.items() if not count]
    if never:
        yield line(f"  never judged where it could fail: {', '.join(never)}", Style.DOUBT)
    if verbose:
        for name, count in record.judged.items():
            yield line(f"    {name}: judged {count:,} times where it could fail", Style.FAINT)


def said_closed(record: ExplorationRecord) -> str:
    """Return in words how much was explored, which is never just "passed"."""
    others = f", with at most {record.others} other {'fault' if record.others == 1 else 'faults'}"
    what = f"every crash schedule with any number of crashes{others if record.others else ''}"
    if record.closed:
        orders = "all port orders" if record.orders == "all" else "calm order"
        return f"closed ({orders}): {what}, along the calm way of the environment"
    return f"not closed: not {what} is known to be covered"


def _schedules(record: ExplorationRecord) -> Iterator[Line]:
    if not record.schedules_covered:
        return
    yield line("  schedules covered, of up to so many crashes:")
    width = max(len(f"{count:,}") for count in record.schedules_covered.values())
    for crashes, count in record.schedules_covered.items():
        yield line(f"    {crashes:>2}  {count:>{width},}")


def _verdict(record: ExplorationRecord) -> Iterator[Line]:
    work = f"{record.runs:,} runs in {record.seconds:.1f} s ({record.runs / max(record.seconds, 1e-9):,.0f}/s)"
    yield from _doubts(record)
    if record.diverged:
        yield line(f"NONDETERMINISTIC  {work}", Style.BAD)
    elif record.failures:
        count = len(record.failures)
        yield line(f"FAIL  {count} {'failure' if count == 1 else 'failures'}  {work}", Style.BAD)
    elif record.interrupted:
        yield line(f"INTERRUPTED  after {work}", Style.DOUBT)
    elif record.exit_code == _VACUOUS:
        yield line(f"VACUOUS  {work}: there is no point at which anything crashes, nothing was explored", Style.DOUBT)
    elif record.verdict != "pass":
        yield line(f"INCONCLUSIVE  {work}", Style.DOUBT)
    elif record.mutant:
        yield line(f"PASS  the mutant {record.mutant} survived  {work}", Style.DOUBT)
    else:
        yield line(f"PASS  {work}", Style.GOOD)
    yield line(f"Repeat:  {record.repeat}", Style.FAINT)


def _doubts(record: ExplorationRecord) -> Iterator[Line]:
    """Yield why this is no pass although nothing failed."""
    if record.diverged:
        yield line(f"diverged: {record.diverged}", Style.BAD)
        yield line("  look for time, randomness, set order or threads in the flow and its world; see `dst doctor`")
    if record.spurious:
        count = f"{record.spurious} {'path breaks' if record.spurious == 1 else 'paths break'}"
        yield line(f"spurious: {count} an invariant by the graph, and not when run", Style.BAD)
        for suspect in record.suspects[:_SUSPECTS_SHOWN]:
            yield line(f"  {suspect}")
        yield line("  the digest is wrong: two states are taken for one that do not behave alike; this says nothing.")
        yield line(f"  Put what tells them apart into the scenario's `behaviour`, or try --cap {2 * record.cap}")
    for why in record.inconclusive:
        yield line(f"inconclusive: {why}", Style.DOUBT)
    more = record.inconclusive_runs - len(record.inconclusive)
    if more > 0:
        yield line(f"inconclusive: {more:,} further {'run' if more == 1 else 'runs'}", Style.DOUBT)
    for bound in record.stopped:
        yield line(f"stopped: {bound}", Style.DOUBT)


# ---- several ---------------------------------------------------------------------------------------------------------


def explorations(record: ExplorationsRecord, *, quiet: bool = False) -> Iterator[Line]:
    """Yield a line for each exploration, what is the matter with them, then the verdict; failures last."""
    if not quiet:
        for one in record.explorations:
            style = Style.BAD if one.verdict == "fail" else Style.PLAIN if one.closed else Style.DOUBT
            yield line(row(one), style)
        for name in record.missing:
            yield line(f"{name}: not begun", Style.DOUBT)
        yield line("")
    for one in record.explorations:
        if one.diverged or one.spurious or one.inconclusive:
            yield line(f"{one.scenario}:", Style.HEAD)
            yield from _doubts(one)
    runs = sum(one.runs for one in record.explorations)
    closed = sum(ended(one) == "closed" for one in record.explorations)
    said = (
        f"{closed} of {len(record.explorations) + len(record.missing)} closed  {runs:,} runs in {record.seconds:.1f} s"
    )
    head, style = {
        "pass": ("PASS", Style.GOOD),
        "fail": ("FAIL", Style.BAD),
    }.get(record.verdict, ("INTERRUPTED" if record.interrupted else "INCONCLUSIVE", Style.DOUBT))
    yield line(f"{head}  {said}", style)
    yield line(f"Repeat:  {record.repeat}", Style.FAINT)
    for one in record.explorations:
        for found in one.failures:
            yield line("")
            yield from failure(found)


def row(record: ExplorationRecord) -> str:
    """Return one exploration in a line."""
    name = f"{record.scenario} over {record.mutant}" if record.mutant else record.scenario
    numbers = f"{record.runs:,} runs, {record.states:,} states, {_most(record)}, {record.seconds:.1f} s"
    return f"{name}: {ended(record)}; {numbers}"


def ended(record: ExplorationRecord) -> str:
    """Return in words how an exploration ended."""
    if record.failures:
        return f"FAIL {', '.join(dict.fromkeys(found.invariant for found in record.failures))}"
    if record.diverged:
        return "NONDETERMINISTIC"
    if record.interrupted:
        return f"interrupted; {_bounds(record)}"
    if record.exit_code == _VACUOUS:
        return "VACUOUS, nothing crashes"
    return "closed" if record.closed else f"bounded by {_bounds(record)}"


def _bounds(record: ExplorationRecord) -> str:
    said = list(record.stopped)
    said += [f"{record.spurious:,} paths that do not break when run"] if record.spurious else []
    said += [f"{record.inconclusive_runs:,} runs that say nothing"] if record.inconclusive_runs else []
    return "; ".join(said)


def _most(record: ExplorationRecord) -> str:
    """Return how many schedules are covered, of as many crashes as were counted."""
    if not record.schedules_covered:
        return "0 schedules"
    crashes, count = list(record.schedules_covered.items())[-1]
    return f"{_short(count)} schedules of up to {crashes} crashes"


def _short(count: int) -> str:
    return f"{count:,}" if count < 1_000_000 else f"{count:.1e}"


def page(record: ExplorationsRecord) -> str:
    """Return several explorations as a Markdown page."""
    lines = [
        "# Explored scenarios",
        "",
        "Every crash schedule, with any number of crashes, along the calm order of operations and the calm way of the "
        "environment. *Closed*: nothing more is to be found. Otherwise the bound that was reached is named; what was "
        "run and every path of it was judged all the same. Schedules are what states and edges stand for.",
        "",
        "| scenario | | runs | states | not run | transitions | schedules of up to 10 crashes | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{one.scenario}` | {ended(one)} | {one.runs:,} | {one.states:,} | {one.unvisited:,} | {one.transitions:,} "
        f"| {_short(one.schedules_covered.get('10', 0))} | {one.seconds:.1f} |"
        for one in record.explorations
    ]
    lines += ["", "Not looked at, beside what bounds say:", ""]
    lines += [
        f"- `{one.scenario}`: {'; '.join(bound for bound in one.bounded_by if bound not in one.stopped)}"
        for one in record.explorations
    ]
    lines += ["", f"{record.seconds:.0f} s in {record.workers} processes. Made by `{record.repeat}`.", ""]
    return "\n".join(lines)
