"""The invariants over kernel events, ledger and calls, and which of them hold of what: the names scenarios use.

Record kinds they read: an event's own type for what the kernel records (`(type, execution, envelope)`), `emit`,
`emitted` and `acked` for a flow's emits, `performed` for the ledger, `handed` for values, `folded` and `final`.
"""

from __future__ import annotations

from dst.durable.child_once import ChildOnce
from dst.durable.emits_kept import EmitOnce as EmitOnce
from dst.durable.emits_kept import NoEmitLost as NoEmitLost
from dst.durable.event_records import KERNEL, TERMINAL, payload_of, step_of
from dst.durable.live_query_fresh import LiveQueryFresh
from dst.durable.observed import is_served
from dst.durable.rollbacks import CompensatorOnce as CompensatorOnce
from dst.durable.rollbacks import RollbackFinished as RollbackFinished
from dst.durable.services import execution_of, scope_of
from dst.durable.stores import LEGACY_SCHEMA
from dst.invariants import AnyInvariant, Broken, Invariant, Key
from dst.trace import Record
from kernel import events
from kernel.events import stamp_of
from kernel.jsonform import encode


class StepCompletesOnce(Invariant[tuple[int, bool]]):
    """K-FLOW-1, K-SAGA-4."""

    name = "step-completes-once"
    says = "a step completes or fails as declared at most once, and exactly once if a flow was given the outcome"
    kinds = (events.STEP_COMPLETED, events.STEP_FAILED, events.EFFECT_RESOLVED, events.EXECUTION_CONTINUED, "handed")
    initial = (0, False)  # ends that are served, was the outcome handed out

    def key(self, record: Record) -> Key:
        """Keyed by execution and step; a new beginning goes to all of an execution."""
        if record[0] == "handed":
            return (record[1], (record[1], record[3])) if record[2] == "step" else None
        if record[0] == events.EXECUTION_CONTINUED:
            return record[1], None
        if not is_served(record[0], payload_of(record)):
            return None
        return record[1], (record[1], step_of(record))

    def advance(self, state: tuple[int, bool], record: Record) -> tuple[int, bool]:
        """Count ends that a re-run is served."""
        count, handed = state
        if record[0] == "handed":
            return count, True
        if record[0] == events.EXECUTION_CONTINUED:
            self.at_end(state)
            return self.initial
        if count:
            raise Broken(f"it had ended, and {record[0]} came at {record[2].sequence}", "one end that is served")
        return count + 1, handed

    def at_end(self, state: tuple[int, bool]) -> None:
        """An output that was handed out is in the log."""
        count, handed = state
        if handed and not count:
            raise Broken("its output was handed to the flow, and the log has no end of it", "one end")


Attempt = tuple[str, int]  # idempotency key and number


class EffectAccounted(Invariant[tuple[int, tuple[Attempt, ...], frozenset[Attempt]]]):
    """K-FLOW-1: `STEP_STARTED` comes before the effect."""

    name = "effect-accounted"
    says = "each ledger entry belongs to exactly one STEP_STARTED"
    composable = False  # attempt numbers
    kinds = (events.STEP_STARTED, events.EXECUTION_CONTINUED, "performed")
    initial = (0, (), frozenset())  # beginnings before this one, attempts started, attempts performed

    def key(self, record: Record) -> Key:
        """Keyed by execution, which is what an idempotency key begins with."""
        execution = execution_of(record[3]) if record[0] == "performed" else record[1]
        return execution, (execution,)

    def advance(
        self, state: tuple[int, tuple[Attempt, ...], frozenset[Attempt]], record: Record
    ) -> tuple[int, tuple[Attempt, ...], frozenset[Attempt]]:
        """Match attempts."""
        beginning, started, performed = state
        if record[0] == events.EXECUTION_CONTINUED:
            return beginning + 1, started, performed
        if record[0] == events.STEP_STARTED:
            attempt = f"{scope_of(record[1], beginning)}/{step_of(record)}", payload_of(record).get("attempt", 1)
            return beginning, (*started, attempt), performed
        attempt = record[3], record[4]
        said = f"{record[1]} did {record[2]} of {record[3]}"
        if started.count(attempt) != 1:
            raise Broken(
                f"{said}, attempt {record[4]}, which {started.count(attempt)} STEP_STARTED say",
                "exactly one",
            )
        if attempt in performed:
            raise Broken(f"{said} twice in attempt {record[4]}", "once for each STEP_STARTED")
        return beginning, started, performed | {attempt}

    def could_fail(self, state: tuple[int, tuple[Attempt, ...], frozenset[Attempt]]) -> bool:
        """Something was performed."""
        return bool(state[2])


class LogSound(Invariant[tuple[int, str]]):
    """K-LOG-1 to 3, ADR 0102 D1."""

    name = "log-sound"
    says = "every log is contiguous and chained, with one winner for each position and no stamp on a kernel fact"
    composable = False  # positions and hashes
    kinds = (*KERNEL, "emitted", "other")
    initial = (0, events.GENESIS_HASH)

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: tuple[int, str], record: Record) -> tuple[int, str]:
        """Check position, chain and stamp."""
        position, previous = state
        envelope = record[-1]
        if envelope.sequence != position:
            raise Broken(f"{envelope.type} landed at {envelope.sequence}, the next position was {position}", "that one")
        if envelope.previous_hash != previous:
            raise Broken(f"event {position} is not chained to event {position - 1}", "the hash of the event before")
        if envelope.type in events.KERNEL_TYPES and stamp_of(envelope) is not None:
            raise Broken(f"{envelope.type} at {position} is stamped", "no stamp on what the kernel records of itself")
        return position + 1, envelope.hash


class TerminalOnce(Invariant[str]):
    """K-RUN."""

    name = "terminal-once"
    says = "an execution ends at most once, and nothing follows its end"
    kinds = (*KERNEL, "emitted", "other")
    initial = ""

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: str, record: Record) -> str:
        """Nothing comes after an end."""
        if state:
            raise Broken(f"{record[-1].type} after {state}", "nothing")
        return record[0] if record[0] in events.TERMINAL_TYPES else ""

    def could_fail(self, state: str) -> bool:
        """It has ended."""
        return bool(state)


class ValueStable(Invariant[bool]):
    """K-LOG-4."""

    name = "value-stable"
    says = "what code is handed equals the decoded record, type and value, on the first run too"
    kinds = ("handed",)
    initial = False

    def key(self, record: Record) -> Key:
        """Keyed by execution, kind and id."""
        return record[1], (record[1], record[2], record[3])

    def advance(self, state: bool, record: Record) -> bool:
        """The harness has compared."""
        if record[4]:
            raise Broken(f"the flow was handed {record[4]}", "the decoded record")
        return True


class DecisionStable(Invariant[str | None]):
    """K-FOLD-5, ADR 0128."""

    name = "decision-stable"
    says = "a decision id has one choice for ever, in its first position"
    kinds = (events.DECISION_RECORDED, events.EXECUTION_CONTINUED)
    initial = None  # the choice that was recorded

    def key(self, record: Record) -> Key:
        """Keyed by execution and decision; a new beginning goes to all of an execution."""
        if record[0] == events.EXECUTION_CONTINUED:
            return record[1], None
        return record[1], (record[1], payload_of(record)["decisionId"])

    def advance(self, state: str | None, record: Record) -> str | None:
        """Nothing is decided twice; what an older kernel has recorded again changes nothing."""
        if record[0] == events.EXECUTION_CONTINUED:
            return None
        choice = encode(payload_of(record)["choice"])
        if state is not None and record[2].schema_version == LEGACY_SCHEMA:
            return state
        if state is not None:
            raise Broken(f"{choice} was recorded at {record[2].sequence}, after {state}", "one record")
        return choice


class FoldConsistent(Invariant[bool]):
    """K-FOLD-1, K-RUN-5, K-RUN-6."""

    name = "fold-consistent"
    says = (
        "every snapshot and fork is the fold of its log, nothing is dropped that no snapshot holds, stored positions "
        "never go down, and the catalogue says what the fold says"
    )
    kinds = ("folded", "truncated", "snapshot", "final")
    initial = False

    def key(self, record: Record) -> Key:
        """Keyed by execution and position."""
        return record[1], (record[1], "end" if record[0] == "final" else f"{record[0]} {record[2]}")

    def advance(self, state: bool, record: Record) -> bool:
        """The harness has folded and compared."""
        if record[0] == "final":
            if record[2] != record[3]:
                raise Broken(f"the catalogue says {record[2]}, the fold {record[3]}", "the same")
        elif record[3]:
            raise Broken(record[3], "fold(snapshot, tail) == fold(events)")
        return True


class GateOnce(Invariant[tuple[frozenset[str], bool]]):
    """K-RUN-2.  A cancellation passes the gate that a flow has come to without parking there."""

    name = "gate-once"
    says = "one delivery passes one gate, which is open, and one accepted for an open gate passes it"
    kinds = (events.EXECUTION_SUSPENDED, events.EXECUTION_RESUMED, events.GATE_DELIVERED, "final")
    initial = (frozenset(), False)  # deliveries that have passed a gate, is one open

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: tuple[frozenset[str], bool], record: Record) -> tuple[frozenset[str], bool]:
        """Each delivery id once, through a gate that is there."""
        passed, is_open = state
        if record[0] == events.EXECUTION_SUSPENDED:
            return passed, True
        if record[0] == "final":
            if record[5]:
                raise Broken(f"parked on {record[4]} with {record[5]!r} accepted", "the gate is passed")
            return state
        delivery = payload_of(record)["deliveryId"]
        if delivery in passed:
            raise Broken(f"delivery {delivery!r} passed a second gate", "one")
        if not is_open and payload_of(record)["on"] != events.CANCEL_REQUESTED:
            raise Broken(f"delivery {delivery!r} passed, and no gate was open", "EXECUTION_SUSPENDED before it")
        return passed | {delivery}, is_open and record[0] == events.GATE_DELIVERED

    def could_fail(self, state: tuple[frozenset[str], bool]) -> bool:
        """A gate was passed."""
        return bool(state[0])


class Converges(Invariant[bool]):
    """K-RUN: nothing is left idle."""

    name = "converges"
    says = "after the last fault every execution ends, or is parked with nothing that could resume it"
    kinds = ("final",)
    initial = False

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: bool, record: Record) -> bool:
        """Running is not an end."""
        if record[3] == "running":
            raise Broken("still running, and nobody runs it", "an end, or a gate")
        if record[3] == "suspended" and record[5]:
            raise Broken(f"parked on {record[4]}, with {record[5]!r} to resume it", "it goes on")
        return True


class ParkedRests(Invariant[str]):
    """K-FLOW-6, K-FLOW-10: for scenarios with gates."""

    name = "parked-rests"
    says = "a parked execution does nothing, and comes to no end, until its gate is passed or it is to be cancelled"
    kinds = (
        events.EXECUTION_SUSPENDED,
        events.EXECUTION_RESUMED,
        events.CANCEL_REQUESTED,
        "accepted",
        events.STEP_STARTED,
        events.DECISION_RECORDED,
        *TERMINAL,
    )
    initial = ""  # "parked", "passed", or "asked": to be cancelled it runs up to its gate, unserved steps and all

    def key(self, record: Record) -> Key:
        """Keyed by execution; of what is accepted a request to cancel concerns it."""
        return None if record[0] == "accepted" and record[3] != events.CANCEL_REQUESTED else (record[1], (record[1],))

    def advance(self, state: str, record: Record) -> str:
        """Follow gates."""
        if record[0] in ("accepted", events.CANCEL_REQUESTED) or state == "asked":
            return "asked"
        if record[0] == events.EXECUTION_RESUMED:
            return "passed" if state else state
        if state == "parked":
            raise Broken(f"{record[0]} at {record[2].sequence}, while it was parked", "rest, until the gate is passed")
        return "parked" if record[0] == events.EXECUTION_SUSPENDED else state

    def could_fail(self, state: str) -> bool:
        """It was parked."""
        return state in ("parked", "passed")


class SegmentStable(Invariant[int | None]):
    """K-FLOW-6: for scenarios with branches, which is where it could be otherwise."""

    name = "segment-stable"
    says = "what a branch emits lies between the same two gates in every run"
    kinds = ("emit",)
    initial = None  # the segment it was called in first

    def key(self, record: Record) -> Key:
        """Keyed by the place of the call; a branch is in one segment, so that a place is passed in no other."""
        return (record[1], (record[1], record[3], record[4])) if record[4].startswith("/") else None

    def advance(self, state: int | None, record: Record) -> int:
        """Compare segments."""
        segment: int = record[2]
        if state not in (None, segment):
            raise Broken(
                f"it was emitted after gate {state} in one run, after gate {segment} in another", "one of them"
            )
        return segment


class ReplaySilent(Invariant[bool]):
    """K-FLOW-9, K-RUN-7: for scenarios whose flows stay as they are."""

    name = "replay-silent"
    says = "a replay of any prefix of a log asks for what the log holds next, and one of the whole log appends nothing"
    composable = False  # which prefixes are replayed goes by hashes
    kinds = ("replayed",)
    initial = False

    def key(self, record: Record) -> Key:
        """Keyed by execution, and whether it was its whole log."""
        return record[1], (record[1], record[2])

    def advance(self, state: bool, record: Record) -> bool:
        """The harness has replayed and compared."""
        if record[4]:
            raise Broken(f"replayed up to {record[3]}: {record[4]}", "what the log says")
        return True


DURABLE: tuple[AnyInvariant, ...] = (
    LogSound(),  # first: of what shows at one record, a broken log is the cause
    NoEmitLost(),
    EmitOnce(),
    StepCompletesOnce(),
    EffectAccounted(),
    TerminalOnce(),
    ValueStable(),
    FoldConsistent(),
    Converges(),
)
"""What can fail in any durable scenario whose flows have steps and emits."""

SAGAS: tuple[AnyInvariant, ...] = (CompensatorOnce(), RollbackFinished())
DECISIONS: tuple[AnyInvariant, ...] = (DecisionStable(),)
GATES: tuple[AnyInvariant, ...] = (GateOnce(), ParkedRests())
BRANCHES: tuple[AnyInvariant, ...] = (SegmentStable(),)
CHILDREN: tuple[AnyInvariant, ...] = (ChildOnce(),)
FOLLOWED: tuple[AnyInvariant, ...] = (LiveQueryFresh(),)
"""Of flows that roll back, decide, wait, do several things at once, have children, or are followed."""

REPLAYS: tuple[AnyInvariant, ...] = (ReplaySilent(),)
"""Of flows whose code stays as it is: a scenario that declares this has its logs replayed when all is quiet."""

ALL: tuple[AnyInvariant, ...] = (*DURABLE, *SAGAS, *DECISIONS, GateOnce())
"""What holds of every durable scenario.  `crash-transparent` compares whole runs: see `dst.transparency`."""
