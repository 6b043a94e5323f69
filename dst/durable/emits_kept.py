"""Every emit has an event, and one event only: ADR 0102, from calls and trace, never from the kernel's own flags."""

from __future__ import annotations

from collections.abc import Iterable

from dst.durable.event_records import TERMINAL
from dst.durable.stores import EXECUTING, INHERITED, LEGACY, LIVE, REPEATED, UNSETTLED
from dst.invariants import Broken, Invariant, Key
from dst.trace import Record
from kernel import events


class NoEmitLost(Invariant[tuple[frozenset[str], int]]):
    """ADR 0102 D2, by count: equal content is interchangeable, so concurrent branches may swap it.

    `moved` declares the loss that the record accepts, residual (a): a deploy moves an emit of this segment and type to
    another place of the segment.  Called there with all of the segment served, it is taken for the old one, and needs
    no event of its own.  Any other emit, and the same one behind a live syscall, needs its event as ever.
    """

    name = "no-emit-lost"
    says = "every acknowledged logical emit has an event of its own"
    kinds = ("emitted", "acked", events.EXECUTION_SUSPENDED, events.EXECUTION_CONTINUED, *TERMINAL)
    initial = (frozenset(), 0)  # logical emits acknowledged, events

    def __init__(self, moved: Iterable[tuple[int, str]] = ()) -> None:
        self._moved = frozenset(moved)

    def compose(self, state: tuple[frozenset[str], int]) -> tuple[frozenset[str], int]:
        """More events than there can be logical emits are as good as that many."""
        return state[0], min(state[1], _COUNTED)

    def key(self, record: Record) -> Key:
        """Keyed by emit identity; gates and ends go to all of an execution."""
        if record[0] in ("emitted", "acked"):
            return record[1], (record[1], record[2], record[3])
        return record[1], None

    def advance(self, state: tuple[frozenset[str], int], record: Record) -> tuple[frozenset[str], int]:
        """Count; judge at gates and ends."""
        acked, count = state
        if record[0] == "emitted":
            return acked, count + 1
        if record[0] == "acked":
            if self._moved and self._is_taken_for_another(acked, count, record):
                return state
            return acked | {record[4]}, count
        if len(acked) > count:
            raise Broken(
                f"emits of this content that were acknowledged: {len(acked)} ({', '.join(sorted(acked))}); "
                f"the log holds {count}",
                "an event for each",
                place="a gate or an end",
            )
        return self.initial if record[0] == events.EXECUTION_CONTINUED else state

    def _is_taken_for_another(self, acked: frozenset[str], count: int, record: Record) -> bool:
        """Is this residual (a): declared, all of its segment served, and every event there is stands for another?"""
        return (
            (record[2], record[3].rpartition("/")[0]) in self._moved
            and LIVE not in record[5]
            and record[4] not in acked
            and 0 < count <= len(acked)
        )


_COUNTED = 16  # events of one content; more logical emits of it than this in one segment no scenario makes


Emits = tuple[frozenset[str], int, int]


class EmitOnce(Invariant[Emits]):
    """ADR 0102 D2: a duplicate is allowed where the trace shows a reason.

    Its state: the logical emits that were called, the events that stand for one of them, and how many events were made
    that cannot serve a re-run, beside an effect, after an unsettled outcome, or behind a live syscall in place of one
    that the log holds: each excuses one duplicate.  An event of a log from before stamps stands for none (D8); one that
    a fork has copied stands for a call to come (K-RUN-5).
    """

    name = "emit-once"
    says = "no emit is appended twice except where the trace shows a reason that ADR 0102 allows"
    kinds = ("emit", "emitted", events.EXECUTION_CONTINUED)
    initial = (frozenset(), 0, 0)

    def compose(self, state: Emits) -> Emits:
        """More excuses than there can be logical emits are as good as that many."""
        return state[0], state[1], min(state[2], _COUNTED)

    def key(self, record: Record) -> Key:
        """Keyed by emit identity; a new beginning goes to all of an execution."""
        if record[0] == events.EXECUTION_CONTINUED:
            return record[1], None
        return record[1], (record[1], record[2], record[3])

    def advance(self, state: Emits, record: Record) -> Emits:
        """Compare events with calls."""
        called, standing, excuses = state
        if record[0] == events.EXECUTION_CONTINUED:
            return self.initial
        if record[0] == "emit":
            return called | {record[4]}, standing, excuses
        facts: str = record[5]
        if facts == LEGACY:
            return state
        if INHERITED in facts:
            return called, standing + 1, excuses + any(fact in facts for fact in (EXECUTING, UNSETTLED, REPEATED))
        if standing < len(called):
            standing += 1
            excuses += REPEATED in facts and EXECUTING not in facts and UNSETTLED not in facts
        elif LIVE not in facts:
            if not excuses:
                raise Broken(
                    f"event {record[6].sequence} is one too many; logical emits of its content: {len(called)} "
                    f"({', '.join(sorted(called))})",
                    "one event each: no syscall of the segment was live, and no earlier event is left that was made "
                    "beside an effect or after an unsettled outcome",
                )
            excuses -= 1
        return called, standing, excuses + (EXECUTING in facts or UNSETTLED in facts)

    def could_fail(self, state: Emits) -> bool:
        """Something was appended."""
        return state[1] > 0
