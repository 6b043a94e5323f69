"""Dashboards: two ovens bake, and three screens follow them, over notifications that get lost, doubled and disordered.

Each batch leaves a record that is too large for the log and is kept apart from it.  There is a snapshot every seven
events, and the log is compacted while the phone, which takes long to draw, is still at an older state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import trio

from dst.durable import faults, invariants
from dst.durable.notifications import SimNotifications
from dst.durable.operations import Act
from dst.durable.scenario import DurableScenario
from dst.durable.subscribers import MakeLiveQuery, Subscriber
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from kernel import Context, Effect, EffectContext, Flow, Json, LiveQuery, flow, step

OVEN, OTHER = "oven-1", "oven-2"
BATCHES = 2
BAKE_SECONDS = 5.0
PHONE_SECONDS = 6.0
"""How long the phone draws: from when the first batch is out until the second is in, and the log was compacted."""

bake = step("bake")


class Dashboard(DurableScenario):
    """Two ovens: one is followed from before it exists, and by a slow phone; the other by one who comes late."""

    name = "dashboard"
    story = "screens follow ovens over lossy, doubled, disordered notifications, with compaction underneath"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        *faults.REFUSALS,
        *faults.READS,
        *faults.SNAPSHOTS,
        faults.CONTENT_MISSING,
        *faults.DELIVERIES,
        faults.EFFECT_REFUSED,
        faults.EFFECT_ANSWER_LOST,
        *faults.NOTIFICATIONS,
        faults.COMPACTION,
        faults.CANCEL,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.DECISIONS,
        *invariants.GATES,
        *invariants.FOLLOWED,
    )
    marks: ClassVar[Sequence[str]] = (
        "baked",
        "followed to the end",
        "compacted underneath",
        "a screen was told of an error",
    )
    snapshot_every: ClassVar = 7
    inline_bytes_max: ClassVar = 700
    live: ClassVar[MakeLiveQuery] = LiveQuery

    def flows(self) -> Sequence[Flow]:
        """The oven."""
        return (oven,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One thermometer, which writes a lot when a batch is baked."""
        record = self.service("thermometer").effect("bake", lambda batch: {"batch": batch, "curve": "~" * 600})

        async def bakes(context: EffectContext, batch: Json) -> object:
            await trio.sleep(BAKE_SECONDS)
            return await record(context, batch)

        return {"bake": bakes}

    def interference(self) -> Mapping[str, tuple[Fault, Act]]:
        """Operators may compact and cancel at any moment."""
        return {
            "compact": (faults.COMPACTION, lambda: self.compact(OVEN)),
            "cancel": (faults.CANCEL, lambda: self.cancel(OVEN, "the baker has gone home")),
        }

    def build(self, sim: Simulation) -> None:
        """Put up a screen: who follows an oven that is not there yet sees it come."""
        super().build(sim)
        self._notifications = SimNotifications(sim)
        self.db.on_change = self._notifications.changed
        self.screens = [self._screen("wall", OVEN)]

    def _screen(self, name: str, execution_id: str, *, draws_seconds: float = 0.0) -> Subscriber:
        return Subscriber(
            name,
            execution_id,
            db=self.db,
            stores=self.stores,
            notifications=self._notifications,
            make=type(self).live,
            draws_seconds=draws_seconds,
        )

    async def drive(self, sim: Simulation) -> None:
        """Heat both ovens; put batch after batch into the first, and compact its log while the second is in."""
        await self.start("oven", BATCHES, execution_id=OVEN)
        await self.start("oven", 1, execution_id=OTHER)
        await self._put_in(OVEN, 0)
        await trio.sleep(BAKE_SECONDS + 3)
        self.screens.append(self._screen("phone", OVEN, draws_seconds=PHONE_SECONDS))
        await trio.sleep(2)
        await self._put_in(OVEN, 1)
        await self._put_in(OTHER, 0)
        await trio.sleep(2)
        await self.compact(OVEN)
        self.screens.append(self._screen("desk", OTHER))

    async def _put_in(self, oven: str, batch: int) -> None:
        await self.deliver(oven, "batch", {"loaf": batch}, delivery_id=f"batch-{batch}")

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """What screens have seen is behaviour as well."""
        return super().behaviour(sim, cap) + json.dumps([screen.visible() for screen in self.screens])

    def finish(self, sim: Simulation) -> None:
        """Note what each screen has come to, and mark what was reached."""
        super().finish(sim)
        for screen in self.screens:
            screen.finish()
        cut = self.db.cuts.get(OVEN, 0)
        phone = [state["lastSequence"] for screen in self.screens[1:2] for state in screen.seen]
        sim.sometimes("baked", any(e.type == "oven.off" for e in self.db.history.get(OVEN, ())))
        sim.sometimes("followed to the end", all(screen.tip > 0 for screen in self.screens))
        sim.sometimes("compacted underneath", any(0 <= tip < cut - 1 for tip in phone))
        sim.sometimes("a screen was told of an error", any(screen.errors for screen in self.screens))


@flow
async def oven(ctx: Context, batches: Json) -> Json:
    """Bake batch after batch, each at the heat that was decided on."""
    baked: list[Json] = []
    for number in range(cast(int, batches)):
        batch = await ctx.suspend("batch")
        await ctx.decide(f"heat-{number}", lambda: 220)
        try:
            record = cast("dict[str, Json]", await ctx.run(bake, batch, key=str(number)))
        except Exception:  # it is cold: the next batch may do better
            await ctx.emit("oven.failed", number)
            continue
        await ctx.emit("oven.baked", record)
        baked.append(record["batch"])
    await ctx.emit("oven.off", len(baked))
    return baked
