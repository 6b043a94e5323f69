"""Steps whose SQL is committed together with their completion, on every store that has them (K-USER-2)."""

import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kernel import (
    Context,
    EffectContext,
    ExecutionInterrupted,
    Json,
    NoJsonForm,
    NoTransactions,
    RetryPolicy,
    Step,
    StepTimeout,
    TooLarge,
    TransactionEnded,
    TransactionMisuse,
    TransactionRefused,
    TypedFailure,
    flow,
    open_runtime,
    saga,
    transaction,
    with_codec,
    with_content,
)
from kernel.adapters.memory import MemoryStore
from kernel.errors import AppendUnknown
from kernel.ports import Stores, Transaction
from tests.kernel.conftest import outcome
from tests.kernel.transaction_places import Place, append_to, hold, opened

TAKE = "UPDATE accounts SET balance = balance - 10 WHERE id = 1 RETURNING balance"


class Poor(TypedFailure):
    """There is not enough on the account."""


@pytest.fixture(params=["memory", "sqlite", "sqlite-inline", "postgres"])
def place(request: pytest.FixtureRequest, places: Callable[[str], Place]) -> Place:
    return places(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def threaded(request: pytest.FixtureRequest, places: Callable[[str], Place]) -> Place:
    """A place whose statements run in threads."""
    return places(request.param)


def use(place: Place, body: Callable[[], Awaitable[None]]) -> None:
    """Make the account, and run the body of a test."""

    async def run() -> None:
        with trio.fail_after(60):
            await place.make_account()
            await body()

    trio.run(run)


def one_step(step: Step) -> Any:
    """Return a flow of one step."""

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> Json:
        return await ctx.run(step)

    return pay


@transaction("debit")
async def debit(effect: EffectContext, input: Json) -> Json:
    return (await effect.sql.execute(TAKE)).rows[0][0]


STARTED, COMPLETED = ("STEP_STARTED", "debit"), ("STEP_COMPLETED", "debit")
FAILED = ("STEP_FAILED", "debit", "error")


# ---- together or not at all ------------------------------------------------------------------------------------------


def test_rows_and_completion_are_committed_together(place: Place) -> None:
    async def body() -> None:
        assert 90 == await place.run(one_step(debit))
        assert [("EXECUTION_STARTED",), STARTED, COMPLETED, ("EXECUTION_COMPLETED",)] == await place.log()
        assert 90 == await place.balance()

    use(place, body)


def test_a_completed_transaction_is_served(place: Place) -> None:
    @flow(id="pay")
    async def crashes_once(ctx: Context, input: Json) -> Json:
        left = await ctx.run(debit)
        if not crashed:
            crashed.append(True)
            await trio.sleep_forever()
        return left

    crashed: list[bool] = []

    async def body() -> None:
        async with place.open() as store, open_runtime(stores=store.stores, flows=[crashes_once]) as runtime:
            await runtime.start(crashes_once, execution_id="x")
            while not crashed:  # noqa: ASYNC110
                await trio.sleep(0.001)
        assert 90 == await place.run(crashes_once)
        assert 1 == (await place.log()).count(STARTED)
        assert 90 == await place.balance()

    use(place, body)


def test_an_effect_that_raises_leaves_no_row(place: Place) -> None:
    @transaction("debit")
    async def broken(effect: EffectContext, input: Json) -> Json:
        await effect.sql.execute(TAKE)
        raise RuntimeError("on second thoughts")

    async def body() -> None:
        assert {"message": "on second thoughts", "type": "RuntimeError"} == await place.run(one_step(broken))
        assert [STARTED, FAILED] == (await place.log())[1:3]
        assert 100 == await place.balance()

    use(place, body)


def test_a_declared_failure_is_recorded_after_the_rollback(place: Place) -> None:
    @transaction("debit", failures=(Poor,))
    async def poor(effect: EffectContext, input: Json) -> Json:
        raise Poor((await effect.sql.execute(TAKE)).rows[0][0])

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> Json:
        with pytest.raises(Poor) as failure:
            await ctx.run(poor)
        return failure.value.data

    async def body() -> None:
        assert 90 == await place.run(pay)
        assert [STARTED, ("STEP_FAILED", "debit", "typed")] == (await place.log())[1:3]
        assert 100 == await place.balance()

    use(place, body)


@pytest.mark.parametrize("output", [{1, 2}, "x" * 2_000])
def test_an_output_that_cannot_be_recorded_leaves_no_row(place: Place, output: object) -> None:  # K-JSON-3, K-LOG-6
    @transaction("debit", retry=RetryPolicy(attempts=3))
    async def odd(effect: EffectContext, input: Json) -> object:
        await effect.sql.execute(TAKE)
        return output

    async def body() -> None:
        failure = await place.run(one_step(odd), payload_bytes_max=1_000)
        assert failure["type"] in (NoJsonForm.__name__, TooLarge.__name__)
        assert "output of step 'debit'" in failure["message"]
        assert [STARTED, FAILED] == (await place.log())[1:3]
        assert 100 == await place.balance()

    use(place, body)


def test_the_output_is_the_decoded_record(place: Place) -> None:  # K-LOG-4
    kept = {"b": [1.0], "a": (1, 2)}

    @transaction("debit")
    async def returns_what_it_keeps(effect: EffectContext, input: Json) -> object:
        return kept

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> Json:
        given: Any = await ctx.run(returns_what_it_keeps)
        given["b"].append(2)
        return [list(given), given["a"]]

    async def body() -> None:
        assert [["a", "b"], [1, 2]] == await place.run(pay)
        assert {"b": [1.0], "a": (1, 2)} == kept

    use(place, body)


def test_each_attempt_is_a_transaction_of_its_own(place: Place) -> None:  # K-FLOW-11
    @transaction("debit", retry=RetryPolicy(attempts=3, backoff_seconds=0))
    async def shaky(effect: EffectContext, input: Json) -> Json:
        left = (await effect.sql.execute(TAKE)).rows[0][0]
        if effect.attempt < 3:
            raise RuntimeError("again")
        return [effect.attempt, left]

    async def body() -> None:
        assert [3, 90] == await place.run(one_step(shaky))
        assert [STARTED, FAILED, STARTED, FAILED, STARTED, COMPLETED] == (await place.log())[1:-1]
        assert 90 == await place.balance()

    use(place, body)


def test_a_compensator_may_be_a_transaction(place: Place) -> None:
    @transaction("refund")
    async def refund(effect: EffectContext, left: Json) -> None:
        await effect.sql.execute("UPDATE accounts SET balance = balance + 10 WHERE id = 1")

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> Json:
        async with saga(ctx) as s:
            await s.run(debit, compensate=refund)
            raise RuntimeError("no")

    async def body() -> None:
        assert "no" == (await place.run(pay))["message"]
        assert ("STEP_COMPLETED", "refund#compensate:0") in await place.log()
        assert 100 == await place.balance()

    use(place, body)


def test_parameters_and_counts_are_the_databases(place: Place) -> None:
    mark = "%s" if place.kind == "postgres" else "?"

    @transaction("debit")
    async def counts(effect: EffectContext, input: Json) -> Json:
        added = await effect.sql.execute(f"INSERT INTO accounts VALUES ({mark}, {mark})", (2, 7))
        found = await effect.sql.execute("SELECT id, balance FROM accounts ORDER BY id")
        missed = await effect.sql.execute("UPDATE accounts SET balance = 0 WHERE id = 3")
        return [added.rowcount, [*found.rows], missed.rowcount, [*missed.rows]]

    async def body() -> None:
        assert [1, [[1, 100], [2, 7]], 0, []] == await place.run(one_step(counts))

    use(place, body)


# ---- who is overtaken, and answers that are lost ---------------------------------------------------------------------


@attrs.define(kw_only=True)
class Meddling:
    """A store whose transactions do something before they begin, or in place of their append.  Mutable: once only."""

    store: Any
    at_begin: Callable[[Any], Awaitable[None]] | None = None
    at_append: Callable[[Any], Awaitable[None]] | None = None
    at_rollback: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    _inner: Any = None

    async def begin(self) -> Any:
        if self.at_begin is not None:
            at_begin, self.at_begin = self.at_begin, None
            await at_begin(self.store)
        self._inner = await self.store.begin()
        return self

    @property
    def sql(self) -> Any:
        return self._inner.sql

    async def append(self, *args: Any, **more: Any) -> None:
        if self.at_append is None:
            return await self._inner.append(*args, **more)
        at_append, self.at_append = self.at_append, None
        return await at_append(lambda: self._inner.append(*args, **more))

    async def rollback(self) -> None:
        await self.at_rollback()
        await self._inner.rollback()


def meddling(**more: Any) -> Callable[[Any], Stores]:
    return lambda store: attrs.evolve(store.stores, transactions=Meddling(store=store, **more))


def test_a_fenced_owner_commits_no_row(place: Place) -> None:  # K-LOG-2
    async def claim(store: Any) -> None:
        await store.claim("x", "another")

    async def body() -> None:
        with pytest.raises(ExecutionInterrupted, match="fence 0, the newest claim is 1"):
            await place.run(one_step(debit), stores=meddling(at_begin=claim))
        assert 100 == await place.balance()
        assert STARTED == (await place.log())[-1]

    use(place, body)


def test_who_loses_the_position_commits_no_row_and_starts_again(place: Place) -> None:  # K-LOG-2
    seen: list[int] = []

    async def take_the_position(store: Any) -> None:
        log = await store.read_from("x", 0)
        await append_to(store, "x", at=len(log), previous=log[-1].hash)

    @transaction("debit")
    async def counted(effect: EffectContext, input: Json) -> Json:
        seen.append((await effect.sql.execute(TAKE)).rows[0][0])
        return seen[-1]

    async def body() -> None:
        assert 90 == await place.run(one_step(counted), stores=meddling(at_begin=take_the_position))
        assert [90, 90] == seen
        assert 90 == await place.balance()
        assert [STARTED, ("emit", "ALIEN {}", "unstamped"), STARTED, COMPLETED] == (await place.log())[1:5]

    use(place, body)


@pytest.mark.parametrize("landed", [True, False])
def test_the_log_decides_when_the_answer_to_a_commit_is_lost(place: Place, landed: bool) -> None:  # K-LOG-2
    async def lose_the_answer(append: Callable[[], Awaitable[None]]) -> None:
        if landed:
            await append()
        raise AppendUnknown("planned")

    async def body() -> None:
        assert 90 == await place.run(one_step(debit), stores=meddling(at_append=lose_the_answer))
        assert [STARTED] * (1 if landed else 2) + [COMPLETED] == (await place.log())[1:-1]
        assert 90 == await place.balance()

    use(place, body)


# ---- what an effect may not do ---------------------------------------------------------------------------------------


def test_a_store_without_transactions_refuses_before_anything_is_appended(place: Place) -> None:
    async def body() -> None:
        failure = await place.run(one_step(debit), stores=lambda store: attrs.evolve(store.stores, transactions=None))
        assert NoTransactions.__name__ == failure["type"]
        assert "SQLite, PostgreSQL, memory" in failure["message"]
        assert [("EXECUTION_STARTED",), ("EXECUTION_FAILED",)] == await place.log()

    use(place, body)


def test_a_transaction_that_runs_at_most_once_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="it is never in doubt; leave `at_most_once` out"):
        Step(id="debit", transactional=True, at_most_once=True)


ENDINGS = (
    "COMMIT",
    " -- now\n /* and /* ever */ */ ;commit",
    "ROLLBACK",
    "END TRANSACTION",
    "BEGIN",
)


@pytest.mark.parametrize("statement", ENDINGS)
def test_an_effect_can_not_end_its_transaction(place: Place, statement: str) -> None:
    if place.kind != "postgres":
        statement = statement.replace("/* ever */", "")  # only PostgreSQL has comments in comments

    @transaction("debit")
    async def commits(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        with pytest.raises(TransactionMisuse, match="savepoints"):
            await effect.sql.execute(statement)
        raise RuntimeError("no")

    async def body() -> None:
        assert "no" == (await place.run(one_step(commits)))["message"]
        assert 100 == await place.balance()

    use(place, body)


def test_two_statements_in_one_are_refused(place: Place) -> None:
    @transaction("debit")
    async def commits(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE + "; COMMIT")

    async def body() -> None:
        assert (await place.run(one_step(commits)))["type"] in ("ProgrammingError", "SyntaxError", "Warning")
        assert 100 == await place.balance()

    use(place, body)


def test_savepoints_are_the_effects_own(place: Place) -> None:
    @transaction("debit")
    async def tries(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        await effect.sql.execute("SAVEPOINT s")
        with pytest.raises(Exception, match=r"(?i)constraint"):
            await effect.sql.execute("UPDATE accounts SET balance = -1")
        await effect.sql.execute("ROLLBACK TO SAVEPOINT s")
        await effect.sql.execute("RELEASE s")

    async def body() -> None:
        assert None is await place.run(one_step(tries))
        assert 90 == await place.balance()

    use(place, body)


def test_an_effect_in_a_transaction_emits_nothing(place: Place) -> None:
    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> Json:
        @transaction("debit")
        async def tells(effect: EffectContext, input: Json) -> None:
            with pytest.raises(TransactionMisuse, match="let the flow emit it"):
                await effect.emit("told")
            with pytest.raises(TransactionMisuse, match="let the flow emit it"):
                await ctx.emit("told")

        return await ctx.run(tells)

    async def body() -> None:
        assert None is await place.run(pay)
        assert [STARTED, COMPLETED] == (await place.log())[1:-1]

    use(place, body)


def test_sql_is_for_transactions_only(place: Place) -> None:
    @transaction("debit")
    async def plain(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)

    async def body() -> None:
        failure = await place.run(one_step(attrs.evolve(plain, transactional=False)))
        assert TransactionMisuse.__name__ == failure["type"]
        assert "declare it with `transaction`" in failure["message"]

    use(place, body)


def test_the_handle_is_dead_when_the_transaction_is_over(place: Place) -> None:
    kept: list[Any] = []

    @transaction("debit")
    async def leaks(effect: EffectContext, input: Json) -> None:
        kept.append(effect.sql)

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> None:
        await ctx.run(leaks)
        with pytest.raises(TransactionEnded, match="not executed"):
            await kept[0].execute(TAKE)

    async def body() -> None:
        assert None is await place.run(pay)
        assert 100 == await place.balance()

    use(place, body)


def test_a_constraint_that_does_not_hold_at_the_end_fails_the_step(place: Place) -> None:
    @transaction("debit")
    async def dangles(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(
            "CREATE TABLE owners (account integer REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)"
        )
        await effect.sql.execute("INSERT INTO owners VALUES (7)")

    async def body() -> None:
        assert TransactionRefused.__name__ == (await place.run(one_step(dangles)))["type"]
        assert [STARTED, FAILED] == (await place.log())[1:3]

    use(place, body)


def test_temporary_tables_stand_in_for_none_of_the_stores(place: Place) -> None:
    @transaction("debit")
    async def hides(effect: EffectContext, input: Json) -> None:
        for table in ("events", "executions", "leases"):
            await effect.sql.execute(f"CREATE TEMPORARY TABLE x{table} (sequence integer)")
            await effect.sql.execute(f"ALTER TABLE x{table} RENAME TO {table}")

    async def body() -> None:
        assert None is await place.run(one_step(hides))
        assert [STARTED, COMPLETED] == (await place.log())[1:-1]

    use(place, body)


# ---- deadlines and cancellation --------------------------------------------------------------------------------------


def test_a_zombie_executes_nothing_after_its_deadline(place: Place) -> None:  # K-FLOW-3
    ended: list[Exception] = []

    @transaction("debit", deadline=0.5)  # enough to begin, on a machine with other things to do
    async def stuck(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        with trio.CancelScope(shield=True):
            await over.wait()
            try:
                await effect.sql.execute(TAKE)
            except TransactionEnded as error:
                ended.append(error)
            gone.set()

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> Json:
        with pytest.raises(StepTimeout):
            await ctx.run(stuck)
        over.set()
        await gone.wait()
        return await ctx.run(debit, key="again")

    over, gone = trio.Event(), trio.Event()

    async def body() -> None:
        assert 90 == await place.run(pay)
        assert 1 == len(ended)
        assert 90 == await place.balance()
        assert [STARTED, ("STEP_FAILED", "debit", "timeout")] == (await place.log())[1:3]

    use(place, body)


SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
    "postgres": "SELECT pg_sleep(1000)",
}


def test_a_statement_at_work_is_interrupted_at_the_deadline(threaded: Place) -> None:
    @transaction("debit", deadline=0.2)
    async def slow(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        await effect.sql.execute(SLOW[threaded.kind])

    async def body() -> None:
        with trio.fail_after(8):  # before a statement's own limit
            assert StepTimeout.__name__ == (await threaded.run(one_step(slow)))["type"]
        assert 100 == await threaded.balance()

    use(threaded, body)


def test_a_statement_that_was_given_up_spoils_the_transaction(threaded: Place) -> None:
    @transaction("debit")
    async def impatient(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        with trio.move_on_after(0.05):
            await effect.sql.execute(SLOW[threaded.kind])

    async def body() -> None:
        with trio.fail_after(8):
            failure = await threaded.run(one_step(impatient))
        assert TransactionRefused.__name__ == failure["type"]
        assert "nobody knows whether it was executed" in failure["message"]
        assert 100 == await threaded.balance()

    use(threaded, body)


def test_the_deadline_is_for_the_wait_as_well(place: Place) -> None:
    if place.kind == "postgres":
        pytest.skip("one transaction does not wait for another there")

    @transaction("debit", deadline=0.05)
    async def late(effect: EffectContext, input: Json) -> None:
        raise AssertionError("it began")

    async def body() -> None:
        async with trio.open_nursery() as nursery:

            async def others(store: Any) -> None:
                nursery.start_soon(release, await nursery.start(hold, store))

            async def release(over: trio.Event) -> None:
                with trio.move_on_after(0.1):  # an append has to wait for the transaction, the record of a timeout too
                    await trio.sleep_forever()
                over.set()

            failure = await place.run(one_step(late), stores=meddling(at_begin=others))
            assert StepTimeout.__name__ == failure["type"]

    use(place, body)


def test_a_step_that_its_flow_gives_up_is_rolled_back(place: Place) -> None:
    @transaction("debit")
    async def waits(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        scopes[0].cancel()
        await trio.sleep_forever()

    scopes: list[trio.CancelScope] = []

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await ctx.run(waits)

    async def body() -> None:
        assert None is await place.run(pay)
        assert [STARTED, ("STEP_CANCELLED", "debit")] == (await place.log())[1:3]
        assert 100 == await place.balance()

    use(place, body)


# ---- with others -----------------------------------------------------------------------------------------------------


def test_branches_wait_for_each_others_transactions(place: Place) -> None:  # K-FLOW-8
    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> None:
        async def branch(i: int) -> None:
            await ctx.run(debit, key=f"{i}")
            await ctx.emit("paid", i)

        async with ctx.branches() as branches:
            for i in range(5):
                branches.start(branch, i)

    async def body() -> None:
        assert None is await place.run(pay, snapshot_every=1)
        assert 50 == await place.balance()
        completed = [entry for entry in await place.log() if entry[0] == "STEP_COMPLETED"]
        assert [("STEP_COMPLETED", f"debit[{i}]") for i in range(5)] == sorted(completed)

    use(place, body)


def test_a_failure_unsettles_the_run_before_its_rollback_has_ended(places: Callable[[str], Place]) -> None:  # K-EMIT-5
    @transaction("debit")
    async def broken(effect: EffectContext, input: Json) -> None:
        raise RuntimeError("no")

    @flow(id="pay")
    async def pay(ctx: Context, input: Json) -> None:
        async def fail() -> None:
            with pytest.raises(RuntimeError):
                await ctx.run(broken)

        async def tell() -> None:
            await rolling.wait()
            await ctx.emit("told")

        async with ctx.branches() as branches:
            branches.start(fail)
            branches.start(tell)

    async def roll() -> None:
        rolling.set()
        await trio.testing.wait_all_tasks_blocked()

    rolling, place = trio.Event(), places("memory")

    async def body() -> None:
        assert None is await place.run(pay, stores=meddling(at_rollback=roll))
        assert ("emit", "told", "unstamped") in await place.log()

    use(place, body)


def test_other_executions_go_on_when_the_transaction_is_over(threaded: Place) -> None:
    order: list[str] = []

    @flow(id="other")
    async def other(ctx: Context, input: Json) -> None:
        order.append("other")

    async def body() -> None:
        async with (
            threaded.open() as store,
            open_runtime(stores=store.stores, flows=[other]) as runtime,
            trio.open_nursery() as nursery,
        ):
            over = await nursery.start(hold, store)

            async def start() -> None:
                handle = await runtime.start(other, execution_id="other")
                await handle.result()
                order.append("result")
                done.set()

            done = trio.Event()
            nursery.start_soon(start)
            with trio.move_on_after(30 if threaded.kind == "postgres" else 0.1):  # the loop goes on: this ends
                await done.wait()
            order.append("over")
            over.set()
        assert (["other", "result", "over"] if threaded.kind == "postgres" else ["over", "other", "result"]) == order

    use(threaded, body)


def test_a_follower_is_woken_by_a_transaction(place: Place) -> None:  # K-LOG-5
    async def body() -> None:
        async with place.open() as store, store.subscribe("followed") as wakeups:
            async with opened(store) as transaction:
                await append_to(transaction, "followed")
            await wakeups.wait()

    use(place, body)


class Reversed:
    """A codec that anybody can see at work."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


def test_a_codec_and_references_apply_to_the_output(place: Place) -> None:  # K-USER-3, K-LOG-6
    @transaction("debit")
    async def large(effect: EffectContext, input: Json) -> Json:
        await effect.sql.execute(TAKE)
        return "large " * 100

    def layered(store: Any) -> Stores:
        contents = store if hasattr(store, "put_content") else MemoryStore()
        return with_codec(with_content(store.stores, contents, inline_bytes_max=500), Reversed())

    async def body() -> None:
        assert "large " * 100 == await place.run(one_step(large), stores=layered)
        async with place.open() as store:
            (completion,) = [e.text for e in await store.read_from("x", 0) if "__loomContent" in e.text][:1] or [""]
        assert "egral" not in completion
        assert 90 == await place.balance()

    use(place, body)


# ---- SQLite alone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events",
        "UPDATE main.Executions SET fence = 0",
        "DROP TABLE leases",
        "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM accounts; END",
        "ALTER TABLE contents RENAME TO mine",
        "PRAGMA synchronous = OFF",
        "ATTACH ':memory:' AS other",
    ],
)
def test_what_would_harm_the_file_is_refused(places: Callable[[str], Place], statement: str) -> None:
    @transaction("debit")
    async def harms(effect: EffectContext, input: Json) -> None:
        with pytest.raises(TransactionMisuse, match="was not executed"):
            await effect.sql.execute(statement)
        await effect.sql.execute("SELECT count(*) FROM events")

    place = places("sqlite-inline")

    async def body() -> None:
        assert None is await place.run(one_step(harms))
        assert [STARTED, COMPLETED] == (await place.log())[1:-1]

    use(place, body)


def test_a_transaction_that_sqlite_has_rolled_back_goes_no_further(places: Callable[[str], Place]) -> None:
    @transaction("debit")
    async def swallows(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        with contextlib.suppress(sqlite3.IntegrityError):
            await effect.sql.execute("INSERT OR ROLLBACK INTO accounts VALUES (1, 1)")
        with contextlib.suppress(TransactionRefused):
            await effect.sql.execute(TAKE)

    place = places("sqlite")

    async def body() -> None:
        failure = await place.run(one_step(swallows))
        assert TransactionRefused.__name__ == failure["type"]
        assert 100 == await place.balance()

    use(place, body)


def test_a_write_past_the_transaction_is_told_instead_of_waiting_for_itself(places: Callable[[str], Place]) -> None:
    @transaction("debit")
    async def starts(effect: EffectContext, input: Json) -> None:
        with pytest.raises(TransactionMisuse, match="has the file's only writer"):
            await runtimes[0].deliver("x", "news", delivery_id="1")

    runtimes: list[Any] = []
    place, pay = places("sqlite"), one_step(starts)

    async def body() -> None:
        async with place.open() as store, open_runtime(stores=store.stores, flows=[pay]) as runtime:
            runtimes.append(runtime)
            assert None is await outcome(await runtime.start(pay, execution_id="x"))

    use(place, body)


# ---- PostgreSQL alone ------------------------------------------------------------------------------------------------


def test_nothing_that_an_effect_leaves_in_its_session_reaches_the_store(places: Callable[[str], Place]) -> None:
    @transaction("debit")
    async def leaves(effect: EffectContext, input: Json) -> None:
        for setting in ("search_path = nowhere", "synchronous_commit = off", "statement_timeout = 1", "TimeZone = 7"):
            await effect.sql.execute(f"SET {setting}")
        await effect.sql.execute("SET LOCAL search_path = nowhere")
        await effect.sql.execute("SELECT pg_advisory_lock(7)")

    sql = (
        "SELECT current_setting('search_path'), current_setting('synchronous_commit'), current_setting('TimeZone'), "
        "(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"
    )
    place = places("postgres")

    async def body() -> None:
        async with place.open() as store, open_runtime(stores=store.stores, flows=[one_step(leaves)]) as runtime:
            (before,) = [connection.execute(sql).fetchone() for connection in store._pool._idle]
            assert None is await outcome(await runtime.start(one_step(leaves), execution_id="x"))
            after = [connection.execute(sql).fetchone() for connection in store._pool._idle]
            assert [before] * len(after) == after
            assert after, "the connection is used again"

    use(place, body)


def test_an_effect_that_swallows_a_failed_statement_fails(places: Callable[[str], Place]) -> None:
    @transaction("debit")
    async def swallows(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        with contextlib.suppress(Exception):
            await effect.sql.execute("SELECT 1 / 0")

    place = places("postgres")

    async def body() -> None:
        failure = await place.run(one_step(swallows))
        assert TransactionRefused.__name__ == failure["type"]
        assert "set a savepoint" in failure["message"]
        assert 100 == await place.balance()

    use(place, body)


def test_an_attempt_whose_connection_is_lost_is_tried_again(places: Callable[[str], Place]) -> None:
    @transaction("debit", retry=RetryPolicy(attempts=2, backoff_seconds=0))
    async def loses(effect: EffectContext, input: Json) -> None:
        await effect.sql.execute(TAKE)
        if effect.attempt == 1:
            await effect.sql.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    place = places("postgres")

    async def body() -> None:
        assert None is await place.run(one_step(loses))
        assert [STARTED, FAILED, STARTED, COMPLETED] == (await place.log())[1:-1]
        assert 90 == await place.balance()

    use(place, body)


def test_a_serialization_failure_is_the_attempts(places: Callable[[str], Place]) -> None:
    @transaction("debit", retry=RetryPolicy(attempts=2, backoff_seconds=0))
    async def serial(effect: EffectContext, input: Json) -> Json:
        await effect.sql.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        ((balance,),) = (await effect.sql.execute("SELECT balance FROM accounts WHERE id = 1")).rows
        if effect.attempt == 1:
            assert 90 == (await other[0].sql.execute(TAKE)).rows[0][0]
            await append_to(other[0], "other")
        return (await effect.sql.execute(f"UPDATE accounts SET balance = {balance - 10} RETURNING balance")).rows[0][0]

    other: list[Transaction] = []
    place = places("postgres")

    async def body() -> None:
        async with place.open() as store, opened(store) as transaction:
            other.append(transaction)
            assert 80 == await place.run(one_step(serial))
        assert [STARTED, FAILED, STARTED, COMPLETED] == (await place.log())[1:-1]

    use(place, body)
