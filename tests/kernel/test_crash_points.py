"""A process dies at EVERY durable write, before it and after it, in the middle of what takes many: all converge.

A fan-out over children, a rollback, a compaction, a fork.  After the crash there is a new process with a new
supervisor, the client asks for the same things again, and nobody cleans up by hand.
"""

from __future__ import annotations

import contextlib
import itertools
import types

import pytest
import trio
import trio.testing

from kernel import Supervisor, TypedFailure, flow, saga, step, supervise_children
from kernel.adapters.memory import MemoryStore
from kernel.adapters.sqlite import open_sqlite
from kernel.cli.going_on import record_only
from kernel.fold import fold_events
from kernel.lifecycle import load
from kernel.orchestration import await_children
from tests.kernel.conftest import Crashing

WRITES = ("append", "claim", "save", "truncate_prefix", "put", "remove")


class Keeping(MemoryStore):
    """A store that keeps, beside its logs, every event that ever landed."""

    def __init__(self):
        super().__init__()
        self.history = {}

    async def append(self, execution_id, expected, batch, **more):
        await super().append(execution_id, expected, batch, **more)
        self.history.setdefault(execution_id, []).extend(batch)

    def completed(self, execution_id):
        """The steps that have completed, in order, each as often as it has."""
        events = self.history.get(execution_id, ())
        return [event.payload["step"] for event in events if event.type == "STEP_COMPLETED"]

    def kinds(self, execution_id):
        """The log without what a crash may add: attempts of a step that had no end."""
        kept = [
            (event.type, event.payload["step"] if event.type.startswith("STEP_") else None)
            for event in self.history[execution_id]
        ]
        return [entry for n, entry in enumerate(kept) if entry[0] != "STEP_STARTED" or entry not in kept[:n]]


@contextlib.asynccontextmanager
async def family(bench, flows, **more):
    """A process with a supervisor."""
    supervisor = Supervisor()
    async with (
        bench.process(*flows, observers=[supervisor.observe], **more) as runtime,
        supervise_children(supervisor, runtime, clock=bench.clock, sweep_seconds=None),
    ):
        yield runtime


async def crash_at(bench, drive, flows, at, landed, **more):
    """Drive in a process with a supervisor that dies at write `at`; False if it has not come to that."""
    supervisor = Supervisor()

    async def supervised(runtime):
        async with supervise_children(supervisor, runtime, clock=bench.clock, sweep_seconds=None):
            await bench.settle()
            await drive(runtime)
            await bench.settle()

    observers = [supervisor.observe]
    return await bench.crash(supervised, *flows, at=at, landed=landed, writes=WRITES, observers=observers, **more)


async def crash_at_every_write(make_bench, flows, drive, check, *, prepare=None, every=1, **more):
    """Crash at each write of `drive`, or at one in `every`; recover, drive again, and check.  Return how many fired."""
    fired = 0
    for at in itertools.count(0, every):
        before = fired
        for landed in (False, True):
            bench = make_bench(store=Keeping(), **more)
            if prepare is not None:
                await prepare(bench)
            fired += await crash_at(bench, drive, flows, at, landed)
            async with family(bench, flows) as runtime:
                await runtime.recover_all()
                await drive(runtime)
                await bench.settle()
                await check(bench, runtime)
        if fired == before:
            return fired
    raise AssertionError


async def work(_ectx, input):
    return input


# ---- a fan-out -------------------------------------------------------------------------------------------------------

double = step("double", lambda _ectx, n: work(_ectx, 2 * n))


@flow
async def child(ctx, n):
    return await ctx.run(double, n)


@flow
async def fan_out(ctx, n):
    return await await_children(ctx, {f"k{i}": (child, i) for i in range(n)})


@pytest.mark.parametrize(("fan", "every", "points"), [(3, 1, 50), (50, 11, 70)])
def test_a_fan_out_converges_whatever_write_its_process_dies_at(make_bench, fan, every, points):
    # K-CHILD-2, K-CHILD-3: all results by key, each child once, the parent resumed once, and no message left behind
    async def drive(runtime):
        await runtime.start(fan_out, fan, execution_id="x")

    async def check(bench, runtime):
        assert {f"k{i}": 2 * i for i in range(fan)} == (await runtime.state("x"))["output"]
        assert [["double"]] * fan == [bench.store.completed(f"x::k{i}") for i in range(fan)]
        kinds = [kind for kind, _ in bench.store.kinds("x")]
        gate = [kinds.count(kind) for kind in ("EXECUTION_SUSPENDED", "GATE_DELIVERED", "EXECUTION_RESUMED")]
        assert [1, fan - 1, 1] == gate
        assert [f"x::k{i}" for i in range(fan)] == sorted(set(bench.store.history) - {"x"}, key=_number)
        assert [] == await bench.store.executions()

    assert trio.run(lambda: crash_at_every_write(make_bench, [fan_out, child], drive, check, every=every)) >= points


def _number(child_id):
    return int(child_id.rpartition("k")[2])


# ---- a rollback ------------------------------------------------------------------------------------------------------


class Stop(TypedFailure):
    pass


async def stop(_ectx, _input):
    raise Stop({"n": 1})


@pytest.mark.parametrize("failures", [(Stop,), ()], ids=["declared", "untyped"])
def test_a_rollback_is_finished_whatever_write_its_process_dies_at(make_bench, failures):
    # K-SAGA-2, K-SAGA-4: every compensation once and last first; the log is that of a calm run
    failing = step("fail", stop, failures=failures)
    undone = ["undoC#compensate:2", "undoB#compensate:1", "undoA#compensate:0"]

    @flow
    async def order(ctx, _input):
        async with saga(ctx) as s:
            for id in "ABC":
                await s.run(step(id, work), compensate=step(f"undo{id}", work))
            await s.run(failing)

    async def drive(runtime):
        await runtime.start(order, execution_id="x")

    async def check(bench, runtime):
        state = await runtime.state("x")
        assert "failed" == state["status"]
        assert ["A", "B", "C", *undone] == bench.store.completed("x")
        if failures:
            assert calm == bench.store.kinds("x")
            assert {"data": {"n": 1}, "name": "Stop", "type": "Stop"} == state["error"]

    async def story():
        bench = make_bench(store=Keeping())
        async with family(bench, [order]) as runtime:
            await drive(runtime)
            await bench.settle()
        calm.extend(bench.store.kinds("x"))
        return await crash_at_every_write(make_bench, [order], drive, check)

    calm = []
    assert trio.run(story) >= 2 * len(calm)


# ---- a compaction ----------------------------------------------------------------------------------------------------


@flow
async def session(ctx, _input):
    told = []
    for turn in range(3):
        await ctx.ui.append("timeline", turn)
        told.append([await ctx.suspend("say"), await ctx.run(step("answer", work), turn, key=str(turn))])
    return told


async def talk(runtime):
    """What a client and an operator do; they may do it again."""
    await runtime.start(session, execution_id="x")
    for turn in range(3):
        await runtime.compact("x")
        await runtime.deliver("x", "say", f"hello {turn}", delivery_id=f"d{turn}")
        await trio.testing.wait_all_tasks_blocked()
    await runtime.compact("x")


@pytest.mark.parametrize("snapshot_every", [None, 2])
def test_a_compaction_loses_nothing_whatever_write_its_process_dies_at(make_bench, snapshot_every):
    # K-RUN-6, K-FOLD-1: snapshot and tail are the fold of all that was ever appended
    async def check(bench, runtime):
        state = await runtime.state("x")
        assert [[f"hello {turn}", turn] for turn in range(3)] == state["output"]
        assert fold_events(bench.store.history["x"]) == state
        assert [f"answer[{turn}]" for turn in range(3)] == bench.store.completed("x")
        loaded = await load(bench.store.stores, "x", projections=bench.projections)
        assert {"timeline": [0, 1, 2]} == loaded.projected["surfaces"]
        assert [] == await bench.store.executions()

    async def story():
        return await crash_at_every_write(make_bench, [session], talk, check, snapshot_every=snapshot_every)

    assert trio.run(story) >= 60


# ---- a fork ----------------------------------------------------------------------------------------------------------


@flow
async def trip(ctx, _input):
    price = await ctx.run(step("quote", work), 7)
    await ctx.emit("quoted", price)
    answer = await ctx.suspend("go")
    return [price, answer, await ctx.run(step("book", work), 8)]


async def travelled(bench):
    async with bench.process(trip) as runtime:
        await runtime.start(trip, execution_id="x")
        await runtime.deliver("x", "go", "yes", delivery_id="d")
        await bench.settle()


async def check_fork(bench, upto):
    """The fork has what it has inherited, has come to the same end, and has not run again what was served."""
    x, y = bench.store.history["x"], bench.store.history["y"]
    assert [(e.type, e.payload) for e in x[: upto + 1]] == [(e.type, e.payload) for e in y[: upto + 1]]
    assert [e.hash for e in x[: upto + 1]] == [e.metadata["forkedFrom"]["hash"] for e in y[: upto + 1]]
    assert bench.store.kinds("x") == bench.store.kinds("y")
    assert [7, "yes", 8] == fold_events(y)["output"]
    assert 9 == len(x), "it is as it was"


@pytest.mark.parametrize("upto", range(9))
def test_a_fork_is_made_once_and_goes_on_whatever_write_its_process_dies_at(make_bench, upto):
    # K-RUN-5
    async def drive(runtime):
        await runtime.fork("x", upto=upto, new_id="y")
        await runtime.deliver("y", "go", "yes", delivery_id="d")

    async def check(bench, runtime):
        await check_fork(bench, upto)

    assert trio.run(lambda: crash_at_every_write(make_bench, [trip], drive, check, prepare=travelled)) >= 2


async def die(command, crashing):
    """Run a command over a store that dies; False if it has come to its end."""
    async with trio.open_nursery() as nursery:

        async def run():
            await command(crashing.stores)
            nursery.cancel_scope.cancel()

        nursery.start_soon(run)
        await crashing.dead.wait()
        nursery.cancel_scope.cancel()
    return crashing.dead.is_set()


@pytest.mark.parametrize("upto", [0, 4, 8])
def test_a_fork_by_an_operator_is_made_once_whatever_write_the_command_dies_at(make_bench, upto):
    # K-RUN-5: `python -m kernel fork` records only; the next worker goes on
    async def command(stores):
        await record_only(types.SimpleNamespace(stores=stores), lambda r: r.fork("x", upto=upto, new_id="y"))

    async def story():
        for at in itertools.count():
            before = len(fired)
            for landed in (False, True):
                bench = make_bench(store=Keeping())
                await travelled(bench)
                if await die(command, Crashing(bench.store, at=at, landed=landed, writes=WRITES)):
                    fired.append(at)
                await command(bench.store.stores)
                async with family(bench, [trip]) as runtime:
                    await runtime.recover_all()
                    await runtime.deliver("y", "go", "yes", delivery_id="d")
                    await bench.settle()
                await check_fork(bench, upto)
            if len(fired) == before:
                return

    fired = []
    trio.run(story)
    assert [0, 0] == fired[:2]


@pytest.mark.parametrize("at", range(8))
def test_forks_and_compactions_in_one_file_survive_the_same(make_bench, tmp_path, at):
    # K-RUN-5, K-RUN-6: on SQLite, both in one process
    async def drive(runtime):
        await runtime.start(session, execution_id="x")
        await runtime.deliver("x", "say", "hello 0", delivery_id="d0")
        await trio.testing.wait_all_tasks_blocked()
        await runtime.fork("x", upto=2, new_id="y")
        await talk(runtime)

    async def story(landed):
        async with open_sqlite(tmp_path / f"{landed}.db", inline=True) as store:
            bench = make_bench(store=store)
            assert await crash_at(bench, drive, [session], at * 4, landed)
            async with family(bench, [session]) as runtime:
                await runtime.recover_all()
                await drive(runtime)
                await bench.settle()
                return (await runtime.state("x"))["output"], (await runtime.state("y"))["resumes"]

    for landed in (False, True):
        assert ([[f"hello {turn}", turn] for turn in range(3)], []) == trio.run(story, landed)
