"""Small systems drawn from a seed: tasks whose operations read, write, wait, lock, sleep, branch and start others."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import ClassVar

import attrs
import trio

from dst.faults import HOLD, HOLDING, menu
from dst.footprints import ADD, READ, SET, WRITE
from dst.node import Incarnation
from dst.scenario import Scenario
from dst.simulation import Simulation

RESOURCES = ("x", "y", "z")
_SPREAD = 1_000_003


@attrs.frozen(kw_only=True)
class Op:
    """What a task does at one point, and what it waits for before."""

    waits: tuple[int, ...] = ()  # events, all of them
    sleeps: int = 0
    site: str = ""  # "" for a site of its own
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    adds: str = ""
    flags: str = ""
    silent: bool = False  # it does not say what it touches
    locks: int = -1
    unlocks: int = -1
    sets: int = -1
    starts: tuple[Op, ...] = ()
    if_odd: tuple[Op, ...] = ()  # done next if what the task has read so far is odd


System = tuple[tuple[Op, ...], ...]


def drawn(seed: int) -> System:
    """Return a system of two to four tasks and six operations at most, besides those that others lead to."""
    draws = random.Random(f"system {seed}")
    count = draws.choice((2, 2, 3, 3, 4))
    most = {2: 4, 3: 2, 4: 2}[count]
    tasks = [_task(draws, number, draws.randint(1, most)) for number in range(count)]
    while sum(map(len, tasks)) > 6 - (count == 4):
        max(tasks, key=len).pop()
    if draws.random() < 0.3:
        lock = draws.randrange(2)
        for task in draws.sample(tasks, 2):
            task[0] = attrs.evolve(task[0], locks=lock)
            task[-1] = attrs.evolve(task[-1], unlocks=lock)
    return tuple(map(tuple, tasks))


def _task(draws: random.Random, number: int, length: int) -> list[Op]:
    return [_op(draws, number if at or draws.random() < 0.3 else 0) for at in range(length)]


def _op(draws: random.Random, others: int, *, deeper: bool = True) -> Op:
    """Return an operation; who is not the first of all may wait."""

    def some(most: int) -> tuple[str, ...]:
        return tuple(sorted(draws.sample(RESOURCES, draws.randint(0, most))))

    def now_and_then(share: float) -> bool:
        return draws.random() < share

    return Op(
        waits=tuple(draws.sample(range(3), draws.randint(1, 2))) if others and now_and_then(0.3) else (),
        sleeps=draws.randint(1, 2) if now_and_then(0.05) else 0,
        site="shared" if now_and_then(0.08) else "",
        reads=some(2),
        writes=some(1),
        adds=draws.choice(RESOURCES) if now_and_then(0.2) else "",
        flags=draws.choice(RESOURCES) if now_and_then(0.1) else "",
        silent=now_and_then(0.04),
        sets=draws.randrange(3) if now_and_then(0.45) else -1,
        starts=(_op(draws, 0, deeper=False),) if deeper and now_and_then(0.1) else (),
        if_odd=(_op(draws, 0, deeper=False),) if deeper and now_and_then(0.1) else (),
    )


class Waiting(Scenario):
    """A system; all its state is seen at the end, and nothing of it can crash."""

    name = "waiting"
    story = "tasks that wait for each other"
    faults: ClassVar = (HOLDING,)
    invariants: ClassVar = ()
    system: ClassVar[System] = ()

    def build(self, sim: Simulation) -> None:
        """Start the node."""
        self.sim = sim
        self.menu = menu(tuple(sim.faults), ((HOLD, HOLDING),))
        self.values = dict.fromkeys(RESOURCES, 1)
        self.seen: dict[str, int] = {}  # by task, what it has read so far
        self.done: dict[str, int] = {}
        sim.add_node("worker", self.work)

    async def drive(self, sim: Simulation) -> None:
        """Nothing more."""

    async def work(self, _: Incarnation) -> None:
        """Run all tasks."""
        self.events = [trio.Event() for _ in range(3)]
        self.locks = [trio.Semaphore(1) for _ in range(2)]
        async with trio.open_nursery() as self.nursery:
            for number, ops in enumerate(self.system):
                self.nursery.start_soon(self.task, str(number), ops)

    async def task(self, name: str, ops: Sequence[Op]) -> None:
        """Do one thing after the other."""
        self.seen[name], self.done[name] = 0, 0
        for at, op in enumerate(ops):
            await self.act(f"{name}.{at}", name, op)
            if op.if_odd and self.seen[name] % 2:
                await self.act(f"{name}.{at}'", name, op.if_odd[0])

    async def act(self, label: str, name: str, op: Op) -> None:
        """Do one thing."""
        for event in op.waits:
            await self.events[event].wait()
        if op.sleeps:
            await trio.sleep(op.sleeps)
        point, act = self.sim.enter(f"op:{op.site or label}", self.menu)
        if act or self.sim.crowded():
            await self.sim.approach(point, act)
        self.work_on(label, name, op)
        self.sim.happened(point)
        if op.sets >= 0:
            self.events[op.sets].set()
        if op.starts:
            self.nursery.start_soon(self.task, f"{label}+", op.starts)
        if op.unlocks >= 0:
            self.locks[op.unlocks].release()
        if op.locks >= 0:
            await self.locks[op.locks].acquire()

    def work_on(self, label: str, name: str, op: Op) -> None:
        """Read, then change; what is read ends in what is written."""
        touched = [(r, READ) for r in op.reads] + [(r, WRITE) for r in op.writes]
        touched += [(op.adds, ADD)] if op.adds else []
        touched += [(op.flags, SET)] if op.flags else []
        touched += [(f"lock {lock}", WRITE) for lock in (op.locks, op.unlocks) if lock >= 0]
        for resource, mode in () if op.silent else touched or [(f"own {name}", WRITE)]:
            self.sim.touch(resource, mode)
        seen = self.seen[name]
        for resource in op.reads:
            seen = (seen * 31 + self.values[resource]) % _SPREAD
        self.seen[name] = seen
        for resource in op.writes:
            self.values[resource] = (seen * 17 + sum(map(ord, label))) % _SPREAD
        if op.adds:
            self.values[op.adds] += 5
        if op.flags:
            self.values[op.flags] = -1
        self.done[name] += 1

    def finish(self, sim: Simulation) -> None:
        """Tell how things stand."""
        sim.note("stands", json.dumps([self.values, self.seen, self.done], sort_keys=True))


class Apart(Waiting):
    """Three tasks of three operations that have nothing in common."""

    name = "apart"
    story = "three tasks that share nothing"
    system: ClassVar = ((Op(),) * 3,) * 3
