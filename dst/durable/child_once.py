"""`child-once`: what parents, children and the supervisor between them owe each other (K-CHILD, ADR 0040)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from dst.invariants import Broken, Invariant, Key
from dst.trace import Record
from kernel import events
from kernel.jsonform import Json, encode

_AWAITS = "CHILD_DONE"
_TERMINAL = tuple(sorted(events.TERMINAL_TYPES))
_STATUS = {events.EXECUTION_FAILED: "failed", events.EXECUTION_CANCELLED: "cancelled"}
_BEGINNING = re.compile(r"~[0-9]+\Z")
_ALL = "every child"


class Child(NamedTuple):
    """One key of one parent, in the beginning that the parent is in."""

    id: str = ""  # the execution that was decided on; "": none yet
    askers: frozenset[str] = frozenset()  # the parent, and forks of it that have copied its decision
    awaited: bool = False  # one of them has parked for children since
    started: bool = False
    end: str | None = None  # what is owed to who waits, as canonical text


class ChildOnce(Invariant[Child]):
    """K-CHILD-1 to 3.  What is owed is worked out from the child's own terminal event, and by nothing of the kernel."""

    name = "child-once"
    says = (
        "a key of a parent has one child, which starts when somebody is parked for it; who waits goes on if and only "
        "if the child has ended, with its output or its failure"
    )
    kinds = (
        events.DECISION_RECORDED,
        events.EXECUTION_STARTED,
        events.EXECUTION_SUSPENDED,
        events.EXECUTION_RESUMED,
        events.GATE_DELIVERED,
        events.EXECUTION_CONTINUED,
        *_TERMINAL,
        "final",
    )
    initial = Child()

    def key(self, record: Record) -> Key:
        """Keyed by parent and key; what an execution does at its gates may concern any of its children."""
        if record[0] in ("final", events.EXECUTION_CONTINUED):
            return _ALL, None
        payload = record[2].payload
        if record[0] == events.EXECUTION_SUSPENDED:
            return (_ALL, None) if _waits_for_children(payload) else None
        child_id = _child_of(record[0], record[1], payload)
        return (_ALL, _BEGINNING.sub("", child_id).rpartition("::")[::2]) if "::" in child_id else None

    def advance(self, state: Child, record: Record) -> Child:
        """Follow one child, and those who wait for it."""
        kind, execution = record[:2]
        if kind == "final":
            self._at_rest(state, execution, record[3], record[4])
            return state
        payload: dict[str, Any] = record[2].payload
        if kind == events.DECISION_RECORDED:
            return self._decided(state, execution, payload["choice"]["childId"])
        if kind == events.EXECUTION_SUSPENDED:
            return state._replace(awaited=True) if execution in state.askers else state
        if kind == events.EXECUTION_CONTINUED:
            return Child() if execution == state.id.rpartition("::")[0] else state
        if kind in (events.EXECUTION_RESUMED, events.GATE_DELIVERED):
            self._went_on(state, execution, payload["payload"])
            return state
        if execution != state.id or "forkedFrom" in record[2].metadata:
            return state  # a fork of a child is no child
        return (
            self._started(state)
            if kind == events.EXECUTION_STARTED
            else state._replace(end=_owed(kind, state.id, payload))
        )

    def _decided(self, state: Child, execution: str, child_id: str) -> Child:
        if state.id not in ("", child_id):
            raise Broken(f"{execution} decided on {child_id}, after {state.id}", "one child for a key")
        return state._replace(id=child_id, askers=state.askers | {execution})

    def _started(self, state: Child) -> Child:
        if not state.awaited:
            raise Broken("it started before anybody was parked for it", "a start once its parent is parked")
        return state._replace(started=True)

    def _went_on(self, state: Child, waiter: str, payload: Json) -> None:
        got = encode(payload)
        if state.end is None:
            raise Broken(f"{waiter} went on with {got}, and the child had not ended", "an end, and then that")
        if got not in (state.end, f'{{"__loomChildOutput":{state.end}}}'):
            raise Broken(f"{waiter} went on with {got}", state.end)

    def _at_rest(self, state: Child, waiter: str, status: str, gate: str) -> None:
        if status != "suspended" or f"{_AWAITS}/{state.id}" not in gate.split(", "):
            return
        if state.end is not None:
            raise Broken(f"{waiter} is parked for it, and it has ended", f"{waiter} goes on")
        if not state.started:
            raise Broken(f"{waiter} is parked for it, and it never started", "a child")

    def could_fail(self, state: Child) -> bool:
        """It has ended."""
        return state.end is not None


def _waits_for_children(gate: dict[str, Any]) -> bool:
    return any(member["on"] == _AWAITS for member in gate.get("members", (gate,)))


def _child_of(kind: str, execution: str, payload: dict[str, Any]) -> str:
    """Return the id of the child that a record is about, "" if it is about none."""
    if kind == events.DECISION_RECORDED:
        choice = payload["choice"]
        is_spec = payload["decisionId"].startswith("child:") and isinstance(choice, dict)
        return choice.get("childId", "") if is_spec else ""
    if kind in (events.EXECUTION_RESUMED, events.GATE_DELIVERED):
        return (payload["correlationKey"] or "") if payload["on"] == _AWAITS else ""
    return execution


def _owed(kind: str, child_id: str, payload: dict[str, Any]) -> str:
    """Return what its end delivers."""
    if kind == events.EXECUTION_COMPLETED:
        return encode(payload.get("output"))
    failure = {"childId": child_id, "error": payload.get("error"), "status": _STATUS[kind]}
    return encode({"__loomChildFailed": failure})
