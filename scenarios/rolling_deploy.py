"""A deploy between two runs: an order begun by one version of its flow is finished by the next.

The first life of the worker has the old code, every later one the new.  The new code asks for an audit before it notes
the order, at a place of its own, and checks the order after the gate, no longer before it: equal content, made anew.
Nobody answers audits yet, so that the audit is live in every run.  Were it served, the note would be taken for the old
one: that is residual (a) of ADR 0102 D2, which a test of the kernel pins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dst.durable import faults, invariants
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from kernel import Context, Effect, EffectContext, Flow, Json, flow, step

reserve = step("reserve")
audit = step("audit")


class RollingDeploy(DurableScenario):
    """One order, two versions."""

    name = "rolling_deploy"
    story = "the worker comes back with newer code: an emit behind a new step, and one moved past a gate"
    faults: ClassVar[Sequence[Fault]] = (*faults.CRASHES, HOLDING, faults.APPEND_ANSWER_LOST)
    invariants: ClassVar[Sequence[AnyInvariant]] = (*invariants.DURABLE, *invariants.GATES)
    marks: ClassVar[Sequence[str]] = ("begun by the old code and finished by the new", "only the old code")

    def flows(self) -> Sequence[Flow]:
        """The version of this life of the worker."""
        return (flow(id="order", version="1")(_first) if self.worker.starts == 1 else flow(id="order")(_second),)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """A stock, and an audit that nobody answers."""
        return {"reserve": self.service("stock").effect("reserve", lambda order: order), "audit": _nobody}

    async def drive(self, sim: Simulation) -> None:
        """Place the order, and let it go on."""
        await self.start("order", {"id": 17}, execution_id="order-1")
        await self.deliver("order-1", "go", delivery_id="go-1")

    def finish(self, sim: Simulation) -> None:
        """Mark who did it."""
        super().finish(sim)
        types = [e.type for e in self.db.history.get("order-1", ())]
        sim.sometimes("begun by the old code and finished by the new", types.count("order.noted") > 1)
        sim.sometimes("only the old code", self.worker.starts == 1)


async def _first(ctx: Context, order: Json) -> Json:
    """The flow as it was."""
    await ctx.run(reserve, order)
    await ctx.emit("order.noted", order)
    await ctx.emit("order.checked", order)
    await ctx.suspend("go")
    return "done"


async def _second(ctx: Context, order: Json) -> Json:
    """The flow as it is now."""
    await ctx.run(reserve, order)
    try:
        await ctx.run(audit, order)
    except LookupError:
        await ctx.emit("order.noted", order)
    await ctx.suspend("go")
    await ctx.emit("order.checked", order)
    return "done"


async def _nobody(_call: EffectContext, _order: Json) -> object:
    raise LookupError("nobody answers audits yet")
