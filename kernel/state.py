"""The folded state of one execution: a plain JSON tree, laid out whole (K-FOLD-6).

It is a tree and not a class because it *is* a contract: it is what snapshots store, what the fold vectors pin, and what
another implementation folds to.  It is read freely and changed by `kernel.fold` only.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from kernel.jsonform import Json

StepOutcome = Literal["completed", "typed", "error", "timeout", "cancelled", "indoubt"]


class StepEntry(TypedDict):
    """One step id: how often it was tried, and how it ended, if it did."""

    kind: str
    toolId: str
    inputDigest: str | None  # None in legacy records: not checked
    attempts: int
    outcome: StepOutcome | None  # None: started, and no end is recorded
    output: Json  # when completed
    failure: Json  # {"name", "data"} when typed, {"type", "message"} for an error
    resolution: Json  # {"attempt", "resolution"}: what an operator said of which attempt, when it was in doubt
    tries: NotRequired[int]  # of a step with retries: which try of its call the newest attempt is
    retryDue: NotRequired[int]  # the newest attempt has failed, and the next one is due then: the call goes on


GateMode = Literal["any", "all"]


class GateMember(TypedDict):
    """One of several things that a gate waits on."""

    on: str
    correlationKey: str | None


class Resume(TypedDict):
    """One gate that was passed, in order: entry n opened segment n + 1.  Of several members, one or the last."""

    on: str
    correlationKey: str | None
    payload: Json
    deliveryId: str
    mode: NotRequired[GateMode]
    members: NotRequired[list[GateMember]]
    arrived: NotRequired[list[Resume]]  # what came before, of a gate of all


class Gate(TypedDict):
    """The gate the execution is parked at; of several members the first one stands under `on`."""

    ordinal: int
    on: str
    correlationKey: str | None
    due: int | None  # milliseconds since the epoch, fixed when the gate was reached
    mode: NotRequired[GateMode]
    members: NotRequired[list[GateMember]]
    arrived: NotRequired[list[Resume]]  # deliveries to members of a gate of all, in order of arrival


class Decision(TypedDict, total=False):
    """A recorded choice; `seq` is the sequence of its first record, absent in legacy entries (ADR 0128)."""

    choice: Json
    seq: int


class Variables(TypedDict, total=False):
    """What the records keep under `variables`: `_decisions`, and `_flowEmits` in logs that have a stamp."""

    _decisions: dict[str, Decision]
    _flowEmits: list[Json]


class FlowState(TypedDict):
    """The state after some prefix of the log."""

    flowId: str | None
    flowVersion: str | None
    input: Json
    status: str | None
    output: Json
    error: Json
    steps: dict[str, StepEntry]
    resumes: list[Resume]
    gate: Gate | None
    blocked: Json
    cancelRequest: Json  # {"reason"}: from here on the flow is on its way out
    continued: NotRequired[int]  # how often the execution has begun anew
    firstInput: NotRequired[Json]  # of one that has: what it was started with
    deadline: NotRequired[int]  # milliseconds since the epoch, fixed at the start, of an execution that has one
    deliveries: dict[str, int]  # delivery id -> ordinal of the gate it passed
    provenance: Json  # parent id, sequence and hash of a fork
    variables: Variables
    lastSequence: int
    lastHash: str


EMPTY: FlowState = {
    "flowId": None,
    "flowVersion": None,
    "input": None,
    "status": None,
    "output": None,
    "error": None,
    "steps": {},
    "resumes": [],
    "gate": None,
    "blocked": None,
    "cancelRequest": None,
    "deliveries": {},
    "provenance": None,
    "variables": {},
    "lastSequence": -1,
    "lastHash": "0" * 64,
}
"""The state before the first event.  Shared: never changed, copied by whoever folds on it."""

TERMINAL = frozenset({"completed", "failed", "cancelled"})


def get_decision(state: FlowState, decision_id: str) -> Decision | None:
    """Return the recorded entry of a decision, or None.  Only `choice` is a replay input (K-FOLD-5)."""
    return state["variables"].get("_decisions", {}).get(decision_id)


def count_emits(state: FlowState, digest: str) -> int:
    """Return how many stamped emits of this identity the log holds (K-EMIT-2)."""
    node: Json = state["variables"].get("_flowEmits")
    for digit in digest[13:16]:
        if not isinstance(node, list):
            return 0
        node = node[int(digit, 16)]
    if not isinstance(node, dict):
        return 0
    count = node.get(digest, 0)
    assert isinstance(count, int)
    return count
