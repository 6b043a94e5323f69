"""The nearest passing run: among those whose schedule differs least from a failing one, the one most like it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence

import attrs

from dst import trace
from dst.faults import GO, HOLD, Menu
from dst.run import RunResult
from dst.schedule import Deviation
from dst.trace import Record

Passes = Callable[[tuple[Deviation, ...]], Awaitable["RunResult | None"]]
"""Runs a schedule; returns the run if it passes, else None."""


@attrs.frozen(kw_only=True)
class Change:
    """A schedule that differs little from another: one deviation is left out, changed or added, or nothing is done."""

    deviations: tuple[Deviation, ...]
    index: int | None  # of the deviation that was left out or changed
    to: Deviation | None = None  # what it was changed to, or what was added


@attrs.frozen(kw_only=True)
class Nearest:
    """A passing run, and the first record at which it parts from the failing one."""

    change: Change
    result: RunResult
    at: int


def changes(schedule: tuple[Deviation, ...], points: dict[str, Menu]) -> Iterator[Change]:
    """Yield the schedules that differ least; `points` are those the failing run passed, and what could be done there.

    A deviation is left out, is another thing done at its point, or is done another time its site is passed.  Where
    there is none, one is added, the latest first.
    """
    if not schedule:
        for label, menu in reversed(points.items()):
            for name in menu.names:
                if name not in (GO, HOLD):
                    added = Deviation(at=label, do=name)
                    yield Change(deviations=(added,), index=None, to=added)
    for index, deviation in enumerate(schedule):
        rest = schedule[:index], schedule[index + 1 :]
        yield Change(deviations=rest[0] + rest[1], index=index)
        for to in _others(deviation, points):
            if all(to.at != other.at for other in rest[0] + rest[1]):
                yield Change(deviations=(*rest[0], to, *rest[1]), index=index, to=to)
    yield Change(deviations=(), index=None)


def _others(deviation: Deviation, points: dict[str, Menu]) -> Iterator[Deviation]:
    menu = points.get(deviation.at)
    for name in menu.names if menu is not None else ():
        if name not in (GO, HOLD, deviation.do):  # a hold would need an end as well
            yield Deviation(at=deviation.at, do=name)
    for label, menu in points.items():
        elsewhere = attrs.evolve(deviation, at=label)
        if elsewhere.site == deviation.site and label != deviation.at and menu.index(deviation.do) is not None:
            yield elsewhere


class Nearby:
    """Looks among changed schedules.  Mutable: the nearest so far, also if the search is cut short, and the counts."""

    def __init__(self, failing: RunResult, points: dict[str, Menu], passes: Passes, budget: int) -> None:
        self.nearest: Nearest | None = None
        self.tried = 0
        self.passing = 0
        self._failing = failing
        self._records = [trace.encode([record]) for record in failing.records]
        self._points = points
        self._passes = passes
        self._budget = budget
        self._best = (-1, -1)

    async def run(self) -> bool:
        """Try them all; False if the budget was too small."""
        seen = {self._failing.deviations}
        for change in changes(self._failing.deviations, self._points):
            if change.deviations in seen:
                continue
            seen.add(change.deviations)
            if self._later(change):
                return True
            if self.tried >= self._budget:
                return False
            result = await self._passes(change.deviations)
            self.tried += 1
            # What could not be done is no change that anybody has to hear of: leaving it out is tried as well.
            if result is not None and (change.to is None or _took_place(change.to, result)):
                self.passing += 1
                self._compare(change, result)
        return True

    def _later(self, change: Change) -> bool:
        """Is one known that passes with something added later than this, and so is like the failing run for longer?"""
        if change.index is not None or change.to is None or self.nearest is None:
            return False
        found = self.nearest.change.to
        return found is not None and found.at != change.to.at

    def _compare(self, change: Change, result: RunResult) -> None:
        """Keep it if it is like the failing run for longer, then if it has more of its records after that."""
        at, alike = likeness(self._records, result.records)
        if (at, alike) > self._best:
            self._best = (at, alike)
            self.nearest = Nearest(change=change, result=result, at=at)


def likeness(records: Sequence[bytes], others: Sequence[Record]) -> tuple[int, int]:
    """Return how many records are the same from the beginning, and of those after them how many in any order."""
    encoded = [trace.encode([record]) for record in others]
    at = next((i for i, (one, other) in enumerate(zip(records, encoded, strict=False)) if one != other), None)
    same = min(len(records), len(encoded)) if at is None else at
    return same, (Counter(records[same:]) & Counter(encoded[same:])).total()


def _took_place(wanted: Deviation, result: RunResult) -> bool:
    return any((deviation.at, deviation.do) == (wanted.at, wanted.do) for deviation in result.deviations)
