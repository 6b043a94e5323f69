"""Cause: the moment at which a failing run was decided.

The run is followed up to a moment and goes on with fresh choices, many times; the share of those that fail alike is
that moment's.  A moment is a number of points followed: 0 is before anything, 7 is when the choice at the seventh point
has been made.
"""

from __future__ import annotations

import bisect
from collections.abc import Awaitable, Callable, Sequence

import attrs

CERTAIN = 0.85
"""The share of failing continuations from which a failure is called nearly certain: some always get away."""

_COMPARABLE = 0.5
"""A rise is nearly as large as another if it is this part of it.

A share of few continuations moves by chance, so that to pass a limit, or to be the largest by little, says nothing.
"""

Fork = Callable[[int, int], Awaitable[bool]]
"""`fork(followed, number)` runs continuation `number` of a moment, 0 being the calm one; does it fail alike?"""


@attrs.frozen(kw_only=True, order=True)
class Share:
    """How many continuations of one moment failed alike."""

    followed: int
    failing: int
    of: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.failing / self.of

    @property
    def certain(self) -> bool:
        """Is the failure nearly certain here?"""
        return self.share >= CERTAIN


@attrs.frozen(kw_only=True)
class Turn:
    """The moment named: `at`, and the moment measured before it.

    `certain` says that nearly all continuations fail from here on, at every later moment that was measured too.
    """

    at: Share
    before: Share | None  # None if nothing before it was measured
    certain: bool


def turn_of(curve: Sequence[Share], first: int) -> Turn | None:
    """Return the moment that a curve names, none before `first`; None if nothing was measured from there on.

    It is the last at which the share rises nearly as much as it does anywhere, and `first` if it does not rise at all:
    what has to go wrong has gone wrong then.  `curve` is in the order of its moments.
    """
    start = bisect.bisect_left([share.followed for share in curve], first)
    rises = {index: _rise(curve, index) for index in range(start, len(curve))}
    if not rises:
        return None
    largest = max(rises.values())
    large = [index for index, rise in rises.items() if largest > 0 and rise >= _COMPARABLE * largest]
    at = large[-1] if large else start
    return Turn(
        at=curve[at],
        before=curve[at - 1] if at else None,
        certain=all(share.certain for share in curve[at:]),
    )


def _rise(curve: Sequence[Share], index: int) -> float:
    return curve[index].share - (curve[index - 1].share if index else 0.0)


def evenly(count: int, among: Sequence[int]) -> list[int]:
    """Return up to `count` of the moments evenly, the first and the last included if there is room for two."""
    last = len(among) - 1
    if count < 2:
        return [*among[last : last + count]]
    return [among[i] for i in sorted({last * n // (count - 1) for n in range(count)})]


class Search:
    """Measures moments, and then between them until the turn is found.

    Mutable: the shares measured so far, also of a search that is cut short, and the runs used.
    """

    def __init__(
        self, fork: Fork, *, moments: Sequence[int], deviations: Sequence[int], times: int, budget: int
    ) -> None:
        """Search these moments, in order; `deviations` are those of them at which the schedule has just deviated.

        Each is measured with `times` continuations, in at most `budget` runs together.
        """
        self.runs = 0
        self._fork = fork
        self._moments = moments
        self._deviations = deviations
        self._times = times
        self._budget = budget
        self._shares: dict[int, Share] = {}

    @property
    def curve(self) -> tuple[Share, ...]:
        """What was measured so far, in the order of the moments."""
        return tuple(sorted(self._shares.values()))

    @property
    def turn(self) -> Turn | None:
        """The moment named so far: not before the first deviation, for until then nothing is amiss.

        Without a deviation the calm run fails, and it is the start.
        """
        if self._deviations:
            return turn_of(self.curve, self._deviations[0])
        start = self._shares.get(0)
        return None if start is None else Turn(at=start, before=None, certain=start.certain)

    def exact(self, turn: Turn) -> bool:
        """Was the moment just before it measured too, so that it is between these two?"""
        return not self._between(turn)

    async def run(self, *, spread: int = 0) -> bool:
        """Measure after each deviation, at the end and at `spread` moments between; then narrow down.  All of it?"""
        stops = (*reversed(self._deviations), self._moments[-1]) if self._deviations else (0,)
        stops += tuple(evenly(spread, self._moments))
        for followed in dict.fromkeys(stops):
            if not await self._measure(followed):
                return False
        while (turn := self.turn) is not None and (between := self._between(turn)):
            # Mostly a deviation turns it.  Then how it was just before is all that is left to ask.
            halving = turn.before is not None and turn.at.followed not in self._deviations
            if not await self._measure(between[len(between) // 2 if halving else -1]):
                return False
        return True

    def _between(self, turn: Turn) -> Sequence[int]:
        """Return the moments that could be the turn as well: those between it and the moment measured before it."""
        below = bisect.bisect_right(self._moments, turn.before.followed) if turn.before else 0
        return self._moments[below : bisect.bisect_left(self._moments, turn.at.followed)]

    async def _measure(self, followed: int) -> bool:
        """Measure one moment, whole or not at all; False if the budget does not allow it."""
        if followed in self._shares:
            return True
        if self.runs + self._times > self._budget:
            return False
        failing = 0
        for number in range(self._times):
            failing += await self._fork(followed, number)
            self.runs += 1
        self._shares[followed] = Share(followed=followed, failing=failing, of=self._times)
        return True
