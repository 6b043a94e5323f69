"""What a run comes to, point by point, as shrinking needs it: who, when, and what it touched."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from dst.choices import CALL, TASK, Steered, Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, Menu
from dst.footprints import EVERYTHING, WRITE, Footprint
from dst.schedule import Deviation
from dst.scheduler import NODE
from dst.simulation import Simulation


@attrs.frozen(kw_only=True)
class Passing:
    """A point that a run came to.  Times are counted in what this run came to and did."""

    at: str
    menu: Menu
    node: str  # the incarnation that came there, "" for the world
    task: str  # who came there, as sites of tasks have it; else a name that no other task of this run has
    came: int
    done: int | None  # when its work was done, or its node died there; None: never
    footprint: Footprint

    @property
    def rank(self) -> int:
        """How well its label says what it is: 0 what is done, 1 what is about to be done, 2 whose turn it is."""
        return 2 if self.at.startswith(TASK) else 1 if self.at.startswith(CALL) else 0

    @property
    def occurrence(self) -> int:
        """Which time its site was passed."""
        return Deviation(at=self.at, do="").occurrence


class Looking(Written):
    """Choices as a schedule has them, which note what the run comes to.  Mutable: the notes of one run."""

    def __init__(self, deviations: Sequence[Deviation]) -> None:
        super().__init__(deviations, at_calls=True)
        self._labels: dict[trio.lowlevel.Task, str] = {}
        self._touched = _ByTask()
        self._came: dict[str, tuple[Menu, str, trio.lowlevel.Task | None, int]] = {}
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
        task = None if site.startswith(TASK) else trio.lowlevel.current_task()
        node = "" if task is None else NODE.get() or ""
        self._came[point] = menu, node, task, self._time
        self._note_death(point, menu, index)
        return index

    def after_hold(self, point: str, menu: Menu) -> int:
        """Note it."""
        index = super().after_hold(point, menu)
        self._note_death(point, menu, index)
        return index

    def _note_death(self, point: str, menu: Menu, index: int) -> None:
        if menu.options[index].fault in (CRASH_BEFORE, CRASH_AFTER):
            self._dies.add(point)
            self._done[point] = self._time, frozenset({(EVERYTHING, WRITE)})

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
        names = {
            task: f"{number}" for number, task in enumerate(dict.fromkeys(t for _, _, t, _ in self._came.values()))
        }
        return tuple(
            Passing(
                at=at,
                menu=menu,
                node=node,
                task=at.rpartition("#")[0] if task is None else self._labels.get(task, names[task]),
                came=came,
                done=self._done[at][0] if at in self._done else None,
                footprint=self._done[at][1] if at in self._done else frozenset(),
            )
            for at, (menu, node, task, came) in self._came.items()
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
