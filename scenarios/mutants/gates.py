"""Broken gates, deliveries and timers."""

from __future__ import annotations

from typing import Any

from dst.mutant import Mutant, exchange
from kernel import Context, Json, Parts
from kernel.driving import Driver, _Timer
from kernel.events import EXECUTION_RESUMED, parse
from kernel.gates import outstanding, payload_of
from kernel.journal import Journal
from kernel.ports import Delivery
from kernel.runtime import Runtime


class PassesNextGate(Driver):
    """A delivery that comes again passes the next gate that waits on the same thing."""

    def is_for_gate(self, journal: Journal, delivery: Delivery) -> bool:
        """Whether it has passed one does not matter."""
        gate = journal.state["gate"]
        assert gate is not None
        return (delivery.on, delivery.correlation_key) in outstanding(gate)


class ResumesAtOnce(Context):
    """A flow that finds its message waiting does not park first: it is resumed from a gate that no log has."""

    async def suspend(self, on: str, correlation_key: str | None = None, *, timeout: float | None = None) -> Json:
        """Look into the mailbox before anything is recorded."""
        state = self.journal.state
        if state["gate"] is None and self.rule.segment == len(state["resumes"]):
            for d in await self.journal.stores.mailbox.pending(self.execution_id):
                if (d.on, d.correlation_key) == (on, correlation_key) and d.delivery_id not in state["deliveries"]:
                    payload = payload_of(d.on, d.correlation_key, d.delivery_id, d.payload_text)
                    await self.commit(EXECUTION_RESUMED, payload)
                    break
        return await super().suspend(on, correlation_key, timeout=timeout)


class DropsEarly(Runtime):
    """A delivery that nobody waits for yet is answered, and forgotten."""

    async def deliver(
        self,
        execution_id: str,
        on: str,
        payload: Json = None,
        *,
        correlation_key: str | None = None,
        delivery_id: str,
    ) -> None:
        """Look whether it is parked."""
        entry = await self._stores.events.entry(execution_id)
        if entry is None or entry.status == "suspended":
            await super().deliver(execution_id, on, payload, correlation_key=correlation_key, delivery_id=delivery_id)


class EatsDelivery(Driver):
    """A wait takes its message out of the mailbox before the log has it: a worker that dies then has eaten it."""

    async def take(self, journal: Journal, delivery: Delivery, type: str) -> None:
        """Remove it, then resume."""
        await self._stores.mailbox.remove(journal.execution_id, [delivery.delivery_id])
        await self._pass(journal, delivery, type)


class FiresTwice(Driver):
    """A timer is of an execution, not of a gate: when another worker has seen to it, it fires for the next one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._fired: set[str] = set()

    async def _fire_when_due(self, execution_id: str, timer: _Timer) -> None:
        with timer.scope:
            await self._clock.sleep_until(timer.due_ms)
        if self._timers.get(execution_id) is timer:
            del self._timers[execution_id]
            self._fired.add(execution_id)
            await self.wake(execution_id)

    def due_of(self, journal: Journal) -> int | None:
        """Whatever has a timer is due once one has fired."""
        due = super().due_of(journal)
        if due is not None and journal.execution_id in self._fired:
            self._fired.discard(journal.execution_id)
            return min(due, self._clock.now_ms())
        return due


class RecomputesDeadlines(Driver):
    """A process that finds an execution parked counts its time-out from when it has found it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._dues: dict[str, tuple[int, int]] = {}  # by execution: the gate's ordinal, and when it is due here

    async def open(self, execution_id: str, *, overtaken: bool = False) -> Journal:
        """Look at what was parked before this process came by it."""
        journal = await super().open(execution_id, overtaken=overtaken)
        gate = journal.state["gate"]
        if gate is not None and gate["due"] is not None and self._ordinal(execution_id) != gate["ordinal"]:
            [suspended] = await self._stores.events.read_from(execution_id, journal.state["lastSequence"])
            length = gate["due"] - parse(suspended).timestamp_ms
            self._dues[execution_id] = gate["ordinal"], self._clock.now_ms() + length
        return journal

    def due_of(self, journal: Journal) -> int | None:
        """As this process has it."""
        gate, due = journal.state["gate"], super().due_of(journal)
        if gate is None or due is None:
            return due
        if self._ordinal(journal.execution_id) != gate["ordinal"]:
            self._dues[journal.execution_id] = gate["ordinal"], due
        return self._dues[journal.execution_id][1]

    def watch_timer(self, execution_id: str, due_ms: int) -> None:
        """Not before it is due here."""
        super().watch_timer(execution_id, max(due_ms, self._dues.get(execution_id, (0, 0))[1]))

    def _ordinal(self, execution_id: str) -> int:
        return self._dues.get(execution_id, (-1, 0))[0]


_LEFT = ("gate-once", "converges")  # a delivery that was accepted and passes no gate breaks both, at one record


def _mutant(name: str, breaks: str, scenario: str, expected: str | tuple[str, ...], **parts: object) -> Mutant:
    expects = (expected,) if isinstance(expected, str) else expected
    return Mutant(name=name, breaks=breaks, scenario=scenario, expected=expects, apply=exchange(**parts))


GATES = (
    _mutant(
        "resume-passes-next-gate",
        "a delivery that comes twice passes two gates",
        "chat_session",
        "gate-once",
        parts=Parts(driver=PassesNextGate),
    ),
    _mutant(
        "resume-before-suspend-committed",
        "a flow is resumed from a gate before its log has it",
        "chat_session",
        "gate-once",
        parts=Parts(context=ResumesAtOnce),
    ),
    _mutant(
        "early-delivery-dropped",
        "a delivery that comes before its gate is dropped",
        "chat_session",
        _LEFT,
        runtime=DropsEarly,
    ),
    _mutant(
        "stale-wait-eats-delivery",
        "a delivery leaves the mailbox before it is in the log",
        "chat_session",
        _LEFT,
        parts=Parts(driver=EatsDelivery),
    ),
    _mutant(
        "timer-fires-twice",
        "a timer that two workers watch fires for two gates",
        "reminders",
        "timer-on-time",
        parts=Parts(driver=FiresTwice),
    ),
    _mutant(
        "deadline-recomputed",
        "a process that finds a gate parked begins its time-out anew",
        "reminders",
        "timer-on-time",
        parts=Parts(driver=RecomputesDeadlines),
    ),
)
