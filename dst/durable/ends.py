"""How executions stand when all is quiet, read from what really happened and not from anybody's fold of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs

from dst.durable.stores import SimStore
from kernel.events import EXECUTION_RESUMED, EXECUTION_SUSPENDED, Envelope
from kernel.fold import FoldPass
from kernel.journal import STATUS_AFTER
from kernel.jsonform import DEPTH_MAX_STORED, encode
from kernel.lifecycle import decode_snapshot
from kernel.ports import StoredSnapshot


@attrs.frozen(kw_only=True)
class End:
    """How a log ends, read from its events and not from anybody's fold of them."""

    status: str
    wanted: tuple[str, str | None] | None  # what the open gate waits on
    due_ms: int | None
    passed: frozenset[str]  # ids of the deliveries that have passed a gate

    @property
    def gate(self) -> str:
        """The open gate, "" if there is none."""
        return "" if self.wanted is None else f"{self.wanted[0]}/{self.wanted[1] or ''}"


def end_of(history: Sequence[Envelope]) -> End:
    """Return how a log ends."""
    status, wanted, due_ms, passed = "absent", None, None, set()
    for envelope in history:
        after = STATUS_AFTER.get(envelope.type)
        if after is None:
            continue
        status, payload = after, cast("dict[str, Any]", envelope.payload)
        if envelope.type == EXECUTION_SUSPENDED:
            wanted, due_ms = (payload["on"], payload["correlationKey"]), payload["due"]
        else:
            wanted, due_ms = None, None
        if envelope.type == EXECUTION_RESUMED:
            passed.add(payload["deliveryId"])
    return End(status=status, wanted=wanted, due_ms=due_ms, passed=frozenset(passed))


def _chained(history: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return the part of a history that is contiguous: a broken store may hold more, which `log-sound` tells."""
    return [envelope for position, envelope in enumerate(history) if envelope.sequence == position]


def _state_of(stored: StoredSnapshot) -> str:
    return encode(decode_snapshot(stored).state, depth_max=DEPTH_MAX_STORED)


def check_folds(db: SimStore, fold_type: type[FoldPass]) -> list[tuple[str, int, str]]:
    """Fold every log once, up to each snapshot that was saved: (execution, position, "" or how they differ)."""
    checks: list[tuple[str, int, str]] = []
    for execution_id in sorted({execution_id for execution_id, _ in db.saved}):
        saved = sorted((s for e, s in db.saved if e == execution_id), key=lambda s: s.sequence)
        log = iter(_chained(db.history[execution_id]))
        fold = fold_type()
        for stored in saved:
            while fold.state["lastSequence"] < stored.sequence and (envelope := next(log, None)) is not None:
                fold.apply(envelope)
            folded = encode(fold.state, depth_max=DEPTH_MAX_STORED)
            # The record is canonical text that ends with its state; decoding it would cost more than all the rest here.
            same = stored.text.endswith(f'"state":{folded}}}') or _state_of(stored) == folded
            checks.append((execution_id, stored.sequence, "" if same else "the snapshot is not the fold of the log"))
    return checks
