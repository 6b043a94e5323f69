"""Strategies for interleavings: `pct`, `pos` and `walk`.  Other faults come as `swarm` draws them.

All are made of holds, as all interleavings here are, so that what they find is shrunk and replayed like anything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from dst.choices import FREE, IDLE, TASK, Choices, Random, Steered
from dst.faults import HOLD, HOLDING, Menu
from dst.prng import SplitMix64, derive
from dst.strategies.strategy import Terms

_STREAM = 4
_CHANGES_MAX = 3
_SPAN_LEAST = 8  # the least number of points among which the places of change are drawn; doubled up to four times
_HELD_MAX = 8  # operations that `pos` holds a point for, at most


class _Holding:
    """Draws holds by a rule of its own, everything else as `swarm` does.  Mutable: counts the points passed."""

    def __init__(self, seed: int, terms: Terms) -> None:
        self._rest = Random(seed, [f for f in terms.faults if f is not HOLDING], terms.rate)
        self.draws = SplitMix64(derive(seed, _STREAM))
        self.span = _SPAN_LEAST << self.draws.below(5)
        self.passed = 0  # points at which something could be held
        self._left = HOLDING.budget if HOLDING in terms.faults else 0

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Hold here if the rule says so."""
        index = menu.index(HOLD)
        if index is not None and self._left:
            self.passed += 1
            if self.holds(site):
                self._left -= 1
                return index
        return self._rest.choose(site, point, menu)

    def holds(self, site: str) -> bool:
        """Is what comes to this point held?"""
        raise NotImplementedError

    def hold_until(self, point: str) -> str | int:
        """Return what ends the hold."""
        raise NotImplementedError


class _Pct(_Holding):
    """Probabilistic concurrency testing: few places of change, drawn evenly; what comes to one has the lowest priority
    from then on, so that it goes on only when nobody else can.  A bug that needs d such places is found with d of them.
    """

    def __init__(self, seed: int, terms: Terms) -> None:
        super().__init__(seed, terms)
        changes = 1 + self.draws.below(_CHANGES_MAX)
        self._places = {1 + self.draws.below(self.span) for _ in range(changes)}

    def holds(self, site: str) -> bool:
        """Is this one of the places?"""
        return self.passed in self._places

    def hold_until(self, point: str) -> str | int:
        """Until nobody else can run."""
        return IDLE


class _Pos(_Holding):
    """Partial order sampling: from a place that is drawn on, each operation gets a priority of its own, drawn anew: how
    many others go first."""

    def __init__(self, seed: int, terms: Terms) -> None:
        super().__init__(seed, terms)
        self._from = self.draws.below(self.span)

    def holds(self, site: str) -> bool:
        """One in two, once the place is reached."""
        return self.passed > self._from and self.draws.chance(2)

    def hold_until(self, point: str) -> str | int:
        """Until some operations have gone first."""
        return 1 + self.draws.below(_HELD_MAX)


class _Walk(_Holding):
    """A random walk: whoever comes to a point is held there; when nobody can run, one of them goes on, drawn evenly."""

    at_calls = False

    def __init__(self, seed: int, terms: Terms) -> None:
        super().__init__(seed, terms)
        self._holding = HOLDING in terms.faults
        self._held = 0
        self._sim: Steered | None = None

    def attach(self, sim: Steered) -> None:
        """Nothing has to be held while nobody else could run."""
        self._sim = sim

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Hold whatever can be held, where there is anybody else."""
        assert self._sim is not None
        index = menu.index(HOLD)
        if index is None or not self._holding or site.startswith(TASK) or not (self._held or self._sim.crowded()):
            return self._rest.choose(site, point, menu)
        return index

    def hold_until(self, point: str) -> str | int:
        """Until it is drawn."""
        self._held += 1
        return FREE

    def after_hold(self, point: str, menu: Menu) -> int:
        """Do what else is drawn for a point."""
        index = self._rest.choose(point.rpartition("#")[0], point, menu)
        return 0 if index == menu.index(HOLD) else index

    def release(self, points: Sequence[str]) -> int:
        """Draw one."""
        self._held = len(points) - 1
        return self.draws.below(len(points))

    def happened(self, point: str) -> None:
        """Nothing depends on it."""


def pct(seed: int, terms: Terms) -> Choices:
    """Return the choices of a `pct` run."""
    return _Pct(seed, terms)


def pos(seed: int, terms: Terms) -> Choices:
    """Return the choices of a `pos` run."""
    return _Pos(seed, terms)


def walk(seed: int, terms: Terms) -> Choices:
    """Return the choices of a `walk` run."""
    return _Walk(seed, terms)
