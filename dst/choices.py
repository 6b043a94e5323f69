"""Choices: every nondeterministic decision of a run is one call on one of these.

Option 0 is always the calm one.  The simulation does what it is told and writes it down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

from dst.faults import HOLD, Fault, Menu
from dst.prng import SplitMix64, derive
from dst.schedule import Deviation

IDLE = "idle"
IDLE_AFTER = "idle after "
"""Before a point: what a hold waits for is that this has happened, and that nothing else can run any more."""

FREE = "free"
"""What a hold waits for whose end is not known when it begins: see `Steering`."""

CALL = "call:"
"""How the site of a call begins: a place where a task may be held and nothing else be done, on its way to a port."""

TASK = "task:"
"""How the site of a task's turn begins."""

_SETTINGS, _DRAWS = 1, 2  # streams of a run's seed
_SCALE = 1 << 64


class Choices(Protocol):
    """Where the decisions of one run come from."""

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return the index of the option to take at `point`, which is `site` and its occurrence."""

    def hold_until(self, point: str) -> str | int:
        """Return what ends the hold just chosen at `point`: the point that must happen, or how many operations."""


class Ordering(Choices, Protocol):
    """Choices that may have more to say of orders: of holds at calls, and of what is done where a hold was."""

    @property
    def at_calls(self) -> bool:
        """Do these choices hold tasks at calls?  No other choices are asked there."""

    def after_hold(self, point: str, menu: Menu) -> int:
        """Return the index of the option to take at `point` now that the hold there has ended."""


class Steering(Ordering, Protocol):
    """Choices that decide, whenever nobody else can run, which of the tasks that they hold goes on."""

    def attach(self, sim: Steered) -> None:
        """Told once, before anything runs, which simulation it is."""

    def release(self, points: Sequence[str]) -> int:
        """Return the index of the one of these points, oldest first, whose hold ends now."""

    def happened(self, point: str) -> None:
        """Told of each operation that has happened."""


class Steered(Protocol):
    """A simulation, as what steers it needs it."""

    footprint: dict[tuple[str, str], None] | None
    deviations: list[Deviation]

    def crowded(self) -> bool:
        """Could anybody else run now?"""


class Calm:
    """Nothing is ever done."""

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return 0."""
        return 0

    def hold_until(self, point: str) -> str | int:
        """Never asked."""
        return IDLE


class Random:
    """Choices from a seed, two-level: a site is switched on for a run, and then fires now and then.

    What the environment may do (decline a card, time out) and what goes wrong with the process (crash, lose an answer)
    is drawn apart: the first has few sites and makes the story, the second has many and breaks it.  Which kinds take
    part and how often is drawn first, from a stream of its own, so that it does not shift what is drawn later; without
    `subset` every kind takes part.  A kind with a rate of its own takes part in every run, at every site, at that rate.
    """

    def __init__(self, seed: int, faults: Iterable[Fault], rate: float | None = None, *, subset: bool = True) -> None:
        settings = SplitMix64(derive(seed, _SETTINGS))
        kinds = list(faults)
        self._draws = SplitMix64(derive(seed, _DRAWS))
        self._kinds = {fault.name for fault in kinds if settings.chance(2) or not subset}
        if not self._kinds and kinds:
            self._kinds = {kinds[settings.below(len(kinds))].name}
        self._process = _Rates(on_one_in=2 << settings.below(3), fires_one_in=1 << settings.below(3), rate=rate)
        self._world = _Rates(on_one_in=2 + settings.below(3), fires_one_in=1 + settings.below(2), rate=rate)
        self._rated = {} if rate is not None else {f: int(f.rate * _SCALE) for f in kinds if f.rate is not None}
        self._kinds -= {fault.name for fault in self._rated}
        self._sites: dict[str, tuple[bool, bool]] = {}
        self._allowed: dict[Menu, tuple[list[int], list[int]]] = {}
        self._used: dict[Fault, int] = {}

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return 0 but for the sites that are on, and for those now and then one of the options that take part."""
        for index, option in enumerate(menu.options if self._rated else ()):
            if option.fault in self._rated and self._draws.next64() < self._rated[option.fault]:
                return self._within_budget(menu, index)
        on = self._sites.get(site)
        if on is None:
            on = self._sites[site] = (self._process.switch(self._draws), self._world.switch(self._draws))
        if on == (False, False):
            return 0
        allowed = self._allowed.get(menu)
        if allowed is None:
            allowed = self._allowed[menu] = self._split(menu)
        for is_on, rates, options in ((on[1], self._world, allowed[1]), (on[0], self._process, allowed[0])):
            if is_on and options and self._draws.next64() < rates.fire_below:
                return self._within_budget(menu, options[self._draws.below(len(options))])
        return 0

    def _within_budget(self, menu: Menu, index: int) -> int:
        """Return `index`, or 0 if its fault has been used as often as it may be in one run."""
        fault = menu.options[index].fault
        assert fault is not None
        used = self._used.get(fault, 0)
        if used >= fault.budget:
            return 0
        self._used[fault] = used + 1
        return index

    def _split(self, menu: Menu) -> tuple[list[int], list[int]]:
        """Return the indices of the options that take part: those of the process, those of the environment."""
        split: tuple[list[int], list[int]] = ([], [])
        for index, option in enumerate(menu.options):
            if option.fault is not None and option.fault.name in self._kinds:
                split[option.fault.environmental].append(index)
        return split

    def hold_until(self, point: str) -> str | int:
        """Return a number of operations, small ones more often."""
        return 1 + self._draws.below(1 << (1 + self._draws.below(4)))


class _Rates:
    """How many sites are on, and how often one that is on fires."""

    def __init__(self, on_one_in: int, fires_one_in: int, rate: float | None) -> None:
        self._on_one_in = on_one_in if rate is None else 1
        self.fire_below = _SCALE // fires_one_in if rate is None else int(rate * _SCALE)

    def switch(self, draws: SplitMix64) -> bool:
        """Draw whether a site is on for this run."""
        return draws.below(self._on_one_in) == 0


class Written:
    """Choices as a schedule has them.  `missed` is, at the end of a run, what did not find its point."""

    def __init__(self, deviations: Sequence[Deviation], *, at_calls: bool = False) -> None:
        holds = [deviation for deviation in deviations if deviation.do == HOLD]
        self._left = {deviation.at: deviation for deviation in deviations if deviation.do != HOLD}
        self._after: dict[str, Deviation] = {}  # what is to be done where something is held first
        for hold in holds:
            if hold.at in self._left:
                self._after[hold.at] = self._left.pop(hold.at)
            self._left[hold.at] = hold
        self._until: dict[str, str] = {}
        self.at_calls = at_calls or any(hold.at.startswith(CALL) for hold in holds)

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return what is written for this point, 0 if nothing is or if it cannot be done here."""
        return self._take(self._left, point, menu)

    def _take(self, written: dict[str, Deviation], point: str, menu: Menu) -> int:
        deviation = written.get(point)
        if deviation is None:
            return 0
        index = menu.index(deviation.do)
        if index is None:
            return 0
        del written[point]
        if deviation.do == HOLD:
            self._until[point] = deviation.until
        return index

    def after_hold(self, point: str, menu: Menu) -> int:
        """Return what is written for this point beside the hold."""
        return self._take(self._after, point, menu)

    def hold_until(self, point: str) -> str | int:
        """Return the point that ends the hold."""
        return self._until[point]

    @property
    def missed(self) -> tuple[Deviation, ...]:
        """The deviations that have not found their point so far."""
        return (*self._left.values(), *self._after.values())


class Resumed:
    """A written beginning, and from its last deviation on the choices of another."""

    def __init__(self, beginning: Sequence[Deviation], end: Choices) -> None:
        self._written = Written(beginning)
        self._end = end
        self._held: set[str] = set()
        self.at_calls = self._written.at_calls

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return what is written; once all of it has happened, what the other says."""
        if not self._written.missed:
            return self._end.choose(site, point, menu)
        index = self._written.choose(site, point, menu)
        if index:
            self._held.add(point)
        return index

    def hold_until(self, point: str) -> str | int:
        """Return what ends a hold."""
        return self._written.hold_until(point) if point in self._held else self._end.hold_until(point)

    def after_hold(self, point: str, menu: Menu) -> int:
        """Return what is written for this point beside the hold, or what the other does beside one of its own."""
        if point in self._held or not hasattr(self._end, "after_hold"):
            return self._written.after_hold(point, menu)
        return cast("Ordering", self._end).after_hold(point, menu)

    def __getattr__(self, name: str) -> Any:
        """Pass on what the other has to say of who goes on, if it has."""
        return getattr(self._end, name)
