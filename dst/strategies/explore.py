"""Exhaustive exploration of crash schedules, with any number of crashes: `explore`.

After a crash only the durable world matters.  So each state is run calmly once, and the moments of that run at which a
crash could come are its edges; a moment whose behaviour was seen before leads to a state that is known.  When nothing
new is found the space is closed.  Other faults take part within budgets: they do not lose memory, so they are states of
their own until the next crash.

A state is reached by running its schedule from the beginning: worlds are not copied, the run is the only truth.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

import attrs

from dst.choices import IDLE_AFTER, Written
from dst.errors import WrongUsage
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, HOLDING
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.signature import inconclusive, violation_of
from dst.strategies.caps import Caps
from dst.strategies.graph import Cost, Graph, Hold, Key, State, count_schedules, visited
from dst.strategies.orders import NotThere, Orders, Steer
from dst.strategies.product import NO_LIMIT, Suspect, search
from dst.strategies.view import Bounds, Departure, View, crashes_of, segment_start
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import Transparency
from dst.verdict import Violation

CRASHES_COUNTED = 10
ROOT: Key = ("",)
_RUNNING_SHARE = 0.75
"""Of the time there is, at most, for running states; the rest is for what invariants say of paths."""


@attrs.frozen(kw_only=True)
class Found:
    """A violation, with the schedule that shows it when it is run."""

    violation: Violation
    deviations: tuple[Deviation, ...]
    result: RunResult

    @property
    def cost(self) -> Cost:
        """Its faults, then its records up to where it broke."""
        return sum(deviation.do != HOLD for deviation in self.deviations), self.violation.at


@attrs.define(kw_only=True)
class Exploration:
    """What exploring came to.  Mutable while it goes on."""

    graph: Graph = attrs.field(factory=dict)
    runs: int = 0
    states: int = 0
    transitions: int = 0
    pairs: int = 0  # (state of the system, state of a monitor) searched
    orders: int = 0  # runs of a state in one order each; all but one a state are in another than the calm one
    orders_pruned: int = 0  # of them, those that came to where all that was left had been run in another order
    crossroads: int = 0  # turns of the first order of each state at which more than one could have gone on
    frontier: int = 0  # states that are known and were not run
    seconds: float = 0.0
    closed: bool = False
    left_out: list[str] = attrs.field(factory=list)  # whatever is found: kinds of schedules that were not looked at
    cut_short: list[str] = attrs.field(factory=list)  # why it is not closed: bounds that were reached, caps that matter
    schedules_covered: list[int] = attrs.field(factory=list)  # index: up to so many crashes
    unsearched: list[str] = attrs.field(factory=list)  # invariants that were not judged on all paths of the graph
    found: list[Found] = attrs.field(factory=list)  # the fewest faults first, then records
    spurious: list[Suspect] = attrs.field(factory=list)  # paths of the graph that, run raw, did not break
    inconclusive: list[str] = attrs.field(factory=list)
    diverged: str = ""  # a schedule did not do again what it did before
    judged: Counter[str] = attrs.field(factory=Counter)  # on how many instances it could have failed
    judged_raw_only: tuple[str, ...] = ()  # invariants that do not compose: judged on each state's own run

    @property
    def stopped(self) -> list[str]:
        """Why it is not closed, although nothing broke."""
        if self.found or not self.unsearched:
            return self.cut_short
        return [*self.cut_short, f"paths of the graph were not searched to the end for: {', '.join(self.unsearched)}"]

    @property
    def bounded_by(self) -> list[str]:
        """All that was not looked at."""
        return [*self.left_out, *self.stopped]

    def count(self) -> None:
        """Count the schedules that what was run so far stands for."""
        self.schedules_covered = count_schedules(visited(self.graph), ROOT, CRASHES_COUNTED)


def check_orders(scenario: type[Scenario], bounds: Bounds) -> None:
    """Raise `WrongUsage` if all orders are wanted where they cannot be explored."""
    if not bounds.all_orders:
        return
    if HOLDING not in scenario.faults:
        raise WrongUsage(
            f"{scenario.name} has no orders to explore: nothing of it can be held\n"
            "put dst.faults.HOLDING among its `faults`"
        )
    if bounds.others:
        raise WrongUsage("all orders go with crashes alone\nleave out the other faults, or all orders")


Progress = Callable[[Exploration], None]


async def explore(
    host: Host, scenario: type[Scenario], bounds: Bounds | None = None, progress: Progress | None = None
) -> Exploration:
    """Explore a scenario, and once it is closed explore it with counts told apart twice as far.

    Nothing else may come of that: the same verdict, and as many schedules.  If something does, states were taken for
    one that do not behave alike, and the space is not closed.  The runs of both are counted.  Where no moment's
    behaviour says more with the double cap, the second would be the first again, and is not made.
    """
    bounds, caps = bounds or Bounds(), Caps()
    report = await Explorer(host, scenario, bounds, progress, caps=caps).run()
    if not report.closed or not caps.matter:
        return report
    report.closed = False  # until the caps are known not to matter: somebody may look while that goes on
    runs, seconds = report.runs, report.seconds

    def checking(again: Exploration) -> None:
        report.runs, report.seconds = runs + again.runs, seconds + again.seconds
        if progress is not None:
            progress(report)

    report.cut_short = [f"counts up to {2 * bounds.cap} were not tried to the end"]  # likewise
    left = None if bounds.seconds_max is None else round(max(bounds.seconds_max - seconds, 0.0), 1)
    wider = attrs.evolve(bounds, cap=2 * bounds.cap, seconds_max=left)
    again = await Explorer(host, scenario, wider, checking).run()
    checking(again)
    report.diverged, report.found, report.spurious = again.diverged, again.found, again.spurious
    report.inconclusive += again.inconclusive
    report.cut_short = _disagreement(report, again, bounds.cap)
    report.closed = again.closed and not report.cut_short
    return report


def _disagreement(one: Exploration, two: Exploration, cap: int) -> list[str]:
    """Return why two explorations with different caps do not say the same."""
    if two.found:
        return [f"a failure shows with counts up to {2 * cap}, not with counts up to {cap}"]
    if two.stopped:
        return [f"counts up to {2 * cap} could not be tried to the end: {', '.join(two.stopped)}"]
    if two.closed and two.schedules_covered != one.schedules_covered:
        return [f"counts up to {cap} and up to {2 * cap} give different schedules: try a higher cap"]
    if two.spurious:
        return [f"counts up to {cap} and up to {2 * cap} give different verdicts: try a higher cap"]
    return []


def reordered(state: State, counts: Mapping[str, int]) -> tuple[Deviation, ...]:
    """Return what makes a state's order, for a way there on which sites were passed so often before."""

    def moved(point: str) -> str:
        after = IDLE_AFTER if point.startswith(IDLE_AFTER) else ""
        site, _, nth = point.removeprefix(after).rpartition("#")
        return f"{after}{site}#{int(nth) - state.counts.get(site, 0) + counts.get(site, 0)}" if site else point

    return tuple(attrs.evolve(d, at=moved(d.at), until=moved(d.until)) for d in state.order)


def crashes_can_follow(scenario: type[Scenario], bounds: Bounds) -> bool:
    """Is there anything that leaves a run midway, so that more is seen of it than its end?

    That is said of what is declared.  A moment at which a run can be left says yes as well, whatever is declared.
    """
    return bounds.others > 0 or any(fault in (CRASH_BEFORE, CRASH_AFTER) for fault in scenario.faults)


class NotDeterministic(Exception):
    """A schedule did not do again what it did before."""


class Explorer:
    """One exploration with one cap.  Mutable: the graph grows."""

    def __init__(
        self,
        host: Host,
        scenario: type[Scenario],
        bounds: Bounds | None = None,
        progress: Progress | None = None,
        wanted: Container[str] | None = None,
        caps: Caps | None = None,
    ) -> None:
        """With `wanted` what breaks other invariants than those is passed by, as nothing that was looked for.

        With `caps` it is found out whether the cap matters.
        """
        self._wanted = wanted
        self._caps = caps
        self._host = host
        self._scenario = scenario
        self._bounds = bounds or Bounds()
        self._progress = progress
        self._transparency = Transparency(host)
        root = State(key=ROOT, deviations=())
        self._queue = [((0, 0), 0, root)]  # states to run, the cheapest first; some have been run since, at less
        self._frontier = 1
        self._pushed = itertools.count(1)
        self.graph: Graph = {ROOT: root}
        self._runs_end = self._deadline = math.inf
        self._began = 0.0
        self._ordered = 0  # states of the graph that are one with another, in another order
        self._unordered = 0  # states of which not all orders were run
        self.report = Exploration(
            graph=self.graph,
            judged_raw_only=_judged_raw_only(scenario),
            left_out=_left_out(scenario, self._bounds),
            unsearched=[invariant.name for invariant in scenario.invariants if invariant.composable],
        )

    async def run(self) -> Exploration:
        """Explore until nothing new is found, a violation is, or a bound is reached."""
        report, began = self.report, time.monotonic()  # for the report and its bound only
        self._began = began
        if self._bounds.seconds_max is not None:
            self._deadline = began + self._bounds.seconds_max
            self._runs_end = began + self._bounds.seconds_max * (_RUNNING_SHARE if report.unsearched else 1)
        try:
            while self._frontier and not report.found and not self._spent():
                state = self._cheapest()
                await (self._visit_in_all_orders(state) if self._bounds.all_orders else self._visit(state))
                self._tell()
            if self._unordered:
                report.cut_short.append(f"not all orders of {self._unordered:,} of the states")
            await self._search_product()
        except (NotDeterministic, NotThere) as error:
            report.diverged = str(error)
        report.found.sort(key=lambda found: found.cost)
        report.count()
        says_all = not (self._frontier or report.stopped or report.diverged or report.inconclusive)
        report.closed = says_all and not report.found and not report.spurious
        report.seconds = time.monotonic() - began
        return report

    def _tell(self) -> None:
        report = self.report
        report.states, report.frontier = len(self.graph) - self._ordered, self._frontier
        report.seconds = time.monotonic() - self._began
        if self._progress is not None:
            self._progress(report)

    def _spent(self) -> bool:
        """Is a bound reached?  One state is always run."""
        if len(self.graph) - self._ordered - self._frontier >= self._bounds.states_max:
            self.report.cut_short.append(f"{self._bounds.states_max:,} states")
        elif self.report.runs and time.monotonic() > self._runs_end:
            self.report.cut_short.append(self._said_time())
        return bool(self.report.cut_short)

    def _said_time(self) -> str:
        return f"{self._bounds.seconds_max:g} s"

    # ---- building the graph ------------------------------------------------------------------------------------------

    def _cheapest(self) -> State:
        """Return the state to be run next: the one with the fewest faults, then records, on the way to it."""
        while True:
            cost, _, state = heapq.heappop(self._queue)
            if not state.visited and cost == state.cost:
                self._frontier -= 1
                return state

    def _push(self, state: State) -> None:
        heapq.heappush(self._queue, (state.cost, next(self._pushed), state))

    async def _visit(self, state: State) -> None:
        """Run a state's calm way to the end, judge it raw, and note where it can be left."""
        view = View(state.deviations, self._bounds, caps=self._caps)
        result = await self._run(state.deviations, view)
        state.records = result.records[segment_start(result.records, state.deviations) :]
        state.holds = [self._edge(state, moment, view.start) for moment in view.departures]
        state.visited = True
        self.report.transitions += len(state.holds)

    async def _visit_in_all_orders(self, state: State) -> None:
        """Run a state in every order of its operations, judge each raw, and note where each can be left."""
        orders, others = Orders(crashes=crashes_can_follow(self._scenario, self._bounds)), list[Hold]()
        for number in itertools.count():
            steer = orders.steer(state.deviations, self._scenario)
            view = View(state.deviations, self._bounds, steer, self._caps)
            result = await self._run(state.deviations, view, steer)
            steer.finish()
            if view.departures:
                orders.try_all()
            self.report.orders += 1
            self.report.crossroads += 0 if number else sum(len(turn.pending) > 1 for turn in orders.turns)
            self.report.orders_pruned += steer.blocked
            one = state if number == 0 else self._in_another_order(state, number, others)
            one.records = result.records[segment_start(result.records, state.deviations) :]
            one.holds = [self._edge(state, moment, view.start) for moment in view.departures]
            one.counts, one.visited = view.counts, True
            one.order = result.deviations[len(state.deviations) :]
            self.report.transitions += len(one.holds) + bool(number)  # that all goes on in this order is one as well
            self._tell()
            if self.report.found or not orders.advance():
                break
            if number + 1 >= self._bounds.orders_max or time.monotonic() > self._runs_end:
                self._unordered += 1
                break
        state.holds = [*others, *state.holds]  # it may go on in any order before anything else happens

    def _in_another_order(self, state: State, number: int, edges: list[Hold]) -> State:
        key = (*state.key, f"order {number}")
        edges.append(Hold(position=0, point="", nth=0, option="order", crash=False, child=key, order=True))
        self.graph[key] = other = State(key=key, deviations=state.deviations, cost=state.cost)
        self._ordered += 1
        return other

    def _edge(self, state: State, moment: Departure, before: int) -> Hold:
        """Return the edge for a moment; a behaviour not seen before, or seen at more cost, is a state to be run.

        There are `before` records before the segment.
        """
        if moment.crash:
            key: Key = ("crash", moment.behaviour, str(moment.others))
        else:
            key = (*state.key, moment.point, moment.option)
        cost = state.cost[0] + 1, before + moment.position
        follower = self.graph.get(key)
        if follower is None:
            follower = self.graph[key] = State(key=key, deviations=(*moment.way, moment.deviation), cost=cost)
            self._frontier += 1
            self._push(follower)
        elif not follower.visited and cost < follower.cost:
            follower.deviations, follower.cost = (*moment.way, moment.deviation), cost
            self._push(follower)
        return Hold(
            position=moment.position,
            point=moment.point,
            nth=moment.nth,
            option=moment.option,
            crash=moment.crash,
            child=key,
        )

    async def _run(
        self, deviations: tuple[Deviation, ...], view: View, steer: Steer | None = None, *, strict: bool = True
    ) -> RunResult:
        choices = steer or Written(deviations, at_calls=self._bounds.all_orders)
        view.choices = choices
        result = await self._host.run(self._scenario, choices, spy=view.spy)
        self.report.runs += 1
        self.report.judged.update(dict(result.judgement.judged))
        if choices.missed and strict:
            raise NotDeterministic(f"{choices.missed[0].sentence()}: a second run of its schedule did not come there")
        if strict and _crashed(result) < crashes_of(deviations):
            raise NotDeterministic(
                f"{deviations[-1].sentence()}: it was to, and did not; a port does what `approach` returns, which is a "
                "crash where it was held first"
            )
        violation = await self._violation(result)
        if violation is not None and steer is not None:
            await self._run_raw(result, violation)
        elif violation is not None:
            self.report.found.append(Found(violation=violation, deviations=deviations, result=result))
        elif why := inconclusive(result):
            self.report.inconclusive.append(f"{why}, with {len(deviations)} deviations")
        return result

    async def _violation(self, result: RunResult) -> Violation | None:
        compared, opaque = await self._transparency.check(self._scenario, result)
        if self._wanted is None:
            return violation_of(result) or (opaque if compared else None)
        seen = [*result.judgement.violations, *([opaque] if compared and opaque is not None else [])]
        return next((violation for violation in seen if violation.invariant in self._wanted), None)

    async def _run_raw(self, steered: RunResult, violation: Violation) -> None:
        """Run the schedule of an order that was steered, and found to break something: nothing else is reported."""
        await self._run(steered.deviations, View(steered.deviations, self._bounds))
        if not self.report.found:
            raise NotDeterministic(
                f"an order broke {violation.invariant}, and its schedule of {len(steered.deviations)} holds does not"
            )

    # ---- invariants on the product -----------------------------------------------------------------------------------

    async def _search_product(self) -> None:
        """Search what was run; what a path is suspected of is run raw, for each invariant until it shows.

        After a failure only paths with fewer faults are looked at.
        """
        report = self.report
        composable = [i for i in self._scenario.invariants if i.composable]
        if self._wanted is not None:
            composable = [i for i in composable if i.name in self._wanted]
            report.unsearched = [i.name for i in composable]
        limit = min(((found.cost[0], 0) for found in report.found), default=NO_LIMIT)
        suspects: list[Suspect] = []
        searches = search(visited(self.graph), ROOT, composable, cheaper_than=limit, go_on=self._in_time)
        for searched in searches:
            report.pairs += searched.pairs
            report.inconclusive += [searched.crashed] if searched.crashed else []
            suspects += searched.suspects
            if searched.whole or searched.crashed:
                report.unsearched.remove(searched.invariant)
        shown: set[str] = set()
        for suspect in sorted(suspects, key=lambda s: s.cost):
            if suspect.invariant in shown:
                continue
            if not self._in_time():
                report.unsearched += {suspect.invariant} - {*report.unsearched}
            elif await self._confirm(suspect):
                shown.add(suspect.invariant)
            else:
                report.spurious.append(suspect)
        if report.unsearched and not report.cut_short:
            report.cut_short.append(self._said_time())

    def _in_time(self) -> bool:
        self._tell()
        return time.monotonic() <= self._deadline

    async def _confirm(self, suspect: Suspect) -> bool:
        """Run a path of the graph raw: a violation that does not show means a wrong digest."""
        before = len(self.report.found)
        deviations = await self.schedule(suspect.path)
        if deviations is not None:
            await self._run(deviations, View(deviations, self._bounds), strict=not self._bounds.all_orders)
        return len(self.report.found) > before

    async def schedule(self, path: Sequence[tuple[Key, Hold]]) -> tuple[Deviation, ...] | None:
        """Return the schedule that takes a path, found by running it, deviation by deviation.

        What is passed for the third time on the way to one state's representative is passed for the fifth time on
        another: points are looked for.  None if one is not there, which means a wrong digest.
        """
        deviations: tuple[Deviation, ...] = ()
        order: tuple[Deviation, ...] = ()  # in which all goes on from there
        for _, hold in path:
            view = View(deviations, self._bounds)
            await self._run((*deviations, *order), view, strict=not order)
            if hold.order:
                order = reordered(self.graph[hold.child], view.counts)
                continue
            taken = view.find(hold)
            if taken is None:
                return None
            deviations, order = (*taken.way, taken.deviation), ()
        return (*deviations, *order)


def _crashed(result: RunResult) -> int:
    return sum(record[0] == "crash" for record in result.records)


def _judged_raw_only(scenario: type[Scenario]) -> tuple[str, ...]:
    compared = [TRANSPARENT] if scenario.outcome is not Scenario.outcome else []
    return (*(i.name for i in scenario.invariants if not i.composable), *compared)


def _left_out_of_orders(scenario: type[Scenario], bounds: Bounds) -> list[str]:
    if not bounds.all_orders:
        return ["calm order: no interleavings"]
    passed_by = "states on the way that no operation sees, since no crash can come there: what all orders end in counts"
    return [
        "orders of what lies between ports: races in plain memory between bare checkpoints",
        "an append lands when its call goes on: nothing comes in between",
        "of orders that lead to the same states, all but one: it is the one that is judged",
        "time stands still while an operation waits: no deadline passes meanwhile",
        *([] if crashes_can_follow(scenario, bounds) else [passed_by]),
    ]


def _left_out(scenario: type[Scenario], bounds: Bounds) -> list[str]:
    """Return, in words, which schedules are not looked at, whatever is found."""
    kinds = {fault.name for fault in scenario.faults} - {CRASH_BEFORE.name, CRASH_AFTER.name}
    said = _left_out_of_orders(scenario, bounds) if HOLDING.name in kinds else []
    if scenario.behaviour is Scenario.behaviour:
        said.append("no two moments are taken for alike: it does not say in `behaviour` which are")
    others = kinds - {HOLDING.name}
    tried = (others if bounds.kinds is None else others & bounds.kinds) if bounds.others else frozenset()
    if tried:
        said.append(f"at most {bounds.others} of the other faults: {', '.join(sorted(tried))}")
    if others - tried:
        said.append(f"none of the other faults: {', '.join(sorted(others - tried))}")
    return said
