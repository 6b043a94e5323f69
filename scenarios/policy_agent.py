"""An agent that learns: it makes four decisions on its way, and is rewarded at the end, discounted by distance.

Its log is compacted into a snapshot store that gives keys back in an order of its own, as a jsonb column does, and the
ids of its decisions are such that no order of keys is the one they were made in.  What a learner is told of the
compacted agent must be what the whole log would have told.  Some agents were begun by an older kernel: it recorded a
decision twice, put a `seq` of its own into payloads, and its snapshots do not say in which order decisions were made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from dst.durable import faults, invariants
from dst.durable.clock import EPOCH_MS
from dst.durable.credits import credits_of
from dst.durable.legacy import write_legacy_log, write_legacy_snapshot
from dst.durable.operations import Act
from dst.durable.scenario import DurableScenario
from dst.durable.stores import LEGACY_SCHEMA
from dst.faults import HOLDING, Fault, menu
from dst.invariants import AnyInvariant, Broken, Invariant
from dst.simulation import Simulation
from kernel import Context, Effect, Envelope, Flow, Json, flow, step

GOAL: Json = {"to": "the harbour"}
DISCOUNTS = (1.0, 0.5)
REWARD = 8
LEGACY_AGENT = Fault(name="legacy-agent", budget=1, environmental=True)
_BEGUN: Sequence[tuple[str, Json]] = (
    ("EXECUTION_STARTED", {"flowId": "agent", "input": GOAL}),
    ("DECISION_RECORDED", {"decisionId": "10", "choice": "on foot", "seq": 40}),
    ("DECISION_RECORDED", {"decisionId": "2", "choice": "by day", "seq": 30}),
    ("DECISION_RECORDED", {"decisionId": "10", "choice": "by boat", "seq": 50}),
    ("agent.ready", ["on foot", "by day"]),
    ("EXECUTION_SUSPENDED", {"on": "go", "correlationKey": None, "due": None}),
)
"""The agent up to its gate, as the older kernel logged it."""

walk = step("walk")


class CreditStable(Invariant[bool]):
    """ADR 0128, K-LEARN."""

    name = "credit-stable"
    says = "each decision of a compacted execution has earned what its whole log says, and legacy ones come first"
    kinds = ("credited",)
    initial = False

    def key(self, record: tuple[Any, ...]) -> tuple[str, tuple[str, str]]:
        """Keyed by execution and decision."""
        return record[1], (record[1], record[2])

    def advance(self, state: bool, record: tuple[Any, ...]) -> bool:
        """Compare."""
        if record[3] != record[4]:
            raise Broken(f"compacted, it has {record[4]}", f"{record[3]}, as by the whole log")
        return True


class PolicyAgent(DurableScenario):
    """One agent, one walk."""

    name = "policy_agent"
    story = "decisions, a reward at the end, discounted; compacted into a store that reorders keys"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        *faults.SNAPSHOTS,
        faults.DELIVERY_DUPLICATED,
        faults.DELIVERY_DELAYED,
        faults.COMPACTION,
        faults.FORK,
        faults.RECOVER_TWICE,
        LEGACY_AGENT,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.DECISIONS,
        *invariants.GATES,
        *invariants.REPLAYS,
        CreditStable(),
    )
    marks: ClassVar[Sequence[str]] = (
        "rewarded",
        "decisions were compacted",
        "decided on top of a snapshot",
        "a legacy log was compacted",
        "a legacy snapshot was gone on from",
    )
    snapshot_every: ClassVar = 6

    def flows(self) -> Sequence[Flow]:
        """The agent."""
        return (agent,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """A town to walk through."""
        return {"walk": self.service("town").effect("walk", lambda way: {"seen": way})}

    def interference(self) -> Mapping[str, tuple[Fault, Act]]:
        """Operators may compact and copy the agent while it is at work."""
        return {
            "compact": (faults.COMPACTION, lambda: self.compact("agent-1")),
            "fork": (faults.FORK, lambda: self.fork("agent-1")),
            "recover-twice": (faults.RECOVER_TWICE, self.recover_twice),
        }

    async def drive(self, sim: Simulation) -> None:
        """Set the agent up, let it go, and compact it on the way and at the end."""
        point, act = sim.enter("begin:agent-1", menu(sim.faults, _LEGACY))
        if act:
            write = write_legacy_log if act == "log" else write_legacy_snapshot
            write(self.db, "agent-1", "agent", _BEGUN, now_ms=EPOCH_MS)
        sim.happened(point)
        if not act:
            await self.start("agent", GOAL, execution_id="agent-1")
        await self.compact("agent-1")
        await self.deliver("agent-1", "go", delivery_id="go-1")
        await self.compact("agent-1")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self, sim: Simulation) -> None:
        """Note what each decision has earned, by the whole log and by what a compaction has left of it."""
        for credited in credits_of(self.db, self.parts.fold, _reward, DISCOUNTS):
            sim.note("credited", *credited)
        super().finish(sim)
        self._mark(sim, self.db.history.get("agent-1", ()))

    def _mark(self, sim: Simulation, history: Sequence[Envelope]) -> None:
        ended = any(event.type == "agent.arrived" for event in history)
        begun, legacy = "agent-1" in self.db.begun, any(event.schema_version == LEGACY_SCHEMA for event in history)
        snapshot = self.db.snapshots.get("agent-1")
        sim.sometimes("rewarded", ended)
        sim.sometimes("decisions were compacted", ended and self.db.cuts.get("agent-1", 0) > 0)
        sim.sometimes("a legacy log was compacted", ended and legacy and not begun and snapshot is not None)
        sim.sometimes("a legacy snapshot was gone on from", ended and begun)
        saved = [stored.sequence for name, stored in self.db.saved if name == "agent-1"]
        decided = [event.sequence for event in history if event.type == "DECISION_RECORDED"]
        sim.sometimes("decided on top of a snapshot", bool(saved and decided) and min(saved) < max(decided))


_LEGACY = (("log", LEGACY_AGENT), ("snapshot", LEGACY_AGENT))


def _reward(end: dict[str, Json]) -> float:
    return float(cast("dict[str, int]", end["output"])["reward"])


@flow
async def agent(ctx: Context, goal: Json) -> Json:
    """Get ready, wait for the word, and find a way."""
    gear = await ctx.decide("10", lambda: "on foot")
    time = await ctx.decide("2", lambda: "by day")
    await ctx.emit("agent.ready", [gear, time])
    await ctx.suspend("go")
    away = await ctx.decide("route-b", lambda: "over the hill")
    seen = await ctx.run(walk, away)
    await ctx.ui.append("diary", seen)
    back = await ctx.decide("route-a", lambda: "along the shore")
    await ctx.emit("agent.arrived", [away, back])
    return {"reward": REWARD}
