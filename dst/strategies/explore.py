"""Exhaustive exploration of crash schedules, with any number of crashes.

After a crash only the durable world matters.  So each state is run calmly once, and the moments of that run at which a
crash could come are its edges; a moment whose behaviour was seen before leads to a state that is known.  When nothing
new is found the space is closed.  Other faults take part within budgets: they do not lose memory, so they are states of
their own until the next crash.

A state is reached by running its schedule from the beginning: worlds are not copied, the run is the only truth.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import attrs

from dst.choices import Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Menu, Option
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.signature import violation_of
from dst.simulation import Moment, Simulation
from dst.strategies.graph import Graph, Hold, Key, State, count_schedules
from dst.strategies.product import Suspect, search
from dst.trace import Record
from dst.transparency import Transparency
from dst.verdict import Ending, Violation

CRASHES_COUNTED = 10
_ROOT: Key = ("",)


@attrs.frozen(kw_only=True)
class Bounds:
    """How far to look.  `others` is how many faults besides crashes may come in one schedule."""

    others: int = 0
    states_max: int = 20_000
    seconds_max: float | None = None
    cap: int = 2


@attrs.frozen(kw_only=True)
class Found:
    """A violation, with the schedule that shows it when it is run."""

    violation: Violation
    deviations: tuple[Deviation, ...]
    result: RunResult


@attrs.define(kw_only=True)
class Exploration:
    """What exploring came to.  Mutable while it goes on."""

    runs: int = 0
    states: int = 0
    transitions: int = 0
    pairs: int = 0  # (state of the system, state of a monitor) searched
    frontier: int = 0
    seconds: float = 0.0
    closed: bool = False
    bounded_by: list[str] = attrs.field(factory=list)
    schedules_covered: list[int] = attrs.field(factory=list)  # index: up to so many crashes
    found: list[Found] = attrs.field(factory=list)
    spurious: list[Suspect] = attrs.field(factory=list)  # paths of the graph that, run raw, did not break
    inconclusive: list[str] = attrs.field(factory=list)
    judged_raw_only: tuple[str, ...] = ()  # invariants that do not compose: judged on each state's own run


Progress = Callable[[Exploration], None]


class Explorer:
    """One exploration.  Mutable: the graph grows."""

    def __init__(
        self, host: Host, scenario: type[Scenario], bounds: Bounds | None = None, progress: Progress | None = None
    ) -> None:
        self._host = host
        self._scenario = scenario
        self._bounds = bounds or Bounds()
        self._progress = progress
        self._transparency = Transparency(host)
        self._root = State(key=_ROOT, deviations=(), crashes=0)
        self._frontier = deque([self._root])
        self.graph: Graph = {_ROOT: self._root}
        self.report = Exploration(
            judged_raw_only=tuple(i.name for i in scenario.invariants if not i.composable),
            bounded_by=self._said_bounds(),
        )

    def _said_bounds(self) -> list[str]:
        """What is left out, whatever is found."""
        kinds = {fault.name for fault in self._scenario.faults} - {CRASH_BEFORE.name, CRASH_AFTER.name}
        said = ["calm order: no interleavings"] if HOLDING.name in kinds else []
        others = sorted(kinds - {HOLDING.name})
        if others:
            said.append(f"at most {self._bounds.others} of the other faults: {', '.join(others)}")
        return said

    async def run(self) -> Exploration:
        """Explore until nothing new is found, a violation is, or a bound is reached."""
        report, began = self.report, time.monotonic()  # for the report and its bound only
        while self._frontier and not report.found:
            if len(self.graph) > self._bounds.states_max:
                report.bounded_by.append(f"{self._bounds.states_max} states")
                break
            if self._bounds.seconds_max is not None and time.monotonic() - began > self._bounds.seconds_max:
                report.bounded_by.append(f"{self._bounds.seconds_max:g} seconds")
                break
            await self._visit(self._frontier.popleft())
            report.states, report.frontier = len(self.graph), len(self._frontier)
            report.seconds = time.monotonic() - began
            if self._progress is not None:
                self._progress(report)
        exhausted = not self._frontier
        if not report.found and exhausted:
            await self._search_product()
            report.schedules_covered = count_schedules(self.graph, _ROOT, CRASHES_COUNTED)
        report.closed = exhausted and not report.found and not report.spurious and not report.inconclusive
        report.seconds = time.monotonic() - began
        return report

    # ---- building the graph ------------------------------------------------------------------------------------------

    async def _visit(self, state: State) -> None:
        """Run a state's calm way to the end, judge it raw, and note where it can be left."""
        view = _View(state, self._bounds)
        result = await self._run(state.deviations, view)
        state.records = result.records[_start(result.records, state.deviations) :]
        state.holds = [self._edge(state, moment) for moment in view.moments]
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
        assert not choices.missed, f"a run did not come to {choices.missed}: it is not deterministic"
        compared, opaque = await self._transparency.check(self._scenario, result)
        violation = violation_of(result) or (opaque if compared else None)
        if violation is not None:
            self.report.found.append(Found(violation=violation, deviations=deviations, result=result))
        elif result.ending is not Ending.QUIESCENT or result.judgement.crashed:
            self.report.inconclusive.append(f"{result.ending.value} after {len(deviations)} deviations")
        return result

    # ---- invariants on the product -----------------------------------------------------------------------------------

    async def _search_product(self) -> None:
        composable = [i for i in self._scenario.invariants if i.composable]
        searched = search(self.graph, _ROOT, composable)
        self.report.pairs = searched.pairs
        for suspect in searched.suspects:
            if not await self._confirm(suspect):
                self.report.spurious.append(suspect)

    async def _confirm(self, suspect: Suspect) -> bool:
        """Run a path of the graph raw, deviation by deviation: a violation that does not show means a wrong digest."""
        deviations: tuple[Deviation, ...] = ()
        before = len(self.report.found)
        for _, hold in suspect.path:
            view = _View(State(key=(), deviations=deviations, crashes=_crashes(deviations)), self._bounds)
            await self._run(deviations, view)
            taken = view.find(hold)
            if taken is None:
                return False
            deviations = (*deviations, Deviation(at=taken.point, do=taken.option))
        await self._run(deviations, _View(State(key=(), deviations=deviations, crashes=0), self._bounds))
        return len(self.report.found) > before


def _start(records: Sequence[Record], deviations: tuple[Deviation, ...]) -> int:
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

    def __init__(self, state: State, bounds: Bounds) -> None:
        self._bounds = bounds
        self._deviations = state.deviations
        self._crashes = _crashes(state.deviations)
        self._others = len(state.deviations) - self._crashes
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
        self.start = _start(sim.records, self._deviations)
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
