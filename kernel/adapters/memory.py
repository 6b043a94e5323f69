"""A store in memory: the reference for what a store means, and the floor that measurements compare with (K-LOG-5).

It keeps text only, as a real store does, so nothing a flow holds is shared with what was stored (K-LOG-4).  Its methods
never await: each one happens whole, and another task sees it before or after, never half done.

Only `begin` may wait: the SQL of transactional steps runs in one SQLite database in memory, of the users' tables alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from kernel.adapters.bells import Bells
from kernel.adapters.sql_transactions import SqlTransaction, Work
from kernel.adapters.sqlite_session import SqliteSession, constraint_broken
from kernel.errors import ConcurrencyConflict, Fenced, LogTruncated, UnknownExecution
from kernel.events import Envelope, StoredEvent
from kernel.ports import CatalogueEntry, Delivery, Lease, Status, StoredSnapshot, Stores, Wakeups


def admit(execution_id: str, expected: int, fence: int, *, position: int, newest: int, owner: str | None) -> None:
    """Return if an append may go ahead: the admission rule of every store (K-LOG-2).

    The fence is judged first: a stale owner must learn that it has lost the execution, not that it may try again.
    Raises `Fenced` if `newest`, the newest claim, is newer than `fence`; `ConcurrencyConflict` if the log is not at
    `expected`.
    """
    if fence < newest:
        raise Fenced(
            f"append to {execution_id!r} at {expected} has fence {fence}, the newest claim is {newest} by {owner!r}; "
            "end this run, its new owner goes on"
        )
    if position != expected:
        raise ConcurrencyConflict(
            f"append to {execution_id!r} expects position {expected}, the log is at {position}; "
            "end this run and start again from the tail"
        )


def check_fence(execution_id: str, expected: int, newest: int) -> None:
    """Return if `newest`, the newest claim, is the expected one.  Raises `Fenced` (K-RUN-3)."""
    if expected != newest:
        raise Fenced(
            f"the lease on {execution_id!r} is for fence {expected}, the newest claim is {newest}: it has another owner"
        )


def truncated(execution_id: str, sequence: int, first: int) -> LogTruncated:
    """Return the error for a read at `sequence` of a log that begins at `first` (K-LOG-1)."""
    return LogTruncated(
        f"events of {execution_id!r} below {first} were truncated, {sequence} was asked for; "
        "read the snapshot first and go on after it"
    )


@attrs.define(slots=True, eq=False)
class _Execution:
    """One log with its catalogue row.  Mutable, because an append must not copy the log it extends."""

    flow_id: str
    status: Status
    due_ms: int | None
    fence: int = 0  # epoch of the newest claim; 0 until the first
    owner: str | None = None  # who made the newest claim
    lease: Lease | None = None  # the newest
    first: int = 0  # sequence of events[0], or the next to come when all are truncated
    events: list[StoredEvent] = attrs.field(factory=list)  # contiguous from `first`

    @property
    def next(self) -> int:
        """The position the next append must state."""
        return self.first + len(self.events)


@attrs.define(slots=True, eq=False)
class MemoryStore:
    """Events, snapshots and mailbox in one object; everything is gone with it.  Mutable: it is the storage."""

    _executions: dict[str, _Execution] = attrs.field(factory=dict, init=False)
    _snapshots: dict[str, StoredSnapshot] = attrs.field(factory=dict, init=False)
    # By delivery id, in order of arrival; an execution with nothing pending has no key.
    _mail: dict[str, dict[str, Delivery]] = attrs.field(factory=dict, init=False)
    _contents: dict[str, str] = attrs.field(factory=dict, init=False)
    _bells: Bells = attrs.field(factory=Bells, init=False)
    _rows: sqlite3.Connection | None = attrs.field(default=None, init=False)  # what transactional steps have written
    _turn: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)  # over `_rows`

    @property
    def stores(self) -> Stores:
        """This object in each of its roles."""
        return Stores(events=self, snapshots=self, mailbox=self, leases=self, disposal=self, transactions=self)

    async def append(
        self,
        execution_id: str,
        expected: int,
        batch: Sequence[Envelope],
        *,
        fence: int,
        flow_id: str,
        status: Status,
        due_ms: int | None,
    ) -> None:
        """Keep the batch and the catalogue row, whole or not at all; the fence is checked first (K-LOG-2)."""
        self._admit(execution_id, expected, fence)
        self._keep(execution_id, expected, batch, flow_id=flow_id, status=status, due_ms=due_ms)

    def _admit(self, execution_id: str, expected: int, fence: int) -> None:
        execution = self._executions.get(execution_id)
        if execution is None:
            admit(execution_id, expected, fence, position=0, newest=0, owner=None)
        else:
            admit(execution_id, expected, fence, position=execution.next, newest=execution.fence, owner=execution.owner)

    def _keep(
        self,
        execution_id: str,
        expected: int,
        batch: Sequence[Envelope],
        *,
        flow_id: str,
        status: Status,
        due_ms: int | None,
    ) -> None:
        execution = self._executions.get(execution_id)
        stored = [StoredEvent(envelope.sequence, envelope.text, envelope.hash) for envelope in batch]
        assert stored, f"an append to {execution_id!r} without events"
        assert all(event.sequence == expected + i for i, event in enumerate(stored)), "a batch with a gap"
        if execution is None:
            execution = self._executions[execution_id] = _Execution(flow_id, status, due_ms)
        execution.events += stored
        execution.flow_id, execution.status, execution.due_ms = flow_id, status, due_ms
        self._bells.ring(execution_id)

    async def begin(self) -> SqlTransaction[sqlite3.Connection]:
        """Open a transaction (K-USER-2); there is one at a time, and its foreign keys are enforced."""
        if self._rows is None:
            self._rows = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._rows.execute("PRAGMA foreign_keys = ON")
        turn = object()
        await self._turn.acquire_on_behalf_of(turn)
        session = SqliteSession(connection=self._rows, finish=_finish, keep=True)
        session.begin()
        return SqlTransaction(
            session, self._appending, inline=True, on_end=lambda: self._turn.release_on_behalf_of(turn)
        )

    def _appending(
        self,
        execution_id: str,
        expected: int,
        batch: Sequence[Envelope],
        *,
        fence: int,
        flow_id: str,
        status: Status,
        due_ms: int | None,
    ) -> Work[sqlite3.Connection]:
        """Return what commits the rows and then appends, which cannot fail once it is admitted."""

        def work(rows: sqlite3.Connection) -> None:
            self._admit(execution_id, expected, fence)
            try:
                rows.execute("COMMIT")
            except sqlite3.IntegrityError as error:
                raise constraint_broken(error) from error
            self._keep(execution_id, expected, batch, flow_id=flow_id, status=status, due_ms=due_ms)

        return work

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Return a copy of the log from `sequence` on.  Raises `LogTruncated` below the cut (K-LOG-1)."""
        execution = self._executions.get(execution_id)
        if execution is None:
            return ()
        if sequence < execution.first:
            raise truncated(execution_id, sequence, execution.first)
        return execution.events[sequence - execution.first :]

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """Drop the events up to and including `through`; the position of the next append stays."""
        execution = self._executions.get(execution_id)
        if execution is not None and through >= execution.first:
            cut = min(through + 1, execution.next)
            del execution.events[: cut - execution.first]
            execution.first = cut

    async def claim(self, execution_id: str, owner: str) -> int:
        """Make `owner` the owner and return the next fence (K-LOG-2).  Raises `UnknownExecution`."""
        execution = self._executions.get(execution_id)
        if execution is None:
            raise UnknownExecution(f"{owner!r} claims {execution_id!r}, which is not in this store; start it first")
        execution.fence += 1
        execution.owner = owner
        return execution.fence

    async def lease(self, execution_id: str) -> Lease | None:
        """Return the newest lease, or None."""
        execution = self._executions.get(execution_id)
        return None if execution is None else execution.lease

    async def acquire(self, execution_id: str, owner: str, *, until_ms: int, after: int) -> int:
        """Claim with a lease if the fence is `after` (K-RUN-3).  Raises `Fenced`, `UnknownExecution`."""
        execution = self._executions.get(execution_id)
        if execution is not None:
            check_fence(execution_id, after, execution.fence)
        fence = await self.claim(execution_id, owner)
        assert execution is not None
        execution.lease = Lease(owner=owner, until_ms=until_ms, fence=fence)
        return fence

    async def renew(self, execution_id: str, *, fence: int, until_ms: int) -> None:
        """Move the end of the lease with this fence.  Raises `Fenced`."""
        execution = self._executions.get(execution_id)
        check_fence(execution_id, fence, 0 if execution is None else execution.fence)
        if execution is not None and execution.lease is not None:
            execution.lease = attrs.evolve(execution.lease, until_ms=until_ms)

    async def delete(self, execution_id: str) -> None:
        """Forget all of an execution (K-USER-1)."""
        for kept in (self._executions, self._snapshots, self._mail):
            kept.pop(execution_id, None)

    async def put_content(self, hash: str, text: str) -> None:
        """Keep a large payload (K-LOG-6)."""
        self._contents[hash] = text

    async def content(self, hash: str) -> str | None:
        """Return a large payload, or None."""
        return self._contents.get(hash)

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        """Return the catalogue entry, or None."""
        execution = self._executions.get(execution_id)
        return None if execution is None else _entry(execution_id, execution)

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """Return the entries with one of `statuses` (all without), in order of execution id."""
        return [_entry(key, one) for key, one in _in_order(self._executions) if not statuses or one.status in statuses]

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Keep the snapshot, unless a newer one is stored (K-RUN-6)."""
        stored = self._snapshots.get(execution_id)
        if stored is None or stored.sequence <= snapshot.sequence:
            self._snapshots[execution_id] = snapshot

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Return the newest snapshot, or None."""
        return self._snapshots.get(execution_id)

    async def put(self, execution_id: str, delivery: Delivery) -> bool:
        """Keep the delivery; False, and no change, if one of that id is pending already (K-RUN-2)."""
        box = self._mail.setdefault(execution_id, {})
        if delivery.delivery_id in box:
            return False
        box[delivery.delivery_id] = delivery
        return True

    async def pending(self, execution_id: str) -> Sequence[Delivery]:
        """Return what is pending, in order of arrival."""
        return list(self._mail.get(execution_id, {}).values())

    async def remove(self, execution_id: str, delivery_ids: Sequence[str]) -> None:
        """Forget these deliveries; unknown ids are ignored."""
        box = self._mail.get(execution_id)
        if box is None:
            return
        for delivery_id in delivery_ids:
            box.pop(delivery_id, None)
        if not box:
            del self._mail[execution_id]

    async def executions(self) -> Sequence[str]:
        """Return the ids of executions that have something pending, in order."""
        return sorted(self._mail)

    def subscribe(self, execution_id: str) -> AbstractAsyncContextManager[Wakeups]:
        """Wake the holder at every append (K-LOG-5)."""
        return self._bells.subscribe(execution_id)


def _finish(rows: sqlite3.Connection, work: Work[sqlite3.Connection]) -> None:
    work(rows)


def _entry(execution_id: str, execution: _Execution) -> CatalogueEntry:
    """Return the catalogue entry of `execution`."""
    return CatalogueEntry(
        execution_id=execution_id,
        flow_id=execution.flow_id,
        status=execution.status,
        head=execution.next - 1,
        due_ms=execution.due_ms,
        fence=execution.fence,
    )


def _in_order(executions: dict[str, _Execution]) -> Iterable[tuple[str, _Execution]]:
    """Return the executions in order of id."""
    return ((key, executions[key]) for key in sorted(executions))
