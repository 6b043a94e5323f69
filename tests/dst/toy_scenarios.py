"""Scenarios for the tests of the harness itself: small, over no kernel where they can, each with one trait.

Those of `test_canaries.py` are `Steady`, or one flow, with one thing wrong.
"""

from __future__ import annotations

import datetime
import gc
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import ClassVar

import trio

from dst.durable import invariants
from dst.durable.scenario import DurableScenario
from dst.faults import CRASH_AFTER, CRASH_BEFORE, Fault, menu
from dst.invariants import Broken, Invariant
from dst.node import Incarnation
from dst.parameters import Parameter
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
    items = 3

    def build(self, sim: Simulation) -> None:
        """Start the node."""
        self.sim, self.written = sim, set[int]()
        self.menu = menu(tuple(sim.faults), (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER)))
        sim.add_node("writer", self.work)

    async def work(self, _: Incarnation) -> None:
        """Write what is not written."""
        for item in range(self.items):
            if self.is_done(item):
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

    def is_done(self, item: int) -> bool:
        """Need it not be written?"""
        return item in self.written and self.looks

    async def drive(self, sim: Simulation) -> None:
        """Nothing more."""
        self.interfere()

    def interfere(self) -> None:
        """What subclasses do to the process they run in."""


class Forgetful(Steady):
    """It does not look: what it wrote before it died, it writes again."""

    name = "forgetful"
    looks = False


class KnowsTheFirst(Steady):
    """Of some items it knows when it comes back that the first was written, of no other."""

    name = "knows_the_first"
    items = Parameter(5, least=1, most=9, says="items to be written")

    def is_done(self, item: int) -> bool:
        """Remember the first."""
        return item == 0 and item in self.written


class ForgetsTheLast(Steady):
    """It comes back, and does not know that the last was written."""

    name = "forgets_the_last"
    items = Parameter(5, least=1, most=9, says="items to be written")

    def is_done(self, item: int) -> bool:
        """Forget the last."""
        return item < self.items - 1 and item in self.written


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


class Livelocked(Steady):
    """It never comes to rest, and time stands still."""

    name = "livelocked"

    async def drive(self, sim: Simulation) -> None:
        """Turn and turn."""
        while True:
            await trio.lowlevel.checkpoint()


class Stuck(Steady):
    """It waits for what never comes."""

    name = "stuck"

    async def drive(self, sim: Simulation) -> None:
        """Wait."""
        await trio.Event().wait()


class Far(Steady):
    """It comes to rest after a century."""

    name = "far"

    async def drive(self, sim: Simulation) -> None:
        """Sleep."""
        await trio.sleep(100 * 365 * 24 * 3600)


class Fireproof(Steady):
    """It declares a fault that is offered nowhere."""

    name = "fireproof"
    faults: ClassVar = (*Steady.faults, Fault(name="fire"))


class ReadOnce(WrittenOnce):
    """About what never happens."""

    name = "read-once"
    kinds = ("read",)


class Unjudged(Steady):
    """It declares an invariant about what never happens."""

    name = "unjudged"
    invariants: ClassVar = (
        WrittenOnce(),
        type("ReadOnce", (WrittenOnce,), {"name": "read-once", "kinds": ("read",)})(),
    )


class Unmarked(Steady):
    """It declares a case that it never comes to."""

    name = "unmarked"
    marks: ClassVar = ("burnt",)


class Crashing(WrittenOnce):
    """A checker with a bug."""

    name = "crashing"

    def advance(self, state: int, record: Record) -> int:
        """Break at the second item."""
        return 1 // (1 - int(str(record[1])))


class Misjudged(Steady):
    """One of its checkers crashes."""

    name = "misjudged"
    invariants: ClassVar = (WrittenOnce(), Crashing())


class Threaded(Steady):
    """It wants a real thread, and swallows the refusal."""

    name = "threaded"

    async def drive(self, sim: Simulation) -> None:
        """Ask."""
        try:
            await trio.to_thread.run_sync(int)
        except RuntimeError:
            sim.note("went on")


class Connected(Steady):
    """It wants real I/O, and swallows the refusal."""

    name = "connected"

    async def drive(self, sim: Simulation) -> None:
        """Ask."""
        with socket.socket() as plain:
            try:
                await trio.lowlevel.wait_readable(plain)
            except RuntimeError:
                sim.note("went on")


class Erring(Steady):
    """A task of its world ends by an error that nobody injected."""

    name = "erring"

    async def drive(self, sim: Simulation) -> None:
        """Err."""
        raise LookupError("nobody injected this")


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


class OneFlow(DurableScenario):
    """One flow that only emits."""

    faults: ClassVar = ()
    invariants: ClassVar = (invariants.NoEmitLost(),)
    body: ClassVar[Callable[[Context], object]]

    def flows(self) -> Sequence[Flow]:
        """The one."""

        @flow(id="toy")
        async def toy(ctx: Context, input: Json) -> Json:
            await type(self).emit_all(ctx)
            return None

        return (toy,)

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """What the flow does."""
        raise NotImplementedError

    async def drive(self, sim: Simulation) -> None:
        """Start it."""
        await self.start("toy", execution_id="toy-1")


class Diced(OneFlow):
    """It emits a random number."""

    name = "diced"
    story = "emits a random number"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """Roll."""
        await ctx.emit("rolled", {"number": int(random.random() * 1_000_000)})


class Scattered(OneFlow):
    """It emits in the order of a set of texts."""

    name = "scattered"
    story = "emits in the order of a set"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """One after another."""
        for tag in {"red", "green", "blue", "cyan", "black"}:
            await ctx.emit("tagged", tag)


class Scarred(Steady):
    """After a crash it goes through a set."""

    name = "scarred"

    async def work(self, incarnation: Incarnation) -> None:
        """Go through it."""
        if incarnation.number > 1:
            for tag in {"red", "green", "blue", "cyan", "black"}:
                self.sim.note("tagged", tag)
        await super().work(incarnation)


class Dated(OneFlow):
    """It emits what a clock, the system's chance and a new id say, and starts a thread."""

    name = "dated"
    story = "emits times and ids"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """Ask them all."""
        await ctx.emit("asked", [time.time(), str(datetime.datetime.now()), str(uuid.uuid4()), os.urandom(4).hex()])
        await ctx.emit("new", random.Random().random())
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()


class Careful(OneFlow):
    """It measures time and draws from a seed of its own, and nothing of the first comes into the run."""

    name = "careful"
    story = "emits numbers of a seed of its own"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """Draw."""
        began = time.perf_counter()
        await ctx.emit("rolled", random.Random(7).randint(1, 6))
        assert time.perf_counter() >= began


class Remembering(OneFlow):
    """It emits how many runs there were before it."""

    name = "remembering"
    story = "emits what one run leaves to the next"
    runs: ClassVar[list[int]] = []

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """Count."""
        Remembering.runs.append(1)
        await ctx.emit("counted", len(Remembering.runs))


class _Ring:
    """Garbage that only the collector finds."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.on_end = on_end
        self.itself = self

    def __del__(self) -> None:
        self.on_end()


class Dropping(Steady):
    """It drops generators before their end and makes garbage; what they do at their end is noted and would emit."""

    name = "dropping"
    story = "generators that are dropped midway, garbage with a last word"

    async def drive(self, sim: Simulation) -> None:
        """Drop some between other things, half of them where only the collector finds them."""

        async def numbers(name: str) -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                sim.note("finally", name)
                await trio.sleep(1)
                point, _ = sim.enter(f"append:box-1:FINALLY:{name}", self.menu)
                sim.happened(point)

        for turn in range(50):
            dropped = numbers(f"dropped {turn}")
            await anext(dropped)
            ring = [numbers(f"ring {turn}")]
            await anext(ring[0])
            ring.append(ring)  # type: ignore[arg-type]  # a cycle
            _Ring(lambda turn=turn: sim.note("collected", turn))  # type: ignore[misc]  # bound now
            del dropped, ring
            await trio.sleep(0.1)
            sim.note("turned", turn, len([object() for _ in range(20)]))


class Abandoning(OneFlow):
    """It leaves a generator midway, which would emit at its end."""

    name = "abandoning"
    story = "leaves a generator midway"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """Take the first page."""

        async def pages() -> AsyncIterator[int]:
            try:
                yield 1
                yield 2
            finally:
                await ctx.emit("closed", 1)

        async for page in pages():
            await ctx.emit("read", page)
            break
        await ctx.emit("went on", 1)


class Collecting(Dropping):
    """It has the collector run in the middle of the run."""

    name = "collecting"

    async def drive(self, sim: Simulation) -> None:
        """Collect."""
        await super().drive(sim)
        gc.collect()
        await trio.sleep(1)
