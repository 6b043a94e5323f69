"""Checking a whole execution: its log against its chain, its snapshot and the catalogue (K-LOG-3)."""

from __future__ import annotations

from collections.abc import Sequence

from kernel.cli.stores import Opened
from kernel.errors import ContentMissingError, CorruptLog, KernelError, SnapshotUnreadable, StoreVersion
from kernel.events import StoredEvent, parse
from kernel.lifecycle import Snapshot, decode_snapshot, load
from kernel.ports import CatalogueEntry
from kernel.verify import GENESIS, Fault, Point, verify

_LOOKS = 8  # a worker may append or compact between two reads


async def check(opened: Opened, entry: CatalogueEntry) -> Fault | None:
    """Return the first fault of an execution, or None.  Raises `StoreVersion` for events of a newer kernel.

    It is seen twice: what a worker changes between two reads looks like one, for a moment.
    """
    seen = None
    for _ in range(_LOOKS):
        fault = await _look(opened, entry)
        if fault is None or fault == seen:
            return fault
        now = await opened.stores.events.entry(entry.execution_id)
        if now is None:
            return None  # deleted meanwhile
        seen, entry = fault, now
    return seen


async def _look(opened: Opened, entry: CatalogueEntry) -> Fault | None:
    rows, snapshot, fault = await _read(opened, entry)
    if fault is None:
        fault = await _fault_in_contents(opened, entry.execution_id, rows)
    if fault is None:
        fault = _fault_in_chain(entry, rows, snapshot)
    return fault or await _fault_in_fold(opened, entry)


async def _read(opened: Opened, entry: CatalogueEntry) -> tuple[list[StoredEvent], Snapshot | None, Fault | None]:
    """Return the stored events, and the snapshot, which is read after them: it is no older than what was cut."""
    rows = await opened.rows(entry.execution_id)
    stored = await opened.stores.snapshots.load(entry.execution_id)
    if stored is None:
        return rows, None, None
    try:
        return rows, decode_snapshot(stored), None
    except SnapshotUnreadable as error:
        if rows and rows[0].sequence == 0:
            return rows, None, None  # the log has it all; the kernel passes such a snapshot over
        return rows, None, Fault(sequence=stored.sequence, what=f"the snapshot cannot be read: {error}")


async def _fault_in_contents(opened: Opened, execution_id: str, rows: list[StoredEvent]) -> Fault | None:
    """Put the events in `rows` as they were appended, and return the first fault if one cannot be."""
    for i, row in enumerate(rows):
        try:
            rows[i] = await opened.whole(execution_id, row)
        except (CorruptLog, ContentMissingError) as error:
            before = verify(execution_id, rows[:i], after=_start_of(rows, None)) if i else None
            return before or Fault(sequence=row.sequence, what=str(error))
    return None


def _start_of(rows: Sequence[StoredEvent], snapshot: Snapshot | None) -> Point:
    """Return what the first stored event follows, as well as that is known."""
    if not rows or rows[0].sequence == 0:
        return GENESIS
    before = rows[0].sequence - 1
    if snapshot is not None and snapshot.sequence == before:
        return Point(sequence=before, hash=snapshot.state["lastHash"])
    try:
        return Point(sequence=before, hash=parse(rows[0]).previous_hash)  # cut before an older snapshot
    except CorruptLog:
        return Point(sequence=before, hash="")


def _fault_in_chain(entry: CatalogueEntry, rows: Sequence[StoredEvent], snapshot: Snapshot | None) -> Fault | None:
    reached = -1 if snapshot is None else snapshot.sequence
    first = rows[0].sequence if rows else entry.head + 1
    if first > reached + 1:
        return Fault(
            sequence=reached + 1, what=f"events {reached + 1} to {first - 1} are gone, and no snapshot stands for them"
        )
    fault = verify(entry.execution_id, rows, after=_start_of(rows, snapshot))
    if fault is not None:
        return fault
    last = rows[-1].sequence if rows else reached
    if max(last, reached) < entry.head or (rows and last < reached):
        return Fault(sequence=last + 1, what=f"events were dropped: the log's head is at {max(entry.head, reached)}")
    for row in rows:
        if snapshot is not None and row.sequence == reached and row.hash != snapshot.state["lastHash"]:
            return Fault(sequence=reached, what="the snapshot was made of another event than this one")
    return None


async def _fault_in_fold(opened: Opened, entry: CatalogueEntry) -> Fault | None:
    """Return a fault if the kernel itself could not go on, although the chain is whole."""
    try:
        state = (await load(opened.stores, entry.execution_id)).fold.state
    except StoreVersion:
        raise
    except (KernelError, AssertionError, LookupError, TypeError, ValueError) as error:
        return Fault(sequence=entry.head, what=f"the state cannot be folded: {error}")
    if (entry.head, entry.status) == (state["lastSequence"], state["status"]):
        return None
    return Fault(
        sequence=entry.head,
        what=f"the catalogue says {entry.status} at {entry.head}, the log says {state['status']} at "
        f"{state['lastSequence']}",
    )
