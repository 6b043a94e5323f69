"""A store in a PostgreSQL database, for several machines (K-LOG-5).

Events are kept as exact text, snapshots as `jsonb`, which reorders the keys of objects: that changes nothing (K-RUN-6).
Every write is one transaction in a worker thread; an append locks the execution's catalogue row first, so that rivals
wait for each other and the later one is refused.  When a write returns, it is on the server's disk; whether a standby
has it too is up to the server's `synchronous_standby_names`.

The store keeps settings in its connections: connect to the server, or through a pooler in session mode.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, TypeVar

import attrs
import trio

from kernel.adapters.jsonb import from_jsonb, to_jsonb
from kernel.adapters.memory import admit, truncated
from kernel.adapters.postgres_leases import acquire, locked, renew
from kernel.adapters.postgres_pool import Connection, Place, Pool
from kernel.adapters.postgres_schema import recognise
from kernel.adapters.postgres_session import PostgresSession
from kernel.adapters.postgres_wakeups import Listener, channel_of, payload_of
from kernel.adapters.sql_transactions import SqlTransaction, Work
from kernel.errors import CorruptLog, StoreUnavailable, UnknownExecution
from kernel.events import Envelope, StoredEvent
from kernel.ports import CatalogueEntry, Delivery, Lease, Status, StoredSnapshot, Stores, Wakeups

CONNECTIONS = 4
"""How many calls of one store are at work at once, and as many transactions of steps; more wait in order of arrival."""

TIMEOUT_MS = 5_000
"""How long a statement waits for a lock before `StoreUnavailable`, and half of how long it may take in all."""

_ROWS_MAX = 1_000  # a statement may have 65535 values

_MAKE = (
    "INSERT INTO executions (execution_id, flow_id, status, head) VALUES (%s, %s, %s, -1) "
    "ON CONFLICT (execution_id) DO NOTHING"
)
_INSERT = "INSERT INTO events (execution_id, sequence, text, hash) VALUES "
_ADVANCE = "UPDATE executions SET flow_id = %s, status = %s, head = %s, due_ms = %s WHERE execution_id = %s"
_WAKE = " RETURNING pg_notify(%s, %s)"
_CATALOGUE = "SELECT execution_id, flow_id, status, head, due_ms, fence FROM executions "

T = TypeVar("T")


@contextlib.asynccontextmanager
async def open_postgres(
    dsn: str,
    *,
    schema: str = "loom",
    connections: int = CONNECTIONS,
    timeout_ms: int = TIMEOUT_MS,
    notify: bool = True,
    read_only: bool = False,
) -> AsyncIterator[PostgresStore]:
    """Open the store in `schema` for the length of the block, making it if there is no such schema or an empty one.

    `dsn` is a connection string, for example `postgresql://user@host/database`.  Raises as `PostgresStore.open`.
    """
    store = await PostgresStore.open(
        dsn, schema=schema, connections=connections, timeout_ms=timeout_ms, notify=notify, read_only=read_only
    )
    try:
        yield store
    finally:
        await store.aclose()


@attrs.define(slots=True, eq=False, kw_only=True)
class PostgresStore:
    """Everything a runtime stores, in one schema.  Mutable: it can be closed.  Made by `open`."""

    place: Place
    _pool: Pool
    _notify: bool
    _listener: Listener
    _turns: trio.CapacityLimiter  # one turn is one connection and one thread
    _steps: trio.CapacityLimiter  # the same for transactions of steps, behind which no append has to wait

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        schema: str = "loom",
        connections: int = CONNECTIONS,
        timeout_ms: int = TIMEOUT_MS,
        notify: bool = True,
        read_only: bool = False,
    ) -> PostgresStore:
        """Return the store in `schema`, making it if there is no such schema or an empty one, and upgrading an old one.

        With `read_only` nothing is made, upgraded or written: writes say `StoreUnavailable`, a place without a store
        `NotAStore`.  Without `notify` no subscriber hears of this store's appends: for where there is none, because the
        server lets transactions that notify commit one at a time only.  Raises `NotAStore` for a schema with other
        things in it, which is left as it was, `StoreVersion` for a store of a newer kernel, `StoreUnavailable` if the
        database cannot be reached or used.
        """
        place = Place.of(dsn, schema, timeout_ms, read_only=read_only)
        first = await trio.to_thread.run_sync(recognise, place)
        pool = Pool(place=place)
        pool.adopt(first)
        pool.watch()
        turns, steps = trio.CapacityLimiter(connections), trio.CapacityLimiter(connections)
        return cls(place=place, pool=pool, notify=notify, listener=Listener(place=place), turns=turns, steps=steps)

    async def aclose(self) -> None:
        """Close the connections after what is under way; what comes later says `StoreUnavailable`."""
        if self._pool.closed:
            return
        self._listener.close()
        with trio.CancelScope(shield=True):
            limiters = (self._turns, self._steps)
            turns = [(limiter, object()) for limiter in limiters for _ in range(int(limiter.total_tokens))]
            for limiter, turn in turns:
                await limiter.acquire_on_behalf_of(turn)
            self._pool.close()
            for limiter, turn in turns:
                limiter.release_on_behalf_of(turn)

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
        await self._write(work, conflicts=True)

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
    ) -> Work[Connection]:
        """Return what an append does in its transaction."""
        _check_texts(execution_id, flow_id)
        rows = [(execution_id, event.sequence, event.text, event.hash) for event in batch]
        assert rows, f"an append to {execution_id!r} without events"
        assert all(row[1] == expected + i for i, row in enumerate(rows)), "a batch with a gap"
        advance: list[object] = [flow_id, status, rows[-1][1], due_ms, execution_id]
        if self._notify:
            advance += [channel_of(self.place.schema), payload_of(execution_id)]

        def work(transaction: Connection) -> None:
            stored, newest, owner = _locked(transaction, execution_id, flow_id, status)
            admit(execution_id, expected, fence, position=stored + 1, newest=newest, owner=owner)
            last = (len(rows) - 1) // _ROWS_MAX * _ROWS_MAX
            for start in range(0, last, _ROWS_MAX):
                transaction.execute(*_insert(rows[start : start + _ROWS_MAX]))
            insert, values = _insert(rows[last:])  # together with the catalogue: for nearly every append that is all
            sql = f"WITH landed AS ({insert}) {_ADVANCE}{_WAKE if self._notify else ''}"
            transaction.execute(sql, [*values, *advance])

        return work

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Return the log from `sequence` on.  Raises `LogTruncated` below the cut, `CorruptLog` for a gap (K-LOG-1)."""
        # The head beside each row, and one row without an event if there is none: one statement sees one state.
        rows = await self._read(
            "SELECT e.head, v.sequence, v.text, v.hash FROM executions e LEFT JOIN events v "
            "ON v.execution_id = e.execution_id AND v.sequence >= %s WHERE e.execution_id = %s ORDER BY v.sequence",
            execution_id,
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
                f"{execution_id!r} in {self.place} has {len(rows)} events from {first} on, its head is {head}: "
                "some were deleted or added by another program; restore the database from a backup"
            )
        return [StoredEvent(*row[1:]) for row in rows]

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """Drop the events up to and including `through`; the head stays in the catalogue."""
        _check_texts(execution_id)
        await self._write(
            lambda transaction: transaction.execute(
                "DELETE FROM events WHERE execution_id = %s AND sequence <= %s", (execution_id, through)
            )
        )

    # ---- catalogue ---------------------------------------------------------------------------------------------------

    async def claim(self, execution_id: str, owner: str) -> int:
        """Make `owner` the owner and return the next fence (K-LOG-2).  Raises `UnknownExecution`."""
        _check_texts(execution_id, owner)

        def work(transaction: Connection) -> list[tuple[Any, ...]]:
            return transaction.execute(
                "UPDATE executions SET fence = fence + 1, owner = %s WHERE execution_id = %s RETURNING fence",
                (owner, execution_id),
            ).fetchall()

        rows = await self._write(work)
        if not rows:
            raise UnknownExecution(f"{owner!r} claims {execution_id!r}, which is not in {self.place}; start it first")
        fence: int = rows[0][0]
        return fence

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        """Return the catalogue entry, or None."""
        rows = await self._read(_CATALOGUE + "WHERE execution_id = %s", execution_id, (execution_id,))
        return _entry(rows[0]) if rows else None

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """Return the entries with one of `statuses` (all without), in order of execution id."""
        where = "WHERE status = ANY(%s) " if statuses else ""
        values = [[*statuses]] if statuses else []
        rows = await self._read(f"{_CATALOGUE}{where}ORDER BY execution_id", "", values)
        return [_entry(row) for row in rows]

    async def delete(self, execution_id: str) -> None:
        """Forget all of an execution in one transaction (K-USER-1), the catalogue row first, which appends lock."""
        _check_texts(execution_id)

        def work(transaction: Connection) -> None:
            for table in ("executions", "events", "snapshots", "deliveries", "leases"):
                transaction.execute(f"DELETE FROM {table} WHERE execution_id = %s", (execution_id,))

        await self._write(work)

    # ---- leases ------------------------------------------------------------------------------------------------------

    async def lease(self, execution_id: str) -> Lease | None:
        """Return the newest lease, or None."""
        rows = await self._read(
            "SELECT owner, until_ms, fence FROM leases WHERE execution_id = %s", execution_id, (execution_id,)
        )
        return Lease(owner=rows[0][0], until_ms=rows[0][1], fence=rows[0][2]) if rows else None

    async def acquire(self, execution_id: str, owner: str, *, until_ms: int, after: int) -> int:
        """Claim with a lease if the fence is `after` (K-RUN-3).  Raises `Fenced`, `UnknownExecution`."""
        _check_texts(execution_id, owner)
        return await self._write(partial(acquire, execution_id, owner, until_ms, after, self.place))

    async def renew(self, execution_id: str, *, fence: int, until_ms: int) -> None:
        """Move the end of the lease with this fence.  Raises `Fenced`."""
        _check_texts(execution_id)
        await self._write(partial(renew, execution_id, fence, until_ms))

    # ---- content -----------------------------------------------------------------------------------------------------

    async def put_content(self, hash: str, text: str) -> None:
        """Keep a large payload (K-LOG-6)."""
        _check_texts(hash)
        await self._write(
            lambda transaction: transaction.execute(
                "INSERT INTO contents VALUES (%s, %s) ON CONFLICT (hash) DO NOTHING", (hash, text)
            )
        )

    async def content(self, hash: str) -> str | None:
        """Return a large payload, or None."""
        rows = await self._read("SELECT text FROM contents WHERE hash = %s", hash, (hash,))
        return rows[0][0] if rows else None

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Make the snapshot durable, unless a newer one is stored (K-RUN-6)."""
        _check_texts(execution_id)
        await self._write(
            lambda transaction: transaction.execute(
                "INSERT INTO snapshots VALUES (%s, %s, %s::jsonb) ON CONFLICT (execution_id) DO UPDATE "
                "SET sequence = excluded.sequence, snapshot = excluded.snapshot "
                "WHERE excluded.sequence >= snapshots.sequence",
                (execution_id, snapshot.sequence, to_jsonb(snapshot.text)),
            )
        )

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Return the newest snapshot, or None; the keys of its objects are in an order of the server's."""
        rows = await self._read(
            "SELECT sequence, snapshot::text FROM snapshots WHERE execution_id = %s", execution_id, (execution_id,)
        )
        return StoredSnapshot(sequence=rows[0][0], text=from_jsonb(rows[0][1])) if rows else None

    # ---- mailbox -----------------------------------------------------------------------------------------------------

    async def put(self, execution_id: str, delivery: Delivery) -> bool:
        """Make the delivery durable; False, and no change, if one of that id is pending already (K-RUN-2)."""
        _check_texts(execution_id, delivery.delivery_id, delivery.on, delivery.correlation_key or "")

        def work(transaction: Connection) -> bool:
            inserted = transaction.execute(
                'INSERT INTO deliveries (execution_id, delivery_id, "on", correlation_key, payload_text) '
                "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (execution_id, delivery_id) DO NOTHING",
                (execution_id, *attrs.astuple(delivery)),
            )
            return inserted.rowcount == 1

        return await self._write(work)

    async def pending(self, execution_id: str) -> Sequence[Delivery]:
        """Return what is pending, in order of arrival."""
        rows = await self._read(
            'SELECT delivery_id, "on", correlation_key, payload_text FROM deliveries '
            "WHERE execution_id = %s ORDER BY arrival",
            execution_id,
            (execution_id,),
        )
        return [Delivery(delivery_id=d, on=on, correlation_key=key, payload_text=text) for d, on, key, text in rows]

    async def remove(self, execution_id: str, delivery_ids: Sequence[str]) -> None:
        """Forget these deliveries; unknown ids are ignored."""
        _check_texts(execution_id, *delivery_ids)
        if delivery_ids:
            await self._write(
                lambda transaction: transaction.execute(
                    "DELETE FROM deliveries WHERE execution_id = %s AND delivery_id = ANY(%s)",
                    (execution_id, [*delivery_ids]),
                )
            )

    async def executions(self) -> Sequence[str]:
        """Return the ids of executions that have something pending, in order."""
        rows = await self._read("SELECT DISTINCT execution_id FROM deliveries ORDER BY execution_id", "", ())
        return [execution_id for (execution_id,) in rows]

    # ---- transactions of steps ---------------------------------------------------------------------------------------

    async def begin(self) -> SqlTransaction[Connection]:
        """Open a transaction on a connection of its own (K-USER-2).

        Its search path is the session's default.  A statement may take as long as any of the store's, and the effect
        may let twice that time pass between two.
        """
        turn = object()
        await self._steps.acquire_on_behalf_of(turn)
        session = PostgresSession(pool=self._pool)
        try:
            await trio.to_thread.run_sync(session.begin, limiter=trio.CapacityLimiter(1))
        except BaseException:
            self._steps.release_on_behalf_of(turn)
            raise
        return SqlTransaction(
            session, self._appending, inline=False, on_end=lambda: self._steps.release_on_behalf_of(turn)
        )

    # ---- notifications -----------------------------------------------------------------------------------------------

    def subscribe(self, execution_id: str) -> AbstractAsyncContextManager[Wakeups]:
        """Wake the holder at every append by any process whose store notifies (K-LOG-5)."""
        _check_texts(execution_id)
        return self._listener.subscribe(execution_id)

    # ---- in a thread -------------------------------------------------------------------------------------------------

    async def _read(self, sql: str, key: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return all rows of one statement, about what `key` names."""
        _check_texts(key)
        return await trio.to_thread.run_sync(self._pool.read, sql, values, limiter=self._turns)

    async def _write(self, work: Callable[[Connection], T], *, conflicts: bool = False) -> T:
        """Do `work` in one durable transaction.  A cancellation comes before it or after it, never in between."""
        if self.place.read_only:
            raise StoreUnavailable(f"the store in {self.place} was opened to read only; open it to write")
        return await trio.to_thread.run_sync(lambda: self._pool.write(work, conflicts=conflicts), limiter=self._turns)


def _locked(transaction: Connection, execution_id: str, flow_id: str, status: Status) -> tuple[int, int, str | None]:
    """Return head, fence and owner, which nobody else changes until the transaction ends; of a new execution too."""
    while True:
        position = locked(transaction, execution_id)
        if position is not None:
            return position
        # A row to lock.  Whoever starts the same execution at the same time waits here until it is there or not.
        transaction.execute(_MAKE, (execution_id, flow_id, status))


def _insert(rows: Sequence[tuple[str, int, str, str]]) -> tuple[str, list[object]]:
    """Return the statement that inserts some events, and its values.

    Not arrays: psycopg takes 0.6 ms to quote a text in one.
    """
    return _INSERT + ", ".join(["(%s, %s, %s, %s)"] * len(rows)), [value for row in rows for value in row]


def _entry(row: tuple[Any, ...]) -> CatalogueEntry:
    """Return the catalogue entry in a row of `_CATALOGUE`."""
    execution_id, flow_id, status, head, due_ms, fence = row
    return CatalogueEntry(
        execution_id=execution_id, flow_id=flow_id, status=status, head=head, due_ms=due_ms, fence=fence
    )


def _check_texts(*texts: str) -> None:
    """Raise `StoreUnavailable` for what PostgreSQL cannot keep as text."""
    for text in texts:
        if "\0" in text:
            raise StoreUnavailable(
                f"{text!r:.200} holds a NUL, which is no text to PostgreSQL; nothing was written, "
                "choose another id or key"
            )
        try:
            text.encode()
        except UnicodeEncodeError:
            raise StoreUnavailable(
                f"{text!r:.200} holds a lone surrogate, which is no text to PostgreSQL; nothing was written, "
                "choose another id or key"
            ) from None
