"""Logs from before emits were stamped (ADR 0102 D8), to begin a simulation with."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dst.durable.observed import identity_of
from dst.durable.stores import LEGACY, EmitCall, SimStore
from kernel.events import EVENT_SCHEMA_VERSION, EXECUTION_RESUMED, GENESIS_HASH, KERNEL_TYPES, Envelope, hash_of, seal
from kernel.jsonform import Json, encode

LEGACY_SCHEMA = "1.18.0"


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


def _aged(envelope: Envelope) -> Envelope:
    """Return the envelope as the older schema had it."""
    text = envelope.text.replace(f'"schemaVersion":"{EVENT_SCHEMA_VERSION}"', f'"schemaVersion":"{LEGACY_SCHEMA}"')
    return attrs.evolve(envelope, schema_version=LEGACY_SCHEMA, text=text, hash=hash_of(text))
