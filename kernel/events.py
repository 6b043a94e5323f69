"""Envelopes and event types: the cross-implementation contract of the log (K-LOG-1, K-LOG-3)."""

from __future__ import annotations

import functools
import hashlib
import re

import attrs

from kernel.errors import CorruptLog, StoreVersion
from kernel.jsonform import Json, MalformedJson, decode_canonical, encode

# 1.25.0, additive over the records' 1.24.0:
# - payload fields `seq`, `inputDigest`, `attempt`, `due` and `deliveryId`;
# - `metadata.appendId`, and `metadata.effect` / `metadata.attempt` on what an effect emits;
# - EFFECT_INDOUBT `reason` and `failure`; EFFECT_RESOLVED and EXECUTION_UNBLOCKED, by which an operator goes on;
# - STEP_STARTED `tries`, and STEP_FAILED `retryDue` of an attempt that is no end of its step;
# - EXECUTION_SUSPENDED `mode` and `members` of a gate of several; GATE_DELIVERED, a delivery that leaves it closed;
# - CANCEL_REQUESTED with `reason` and `at`, the syscall it was raised at; also as what a gate was passed on;
# - EXECUTION_CANCELLED `failure`, EXECUTION_STARTED `deadline`;
# - EXECUTION_CONTINUED, a new beginning under the same id; `metadata.forkedFrom` on what a fork has copied.
EVENT_SCHEMA_VERSION = "1.25.0"
KERNEL_ABI_VERSION = "1.1.0"
WIRE_ABI_VERSION = "1.0.0"

EXECUTION_STARTED = "EXECUTION_STARTED"
EXECUTION_SUSPENDED = "EXECUTION_SUSPENDED"
EXECUTION_RESUMED = "EXECUTION_RESUMED"
EXECUTION_CONTINUED = "EXECUTION_CONTINUED"
EXECUTION_BLOCKED = "EXECUTION_BLOCKED"
EXECUTION_UNBLOCKED = "EXECUTION_UNBLOCKED"
EXECUTION_COMPLETED = "EXECUTION_COMPLETED"
EXECUTION_FAILED = "EXECUTION_FAILED"
EXECUTION_CANCELLED = "EXECUTION_CANCELLED"
STEP_STARTED = "STEP_STARTED"
STEP_COMPLETED = "STEP_COMPLETED"
STEP_FAILED = "STEP_FAILED"
STEP_CANCELLED = "STEP_CANCELLED"
EFFECT_INDOUBT = "EFFECT_INDOUBT"
EFFECT_RESOLVED = "EFFECT_RESOLVED"
DECISION_RECORDED = "DECISION_RECORDED"
SURFACE_PATCH = "SURFACE_PATCH"
STREAM_CHUNK = "STREAM_CHUNK"
TIMER_FIRED = "TIMER_FIRED"
CANCEL_REQUESTED = "CANCEL_REQUESTED"
GATE_DELIVERED = "GATE_DELIVERED"

TERMINAL_TYPES = frozenset({EXECUTION_COMPLETED, EXECUTION_FAILED, EXECUTION_CANCELLED})
KERNEL_TYPES = TERMINAL_TYPES | {
    EXECUTION_STARTED,
    EXECUTION_SUSPENDED,
    EXECUTION_RESUMED,
    EXECUTION_CONTINUED,
    GATE_DELIVERED,
    EXECUTION_BLOCKED,
    EXECUTION_UNBLOCKED,
    CANCEL_REQUESTED,
    STEP_STARTED,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_CANCELLED,
    EFFECT_INDOUBT,
    EFFECT_RESOLVED,
    DECISION_RECORDED,
}
"""The kernel's own facts: flows may not emit them, and they are never stamped (ADR 0102 D1)."""

GENESIS_HASH = "0" * 64
_STAMP = re.compile(r"[0-9a-f]{16}")


@attrs.frozen(slots=True)
class Envelope:
    """One event as it is stored.  `text` is its canonical JSON without the hash; `hash` is sha256 over `text`."""

    execution_id: str
    sequence: int
    type: str
    payload: Json
    timestamp_ms: int
    schema_version: str
    metadata: dict[str, Json]
    previous_hash: str
    hash: str
    text: str


@attrs.frozen(slots=True)
class StoredEvent:
    """What a store keeps of an envelope and gives back: position, text and hash, uninterpreted."""

    sequence: int
    text: str
    hash: str


@functools.lru_cache(maxsize=4096)
def quoted(text: str) -> str:
    """Return `text` as a canonical JSON string."""
    return encode(text)


def _quoted_once(text: str) -> str:
    """`quoted`, for texts that will not come again: most need no escape, and a cache would only fill up."""
    plain = text.isascii() and text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text}"' if plain else encode(text)


def hash_of(text: str) -> str:
    """Return the hash of an envelope's canonical text (K-LOG-3)."""
    return hashlib.sha256(text.encode()).hexdigest()


def seal(
    *,
    execution_id: str,
    sequence: int,
    type: str,
    payload_text: str,
    timestamp_ms: int,
    append_id: str,
    previous_hash: str,
    stamp: str | None = None,
    provenance: dict[str, Json] | None = None,
) -> Envelope:
    """Return the envelope of one event, chained to `previous_hash`; a stamp is inside the hash (K-LOG-3).

    An event has a stamp or provenance, not both: what an effect emits is never stamped (K-EMIT-1).
    """
    assert stamp is None or provenance is None
    metadata: dict[str, Json] = {"appendId": append_id}
    if provenance is not None:
        metadata_text = encode(metadata := {**metadata, **provenance})
    elif stamp is not None:
        metadata["flowEmit"] = stamp
        metadata_text = f'{{"appendId":{_quoted_once(append_id)},"flowEmit":"{stamp}"}}'
    else:
        metadata_text = f'{{"appendId":{_quoted_once(append_id)}}}'
    # The keys stand in canonical order, and the payload is canonical already: this *is* the canonical form.
    text = (
        f'{{"executionId":{quoted(execution_id)},"metadata":{metadata_text},"payload":{payload_text},'
        f'"previousHash":"{previous_hash}","schemaVersion":"{EVENT_SCHEMA_VERSION}","sequence":{sequence},'
        f'"timestamp":{timestamp_ms},"type":{quoted(type)}}}'
    )
    return Envelope(
        execution_id,
        sequence,
        type,
        decode_canonical(payload_text),
        timestamp_ms,
        EVENT_SCHEMA_VERSION,
        metadata,
        previous_hash,
        hash_of(text),
        text,
    )


def parse(stored: StoredEvent) -> Envelope:
    """Return the envelope in `stored`.  Raises `CorruptLog` if it is none, `StoreVersion` if of a newer major."""
    try:
        fields = decode_canonical(stored.text)
        if not isinstance(fields, dict):
            raise TypeError("not an object")
        envelope = Envelope(
            _text(fields["executionId"]),
            _integer(fields["sequence"]),
            _text(fields["type"]),
            fields["payload"],
            _integer(fields["timestamp"]),
            _text(fields["schemaVersion"]),
            _object(fields.get("metadata") or {}),
            _text(fields["previousHash"]),
            stored.hash,
            stored.text,
        )
    except (KeyError, TypeError, MalformedJson) as error:
        raise CorruptLog(
            f"event {stored.sequence} is no envelope ({error!r}): the store was edited, or is not this kernel's"
        ) from error
    if envelope.sequence != stored.sequence:
        raise CorruptLog(f"the event stored at {stored.sequence} says it is {envelope.sequence}: it was moved")
    if envelope.schema_version != EVENT_SCHEMA_VERSION:
        _check_major(envelope)
    return envelope


def stamp_of(envelope: Envelope) -> str | None:
    """Return the emit digest the envelope is stamped with, or None (ADR 0102 D5: any event type)."""
    stamp = envelope.metadata.get("flowEmit")
    return stamp if isinstance(stamp, str) and _STAMP.fullmatch(stamp) else None


def _check_major(envelope: Envelope) -> None:
    """Refuse an event of a newer major version: folding it as a no-op could lose what it means (K-FOLD-7)."""
    major = envelope.schema_version.partition(".")[0]
    if not major.isdigit() or int(major) > int(EVENT_SCHEMA_VERSION.partition(".")[0]):
        raise StoreVersion(
            f"event {envelope.sequence} of {envelope.execution_id!r} has schema {envelope.schema_version}, "
            f"this kernel reads up to {EVENT_SCHEMA_VERSION}: upgrade the kernel before it touches this log"
        )


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _integer(value: Json) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is not an object")
    return value
