"""The ports: everything the kernel takes from the world arrives through one of these (LAYOUT rule 1, K-LOG-5).

A store keeps text and gives it back; it never interprets an event.  All methods are async, because each may be where a
process dies.  Errors a store may raise are in `kernel.errors` under "what a store may say"; anything else it raises is
a defect of the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

import attrs

from kernel.events import Envelope, StoredEvent

Status = Literal["running", "suspended", "blocked", "completed", "failed", "cancelled"]


@attrs.frozen(kw_only=True, slots=True)
class CatalogueEntry:
    """What sweeps need to find an execution's work without reading its log (K-LOG-5)."""

    execution_id: str
    flow_id: str
    status: Status
    head: int  # sequence of the last event
    due_ms: int | None  # of a parked one when its gate's timer or its deadline is due; of a blocked one its deadline
    fence: int  # epoch of the newest claim


class EventStore(Protocol):
    """The log of every execution.  Passes `kernel.conformance` or is not one."""

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
        """Make `batch` durable at `expected` and following, whole or not at all, and the catalogue with it (K-LOG-2).

        Raises `ConcurrencyConflict` if the log's next position is not `expected`, `Fenced` if a newer claim exists,
        `AppendUnknown` if the answer was lost, `StoreUnavailable` if nothing was written for another reason.
        """

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Return all events from `sequence` on, in order; none for an unknown execution or past the end.

        There are no pages: all of them are of one moment.  Who wants some takes the first, and asks again after them.
        Raises `LogTruncated` if `sequence` lies below the first event that is still stored (K-LOG-1).
        """

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """Drop all events up to and including `through`; a no-op for what is already gone."""

    async def claim(self, execution_id: str, owner: str) -> int:
        """Make `owner` the execution's owner and return its fence; every older fence is stale from now on (K-LOG-2).

        Raises `UnknownExecution`.
        """

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        """Return the execution's catalogue entry, or None if there is no such execution."""

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """Return the entries with one of `statuses` (all without), in order of execution id."""


@attrs.frozen(kw_only=True, slots=True)
class StoredSnapshot:
    """A snapshot as a store keeps it: `text` is JSON, `sequence` the last event it has absorbed."""

    sequence: int
    text: str


class SnapshotStore(Protocol):
    """The newest snapshot of each execution.  It may reorder the keys of JSON objects, and nothing else (K-RUN-6)."""

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Make the snapshot durable.  One that is older than the stored one changes nothing."""

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Return the newest snapshot, or None."""


@attrs.frozen(kw_only=True, slots=True)
class Delivery:
    """A message for a gate.  `payload_text` is canonical JSON."""

    delivery_id: str
    on: str
    correlation_key: str | None
    payload_text: str


class Mailbox(Protocol):
    """Deliveries that are accepted and not yet consumed, outside the log (K-RUN-2)."""

    async def put(self, execution_id: str, delivery: Delivery) -> bool:
        """Make the delivery durable; False, and no change, if one of that id is pending already."""

    async def pending(self, execution_id: str) -> Sequence[Delivery]:
        """Return what is pending, in order of arrival."""

    async def remove(self, execution_id: str, delivery_ids: Sequence[str]) -> None:
        """Forget these deliveries; unknown ids are ignored."""

    async def executions(self) -> Sequence[str]:
        """Return the ids of executions that have something pending, in order."""


class Wakeups(Protocol):
    """One subscriber's side of a subscription; one task waits at a time."""

    async def wait(self) -> None:
        """Return when the log may have grown since the last return; what came meanwhile is kept, as one return.

        A cancelled wait loses nothing.  Raises `StoreUnavailable` where the store has to be asked; wait again then.
        """


class Notifications(Protocol):
    """Wake-ups for whoever follows an execution (K-LOG-5, K-LIVE).

    A wake-up carries nothing, so it cannot be wrong: `read_from` alone says what has happened.  After the newest change
    there is at least one; any number may be repeated, late, or merged into a later one.
    """

    def subscribe(self, execution_id: str) -> AbstractAsyncContextManager[Wakeups]:
        """Wake the holder for every change of the log from the block's entry to its end.

        The execution need not exist yet, and may be deleted: there is nothing to wake for, then.
        """


@attrs.frozen(kw_only=True, slots=True)
class Lease:
    """Who drives an execution, and until when by the owner's clock; a newer claim than `fence` has ended it."""

    owner: str
    until_ms: int
    fence: int


class Leases(Protocol):
    """Ownership for a time, for several workers on one store (K-RUN-3).  The store compares no times: its users do.

    A lease is a claim: it makes every older fence stale.  That, not its time, is what keeps two owners apart.
    """

    async def lease(self, execution_id: str) -> Lease | None:
        """Return the execution's newest lease, or None if it has had none."""

    async def acquire(self, execution_id: str, owner: str, *, until_ms: int, after: int) -> int:
        """Claim the execution with a lease if its fence is `after`, and return its fence.

        Raises `Fenced` if it is not: somebody has claimed it meanwhile; `UnknownExecution`.
        """

    async def renew(self, execution_id: str, *, fence: int, until_ms: int) -> None:
        """Have the lease with this fence end at `until_ms`.  Raises `Fenced` if there is a newer claim."""


class Disposal(Protocol):
    """Deleting executions (K-USER-1)."""

    async def delete(self, execution_id: str) -> None:
        """Forget log, catalogue entry, snapshot, deliveries and lease, all at once; a no-op for an unknown execution.

        Content that its events refer to stays: a fork may refer to it, too.
        """


class ContentStore(Protocol):
    """Large payloads, kept apart from the log under the hash of their text (K-LOG-6)."""

    async def put_content(self, hash: str, text: str) -> None:
        """Make the text durable; putting the same again changes nothing."""

    async def content(self, hash: str) -> str | None:
        """Return the text, or None if there is none."""


Parameters = Sequence[object] | Mapping[str, object]
"""What a statement's placeholders stand for, written as the store's database has them: `?` or `:name`, `%s`, ..."""


@attrs.frozen(kw_only=True, slots=True)
class SqlResult:
    """What a statement has returned, and how many rows it has found or changed, as the database counts them."""

    rows: Sequence[tuple[Any, ...]]
    rowcount: int


class Sql(Protocol):
    """What the effect of a transactional step is handed: the SQL of its one transaction (K-USER-2)."""

    async def execute(self, statement: str, parameters: Parameters = ()) -> SqlResult:
        """Execute one statement.  Raises what the database's driver raises.

        Raises `TransactionEnded` when the attempt is over, `TransactionMisuse` for what would end the transaction:
        committing is not the effect's to do.  Savepoints are.  One that is cancelled spoils the transaction.
        """


class Transaction(Protocol):
    """One open transaction of a store, used by one task."""

    @property
    def sql(self) -> Sql:
        """What the effect is handed."""

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
        """`EventStore.append`, and all that was executed becomes durable with it, or nothing does.

        When it has returned the transaction has ended.  Raises what that raises, and `TransactionRefused` if it is the
        executed SQL that cannot be committed.
        """

    async def rollback(self) -> None:
        """End the transaction and leave nothing of it, soon: a statement at work is interrupted.

        A no-op after an append that has returned.  When this returns, nothing is executed any more.
        """


class Transactions(Protocol):
    """A database that keeps the log and rows of the users' own (K-USER-2)."""

    async def begin(self) -> Transaction:
        """Open a transaction; if this raises, a cancellation too, none is open.

        Raises `StoreUnavailable`.  Appends of others may have to wait until it ends.
        """


class Clock(Protocol):
    """Time, for timestamps and due times; milliseconds since the epoch."""

    def now_ms(self) -> int:
        """Return the time."""

    async def sleep_until(self, due_ms: int) -> None:
        """Return when the time has come, not before."""


class Chance(Protocol):
    """Randomness, for `ctx.random` and `ctx.uuid`; each draw is recorded as a decision (K-FLOW-5)."""

    def random(self) -> float:
        """Return a number in [0, 1)."""

    def uuid(self) -> str:
        """Return a fresh UUID as text."""


@attrs.frozen(kw_only=True)
class Stores:
    """The durable parts a runtime works on; one object may play several."""

    events: EventStore
    snapshots: SnapshotStore
    mailbox: Mailbox
    leases: Leases | None = None  # for several workers
    disposal: Disposal | None = None  # for deleting
    transactions: Transactions | None = None  # for steps whose SQL is committed with their completion
