"""A chat session: one long-lived execution, parked on a gate between turns (ADR 0081's way to model a session).

Each turn streams, patches surfaces and asks a model.  Messages arrive early, twice, late and out of order; the log is
compacted in mid-session.  Some sessions were begun by a kernel from before emits were stamped.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, cast

from dst.durable import faults, invariants
from dst.durable.clock import EPOCH_MS
from dst.durable.legacy import write_legacy_log
from dst.durable.operations import Act
from dst.durable.scenario import DurableScenario
from dst.durable.stores import LEGACY_SCHEMA
from dst.faults import Fault, menu
from dst.invariants import AnyInvariant
from dst.parameters import Parameter
from dst.simulation import Simulation
from kernel import Context, Effect, Flow, Json, flow, step

LEGACY_LOG = Fault(name="legacy-log", budget=1, environmental=True)
_OPENED: Sequence[tuple[str, Json]] = (
    ("EXECUTION_STARTED", {"flowId": "chat", "input": {"user": "ada"}}),
    ("DECISION_RECORDED", {"decisionId": "persona", "choice": ["patient", 1]}),
    ("session.opened", {"persona": ["patient", 1]}),
    ("SURFACE_PATCH", {"op": "append", "surface": "timeline", "value": "welcome"}),
    ("EXECUTION_SUSPENDED", {"on": "message", "correlationKey": None, "due": None}),
)
"""The session up to its first gate, as the older kernel logged it."""

_IN_ANY_ORDER = 3  # messages of which calm runs come to every order that a faulty run with the same delays can have

answer = step("answer", deadline=20)


class ChatSession(DurableScenario):
    """One session of a few turns."""

    name = "chat_session"
    story = "a session parked on a gate; messages come twice, early, late, out of order; compacted in between"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.ALL,
        *faults.REFUSALS,
        *faults.READS,
        *faults.SNAPSHOTS,
        *faults.LOSSES,
        faults.EFFECT_HUNG,
        *faults.OPERATIONS,
        LEGACY_LOG,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.DECISIONS,
        *invariants.GATES,
        *invariants.REPLAYS,
    )
    marks: ClassVar[Sequence[str]] = (
        "closed",
        "a turn fell back",
        "compacted",
        "resumed from a snapshot",
        "went on from a legacy log",
    )
    snapshot_every: ClassVar = 9
    turns = Parameter(3, least=1, most=9, says="messages of the user")

    def flows(self) -> Sequence[Flow]:
        """The session flow."""
        turns = self.turns

        @flow
        async def chat(ctx: Context, input: Json) -> Json:
            """Greet, then answer message after message."""
            persona = await ctx.decide("persona", lambda: ("patient", 1))
            await ctx.emit("session.opened", {"persona": persona})
            await ctx.ui.append("timeline", "welcome")
            said: list[Json] = []
            for turn in range(turns):
                message = cast("dict[str, Json]", await ctx.suspend("message"))
                await ctx.ui.increment("turns")
                await ctx.stream({"typing": True})
                said.append(await _reply(ctx, turn, message))
                await ctx.stream({"typing": False})
            await ctx.emit("session.closed", {"turns": turns})
            return said

        return (chat,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One model."""
        model = self.service("model")
        return {
            "answer": model.effect("answer", lambda asked: {"says": ["well,", cast("dict[str, Json]", asked)["text"]]})
        }

    def interference(self) -> Mapping[str, tuple[Fault, Act]]:
        """Operators may do anything to the session while it is at work."""
        return {
            "compact": (faults.COMPACTION, lambda: self.compact("chat-1")),
            "cancel": (faults.CANCEL, lambda: self.cancel("chat-1", "the user has left")),
            "fork": (faults.FORK, lambda: self.fork("chat-1")),
            "recover-twice": (faults.RECOVER_TWICE, self.recover_twice),
        }

    async def drive(self, sim: Simulation) -> None:
        """Open the session, send what the user types, compact once."""
        point, act = sim.enter("open:chat-1", menu(sim.faults, (("legacy", LEGACY_LOG),)))
        if act == "legacy":
            write_legacy_log(self.db, "chat-1", "chat", _OPENED, now_ms=EPOCH_MS)
        sim.happened(point)
        if not act:
            await self.start("chat", {"user": "ada"}, execution_id="chat-1")
        for turn in range(self.turns):
            await self.deliver("chat-1", "message", {"text": f"message {turn}"}, delivery_id=f"m{turn}")
            if turn == min(1, self.turns - 1):
                await self.compact("chat-1")

    def outcome(self, sim: Simulation) -> Hashable | None:
        """Not compared is a run in which more than three messages may have overtaken each other: among them are orders
        that no calm run with the same delays comes to."""
        disordered = any(site.startswith("deliver:") for site in sim.environmental_acts())
        return None if self.turns > _IN_ANY_ORDER and disordered else super().outcome(sim)

    def finish(self, sim: Simulation) -> None:
        """Mark what was reached."""
        super().finish(sim)
        history = self.db.history.get("chat-1", ())
        sim.sometimes("closed", any(e.type == "session.closed" for e in history))
        sim.sometimes("a turn fell back", any(e.type == "turn.failed" for e in history))
        legacy = any(e.schema_version == LEGACY_SCHEMA for e in history)
        sim.sometimes("went on from a legacy log", legacy and any(e.type == "session.closed" for e in history))
        sim.sometimes("compacted", self.db.cuts.get("chat-1", 0) > 0)
        sim.sometimes("resumed from a snapshot", self.worker.starts > 1 and bool(self.db.snapshots))


async def _reply(ctx: Context, turn: int, message: Json) -> Json:
    try:
        reply = cast("dict[str, Json]", await ctx.run(answer, message, key=str(turn)))
    except Exception:  # the model is away: the session goes on
        await ctx.emit("turn.failed", {"turn": turn})
        await ctx.ui.append("timeline", "…")
        return None
    words = cast("list[Json]", reply["says"])
    words.append(".")  # a value that a flow is handed is its own
    for word in words:
        await ctx.stream(word)
    await ctx.ui.append("timeline", "…")
    return words
