"""A payout: funds are held on two accounts, somebody approves, and the bank is told to transfer, at most once.

The bank does not tell a transfer it has had before from a new one, so the step is never tried again by itself.  When a
crash, a lost answer or a bank that is closed leaves it in doubt, the execution blocks; an operator reads the bank's own
books and says what has happened: it was done, it failed, or it is to be tried once more.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, cast

from dst.durable import faults, invariants
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault, menu
from dst.invariants import AnyInvariant, Broken, Invariant
from dst.node import Incarnation
from dst.simulation import Simulation
from kernel import (
    Context,
    Effect,
    ExecutionBlocked,
    ExecutionFailed,
    Flow,
    Json,
    NothingToResolve,
    Runtime,
    TypedFailure,
    flow,
    step,
)
from kernel.events import EFFECT_RESOLVED, STEP_COMPLETED

PAYOUT: Json = {"to": "ada", "from": [{"account": "main", "cents": 900}, {"account": "spare", "cents": 100}]}


class BankClosed(Exception):
    """The bank takes no transfers now; an error of its gateway, which nobody may take for an answer."""


class TransferRefused(TypedFailure):
    """The bank, or the operator in its name, says that the money will not move."""

    wire_name = "transfer_refused"


TRANSFER_REFUSED = Fault(name="transfer-refused", environmental=True)
BANK_CLOSED = Fault(name="bank-closed", environmental=True, rate=0.2)
OPERATOR_GIVES_UP = Fault(name="operator-gives-up", budget=1, environmental=True, rate=0.5)
OPERATOR_TWICE = Fault(name="operator-says-it-twice", rate=0.2)

hold = step("hold")
free = step("free")
transfer = step("transfer", deadline=30, failures=(TransferRefused,), at_most_once=True)


class PaidAsSaid(Invariant[tuple[int, int]]):
    """K-FLOW-4, for a transfer."""

    name = "paid-as-said"
    says = "money moves once at most for each attempt that the operator allowed, and if and only if the log says so"
    kinds = ("performed", STEP_COMPLETED, EFFECT_RESOLVED)
    initial = (1, 0)  # how often it may still move, how often it has moved more than the log says

    def compose(self, state: tuple[int, int]) -> tuple[int, int]:
        """An operator who allows one attempt after another allows more than there are."""
        return min(state[0], _ALLOWED), state[1]

    def key(self, record: tuple[Any, ...]) -> tuple[str, str] | None:
        """Keyed by execution."""
        if record[0] == "performed":
            return (key := record[3].partition("/")[0], key) if record[2] == "transfer" else None
        return (record[1], record[1]) if record[2].payload["step"] == "transfer" else None

    def advance(self, state: tuple[int, int], record: tuple[Any, ...]) -> tuple[int, int]:
        """Keep the books."""
        left, unsaid = state
        if record[0] == "performed":
            if not left:
                raise Broken("the money moved once more than the operator allowed", "one move for each attempt")
            return left - 1, unsaid + 1
        resolution = record[2].payload.get("resolution")
        return left + (resolution == "retry"), unsaid - (resolution in (None, "completed"))

    def at_end(self, state: tuple[int, int]) -> None:
        """Compare the books."""
        if state[1]:
            times = "once" if state[1] == 1 else f"{state[1]} times"
            raise Broken(f"the money moved {times} more than the log says", "the same")


_ALLOWED = 3


class Payout(DurableScenario):
    """One payout, one approval, one operator."""

    name = "payout"
    story = "funds held, approved, transferred at most once; when that is in doubt, an operator reads the bank's books"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        faults.APPEND_ANSWER_LOST,
        *faults.EFFECTS,
        TRANSFER_REFUSED,
        BANK_CLOSED,
        OPERATOR_GIVES_UP,
        OPERATOR_TWICE,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.GATES,
        invariants.CompensatorOnce(owed_by={"free": "hold"}),
        invariants.RollbackFinished(scope=("hold[main]", "hold[spare]", "transfer")),
        PaidAsSaid(),
    )
    marks: ClassVar[Sequence[str]] = ("paid", "refused", "freed", "said done", "said failed", "tried once more")

    def flows(self) -> Sequence[Flow]:
        """The payout flow, over this scenario's saga."""
        saga = self.saga

        @flow(id="payout")
        async def payout(ctx: Context, order: Json) -> Json:
            wanted = cast("dict[str, Any]", order)
            try:
                async with saga(ctx) as s:
                    for part in wanted["from"]:
                        held = await s.run(hold, part, key=part["account"], compensate=free)
                        await ctx.emit("payout.held", held)
                    approval = await ctx.suspend("approval")
                    await ctx.emit("payout.approved", approval)
                    sent = await s.run(transfer, {"to": wanted["to"]})
            except TransferRefused as refused:
                await ctx.emit("payout.refused", refused.data)
                return {"status": "refused"}
            await ctx.emit("payout.sent", sent)
            return {"status": "sent", "transfer": sent}

        return (payout,)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One bank, and the ledger of its holds."""
        self._bank, holds = self.service("bank"), self.service("holds")
        refuses = {"refuse": (TRANSFER_REFUSED, TransferRefused), "closed": (BANK_CLOSED, BankClosed)}
        return {
            "hold": holds.effect("hold", lambda part: {"hold": cast("dict[str, Json]", part)["account"]}),
            "free": holds.effect("free", lambda _: None),
            "transfer": self._bank.effect("transfer", lambda _: {"reference": "t-1"}, refuses),
        }

    async def drive(self, sim: Simulation) -> None:
        """Ask for the payout, approve it, and see it through."""
        await self.start("payout", PAYOUT, execution_id="payout-1")
        await self.deliver("payout-1", "approval", {"by": "eve"}, delivery_id="approval-1")
        here = sim.answered
        while await self._is_blocked():
            await self._operate(sim)
            sim.answered = here  # whoever is on call is where he was: how often he has been is no behaviour

    # ---- the operator ------------------------------------------------------------------------------------------------

    async def _is_blocked(self) -> bool:
        """Wait until the payout has ended or is blocked, as whoever is on call."""

        async def call(incarnation: Incarnation) -> bool:
            try:
                await cast(Runtime, incarnation.service).wait_result("payout-1")
            except ExecutionBlocked:
                return True
            except ExecutionFailed:
                pass
            return False

        return await self.sim.request(self.worker, call, "wait for payout-1")

    async def _operate(self, sim: Simulation) -> None:
        """Read the bank's books, and say what they say; at a point `operator:<execution>:<step>`.

        Who has given up, and sees in the log that he has, does not say anything else later.
        """
        done, (attempt, given_up) = await self._bank.has_done(*_TRANSFER), await self._look()
        point, act = sim.enter("operator:payout-1:transfer", _ASKED if done else _UNDONE)
        said: dict[str, Any] = {"completed": self._bank.done[_TRANSFER]} if done else {"retry": True}
        if act == "gives-up" or given_up:
            said = {"failed": TransferRefused("the operator gave up")}
        for _ in range(2 if act == "twice" else 1):
            await self._say(attempt, said)
        sim.happened(point)

    async def _look(self) -> tuple[int, bool]:
        """Return which attempt is the newest, and whether an operator has given it up."""

        async def call(incarnation: Incarnation) -> tuple[int, bool]:
            entry = (await cast(Runtime, incarnation.service).state("payout-1"))["steps"]["transfer"]
            newest = entry["attempts"]
            return newest, entry["resolution"] == {"attempt": newest, "resolution": "failed"}

        return await self.sim.request(self.worker, call, "look at payout-1")

    async def _say(self, attempt: int, said: Mapping[str, Any]) -> None:
        async def call(incarnation: Incarnation) -> None:
            try:
                await cast(Runtime, incarnation.service).resolve("payout-1", "transfer", attempt=attempt, **said)
            except NothingToResolve:
                return  # it is being recovered, or has been resolved: whoever is on call looks again

        await self.sim.request(self.worker, call, "resolve payout-1")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def outcome(self, sim: Simulation) -> Hashable | None:
        """Not compared is a run whose operator gave up: in a calm run nobody asks him after a crash."""
        gave_up = any(e.payload["resolution"] == "failed" for e in self._resolutions())
        return None if gave_up else super().outcome(sim)

    def finish(self, sim: Simulation) -> None:
        """Mark how it ended."""
        super().finish(sim)
        history = self.db.history.get("payout-1", ())
        said = [event.payload["resolution"] for event in self._resolutions()]
        sim.sometimes("paid", any(e.type == "payout.sent" for e in history))
        sim.sometimes("refused", any(e.type == "payout.refused" for e in history))
        sim.sometimes("freed", any(r[0] == "performed" and r[2] == "free" for r in sim.records))
        sim.sometimes("said done", "completed" in said)
        sim.sometimes("said failed", "failed" in said)
        sim.sometimes("tried once more", "retry" in said)

    def _resolutions(self) -> Sequence[Any]:
        return [e for e in self.db.history.get("payout-1", ()) if e.type == EFFECT_RESOLVED]


_TRANSFER = ("transfer", "payout-1/transfer")
_TWICE = ("twice", OPERATOR_TWICE)
_ASKED = menu(Payout.faults, (_TWICE,))
_UNDONE = menu(Payout.faults, (_TWICE, ("gives-up", OPERATOR_GIVES_UP)))
