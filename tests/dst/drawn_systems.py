"""Small systems that never crash, drawn from a seed: tasks that share variables and wait for each other."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar

import attrs
import trio

from dst.faults import HOLD, HOLDING, menu
from dst.footprints import ADD, READ, SET, WRITE
from dst.node import Incarnation
from dst.scenario import Scenario
from dst.simulation import Simulation

VARIABLES = "xyz"
LOCKS = "lm"
EVENTS = "ef"


@attrs.frozen
class Op:
    """One thing that a task does.  All but `wait`, `nap` and `join` are operations."""

    do: str
    on: str = ""
    other: str = ""  # for `branch`: what is written if what was read is odd
    tasks: tuple[tuple[Op, ...], ...] = ()  # for `join`: what is done side by side before it goes on


class Drawn(Scenario):
    """Plays `tasks`."""

    name = "drawn"
    story = "a system that was drawn"
    faults: ClassVar = (HOLDING,)
    invariants: ClassVar = ()
    tasks: ClassVar[Sequence[Sequence[Op]]] = ()

    def build(self, sim: Simulation) -> None:
        """Start the node."""
        self.sim = sim
        self.menu = menu(tuple(sim.faults), ((HOLD, HOLDING),))
        self.world = dict.fromkeys(VARIABLES, 0)
        self.memory: dict[str, list[Any]] = {}  # of each task, all it has seen
        self.locks = {name: trio.Lock() for name in LOCKS}
        self.events = {name: trio.Event() for name in EVENTS}
        sim.add_node("process", self.live)

    async def drive(self, sim: Simulation) -> None:
        """Nothing comes from outside."""

    async def live(self, _: Incarnation) -> None:
        """Run all tasks."""
        await self.side_by_side("t", self.tasks)

    async def side_by_side(self, name: str, tasks: Sequence[Sequence[Op]]) -> None:
        """Run tasks to their ends."""
        async with trio.open_nursery() as nursery:
            for number, ops in enumerate(tasks):
                nursery.start_soon(self.task, f"{name}{number}", ops, name=f"{name}{number}")

    async def task(self, name: str, ops: Sequence[Op]) -> None:
        """Run one."""
        self.memory[name] = []
        for at, op in enumerate(ops):
            if op.do == "wait":
                await self.events[op.on].wait()
            elif op.do == "nap":
                await trio.sleep(1)
            elif op.do == "join":
                await self.side_by_side(f"{name}.{at}.", op.tasks)
            else:
                await self.port(self.site(name, at), name, op)
                if op.do == "lock":
                    await self.locks[op.on].acquire()

    def site(self, name: str, at: int) -> str:
        """Return the site of an operation."""
        return f"op:{name}:{at}"

    async def port(self, site: str, name: str, op: Op) -> None:
        """Do an operation."""
        point, act = self.sim.enter(site, self.menu)
        if act or self.sim.crowded():
            act = await self.sim.approach(point, act)
        if act == "crash-before":
            await self.sim.crash(point)
        self.do(op, self.memory[name])
        self.sim.note("did", name, op.do)
        self.sim.happened(point)

    def do(self, op: Op, memory: list[Any]) -> None:
        """What an operation does to the world."""
        world, touch = self.world, self.sim.touch
        if op.do in ("read", "branch", "copy"):
            touch(op.on, READ)
            memory.append(world[op.on])
        if op.do == "branch":
            to = op.other if world[op.on] % 2 else VARIABLES[-1]
            touch(to, WRITE)
            world[to] = 3 * world[to] + len(memory)
        elif op.do == "copy":
            touch(op.other, WRITE)
            world[op.other] = 2 * world[op.on] + 1
        elif op.do == "write":
            touch(op.on, WRITE)
            world[op.on] = 7 * len(memory) + sum(memory) + 1
        elif op.do == "add":
            touch(op.on, ADD)
            world[op.on] += 1
        elif op.do == "flag":
            touch(op.on, SET)
            world[op.on] = 100
        elif op.do == "silent":  # it does not say
            world[op.on] = 5 * world[op.on] + 2
        elif op.do == "set":
            touch(op.on, SET)
            self.events[op.on].set()
        elif op.do == "lock":
            touch(op.on, WRITE)
        elif op.do == "unlock":
            touch(op.on, WRITE)
            if self.locks[op.on].statistics().owner is trio.lowlevel.current_task():
                self.locks[op.on].release()

    def outcome(self, sim: Simulation) -> Hashable:
        """All there is at the end."""
        return json.dumps([self.world, self.memory], sort_keys=True)


def systems(seed: int, operations_max: int) -> Iterator[type[Drawn]]:
    """Yield systems for ever."""
    for number in itertools.count():
        draws = random.Random(f"{seed} {number}")
        tasks = draw_tasks(draws, draws.randint(3, operations_max))
        yield type("System", (Drawn,), {"name": f"system-{number}", "tasks": tasks})


def draw_tasks(draws: random.Random, operations: int) -> tuple[tuple[Op, ...], ...]:
    """Return two to four tasks with so many operations altogether."""
    count = min(draws.choice((2, 2, 3, 3, 4)), operations)
    shares = [1] * count
    for _ in range(operations - count):
        shares[draws.randrange(count)] += 1
    waiting = draws.random() < 0.6
    return tuple(draw_task(draws, share, waiting=waiting) for share in shares)


def draw_task(draws: random.Random, operations: int, *, waiting: bool) -> tuple[Op, ...]:
    """Return what a task does; it waits for others if `waiting`."""
    ops: list[Op] = []
    while operations:
        on, other = draws.choice(VARIABLES), draws.choice(VARIABLES)
        kind = draws.random()
        if waiting and kind < 0.12:
            ops.append(Op("wait", draws.choice(EVENTS)))
        elif waiting and kind < 0.17:
            ops.append(Op("nap"))
        elif waiting and kind < 0.3:
            ops.append(Op("set", draws.choice(EVENTS)))
            operations -= 1
        elif waiting and kind < 0.4 and operations > 2:
            lock = draws.choice(LOCKS)
            ops += [Op("lock", lock), Op(draws.choice(("read", "write", "copy")), on, other), Op("unlock", lock)]
            operations -= 3
        elif waiting and kind < 0.47 and operations > 1:
            share = operations // 2
            ops.append(Op("join", tasks=tuple(draw_task(draws, 1, waiting=False) for _ in range(share))))
            operations -= share
        else:
            what = draws.choice(("read", "read", "write", "write", "copy", "branch", "add", "add", "flag", "silent"))
            if what == "silent" and draws.random() < 0.7:
                what = "read"
            ops.append(Op(what, on, other))
            operations -= 1
    return tuple(ops)
