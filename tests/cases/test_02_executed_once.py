"""A step's body runs once when nothing has crashed."""

from __future__ import annotations

import itertools

import pytest
import trio

from kernel import TypedFailure, flow
from kernel.adapters.memory import MemoryStore


def test_b05_a_delivery_does_not_dispatch_a_step_in_flight_again(bench, booked):
    """A wake-up for one thing starts another thing again that is under way."""
    # K-RUN-2 decides: an early delivery waits outside the log, and is recorded at its gate.
    ledger, begun, go = [], trio.Event(), trio.Event()

    async def slow(_ectx, _input):
        begun.set()
        await go.wait()

    @flow
    async def pays(ctx, _input):
        await ctx.run(booked(ledger, "pay", slow))
        return await ctx.suspend("note")

    async def story():
        async with bench.process(pays) as runtime:
            await runtime.start(pays, execution_id="x")
            await begun.wait()
            await runtime.deliver("x", "note", "hello", delivery_id="d")
            assert [] == await runtime.recover_all()
            await bench.settle()
            go.set()
            return await runtime.wait_result("x"), await bench.log()

    output, log = trio.run(story)
    assert ("hello", ["pay"]) == (output, ledger)
    assert [("STEP_STARTED", "pay"), ("STEP_COMPLETED", "pay"), ("EXECUTION_SUSPENDED", "note")] == log[1:4]
    assert [("EXECUTION_RESUMED", "note"), ("EXECUTION_COMPLETED",)] == log[4:]


@pytest.mark.parametrize("stalled", [False, True])
def test_b06_no_execution_of_a_body_is_missing_in_the_log(bench, booked, stalled):
    """Two bodies overlap, and the log tells of one."""
    # K-RUN-3 decides: a live owner renews, however long its body takes; one that stands still is overtaken, on record.
    ledger, go = [], trio.Event()

    @flow
    async def turns(ctx, _input):
        return await ctx.run(booked(ledger, "turn", lambda *_: go.wait()))

    async def story():
        async with bench.process(turns, lease_seconds=30) as one, bench.process(turns, lease_seconds=30) as other:
            await one.start(turns, execution_id="x")
            await bench.settle()
            if stalled:
                bench.clock.ms += 39_000
            for _ in range(39 if not stalled else 0):
                bench.clock.advance(1)
                await bench.settle()
            adopted = await other.recover_all()
            await bench.settle()
            go.set()
            await bench.settle()
            return adopted, await bench.log()

    adopted, log = trio.run(story)
    assert (["x"] if stalled else []) == adopted
    assert (2 if stalled else 1) == len(ledger) == log.count(("STEP_STARTED", "turn"))
    assert 1 == log.count(("STEP_COMPLETED", "turn"))


@pytest.mark.parametrize("read_before", [False, True])
def test_b07_recovery_leaves_alone_what_this_process_has_just_started(bench, booked, read_before):
    """A recovery takes what is its own and alive for an orphan."""
    ledger, bodies, scan, go = [], [], trio.Event(), trio.Event()

    class SlowScan(MemoryStore):
        async def entries(self, *statuses):
            found = await super().entries(*statuses) if read_before else None
            await scan.wait()
            return found if found is not None else await super().entries(*statuses)

    @flow
    async def once(ctx, _input):
        bodies.append(1)
        return await ctx.run(booked(ledger, "s", lambda *_: go.wait()))

    async def story():
        bench.store = SlowScan()
        async with bench.process(once) as runtime, trio.open_nursery() as nursery:
            nursery.start_soon(runtime.recover_all)
            await bench.settle()
            await runtime.start(once, execution_id="x")
            scan.set()
            await bench.settle()
            assert [] == await runtime.recover_all()
            go.set()
            await runtime.wait_result("x")

    trio.run(story)
    assert ([1], ["s"]) == (bodies, ledger)


@pytest.mark.parametrize("landed", [False, True])
def test_b09_no_position_is_durable_ahead_of_the_results_it_covers(make_bench, booked, landed):
    """The order of two durable writes decides whether a step runs again, and nothing keeps that order."""

    # K-FLOW-1 decides: a step runs again only if its end is not in the log.
    async def story(at):
        ledger, bench = [], make_bench(snapshot_every=1)

        @flow
        async def three(ctx, _input):
            for id in ("s1", "s2", "s3"):
                await ctx.run(booked(ledger, id))

        crashed = await bench.crash(lambda r: r.start(three, execution_id="x"), three, at=at, landed=landed)
        snapshot, entry = await bench.store.load("x"), await bench.store.entry("x")
        assert snapshot is None or snapshot.sequence <= entry.head
        done = {event[1] for event in await bench.log() if event[0] == "STEP_COMPLETED"}
        before = [id for id in ledger if id in done]
        await bench.run(three)
        assert before == [id for id in ledger if id in done], "what is recorded does not run again"
        assert (2 if (at, landed) == (4, False) else 1) == ledger.count("s2")
        return crashed

    assert [True] * 8 + [False] == [trio.run(story, at) for at in range(9)]


def test_b11_a_failure_handler_that_has_ended_does_not_run_again(bench, booked):
    """A handler is remembered only together with its batch, so an unfinished sibling makes it run again."""

    class Boom(TypedFailure):
        pass

    def boom(_ectx, _input):
        raise Boom

    ledger, crashes = [], itertools.count()

    async def dies_thrice(_ectx, _input):
        if next(crashes) < 3:
            await trio.sleep_forever()  # until its process is gone

    @flow
    async def batch(ctx, _input):
        async def a():
            try:
                await ctx.run(booked(ledger, "a", boom, failures=(Boom,)))
            except Boom:
                await ctx.run(booked(ledger, "handle_a"))

        async with ctx.branches() as branches:
            branches.start(a)
            branches.start(ctx.run, booked(ledger, "b", dies_thrice))

    async def story():
        for _ in range(4):
            await bench.run(batch)
        return (await bench.log())[-1]

    assert ("EXECUTION_COMPLETED",) == trio.run(story)
    assert ["a", "b", "b", "b", "b", "handle_a"] == sorted(ledger)
