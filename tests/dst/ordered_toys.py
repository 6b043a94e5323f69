"""Scenarios for the tests of orders: tasks of one node that read and change what they share, over no kernel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import trio

from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, HOLDING, menu
from dst.footprints import ADD, READ, SET, WRITE
from dst.invariants import Broken, Invariant
from dst.node import Incarnation
from dst.scenario import Scenario
from dst.simulation import Simulation
from dst.trace import Record

Op = tuple[str, str]
"""What is done, and to which variable: "read", "write" what was last read, "add", "set", or "quiet": add, unsaid."""

_MODES = {"read": READ, "write": WRITE, "add": ADD, "set": SET}


class Tasks(Scenario):
    """Tasks that do their operations one after the other; all they have is durable."""

    name = "tasks"
    story = "tasks that share variables"
    faults: ClassVar = (CRASH_BEFORE, CRASH_AFTER, HOLDING)
    invariants: ClassVar = ()
    tasks: ClassVar[Sequence[Sequence[Op]]] = ()

    def build(self, sim: Simulation) -> None:
        """Start the node."""
        self.sim = sim
        self.world: dict[str, int] = {}
        self.last: dict[int, int] = {}  # what each task has read
        self.done: dict[int, int] = {}  # how far each task has come
        options = (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER), (HOLD, HOLDING))
        self.menu = menu(tuple(sim.faults), options)
        sim.add_node("worker", self.work)

    async def drive(self, sim: Simulation) -> None:
        """Nothing more."""

    async def work(self, _: Incarnation) -> None:
        """Run all tasks."""
        self.recover()
        async with trio.open_nursery() as nursery:
            for number in range(len(self.tasks)):
                nursery.start_soon(self.task, number, name=f"task {number}")
        await trio.sleep_forever()

    def recover(self) -> None:
        """What subclasses do first in each life."""

    async def task(self, number: int) -> None:
        """Go on where the last life died."""
        for at in range(self.done.get(number, 0), len(self.tasks[number])):
            await self.port(number, at, *self.tasks[number][at])

    async def port(self, number: int, at: int, what: str, variable: str) -> None:
        """Do one operation."""
        point, act = self.sim.enter(f"op:{number}.{at}", self.menu)
        if act or self.sim.crowded():
            act = self.heard(act, await self.sim.approach(point, act))
        if act == "crash-before":
            await self.sim.crash(point)
        self.touch(number, what, variable)
        self.do(number, what, variable)
        self.done[number] = at + 1
        self.sim.note("did", number, at)
        self.sim.happened(point)
        if act == "crash-after":
            await self.sim.crash(point)

    def heard(self, act: str, then: str) -> str:
        """Return what is to be done after `approach`."""
        return then

    def touch(self, number: int, what: str, variable: str) -> None:
        """Say what the operation touches: what a task has read is its own."""
        if what in _MODES:
            self.sim.touch(variable, _MODES[what])

    def do(self, number: int, what: str, variable: str) -> None:
        """Change what there is."""
        now = self.world.get(variable, 0)
        if what == "read":
            self.last[number] = now
        elif what == "write":
            self.world[variable] = 10 * self.last.get(number, 0) + number + 1
        else:
            self.world[variable] = -1 if what == "set" else now + 1

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """All there is."""
        return json.dumps([self.world, self.last, self.done], sort_keys=True)


class DoneOnce(Invariant[int]):
    """Nothing is done twice."""

    name = "done-once"
    says = "each operation is done once"
    kinds = ("did",)
    initial = 0

    def key(self, record: Record) -> tuple[object, object]:
        """Keyed by operation."""
        return "box", record[1:]

    def advance(self, state: int, record: Record) -> int:
        """Count."""
        if state:
            raise Broken(f"operation {record[1:]} was done twice", "once")
        return state + 1


class Held(Tasks):
    """A bug of recovery: if only the second task has come through, it is begun anew.

    In the calm order the tasks take turns, so that no crash finds it; and no order alone does.
    """

    name = "held"
    invariants: ClassVar = (DoneOnce(),)
    tasks: ClassVar = ((("add", "a"), ("add", "a")), (("add", "b"), ("add", "b")))

    def recover(self) -> None:
        """Forget too much."""
        if self.done == {1: 2}:
            self.done = {}


class Deaf(Tasks):
    """Its port does not look at what is to be done where it was held."""

    name = "deaf"
    tasks: ClassVar = Held.tasks

    def heard(self, act: str, then: str) -> str:
        """Return what was to be done at first."""
        return act


class Fine(Held):
    """The same without the bug."""

    name = "fine"

    def recover(self) -> None:
        """Forget nothing."""


class DoneTwice(DoneOnce):
    """Something may be done twice."""

    name = "done-twice"
    says = "each operation is done at most twice"

    def advance(self, state: int, record: Record) -> int:
        """Count."""
        return super().advance(max(state - 1, 0), record) + state


class HeldAgain(Held):
    """The bug of recovery, with an invariant that breaks when it has shown twice: no run of one state does that."""

    name = "held_again"
    invariants: ClassVar = (DoneTwice(),)


class Moody(Tasks):
    """What it does depends on how often it was made: no order can be run again."""

    name = "moody"
    tasks: ClassVar = Held.tasks
    made: ClassVar = [0]

    def recover(self) -> None:
        """From the second time on there is nothing left to do for the first task."""
        self.made[0] += 1
        if self.made[0] > 1:
            self.done[0] = 2
