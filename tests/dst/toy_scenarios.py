"""Scenarios for the command line's tests: small, over no kernel where they can, each with one trait."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import trio

from dst.durable import invariants
from dst.durable.scenario import DurableScenario
from dst.faults import CRASH_AFTER, CRASH_BEFORE, menu
from dst.invariants import Broken, Invariant
from dst.node import Incarnation
from dst.scenario import Scenario
from dst.simulation import Simulation
from dst.trace import Record
from kernel import Context, Flow, Json, flow


class WrittenOnce(Invariant[int]):
    """The toy's one invariant."""

    name = "written-once"
    says = "each item is written once"
    kinds = ("wrote",)
    initial = 0

    def key(self, record: Record) -> tuple[object, object]:
        """Keyed by item."""
        return record[1], record[1]

    def advance(self, state: int, record: Record) -> int:
        """Count."""
        if state:
            raise Broken(f"item {record[1]} was written twice \x1b[31m", "once")
        return state + 1


class Steady(Scenario):
    """A node writes three items and dies now and then; it looks before it writes."""

    name = "steady"
    story = "three items, written by a node that dies now and then"
    faults: ClassVar = (CRASH_BEFORE, CRASH_AFTER)
    invariants: ClassVar = (WrittenOnce(),)
    looks: ClassVar = True

    def build(self, sim: Simulation) -> None:
        """Start the node."""
        self.sim, self.written = sim, set[int]()
        self.menu = menu(tuple(sim.faults), (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER)))
        sim.add_node("writer", self.work)

    async def work(self, _: Incarnation) -> None:
        """Write what is not written."""
        for item in range(3):
            if item in self.written and self.looks:
                continue
            point, act = self.sim.enter(f"append:box-1:WRITTEN:item {item}", self.menu)
            await self.sim.approach(point, act)
            if act == "crash-before":
                await self.sim.crash(point)
            self.written.add(item)
            self.sim.note("wrote", item)
            self.sim.happened(point)
            if act == "crash-after":
                await self.sim.crash(point)
        await trio.sleep_forever()

    async def drive(self, sim: Simulation) -> None:
        """Nothing more."""
        self.interfere()

    def interfere(self) -> None:
        """What subclasses do to the process they run in."""


class Forgetful(Steady):
    """It does not look: what it wrote before it died, it writes again."""

    name = "forgetful"
    looks = False


class Bug(Steady):
    """It breaks the harness."""

    name = "bug"

    def finish(self, sim: Simulation) -> None:
        """Fail."""
        raise RuntimeError("a bug in the scenario")


class Endless(Steady):
    """It never comes to rest."""

    name = "endless"

    async def drive(self, sim: Simulation) -> None:
        """Sleep again and again."""
        while True:  # noqa: ASYNC110  # nothing is waited for: that is the point
            await trio.sleep(1)


class DiesOnce(Steady):
    """It kills the first process that runs it."""

    name = "dies_once"

    def interfere(self) -> None:
        """Kill, and leave a mark."""
        mark = Path(os.environ["TOY_MARK"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class AlwaysDies(Steady):
    """It kills every process that runs it."""

    name = "always_dies"

    def interfere(self) -> None:
        """Kill."""
        os.kill(os.getpid(), signal.SIGKILL)


class _OneFlow(DurableScenario):
    faults: ClassVar = ()
    invariants: ClassVar = (invariants.NoEmitLost(),)
    body: ClassVar[Callable[[Context], object]]

    def flows(self) -> Sequence[Flow]:
        @flow(id="toy")
        async def toy(ctx: Context, input: Json) -> Json:
            await type(self).emit_all(ctx)
            return None

        return (toy,)

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        raise NotImplementedError

    async def drive(self, sim: Simulation) -> None:
        await self.start("toy", execution_id="toy-1")


class Diced(_OneFlow):
    """It emits a random number."""

    name = "diced"
    story = "emits a random number"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """Roll."""
        await ctx.emit("rolled", {"number": int(random.random() * 1_000_000)})


class Scattered(_OneFlow):
    """It emits in the order of a set of texts."""

    name = "scattered"
    story = "emits in the order of a set"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """One after another."""
        for tag in {"red", "green", "blue", "cyan", "black"}:
            await ctx.emit("tagged", tag)
