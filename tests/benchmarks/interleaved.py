"""Small flows whose branches race: what the orders of operations are counted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dst.durable import faults, invariants
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from kernel import Context, Effect, Flow, Json, flow, step


class Branching(DurableScenario):
    """A flow of `branches` branches, each of which does `ways` things."""

    faults: ClassVar[Sequence[Fault]] = (*faults.CRASHES, HOLDING)
    invariants: ClassVar[Sequence[AnyInvariant]] = (*invariants.DURABLE, *invariants.BRANCHES)
    branches: ClassVar[int]
    ways: ClassVar[int]

    def flows(self) -> Sequence[Flow]:
        """The flow."""

        @flow(id="branching")
        async def branching(ctx: Context, _: Json) -> Json:
            async with ctx.branches() as b:
                for branch in range(self.branches):
                    b.start(self.branch, ctx, branch)
            return None

        return (branching,)

    async def branch(self, ctx: Context, branch: int) -> None:
        """One branch."""
        for way in range(self.ways):
            await self.act(ctx, branch, way)

    async def act(self, ctx: Context, branch: int, way: int) -> None:
        """Do one thing."""
        raise NotImplementedError

    async def drive(self, sim: Simulation) -> None:
        """Start it."""
        await self.start("branching", execution_id="b-1")


class Emits(Branching):
    """Three branches of three emits."""

    name = "emits"
    story = "three branches of three emits"
    branches = 3
    ways = 3

    async def act(self, ctx: Context, branch: int, way: int) -> None:
        """Emit."""
        await ctx.emit(f"said.{branch}.{way}")


class Steps(Branching):
    """Two branches of two steps."""

    name = "steps"
    story = "two branches of two steps"
    branches = 2
    ways = 2

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One service."""
        self.post = self.service("post").effect("send", lambda _: None)
        return {}

    async def act(self, ctx: Context, branch: int, way: int) -> None:
        """Have something sent."""
        await ctx.run(step(f"send-{branch}-{way}", self.post))


class Crossed(Branching):
    """Two branches that say the same two things, the one in the other order than the other."""

    name = "crossed"
    story = "two branches of two emits, crossed"
    branches = 2
    ways = 2

    async def act(self, ctx: Context, branch: int, way: int) -> None:
        """Emit."""
        await ctx.emit("ab"[way ^ branch])


class Alike(Branching):
    """Two branches that say the same, one of them after a step."""

    name = "alike"
    story = "two branches of one emit, one after a step"
    branches = 2
    ways = 1

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One service."""
        self.post = self.service("post").effect("send", lambda _: None)
        return {}

    async def act(self, ctx: Context, branch: int, way: int) -> None:
        """Emit."""
        if branch == 0:
            await ctx.run(step("send", self.post))
        await ctx.emit("said")


class Decisions(Branching):
    """Two branches of two decisions: they are ordered, nothing can change places."""

    name = "decisions"
    story = "two branches of two decisions"
    branches = 2
    ways = 2

    async def act(self, ctx: Context, branch: int, way: int) -> None:
        """Decide."""
        await ctx.decide(f"chosen-{branch}-{way}", lambda: way)
