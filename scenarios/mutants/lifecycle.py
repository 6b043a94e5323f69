"""Broken folds, snapshots, compactions and forks; and emit rules that only a deploy shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from dst.mutant import Mutant, exchange
from kernel import Envelope, Json, Parts
from kernel.errors import SnapshotUnreadable
from kernel.events import DECISION_RECORDED, EXECUTION_RESUMED
from kernel.fold import FoldPass
from kernel.lifecycle import decode_snapshot, encode_snapshot, load, read_log, save_snapshot
from kernel.ports import EventStore, SnapshotStore, StoredSnapshot, Stores
from kernel.projections import SURFACES
from kernel.runtime import Runtime
from kernel.state import EMPTY, Decision, FlowState

# ---- folds -----------------------------------------------------------------------------------------------------------


class IgnoresMetadata(FoldPass):
    """A fold of payloads alone: no stamp is counted (against K-FOLD-2)."""

    def count_stamp(self, event: Envelope) -> None:
        """Look at no metadata."""


class DropsOldSegments(FoldPass):
    """The stamps of a segment are forgotten when it is over (against K-FOLD-4)."""

    def apply(self, event: Envelope) -> None:
        """Drop them at a gate."""
        super().apply(event)
        if event.type == EXECUTION_RESUMED and "_flowEmits" in self.state["variables"]:
            variables = self.state["variables"].copy()
            del variables["_flowEmits"]
            self.state["variables"] = variables
            self.disown()


class _Deciding(FoldPass):
    """Folds decisions its own way."""

    def apply(self, event: Envelope) -> None:
        """Let `enter` say what stands for the decision."""
        before = self.state["variables"].get("_decisions", {})
        super().apply(event)
        if event.type == DECISION_RECORDED:
            payload = cast("dict[str, Json]", event.payload)
            decision_id = cast(str, payload["decisionId"])
            decisions = self.own_decisions()
            decisions[decision_id] = self.enter(decisions[decision_id], event, payload, known=decision_id in before)

    def enter(self, entry: Decision, event: Envelope, payload: Mapping[str, Json], *, known: bool) -> Decision:
        """Return the entry of a decision that was recorded now."""
        raise NotImplementedError


class MapOrder(_Deciding):
    """Decisions are in the order of their map, as before 1.24.0 (ADR 0128)."""

    def enter(self, entry: Decision, event: Envelope, payload: Mapping[str, Json], *, known: bool) -> Decision:
        """Note no position."""
        return {"choice": entry["choice"]}


class LastSeq(_Deciding):
    """A decision that is recorded again moves to its last record."""

    def enter(self, entry: Decision, event: Envelope, payload: Mapping[str, Json], *, known: bool) -> Decision:
        """Take the position of every record."""
        return {"choice": entry["choice"], "seq": event.sequence}


class PayloadSeq(_Deciding):
    """A payload may say where its decision stands."""

    def enter(self, entry: Decision, event: Envelope, payload: Mapping[str, Json], *, known: bool) -> Decision:
        """Believe it."""
        return entry if known or "seq" not in payload else {**entry, "seq": cast(int, payload["seq"])}


class InventsLegacySeq(FoldPass):
    """Decisions of an older snapshot are numbered as they lie in it."""

    def __init__(self, state: FlowState = EMPTY) -> None:
        super().__init__(state)
        decisions = self.state["variables"].get("_decisions", {})
        if any("seq" not in entry for entry in decisions.values()):
            own = self.own_decisions()
            for place, (decision_id, entry) in enumerate(decisions.items()):
                own[decision_id] = {"seq": place, **entry}


class ForgetsInherited(FoldPass):
    """What passed a gate of the parent is unknown to a fork (against K-RUN-5)."""

    def apply(self, event: Envelope) -> None:
        """Remember no delivery of an event that was copied."""
        super().apply(event)
        if "forkedFrom" in event.metadata and event.type == EXECUTION_RESUMED:
            self.own_deliveries().pop(cast("dict[str, str]", event.payload)["deliveryId"], None)


# ---- snapshots, compaction, forks ------------------------------------------------------------------------------------


class OffByOne(Runtime):
    """A compaction's snapshot lacks the event at its own position."""

    async def compact(self, execution_id: str) -> int:
        """Fold one event too few, and say that it is there."""
        loaded = await load(self._stores, execution_id, self._parts.fold, self._projections)
        state = loaded.fold.release()
        if state["lastSequence"] > loaded.snapshot_sequence:
            before = await self._before(execution_id, state["lastSequence"])
            state = {**before, "lastSequence": state["lastSequence"], "lastHash": state["lastHash"]}
        await save_snapshot(self._stores.snapshots, execution_id, state, loaded.projected)
        await self._stores.events.truncate_prefix(execution_id, state["lastSequence"])
        return state["lastSequence"]

    async def _before(self, execution_id: str, position: int) -> FlowState:
        """Return the state before an event."""
        stored = await self._stores.snapshots.load(execution_id)
        begun = EMPTY if stored is None else decode_snapshot(stored).state
        tail = await read_log(self._stores.events, execution_id, begun["lastSequence"] + 1)
        return self._parts.fold.of((event for event in tail if event.sequence < position), begun)


class DropsFirst(Runtime):
    """The log is dropped, and then there is a snapshot of it (against K-RUN-6)."""

    async def compact(self, execution_id: str) -> int:
        """Truncate, then save."""
        loaded = await load(self._stores, execution_id, self._parts.fold, self._projections)
        state = loaded.fold.release()
        await self._stores.events.truncate_prefix(execution_id, state["lastSequence"])
        await save_snapshot(self._stores.snapshots, execution_id, state, loaded.projected)
        return state["lastSequence"]


@attrs.frozen
class Forgiving:
    """Gives an empty state in the place of a snapshot that cannot be read."""

    inner: SnapshotStore
    events: EventStore

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Save it."""
        await self.inner.save(execution_id, snapshot)

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Load it, or what is taken for it: the log behind it can go on from there."""
        stored = await self.inner.load(execution_id)
        try:
            if stored is not None:
                decode_snapshot(stored)
        except SnapshotUnreadable:
            tail = await read_log(self.events, execution_id, stored.sequence + 1)  # type: ignore[union-attr]  # it is one
            hash = tail[0].previous_hash if tail else EMPTY["lastHash"]
            empty: FlowState = {**EMPTY, "lastSequence": stored.sequence, "lastHash": hash}  # type: ignore[union-attr]
            return encode_snapshot(empty, {SURFACES.name: {}})
        return stored


class TakesUnreadableForEmpty(Runtime):
    """A snapshot that cannot be read is taken for one of nothing (against K-RUN-6)."""

    def __init__(self, *, stores: Stores, **surroundings: Any) -> None:
        forgiving = Forgiving(stores.snapshots, stores.events)
        super().__init__(stores=attrs.evolve(stores, snapshots=forgiving), **surroundings)


class DropsStamps(Runtime):
    """A fork's copies lose their stamps: provenance takes the place of metadata (against K-RUN-5)."""

    def copy_prefix(self, prefix: Sequence[Envelope], new_id: str) -> list[Envelope]:
        """Copy without them."""
        bare = [attrs.evolve(event, metadata=_without(event.metadata, "flowEmit")) for event in prefix]
        return super().copy_prefix(bare, new_id)


def _without(metadata: Mapping[str, Json], key: str) -> dict[str, Json]:
    return {name: value for name, value in metadata.items() if name != key}


# ---- emit rules that a deploy tells apart ----------------------------------------------------------------------------


def _mutant(name: str, breaks: str, scenario: str, *expected: str, **attributes: object) -> Mutant:
    return Mutant(name=name, breaks=breaks, scenario=scenario, expected=expected, apply=exchange(**attributes))


def _fold(name: str, breaks: str, scenario: str, fold: type[FoldPass], expected: str) -> Mutant:
    return _mutant(name, breaks, scenario, expected, parts=Parts(fold=fold))


LIFECYCLE = (
    _fold("fold-ignores-metadata", "stamps are not counted", "fork_and_replay", IgnoresMetadata, "emit-once"),
    _fold(
        "fold-drops-old-segments",
        "stamps are forgotten once their segment is over",
        "chat_session",
        DropsOldSegments,
        "emit-once",
    ),
    _fold("fold-map-order-decisions", "decisions are in map order", "policy_agent", MapOrder, "credit-stable"),
    _fold("fold-last-seq", "a repeated decision takes its last position", "policy_agent", LastSeq, "credit-stable"),
    _fold("fold-payload-seq", "a payload's own seq is believed", "policy_agent", PayloadSeq, "credit-stable"),
    _fold(
        "fold-invents-legacy-seq",
        "legacy decisions are given positions",
        "policy_agent",
        InventsLegacySeq,
        "credit-stable",
    ),
    _fold(
        "fork-forgets-deliveries",
        "a fork does not know what passed the gates it has inherited",
        "fork_and_replay",
        ForgetsInherited,
        "gate-once",
    ),
    _mutant(
        "snapshot-off-by-one",
        "a snapshot lacks the event at its own position",
        "policy_agent",
        "fold-consistent",
        "emit-once",  # a re-run does again what the snapshot lacks: an emit, a decision, or a step
        "decision-stable",
        "step-completes-once",
        runtime=OffByOne,
    ),
    _mutant(
        "truncate-before-snapshot",
        "a log is dropped before there is a snapshot of it",
        "policy_agent",
        "fold-consistent",
        runtime=DropsFirst,
    ),
    _mutant(
        "unreadable-snapshot-is-empty",
        "a snapshot that cannot be read is taken for an empty one",
        "policy_agent",
        "fold-consistent",
        runtime=TakesUnreadableForEmpty,
    ),
    _mutant("fork-drops-stamps", "a fork's copies have no stamps", "fork_and_replay", "emit-once", runtime=DropsStamps),
)
