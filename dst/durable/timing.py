"""The invariant of durable timers (K-FLOW-6, K-FLOW-7)."""

from __future__ import annotations

from dst.invariants import Broken, Invariant, Key
from dst.reading import said_time
from dst.trace import Record
from kernel import events


class TimerOnTime(Invariant[int | None]):
    """A due time is a time of the wall clock, fixed in the log when the flow came to its gate.

    It is compared with the time of the event that fired, by the clock of the worker that fired it: a worker whose clock
    is wrong fires when its clock says so.  `late_ms` is more than the faults of a run can account for.
    """

    name = "timer-on-time"
    says = "a timer fires once it is due by its worker's clock, not before and not much later"
    composable = False  # times
    kinds = (events.EXECUTION_SUSPENDED, events.EXECUTION_RESUMED)
    initial = None  # when the open gate is due

    def __init__(self, late_ms: int = 12 * 3600 * 1000) -> None:
        self._late_ms = late_ms

    def key(self, record: Record) -> Key:
        """Keyed by execution and gate: each gate is one instance."""
        payload = record[2].payload
        if record[0] == events.EXECUTION_SUSPENDED:
            return record[1], (record[1],)
        return (record[1], (record[1],)) if payload["on"] == events.TIMER_FIRED else None

    def advance(self, state: int | None, record: Record) -> int | None:
        """Compare."""
        envelope = record[2]
        if record[0] == events.EXECUTION_SUSPENDED:
            due: int | None = envelope.payload["due"]
            return due
        if state is None:
            raise Broken("a timer fired for a gate that has none", "no timer")
        off = envelope.timestamp_ms - state
        if not 0 <= off <= self._late_ms:
            raise Broken(
                f"a timer fired {_said(abs(off))} {'before' if off < 0 else 'after'} it was due",
                f"not before, and at most {_said(self._late_ms)} after",
            )
        return state


def _said(duration_ms: int) -> str:
    return said_time(duration_ms * 1_000_000)
