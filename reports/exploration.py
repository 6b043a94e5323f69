"""An exploration in lines of text, computed from its stored record alone."""

from __future__ import annotations

from collections.abc import Iterator

from dst.records import ExplorationRecord
from reports.summary import Line, Style, failure, line

_SUSPECTS_SHOWN = 3


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
    elif not record.transitions:
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
