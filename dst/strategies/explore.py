"""Exhaustive exploration of crash schedules, with any number of crashes: `explore`.

After a crash only the durable world matters.  So each state is run calmly once, and the moments of that run at which a
crash could come are its edges; a moment whose behaviour was seen before leads to a state that is known.  When nothing
new is found the space is closed.  Other faults take part within budgets: they do not lose memory, so they are states of
their own until the next crash.

A state is reached by running its schedule from the beginning: worlds are not copied, the run is the only truth.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import attrs

from dst.choices import Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Menu, Option
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.signature import inconclusive, violation_of
from dst.simulation import Moment, Simulation
from dst.strategies.graph import Graph, Hold, Key, State, count_schedules, visited
from dst.strategies.product import Suspect, search
from dst.trace import Record
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import Transparency
from dst.verdict import Violation

CRASHES_COUNTED = 10
ROOT: Key = ("",)


@attrs.frozen(kw_only=True)
class Bounds:
    """How far to look.

    `others` is how many faults besides crashes may come in one schedule, `cap` how far growing counts are told apart.
    """

    others: int = 0
    states_max: int = 20_000
    seconds_max: float | None = None
    cap: int = 1


@attrs.frozen(kw_only=True)
class Found:
    """A violation, with the schedule that shows it when it is run."""

    violation: Violation
    deviations: tuple[Deviation, ...]
    result: RunResult


@attrs.define(kw_only=True)
class Exploration:
    """What exploring came to.  Mutable while it goes on."""

    graph: Graph = attrs.field(factory=dict)
    runs: int = 0
    states: int = 0
    transitions: int = 0
    pairs: int = 0  # (state of the system, state of a monitor) searched
    frontier: int = 0  # states that are known and were not run
    seconds: float = 0.0
    closed: bool = False
    left_out: list[str] = attrs.field(factory=list)  # whatever is found: kinds of schedules that were not looked at
    cut_short: list[str] = attrs.field(factory=list)  # why it is not closed: bounds that were reached, caps that matter
    schedules_covered: list[int] = attrs.field(factory=list)  # index: up to so many crashes
    found: list[Found] = attrs.field(factory=list)
    spurious: list[Suspect] = attrs.field(factory=list)  # paths of the graph that, run raw, did not break
    inconclusive: list[str] = attrs.field(factory=list)
    diverged: str = ""  # a schedule did not do again what it did before
    judged: Counter[str] = attrs.field(factory=Counter)  # on how many instances it could have failed
    judged_raw_only: tuple[str, ...] = ()  # invariants that do not compose: judged on each state's own run

    @property
    def bounded_by(self) -> list[str]:
        """All that was not looked at."""
        return [*self.left_out, *self.cut_short]

    def count(self) -> None:
        """Count the schedules that what was run so far stands for."""
        self.schedules_covered = count_schedules(visited(self.graph), ROOT, CRASHES_COUNTED)


Progress = Callable[[Exploration], None]


async def explore(
    host: Host, scenario: type[Scenario], bounds: Bounds | None = None, progress: Progress | None = None
) -> Exploration:
    """Explore a scenario, and once it is closed explore it with counts told apart twice as far.

    Nothing else may come of that: the same verdict, and as many schedules.  If something does, states were taken for
    one that do not behave alike, and the space is not closed.  The runs of both are counted.
    """
    bounds = bounds or Bounds()
    report = await Explorer(host, scenario, bounds, progress).run()
    if not report.closed:
        return report
    report.closed = False  # until the caps are known not to matter: somebody may look while that goes on
    runs, seconds = report.runs, report.seconds

    def checking(again: Exploration) -> None:
        report.runs, report.seconds = runs + again.runs, seconds + again.seconds
        if progress is not None:
            progress(report)

    left = None if bounds.seconds_max is None else max(bounds.seconds_max - seconds, 0.0)
    wider = attrs.evolve(bounds, cap=2 * bounds.cap, seconds_max=left)
    again = await Explorer(host, scenario, wider, checking).run()
    checking(again)
    report.diverged, report.found, report.spurious = again.diverged, again.found, again.spurious
    report.inconclusive += again.inconclusive
    report.cut_short += _disagreement(report, again, bounds.cap)
    report.closed = again.closed and not report.cut_short
    return report


def _disagreement(one: Exploration, two: Exploration, cap: int) -> list[str]:
    """Return why two explorations with different caps do not say the same."""
    if two.found:
        return [f"a failure shows with counts up to {2 * cap}, not with counts up to {cap}"]
    if two.cut_short:
        return [f"counts up to {2 * cap} could not be tried to the end: {', '.join(two.cut_short)}"]
    if two.closed and two.schedules_covered != one.schedules_covered:
        return [f"counts up to {cap} and up to {2 * cap} give different schedules: try a higher cap"]
    if two.spurious:
        return [f"counts up to {cap} and up to {2 * cap} give different verdicts: try a higher cap"]
    return []


class NotDeterministic(Exception):
    """A schedule did not do again what it did before."""


class Explorer:
    """One exploration with one cap.  Mutable: the graph grows."""

    def __init__(
        self, host: Host, scenario: type[Scenario], bounds: Bounds | None = None, progress: Progress | None = None
    ) -> None:
        self._host = host
        self._scenario = scenario
        self._bounds = bounds or Bounds()
        self._progress = progress
        self._transparency = Transparency(host)
        root = State(key=ROOT, deviations=(), crashes=0)
        self._frontier = deque([root])
        self.graph: Graph = {ROOT: root}
        self.report = Exploration(
            graph=self.graph,
            judged_raw_only=_judged_raw_only(scenario),
            left_out=_left_out(scenario, self._bounds),
        )

    async def run(self) -> Exploration:
        """Explore until nothing new is found, a violation is, or a bound is reached."""
        report, began = self.report, time.monotonic()  # for the report and its bound only
        deadline = math.inf if self._bounds.seconds_max is None else began + self._bounds.seconds_max
        try:
            while self._frontier and not report.found and not self._spent(deadline):
                await self._visit(self._frontier.popleft())
                report.states, report.frontier = len(self.graph), len(self._frontier)
                report.seconds = time.monotonic() - began
                if self._progress is not None:
                    self._progress(report)
            if not report.found:
                await self._search_product()
        except NotDeterministic as error:
            report.diverged = str(error)
        report.count()
        says_all = not (self._frontier or report.cut_short or report.diverged or report.inconclusive)
        report.closed = says_all and not report.found and not report.spurious
        report.seconds = time.monotonic() - began
        return report

    def _spent(self, deadline: float) -> bool:
        """Is a bound reached?  One state is always run."""
        if len(self.graph) - len(self._frontier) >= self._bounds.states_max:
            self.report.cut_short.append(f"{self._bounds.states_max:,} states")
        elif self.report.runs and time.monotonic() > deadline:
            self.report.cut_short.append(f"{self._bounds.seconds_max:g} s")
        return bool(self.report.cut_short)

    # ---- building the graph ------------------------------------------------------------------------------------------

    async def _visit(self, state: State) -> None:
        """Run a state's calm way to the end, judge it raw, and note where it can be left."""
        view = _View(state.deviations, self._bounds)
        result = await self._run(state.deviations, view)
        state.records = result.records[segment_start(result.records, state.deviations) :]
        state.holds = [self._edge(state, moment) for moment in view.moments]
        state.visited = True
        self.report.transitions += len(state.holds)

    def _edge(self, state: State, moment: _Moment) -> Hold:
        """Return the edge for a moment; a behaviour not seen before is a new state."""
        crashes = state.crashes + moment.crash
        if moment.crash:
            key: Key = ("crash", moment.behaviour, str(moment.others))
        else:
            key = (*state.key, moment.point, moment.option)
        if key not in self.graph:
            deviations = (*state.deviations, Deviation(at=moment.point, do=moment.option))
            self.graph[key] = follower = State(key=key, deviations=deviations, crashes=crashes)
            self._frontier.append(follower)
        return Hold(
            position=moment.position,
            point=moment.point,
            nth=moment.nth,
            option=moment.option,
            crash=moment.crash,
            child=key,
        )

    async def _run(self, deviations: tuple[Deviation, ...], view: _View) -> RunResult:
        choices = Written(deviations)
        view.choices = choices
        result = await self._host.run(self._scenario, choices, spy=view.spy)
        self.report.runs += 1
        self.report.judged.update(dict(result.judgement.judged))
        if choices.missed:
            raise NotDeterministic(f"{choices.missed[0].sentence()}: a second run of its schedule did not come there")
        compared, opaque = await self._transparency.check(self._scenario, result)
        violation = violation_of(result) or (opaque if compared else None)
        if violation is not None:
            self.report.found.append(Found(violation=violation, deviations=deviations, result=result))
        elif why := inconclusive(result):
            self.report.inconclusive.append(f"{why}, with {len(deviations)} deviations")
        return result

    # ---- invariants on the product -----------------------------------------------------------------------------------

    async def _search_product(self) -> None:
        """Search what was run; what a path is suspected of is run raw, for each invariant until it shows."""
        composable = [i for i in self._scenario.invariants if i.composable]
        searched = search(visited(self.graph), ROOT, composable)
        self.report.pairs = searched.pairs
        self.report.inconclusive += searched.crashed
        shown: set[str] = set()
        for suspect in sorted(searched.suspects, key=lambda s: len(s.path)):
            if suspect.invariant in shown:
                continue
            if await self._confirm(suspect):
                shown.add(suspect.invariant)
            else:
                self.report.spurious.append(suspect)

    async def _confirm(self, suspect: Suspect) -> bool:
        """Run a path of the graph raw: a violation that does not show means a wrong digest."""
        before = len(self.report.found)
        deviations = await self.schedule(suspect.path)
        if deviations is not None:
            await self._run(deviations, _View(deviations, self._bounds))
        return len(self.report.found) > before

    async def schedule(self, path: Sequence[tuple[Key, Hold]]) -> tuple[Deviation, ...] | None:
        """Return the schedule that takes a path, found by running it, deviation by deviation.

        What is passed for the third time on the way to one state's representative is passed for the fifth time on
        another: points are looked for.  None if one is not there, which means a wrong digest.
        """
        deviations: tuple[Deviation, ...] = ()
        for _, hold in path:
            view = _View(deviations, self._bounds)
            await self._run(deviations, view)
            taken = view.find(hold)
            if taken is None:
                return None
            deviations = (*deviations, Deviation(at=taken.point, do=taken.option))
        return deviations


def _judged_raw_only(scenario: type[Scenario]) -> tuple[str, ...]:
    compared = [TRANSPARENT] if scenario.outcome is not Scenario.outcome else []
    return (*(i.name for i in scenario.invariants if not i.composable), *compared)


def _left_out(scenario: type[Scenario], bounds: Bounds) -> list[str]:
    """Return, in words, which schedules are not looked at, whatever is found."""
    kinds = {fault.name for fault in scenario.faults} - {CRASH_BEFORE.name, CRASH_AFTER.name}
    said = ["calm order: no interleavings"] if HOLDING.name in kinds else []
    others = sorted(kinds - {HOLDING.name})
    if others:
        many = f"at most {bounds.others}" if bounds.others else "none"
        said.append(f"{many} of the other faults: {', '.join(others)}")
    return said


def segment_start(records: Sequence[Record], deviations: tuple[Deviation, ...]) -> int:
    """Return the index of the record of the last deviation: a crash where it happened, anything else where it began."""
    if not deviations:
        return 0
    last = deviations[-1]
    kind, field = ("crash", 2) if last.do in _CRASH_OPTIONS else ("fault", 1)
    return max(i for i, record in enumerate(records) if record[0] == kind and record[field] == last.at)


def _crashes(deviations: tuple[Deviation, ...]) -> int:
    return sum(deviation.do in _CRASH_OPTIONS for deviation in deviations)


_CRASH_OPTIONS = ("crash-before", "crash-after")


@attrs.frozen(kw_only=True)
class _Moment:
    """A moment at which a run could be left, and what is visible then."""

    position: int
    point: str
    nth: int
    option: str
    crash: bool
    behaviour: str
    others: int  # faults besides crashes so far


class _View:
    """Watches a run from its last deviation on.  Mutable: collects the moments."""

    def __init__(self, deviations: tuple[Deviation, ...], bounds: Bounds) -> None:
        self._bounds = bounds
        self._deviations = deviations
        self._crashes = _crashes(deviations)
        self._others = len(deviations) - self._crashes
        self._passed: Counter[str] = Counter()
        self.choices: Written | None = None
        self.start = 0  # index of the segment's first record
        self._begun = False
        self.moments: list[_Moment] = []

    def spy(self, scenario: Scenario, sim: Simulation, point: str, menu: Menu, moment: Moment) -> None:
        """Note what can be done at a point, once the schedule's own deviations are behind."""
        if not self._begun and not self._begin(sim):
            return
        site = point.rpartition("#")[0]
        if moment is Moment.BEFORE:
            self._passed[site] += 1
        behaviour = ""
        for option in menu.options[1:]:
            if not self._possible(option, moment):
                continue
            crash = option.fault in (CRASH_BEFORE, CRASH_AFTER)
            if crash and not behaviour:
                behaviour = scenario.behaviour(sim, self._bounds.cap)
            self.moments.append(
                _Moment(
                    position=len(sim.records) - self.start,
                    point=point,
                    nth=self._passed[site],
                    option=option.name,
                    crash=crash,
                    behaviour=behaviour,
                    others=self._others,
                )
            )

    def _begin(self, sim: Simulation) -> bool:
        """Has everything the schedule says happened?"""
        assert self.choices is not None
        if self.choices.missed or sim.crashes < self._crashes:
            return False
        self._begun = True
        self.start = segment_start(sim.records, self._deviations)
        return True

    def _possible(self, option: Option, moment: Moment) -> bool:
        if option.fault is CRASH_AFTER:
            return moment is Moment.AFTER
        if moment is Moment.AFTER or option.fault is HOLDING:
            return False
        return option.fault is CRASH_BEFORE or self._others < self._bounds.others

    def find(self, hold: Hold) -> _Moment | None:
        """Return this run's moment for an edge that was seen from another path to its state."""
        site = hold.point.rpartition("#")[0]
        for moment in self.moments:
            if (moment.point.rpartition("#")[0], moment.nth, moment.option) == (site, hold.nth, hold.option):
                return moment
        return None
