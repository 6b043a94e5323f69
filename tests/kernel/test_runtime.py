"""The runtime: starting, delivering, recovering, and what a store may do to it (K-RUN, K-LOG-2)."""

from __future__ import annotations

import json

import attrs
import pytest
import trio
import trio.testing

from kernel import ExecutionFailed, ExecutionInterrupted, Parts, UnknownExecution, flow, step
from kernel.adapters.sqlite import SqliteStore
from kernel.errors import (
    AppendUnknown,
    CorruptLog,
    ExecutionMismatch,
    Fenced,
    SnapshotUnreadable,
    StoreUnavailable,
    UnknownFlow,
)
from kernel.events import StoredEvent, hash_of, seal
from kernel.fold import FoldPass
from kernel.jsonform import encode
from kernel.ports import Delivery, StoredSnapshot, Stores
from kernel.verify import Fault, Point, verify

effects_run: list[str] = []


@pytest.fixture(autouse=True)
def _no_effects_yet():
    effects_run.clear()


@step("quote")
async def quote(ectx, _input):
    effects_run.append(f"quote {ectx.attempt}")
    return {"price": 7}


@step("book")
async def book(ectx, _input):
    effects_run.append(f"book {ectx.attempt}")
    return "booked"


@flow
async def trip(ctx, _input):
    price = await ctx.execute(quote)
    await ctx.ui.append("timeline", "quoted")
    route = await ctx.decide("route", lambda: "north")
    answer = await ctx.suspend("go")
    await ctx.ui.append("timeline", answer)
    done = await ctx.execute(book)
    await ctx.emit("trip.booked")
    return [price, route, answer, done]


CALM = [
    ("EXECUTION_STARTED",),
    ("STEP_STARTED", "quote"),
    ("STEP_COMPLETED", "quote"),
    ("emit", "append timeline quoted", "stamped"),
    ("DECISION_RECORDED", "route"),
    ("EXECUTION_SUSPENDED", "go"),
    ("EXECUTION_RESUMED", "go"),
    ("emit", "append timeline yes", "stamped"),
    ("STEP_STARTED", "book"),
    ("STEP_COMPLETED", "book"),
    ("emit", "trip.booked", "stamped"),
    ("EXECUTION_COMPLETED",),
]
OUTPUT = [{"price": 7}, "north", "yes", "booked"]


async def drive_trip(runtime):
    """What a client does; it may do it again, to any process."""
    await runtime.start(trip, execution_id="x")
    await runtime.deliver("x", "go", "yes", delivery_id="d1")


@flow
async def two_gates(ctx, _input):
    return [await ctx.suspend("go"), await ctx.suspend("go")]


def without_attempts(log):
    """The log without what a crash may add: starts of attempts that had no end, and emits made once more."""
    kept = []
    for entry in log:
        if (entry[0] == "STEP_STARTED" or entry[0] == "emit") and entry[:2] in [other[:2] for other in kept]:
            continue
        kept.append(entry)
    return kept


# ---- starting --------------------------------------------------------------------------------------------------------


def test_a_start_is_idempotent_by_execution_id(bench):
    # K-RUN-1: one after the other, at the same time, after the end, after a compaction
    async def story():
        async with bench.process(two_gates) as runtime:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(lambda: runtime.start(two_gates, [1], execution_id="x"))
            for n in (1, 2):
                await runtime.deliver("x", "go", n, delivery_id=f"d{n}")
            handle = await runtime.start("two_gates", [1], execution_id="x")
            results = [await handle.result()]
            log = await bench.log()
            await runtime.compact("x")
            results.append(await (await runtime.start(two_gates, [1], execution_id="x")).result())
            return results, log.count(("EXECUTION_STARTED",))

    assert ([[1, 2]] * 2, 1) == trio.run(story)


def test_a_start_of_the_same_id_with_another_flow_or_input_is_an_error(bench):
    # K-RUN-1
    async def story():
        async with bench.process(two_gates, trip) as runtime:
            await runtime.start(two_gates, [1], execution_id="x")
            for other, input in ((two_gates, [2]), (trip, [1])):
                with pytest.raises(ExecutionMismatch, match="'two_gates' with input"):
                    await runtime.start(other, input, execution_id="x")
            with pytest.raises(UnknownFlow, match=r"registered are \['trip', 'two_gates'\]"):
                await runtime.start("other", execution_id="y")

    trio.run(story)


def test_errors_of_the_block_leave_a_runtime_as_they_are(bench):
    # K-RUN-1: no exception group around them
    @flow
    async def failing(_ctx, _input):
        raise ValueError("no")

    async def story():
        async with bench.process(failing) as runtime:
            await (await runtime.start(failing, execution_id="x")).result()

    with pytest.raises(ExecutionFailed) as caught:
        trio.run(story)
    assert {"message": "no", "type": "ValueError"} == caught.value.error


def test_a_result_is_not_missed_when_the_execution_ends_while_its_state_is_loaded(bench):
    # K-RUN-1
    held, release = trio.Event(), trio.Event()

    class SlowRead:
        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def read_from(self, execution_id, sequence):
            rows = await bench.store.read_from(execution_id, sequence)
            if not held.is_set():
                held.set()
                await release.wait()
            return rows

    @flow
    async def waiting(_ctx, _input):
        await held.wait()
        return "done"

    async def story():
        slow = SlowRead()
        stores = Stores(events=slow, snapshots=slow, mailbox=slow)
        async with bench.process(waiting, stores=stores) as runtime, trio.open_nursery() as nursery:
            results = []
            handle = await runtime.start(waiting, execution_id="x")

            async def ask():
                results.append(await handle.result())

            nursery.start_soon(ask)
            await bench.settle()
            release.set()
            with trio.fail_after(5):
                while not results:
                    await trio.lowlevel.checkpoint()
        return results

    assert ["done"] == trio.run(story)


def test_deeply_nested_values_survive_snapshots_and_failures(bench):
    # K-JSON, K-RUN-6: what is accepted at the call can be stored and read again
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    bench.snapshot_every = 1

    @flow
    async def keeping(ctx, input):
        await ctx.decide("deep", lambda: input)
        return input

    async def story():
        async with bench.process(keeping) as runtime:
            return repr(await (await runtime.start(keeping, deep, execution_id="x")).result())

    assert repr(deep) == trio.run(story)


# ---- delivering ------------------------------------------------------------------------------------------------------


def test_a_duplicate_delivery_passes_one_gate_whenever_it_comes(bench):
    # K-RUN-2
    async def story():
        async with bench.process(two_gates) as runtime:
            handle = await runtime.start(two_gates, execution_id="x")
            for _ in range(3):  # before it is consumed, and after
                for _ in range(2):
                    await runtime.deliver("x", "go", "first", delivery_id="d1")
                await bench.settle()
            parked = (await runtime.state("x"))["status"], await bench.store.pending("x")
            await runtime.deliver("x", "go", "second", delivery_id="d2")
            return parked, await handle.result()

    assert (("suspended", []), ["first", "second"]) == trio.run(story)


def test_a_duplicate_is_known_after_compaction_and_in_another_process(bench):
    # K-RUN-2, K-FOLD-6
    async def story():
        await bench.run(two_gates)
        await bench.deliver(two_gates, on="go", payload="first", id="d1")
        async with bench.process(two_gates) as runtime:
            await runtime.compact("x")
        await bench.deliver(two_gates, on="go", payload="first", id="d1")
        return (await bench.state(two_gates))["status"]

    assert "suspended" == trio.run(story)


def test_early_deliveries_wait_and_each_goes_to_the_gate_of_its_name_and_key(bench):
    # K-RUN-2
    @flow
    async def ordered(ctx, _input):
        passed = [await ctx.suspend("a"), await ctx.suspend("b", "k1"), await ctx.suspend("b", "k2")]
        await ctx.suspend("end")
        return passed

    async def story():
        async with bench.process(ordered) as runtime:
            handle = await runtime.start(ordered, execution_id="x")
            await runtime.deliver("x", "b", 3, correlation_key="k2", delivery_id="d3")
            await runtime.deliver("x", "b", 2, correlation_key="k1", delivery_id="d2")
            await runtime.deliver("x", "b", 0, delivery_id="d0")
            await runtime.deliver("x", "a", 1, delivery_id="d1")
            await bench.settle()
            pending = [d.delivery_id for d in await bench.store.pending("x")]
            await runtime.deliver("x", "end", delivery_id="d4")
            return await handle.result(), pending

    assert ([1, 2, 3], ["d0"]) == trio.run(story)


def test_a_delivery_to_nobody_and_one_in_the_kernels_own_names_are_errors(bench):
    # K-RUN-2
    async def story():
        async with bench.process(two_gates) as runtime:
            with pytest.raises(UnknownExecution):
                await runtime.deliver("x", "go", delivery_id="d1")
            await runtime.start(two_gates, execution_id="x")
            for on, delivery_id in (("TIMER", "d"), ("TIMER_FIRED", "d"), ("go", "timer:0")):
                with pytest.raises(ValueError, match="the kernel's own"):
                    await runtime.deliver("x", on, delivery_id=delivery_id)

    trio.run(story)


def test_recovery_finds_a_delivery_whose_wake_up_died_with_its_process(bench):
    # K-RUN-2
    async def story():
        await bench.run(two_gates)
        accepted = Delivery(delivery_id="d1", on="go", correlation_key=None, payload_text="1")
        await bench.store.put("x", accepted)
        await bench.recover(two_gates)
        return (await bench.state(two_gates))["deliveries"]

    assert {"d1": 0} == trio.run(story)


def test_a_crash_between_a_resume_and_its_removal_from_the_mailbox_passes_one_gate(bench):
    # K-RUN-2
    async def story():
        await bench.run(two_gates)
        failing = bench.failing(remove=(0, StoreUnavailable))
        await bench.deliver(two_gates, on="go", payload=1, id="d1", stores=failing.stores)
        left = [d.delivery_id for d in await bench.store.pending("x")]
        await bench.recover(two_gates)
        return failing.fired, left, await bench.store.pending("x"), (await bench.state(two_gates))["deliveries"]

    assert (1, ["d1"], [], {"d1": 0}) == trio.run(story)


# ---- recovering ------------------------------------------------------------------------------------------------------


def test_recovery_leaves_the_live_and_the_suspended_alone(bench):
    # K-RUN-3
    @flow
    async def live(_ctx, _input):
        await trio.sleep_forever()

    async def story():
        await bench.run(two_gates)
        before = await bench.store.entry("x"), await bench.log()
        async with bench.process(two_gates, live) as runtime:
            await runtime.start(live, execution_id="y")
            await bench.settle()
            adopted = await runtime.recover_all()
            await bench.settle()
        return adopted, before == (await bench.store.entry("x"), await bench.log())

    assert ([], True) == trio.run(story)


def test_recovery_leaves_an_execution_alone_whose_start_is_under_way_here(bench):
    # K-RUN-3: the first append has landed, and its answer is on the way
    landed, release = trio.Event(), trio.Event()

    class SlowAnswer:
        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def append(self, *args, **more):
            await bench.store.append(*args, **more)
            if not landed.is_set():
                landed.set()
                await release.wait()

    async def story():
        slow = SlowAnswer()
        async with bench.process(trip, stores=Stores(events=slow, snapshots=slow, mailbox=slow)) as runtime:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: runtime.start(trip, execution_id="x"))
                await landed.wait()
                adopted = await runtime.recover_all()
                release.set()
            await bench.settle()
        return adopted, await bench.log()

    assert ([], CALM[:6]) == trio.run(story)


def test_whatever_append_a_process_dies_at_recovery_comes_to_the_calm_end(sweep):
    # K-RUN, K-EMIT-2, K-LOG-2
    async def check(bench):
        async with bench.process(trip) as runtime:
            await drive_trip(runtime)
            await bench.settle()
        log = await bench.log()
        state = await bench.state(trip)
        assert OUTPUT == state["output"]
        assert CALM == without_attempts(log)
        assert [("STEP_COMPLETED", "quote"), ("STEP_COMPLETED", "book"), ("EXECUTION_COMPLETED",)] == [
            entry for entry in log if entry[0].endswith("COMPLETED")
        ]
        assert None is verify("x", await bench.store.read_from("x", 0))

    assert 2 * len(CALM) == trio.run(sweep, lambda: trip, drive_trip, check)


def test_the_same_on_a_sqlite_file(make_bench, tmp_path):
    # K-LOG-5
    async def story():
        for at in range(len(CALM)):
            store = await SqliteStore.open(tmp_path / f"{at}.db", inline=True)
            bench = make_bench(store=store, snapshot_every=3)
            try:
                assert await bench.crash(drive_trip, trip, at=at, landed=at % 2 == 0)
                async with bench.process(trip) as runtime:
                    await drive_trip(runtime)
                    await runtime.recover_all()
                    await bench.settle()
                assert CALM == without_attempts(await bench.log())
                assert OUTPUT == (await bench.state(trip))["output"]
            finally:
                await store.aclose()

    trio.run(story)


# ---- mail of what has ended ------------------------------------------------------------------------------------------


def test_what_no_gate_has_taken_is_dropped_when_the_execution_ends(bench):
    # K-RUN-2: early ones that nobody asked for, and what comes when it has ended
    @flow
    async def one_gate(ctx, _input):
        return await ctx.suspend("go")

    async def story():
        async with bench.process(one_gate) as runtime:
            handle = await runtime.start(one_gate, execution_id="x")
            for n in range(3):
                await runtime.deliver("x", "other", n, delivery_id=f"o{n}")
            await bench.settle()
            before = len(await bench.store.pending("x"))
            await runtime.deliver("x", "go", "yes", delivery_id="d")
            result = await handle.result()
            await bench.settle()
            after = await bench.store.executions()
            await runtime.deliver("x", "go", "late", delivery_id="late")
            return before, result, after, await bench.store.executions()

    assert (3, "yes", [], []) == trio.run(story)


def test_mail_that_overtakes_an_end_is_dropped_whoever_is_faster(bench):
    # K-RUN-2: accepted while it ran, stored when it had ended
    class Slow:
        """A mailbox that keeps a delivery when the execution has ended."""

        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def put(self, execution_id, delivery):
            if delivery.on == "late":
                await bench.settle()
            return await bench.store.put(execution_id, delivery)

    @flow
    async def one_gate(ctx, _input):
        return await ctx.suspend("go")

    async def story():
        slow = Slow()
        async with bench.process(one_gate, stores=Stores(events=slow, snapshots=slow, mailbox=slow)) as runtime:
            await runtime.start(one_gate, execution_id="x")
            await bench.settle()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: runtime.deliver("x", "late", delivery_id="l"))
                await runtime.deliver("x", "go", delivery_id="d")
            return (await runtime.state("x"))["status"], await bench.store.executions()

    assert ("completed", []) == trio.run(story)


@pytest.mark.parametrize("deleted", [False, True])
def test_recovery_drops_the_mail_that_a_dead_process_left_of_what_has_ended(bench, deleted):
    # K-RUN-2, K-RUN-3: and leaves that of what goes on
    async def story():
        async with bench.process(trip, two_gates) as runtime:
            await drive_trip(runtime)
            await runtime.start(two_gates, execution_id="y")
            await bench.settle()
            if deleted:
                await runtime.delete("x")
        for name in ("x", "y"):
            letter = Delivery(delivery_id="l", on="never", correlation_key=None, payload_text="1")
            await bench.store.put(name, letter)
        await bench.recover(trip, two_gates)
        return await bench.store.executions()

    assert ["y"] == trio.run(story)


def test_a_store_that_keeps_that_mail_does_not_stop_recovery(bench):
    # K-RUN-3: what is to go on goes on; the mail is there for the next recovery
    async def story():
        async with bench.process(trip) as runtime:
            await drive_trip(runtime)
            await bench.settle()
        await bench.store.put("x", Delivery(delivery_id="l", on="never", correlation_key=None, payload_text="1"))
        failing = bench.failing(remove=(0, StoreUnavailable))
        async with bench.process(trip, stores=failing.stores) as runtime:
            assert [] == await runtime.recover_all()
            assert ["x"] == await bench.store.executions()
            await runtime.recover_all()
        return await bench.store.executions()

    assert [] == trio.run(story)


def test_no_mail_is_dropped_because_looks_at_a_replica_do_not_show_an_execution_yet(bench):
    # K-RUN-2: what was accepted passes its gate
    class Lagging:
        """A store whose looks show nothing while it lags."""

        lags = False

        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def entry(self, execution_id):
            return None if self.lags else await bench.store.entry(execution_id)

        async def put(self, execution_id, delivery):
            self.lags = True
            return await bench.store.put(execution_id, delivery)

    @flow
    async def one_gate(ctx, _input):
        return await ctx.suspend("go")

    async def story():
        replica = Lagging()
        async with bench.process(
            one_gate, stores=Stores(events=replica, snapshots=replica, mailbox=replica)
        ) as runtime:
            await runtime.start(one_gate, execution_id="x")
            await bench.settle()
            await runtime.deliver("x", "go", "yes", delivery_id="d")
            await runtime.recover_all()
            await bench.settle()
            return (await runtime.state("x"))["output"]

    assert "yes" == trio.run(story)


# ---- what a store may say --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["append", "landed_append"])
def test_a_lost_answer_is_settled_by_the_append_id(make_bench, kind):
    # K-LOG-2: nothing twice, nothing missing, whether the write had landed or not
    async def story():
        for nth in range(len(CALM)):
            bench = make_bench()
            failing = bench.failing(**{kind: (nth, AppendUnknown)})
            effects_run.clear()
            async with bench.process(trip, stores=failing.stores) as runtime:
                await drive_trip(runtime)
                await bench.settle()
            assert (1, CALM, ["quote 1", "book 1"]) == (failing.fired, await bench.log(), effects_run)

    trio.run(story)


def test_a_store_that_refuses_interrupts_and_recovery_finishes_with_nothing_lost(make_bench):
    # K-LOG-2, K-RUN
    async def story():
        for nth in range(1, len(CALM)):
            bench = make_bench()
            failing = bench.failing(append=(nth, StoreUnavailable))
            async with bench.process(trip, stores=failing.stores) as runtime:
                handle = await runtime.start(trip, execution_id="x")
                await runtime.deliver("x", "go", "yes", delivery_id="d1")
                with pytest.raises(ExecutionInterrupted, match="nothing is lost"):
                    await handle.result()
                await runtime.recover_all()
                assert OUTPUT == await handle.result()
            assert CALM == without_attempts(await bench.log())

    trio.run(story)


def test_a_flows_handler_does_not_see_a_failing_store(bench):
    # K-RUN: no handler may take it for a step's failure
    seen = []

    @flow
    async def handling(ctx, _input):
        for syscall in (lambda: ctx.execute(quote), lambda: ctx.emit("note"), lambda: ctx.decide("d", lambda: 1)):
            try:
                await syscall()
            except Exception as error:
                seen.append(error)
        return "end"

    async def story():
        for nth in range(1, 5):
            failing = bench.failing(append=(nth, StoreUnavailable))
            async with bench.process(handling, stores=failing.stores) as runtime:
                await runtime.start(handling, execution_id=f"x{nth}")
                await bench.settle()
                assert "running" == (await runtime.state(f"x{nth}"))["status"]

    trio.run(story)
    assert [] == seen


def test_a_failed_start_is_an_error_of_the_caller_and_may_be_made_again(bench):
    # K-RUN-1
    async def story():
        failing = bench.failing(append=(0, StoreUnavailable))
        async with bench.process(trip, stores=failing.stores) as runtime:
            with pytest.raises(StoreUnavailable):
                await runtime.start(trip, execution_id="x")
            await drive_trip(runtime)
            await bench.settle()
        return await bench.log()

    assert CALM == trio.run(story)


class Rival:
    """A store in which another writer takes a position first, once: with what `rival` makes of the envelope."""

    def __init__(self, store, at, rival):
        self._store, self._at, self._rival = store, at, rival

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def append(self, execution_id, expected, batch, **more):
        if expected == self._at:
            self._at = None
            await self._store.append(execution_id, expected, (self._rival(batch[0]),), **more)
        await self._store.append(execution_id, expected, batch, **more)

    @property
    def stores(self):
        return Stores(events=self, snapshots=self, mailbox=self)


def rival_of(envelope, type=None):
    return seal(
        execution_id=envelope.execution_id,
        sequence=envelope.sequence,
        type=type or envelope.type,
        payload_text='{"rival":true}' if type else encode(envelope.payload),
        timestamp_ms=envelope.timestamp_ms,
        append_id="rival/1",
        previous_hash=envelope.previous_hash,
        stamp=None if type else envelope.metadata.get("flowEmit"),
    )


def test_a_lost_position_ends_the_run_without_an_effect_and_the_owner_goes_on_from_the_tail(bench):
    # K-LOG-2: the rival is at the position of quote's start
    async def story():
        rival = Rival(bench.store, 1, lambda envelope: rival_of(envelope, "rival.note"))
        async with bench.process(trip, stores=rival.stores) as runtime:
            await drive_trip(runtime)
            await bench.settle()
        return [entry for entry in await bench.log() if "rival.note" not in str(entry)]

    assert (CALM, ["quote 1", "book 1"]) == (trio.run(story), effects_run)


def test_what_a_rival_has_done_is_served_and_a_stamp_is_never_moved(bench):
    # K-LOG-2, K-EMIT-2: the rival made the very same emit, decision and completion
    async def story():
        logs = []
        for at in (2, 3, 4, 10):
            store = type(bench.store)()
            rival = Rival(store, at, rival_of)
            stores = Stores(events=rival, snapshots=rival, mailbox=rival)
            async with attrs.evolve(bench, store=store).process(trip, stores=stores) as runtime:
                await drive_trip(runtime)
                await bench.settle()
            logs.append(await attrs.evolve(bench, store=store).log())
        return logs

    assert [CALM] * 4 == trio.run(story)


def test_a_fenced_owner_stops_and_the_flow_does_not_see_it(bench):
    # K-LOG-2, K-RUN-3
    begun, claimed = trio.Event(), trio.Event()
    seen = []

    @step("slow")
    async def slow(_ectx, _input):
        begun.set()
        await claimed.wait()

    @flow
    async def fenced(ctx, _input):
        try:
            await ctx.execute(slow)
        except Exception as error:
            seen.append(error)

    async def story():
        async with bench.process(fenced) as runtime:
            handle = await runtime.start(fenced, execution_id="x")
            await begun.wait()
            await bench.store.claim("x", "another")
            claimed.set()
            with pytest.raises(ExecutionInterrupted) as caught:
                await handle.result()
        stopped_at = await bench.log()
        await bench.recover(fenced)
        return type(caught.value.__cause__.__cause__), stopped_at, (await bench.log())[-1]

    stopped = [("EXECUTION_STARTED",), ("STEP_STARTED", "slow")]
    assert (Fenced, stopped, ("EXECUTION_COMPLETED",)) == trio.run(story)
    assert [] == seen


# ---- snapshots and compaction ----------------------------------------------------------------------------------------


@flow
async def session(ctx, turns):
    total = 0
    for turn in range(turns):
        total += await ctx.suspend("go")
        await ctx.ui.append("timeline", turn)
        await ctx.decide(f"d{turn}", lambda total=total: total)
    return total


async def run_session(bench, turns=6):
    for turn in range(turns):
        async with bench.process(session) as runtime:
            await runtime.start(session, turns, execution_id="x")
            await bench.settle()
            await runtime.deliver("x", "go", turn, delivery_id=f"d{turn}")
            await bench.settle()
    return (await bench.state(session))["output"], await bench.surfaces()


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_snapshots_change_nothing_and_recovery_reads_the_tail_only(bench, every):
    # K-RUN-6, K-FOLD-1
    bench.snapshot_every = every

    async def story():
        result = await run_session(bench)
        snapshot = await bench.store.load("x")
        head = (await bench.store.entry("x")).head
        return result, head - snapshot.sequence < every, await bench.emits()

    emits = [f"append timeline {turn}*" for turn in range(6)]
    assert ((15, {"timeline": [0, 1, 2, 3, 4, 5]}), True, emits) == trio.run(story)


def test_compaction_in_mid_session_changes_nothing(bench):
    # K-RUN-6, K-FOLD-4
    async def story():
        async with bench.process(session) as runtime:
            handle = await runtime.start(session, 3, execution_id="x")
            for turn in range(3):
                await runtime.deliver("x", "go", turn, delivery_id=f"d{turn}")
                await bench.settle()
                await runtime.compact("x")
            return await handle.result(), await bench.surfaces()

    assert (3, {"timeline": [0, 1, 2]}) == trio.run(story)


def test_a_crash_between_snapshot_and_truncation_loses_nothing(bench):
    # K-RUN-6
    async def story():
        await bench.run(session, 2)
        await bench.deliver(session, on="go", payload=1, id="d0")
        before = await bench.state(session)
        failing = bench.failing(truncate_prefix=(0, StoreUnavailable))
        async with bench.process(session, stores=failing.stores) as runtime:
            with pytest.raises(StoreUnavailable):
                await runtime.compact("x")
        return before == await bench.state(session), len(await bench.log()), (await bench.store.load("x")).sequence

    same, events, snapshot = trio.run(story)
    assert (True, events - 1) == (same, snapshot)


def test_an_unreadable_snapshot_falls_back_to_the_log(bench):
    # K-RUN-6
    async def story():
        await bench.run(session, 2)
        whole = await bench.state(session)
        for text in ("", "{", "[]", "{}", '{"state":{"lastSequence":0},"projections":{},"schemaVersion":"1.0.0"}'):
            bench.store._snapshots["x"] = StoredSnapshot(sequence=1, text=text)
            assert whole == await bench.state(session)

    trio.run(story)


def test_an_unreadable_snapshot_of_a_truncated_log_is_an_error_and_no_empty_state(bench):
    # K-RUN-6
    async def story():
        await bench.run(session, 2)
        async with bench.process(session) as runtime:
            cut = await runtime.compact("x")
            bench.store._snapshots["x"] = StoredSnapshot(sequence=cut, text="{")
            with pytest.raises(SnapshotUnreadable, match="restore the snapshot"):
                await runtime.state("x")
            del bench.store._snapshots["x"]
            with pytest.raises(CorruptLog, match="one was lost"):
                await runtime.state("x")

    trio.run(story)


def test_a_snapshot_ahead_of_its_log_interrupts_and_does_not_run_for_ever(bench):
    # K-RUN-6: a log restored from an older backup than its snapshot
    async def story():
        await bench.run(session, 2)
        async with bench.process(session) as runtime:
            await runtime.compact("x")
        execution = bench.store._executions["x"]
        execution.first -= 1
        await bench.store.put("x", Delivery(delivery_id="d", on="go", correlation_key=None, payload_text="1"))
        async with bench.process(session) as runtime:
            await runtime.recover_all()
            with trio.fail_after(5), pytest.raises(ExecutionInterrupted, match="ahead of its log"):
                await runtime.wait_result("x")

    trio.run(story)


def test_a_snapshot_store_that_reorders_keys_changes_no_behaviour(bench):
    # K-RUN-6, ADR 0128
    async def story():
        bench.snapshot_every = 2
        save = bench.store.__class__.save

        async def reordering(self, execution_id, snapshot):
            def reorder(value):
                if isinstance(value, dict):
                    return {key: reorder(value[key]) for key in sorted(value, key=lambda key: (len(key), key))[::-1]}
                return [reorder(item) for item in value] if isinstance(value, list) else value

            text = json.dumps(reorder(json.loads(snapshot.text)))
            await save(self, execution_id, attrs.evolve(snapshot, text=text))

        bench.store = type("Reordering", (type(bench.store),), {"save": reordering, "__slots__": ()})()
        return await run_session(bench)

    assert (15, {"timeline": [0, 1, 2, 3, 4, 5]}) == trio.run(story)


def test_parts_may_be_exchanged_and_are_used_for_loading_too(bench):
    # K-EMIT-6
    applied = []

    class Noting(FoldPass):
        def apply(self, event):
            applied.append(event.sequence)
            super().apply(event)

    async def story():
        await bench.run(two_gates, parts=Parts(fold=Noting))
        live = len(applied)
        await bench.deliver(two_gates, on="go", id="d1", parts=Parts(fold=Noting))
        return live

    assert 2 == trio.run(story)
    assert [0, 1, 0, 1, 2, 3] == applied


# ---- the chain -------------------------------------------------------------------------------------------------------


def edited(stored):
    text = stored.text.replace('"yes"', '"no"')
    return StoredEvent(stored.sequence, text, stored.hash)


def resealed(stored):
    text = stored.text.replace('"yes"', '"no"')
    return StoredEvent(stored.sequence, text, hash_of(text))


def renumbered(stored, sequence):
    text = stored.text.replace(f'"sequence":{stored.sequence},', f'"sequence":{sequence},')
    return StoredEvent(sequence, text, hash_of(text))


TAMPERED = {
    "edited": (6, lambda log: [*log[:6], edited(log[6]), *log[7:]]),
    "edited and hashed again": (7, lambda log: [*log[:6], resealed(log[6]), *log[7:]]),
    "dropped": (4, lambda log: [*log[:4], *log[5:]]),
    "dropped and renumbered": (4, lambda log: [*log[:4], *(renumbered(e, e.sequence - 1) for e in log[5:])]),
    "inserted": (5, lambda log: [*log[:5], renumbered(log[3], 5), *(renumbered(e, e.sequence + 1) for e in log[5:])]),
    "moved": (3, lambda log: [*log[:3], log[4], log[3], *log[5:]]),
    "tail dropped": (9, lambda log: log[:9]),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_verify_names_the_first_envelope_that_is_not_what_was_appended(bench, kind):
    # K-LOG-3
    async def story():
        async with bench.process(trip) as runtime:
            await drive_trip(runtime)
            await bench.settle()
        return list(await bench.store.read_from("x", 0))

    log = trio.run(story)
    head = Point(sequence=log[-1].sequence, hash=log[-1].hash)
    sequence, tamper = TAMPERED[kind]
    fault = verify("x", tamper(log), head=head)
    assert None is verify("x", log, head=head)
    assert isinstance(fault, Fault)
    assert sequence == fault.sequence


def test_verify_takes_up_a_truncated_log_at_its_anchor(bench):
    # K-LOG-3
    async def story():
        async with bench.process(trip) as runtime:
            await drive_trip(runtime)
            await bench.settle()
        return list(await bench.store.read_from("x", 0))

    log = trio.run(story)
    anchor = Point(sequence=4, hash=log[4].hash)
    assert (None, 5) == (verify("x", log[5:], after=anchor), verify("x", log[6:], after=anchor).sequence)
    assert 0 == verify("y", log).sequence


def test_a_broken_chain_is_no_state(bench):
    # K-LOG-3, K-RUN-6
    async def story():
        await bench.run(two_gates)
        events = bench.store._executions["x"].events
        events[0] = renumbered(StoredEvent(0, events[0].text.replace("two_gates", "one_gate"), ""), 0)
        with pytest.raises(CorruptLog, match="chain is broken"):
            await bench.state(two_gates)

    trio.run(story)
