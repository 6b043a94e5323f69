"""Several workers on one store: who drives what, and what happens when one dies or is overtaken (K-RUN-3)."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
import trio

from kernel import ExecutionBlocked, ExecutionCancelled, flow, step
from kernel.adapters.memory import MemoryStore
from kernel.adapters.postgres import PostgresStore
from kernel.adapters.sqlite import open_sqlite
from kernel.conformance import ConformanceFailure, chain
from kernel.conformance_leases import LEASE_CHECKS
from kernel.errors import LeaseHeld
from kernel.leases import Owner, Ownership
from kernel.ports import Stores

LEASE = {"lease_seconds": 30}


@pytest.fixture
def handle(open_store):
    """What opens a handle on the test's own store, of each kind."""

    @contextlib.asynccontextmanager
    async def handle(_stores=None):
        async with open_store() as store:
            yield store.stores

    return handle


@pytest.mark.parametrize("check", LEASE_CHECKS, ids=lambda check: check.name)
def test_stores_conform(handle, check):
    # K-RUN-3, K-LOG-5
    trio.run(check.run, handle, handle)


class NoCompare(MemoryStore):
    async def acquire(self, execution_id, owner, *, until_ms, after):
        entry = await self.entry(execution_id)
        return await super().acquire(execution_id, owner, until_ms=until_ms, after=entry.fence if entry else 0)


class NoClaim(MemoryStore):
    async def acquire(self, execution_id, owner, *, until_ms, after):
        fence = await super().acquire(execution_id, owner, until_ms=until_ms, after=after)
        self._executions[execution_id].fence -= 1
        return fence


class RenewsForAnybody(MemoryStore):
    async def renew(self, execution_id, *, fence, until_ms):
        await super().renew(execution_id, fence=self._executions[execution_id].fence, until_ms=until_ms)


class NeverRenews(MemoryStore):
    async def renew(self, execution_id, *, fence, until_ms):
        pass


class LeasesToNobody(MemoryStore):
    async def acquire(self, execution_id, owner, *, until_ms, after):
        return 1


@pytest.mark.parametrize("broken", [NoCompare, NoClaim, RenewsForAnybody, NeverRenews, LeasesToNobody])
def test_a_broken_store_does_not_conform(broken):
    # K-RUN-3
    @contextlib.asynccontextmanager
    async def make():
        yield broken().stores

    async def story():
        failed = []
        for check in LEASE_CHECKS:
            try:
                await check.run(make)
            except ConformanceFailure:
                failed.append(check.name)
        return failed

    assert trio.run(story)


# ---- two workers -----------------------------------------------------------------------------------------------------


class Holding:
    """A flow with a step whose effect is held until the test lets go, and a gate after it."""

    def __init__(self) -> None:
        self.calls, self.begun, self.go = [], trio.Event(), trio.Event()

        async def effect(ectx, input):
            self.calls.append((input, ectx.attempt))
            self.begun.set()
            await self.go.wait()
            return input

        @flow(id="held")
        async def held(ctx, _input):
            first = await ctx.execute(step("first", effect), 1)
            second = await ctx.execute(step("second", effect), 2)
            return [first, second, await ctx.suspend("go", timeout=1000)]

        self.flow = held


@pytest.fixture
def held():
    return Holding()


@pytest.fixture
def world(open_store, make_bench):
    """Two handles on one store, and a bench whose processes have leases."""

    @contextlib.asynccontextmanager
    async def open_world():
        async with open_store() as store, open_store() as second:
            turns = [one._turns for one in (store, second) if isinstance(one, PostgresStore)]
            yield make_bench(store=store, turns=turns), store.stores, second.stores

    return open_world


async def tick(bench, seconds, *, step_seconds=5):
    """Let time pass as it does: a bit at a time."""
    for _ in range(seconds // step_seconds):
        bench.clock.advance(step_seconds)
        await bench.settle()


async def in_time(bench, runtime):
    """The result that a worker comes to know of by looking again."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick, bench, 40)
        return await runtime.wait_result("x")


def test_what_a_live_worker_drives_is_left_alone_however_long_it_takes(world, held):
    # K-RUN-3, B06, B25
    async def story():
        async with (
            world() as (bench, stores, second),
            bench.process(held.flow, stores=stores, **LEASE) as one,
            bench.process(held.flow, stores=second, **LEASE) as other,
        ):
            await one.start(held.flow, execution_id="x")
            await held.begun.wait()
            await tick(bench, 100)
            assert [] == await other.recover_all()
            held.go.set()
            await bench.settle()
            await other.deliver("x", "go", 3, delivery_id="d")
            assert [1, 2, 3] == await in_time(bench, one)
            return await other.wait_result("x")

    assert [1, 2, 3] == trio.run(story)
    assert [(1, 1), (2, 1)] == held.calls


def test_an_orphan_is_adopted_when_its_lease_runs_out(world, held):
    # K-RUN-3, B27
    async def story():
        async with world() as (bench, stores, second):
            async with bench.process(held.flow, stores=stores, **LEASE) as one:
                await one.start(held.flow, execution_id="x")
                await held.begun.wait()
            held.go.set()
            async with bench.process(held.flow, stores=second, **LEASE) as other:
                await tick(bench, 25)
                assert [] == await other.recover_all()
                await tick(bench, 5)
                assert ["x"] == await other.recover_all()
                await bench.settle()
        return held.calls

    assert [(1, 1), (1, 2), (2, 1)] == trio.run(story)


@pytest.mark.parametrize(
    ("before", "after", "adopted"), [("w", "w", ["x"]), ("w", "v", []), ("w", None, []), (None, "w", [])]
)
def test_a_worker_that_is_started_again_takes_up_its_own_without_waiting(world, held, before, after, adopted):
    # K-RUN-3, B27: by name and incarnation, not by name
    async def story():
        async with world() as (bench, stores, second):
            async with bench.process(held.flow, stores=stores, worker=before, **LEASE) as one:
                await one.start(held.flow, execution_id="x")
                await held.begun.wait()
            async with bench.process(held.flow, stores=second, worker=after, **LEASE) as other:
                return await other.recover_all()

    assert adopted == trio.run(story)


def test_a_stolen_lease_stops_the_old_owner_without_another_effect(world, held):
    # K-RUN-3, B57
    async def story():
        async with (
            world() as (bench, stores, second),
            bench.process(held.flow, stores=stores, **LEASE) as one,
            bench.process(held.flow, stores=second, **LEASE) as other,
        ):
            await one.start(held.flow, execution_id="x")
            await held.begun.wait()
            bench.clock.ms += 31_000  # the old owner's process stands still: it renews nothing
            assert ["x"] == await other.recover_all()
            await bench.settle()
            held.go.set()
            await bench.settle()
            return await bench.log()

    log = trio.run(story)
    assert ("EXECUTION_SUSPENDED", "go") == log[-1]
    assert 1 == log.count(("STEP_COMPLETED", "first"))
    assert [(1, 1), (1, 2), (2, 1)] == sorted(held.calls)


def test_one_of_two_workers_fires_a_timer(world, held):
    # K-RUN-3, B43
    async def story():
        async with world() as (bench, stores, second):
            held.go.set()
            async with (
                bench.process(held.flow, stores=stores, **LEASE) as one,
                bench.process(held.flow, stores=second, **LEASE) as other,
            ):
                await one.start(held.flow, execution_id="x")
                await bench.settle()
                await other.recover_all()
                await bench.settle()
                bench.clock.advance(1000)
                await bench.settle()
            return [event for event in await bench.log() if event[0] == "EXECUTION_RESUMED"]

    assert [("EXECUTION_RESUMED", "TIMER_FIRED")] == trio.run(story)


def test_who_was_overtaken_leaves_a_parked_execution_to_who_did_it_until_that_lease_runs_out():
    # K-RUN-3.  Otherwise two workers whose timers are due at once claim from each other for ever.
    async def story():
        stores, clock = MemoryStore().stores, ManualClock()
        about = {"fence": 0, "flow_id": "f", "status": "suspended", "due_ms": 1}
        await stores.events.append("x", 0, chain("x", 1), **about)
        one, other = (
            Ownership(stores=stores, clock=clock, owner=Owner(incarnation=name), lease_ms=30_000) for name in "ab"
        )
        assert (1, 2) == (await one.claim("x"), await other.claim("x"))  # parked is nobody's
        with pytest.raises(LeaseHeld):
            await one.claim("x", overtaken=True)
        clock.ms += 30_000
        return await one.claim("x", overtaken=True)

    assert 3 == trio.run(story)


class ManualClock:
    ms = 0

    def now_ms(self):
        return self.ms

    async def sleep_until(self, due_ms):
        await trio.sleep_forever()


def test_a_request_to_cancel_reaches_the_owner_by_way_of_another_worker(world, held):
    # K-RUN-3, K-RUN-4
    async def story():
        async with world() as (bench, stores, second):
            async with (
                bench.process(held.flow, stores=stores, **LEASE) as one,
                bench.process(held.flow, stores=second, **LEASE) as other,
            ):
                await one.start(held.flow, execution_id="x")
                await held.begun.wait()
                await other.cancel("x")
                await tick(bench, 15)
                held.go.set()
                await bench.settle()
                with pytest.raises(ExecutionCancelled):
                    await one.wait_result("x")
            return held.calls

    assert [(1, 1)] == trio.run(story)


def test_two_workers_that_start_the_same_execution_at_once_run_it_once(world, held):
    # K-RUN-1, K-RUN-3
    async def story():
        async with world() as (bench, stores, second):
            held.go.set()
            async with (
                bench.process(held.flow, stores=stores, **LEASE) as one,
                bench.process(held.flow, stores=second, **LEASE) as other,
                trio.open_nursery() as nursery,
            ):
                for runtime in (one, other):

                    async def start(runtime=runtime):
                        await runtime.start(held.flow, execution_id="x")

                    nursery.start_soon(start)
                await bench.settle()
            return (await bench.log())[-1]

    assert ("EXECUTION_SUSPENDED", "go") == trio.run(story)
    assert [(1, 1), (2, 1)] == held.calls


def test_leases_need_a_store_that_keeps_them(bench, held):
    # K-RUN-3
    async def story():
        store = bench.store
        bare = Stores(events=store, snapshots=store, mailbox=store)
        with pytest.raises(ValueError, match="leases"):
            async with bench.process(held.flow, stores=bare, **LEASE):
                pass

    trio.run(story)


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path):
    # K-LOG-5, K-RUN-3
    async def story():
        path = tmp_path / "old.db"
        async with open_sqlite(path, inline=True):
            pass
        old = sqlite3.connect(path)
        for table in ("leases", "contents"):
            old.execute(f"DROP TABLE {table}")
        old.execute("PRAGMA user_version = 1")
        old.close()
        async with open_sqlite(path, inline=True) as store, open_sqlite(path, inline=True):
            return await store.lease("x")

    assert trio.run(story) is None


def test_without_leases_nothing_but_the_log_is_written(bench, held):
    # K-RUN-3: the simple case pays nothing
    writes = []

    class Counting(MemoryStore):
        def __getattribute__(self, name):
            if name in ("claim", "acquire", "renew", "put", "remove", "save"):
                writes.append(name)
            return super().__getattribute__(name)

    async def story():
        held.go.set()
        bench.store = Counting()
        await bench.run(held.flow)

    trio.run(story)
    assert [] == writes


# ---- ends that come elsewhere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "cancelled", "blocked"])
def test_who_waits_for_a_result_learns_of_an_end_that_came_in_another_process(make_bench, tmp_path, end):
    # K-USER-1: one file, two runtimes without leases; the first only waits, and looks now and then by its clock
    gate = "go"

    @flow
    async def waits(ctx, _input):
        return await ctx.suspend(gate)

    async def story():
        nonlocal gate
        path = tmp_path / "s.db"
        async with open_sqlite(path, inline=True) as one, open_sqlite(path, inline=True) as two:
            bench, other = make_bench(store=one), make_bench(store=two)
            async with bench.process(waits) as first, trio.open_nursery() as nursery:
                handle = await first.start(waits, execution_id="x")
                await bench.settle()
                nursery.start_soon(wait_for, handle)
                await bench.settle()
                async with other.process(waits) as second:
                    gate = "gone" if end == "blocked" else gate
                    if end == "cancelled":
                        await second.cancel("x")
                    else:
                        await second.deliver("x", "go", "yes", delivery_id="d")
                    await bench.settle()
                assert [] == seen
                bench.clock.advance(10)

    async def wait_for(handle):
        try:
            seen.append(await handle.result())
        except (ExecutionCancelled, ExecutionBlocked) as error:
            seen.append(type(error))

    seen = []
    trio.run(story)
    assert [{"completed": "yes", "cancelled": ExecutionCancelled, "blocked": ExecutionBlocked}[end]] == seen
