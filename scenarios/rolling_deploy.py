"""A rolling deploy: orders are under way while the flow's code goes from version to version.

Version 2 screens the customer before it gives notice (a live step before equal content, at a new place), says so (an
emit is added), and names the clerk behind the gate (an emit moves to a later segment).  Version 3 asks for the price in
another way than orders under way have been priced: a mistake, and what it meets blocks with nothing lost.  Version 4 is
version 2 again.  A worker that crashes may come up with the next version at any moment.

One loss is expected, and only that one.  A worker with version 2 screens an order that version 1 had given notice of,
and dies before it gives its own: on the next run all of the segment is served, and the new notice is taken for the old
one.  ADR 0102 D2 accepts it as residual (a).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import trio

from dst.durable import faults, invariants
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from kernel import Context, Effect, Flow, Json, NothingToResolve, flow, step
from kernel.events import EXECUTION_BLOCKED

ORDER: Json = {"item": "pot", "count": 2}
NOTICE: Json = {"text": "we are on it"}
MOVED = (0, "order.notice")
"""Segment and type of the emit that version 2 makes at another place, behind a step of its own."""

_LOOK_SECONDS = 5.0
_LOOKS = 12  # after which whoever deploys does so anyway

price = step("price")
screen = step("screen")
book = step("book")


class RollingDeploy(DurableScenario):
    """One order, and four versions of its flow."""

    name = "rolling_deploy"
    story = "an order under way while its flow is deployed anew: emits added, moved, behind a new step; a bad version"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        *faults.DELIVERIES,
        faults.DEPLOY,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *(i for i in invariants.DURABLE if i.name != invariants.NoEmitLost.name),
        invariants.NoEmitLost(moved=(MOVED,)),
        *invariants.GATES,
    )
    marks: ClassVar[Sequence[str]] = (
        "dispatched",
        "begun by version 1, ended by version 4",
        "version 3 blocked it, version 4 went on",
        "the new notice was taken for the old one",
    )
    versions = 4

    def flows(self) -> Sequence[Flow]:
        """The order flow as of the version that is deployed: emits that stay have their place in all of them."""
        version = self.deployed

        @flow(id="order")
        async def order(ctx: Context, wanted: Json) -> Json:
            await ctx.emit("order.received", wanted)
            priced = await ctx.run(price, [wanted, "net"] if version == 3 else wanted)
            if version == 1:
                await ctx.emit("order.notice", NOTICE)
                await ctx.emit("order.clerk", {"name": "ada"})
            else:
                await ctx.run(screen, wanted)
                await ctx.emit("order.notice", NOTICE)
                await ctx.emit("order.screened", wanted)
            approval = await ctx.suspend("approval")
            if version >= 2:
                await ctx.emit("order.clerk", {"name": "ada"})
            await ctx.emit("order.approved", approval)
            booked = await ctx.run(book, priced)
            await ctx.suspend("dispatch")
            await ctx.emit("order.dispatched", booked)
            return booked

        return (order,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One shop."""
        shop = self.service("shop")
        return {
            "price": shop.effect("price", lambda _: {"cents": 1400}),
            "screen": shop.effect("screen", lambda _: "fine"),
            "book": shop.effect("book", lambda priced: {"booked": priced}),
        }

    async def drive(self, sim: Simulation) -> None:
        """Deploy each version while the order waits, and have the last one take up what the bad one left."""
        await self.start("order", ORDER, execution_id="order-1")
        await self._roll_out(2)
        await self.deliver("order-1", "approval", {"by": "eve"}, delivery_id="approval-1")
        await self._roll_out(3)
        await self.deliver("order-1", "dispatch", delivery_id="dispatch-1")
        await self._roll_out(4)
        for _ in range(_LOOKS):
            if self._status() == "blocked":
                await self._take_up()
            await trio.sleep(_LOOK_SECONDS)

    async def _roll_out(self, version: int) -> None:
        """Deploy a version, if no crash has brought it, when the order rests."""
        for _ in range(_LOOKS):
            await trio.sleep(_LOOK_SECONDS)
            if self._status() not in ("absent", "running"):
                break
        if self.deployed < version:
            self.deploy()

    async def _take_up(self) -> None:
        try:
            await self.resume_blocked("order-1")
        except NothingToResolve:
            return  # asked again after a crash: it had been taken up

    def _status(self) -> str:
        row = self.db.rows.get("order-1")
        return "absent" if row is None else row.status

    def finish(self, sim: Simulation) -> None:
        """Mark what was reached."""
        super().finish(sim)
        history = self.db.history.get("order-1", ())
        types = [event.type for event in history]
        ended = "order.dispatched" in types
        sim.sometimes("dispatched", ended)
        sim.sometimes("version 3 blocked it, version 4 went on", ended and EXECUTION_BLOCKED in types)
        notices = {record[4] for record in sim.records if record[0] == "acked" and _is_notice(record[3])}
        sim.sometimes("begun by version 1, ended by version 4", ended and len(notices) == 2)
        sim.sometimes("the new notice was taken for the old one", len(notices) > types.count("order.notice"))


def _is_notice(identity: str) -> bool:
    return identity.startswith("order.notice/")
