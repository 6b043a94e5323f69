"""Logs and snapshots of older kernels (ADR 0102 D8, ADR 0128), to begin a simulation with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import attrs

from dst.durable.observed import identity_of
from dst.durable.stores import LEGACY, LEGACY_SCHEMA, EmitCall, SimStore
from kernel.events import EVENT_SCHEMA_VERSION, EXECUTION_RESUMED, GENESIS_HASH, KERNEL_TYPES, Envelope, hash_of, seal
from kernel.fold import fold_events
from kernel.jsonform import Json, encode
from kernel.lifecycle import encode_snapshot
from kernel.projections import SURFACES, ProjectionPass
from kernel.state import Variables


def write_legacy_log(
    db: SimStore, execution_id: str, flow_id: str, log: Sequence[tuple[str, Json]], *, now_ms: int
) -> None:
    """Put a parked execution into the store, as an older kernel left it: (type, payload) of each event, no stamps."""
    previous, segment = GENESIS_HASH, 0
    for sequence, (type, payload) in enumerate(log):
        text = encode(payload)
        sealed = seal(
            execution_id=execution_id,
            sequence=sequence,
            type=type,
            payload_text=text,
            timestamp_ms=now_ms,
            append_id=f"old/{sequence}",
            previous_hash=previous,
        )
        envelope = _aged(sealed)
        call = None if type in KERNEL_TYPES else EmitCall(segment, identity_of(type, text), "", LEGACY, "")
        db.store(execution_id, envelope, call)
        previous, segment = envelope.hash, segment + (type == EXECUTION_RESUMED)
    db.park(execution_id, flow_id, head=len(log) - 1)


def write_legacy_snapshot(
    db: SimStore, execution_id: str, flow_id: str, log: Sequence[tuple[str, Json]], *, now_ms: int
) -> None:
    """Likewise, compacted: its snapshot's decisions have no `seq`, and no kernel can make one up (ADR 0128)."""
    write_legacy_log(db, execution_id, flow_id, log, now_ms=now_ms)
    state, projecting = fold_events(db.history[execution_id]), ProjectionPass((SURFACES,), None)
    for envelope in db.history[execution_id]:
        projecting.apply(envelope)
    decisions = {name: {"choice": entry["choice"]} for name, entry in state["variables"].get("_decisions", {}).items()}
    variables = cast(Variables, {**state["variables"], "_decisions": decisions})
    stored = encode_snapshot({**state, "variables": variables}, projecting.values)
    db.snapshots[execution_id] = db.begun[execution_id] = stored
    db.logs[execution_id], db.cuts[execution_id] = [], len(log)


def _aged(envelope: Envelope) -> Envelope:
    """Return the envelope as the older schema had it."""
    text = envelope.text.replace(f'"schemaVersion":"{EVENT_SCHEMA_VERSION}"', f'"schemaVersion":"{LEGACY_SCHEMA}"')
    return attrs.evolve(envelope, schema_version=LEGACY_SCHEMA, text=text, hash=hash_of(text))
