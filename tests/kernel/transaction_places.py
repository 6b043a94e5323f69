"""Where the tests of transactional steps run: a database of each kind, with a store and rows beside it (K-USER-2)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import trio

from kernel import open_runtime
from kernel.adapters.memory import MemoryStore
from kernel.adapters.postgres import open_postgres
from kernel.adapters.sqlite import open_sqlite
from kernel.events import GENESIS_HASH, parse, seal
from kernel.ports import Stores, Transaction, Transactions
from tests.kernel.conftest import brief, outcome

TABLE = "CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0))"


@attrs.define(kw_only=True)
class Place:
    """A database with a store and an account of 100.  Mutable: a store in memory is its own database."""

    kind: str
    address: str = ""
    schema: str = ""
    memory: MemoryStore = attrs.field(factory=MemoryStore)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        if self.kind == "memory":
            yield self.memory
        elif self.kind == "postgres":
            async with open_postgres(self.address, schema=self.schema) as store:
                yield store
        else:
            async with open_sqlite(self.address, inline=self.kind == "sqlite-inline") as store:
                yield store

    async def make_account(self) -> None:
        async with self.open() as store, opened(store) as made:
            await made.sql.execute(TABLE)
            await made.sql.execute("INSERT INTO accounts VALUES (1, 100)")
            await append_to(made, "setting up")

    async def balance(self) -> int:
        async with self.open() as store, opened(store) as looking:
            ((balance,),) = (await looking.sql.execute("SELECT balance FROM accounts WHERE id = 1")).rows
            return balance

    async def log(self) -> list[tuple[str, ...]]:
        async with self.open() as store:
            return [brief(parse(stored)) for stored in await store.read_from("x", 0)]

    async def run(self, flow: Any, *, stores: Callable[[Any], Stores] = lambda store: store.stores, **more: Any) -> Any:
        """Run the flow in a process of its own, from where it is, and return its result or its error's record."""
        async with self.open() as store, open_runtime(stores=stores(store), flows=[flow], **more) as runtime:
            await runtime.recover_all()
            return await outcome(await runtime.start(flow, execution_id="x"))


@contextlib.asynccontextmanager
async def opened(transactions: Transactions) -> AsyncIterator[Transaction]:
    """Open a transaction that is rolled back at the end, if it has not been committed."""
    transaction = await transactions.begin()
    try:
        yield transaction
    finally:
        with trio.CancelScope(shield=True):
            await transaction.rollback()


async def hold(transactions: Transactions, task_status: trio.TaskStatus[trio.Event]) -> None:
    """Hold a transaction open until the event is set that this has begun with."""
    async with opened(transactions):
        over = trio.Event()
        task_status.started(over)
        await over.wait()


async def append_to(store: Any, execution_id: str, at: int = 0, previous: str = GENESIS_HASH) -> None:
    """Append one event of no flow's to a log."""
    event = seal(
        execution_id=execution_id,
        sequence=at,
        type="ALIEN",
        payload_text="{}",
        timestamp_ms=1,
        append_id=f"alien/{at}",
        previous_hash=previous,
    )
    await store.append(execution_id, at, [event], fence=99, flow_id="f", status="running", due_ms=None)
