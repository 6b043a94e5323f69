"""Which operations raced: a run with a hold, compared operation by operation with the run without it.

A hold changes the order of many operations, and most of those could change places anyway.  What it is for are two that
could not: they touch something in common, and without the hold they come the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import trio

from dst.choices import CALL, Steered, Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, Menu
from dst.footprints import EVERYTHING, WRITE, Footprint, independent
from dst.schedule import Deviation
from dst.simulation import Simulation

_TASK = "task:"
_TRIED_MAX = 24


@attrs.frozen(kw_only=True)
class Passing:
    """A point that a run came to.  Times are counted in what this run came to and did."""

    at: str
    menu: Menu
    task: str  # who came there, as sites of tasks have it; else a name that no other task of this run has
    came: int
    done: int | None  # when its work was done, or its node died there; None: never
    footprint: Footprint

    @property
    def rank(self) -> int:
        """How well its label says what it is: 0 what is done, 1 what is about to be done, 2 whose turn it is."""
        return 2 if self.at.startswith(_TASK) else 1 if self.at.startswith(CALL) else 0

    @property
    def occurrence(self) -> int:
        """Which time its site was passed."""
        return Deviation(at=self.at, do="").occurrence


class Looking(Written):
    """Choices as a schedule has them, which note what the run comes to.  Mutable: the notes of one run."""

    def __init__(self, deviations: Sequence[Deviation]) -> None:
        super().__init__(deviations, at_calls=True)
        self._sim: Simulation | None = None
        self._labels: dict[trio.lowlevel.Task, str] = {}
        self._touched = _ByTask()
        self._came: dict[str, tuple[Menu, trio.lowlevel.Task | None, int]] = {}
        self._done: dict[str, tuple[int, Footprint]] = {}
        self._dies: set[str] = set()
        self._time = 0

    def attach(self, sim: Steered) -> None:
        """Listen to what is touched."""
        assert isinstance(sim, Simulation)
        self._labels = sim.task_labels
        sim.footprint = self._touched

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Note it."""
        index = super().choose(site, point, menu)
        self._time += 1
        task = None if site.startswith(_TASK) else trio.lowlevel.current_task()
        self._came[point] = menu, task, self._time
        if menu.options[index].fault in (CRASH_BEFORE, CRASH_AFTER):
            self._dies.add(point)
            self._done[point] = self._time, frozenset({(EVERYTHING, WRITE)})
        return index

    def release(self, points: Sequence[str]) -> int:
        """The oldest: no schedule has holds of that kind."""
        return 0

    def happened(self, point: str) -> None:
        """Note it, and what was touched on the way there."""
        self._time += 1
        touched = self._touched.take()
        if point in self._dies:
            touched |= {(EVERYTHING, WRITE)}
        self._done[point] = self._time, touched

    def passings(self) -> tuple[Passing, ...]:
        """Return what the run came to, in this order."""
        names = {task: f"{number}" for number, task in enumerate(dict.fromkeys(t for _, t, _ in self._came.values()))}
        return tuple(
            Passing(
                at=at,
                menu=menu,
                task=at.rpartition("#")[0] if task is None else self._labels.get(task, names[task]),
                came=came,
                done=self._done[at][0] if at in self._done else None,
                footprint=self._done[at][1] if at in self._done else frozenset(),
            )
            for at, (menu, task, came) in self._came.items()
        )


class _ByTask(dict[tuple[str, str], None]):
    """What is touched, for each task apart: between two operations of one there are operations of others."""

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[trio.lowlevel.Task, set[tuple[str, str]]] = {}

    def __setitem__(self, touch: tuple[str, str], _: None) -> None:
        self._of.setdefault(trio.lowlevel.current_task(), set()).add(touch)

    def take(self) -> Footprint:
        """Return what the current task has touched since this was last asked."""
        return frozenset(self._of.pop(trio.lowlevel.current_task(), ()))


def races(hold: Deviation, without: Sequence[Passing], held: Sequence[Passing]) -> list[Deviation]:
    """Return the holds that `hold` may stand for, from the one that says it best, few enough to try them all.

    Each is of an operation until one that conflicts with it and is before it because of the hold.  `held` is what the
    run came to, `without` what it comes to without the hold.  An operation is said better than a turn of a task, one of
    the task that was held better than another's, what happens for the first time better than what has happened before,
    then those two best that are next to each other.

    Last come holds of the same point until the operations that are done meanwhile: what a task does in its turn may
    be no operation, or may have others do it.
    """
    owner = next((passing.task for passing in held if passing.at == hold.at), "")
    found = {
        attrs.evolve(hold, at=first.at, until=second.at): (
            first.rank,
            first.task != owner,
            first.occurrence + second.occurrence,
            second.done - operation.done if second.done and operation.done else 0,
            -first.came,
        )
        for operation, second in _inverted(hold, without, held)
        for first in _held_for(operation, without)
    }
    pairs = sorted(found, key=lambda pair: (found[pair], pair))
    return list(dict.fromkeys((*pairs[:_TRIED_MAX], *_ends(hold, held)[:_TRIED_MAX])))


def _ends(hold: Deviation, held: Sequence[Passing]) -> list[Deviation]:
    """Return the hold until each operation that is done since it began."""
    began = next((passing for passing in held if passing.at == hold.at), None)
    if began is None:
        return []
    ends = [
        (passing.occurrence, passing.done, passing.at)
        for passing in held
        if passing.done and passing.done > began.came and passing.task != began.task and passing.rank == 0
    ]
    return [attrs.evolve(hold, until=at) for _, _, at in sorted(ends)]


def _inverted(
    hold: Deviation, without: Sequence[Passing], held: Sequence[Passing]
) -> Iterator[tuple[Passing, Passing]]:
    """Yield the operations that change places with one that they conflict with, each with that one."""
    then = {passing.at: passing for passing in held}
    since = next((passing.came for passing in without if passing.at == hold.at), 0)
    did = [p for p in without if p.done is not None and p.done > since and not p.at.startswith(CALL)]
    for first in did:
        for second in did:
            if second.done is None or first.done is None or second.done <= first.done or second.task == first.task:
                continue
            if _changed_places(first, second, then) and not independent(first.footprint, second.footprint):
                yield first, second


def _changed_places(first: Passing, second: Passing, then: dict[str, Passing]) -> bool:
    """Is the second one done before the first one now?"""
    one, other = then.get(first.at), then.get(second.at)
    if one is None or other is None or other.done is None:
        return False
    return one.done is None or one.done > other.done


def _held_for(operation: Passing, without: Sequence[Passing]) -> Iterator[Passing]:
    """Yield the points at which to hold a task for it to be late with an operation, and with none before it."""
    for passing in reversed(without):
        if passing.task != operation.task or passing.came > operation.came:
            continue
        if passing.at != operation.at and passing.rank == 0:
            return
        if passing.menu.index(HOLD) is not None:
            yield passing
