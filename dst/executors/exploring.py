"""What an exploration comes to: its failures described, shrunk and replayed, and its record."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import AsyncIterator, Callable, Sequence

import attrs

from dst.choices import Written
from dst.executors.tally import ALL_HELD, FAILED, INCONCLUSIVE, INTERRUPTED, NONDETERMINISM, VACUOUS
from dst.explain import cause_of
from dst.findings import describe
from dst.investigating import investigate
from dst.lookup import find_scenario
from dst.records import ExplorationRecord, ExplorationsRecord, FailureRecord
from dst.run import Host, Limits, host
from dst.scenario import Scenario
from dst.shrink import BUDGET
from dst.signature import signature_of
from dst.strategies.explore import Exploration, Found, explore
from dst.strategies.product import Suspect
from dst.strategies.view import Bounds
from dst.transparency import Transparency

_KEPT = 5  # runs that say nothing, and suspects, of which a record keeps the words


@attrs.frozen(kw_only=True)
class Wanted:
    """An exploration to be made: plain data, so that it can be made in any process."""

    scenario: str  # its name, or package.module:Class
    mutant: str | None
    bounds: Bounds
    steps_max: int
    shrinking: bool

    @property
    def repeat(self) -> str:
        """Return the command that makes it again."""
        return repeat([self.scenario], self.bounds, self.mutant, self.steps_max)

    def find(self) -> type[Scenario]:
        """Return the scenario, over the mutant if there is one."""
        return find_scenario(self.scenario, self.mutant)


def made(wanted: Wanted, progress: Callable[[Exploration], None]) -> ExplorationRecord:
    """Explore, in this process, and describe what was found; interrupted, return what is known so far."""
    scenario, began = wanted.find(), time.monotonic()
    report, failures, interrupted = Exploration(), list[FailureRecord](), False

    def told(so_far: Exploration) -> None:
        nonlocal report
        report = so_far
        progress(so_far)

    async def body(simulations: Host) -> None:
        told(await explore(simulations, scenario, wanted.bounds, told))
        async for found in describe_found(
            simulations, scenario, report, wanted.repeat, wanted.mutant, shrinking=wanted.shrinking
        ):
            failures.append(found)

    try:
        host(body, Limits(steps=wanted.steps_max))
    except KeyboardInterrupt:
        interrupted = True
        # What was to begin in that very moment never will.
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        report.count()
        if report.found and not failures:
            broken = report.found[0].violation.invariant
            report.cut_short.append(f"interrupted while a failure of {broken} was being shrunk")
    return exploration_record(
        scenario,
        wanted.bounds,
        report,
        failures,
        mutant=wanted.mutant,
        seconds=time.monotonic() - began,
        interrupted=interrupted,
        repeat=wanted.repeat,
    )


async def describe_found(
    host: Host,
    scenario: type[Scenario],
    report: Exploration,
    replay: str,
    mutant: str | None = None,
    *,
    shrinking: bool = True,
) -> AsyncIterator[FailureRecord]:
    """Yield what was found, each failure once, shrunk and replayed.

    A schedule that does not do again what it did ends this, and is told in `report`.
    """
    transparency = Transparency(host)
    known: set[str] = set()
    for found in report.found:
        signature = signature_of(found.result, mutant, found.violation).text
        if signature in known:
            continue
        known.add(signature)
        again = await host.run(scenario, Written(found.deviations))
        if again.digest != found.result.digest:
            report.diverged = f"a failing schedule of {len(found.deviations)} deviations, run twice"
            return
        yield await _failure(host, transparency, scenario, found, mutant, replay, shrinking)


async def _failure(
    host: Host,
    transparency: Transparency,
    scenario: type[Scenario],
    found: Found,
    mutant: str | None,
    replay: str,
    shrinking: bool,
) -> FailureRecord:
    signature = signature_of(found.result, mutant, found.violation)
    shrunk = await investigate(
        host,
        transparency,
        scenario,
        found.result,
        found.violation,
        signature,
        seed=None,
        mutant=mutant,
        budget=BUDGET if shrinking else 0,
    )
    scenario, deviations = shrunk.scenario, shrunk.schedule.deviations
    final = await host.run(scenario, Written(deviations))
    return describe(
        scenario,
        final,
        shrunk.violation,
        signature,
        seed=None,
        deviations=deviations,
        found_with=shrunk.found_with,
        minimal=shrunk.minimal,
        shrunk=shrinking,
        replays=shrunk.replays and final.digest == shrunk.digest,
        replay=replay,
        cause=await cause_of(host, transparency, scenario, mutant, deviations) if shrinking else "",
        found_in=shrunk.found_in,
    )


def exploration_record(
    scenario: type[Scenario],
    bounds: Bounds,
    report: Exploration,
    failures: Sequence[FailureRecord],
    *,
    mutant: str | None,
    seconds: float,
    interrupted: bool,
    repeat: str,
) -> ExplorationRecord:
    """Return the record of an exploration."""
    code = _exit_code(report, failures, interrupted)
    return ExplorationRecord(
        scenario=scenario.name,
        strategy="explore",
        mutant=mutant,
        others=bounds.others,
        cap=bounds.cap,
        orders="all" if bounds.all_orders else "calm",
        orders_run=report.orders,
        orders_pruned=report.orders_pruned,
        closed=report.closed and not interrupted,
        runs=report.runs,
        states=report.states,
        unvisited=report.frontier,
        transitions=report.transitions,
        pairs=report.pairs,
        schedules_covered={str(crashes): count for crashes, count in enumerate(report.schedules_covered)},
        bounded_by=tuple(report.bounded_by),
        stopped=tuple(report.stopped),
        judged_raw_only=report.judged_raw_only,
        judged=dict(report.judged),
        seconds=seconds,
        verdict="fail" if report.found or report.diverged else "pass" if code == ALL_HELD else "unknown",
        failures=tuple(failures),
        spurious=len(report.spurious),
        suspects=tuple(map(_said_suspect, report.spurious[:_KEPT])),
        inconclusive=tuple(report.inconclusive[:_KEPT]),
        inconclusive_runs=len(report.inconclusive),
        diverged=report.diverged,
        interrupted=interrupted,
        repeat=repeat,
        exit_code=code,
    )


_GRAVEST = (INTERRUPTED, NONDETERMINISM, FAILED, VACUOUS, INCONCLUSIVE, ALL_HELD)


def explorations_record(
    records: Sequence[ExplorationRecord],
    *,
    missing: Sequence[str],
    seconds_max: float | None,
    workers: int,
    seconds: float,
    repeat: str,
) -> ExplorationsRecord:
    """Return the record of several explorations."""
    codes = [record.exit_code for record in records] + ([INTERRUPTED] if missing else [])
    verdicts = [record.verdict for record in records] + (["unknown"] if missing else [])
    code = min(codes, key=_GRAVEST.index)
    return ExplorationsRecord(
        strategy="explore",
        explorations=tuple(records),
        missing=tuple(missing),
        seconds_max=seconds_max,
        workers=workers,
        seconds=seconds,
        verdict=next(verdict for verdict in ("fail", "unknown", "pass") if verdict in verdicts),
        interrupted=code == INTERRUPTED,
        repeat=repeat,
        exit_code=code,
    )


def _exit_code(report: Exploration, failures: Sequence[FailureRecord], interrupted: bool) -> int:
    """Return the gravest thing that is the matter: an interruption, then what makes the rest worthless."""
    if interrupted:
        return INTERRUPTED
    if report.diverged:
        return NONDETERMINISM
    if failures:
        return FAILED
    if not report.transitions and not report.crossroads:
        return VACUOUS
    return ALL_HELD if report.closed else INCONCLUSIVE


def repeat(
    names: Sequence[str], bounds: Bounds, mutant: str | None, steps_max: int, further: Sequence[str] = ()
) -> str:
    """Return the command that explores this again."""
    default = Bounds()
    words = ["dst", "explore", *names]
    words += ["--mutant", mutant] if mutant else []
    words += ["--others", str(bounds.others)] if bounds.others != default.others else []
    words += ["--faults", ",".join(sorted(bounds.kinds))] if bounds.kinds is not None else []
    words += ["--orders", "all"] if bounds.all_orders else []
    words += ["--max-orders", str(bounds.orders_max)] if bounds.orders_max != default.orders_max else []
    words += ["--cap", str(bounds.cap)] if bounds.cap != default.cap else []
    words += ["--max-states", str(bounds.states_max)] if bounds.states_max != default.states_max else []
    words += ["--max-time", f"{bounds.seconds_max:g}s"] if bounds.seconds_max is not None else []
    words += ["--max-steps", str(steps_max)] if steps_max != Limits().steps else []
    return shlex.join([*words, *further])


def _said_suspect(suspect: Suspect) -> str:
    way = "; ".join(f"{hold.option} at {hold.point}" for _, hold in suspect.path) or "the calm run"
    return f"{suspect.invariant}: {suspect.seen}, by: {way}"
