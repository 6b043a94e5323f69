"""A store in one SQLite file: the embedded default (K-LOG-5).

Every write is one `BEGIN IMMEDIATE` transaction with `synchronous=FULL` in WAL mode: when it returns, it is on the
disk; when the process dies at any statement, it has happened whole or not at all.  Several processes may use one file.

Writes run in a worker thread, one at a time and in order of arrival; reads run inline on a connection of their own.
Measured with SQLite 3.40 on a virtual disk, an event of 800 bytes: an append takes 0.3 ms inline and 0.5 ms in a
thread, without the disk's part 0.04 and 0.25 ms; a read takes 0.03 ms.  The thread is the default all the same,
because what it takes off the event loop has no bound: a disk may take a second to sync under load, and another process
may hold the lock for as long as `busy_ms`; meanwhile no deadline, timer or effect of this process would move.
`inline=True` is for a process that does one thing at a time, and for a mock clock, which cannot see threads.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import attrs
import trio

from kernel.adapters.bells import Bell, Bells
from kernel.adapters.memory import admit, check_fence, truncated
from kernel.adapters.sql_transactions import SqlTransaction, Work
from kernel.adapters.sqlite_errors import commit, refusals
from kernel.adapters.sqlite_file import absolute, connect, open_connections
from kernel.adapters.sqlite_session import SqliteSession, constraint_broken
from kernel.errors import CorruptLog, StoreUnavailable, TransactionMisuse, UnknownExecution
from kernel.events import Envelope, StoredEvent
from kernel.ports import CatalogueEntry, Delivery, Lease, Status, StoredSnapshot, Stores, Wakeups

BUSY_MS = 5_000
"""How long a write waits for another process before it says `StoreUnavailable`."""

POLL_SECONDS = 0.5
"""How often a subscriber looks for what other processes have appended; of this one's appends it is told at once."""

_CATALOGUE = "SELECT execution_id, flow_id, status, head, due_ms, fence FROM executions "

T = TypeVar("T")

_inside: contextvars.ContextVar[_Inside | None] = contextvars.ContextVar("inside", default=None)
"""The transaction of a step that the current task is in, and those it has started."""


@contextlib.asynccontextmanager
async def open_sqlite(
    path: str | os.PathLike[str],
    *,
    inline: bool = False,
    busy_ms: int = BUSY_MS,
    poll_seconds: float = POLL_SECONDS,
    read_only: bool = False,
) -> AsyncIterator[SqliteStore]:
    """Open the store at `path` for the length of the block, making it if there is no file or an empty one.

    Raises as `SqliteStore.open`.
    """
    store = await SqliteStore.open(path, inline=inline, busy_ms=busy_ms, poll_seconds=poll_seconds, read_only=read_only)
    try:
        yield store
    finally:
        await store.aclose()


@attrs.define(slots=True, eq=False, kw_only=True)
class SqliteStore:
    """Events, snapshots and mailbox in one file.  Mutable: it can be closed.  Made by `open`."""

    path: str
    _writer: sqlite3.Connection  # used by one thread at a time: whoever holds `_turn`, or the loop when inline
    _reader: sqlite3.Connection  # used by the loop's thread only
    _inline: bool
    _busy_ms: int
    poll_seconds: float  # of subscribers
    read_only: bool
    _bells: Bells = attrs.field(factory=Bells, init=False)
    _turn: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _closed: bool = attrs.field(default=False, init=False)

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        inline: bool = False,
        busy_ms: int = BUSY_MS,
        poll_seconds: float = POLL_SECONDS,
        read_only: bool = False,
    ) -> SqliteStore:
        """Return the store at `path`, making it if there is no file or an empty one, and upgrading an older one.

        With `read_only` nothing is made, upgraded or written: writes say `StoreUnavailable`, a place without a store
        `NotAStore`.  Raises `NotAStore` for a file that is something else, which is left as it was, `StoreVersion` for
        one of a newer kernel, `StoreUnavailable` if the place cannot be used or is locked for longer than `busy_ms`.
        """
        place = absolute(path)
        await trio.lowlevel.checkpoint()
        if inline:
            writer, reader = open_connections(place, busy_ms, read_only)
        else:
            writer, reader = await trio.to_thread.run_sync(open_connections, place, busy_ms, read_only)
        return cls(
            path=place,
            writer=writer,
            reader=reader,
            inline=inline,
            busy_ms=busy_ms,
            poll_seconds=poll_seconds,
            read_only=read_only,
        )

    async def aclose(self) -> None:
        """Close the file after the write that is under way; what comes later says `StoreUnavailable`."""
        with trio.CancelScope(shield=True):
            async with self._turn:
                self._closed = True
                self._reader.close()
                self._writer.close()

    @property
    def stores(self) -> Stores:
        """This object in each of its roles."""
        return Stores(events=self, snapshots=self, mailbox=self, leases=self, disposal=self, transactions=self)

    # ---- events ------------------------------------------------------------------------------------------------------

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
        """Make the batch and the catalogue row durable in one transaction, with the checks inside it (K-LOG-2).

        Raises `Fenced`, `ConcurrencyConflict`, `AppendUnknown`, `StoreUnavailable`, as the port says.
        """
        work = self._appending(
            execution_id, expected, batch, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms
        )
        try:
            await self._write(work)
        finally:
            self._bells.ring(execution_id)  # whatever was raised: an append whose answer is lost may have landed

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
        """Return what an append does in its transaction; in `main`, for an effect may have temporary tables."""
        rows = [(execution_id, event.sequence, event.text, event.hash) for event in batch]
        assert rows, f"an append to {execution_id!r} without events"
        assert all(row[1] == expected + i for i, row in enumerate(rows)), "a batch with a gap"
        head = rows[-1][1]

        def work(transaction: sqlite3.Connection) -> None:
            stored, newest, owner = _position(transaction, execution_id)
            admit(execution_id, expected, fence, position=stored + 1, newest=newest, owner=owner)
            transaction.executemany("INSERT INTO main.events VALUES (?, ?, ?, ?)", rows)
            transaction.execute(
                "INSERT INTO main.executions (execution_id, flow_id, status, head, due_ms) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET flow_id = excluded.flow_id, status = excluded.status, "
                "head = excluded.head, due_ms = excluded.due_ms",
                (execution_id, flow_id, status, head, due_ms),
            )

        return work

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Return the log from `sequence` on.  Raises `LogTruncated` below the cut, `CorruptLog` for a gap (K-LOG-1)."""
        # The head beside each row, and one row without an event if there is none: one statement sees one state.
        rows = await self._read(
            "SELECT e.head, v.sequence, v.text, v.hash FROM executions e LEFT JOIN events v "
            "ON v.execution_id = e.execution_id AND v.sequence >= ? WHERE e.execution_id = ? ORDER BY v.sequence",
            (sequence, execution_id),
        )
        if not rows or rows[0][0] < sequence:
            return ()
        head, first = rows[0][0], rows[0][1]
        if first is None:
            raise truncated(execution_id, sequence, head + 1)
        if first > sequence:
            raise truncated(execution_id, sequence, first)
        if len(rows) != head - first + 1:
            raise CorruptLog(
                f"{execution_id!r} in {self.path} has {len(rows)} events from {first} on, its head is {head}: "
                "some were deleted or added by another program; restore the file from a backup"
            )
        return [StoredEvent(*row[1:]) for row in rows]

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """Drop the events up to and including `through`; the head stays in the catalogue."""
        await self._write(
            lambda transaction: transaction.execute(
                "DELETE FROM events WHERE execution_id = ? AND sequence <= ?", (execution_id, through)
            )
        )

    # ---- catalogue ---------------------------------------------------------------------------------------------------

    async def claim(self, execution_id: str, owner: str) -> int:
        """Make `owner` the owner and return the next fence (K-LOG-2).  Raises `UnknownExecution`."""

        def work(transaction: sqlite3.Connection) -> list[Any]:
            return transaction.execute(
                "UPDATE executions SET fence = fence + 1, owner = ? WHERE execution_id = ? RETURNING fence",
                (owner, execution_id),
            ).fetchall()

        rows = await self._write(work)
        if not rows:
            raise UnknownExecution(f"{owner!r} claims {execution_id!r}, which is not in {self.path}; start it first")
        fence: int = rows[0][0]
        return fence

    async def delete(self, execution_id: str) -> None:
        """Forget all of an execution in one transaction (K-USER-1)."""

        def work(transaction: sqlite3.Connection) -> None:
            for table in ("events", "snapshots", "deliveries", "leases", "executions"):
                transaction.execute(f"DELETE FROM {table} WHERE execution_id = ?", (execution_id,))

        await self._write(work)

    async def put_content(self, hash: str, text: str) -> None:
        """Keep a large payload (K-LOG-6); one of a step's transaction is durable with it."""

        def work(transaction: sqlite3.Connection) -> None:
            transaction.execute("INSERT INTO main.contents VALUES (?, ?) ON CONFLICT DO NOTHING", (hash, text))

        inside = self._transaction()
        if inside is None:
            await self._write(work)
        else:
            await inside.transaction.between(lambda: inside.session.join(work))

    async def content(self, hash: str) -> str | None:
        """Return a large payload, or None."""
        rows = await self._read("SELECT text FROM contents WHERE hash = ?", (hash,))
        return rows[0][0] if rows else None

    async def lease(self, execution_id: str) -> Lease | None:
        """Return the newest lease, or None."""
        rows = await self._read("SELECT owner, until_ms, fence FROM leases WHERE execution_id = ?", (execution_id,))
        return Lease(owner=rows[0][0], until_ms=rows[0][1], fence=rows[0][2]) if rows else None

    async def acquire(self, execution_id: str, owner: str, *, until_ms: int, after: int) -> int:
        """Claim with a lease if the fence is `after` (K-RUN-3).  Raises `Fenced`, `UnknownExecution`."""

        def work(transaction: sqlite3.Connection) -> int:
            head, newest, _ = _position(transaction, execution_id)
            if head < 0:
                raise UnknownExecution(f"{owner!r} claims {execution_id!r}, which is not in {self.path}")
            check_fence(execution_id, after, newest)
            transaction.execute(
                "UPDATE executions SET fence = ?, owner = ? WHERE execution_id = ?", (after + 1, owner, execution_id)
            )
            transaction.execute(
                "INSERT INTO leases VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE "
                "SET owner = excluded.owner, until_ms = excluded.until_ms, fence = excluded.fence",
                (execution_id, owner, until_ms, after + 1),
            )
            return after + 1

        return await self._write(work)

    async def renew(self, execution_id: str, *, fence: int, until_ms: int) -> None:
        """Move the end of the lease with this fence.  Raises `Fenced`."""

        def work(transaction: sqlite3.Connection) -> None:
            check_fence(execution_id, fence, _position(transaction, execution_id)[1])
            transaction.execute("UPDATE leases SET until_ms = ? WHERE execution_id = ?", (until_ms, execution_id))

        await self._write(work)

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        """Return the catalogue entry, or None."""
        rows = await self._read(_CATALOGUE + "WHERE execution_id = ?", (execution_id,))
        return _entry(rows[0]) if rows else None

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """Return the entries with one of `statuses` (all without), in order of execution id."""
        where = f"WHERE status IN ({', '.join('?' * len(statuses))}) " if statuses else ""
        rows = await self._read(f"{_CATALOGUE}{where}ORDER BY execution_id", statuses)
        return [_entry(row) for row in rows]

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Make the snapshot durable, unless a newer one is stored (K-RUN-6)."""
        await self._write(
            lambda transaction: transaction.execute(
                "INSERT INTO snapshots VALUES (?, ?, ?) ON CONFLICT DO UPDATE "
                "SET sequence = excluded.sequence, text = excluded.text WHERE excluded.sequence >= sequence",
                (execution_id, snapshot.sequence, snapshot.text),
            )
        )

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Return the newest snapshot, or None."""
        rows = await self._read("SELECT sequence, text FROM snapshots WHERE execution_id = ?", (execution_id,))
        return StoredSnapshot(sequence=rows[0][0], text=rows[0][1]) if rows else None

    # ---- mailbox -----------------------------------------------------------------------------------------------------

    async def put(self, execution_id: str, delivery: Delivery) -> bool:
        """Make the delivery durable; False, and no change, if one of that id is pending already (K-RUN-2)."""

        def work(transaction: sqlite3.Connection) -> bool:
            inserted = transaction.execute(
                'INSERT INTO deliveries (execution_id, delivery_id, "on", correlation_key, payload_text) '
                "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (execution_id, *attrs.astuple(delivery)),
            )
            return inserted.rowcount == 1

        return await self._write(work)

    async def pending(self, execution_id: str) -> Sequence[Delivery]:
        """Return what is pending, in order of arrival."""
        rows = await self._read(
            'SELECT delivery_id, "on", correlation_key, payload_text FROM deliveries '
            "WHERE execution_id = ? ORDER BY arrival",
            (execution_id,),
        )
        return [Delivery(delivery_id=d, on=on, correlation_key=key, payload_text=text) for d, on, key, text in rows]

    async def remove(self, execution_id: str, delivery_ids: Sequence[str]) -> None:
        """Forget these deliveries; unknown ids are ignored."""
        rows = [(execution_id, delivery_id) for delivery_id in delivery_ids]
        if rows:
            await self._write(
                lambda transaction: transaction.executemany(
                    "DELETE FROM deliveries WHERE execution_id = ? AND delivery_id = ?", rows
                )
            )

    async def executions(self) -> Sequence[str]:
        """Return the ids of executions that have something pending, in order."""
        rows = await self._read("SELECT DISTINCT execution_id FROM deliveries ORDER BY execution_id", ())
        return [execution_id for (execution_id,) in rows]

    # ---- transactions of steps ---------------------------------------------------------------------------------------

    async def begin(self) -> SqlTransaction[sqlite3.Connection]:
        """Open a transaction on a connection of its own (K-USER-2); this store writes nothing else until it ends.

        Its foreign keys are enforced.  Raises `StoreUnavailable`.
        """
        self._check_inside()
        turn = object()
        await self._turn.acquire_on_behalf_of(turn)
        try:
            session = (
                self._open_session()
                if self._inline
                else await trio.to_thread.run_sync(self._open_session, limiter=trio.CapacityLimiter(1))
            )
        except BaseException:
            self._turn.release_on_behalf_of(turn)
            raise
        transaction = SqlTransaction(
            session,
            self._appending,
            inline=self._inline,
            on_append=self._bells.ring,
            on_end=lambda: self._turn.release_on_behalf_of(turn),
        )
        _inside.set(_Inside(store=self, transaction=transaction, session=session))
        return transaction

    def _open_session(self) -> SqliteSession:
        self._check_open()
        with refusals(self.path, self._busy_ms), contextlib.ExitStack() as on_error:
            connection = on_error.enter_context(contextlib.closing(connect(self.path, self._busy_ms)))
            connection.execute("PRAGMA foreign_keys = ON")
            session = SqliteSession(connection=connection, finish=self._finish)
            session.begin()
            on_error.pop_all()
        return session

    def _finish(self, connection: sqlite3.Connection, work: Work[sqlite3.Connection]) -> None:
        with refusals(self.path, self._busy_ms):
            work(connection)
            try:
                commit(connection, self.path)
            except sqlite3.IntegrityError as error:
                raise constraint_broken(error) from error

    def _transaction(self) -> _Inside | None:
        """Return the transaction of this store that the caller is in, if it has not ended."""
        inside = _inside.get()
        return None if inside is None or inside.store is not self or inside.transaction.ended else inside

    def _check_inside(self) -> None:
        """Raise for a write from inside a transaction, which would wait for itself."""
        if self._transaction() is not None:
            raise TransactionMisuse(
                f"an effect wrote to {self.path} past its own transaction, which has the file's only writer: start and "
                "deliver in the flow or in another step, and run SQL with `effect.sql`"
            )

    # ---- notifications -----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id: str) -> AsyncIterator[Wakeups]:
        """Wake the holder at every append of this process, and within `poll_seconds` of one of another (K-LOG-5)."""
        async with self._bells.subscribe(execution_id) as bell:
            yield _Polled(self, execution_id, bell, await self.head(execution_id))

    async def head(self, execution_id: str) -> int | None:
        """Return the sequence of the execution's last event, or None if there is no such execution."""
        entry = await self.entry(execution_id)
        return None if entry is None else entry.head

    # ---- one statement, one transaction ------------------------------------------------------------------------------

    async def _read(self, sql: str, values: Sequence[str | int]) -> list[Any]:
        """Return all rows of one statement, so one committed state; nothing stays open behind it."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        with refusals(self.path, self._busy_ms):
            return self._reader.execute(sql, values).fetchall()

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in one durable transaction.  A cancellation comes before it or after it, never in between."""
        self._check_inside()
        if self._inline:
            async with self._turn:
                return self._transact(work)
        return await trio.to_thread.run_sync(self._transact, work, limiter=self._turn)

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` and commit.  Whatever is raised, no transaction stays open."""
        self._check_open()
        if self.read_only:
            raise StoreUnavailable(f"the store {self.path} was opened to read only; open it to write")
        with refusals(self.path, self._busy_ms):
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                result = work(self._writer)
                commit(self._writer, self.path)
                return result
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")  # ends the transaction even where it reports an error

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store {self.path} is closed; open it again")


@attrs.frozen(kw_only=True)
class _Inside:
    store: SqliteStore
    transaction: SqlTransaction[sqlite3.Connection]
    session: SqliteSession


class _Polled:
    """A subscriber's bell, with an eye on the head for what rings in another process only.

    Mutable: `head` is the last one that was looked at.
    """

    def __init__(self, store: SqliteStore, execution_id: str, bell: Bell, head: int | None) -> None:
        self._store = store
        self._execution_id = execution_id
        self._bell = bell
        self._head = head

    async def wait(self) -> None:
        """Return when the bell has been rung, or the head is another than it was when last looked at."""
        while True:
            with trio.move_on_after(self._store.poll_seconds):
                await self._bell.wait()
                return
            before, self._head = self._head, await self._store.head(self._execution_id)
            if self._head != before:
                return


def _position(transaction: sqlite3.Connection, execution_id: str) -> tuple[int, int, str | None]:
    """Return head, fence and owner as the transaction sees them; of a new execution: before all."""
    rows = transaction.execute(
        "SELECT head, fence, owner FROM main.executions WHERE execution_id = ?", (execution_id,)
    ).fetchall()
    return rows[0] if rows else (-1, 0, None)


def _entry(row: Any) -> CatalogueEntry:
    """Return the catalogue entry in a row of `_CATALOGUE`."""
    execution_id, flow_id, status, head, due_ms, fence = row
    return CatalogueEntry(
        execution_id=execution_id, flow_id=flow_id, status=status, head=head, due_ms=due_ms, fence=fence
    )
