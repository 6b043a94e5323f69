"""Forks and new beginnings (K-RUN-5, K-RUN-7)."""

from __future__ import annotations

import pytest
import trio

from kernel import flow, saga, step
from kernel.errors import ExecutionMismatch, LogTruncated, UnknownExecution
from kernel.fold import fold_events
from kernel.forks import forked
from kernel.verify import verify

calls = []


@step("work")
async def work(ectx, input):
    calls.append(ectx.idempotency_key)
    return input


@flow
async def chat(ctx, _input):
    said = []
    for turn in range(3):
        await ctx.execute(work, turn, key=str(turn))
        await ctx.emit("turn", turn)
        await ctx.ui.increment("turns")
        said.append(await ctx.suspend("message"))
    return said


@pytest.fixture(autouse=True)
def _fresh():
    calls.clear()


async def talk(bench, runtime, *payloads, to="x"):
    for payload in payloads:
        await bench.settle()
        await runtime.deliver(to, "message", payload, delivery_id=f"d{payload}")
    await bench.settle()


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_a_fork_at_every_position_serves_what_it_has_inherited_and_comes_to_the_same_end(bench):
    # K-RUN-5, K-FOLD-4, ADR 0102 D5
    async def story():
        async with bench.process(chat) as runtime:
            await runtime.start(chat, execution_id="x")
            await talk(bench, runtime, 0, 1, 2)
            parent = await bench.envelopes()
            for upto in range(len(parent)):
                fork = f"fork {upto}"
                await runtime.fork("x", upto=upto, new_id=fork)
                await talk(bench, runtime, 0, 1, 2, to=fork)
                assert [0, 1, 2] == await runtime.wait_result(fork)
                log = await bench.envelopes(fork)
                assert 3 == sum(event.type == "turn" for event in log)
                assert verify(fork, await bench.store.read_from(fork, 0)) is None
                origin = {"executionId": "x", "hash": parent[upto].hash, "sequence": upto}
                assert origin == (await runtime.state(fork))["provenance"]
        assert parent == await bench.envelopes()

    trio.run(story)
    assert len(set(calls)) == len(calls)  # what was inherited is not done again


def test_the_memory_of_deliveries_goes_with_a_fork(bench):
    # K-RUN-5, K-RUN-2
    async def story():
        async with bench.process(chat) as runtime:
            await runtime.start(chat, execution_id="x")
            await talk(bench, runtime, 0)
            await runtime.fork("x", new_id="y")
            await talk(bench, runtime, 0, 1, to="y")
            state = await runtime.state("y")
            return [resume["payload"] for resume in state["resumes"]], state["deliveries"]

    assert ([0, 1], {"d0": 0, "d1": 1}) == trio.run(story)


def test_provenance_is_merged_into_what_an_event_says_of_itself(bench):
    # K-RUN-5, K-LOG-3
    async def story():
        await bench.run(chat)
        parent = await bench.envelopes()
        copies = forked(parent, "y")
        for event, copy in zip(parent, copies, strict=True):
            assert event.metadata.items() <= copy.metadata.items()
            assert (event.payload, event.timestamp_ms, event.type) == (copy.payload, copy.timestamp_ms, copy.type)
        again = forked(copies, "z")
        assert "y" == again[0].metadata["forkedFrom"]["executionId"]
        assert fold_events(parent)["variables"] == fold_events(again)["variables"]

    trio.run(story)


def test_a_fork_is_made_once_and_says_what_it_cannot_do(bench):
    # K-RUN-5
    async def story():
        async with bench.process(chat) as runtime:
            with pytest.raises(UnknownExecution):
                await runtime.fork("x", new_id="y")
            await runtime.start(chat, execution_id="x")
            await bench.settle()
            with pytest.raises(ValueError, match="events 0 to"):
                await runtime.fork("x", upto=99, new_id="y")
            await runtime.fork("x", upto=1, new_id="y")
            await bench.settle()
            length = len(await bench.envelopes("y"))
            await runtime.fork("x", upto=1, new_id="y")
            await bench.settle()
            assert length == len(await bench.envelopes("y"))
            with pytest.raises(ExecutionMismatch):
                await runtime.fork("x", upto=2, new_id="y")
            await runtime.compact("x")
            with pytest.raises(LogTruncated):
                await runtime.fork("x", upto=1, new_id="z")
            assert "y" == (await runtime.fork("x", upto=1, new_id="y")).execution_id, "it is there, as asked for"
            with pytest.raises(LogTruncated):
                await runtime.fork("x", upto=2, new_id="y")

    trio.run(story)


@pytest.mark.parametrize("landed", [False, True])
def test_a_crash_while_a_fork_is_made_leaves_it_whole_or_absent(bench, landed):
    # K-RUN-5, K-LOG-2
    async def fork(runtime):
        await runtime.fork("x", new_id="y")

    async def story():
        await bench.run(chat)
        assert await bench.crash(fork, chat, at=0, landed=landed)
        assert landed == (await bench.store.entry("y") is not None)
        async with bench.process(chat) as runtime:
            await fork(runtime)
            await talk(bench, runtime, 0, 1, 2, to="y")
            return await runtime.wait_result("y")

    assert [0, 1, 2] == trio.run(story)


# ---- beginning anew --------------------------------------------------------------------------------------------------


@flow
async def counting(ctx, n):
    await ctx.execute(work, n)
    await ctx.emit("counted", "the same content each time")
    n += await ctx.suspend("message")
    if n < 10:
        await ctx.continue_as_new(n)
    return n


async def count(bench, runtime):
    await runtime.start(counting, 0, execution_id="x")
    for number in range(10):  # in a burst: nine of them are early
        await runtime.deliver("x", "message", 1, delivery_id=f"d{number}")
    await bench.settle()


def test_what_was_delivered_is_carried_into_the_new_beginning(bench):
    # K-RUN-7, B61
    async def story():
        async with bench.process(counting) as runtime:
            await count(bench, runtime)
            result = await runtime.wait_result("x")
            passed = [e.payload["deliveryId"] for e in await bench.envelopes() if e.type == "EXECUTION_RESUMED"]
            await runtime.start(counting, 0, execution_id="x")  # the same start again is still the same
            with pytest.raises(ExecutionMismatch):
                await runtime.start(counting, 9, execution_id="x")
            return result, passed, await bench.emits()

    result, passed, emits = trio.run(story)
    assert (10, [f"d{number}" for number in range(10)]) == (result, passed)
    assert ["counted the same content each time*"] * 10 == emits
    assert 10 == len(set(calls))  # services that deduplicate see ten pieces of work


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("compacting", [False, True])
def test_whatever_append_a_process_dies_at_the_count_is_right(make_bench, landed, compacting):
    # K-RUN-7, B61, K-FOLD-1
    async def story():
        for crash_at in range(0, 62, 5 if compacting else 1):
            bench = make_bench(snapshot_every=3 if compacting else None)
            await bench.crash(lambda runtime, bench=bench: count(bench, runtime), counting, at=crash_at, landed=landed)
            async with bench.process(counting) as runtime:
                await count(bench, runtime)
                await runtime.recover_all()
                await bench.settle()
                if compacting:
                    await runtime.compact("x")
                assert 10 == await runtime.wait_result("x")

    trio.run(story)


def test_a_timer_of_each_beginning_has_an_id_of_its_own(bench):
    # K-RUN-7, K-RUN-2
    @flow
    async def ticking(ctx, n):
        await ctx.sleep(5)
        if n < 2:
            await ctx.continue_as_new(n + 1)

    async def story():
        async with bench.process(ticking) as runtime:
            await runtime.start(ticking, 0, execution_id="x")
            for _ in range(3):
                await bench.settle()
                bench.clock.advance(5)
            await runtime.wait_result("x")
            return list((await runtime.state("x"))["deliveries"])

    assert ["timer:0", "timer:1.0", "timer:2.0"] == trio.run(story)


def test_a_saga_is_not_rolled_back_by_a_new_beginning_and_a_flow_cannot_swallow_it(bench):
    # K-RUN-7, K-SAGA-1
    undone = []

    @step("undo")
    async def undo(_ectx, input):
        undone.append(input)

    @flow
    async def stubborn(ctx, n):
        if n:
            return n
        async with saga(ctx) as s:
            await s.run(work, n, compensate=undo)
            try:
                await ctx.continue_as_new(1)
            except BaseException:
                return "swallowed"

    async def story():
        await bench.run(stubborn, 0)
        return (await bench.state(stubborn))["output"]

    assert 1 == trio.run(story)
    assert [] == undone
