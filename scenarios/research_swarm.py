"""Research: a lead asks four readers at once, each a child of its own, and has the report written by a fifth.

A source may be gone, which its reader's step declares, or a reader may fail in a way that nobody declares; the archive
admits readers one at a time, and may close for the day.  The supervisor dies with its worker and is not told of every
event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import trio

from dst.durable import faults, invariants
from dst.durable.families import FamilyScenario
from dst.durable.operations import Act
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.parameters import Parameter
from dst.simulation import Simulation
from kernel import ChildFailed, Context, Effect, Flow, Json, TypedFailure, await_child, flow, settle_children, step

LEAD = "research-1"
ARCHIVE = f"{LEAD}::archive"
SOURCES = ("archive", "books", "museum", "web")


class SourceGone(TypedFailure):
    """There is nothing to read any more."""

    wire_name = "source_gone"


SOURCE_GONE = Fault(name="source-gone", environmental=True)

read = step("read", failures=(SourceGone,))
write = step("write")


class ResearchSwarm(FamilyScenario):
    """One lead, some readers, one writer."""

    name = "research_swarm"
    story = "a parent awaits many children, some fail, some are cancelled; the supervisor restarts and misses events"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        *faults.DELIVERIES,
        faults.EFFECT_REFUSED,
        faults.EFFECT_ANSWER_LOST,
        *faults.REFUSALS,
        *faults.READS,
        *faults.LOSSES,
        *faults.OPERATIONS,
        *faults.OBSERVATIONS,
        SOURCE_GONE,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.CHILDREN,
        *invariants.DECISIONS,
        *invariants.GATES,
    )
    marks: ClassVar[Sequence[str]] = (
        "all was read",
        "a child failed",
        "a child was cancelled",
        "nobody wrote",
        FamilyScenario.swept_mark,
    )
    sources = Parameter(len(SOURCES), least=1, most=len(SOURCES), says="sources, each with a reader; the archive first")

    def flows(self) -> Sequence[Flow]:
        """The lead, its readers and its writer."""
        sources = SOURCES[: self.sources]

        @flow
        async def research(ctx: Context, asked: Json) -> Json:
            """Have all sources read at once, and then a report written of what there was."""
            await ctx.emit("research.asked", asked)
            read_by = await settle_children(ctx, {source: (reader, source) for source in sources})
            found: list[Json] = []
            for source, outcome in read_by.items():
                await ctx.ui.increment("heard")
                if isinstance(outcome, ChildFailed):
                    await ctx.emit("research.incomplete", {"lacks": source, "why": str(outcome)})
                else:
                    found.append(outcome)
            await ctx.emit("research.read", {"sources": len(found)})
            try:
                report = await await_child(ctx, "report", writer, found)
            except ChildFailed as failed:
                await ctx.emit("research.unwritten", failed.data)
                return {"found": found, "report": None}
            return {"found": found, "report": report}

        return (research, reader, writer)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """A library, and a desk."""
        library, desk = self.service("library"), self.service("desk")
        gone = {"gone": (SOURCE_GONE, SourceGone)}
        return {
            "read": library.effect("read", lambda source: {"from": source, "pages": [1, 2]}, gone),
            "write": desk.effect("write", lambda found: {"chapters": len(cast("list[Json]", found))}),
        }

    def interference(self) -> Mapping[str, tuple[Fault, Act]]:
        """Operators may do anything to the lead, and to the reader that takes longest."""
        return {
            "compact": (faults.COMPACTION, lambda: self.compact(LEAD)),
            "compact-child": (faults.COMPACTION, lambda: self.compact(ARCHIVE)),
            "cancel-child": (faults.CANCEL, lambda: self.cancel(ARCHIVE, "closed for the day")),
            "fork": (faults.FORK, lambda: self.fork(LEAD)),
            "recover-twice": (faults.RECOVER_TWICE, self.recover_twice),
        }

    def build(self, sim: Simulation) -> None:
        """Look out for the reader who is to be admitted."""
        super().build(sim)
        self._waits = trio.Event()
        self.db.on_change = lambda execution_id: self._waits.set() if execution_id == ARCHIVE else None

    async def drive(self, sim: Simulation) -> None:
        """Ask for research; admit the reader who has come to the archive."""
        await self.start("research", {"topic": "tea"}, execution_id=LEAD)
        await self._waits.wait()
        await self.deliver(ARCHIVE, "admission", {"desk": 7}, delivery_id="admission-1")

    def finish(self, sim: Simulation) -> None:
        """Mark how it ended."""
        super().finish(sim)
        types = [e.type for e in self.db.history.get(LEAD, ())]
        ends = {i: row.status for i, row in self.db.rows.items() if i.startswith(f"{LEAD}::")}
        sim.sometimes("all was read", "research.incomplete" not in types and "research.read" in types)
        sim.sometimes("a child failed", "failed" in ends.values())
        sim.sometimes("a child was cancelled", "cancelled" in ends.values())
        sim.sometimes("nobody wrote", "research.unwritten" in types)


@flow
async def reader(ctx: Context, source: Json) -> Json:
    """Read one source."""
    await ctx.emit("reader.came", source)
    if source == "archive":
        await ctx.suspend("admission")
    return await ctx.run(read, source)


@flow
async def writer(ctx: Context, found: Json) -> Json:
    """Write it up."""
    return await ctx.run(write, found)
