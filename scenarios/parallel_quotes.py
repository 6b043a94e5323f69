"""Quotes: two suppliers are asked at once, each with a deadline; then the buyer chooses.

A late answer is still heard, by a zombie: the effect speaks through the flow's context as it hears it, and the flow
says the same once more when all is compared.  Who does not answer is asked again, one supplier within the same call,
the other by a re-run.  Everybody counts up one counter.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, cast

import trio

from dst.durable import faults, invariants
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from kernel import Context, Effect, EffectContext, Envelope, Flow, GateInBranch, Json, RetryPolicy, Step, flow, step
from kernel.events import EXECUTION_COMPLETED, STEP_COMPLETED, STEP_FAILED, STEP_STARTED

WANTED: Json = {"item": "pot", "count": 12}
DEADLINE_SECONDS = 10
OFFERS: Mapping[str, Json] = {"brick": 0, "acme": {"price": 70}}
"""What each supplier answers; `brick` has none, and 0 is an answer like any other."""

RETRIES = {"acme": RetryPolicy(attempts=2, backoff_seconds=20)}
"""The wait in between is so long that a late answer comes while nobody is asking."""


class ParallelQuotes(DurableScenario):
    """One request for quotes from one buyer."""

    name = "parallel_quotes"
    story = "suppliers are asked at once, with deadlines; late answers, one counter, then the buyer chooses"
    faults: ClassVar[Sequence[Fault]] = (*faults.CRASHES, HOLDING, faults.APPEND_ANSWER_LOST, *faults.EFFECTS)
    invariants: ClassVar[Sequence[AnyInvariant]] = (*invariants.DURABLE, *invariants.GATES, *invariants.BRANCHES)
    marks: ClassVar[Sequence[str]] = ("all answered", "one did not answer", "a late answer was heard", "chosen")

    def flows(self) -> Sequence[Flow]:
        """The flow, over this scenario's suppliers."""

        @flow(id="quotes")
        async def quotes(ctx: Context, wanted: Json) -> Json:
            await ctx.emit("quotes.wanted", wanted)
            async with ctx.branches() as b:
                early = b.start(_hear_buyer, ctx)
                asked = [b.start(self._ask, ctx, supplier, wanted) for supplier in OFFERS]
            offers = {supplier: branch.result for supplier, branch in zip(OFFERS, asked, strict=True)}
            await ctx.emit("quotes.compared", {"suppliers": len(offers)})
            for supplier, offer in offers.items():
                await ctx.ui.append("offers", {"from": supplier, "offer": offer})
            for supplier in offers:
                await ctx.stream({"heard": supplier})
            choice = early.result or await ctx.suspend("choice")
            await ctx.emit("quotes.chosen", choice)
            return {"offers": offers, "choice": choice}

        return (quotes,)

    async def _ask(self, ctx: Context, supplier: str, wanted: Json) -> Json:
        """One branch: what its supplier comes to counts once, whichever way."""
        await ctx.stream({"asking": supplier})
        try:
            offer = await ctx.run(self._question(ctx, supplier), wanted)
        except Exception:  # no answer: the buyer can do without
            await ctx.ui.increment("settled")
            return None
        await ctx.ui.increment("settled")
        return offer

    def _question(self, ctx: Context, supplier: str) -> Step:
        async def ask(call: EffectContext, wanted: Json) -> object:
            asked_at = trio.current_time()
            with trio.CancelScope(shield=True):  # on the telephone: nobody can stop it
                answer = await self._suppliers[supplier](call, wanted)
                await ctx.stream({"heard": supplier})
            self.sim.sometimes("a late answer was heard", trio.current_time() - asked_at > DEADLINE_SECONDS)
            return answer

        return step(f"ask-{supplier}", ask, deadline=DEADLINE_SECONDS, retry=RETRIES.get(supplier))

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """Two suppliers, who are asked by steps that carry their own effects."""
        self._suppliers = {
            supplier: self.service(supplier).effect("quote", lambda _, offer=offer: offer)  # type: ignore[misc]
            for supplier, offer in OFFERS.items()
        }
        return {}

    async def drive(self, sim: Simulation) -> None:
        """Ask for quotes, and choose."""
        await self.start("quotes", WANTED, execution_id="quotes-1")
        await self.deliver("quotes-1", "choice", {"supplier": "acme"}, delivery_id="choice-1")

    def outcome(self, sim: Simulation) -> Hashable | None:
        """Not compared is a run that gave up early, a crash having used up one of a call's tries: no calm run has fewer
        of them."""
        types = [e.type for e in self.db.history.get("quotes-1", ()) if _is_about(e, "ask-acme")]
        lost_a_try = types.count(STEP_STARTED) > types.count(STEP_FAILED) + types.count(STEP_COMPLETED)
        gave_up = self._offers().get("acme") is None
        return None if lost_a_try and gave_up else super().outcome(sim)

    def finish(self, sim: Simulation) -> None:
        """Mark how it ended."""
        super().finish(sim)
        offers = self._offers().values()
        sim.sometimes("all answered", bool(offers) and None not in offers)
        sim.sometimes("one did not answer", None in offers)
        sim.sometimes("chosen", any(e.type == "quotes.chosen" for e in self.db.history.get("quotes-1", ())))

    def _offers(self) -> dict[str, Json]:
        """Return the offers that the flow has returned; none if it has not."""
        last = self.db.history["quotes-1"][-1] if "quotes-1" in self.db.history else None
        if last is None or last.type != EXECUTION_COMPLETED:
            return {}
        output = cast("dict[str, dict[str, dict[str, Json]]]", last.payload)["output"]
        return output["offers"]


async def _hear_buyer(ctx: Context) -> Json:
    """Hear the buyer's choice while suppliers are asked, if the kernel lets a branch wait: it does not (K-FLOW-6)."""
    try:
        return await ctx.suspend("choice")
    except GateInBranch:
        return None


def _is_about(event: Envelope, step_id: str) -> bool:
    return isinstance(event.payload, dict) and event.payload.get("step") == step_id
