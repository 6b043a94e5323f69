"""Watching a run from its last deviation on: the moments at which it could be left, and what is visible then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from dst.choices import Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, HOLDING, Menu, Option
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.simulation import Moment, Simulation
from dst.strategies.caps import Caps
from dst.strategies.graph import Hold
from dst.strategies.orders import Steer
from dst.trace import Record


@attrs.frozen(kw_only=True)
class Bounds:
    """How far to look.

    `others` is how many faults besides crashes may come in one schedule, `kinds` of which kinds (None: of all), `cap`
    how far growing counts are told apart.
    """

    others: int = 0
    kinds: frozenset[str] | None = None
    states_max: int = 20_000
    seconds_max: float | None = None
    cap: int = 1
    all_orders: bool = False  # from each state, every order of operations instead of the calm one
    orders_max: int = 2_000  # of one state


def segment_start(records: Sequence[Record], deviations: tuple[Deviation, ...]) -> int:
    """Return the index of the record of the last deviation: a crash where it happened, anything else where it began.

    Holds do not count: they are how a segment goes on, not where it begins.
    """
    deviations = tuple(deviation for deviation in deviations if deviation.do != HOLD)
    if not deviations:
        return 0
    last = deviations[-1]
    kind, field = ("crash", 2) if last.do in _CRASH_OPTIONS else ("fault", 1)
    return max(i for i, record in enumerate(records) if record[0] == kind and record[field] == last.at)


def crashes_of(deviations: tuple[Deviation, ...]) -> int:
    """Return how many of the deviations are crashes."""
    return sum(deviation.do in _CRASH_OPTIONS for deviation in deviations)


_CRASH_OPTIONS = ("crash-before", "crash-after")


@attrs.frozen(kw_only=True)
class Departure:
    """A moment at which a run could be left, and what is visible then."""

    position: int
    point: str
    nth: int
    option: str
    crash: bool
    behaviour: str
    others: int  # faults besides crashes so far
    way: tuple[Deviation, ...]  # all that has been done so far

    @property
    def deviation(self) -> Deviation:
        """What leaves the run here."""
        return Deviation(at=self.point, do=self.option)


class View:
    """Watches a run from its last deviation on.  Mutable: collects the moments."""

    def __init__(
        self,
        deviations: tuple[Deviation, ...],
        bounds: Bounds,
        steer: Steer | None = None,
        caps: Caps | None = None,
    ) -> None:
        self._bounds = bounds
        self.deviations = deviations
        self._crashes = crashes_of(deviations)
        self._others = sum(deviation.do != HOLD for deviation in deviations) - self._crashes
        self._steer = steer
        self._caps = caps
        self._passed: Counter[str] = Counter()
        self.choices: Written | Steer | None = None
        self.counts: dict[str, int] = {}  # how often each site was passed before
        self.start = 0  # index of the segment's first record
        self._begun = False
        self.departures: list[Departure] = []

    def spy(self, scenario: Scenario, sim: Simulation, point: str, menu: Menu, moment: Moment) -> None:
        """Note what can be done at a point, once the schedule's own deviations are behind."""
        if not self._begun and not self._begin(sim):
            return
        if self._steer is not None and self._steer.will_hold(point, menu):
            return
        site = point.rpartition("#")[0]
        if moment is Moment.BEFORE:
            self._passed[site] += 1
        if self._steer is not None and not self._steer.is_new:
            return
        behaviour = ""
        for option in menu.options[1:]:
            if not self._possible(option, moment):
                continue
            crash = option.fault in (CRASH_BEFORE, CRASH_AFTER)
            if crash and not behaviour:
                behaviour = self._behaviour(scenario, sim)
            self.departures.append(
                Departure(
                    position=len(sim.records) - self.start,
                    point=point,
                    nth=self._passed[site],
                    option=option.name,
                    crash=crash,
                    behaviour=behaviour,
                    others=self._others,
                    way=sim.way_to(point),
                )
            )

    def _behaviour(self, scenario: Scenario, sim: Simulation) -> str:
        behaviour = scenario.behaviour(sim, self._bounds.cap)
        if self._caps is not None and not self._caps.matter:
            self._caps.note(behaviour, scenario.behaviour(sim, 2 * self._bounds.cap))
        return behaviour

    def _begin(self, sim: Simulation) -> bool:
        """Has everything the schedule says happened?"""
        assert self.choices is not None
        if sim.crashes < self._crashes or any(d.do != HOLD for d in self.choices.missed):
            return False
        self._begun = True
        self.counts = sim.passed
        self.start = segment_start(sim.records, self.deviations)
        return True

    def _possible(self, option: Option, moment: Moment) -> bool:
        if option.fault is CRASH_AFTER:
            return moment is Moment.AFTER
        if moment is Moment.AFTER or option.fault is HOLDING:
            return False
        return option.fault is CRASH_BEFORE or (self._others < self._bounds.others and self._takes_part(option))

    def _takes_part(self, option: Option) -> bool:
        kinds = self._bounds.kinds
        return kinds is None or (option.fault is not None and option.fault.name in kinds)

    def find(self, hold: Hold) -> Departure | None:
        """Return this run's moment for an edge that was seen from another path to its state."""
        site = hold.point.rpartition("#")[0]
        for moment in self.departures:
            if (moment.point.rpartition("#")[0], moment.nth, moment.option) == (site, hold.nth, hold.option):
                return moment
        return None
