"""Forks: a new log that begins like another (K-RUN-5).  Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kernel.events import GENESIS_HASH, Envelope, hash_of
from kernel.jsonform import DEPTH_MAX_STORED, Json, encode


def forked(log: Iterable[Envelope], new_id: str) -> list[Envelope]:
    """Return `log` as the beginning of another execution.

    Where each event comes from is merged INTO its metadata, so the emit stamps survive, and the fork's re-runs are
    served what it has inherited.  The chain is the fork's own, from its own start.
    """
    copies: list[Envelope] = []
    for event in log:
        previous = copies[-1].hash if copies else GENESIS_HASH
        copies.append(_copy(event, new_id, previous))
    return copies


def _copy(event: Envelope, new_id: str, previous_hash: str) -> Envelope:
    origin: Json = {"executionId": event.execution_id, "hash": event.hash, "sequence": event.sequence}
    metadata: dict[str, Json] = {**event.metadata, "forkedFrom": origin}
    text = encode(
        {
            "executionId": new_id,
            "metadata": metadata,
            "payload": event.payload,
            "previousHash": previous_hash,
            "schemaVersion": event.schema_version,
            "sequence": event.sequence,
            "timestamp": event.timestamp_ms,
            "type": event.type,
        },
        depth_max=DEPTH_MAX_STORED,
    )
    return Envelope(
        new_id,
        event.sequence,
        event.type,
        event.payload,
        event.timestamp_ms,
        event.schema_version,
        metadata,
        previous_hash,
        hash_of(text),
        text,
    )
