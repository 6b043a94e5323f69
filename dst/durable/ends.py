"""How executions stand when all is quiet, read from what really happened and not from anybody's fold of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs

from dst.durable.stores import SimStore, origin_of
from kernel.events import EXECUTION_RESUMED, EXECUTION_SUSPENDED, GATE_DELIVERED, Envelope, StoredEvent
from kernel.fold import FoldPass
from kernel.journal import STATUS_AFTER
from kernel.jsonform import DEPTH_MAX_STORED, Json, encode
from kernel.lifecycle import decode_snapshot
from kernel.ports import StoredSnapshot
from kernel.projections import Projection
from kernel.state import FlowState
from kernel.verify import verify

Member = tuple[str, str | None]
"""What is delivered on, and the correlation key."""


@attrs.frozen(kw_only=True)
class End:
    """How a log ends."""

    status: str
    wanted: tuple[Member, ...]  # what the open gate still waits on
    due_ms: int | None
    passed: frozenset[str]  # ids of the deliveries that have gone into a gate

    @property
    def gate(self) -> str:
        """The open gate, "" if there is none."""
        return ", ".join(f"{on}/{key or ''}" for on, key in self.wanted)


def end_of(history: Sequence[Envelope]) -> End:
    """Return how a log ends."""
    status, due_ms = "absent", None
    wanted: list[Member] = []
    passed: set[str] = set()
    for envelope in history:
        payload = cast("dict[str, Any]", envelope.payload)
        if envelope.type in (EXECUTION_RESUMED, GATE_DELIVERED):
            passed.add(payload["deliveryId"])
        if envelope.type == GATE_DELIVERED:
            wanted = [member for member in wanted if member != (payload["on"], payload["correlationKey"])]
        elif envelope.type == EXECUTION_SUSPENDED:
            wanted = [(member["on"], member["correlationKey"]) for member in payload.get("members", [payload])]
            due_ms = payload["due"]
        elif envelope.type in STATUS_AFTER:
            wanted, due_ms = [], None
        status = STATUS_AFTER.get(envelope.type, status)
    return End(status=status, wanted=tuple(wanted), due_ms=due_ms, passed=frozenset(passed))


def chained(history: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return the part of a history that is contiguous: a broken store may hold more, which `log-sound` tells."""
    return [envelope for position, envelope in enumerate(history) if envelope.sequence == position]


def check_folds(
    db: SimStore, fold_type: type[FoldPass], projections: Sequence[Projection]
) -> list[tuple[str, int, str]]:
    """Fold every log once, up to each snapshot that was saved: (execution, position, "" or how they differ)."""
    checks: list[tuple[str, int, str]] = []
    for execution_id in sorted({execution_id for execution_id, _ in db.saved}):
        saved = sorted((s for e, s in db.saved if e == execution_id), key=lambda s: s.sequence)
        begun = db.begun.get(execution_id)
        fold, projected = fold_type(), {p.name: p.initial for p in projections}
        if begun is not None:  # what an older kernel has absorbed cannot be folded again (ADR 0128)
            absorbed = decode_snapshot(begun)
            fold, projected = fold_type(absorbed.state), absorbed.projected
        log = iter(chained(db.history[execution_id])[fold.state["lastSequence"] + 1 :])
        for stored in saved:
            while fold.state["lastSequence"] < stored.sequence and (envelope := next(log, None)) is not None:
                fold.apply(envelope)
                for projection in projections:
                    projected[projection.name] = projection.apply(projected[projection.name], envelope)
            checks.append((execution_id, stored.sequence, _difference(stored, fold.state, projected)))
    return checks


def _difference(stored: StoredSnapshot, state: FlowState, projected: dict[str, Json]) -> str:
    """Return how a snapshot differs from what was folded, "" if it does not."""
    folded = encode(state, depth_max=DEPTH_MAX_STORED)
    beside = encode(projected, depth_max=DEPTH_MAX_STORED)
    # The record is canonical text, projections first and state last; decoding it would cost more than all the rest.
    if stored.text.startswith(f'{{"projections":{beside},') and stored.text.endswith(f'"state":{folded}}}'):
        return ""
    snapshot = decode_snapshot(stored)
    if encode(snapshot.state, depth_max=DEPTH_MAX_STORED) != folded:
        return "the snapshot is not the fold of the log"
    same = encode(snapshot.projected, depth_max=DEPTH_MAX_STORED) == beside
    return "" if same else "the snapshot's projections are not those of the log"


def check_forks(db: SimStore, fold_type: type[FoldPass]) -> list[tuple[str, int, str]]:
    """Fold what each fork has copied, and the same events of its origin: (fork, position, "" or how they differ)."""
    checks: list[tuple[str, int, str]] = []
    for fork_id, history in sorted(db.history.items()):
        copies = [envelope for envelope in chained(history) if origin_of(envelope) is not None]
        origin = origin_of(history[0])
        if origin is None or not copies:
            continue
        originals = chained(db.history[origin[0]])[: len(copies)]
        same = _comparable(fold_type.of(copies)) == _comparable(fold_type.of(originals))
        checks.append((fork_id, copies[-1].sequence, "" if same else "the fork is not the fold of what it has copied"))
    return checks


def fault_of_fork(db: SimStore, fork_id: str, parent_id: str) -> str:
    """Return what is wrong with a fork's chain, or with where it says that its copies are from, "" if nothing is."""
    history, parent = db.history[fork_id], db.history[parent_id]
    fault = verify(fork_id, [StoredEvent(event.sequence, event.text, event.hash) for event in history])
    if fault is not None:
        return f"event {fault.sequence}: {fault.what}"
    for place, copy in enumerate(event for event in history if origin_of(event) is not None):
        original = parent[place]
        origin: Json = {"executionId": parent_id, "hash": original.hash, "sequence": place}
        if copy.metadata != {**original.metadata, "forkedFrom": origin} or _content(copy) != _content(original):
            return f"event {copy.sequence} is not event {place} of {parent_id} with where it is from"
    return ""


def _content(event: Envelope) -> tuple[object, ...]:
    return event.sequence, event.type, event.payload, event.timestamp_ms, event.schema_version


def _comparable(state: FlowState) -> str:
    """Return a state without what a fork has of its own: hashes, and where it comes from."""
    own = ("lastHash", "provenance")
    return encode({key: value for key, value in state.items() if key not in own}, depth_max=DEPTH_MAX_STORED)
