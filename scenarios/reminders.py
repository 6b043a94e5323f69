"""Reminders on two workers: water the plants, see the dentist, pay the rent.

Each sleeps for days.  The dentist is cancelled in the very moment in which the reminder is due, and the rent is paid in
the very moment in which time for it runs out.  Timers are late or early, clocks jump by hours, workers die.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import trio

from dst.durable import faults, fencing, invariants
from dst.durable.scenario import DurableScenario
from dst.durable.timing import TimerOnTime
from dst.faults import HOLDING, Fault
from dst.invariants import AnyInvariant, Broken, Invariant, Key
from dst.scenario import Scenario
from dst.simulation import Simulation
from dst.trace import Record
from kernel import Context, Effect, EffectContext, Flow, GateTimeout, Json, flow, step
from kernel.events import EXECUTION_RESUMED, TIMER_FIRED

DAY = 24 * 3600

send = step("send", deadline=20)


class ReminderEarned(Invariant[tuple[int, frozenset[str]]]):
    """One mail for each timer, at most: none twice, and none to who has paid."""

    name = "reminder-earned"
    says = "each reminder that is sent has a timer of its own that has fired"
    kinds = (EXECUTION_RESUMED, "performed")
    initial = (0, frozenset())  # timers fired, idempotency keys of mails

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        execution = record[3].partition("/")[0] if record[0] == "performed" else record[1]
        return execution, (execution,)

    def advance(self, state: tuple[int, frozenset[str]], record: Record) -> tuple[int, frozenset[str]]:
        """Compare the two."""
        timers, mails = state
        if record[0] == EXECUTION_RESUMED:
            return timers + (record[2].payload["on"] == TIMER_FIRED), mails
        mails |= {record[3]}
        if len(mails) > timers:
            raise Broken(f"{len(mails)} reminders were sent, {timers} timers have fired", "a timer for each")
        return timers, mails

    def could_fail(self, state: tuple[int, frozenset[str]]) -> bool:
        """A reminder was sent."""
        return bool(state[1])


class Reminders(DurableScenario):
    """Three reminders; how they end depends on who is faster, so that runs are not compared with calm ones."""

    name = "reminders"
    story = "sleeps of days on two workers; clocks jump, a cancellation and a payment come when time runs out"
    faults: ClassVar[Sequence[Fault]] = (
        *faults.CRASHES,
        HOLDING,
        *faults.LEASES,
        *faults.TIMES,
        *faults.DELIVERIES,
        faults.EFFECT_REFUSED,
        faults.STEP_TIMEOUT,
    )
    invariants: ClassVar[Sequence[AnyInvariant]] = (
        *invariants.DURABLE,
        *invariants.GATES,
        *fencing.ALL,
        TimerOnTime(),
        ReminderEarned(),
    )
    marks: ClassVar[Sequence[str]] = (
        "reminded twice",
        "cancelled when it was due",
        "sent before it was cancelled",
        "paid in the last moment",
        "reminded of the rent",
        "a reminder was not sent",
        "the other worker fired",
    )
    workers: ClassVar = ("east", "west")
    lease_seconds: ClassVar = 30
    outcome = Scenario.outcome

    def flows(self) -> Sequence[Flow]:
        """Reminders, and bills."""
        return (reminder, bill)

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """A mail server that takes its time, and says when it has a mail."""
        mail = self.service("mail")
        post = mail.effect("send", lambda _: None, seconds=15)

        async def post_and_tell(context: EffectContext, text: Json) -> object:
            with trio.CancelScope(shield=True):  # a mail that is on its way is not called back
                await post(context, text)
                await context.emit("mail.accepted", text)
            return None

        return {"send": post_and_tell}

    async def drive(self, sim: Simulation) -> None:
        """Set three reminders; change one's mind about the second, and pay the rent, at the last moment."""
        sim.spawn(self._cancel_the_dentist, "a change of mind", after_seconds=2 * DAY)
        sim.spawn(self._pay_the_rent, "a payment", after_seconds=3 * DAY)
        await self.start("reminder", {"text": "water the plants", "days": [1, 2]}, execution_id="plants")
        await self.start("reminder", {"text": "dentist", "days": [2]}, execution_id="dentist", worker="west")
        await self.start("bill", {"text": "the rent"}, execution_id="rent")

    async def _cancel_the_dentist(self) -> None:
        await self.cancel("dentist", "no toothache any more", worker="west")

    async def _pay_the_rent(self) -> None:
        await self.deliver("rent", "paid", {"amount": 900}, delivery_id="transfer-1", worker="west")

    def finish(self, sim: Simulation) -> None:
        """Mark how they ended."""
        super().finish(sim)
        types = {name: [e.type for e in self.db.history.get(name, ())] for name in ("plants", "dentist", "rent")}
        sim.sometimes("reminded twice", types["plants"].count("reminder.sent") == 2)
        sim.sometimes("cancelled when it was due", "EXECUTION_CANCELLED" in types["dentist"])
        sim.sometimes("sent before it was cancelled", "reminder.sent" in types["dentist"])
        sim.sometimes("paid in the last moment", "bill.paid" in types["rent"])
        sim.sometimes("reminded of the rent", "reminder.sent" in types["rent"])
        sim.sometimes("a reminder was not sent", any("reminder.not-sent" in seen for seen in types.values()))
        authors = {fencing.author_of(e).partition(".")[0] for e in self.db.history.get("plants", ())}
        sim.sometimes("the other worker fired", len(authors) > 1)


@flow
async def reminder(ctx: Context, input: Json) -> Json:
    """Sleep and remind, as often as asked."""
    asked = cast("dict[str, Json]", input)
    for nth, days in enumerate(cast("list[int]", asked["days"])):
        await ctx.sleep(days * DAY)
        await _remind(ctx, asked["text"], nth)
    return None


@flow
async def bill(ctx: Context, input: Json) -> Json:
    """Wait three days for the payment, then remind."""
    try:
        await ctx.suspend("paid", timeout=3 * DAY)
    except GateTimeout:
        await _remind(ctx, cast("dict[str, Json]", input)["text"], 0)
        return "overdue"
    await ctx.emit("bill.paid")
    return "paid"


async def _remind(ctx: Context, text: Json, nth: int) -> None:
    try:
        await ctx.run(send, text, key=str(nth))
    except Exception:  # a mail that does not go out is not worth another try
        await ctx.emit("reminder.not-sent", {"nth": nth})
        return
    await ctx.emit("reminder.sent", {"nth": nth})
