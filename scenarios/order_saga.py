"""An order: ask what shipping costs, reserve stock, charge the card, ship; and undo it all when something fails.

The card may be declined, which the step declares: a typed failure.  The carrier may be down, which nobody declares: an
untyped one.  The refund may fail as well.  A charge may time out with its request still on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

from dst.durable import faults, invariants
from dst.durable.operations import Act
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from kernel import Context, Effect, Envelope, Flow, Json, TypedFailure, flow, step
from kernel.events import STEP_FAILED

ORDER: Json = {"id": "o-17", "items": ["tea", "pot"], "total": 4200}


class CardDeclined(TypedFailure):
    """The bank said no."""

    wire_name = "card_declined"


CARD_DECLINED = Fault(name="card-declined", environmental=True)


quote = step("quote")
reserve = step("reserve")
release = step("release")
charge = step("charge", failures=(CardDeclined,), deadline=30)
refund = step("refund", deadline=30)
ship = step("ship")


class OrderSaga(DurableScenario):
    """One order from one client."""

    name = "order_saga"
    story = "reserve stock, charge, ship; card declined, carrier down, a refund that fails"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        *faults.REFUSALS,
        *faults.READS,
        *faults.EFFECTS,
        faults.EFFECT_HUNG,
        *faults.OPERATIONS,
        CARD_DECLINED,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.REPLAYS,
        invariants.CompensatorOnce(owed_by={"release": "reserve", "refund": "charge"}),
        invariants.RollbackFinished(scope=("reserve", "charge", "ship")),
    )
    marks: ClassVar[Sequence[str]] = ("shipped", "declined", "rolled back", "a refund failed")

    def flows(self) -> Sequence[Flow]:
        """The order flow, over this scenario's saga."""
        saga = self.saga

        @flow(id="order")
        async def order(ctx: Context, input: Json) -> Json:
            await ctx.emit("order.received", input)
            await _tell_price(ctx, input)
            try:
                async with saga(ctx) as s:
                    held = await s.run(reserve, input, compensate=release)
                    await ctx.emit("order.reserved", held)
                    paid = await s.run(charge, held, compensate=refund)
                    await ctx.emit("order.charged", paid)
                    parcel = await s.run(ship, held)
            except CardDeclined as declined:
                await ctx.emit("order.declined", declined.data)
                return {"status": "declined"}
            await ctx.emit("order.shipped", parcel)
            return {"status": "shipped", "parcel": parcel}

        return (order,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """Four services."""
        stock, bank, carrier = self.service("stock"), self.service("bank"), self.service("carrier")
        declines = {"declined": (CARD_DECLINED, CardDeclined)}
        return {
            "quote": carrier.effect("quote", lambda _: {"price": 590}),
            "reserve": stock.effect("reserve", lambda order: {"order": order, "shelf": ("B", 4)}),
            "release": stock.effect("release", lambda _: None),
            "charge": bank.effect("charge", lambda _: {"receipt": "r-1"}, declines),
            "refund": bank.effect("refund", lambda _: None),
            "ship": carrier.effect("ship", lambda _: {"parcel": "p-9"}),
        }

    def interference(self) -> Mapping[str, tuple[Fault, Act]]:
        """Operators may do anything to the order while it is at work."""
        return {
            "compact": (faults.COMPACTION, lambda: self.compact("order-1")),
            "cancel": (faults.CANCEL, lambda: self.cancel("order-1", "the customer called")),
            "fork": (faults.FORK, lambda: self.fork("order-1")),
            "recover-twice": (faults.RECOVER_TWICE, self.recover_twice),
        }

    async def drive(self, sim: Simulation) -> None:
        """Place the order."""
        await self.start("order", ORDER, execution_id="order-1")

    def finish(self, sim: Simulation) -> None:
        """Mark how it ended."""
        super().finish(sim)
        types = [e.type for e in self.db.history.get("order-1", ())]
        steps = [e.payload.get("step") for e in self.db.history.get("order-1", ()) if isinstance(e.payload, dict)]
        sim.sometimes("shipped", "order.shipped" in types)
        sim.sometimes("declined", "order.declined" in types)
        sim.sometimes("rolled back", "refund#compensate:1" in steps)
        sim.sometimes("a refund failed", _failed(self.db.history.get("order-1", ()), "refund#compensate:1"))


async def _tell_price(ctx: Context, order: Json) -> None:
    """Ask the carrier what shipping costs; if it does not say, tell the customer the same thing as when its answer is
    only an estimate.

    No later step depends on the answer: an untyped failure is tried again by a re-run, and may end otherwise then.
    """
    try:
        answer = cast("dict[str, Json]", await ctx.run(quote, order))
    except Exception:  # whatever went wrong, the order can go on
        await ctx.emit("order.notice", {"text": "the shipping price is an estimate"})
        return
    await ctx.ui.set("price", answer["price"])
    await ctx.emit("order.notice", {"text": "the shipping price is an estimate"})


def _failed(history: Sequence[Envelope], step_id: str) -> bool:
    failures = (e.payload for e in history if e.type == STEP_FAILED)
    return any(isinstance(payload, dict) and payload["step"] == step_id for payload in failures)
