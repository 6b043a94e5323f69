"""Conformance of `Transactions`, a port of its own: a store need not have it to carry flows (K-USER-2).

Each check gets a fresh store, whose database may be an old one: the table `loom_conformance` is made anew.  `second` is
a second handle on it, the same one twice where there is only one.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
import trio

from kernel.conformance import (
    SECONDS_MAX,
    ConformanceFailure,
    MakeSecond,
    MakeStore,
    _append,
    _entry,
    _log,
    _refused,
    _stored,
    _verdict,
    _want,
    chain,
)
from kernel.errors import ConcurrencyConflict, Fenced, TransactionEnded
from kernel.events import Envelope
from kernel.ports import Stores, Transaction, Transactions

Body = Callable[[Stores, Transactions, Stores], Awaitable[None]]

_READ = "SELECT n FROM loom_conformance ORDER BY n"
_WRITE = "INSERT INTO loom_conformance VALUES (1)"


@attrs.frozen(kw_only=True, slots=True)
class TransactionCheck:
    """One thing that `Transactions` must do."""

    name: str
    rule: str
    body: Body

    async def run(self, make_store: MakeStore, make_second: MakeSecond = contextlib.nullcontext) -> None:
        """Run on a fresh store.  Raises `ConformanceFailure`, for what the store raises unasked too."""
        try:
            with trio.fail_after(SECONDS_MAX):
                async with make_store() as stores, make_second(stores) as second:
                    if stores.transactions is None:
                        raise ConformanceFailure("the store has no `transactions`")
                    await _make_table(stores.transactions)
                    await self.body(stores, stores.transactions, second)
        except Exception as error:
            raise ConformanceFailure(f"{self.name} ({self.rule}): {_verdict(error)}") from error


_checks: list[TransactionCheck] = []


def _check(body: Body) -> Body:
    _checks.append(TransactionCheck(name=body.__name__, rule="K-USER-2", body=body))
    return body


@contextlib.asynccontextmanager
async def _open(transactions: Transactions) -> AsyncIterator[Transaction]:
    """Open a transaction, and leave it as the kernel does."""
    transaction = await transactions.begin()
    try:
        yield transaction
    finally:
        with trio.CancelScope(shield=True):
            await transaction.rollback()


async def _land(transaction: Transaction, events: list[Envelope], *, fence: int = 0) -> None:
    await transaction.append(
        events[0].execution_id, events[0].sequence, events, fence=fence, flow_id="f", status="running", due_ms=None
    )


async def _make_table(transactions: Transactions) -> None:
    async with _open(transactions) as transaction:
        await transaction.sql.execute("DROP TABLE IF EXISTS loom_conformance")
        await transaction.sql.execute("CREATE TABLE loom_conformance (n integer NOT NULL)")
        await _land(transaction, chain("table", 1))


async def _rows(transactions: Transactions) -> list[object]:
    """Return what is committed; the transaction that looks is rolled back."""
    async with _open(transactions) as transaction:
        return [n for (n,) in (await transaction.sql.execute(_READ)).rows]


@_check
async def rows_and_events_are_durable_together(stores: Stores, transactions: Transactions, _: Stores) -> None:
    events = chain("e", 3)
    async with _open(transactions) as transaction:
        written = await transaction.sql.execute(_WRITE)
        _want((1, []), (written.rowcount, list(written.rows)), "the count and rows of an insert")
        _want([(1,)], [tuple(row) for row in (await transaction.sql.execute(_READ)).rows], "its own rows")
        _want([], await _log(stores, "e"), "the log before the append")
        await _land(transaction, events)
        _want(_stored(events), await _log(stores, "e"), "the log after the append")
    _want([1], await _rows(transactions), "the rows after the append")
    _want(2, (await _entry(stores, "e")).head, "the head in the catalogue")


@_check
async def rollback_leaves_nothing(stores: Stores, transactions: Transactions, _: Stores) -> None:
    async with _open(transactions) as transaction:
        await transaction.sql.execute(_WRITE)
    _want([], await _rows(transactions), "the rows after a rollback")
    _want([], await _log(stores, "e"), "the log after a rollback")


@_check
async def rollback_after_the_append_is_a_no_op(stores: Stores, transactions: Transactions, _: Stores) -> None:
    async with _open(transactions) as transaction:
        await transaction.sql.execute(_WRITE)
        await _land(transaction, chain("e", 1))
        await transaction.rollback()
    _want([1], await _rows(transactions), "the rows after a rollback that comes after the append")
    _want(_stored(chain("e", 1)), await _log(stores, "e"), "the log after it")


@_check
async def stale_position_leaves_no_row(stores: Stores, transactions: Transactions, _: Stores) -> None:
    events = chain("e", 3)
    await _append(stores, events[:2])
    for at in (0, 1):
        async with _open(transactions) as transaction:
            await transaction.sql.execute(_WRITE)
            async with _refused(ConcurrencyConflict, f"a transaction's append at {at}, the next position is 2"):
                await _land(transaction, events[at : at + 1])
    _want([], await _rows(transactions), "the rows after refused appends")
    _want(_stored(events[:2]), await _log(stores, "e"), "the log after refused appends")


@_check
async def stale_fence_leaves_no_row(stores: Stores, transactions: Transactions, _: Stores) -> None:
    events = chain("e", 3)
    await _append(stores, events[:1])
    fence = await stores.events.claim("e", "newer")
    async with _open(transactions) as transaction:
        await transaction.sql.execute(_WRITE)
        async with _refused(Fenced, "a transaction's append with an older fence"):
            await _land(transaction, events[1:2], fence=fence - 1)
    _want([], await _rows(transactions), "the rows after a refused append")
    _want(_stored(events[:1]), await _log(stores, "e"), "the log after a refused append")
    async with _open(transactions) as transaction:
        await transaction.sql.execute(_WRITE)
        await _land(transaction, events[1:2], fence=fence)
    _want([1], await _rows(transactions), "the rows after the newest owner's append")


@_check
async def nothing_is_executed_after_the_end(_: Stores, transactions: Transactions, __: Stores) -> None:
    async with _open(transactions) as committed:
        await _land(committed, chain("e", 1))
        async with _refused(TransactionEnded, "a statement after the append"):
            await committed.sql.execute(_WRITE)
    async with _open(transactions) as rolled_back:
        pass
    async with _refused(TransactionEnded, "a statement after the rollback"):
        await rolled_back.sql.execute(_WRITE)
    _want([], await _rows(transactions), "the rows after statements that came too late")


@_check
async def commit_is_not_the_effects_to_say(_: Stores, transactions: Transactions, __: Stores) -> None:
    async with _open(transactions) as transaction:
        await transaction.sql.execute(_WRITE)
        with contextlib.suppress(Exception):  # by whatever error it is refused, or if it is not
            await transaction.sql.execute("COMMIT")
    _want([], await _rows(transactions), "the rows after a rollback that followed the effect's own COMMIT")


@_check
async def cancelled_begin_leaves_nothing_open(_: Stores, transactions: Transactions, __: Stores) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await _rows(transactions)
    async with _open(transactions) as transaction:
        await transaction.sql.execute(_WRITE)
        await _land(transaction, chain("e", 1))
    _want([1], await _rows(transactions), "the rows after a begin that was cancelled, and another")


@_check
async def concurrent_transactions_lose_no_update(_: Stores, transactions: Transactions, __: Stores) -> None:
    async def add(i: int) -> None:
        async with _open(transactions) as transaction:
            await transaction.sql.execute("UPDATE loom_conformance SET n = n + 1")
            await trio.lowlevel.checkpoint()
            await _land(transaction, chain(f"e{i}", 1))

    async with _open(transactions) as transaction:
        await transaction.sql.execute(_WRITE)
        await _land(transaction, chain("e", 1))
    async with trio.open_nursery() as nursery:
        for i in range(8):
            nursery.start_soon(add, i)
    _want([9], await _rows(transactions), "the row after 8 transactions that each add one")


@_check
async def rival_wins_position_and_rows_or_neither(_: Stores, transactions: Transactions, second: Stores) -> None:
    for i in range(8):
        name, won = f"e{i}", []
        begun = trio.Event()

        async def rival(name: str, begun: trio.Event) -> None:
            await begun.wait()
            with contextlib.suppress(ConcurrencyConflict):
                await _append(second, chain(name, 1, note="rival"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rival, name, begun)
            async with _open(transactions) as transaction:
                await transaction.sql.execute(f"INSERT INTO loom_conformance VALUES ({i})")
                begun.set()
                with contextlib.suppress(ConcurrencyConflict):
                    await _land(transaction, chain(name, 1))
                    won.append(i)
        winner = chain(name, 1) if won else chain(name, 1, note="rival")
        _want(_stored(winner), await _log(second, name), "the log that two have appended to")
        _want(bool(won), i in await _rows(transactions), "whether the row is there, as the event is")


TRANSACTION_CHECKS: tuple[TransactionCheck, ...] = tuple(_checks)
"""All checks, in the order they are read."""
