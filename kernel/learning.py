"""Evidence and credit: what a learner reads from executions, compacted or not (K-LEARN, ADR 0128).

What evidence is made of is what a checkpoint keeps: the decisions, and how the execution ended.  A reward that a flow
emits somewhere would be gone with the events that are dropped; so the reward is a function of the end, which the fold
holds exactly.  For decisions that carry `seq` the evidence of an execution is the same list wherever it was compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import attrs

from kernel.errors import CorruptLog, LogTruncated
from kernel.events import (
    DECISION_RECORDED,
    EXECUTION_CANCELLED,
    EXECUTION_COMPLETED,
    EXECUTION_FAILED,
    TERMINAL_TYPES,
    Envelope,
)
from kernel.jsonform import Json, fresh
from kernel.lifecycle import load, read_log
from kernel.ports import Stores
from kernel.state import FlowState

_TYPE_OF_END = {"completed": EXECUTION_COMPLETED, "failed": EXECUTION_FAILED, "cancelled": EXECUTION_CANCELLED}


@attrs.frozen(kw_only=True)
class EvidenceEvent:
    """A decision or an end.  `sequence` is the position in the log, or a negative ordinal for a legacy decision."""

    type: str
    sequence: int
    payload: dict[str, Json]


@attrs.frozen(kw_only=True)
class Credit:
    """What one decision of a finished execution has earned; `distance` is the number of decisions after it."""

    decision_id: str
    choice: Json
    sequence: int
    distance: int
    credit: float


Reward = Callable[[EvidenceEvent], float]


def success(end: EvidenceEvent) -> float:
    """Return 1.0 for an execution that completed, 0.0 for one that failed or was cancelled."""
    return 1.0 if end.type == EXECUTION_COMPLETED else 0.0


# ---- evidence --------------------------------------------------------------------------------------------------------


def evidence_events(state: FlowState, log: Sequence[Envelope]) -> list[EvidenceEvent]:
    """Return the execution's decisions, each once and in the order they were made, and its end if it has one.

    `log` is what is left of the log, or of its tail; what it lacks is rebuilt from `state`.  Pure.  Raises `CorruptLog`
    if `log` begins after the position of `state`: what lies between is in neither.
    """
    _check_joined(state, log)
    recorded = _first_records(log)
    rebuilt, legacy = _absorbed(state, recorded, complete=bool(log) and log[0].sequence == 0)
    known = {*rebuilt, *legacy}
    decisions = [
        *(_decision(entry_id, choice, seq) for entry_id, (choice, seq) in rebuilt.items()),
        *(_decision(entry_id, choice, seq) for entry_id, (choice, seq) in recorded.items() if entry_id not in known),
        *(_decision(entry_id, choice, n - len(legacy)) for n, (entry_id, choice) in enumerate(legacy.items())),
    ]
    decisions.sort(key=lambda event: event.sequence)
    end = _end(state, log)
    return decisions if end is None else [*decisions, end]


async def load_evidence(stores: Stores, execution_id: str) -> list[EvidenceEvent]:
    """Return the evidence of a stored execution.  Raises `UnknownExecution`, and what reading it may raise."""
    try:
        log = await read_log(stores.events, execution_id, 0)
    except LogTruncated:
        log = []  # what was not absorbed by a legacy snapshot has its `seq` in the state that follows from it
    return evidence_events((await load(stores, execution_id)).fold.release(), log)


def _check_joined(state: FlowState, log: Sequence[Envelope]) -> None:
    if log and log[0].sequence > state["lastSequence"] + 1:
        raise CorruptLog(
            f"the log of {log[0].execution_id!r} begins at {log[0].sequence}, its state ends at "
            f"{state['lastSequence']}: what lies between is in neither; read the log first and the state after it"
        )


def _first_records(log: Iterable[Envelope]) -> dict[str, tuple[Json, int]]:
    """Return choice and sequence of each decision id's first record in the log."""
    records: dict[str, tuple[Json, int]] = {}
    for event in log:
        if event.type == DECISION_RECORDED:
            payload = cast("dict[str, Json]", event.payload)
            records.setdefault(cast(str, payload["decisionId"]), (payload.get("choice"), event.sequence))
    return records


def _absorbed(
    state: FlowState, recorded: dict[str, tuple[Json, int]], *, complete: bool
) -> tuple[dict[str, tuple[Json, int]], dict[str, Json]]:
    """Return the state's decisions that a record in the log does not replace: those with `seq`, and legacy ones.

    A legacy entry with a record in the log keeps its place before all others: in a log that was cut, the record may
    be a repeat, and its sequence would misplace the decision (ADR 0128).  A complete log shows the first record itself.
    """
    rebuilt: dict[str, tuple[Json, int]] = {}
    legacy: dict[str, Json] = {}
    for decision_id, entry in state["variables"].get("_decisions", {}).items():
        if decision_id in recorded and complete:
            continue
        if "seq" in entry:
            rebuilt[decision_id] = (entry["choice"], entry["seq"])
        else:
            legacy[decision_id] = entry["choice"]
    return rebuilt, legacy


def _decision(decision_id: str, choice: Json, sequence: int) -> EvidenceEvent:
    payload = {"choice": fresh(choice), "decisionId": decision_id}
    return EvidenceEvent(type=DECISION_RECORDED, sequence=sequence, payload=payload)


def _end(state: FlowState, log: Sequence[Envelope]) -> EvidenceEvent | None:
    """Return how the execution ended.  Nothing follows an end, so the position of a terminal state is the end's own."""
    kind = _TYPE_OF_END.get(state["status"] or "")
    if kind is not None:
        payload = {"output": state["output"]} if kind == EXECUTION_COMPLETED else {"error": state["error"]}
        return EvidenceEvent(type=kind, sequence=state["lastSequence"], payload=cast("dict[str, Json]", fresh(payload)))
    for event in log[-1:]:  # a log that was read after the state may be ahead of it
        if event.type in TERMINAL_TYPES:
            ended = cast("dict[str, Json]", fresh(event.payload))
            return EvidenceEvent(type=event.type, sequence=event.sequence, payload=ended)
    return None


# ---- credit ----------------------------------------------------------------------------------------------------------


def trajectories(evidence: Sequence[EvidenceEvent], discount: float = 1.0, reward: Reward = success) -> list[Credit]:
    """Return what each decision of one execution earned: the end's reward, times `discount` for each decision after it.

    An execution that has not ended has earned nothing yet: there is no credit at all, not a credit of zero.  Every
    decision in `evidence` counts; `ctx.now()` and its like are decisions too, and a caller who learns from a policy's
    choices alone leaves the others out of `evidence` first.
    """
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"discount {discount!r}: wanted a number from 0 to 1")
    ends = [place for place, event in enumerate(evidence) if event.type in TERMINAL_TYPES]
    if not ends:
        return []
    if ends != [len(evidence) - 1]:
        raise ValueError("evidence goes on after an end: it is of several executions, ask for each by itself")
    *decisions, end = evidence
    earned = reward(end)
    return [
        Credit(
            decision_id=cast(str, event.payload["decisionId"]),
            choice=event.payload["choice"],
            sequence=event.sequence,
            distance=distance,
            credit=earned * discount**distance,
        )
        for event, distance in zip(decisions, range(len(decisions) - 1, -1, -1), strict=True)
    ]
