"""What the kernel can see of an execution's log: its fold, without what no reader orders or compares by."""

from __future__ import annotations

from kernel.jsonform import Json, encode
from kernel.state import FlowState


def visible(state: FlowState, now_ms: int, cap: int) -> str:
    """Return the canonical text of a state as behaviour.

    Out are positions and hashes.  Decisions are in the order of their positions, due times are relative, attempt
    numbers count up to `cap`.
    """
    decisions = state["variables"].get("_decisions", {})
    gate = state["gate"]
    seen: dict[str, object] = {
        key: value
        for key, value in state.items()
        if key not in ("lastSequence", "lastHash", "variables", "steps", "gate")
    }
    seen["steps"] = {step: {**entry, "attempts": min(entry["attempts"], cap)} for step, entry in state["steps"].items()}
    seen["decisions"] = [
        [decision_id, entry.get("choice")]
        for decision_id, entry in sorted(decisions.items(), key=lambda item: item[1].get("seq", -1))
    ]
    seen["emits"] = _counts(state["variables"].get("_flowEmits"))
    if gate is not None:
        seen["gate"] = {**gate, "due": None if gate["due"] is None else max(gate["due"] - now_ms, 0)}
    return encode(seen, at="state")


def _counts(node: Json) -> dict[str, Json]:
    """Return the stamped counts of an emit trie as one map."""
    if isinstance(node, dict):
        return node
    counts: dict[str, Json] = {}
    for child in node if isinstance(node, list) else ():
        counts.update(_counts(child))
    return counts
