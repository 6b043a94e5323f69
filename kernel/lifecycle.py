"""Loading, snapshots and compaction (K-RUN-6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import attrs

from kernel.errors import CorruptLog, LogTruncated, MalformedJson, SnapshotUnreadable, UnknownExecution
from kernel.events import EVENT_SCHEMA_VERSION, Envelope, parse
from kernel.fold import FoldPass
from kernel.jsonform import DEPTH_MAX_STORED, Json, decode, encode
from kernel.ports import EventStore, SnapshotStore, StoredSnapshot, Stores
from kernel.projections import Projection, ProjectionPass
from kernel.state import EMPTY, FlowState

_RELOADS = 8  # a compaction may cut the log between reading the snapshot and reading the tail; each try moves past one


@attrs.define(kw_only=True)
class Loaded:
    """An execution's state as read from its stores."""

    execution_id: str
    fold: FoldPass
    projected: dict[str, Json]
    snapshot_sequence: int  # -1: no snapshot was used


@attrs.frozen(kw_only=True)
class Snapshot:
    """A decoded snapshot."""

    sequence: int
    state: FlowState
    projected: dict[str, Json]


async def load(
    stores: Stores, execution_id: str, fold: type[FoldPass] = FoldPass, projections: Sequence[Projection] = ()
) -> Loaded:
    """Return the execution's state: its newest readable snapshot, and the tail folded on it.

    A snapshot that cannot be read is passed over and the log is folded from its start.  Raises `SnapshotUnreadable`
    if that start is gone, `UnknownExecution`, `CorruptLog` for a broken chain, `ProjectionFailed`: never an empty state
    (K-RUN-6).
    """
    for _ in range(_RELOADS):
        snapshot, unreadable = await _read_snapshot(stores.snapshots, execution_id, projections)
        position = -1 if snapshot is None else snapshot.sequence
        try:
            tail = await read_log(stores.events, execution_id, position + 1)
        except LogTruncated as cut:
            if unreadable is not None:
                raise SnapshotUnreadable(
                    f"{execution_id!r}: its snapshot cannot be read ({unreadable}) and its log begins later: "
                    "restore the snapshot from a backup"
                ) from cut
            continue
        if snapshot is None and not tail:
            raise UnknownExecution(f"no execution {execution_id!r} in this store")
        return _fold_up(execution_id, snapshot, tail, fold, projections)
    raise CorruptLog(
        f"{execution_id!r}: no snapshot reaches the start of its log: one was lost, restore it from a backup"
    )


async def read_log(events: EventStore, execution_id: str, sequence: int) -> list[Envelope]:
    """Return the parsed events from `sequence` on.  Raises `LogTruncated`, `CorruptLog`."""
    return [parse(stored) for stored in await events.read_from(execution_id, sequence)]


def _fold_up(
    execution_id: str,
    snapshot: Snapshot | None,
    tail: Sequence[Envelope],
    fold: type[FoldPass],
    projections: Sequence[Projection],
) -> Loaded:
    running = fold(EMPTY if snapshot is None else snapshot.state)
    projecting = ProjectionPass(projections, None if snapshot is None else snapshot.projected)
    for event in tail:
        if event.previous_hash != running.state["lastHash"]:
            raise CorruptLog(
                f"{execution_id!r}: event {event.sequence} does not follow event {event.sequence - 1}: the chain is "
                "broken; find the first bad event with `verify`"
            )
        running.apply(event)
        projecting.apply(event)
    return Loaded(
        execution_id=execution_id,
        fold=running,
        projected=projecting.values,
        snapshot_sequence=-1 if snapshot is None else snapshot.sequence,
    )


async def _read_snapshot(
    snapshots: SnapshotStore, execution_id: str, projections: Sequence[Projection]
) -> tuple[Snapshot | None, str | None]:
    """Return the snapshot, or None and why it cannot be used if there is one that cannot."""
    stored = await snapshots.load(execution_id)
    if stored is None:
        return None, None
    try:
        snapshot = decode_snapshot(stored)
    except SnapshotUnreadable as error:
        return None, str(error)
    missing = [p.name for p in projections if p.name not in snapshot.projected]
    if missing:
        return None, f"it lacks the projections {missing}"
    return snapshot, None


def encode_snapshot(state: FlowState, projected: Mapping[str, Json]) -> StoredSnapshot:
    """Return the snapshot record of a state, projections beside it."""
    record = {
        "projections": dict(projected),
        "schemaVersion": EVENT_SCHEMA_VERSION,
        "sequence": state["lastSequence"],
        "state": cast("Json", state),
    }
    return StoredSnapshot(
        sequence=state["lastSequence"], text=encode(record, at="snapshot", depth_max=DEPTH_MAX_STORED)
    )


def decode_snapshot(stored: StoredSnapshot) -> Snapshot:
    """Return the decoded snapshot, whatever order its keys are in.  Raises `SnapshotUnreadable`."""
    try:
        record = decode(stored.text)
    except MalformedJson as error:
        raise SnapshotUnreadable(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise SnapshotUnreadable("not an object")
    state, projected = record.get("state"), record.get("projections")
    if not isinstance(state, dict) or not isinstance(projected, dict) or state.get("lastSequence") != stored.sequence:
        raise SnapshotUnreadable("its state is missing or is for another position")
    version = record.get("schemaVersion")
    if not isinstance(version, str) or version.partition(".")[0] != EVENT_SCHEMA_VERSION.partition(".")[0]:
        raise SnapshotUnreadable(f"it has schema {version!r}, this kernel reads {EVENT_SCHEMA_VERSION}")
    return Snapshot(
        sequence=stored.sequence,
        state=cast("FlowState", {**EMPTY, **state}),
        projected=projected,
    )


async def save_snapshot(
    snapshots: SnapshotStore, execution_id: str, state: FlowState, projected: Mapping[str, Json]
) -> None:
    """Make a snapshot of `state` durable."""
    await snapshots.save(execution_id, encode_snapshot(state, projected))


async def compact(
    stores: Stores, execution_id: str, fold: type[FoldPass] = FoldPass, projections: Sequence[Projection] = ()
) -> int:
    """Fold the whole log into a snapshot, then drop it; return the position of the snapshot.

    The snapshot is durable before anything is dropped, so a crash between the two loses nothing (K-RUN-6).  Raises
    `UnknownExecution`.
    """
    loaded = await load(stores, execution_id, fold, projections)
    state = loaded.fold.release()
    await save_snapshot(stores.snapshots, execution_id, state, loaded.projected)
    await stores.events.truncate_prefix(execution_id, state["lastSequence"])
    return state["lastSequence"]
