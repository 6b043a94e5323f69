"""What if: an editor keeps every moment of an article, to go on from any of them another way.

One article is published, another waits for its second review.  Then both are forked: at every fourth position that
they have, from one of the first four on, so that in four ways of the world each position is forked at.  Each fork goes
on by itself: it is served what it has inherited, and does the rest anew.  The review that its parent has had is sent to
it once more: a fork from before that review takes it, one from after it has had it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import trio

from dst.durable import faults, invariants
from dst.durable.ends import fault_of_fork
from dst.durable.operations import Act
from dst.durable.scenario import DurableScenario
from dst.durable.stores import origin_of
from dst.faults import HOLDING, Fault, menu
from dst.invariants import AnyInvariant, Broken, Invariant
from dst.simulation import Simulation
from kernel import Context, Effect, Envelope, Flow, Json, flow, step
from kernel.events import EXECUTION_RESUMED, STEP_STARTED

BRIEF: Json = {"about": "tides"}
PARENTS = ("published", "waiting")
STRIDE = 4
OTHER_POSITIONS = Fault(name="other-positions", budget=1, environmental=True)
_LOOK_SECONDS = 5.0
_LOOKS = 12  # after which the editor takes an article as it is

write = step("write")


class ForkSound(Invariant[bool]):
    """K-RUN-5, K-LOG-3."""

    name = "fork-sound"
    says = "a fork's log verifies from its own start, and each event it has copied is its origin's, and names it"
    kinds = ("forked",)
    initial = False

    def key(self, record: tuple[Any, ...]) -> tuple[str, tuple[str]]:
        """Keyed by fork."""
        return record[1], (record[1],)

    def advance(self, state: bool, record: tuple[Any, ...]) -> bool:
        """The harness has compared."""
        if record[2]:
            raise Broken(record[2], "copies that are all there, chained, and say where they are from")
        return True


class ForkAndReplay(DurableScenario):
    """Two articles, and forks of each."""

    name = "fork_and_replay"
    story = "an ended and a parked execution are forked at every position, and a delivery comes once more; all replayed"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        faults.DELIVERY_DUPLICATED,
        faults.RECOVER_TWICE,
        OTHER_POSITIONS,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.DECISIONS,
        *invariants.GATES,
        *invariants.REPLAYS,
        ForkSound(),
    )
    marks: ClassVar[Sequence[str]] = (
        *(f"forked at {first}, {first + STRIDE}, …" for first in range(STRIDE)),
        "a fork of an ended article ended",
        "a fork did the step itself",
        "a fork took the review that its parent had had",
        "a fork that had inherited the review did not take it again",
    )

    def flows(self) -> Sequence[Flow]:
        """The article."""
        return (article,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One author."""
        return {"write": self.service("author").effect("write", lambda brief: {"draft": brief})}

    def interference(self) -> Mapping[str, tuple[Fault, Act]]:
        """Two workers' worth of recovery at any moment."""
        return {"recover-twice": (faults.RECOVER_TWICE, self.recover_twice)}

    async def drive(self, sim: Simulation) -> None:
        """Have the articles written and reviewed, then fork them, and send every fork the first review once more.

        One after the other: what is under way at the same time is what an exploration multiplies.
        """
        for name in PARENTS:
            await self.start("article", BRIEF, execution_id=name)
            await self._review(name, 1)
            if name == "published":
                await self._review(name, 2)
            await self._rest(name)
        point, act = sim.enter("fork:first", menu(sim.faults, _ELSEWHERE))
        first = int(act or 0)
        sim.happened(point)
        for name in PARENTS:
            for moment, position in enumerate(_moments(self.db.history[name])[first::STRIDE]):
                fork = f"{name}-{first + STRIDE * moment}"
                await self.fork(name, upto=position, new_id=fork)
                await self._review(fork, 1)
                await self._rest(fork)
        sim.sometimes(f"forked at {first}, {first + STRIDE}, …")

    async def _review(self, execution_id: str, number: int) -> None:
        await self.deliver(execution_id, "review", {"stars": number}, delivery_id=f"review-{number}")

    async def _rest(self, execution_id: str) -> None:
        """Wait until an article rests."""
        for _ in range(_LOOKS):
            await trio.sleep(_LOOK_SECONDS)
            if self.db.rows[execution_id].status != "running":
                return

    def finish(self, sim: Simulation) -> None:
        """Check the forks, and mark what became of them."""
        super().finish(sim)
        for fork_id, history in sorted(self.db.history.items()):
            copies = [event for event in history if origin_of(event) is not None]
            if copies:
                sim.note("forked", fork_id, fault_of_fork(self.db, fork_id, fork_id.rpartition("-")[0]))
                self._mark(sim, history, copies)

    def _mark(self, sim: Simulation, history: Sequence[Envelope], copies: Sequence[Envelope]) -> None:
        own = [event.type for event in history[len(copies) :]]
        inherited = any(event.type == EXECUTION_RESUMED for event in copies)
        sim.sometimes("a fork of an ended article ended", history[-1].type == "EXECUTION_COMPLETED" and bool(own))
        sim.sometimes("a fork did the step itself", "STEP_COMPLETED" in own)
        sim.sometimes("a fork took the review that its parent had had", EXECUTION_RESUMED in own)
        parked = history[-1].type == "EXECUTION_SUSPENDED"
        sim.sometimes("a fork that had inherited the review did not take it again", inherited and parked)


_ELSEWHERE = tuple((str(first), OTHER_POSITIONS) for first in range(1, STRIDE))


def _moments(history: Sequence[Envelope]) -> list[int]:
    """Return the positions of a log: of attempts that a crash cut off and their repeats the last one only, so that
    crashes make no more of them."""
    nexts = [event.type for event in history[1:]]
    cut_off = {
        at for at, (event, after) in enumerate(zip(history, nexts, strict=False)) if event.type == after == STEP_STARTED
    }
    return [event.sequence for at, event in enumerate(history) if at not in cut_off]


@flow
async def article(ctx: Context, brief: Json) -> Json:
    """Write it, have it reviewed twice, publish it."""
    await ctx.emit("article.begun", brief)
    draft = await ctx.run(write, brief)
    await ctx.ui.append("timeline", "written")
    first = await ctx.suspend("review")
    tone = await ctx.decide("tone", lambda: "lighter")
    await ctx.emit("article.revised", tone)
    second = await ctx.suspend("review")
    await ctx.emit("article.published", draft)
    return [first, second]
