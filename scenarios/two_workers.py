"""An export that two workers share: it is asked for twice at once, and its query lasts longer than a lease.

The worker that has it must renew its lease meanwhile.  When it stands still for too long, or the store does not take a
renewal, the other one goes on from the log; and the first, when it wakes, can do nothing any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

from dst.durable import faults, fencing, invariants
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from kernel import Context, Effect, ExecutionMismatch, Flow, Json, flow, step

EXPORT = "export-7"

collect = step("collect")
upload = step("upload")


class TwoWorkers(DurableScenario):
    """One export, two workers, two people who ask for it."""

    name = "two_workers"
    story = "an export that two workers share; a lease runs out in the middle of its query"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        *faults.READS,
        *faults.LEASES,
        faults.TIMER_LATE,
        faults.EFFECT_REFUSED,
        faults.EFFECT_ANSWER_LOST,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (*invariants.DURABLE, *fencing.ALL)
    marks: ClassVar[Sequence[str]] = (
        "exported",
        "the upload failed",
        "taken over in the middle of a step",
        "a second request was refused",
    )
    workers: ClassVar = ("east", "west")
    lease_seconds: ClassVar = 30

    def flows(self) -> Sequence[Flow]:
        """The export."""
        return (export,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """A database with a long query, and a store of files."""
        database, files = self.service("database"), self.service("files")
        return {
            "collect": database.effect("collect", lambda _: {"rows": 3}, seconds=40),
            "upload": files.effect("upload", lambda _: {"link": "f-1"}, seconds=5),
        }

    async def drive(self, sim: Simulation) -> None:
        """Two people ask for the same export at once, one of them for paid orders only."""
        sim.spawn(self._ask_for_paid_ones, "the second request")
        await self._ask_for("all", "east")

    async def _ask_for_paid_ones(self) -> None:
        await self._ask_for("paid", "west")

    async def _ask_for(self, orders: str, worker: str) -> None:
        try:
            await self.start("export", {"orders": orders}, execution_id=EXPORT, worker=worker)
        except ExecutionMismatch:  # the other one was faster: that is the right answer
            self.sim.sometimes("a second request was refused")

    def finish(self, sim: Simulation) -> None:
        """Mark what was reached."""
        super().finish(sim)
        types = [e.type for e in self.db.history.get(EXPORT, ())]
        sim.sometimes("exported", "export.ready" in types)
        sim.sometimes("the upload failed", "export.failed" in types)
        authors = [fencing.author_of(e) for e in self.db.history.get(EXPORT, ()) if e.type == "STEP_STARTED"]
        sim.sometimes("taken over in the middle of a step", len({a.partition(".")[0] for a in authors}) > 1)


@flow
async def export(ctx: Context, input: Json) -> Json:
    """Name a file, collect the rows, upload them."""
    name = await ctx.uuid()
    await ctx.emit("export.begun", {"file": name})
    rows = await ctx.run(collect, input)
    try:
        link = cast("dict[str, Json]", await ctx.run(upload, rows))
    except Exception:  # whatever is wrong with the files: the rows can be asked for again
        await ctx.emit("export.failed")
        return {"status": "failed"}
    await ctx.emit("export.ready", {"file": name, "link": link["link"]})
    return {"status": "ready"}
