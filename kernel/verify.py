"""Checking a stored log against its hash chain (K-LOG-3)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kernel.errors import CorruptLog
from kernel.events import GENESIS_HASH, StoredEvent, hash_of, parse


@attrs.frozen(kw_only=True)
class Point:
    """A position and the hash there: what a chain begins after, or must reach."""

    sequence: int
    hash: str


GENESIS = Point(sequence=-1, hash=GENESIS_HASH)


@attrs.frozen(kw_only=True)
class Fault:
    """The first envelope that is not what was appended; `sequence` is where it stands, or should."""

    sequence: int
    what: str


def verify(
    execution_id: str, log: Sequence[StoredEvent], *, after: Point = GENESIS, head: Point | None = None
) -> Fault | None:
    """Return the first fault of a log, or None.  `after` is the anchor: of a truncated log, its snapshot's position.

    What is edited, dropped, inserted or moved breaks the chain.  A tail that was dropped whole does not: it shows only
    against a `head` that was kept elsewhere.
    """
    last = after
    for stored in log:
        fault = _fault(execution_id, stored, last)
        if fault is not None:
            return Fault(sequence=last.sequence + 1, what=fault)
        last = Point(sequence=stored.sequence, hash=stored.hash)
    if head is None or head == last:
        return None
    if head.sequence > last.sequence:
        return Fault(sequence=last.sequence + 1, what=f"events were dropped: the log's head is at {head.sequence}")
    if head.sequence < last.sequence:
        return Fault(sequence=head.sequence + 1, what=f"the log goes on after its head at {head.sequence}")
    return Fault(sequence=head.sequence, what="the log ends with another event than its head says")


def _fault(execution_id: str, stored: StoredEvent, last: Point) -> str | None:
    if stored.sequence != last.sequence + 1:
        return f"event {stored.sequence} stands here: events were dropped, inserted or moved"
    if hash_of(stored.text) != stored.hash:
        return "its text does not have its hash: it was edited"
    try:
        envelope = parse(stored)
    except CorruptLog as error:
        return str(error)
    if envelope.execution_id != execution_id:
        return f"it belongs to execution {envelope.execution_id!r}: it was moved"
    if envelope.previous_hash != last.hash:
        return f"it does not follow event {last.sequence}: one of the two was edited, inserted or moved"
    return None
