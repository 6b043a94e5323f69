"""The stores with transactions pass the kit for them, and every check of it can fail (K-USER-2, K-LOG-5)."""

# The broken transactions below have the port's signatures:
# mypy: allow-untyped-defs

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from kernel.adapters.memory import MemoryStore
from kernel.conformance import ConformanceFailure, chain
from kernel.conformance_transactions import TRANSACTION_CHECKS, TransactionCheck
from kernel.ports import Stores
from tests.kernel.transaction_places import Place


@pytest.mark.parametrize("check", TRANSACTION_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "sqlite-inline", "postgres"])
def test_store_conforms(places: Callable[[str], Place], kind: str, check: TransactionCheck) -> None:
    place = places(kind)

    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Stores]:
        async with place.open() as store:
            yield store.stores

    @contextlib.asynccontextmanager
    async def second(_: Stores) -> AsyncIterator[Stores]:
        async with place.open() as store:
            yield store.stores

    trio.run(check.run, make, second)


# ---- transactions that are broken in one way each --------------------------------------------------------------------


class Broken:
    """A transaction of the store in memory, to be broken in a subclass."""

    def __init__(self, store: MemoryStore, inner: Any) -> None:
        self.store, self.inner, self.sql = store, inner, self

    @classmethod
    async def begin(cls, store: MemoryStore) -> Any:
        return cls(store, await store.begin())

    async def execute(self, statement, parameters=()):
        return await self.inner.sql.execute(statement, parameters)

    async def append(self, execution_id, expected, batch, **more):
        await self.inner.append(execution_id, expected, batch, **more)

    async def rollback(self):
        await self.inner.rollback()

    async def commit_rows(self):
        """Make the rows durable with an append to another log."""
        name = f"rows {len(self.store._executions)}"
        await self.inner.append(name, 0, chain(name, 1), fence=0, flow_id="f", status="running", due_ms=None)


class RowsFirst(Broken):
    async def append(self, execution_id, expected, batch, **more):
        await self.commit_rows()
        await trio.lowlevel.checkpoint()
        await self.store.append(execution_id, expected, batch, **more)


class NoRows(Broken):
    async def append(self, execution_id, expected, batch, **more):
        await self.inner.rollback()
        await self.store.append(execution_id, expected, batch, **more)


class RollbackCommits(Broken):
    async def rollback(self):
        if not self.inner.ended:
            await self.commit_rows()


class RollbackIsNoNoOp(Broken):
    async def rollback(self):
        if self.inner.ended:
            raise RuntimeError("there is nothing to roll back")
        await super().rollback()


class HandleLives(Broken):
    async def execute(self, statement, parameters=()):
        if not self.inner.ended:
            return await super().execute(statement, parameters)
        return self.store._rows.execute(statement)


class CommitIsAllowed(Broken):
    async def execute(self, statement, parameters=()):
        if statement != "COMMIT":
            return await super().execute(statement, parameters)
        await self.commit_rows()
        return None


class CancelledBeginStaysOpen(Broken):
    @classmethod
    async def begin(cls, store):
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            store._turn.acquire_on_behalf_of_nowait(object())
            raise
        return await super().begin(store)


class WritesWhatItHasRead(Broken):
    async def execute(self, statement, parameters=()):
        if not statement.startswith("UPDATE"):
            return await super().execute(statement, parameters)
        ((n,),) = (await super().execute("SELECT n FROM loom_conformance")).rows
        await self.inner.rollback()
        await trio.lowlevel.checkpoint()
        self.inner = await self.store.begin()
        return await super().execute(f"UPDATE loom_conformance SET n = {n + 1}")


BREAKAGES = {
    "rows_and_events_are_durable_together": NoRows,
    "rollback_leaves_nothing": RollbackCommits,
    "rollback_after_the_append_is_a_no_op": RollbackIsNoNoOp,
    "stale_position_leaves_no_row": RowsFirst,
    "stale_fence_leaves_no_row": RowsFirst,
    "nothing_is_executed_after_the_end": HandleLives,
    "commit_is_not_the_effects_to_say": CommitIsAllowed,
    "cancelled_begin_leaves_nothing_open": CancelledBeginStaysOpen,
    "concurrent_transactions_lose_no_update": WritesWhatItHasRead,
    "rival_wins_position_and_rows_or_neither": RowsFirst,
}


@pytest.mark.parametrize("check", TRANSACTION_CHECKS, ids=lambda check: check.name)
def test_check_sees_broken_transactions(check: TransactionCheck) -> None:
    broken = BREAKAGES[check.name]

    class Transactions:
        def __init__(self, store: MemoryStore) -> None:
            self._store, self._made = store, False

        async def begin(self) -> Any:
            if not self._made:  # the table
                self._made = True
                return await self._store.begin()
            return await broken.begin(self._store)

    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Stores]:
        store = MemoryStore()
        yield attrs.evolve(store.stores, transactions=Transactions(store))

    with pytest.raises(ConformanceFailure) as failure:
        trio.run(check.run, make, clock=trio.testing.MockClock(autojump_threshold=0))
    assert str(failure.value).startswith(f"{check.name} (K-USER-2): ")
    assert "wanted" in str(failure.value)


def test_a_store_without_transactions_does_not_conform() -> None:
    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Stores]:
        yield attrs.evolve(MemoryStore().stores, transactions=None)

    with pytest.raises(ConformanceFailure, match="the store has no `transactions`"):
        trio.run(TRANSACTION_CHECKS[0].run, make)
