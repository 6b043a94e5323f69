"""The invariants over kernel events, ledger and calls.

Record kinds they read: an event's own type for what the kernel records (`(type, execution, envelope)`), `emit`,
`emitted` and `acked` for a flow's emits, `performed` for the ledger, `handed` for values, `folded` and `final`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dst.durable.child_once import ChildOnce
from dst.durable.live_query_fresh import LiveQueryFresh
from dst.durable.observed import is_served
from dst.durable.services import execution_of, scope_of
from dst.durable.stores import EXECUTING, INHERITED, LEGACY, LEGACY_SCHEMA, LIVE, REPEATED, UNSETTLED
from dst.invariants import AnyInvariant, Broken, Invariant, Key
from dst.trace import Record
from kernel import events
from kernel.events import stamp_of
from kernel.jsonform import Json, encode

_TERMINAL = tuple(sorted(events.TERMINAL_TYPES))
_ENDS = (*_TERMINAL, events.EXECUTION_CONTINUED)  # of what one beginning of a flow does
_KERNEL = tuple(sorted(events.KERNEL_TYPES))
_MARK = "#compensate:"


def _payload(record: Record) -> dict[str, Any]:
    payload: dict[str, Any] = record[2].payload
    return payload


def _step(record: Record) -> str:
    step: str = record[2].payload["step"]
    return step


class NoEmitLost(Invariant[tuple[frozenset[str], int]]):
    """ADR 0102 D2, by count: equal content is interchangeable, so concurrent branches may swap it.

    `moved` declares the loss that the record accepts, residual (a): a deploy moves an emit of this segment and type to
    another place of the segment.  Called there with all of the segment served, it is taken for the old one, and needs
    no event of its own.  Any other emit, and the same one behind a live syscall, needs its event as ever.
    """

    name = "no-emit-lost"
    says = "every acknowledged logical emit has an event of its own"
    kinds = ("emitted", "acked", events.EXECUTION_SUSPENDED, events.EXECUTION_CONTINUED, *_TERMINAL)
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
        if not is_served(record[0], _payload(record)):
            return None
        return record[1], (record[1], _step(record))

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
            attempt = f"{scope_of(record[1], beginning)}/{_step(record)}", _payload(record).get("attempt", 1)
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


def _compensation(step: str) -> tuple[str, str, int] | None:
    """Return (compensator, saga's name, index) of a compensation's journal id, or None."""
    compensator, mark, rest = step.partition(_MARK)
    name, _, index = rest.rpartition(":")
    return (compensator, name, int(index)) if mark and index.isdigit() else None


Rollback = tuple[frozenset[str], tuple[str, ...], frozenset[str], frozenset[str]]


class CompensatorOnce(Invariant[Rollback]):
    """ADR 0041: reverse order, each once, given what is to be undone.

    `owed_by` says which forward step a compensator undoes, whatever its key: its input is an output of that step.
    """

    name = "compensator-once"
    says = "no compensator completes twice, runs unowed or out of order, or is left open under a terminal state"
    kinds = (events.STEP_STARTED, events.STEP_COMPLETED, events.STEP_FAILED, events.EXECUTION_CONTINUED, *_TERMINAL)
    initial = (frozenset(), (), frozenset(), frozenset())  # compensators done, begun, ended; outputs that are owed for

    def __init__(self, owed_by: dict[str, str] | None = None) -> None:
        self._owed_by = owed_by or {}

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: Rollback, record: Record) -> Rollback:
        """Follow the rollback."""
        done, begun, ends, outputs = state
        if record[0] in _ENDS:
            left = [step for step in begun if step not in ends]
            if left:
                raise Broken(f"{record[0]} with {', '.join(left)} left open", "every compensator that began has ended")
            return self.initial if record[0] == events.EXECUTION_CONTINUED else state
        step = _step(record)
        if _compensation(step) is None:
            if record[0] != events.STEP_COMPLETED:
                return state
            return done, begun, ends, outputs | {_owed(step.partition("[")[0], _payload(record).get("output"))}
        if record[0] == events.STEP_STARTED:
            return done, self._begin(begun, outputs, step, _payload(record).get("input")), ends - {step}, outputs
        if record[0] == events.STEP_COMPLETED:
            if step in done:
                raise Broken(f"{step} completed twice", "once")
            done |= {step}
        return done, begun, ends | {step}, outputs

    def _begin(self, begun: tuple[str, ...], outputs: frozenset[str], step: str, input: Json) -> tuple[str, ...]:
        compensator, scope, index = _compensation(step) or ("", "", 0)
        owed = self._owed_by.get(compensator)
        if owed is not None and _owed(owed, input) not in outputs:
            raise Broken(
                f"{step} began, and was given {encode(input)}, which is no output of {owed}",
                "compensators of completed steps only, each given the step's output",
            )
        if step in begun:
            return begun
        same = [i for _, name, i in map(_compensation, begun) if name == scope]  # type: ignore[misc]  # none is None
        if same and index >= same[-1]:
            raise Broken(
                f"{step} began after number {same[-1]}", "the reverse of the order in which they were registered"
            )
        return (*begun, step)

    def could_fail(self, state: Rollback) -> bool:
        """A rollback has begun."""
        return bool(state[1])


def _owed(step: str, output: Json) -> str:
    return f"{step}: {encode(output)}"


class RollbackFinished(Invariant[tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]]]):
    """K-SAGA-4.  `scope` names the forward steps of the saga; without it every step of the execution counts as one."""

    name = "rollback-finished"
    says = "a rollback that has begun is finished: all below it is undone, and no step of its scope goes on"
    kinds = (events.STEP_STARTED, events.STEP_COMPLETED, events.STEP_FAILED, events.EXECUTION_CONTINUED, *_TERMINAL)
    initial = (
        frozenset(),
        frozenset(),
        frozenset(),
    )  # unsettled forwards, begun, stopped at rollback

    def __init__(self, scope: Iterable[str] | None = None) -> None:
        self._scope = None if scope is None else frozenset(scope)

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(
        self, state: tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]], record: Record
    ) -> tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]]:
        """Remember what had not completed when the rollback began."""
        open_, begun, stopped = state
        if record[0] in _ENDS:
            self._check_all(begun, record[0])
            return self.initial if record[0] == events.EXECUTION_CONTINUED else state
        step = _step(record)
        found = _compensation(step)
        if found is not None:
            if record[0] == events.STEP_STARTED:
                return open_, begun | {(found[1], found[2])}, stopped | open_
            return state
        if self._scope is not None and step not in self._scope:
            return state
        if record[0] == events.STEP_COMPLETED:
            if step in stopped:
                raise Broken(
                    f"{step} had not completed when the rollback began, and completed after it", "it stays undone"
                )
            return open_ - {step}, begun, stopped
        if record[0] == events.STEP_FAILED and _payload(record).get("reason") == "typed":
            return open_ - {step}, begun, stopped
        return open_ | {step}, begun, stopped

    def _check_all(self, begun: frozenset[tuple[str, int]], kind: str) -> None:
        for scope, index in sorted(begun):
            if index and (scope, index - 1) not in begun:
                raise Broken(
                    f"{kind} with compensation {index} begun and {index - 1} never", "all of them, to the first"
                )

    def could_fail(self, state: tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]]) -> bool:
        """A rollback has begun."""
        return bool(state[1])


class LogSound(Invariant[tuple[int, str]]):
    """K-LOG-1 to 3, ADR 0102 D1."""

    name = "log-sound"
    says = "every log is contiguous and chained, with one winner for each position and no stamp on a kernel fact"
    composable = False  # positions and hashes
    kinds = (*_KERNEL, "emitted", "other")
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
    kinds = (*_KERNEL, "emitted", "other")
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
        return record[1], (record[1], _payload(record)["decisionId"])

    def advance(self, state: str | None, record: Record) -> str | None:
        """Nothing is decided twice; what an older kernel has recorded again changes nothing."""
        if record[0] == events.EXECUTION_CONTINUED:
            return None
        choice = encode(_payload(record)["choice"])
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
        delivery = _payload(record)["deliveryId"]
        if delivery in passed:
            raise Broken(f"delivery {delivery!r} passed a second gate", "one")
        if not is_open and _payload(record)["on"] != events.CANCEL_REQUESTED:
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
        *_TERMINAL,
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
