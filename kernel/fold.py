"""The fold: state is a pure function of the log (K-FOLD).

`fold_events` is the pure function.  It is made of a `FoldPass`, which copies a container the first time it changes it
and then updates its own copy in place: a pass over many events costs O(1) for each, and a pass of a single event copies
only the path to what it changes (ADR 0102 D5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from kernel import events
from kernel.errors import CorruptLog
from kernel.events import Envelope
from kernel.jsonform import Json
from kernel.state import (
    EMPTY,
    Decision,
    FlowState,
    Gate,
    GateMember,
    GateMode,
    Resume,
    StepEntry,
    StepOutcome,
    Variables,
)

_Payload = dict[str, Json]


def fold_events(log: Iterable[Envelope], state: FlowState = EMPTY) -> FlowState:
    """Return the state after `log`, begun from `state`.  Pure: neither argument is changed, whatever is shared."""
    return FoldPass.of(log, state)


class FoldPass:
    """Folds events one by one, owning what it has copied.

    Mutable, because an execution that runs folds each event it appends: between calls `state` is the state after the
    last event, to be read and not kept.  `release()` gives a state that may be kept: this pass will not change it.
    """

    def __init__(self, state: FlowState = EMPTY) -> None:
        self.state: FlowState = state.copy()
        self._owned: set[str] = set()  # names of containers and emit-trie paths that only this pass can see

    @classmethod
    def of(cls, log: Iterable[Envelope], state: FlowState = EMPTY) -> FlowState:
        """Return the state after `log`, begun from `state`."""
        fold = cls(state)
        for event in log:
            fold.apply(event)
        return fold.release()

    def release(self) -> FlowState:
        """Return the state, for keeping; whatever is folded later copies again."""
        kept = self.state
        self.state = kept.copy()
        self._owned.clear()
        return kept

    def apply(self, event: Envelope) -> None:
        """Fold one event.  Raises `CorruptLog` if it does not follow the last one."""
        state = self.state
        if event.sequence != state["lastSequence"] + 1:
            raise CorruptLog(
                f"the log of {event.execution_id!r} goes from event {state['lastSequence']} to {event.sequence}"
            )
        state["lastSequence"] = event.sequence
        state["lastHash"] = event.hash
        handler = HANDLERS.get(event.type)
        if handler is not None:
            handler(self, event, cast(_Payload, event.payload))
        if "flowEmit" in event.metadata:
            self.count_stamp(event)
        if "forkedFrom" in event.metadata:
            state["provenance"] = event.metadata["forkedFrom"]

    def count_stamp(self, event: Envelope) -> None:
        """Increment `_flowEmits[digest]`, for an envelope of any type (K-FOLD-2, K-FOLD-3)."""
        digest = events.stamp_of(event)
        if digest is None:
            return
        variables = self._own_variables()
        root = variables.get("_flowEmits")
        node = variables["_flowEmits"] = self._own_node("trie:", root)
        for depth in (13, 14):
            slot = int(digest[depth], 16)
            node[slot] = child = self._own_node("trie:" + digest[13 : depth + 1], node[slot])
            node = child
        slot = int(digest[15], 16)
        leaf = self._own_leaf("trie:" + digest[13:16], node[slot])
        node[slot] = leaf
        count = leaf.get(digest, 0)
        assert isinstance(count, int)
        leaf[digest] = count + 1

    def disown(self) -> None:
        """Copy whatever is changed next: containers were exchanged."""
        self._owned.clear()

    # ---- ownership ---------------------------------------------------------------------------------------------------

    def own_steps(self) -> dict[str, StepEntry]:
        """Return this pass's own map of steps."""
        if "steps" not in self._owned:
            self._owned.add("steps")
            self.state["steps"] = self.state["steps"].copy()
        return self.state["steps"]

    def own_resumes(self) -> list[Resume]:
        """Return this pass's own list of resumes."""
        if "resumes" not in self._owned:
            self._owned.add("resumes")
            self.state["resumes"] = self.state["resumes"].copy()
        return self.state["resumes"]

    def own_deliveries(self) -> dict[str, int]:
        """Return this pass's own memory of delivery ids."""
        if "deliveries" not in self._owned:
            self._owned.add("deliveries")
            self.state["deliveries"] = self.state["deliveries"].copy()
        return self.state["deliveries"]

    def own_decisions(self) -> dict[str, Decision]:
        """Return this pass's own map of decisions."""
        variables = self._own_variables()
        if "decisions" not in self._owned:
            self._owned.add("decisions")
            variables["_decisions"] = variables.get("_decisions", {}).copy()
        return variables["_decisions"]

    def _own_variables(self) -> Variables:
        if "variables" not in self._owned:
            self._owned.add("variables")
            self.state["variables"] = self.state["variables"].copy()
        return self.state["variables"]

    def _own_node(self, path: str, node: Json) -> list[Json]:
        if node is None:
            self._owned.add(path)
            return [None] * 16
        assert isinstance(node, list)
        if path in self._owned:
            return node
        self._owned.add(path)
        return node.copy()

    def _own_leaf(self, path: str, leaf: Json) -> dict[str, Json]:
        if leaf is None:
            self._owned.add(path)
            return {}
        assert isinstance(leaf, dict)
        if path in self._owned:
            return leaf
        self._owned.add(path)
        return leaf.copy()


# ---- one handler for each event type ---------------------------------------------------------------------------------


def _execution_started(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    state = fold.state
    state["flowId"] = cast(str, payload["flowId"])
    state["flowVersion"] = cast("str | None", payload.get("flowVersion"))
    state["input"] = payload.get("input")
    state["status"] = "running"
    if payload.get("deadline") is not None:
        state["deadline"] = cast(int, payload["deadline"])


def _execution_continued(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    """Begin anew: what the flow did before is not replayed any more.  The memory of deliveries stays (K-RUN-7)."""
    state = fold.state
    state.setdefault("firstInput", state["input"])
    state["continued"] = state.get("continued", 0) + 1
    state["input"] = payload.get("input")
    state["status"] = "running"
    state["steps"], state["resumes"], state["variables"], state["gate"] = {}, [], {}, None
    fold.disown()


def _execution_suspended(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    gate: Gate = {
        "ordinal": len(fold.state["resumes"]),
        "on": cast(str, payload["on"]),
        "correlationKey": cast("str | None", payload.get("correlationKey")),
        "due": cast("int | None", payload.get("due")),
    }
    if "members" in payload:
        gate["mode"] = cast("GateMode", payload["mode"])
        gate["members"] = cast("list[GateMember]", payload["members"])
    fold.state["status"] = "suspended"
    fold.state["gate"] = gate


def _delivered(fold: FoldPass, payload: _Payload) -> Resume:
    """Remember the delivery, and return it."""
    delivery_id = cast(str, payload.get("deliveryId", ""))
    if delivery_id:
        fold.own_deliveries()[delivery_id] = len(fold.state["resumes"])
    return {
        "on": cast(str, payload["on"]),
        "correlationKey": cast("str | None", payload.get("correlationKey")),
        "payload": payload.get("payload"),
        "deliveryId": delivery_id,
    }


def _gate_delivered(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    arrival, gate = _delivered(fold, payload), fold.state["gate"]
    if gate is not None:
        fold.state["gate"] = {**gate, "arrived": [*gate.get("arrived", ()), arrival]}


def _execution_resumed(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    resume, gate = _delivered(fold, payload), fold.state["gate"]
    if gate is not None and "members" in gate:
        resume["mode"] = gate["mode"]
        resume["members"] = gate["members"]
        if "arrived" in gate:
            resume["arrived"] = gate["arrived"]
    fold.own_resumes().append(resume)
    fold.state["status"] = "running"
    fold.state["gate"] = None


def _execution_completed(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    fold.state["status"] = "completed"
    fold.state["gate"] = None
    fold.state["output"] = payload.get("output")


def _execution_failed(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    fold.state["status"] = "failed"
    fold.state["gate"] = None
    fold.state["error"] = payload.get("error")


def _execution_cancelled(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    fold.state["status"] = "cancelled"
    fold.state["gate"] = None
    fold.state["error"] = payload.get("error")


def _cancel_requested(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    """The gate stays: the flow comes to it once more, and passes it with the cancellation."""
    fold.state["cancelRequest"] = payload
    fold.state["status"] = "running"
    fold.state["blocked"] = None


def _execution_blocked(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    fold.state["status"] = "blocked"
    fold.state["blocked"] = payload


def _execution_unblocked(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    fold.state["status"] = "running"
    fold.state["blocked"] = None


def _step_started(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    step = cast(str, payload["step"])
    steps = fold.own_steps()
    earlier = steps.get(step)
    if earlier is not None and earlier["outcome"] in ("completed", "typed"):
        return  # what a re-run is served stays
    steps[step] = {
        "kind": cast(str, payload.get("kind", "step")),
        "toolId": cast(str, payload.get("toolId", step)),
        "inputDigest": cast("str | None", payload.get("inputDigest")),
        "attempts": cast(int, payload.get("attempt", 1 if earlier is None else earlier["attempts"] + 1)),
        "outcome": None,
        "output": None,
        "failure": None,
        "resolution": None if earlier is None else earlier["resolution"],
    }
    if "tries" in payload:
        steps[step]["tries"] = cast(int, payload["tries"])


def _end_step(
    fold: FoldPass, step: str, outcome: StepOutcome, output: Json, failure: Json, retry_due: Json = None
) -> None:
    steps = fold.own_steps()
    entry = steps.get(step)
    if entry is None:
        entry = _bare_entry(step)
    if entry["outcome"] in ("completed", "typed"):
        return  # the first settled end of a step is the one a re-run is served
    entry = entry.copy()
    entry["outcome"] = outcome
    entry["output"] = output
    entry["failure"] = failure
    if retry_due is not None:
        entry["retryDue"] = cast(int, retry_due)
    elif "retryDue" in entry:
        del entry["retryDue"]
    steps[step] = entry


def _bare_entry(step: str) -> StepEntry:
    """The entry of a step whose start is not in the log: legacy logs have such."""
    return {
        "kind": "step",
        "toolId": step,
        "inputDigest": None,
        "attempts": 1,
        "outcome": None,
        "output": None,
        "failure": None,
        "resolution": None,
    }


def _step_completed(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    _end_step(fold, cast(str, payload["step"]), "completed", payload.get("output"), None)


def _step_failed(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    reason = payload.get("reason")
    outcome: StepOutcome = "typed" if reason == "typed" else "timeout" if reason == "timeout" else "error"
    _end_step(fold, cast(str, payload["step"]), outcome, None, payload.get("failure"), payload.get("retryDue"))


def _step_cancelled(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    _end_step(fold, cast(str, payload["step"]), "cancelled", None, None)


def _effect_indoubt(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    _end_step(fold, cast(str, payload["step"]), "indoubt", None, payload.get("failure"))


def _effect_resolved(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    """Take an operator's word for the end of a step, or for trying it again (K-FLOW-4)."""
    step, said = cast(str, payload["step"]), payload.get("resolution")
    if said == "completed":
        _end_step(fold, step, "completed", payload.get("output"), None)
    elif said == "failed":
        _end_step(fold, step, "typed", None, payload.get("failure"))
    entry = fold.own_steps().get(step)
    if entry is not None:
        fold.own_steps()[step] = {**entry, "resolution": {"attempt": payload.get("attempt"), "resolution": said}}


def _decision_recorded(fold: FoldPass, event: Envelope, payload: _Payload) -> None:
    """Keep the first record of an id, with the envelope's sequence; a payload's own `seq` is ignored (ADR 0128)."""
    decisions = fold.own_decisions()
    decision_id = cast(str, payload["decisionId"])
    if decision_id not in decisions:
        decisions[decision_id] = {"choice": payload.get("choice"), "seq": event.sequence}


HANDLERS: dict[str, Callable[[FoldPass, Envelope, _Payload], None]] = {
    events.EXECUTION_STARTED: _execution_started,
    events.EXECUTION_CONTINUED: _execution_continued,
    events.EXECUTION_SUSPENDED: _execution_suspended,
    events.GATE_DELIVERED: _gate_delivered,
    events.EXECUTION_RESUMED: _execution_resumed,
    events.EXECUTION_BLOCKED: _execution_blocked,
    events.EXECUTION_UNBLOCKED: _execution_unblocked,
    events.EXECUTION_COMPLETED: _execution_completed,
    events.EXECUTION_FAILED: _execution_failed,
    events.EXECUTION_CANCELLED: _execution_cancelled,
    events.CANCEL_REQUESTED: _cancel_requested,
    events.STEP_STARTED: _step_started,
    events.STEP_COMPLETED: _step_completed,
    events.STEP_FAILED: _step_failed,
    events.STEP_CANCELLED: _step_cancelled,
    events.EFFECT_INDOUBT: _effect_indoubt,
    events.EFFECT_RESOLVED: _effect_resolved,
    events.DECISION_RECORDED: _decision_recorded,
}
"""The event types the fold knows; any other folds as a no-op but for its position and its stamp (K-FOLD-7)."""
