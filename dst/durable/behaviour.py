"""What the kernel can see of an execution's log: its fold, without what no reader orders or compares by."""

from __future__ import annotations

from typing import cast

from kernel.jsonform import Json, encode
from kernel.state import TERMINAL, FlowState, StepEntry

_SERVED = ("completed", "typed")  # how steps end whose record a re-run is handed: nothing is tried again


def visible(state: FlowState, now_ms: int, cap: int) -> str:
    """Return the canonical text of a state as behaviour.

    Out are positions and hashes.  Decisions are in the order of their positions, due times are relative, attempt
    numbers count up to `cap` while there can be a next attempt.
    """
    decisions = state["variables"].get("_decisions", {})
    gate = state["gate"]
    seen: dict[str, object] = {
        key: value
        for key, value in state.items()
        if key not in ("lastSequence", "lastHash", "variables", "steps", "gate", "provenance")
    }
    origin = state["provenance"]  # its position and hash are compared with those of the same event only
    seen["origin"] = origin["executionId"] if isinstance(origin, dict) else None
    seen["steps"] = {step: _step(entry, cap) for step, entry in state["steps"].items()}
    seen["decisions"] = [
        [decision_id, entry.get("choice")]
        for decision_id, entry in sorted(decisions.items(), key=lambda item: item[1].get("seq", -1))
    ]
    counts: dict[str, Json] = {}
    _gather(cast(Json, state["variables"].get("_flowEmits")), counts)
    seen["emits"] = counts
    if gate is not None:
        seen["gate"] = {**gate, "due": None if gate["due"] is None else max(gate["due"] - now_ms, 0)}
    return encode(seen, at="state")


def _step(entry: StepEntry, cap: int) -> dict[str, object]:
    """Return what a re-run sees of a step.

    How often it was tried says which attempt is next, so that nobody looks once its end is served.  Left in, the
    attempts of every step that is over would multiply.  Of an operator's word counts how many attempts ago it was.
    """
    seen: dict[str, object] = {**entry, "attempts": min(entry["attempts"], cap)}
    if isinstance(entry["resolution"], dict):
        ago = entry["attempts"] - cast(int, entry["resolution"]["attempt"])
        seen["resolution"] = {**entry["resolution"], "attempt": min(ago, cap)}
    if entry["outcome"] in _SERVED:
        return {key: value for key, value in seen.items() if key not in ("attempts", "tries")}
    return seen


def _gather(node: Json, counts: dict[str, Json]) -> None:
    """Add the stamped counts of an emit trie to `counts`."""
    if isinstance(node, dict):
        counts.update(node)
    elif isinstance(node, list):
        for child in node:
            if child is not None:
                _gather(child, counts)


def phase(status: str, since: int, every: int | None) -> int:
    """Return how far a log has come on the way to its next snapshot: a policy that counts is behaviour.

    `since` is how many events it has beyond the last one.  The append that reaches `every` takes a snapshot, and so
    does every later one until there is one: all of these are alike.  After an end nothing is appended.
    """
    return 0 if every is None or status in TERMINAL else min(since, every - 1)
