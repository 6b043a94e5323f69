"""What decisions have earned, told by a whole log and by what a compaction has left of it (ADR 0128, K-LEARN)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dst.durable.ends import chained
from dst.durable.snapshots import reordered
from dst.durable.stores import SimStore
from kernel.events import TERMINAL_TYPES, Envelope
from kernel.fold import FoldPass, fold_events
from kernel.jsonform import Json
from kernel.learning import EvidenceEvent, evidence_events, trajectories
from kernel.lifecycle import decode_snapshot
from kernel.ports import StoredSnapshot

FIRST = "a place before all others"
"""What is known of a legacy decision (K-LEARN-1)."""

RewardOf = Callable[[dict[str, Json]], float]
"""The reward of an end, from its payload."""


def credits_of(
    db: SimStore, fold_type: type[FoldPass], reward: RewardOf, discounts: Sequence[float]
) -> list[tuple[str, str, str, str]]:
    """Return for each decision of what has ended and has a snapshot: (execution, decision, wanted, what is left)."""
    credits: list[tuple[str, str, str, str]] = []
    for execution_id, stored in sorted(db.snapshots.items()):
        history = chained(db.history[execution_id])
        if history[-1].type not in TERMINAL_TYPES:
            continue
        legacy = _absorbed_before(db, execution_id)
        earned = _earned(evidence_events(fold_events(history), history), reward, discounts)
        kept = _earned(_left(stored, history, fold_type), reward, discounts)
        for decision_id, credit in earned.items():
            wanted = FIRST if decision_id in legacy else credit
            credits.append((execution_id, decision_id, wanted, kept.get(decision_id, "nothing")))
    return credits


def _left(stored: StoredSnapshot, history: Sequence[Envelope], fold_type: type[FoldPass]) -> list[EvidenceEvent]:
    """Return the evidence of a snapshot, its keys in an order that is the store's own, and the tail behind it."""
    snapshot = decode_snapshot(StoredSnapshot(sequence=stored.sequence, text=reordered(stored.text)))
    tail = history[stored.sequence + 1 :]
    return evidence_events(fold_type.of(tail, snapshot.state), tail)


def _absorbed_before(db: SimStore, execution_id: str) -> frozenset[str]:
    """Return the decisions of which nobody knows any more when they were made."""
    begun = db.begun.get(execution_id)
    return frozenset() if begun is None else frozenset(decode_snapshot(begun).state["variables"]["_decisions"])


def _earned(evidence: Sequence[EvidenceEvent], reward: RewardOf, discounts: Sequence[float]) -> dict[str, str]:
    """Return what each decision has earned under each discount; of a legacy one only that it comes before the rest."""
    by_discount = [trajectories(evidence, discount, lambda end: reward(end.payload)) for discount in discounts]
    return {
        entries[0].decision_id: FIRST
        if entries[0].sequence < 0
        else ", ".join(
            f"{entry.credit} at discount {discount}" for entry, discount in zip(entries, discounts, strict=True)
        )
        for entries in zip(*by_discount, strict=True)
    }
