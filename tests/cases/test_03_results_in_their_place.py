"""A result is served to the step it is of, and as it was."""

from __future__ import annotations

import pytest
import trio

from kernel import GateTimeout, await_children, flow
from kernel.content import with_content
from kernel.replay import Outcome, replay


def test_b12_a_step_is_not_served_the_record_of_a_wait_that_was_there(bench, booked):
    """Records are looked up by position alone, so a step takes what a removed wait left."""
    # K-FLOW-9 decides: identity, not position, says what is served; nothing is, so the step runs.  The flow then ends
    # without the wait that its log has passed: it blocks, until the code is mended.  K-RUN-7 names it before.
    ledger = []

    @flow(id="f")
    async def before(ctx, _input):
        await ctx.sleep(1)
        return await ctx.run(booked(ledger, "pay", "paid"))

    @flow(id="f")
    async def after(ctx, _input):
        return await ctx.run(booked(ledger, "pay", "paid"))

    async def story():
        await bench.run(before)
        bench.clock.advance(1)
        await bench.crash(lambda runtime: runtime.recover_all(), before, at=1)  # the timer has fired, no step is begun
        seen = await replay(after, await bench.envelopes())
        await bench.recover(after)
        why = (await bench.state(after))["blocked"]
        log = await bench.log()
        async with bench.process(before) as runtime:
            await runtime.resume_blocked("x")
            return seen, log, why, await runtime.wait_result("x")

    seen, log, why, result = trio.run(story)
    assert (Outcome.DIVERGED, "a gate that was passed on 'TIMER_FIRED'") == (seen.outcome, seen.detail[-39:])
    assert [("STEP_STARTED", "pay"), ("STEP_COMPLETED", "pay"), ("EXECUTION_BLOCKED",)] == log[3:]
    assert ("nondeterministic", True) == (why["reason"], "gate 0, which was passed on 'TIMER_FIRED'" in why["detail"])
    assert (["pay"], "paid") == (ledger, result), "never an end without the payment"


def test_b13_who_loses_a_race_for_a_record_goes_on_with_the_winners(bench, view):
    """Who loses a position goes on with a value of its own that no log holds."""

    # K-LOG-2 decides: whoever loses a position ends its run and starts again from the tail.
    @flow
    async def waits(ctx, _input):
        try:
            return await ctx.suspend("m", timeout=10)
        except GateTimeout:
            return None

    release, held = trio.Event(), []

    async def append(execution_id, expected, batch, **more):
        held.append(batch[0].payload["on"])
        await release.wait()
        await bench.store.append(execution_id, expected, batch, **more)

    async def story():
        slow = view(bench.store, append=append)
        async with bench.process(waits, lease_seconds=30) as one:
            await one.start(waits, execution_id="x")
            await bench.settle()
            clock = bench.clock = type(bench.clock)()  # the other worker's, which goes ahead
            async with bench.process(waits, lease_seconds=30, stores=slow) as other:
                await other.recover_all()
                clock.advance(10)
                await bench.settle()
                await one.deliver("x", "m", "msg", delivery_id="d")
                assert "msg" == await one.wait_result("x")
                release.set()
                await bench.settle()
                return await other.wait_result("x"), await bench.log()

    output, log = trio.run(story)
    assert ("msg", ["TIMER_FIRED"]) == (output, held)
    assert [("EXECUTION_SUSPENDED", "m"), ("EXECUTION_RESUMED", "m"), ("EXECUTION_COMPLETED",)] == log[1:]


@pytest.mark.parametrize("empty", [None, 0, False, "", [], {}, float("nan")])
def test_b15_a_result_that_is_nothing_is_a_result(bench, booked, empty):
    """An empty result that was recorded is taken for one that is missing."""
    ledger = []

    @flow
    async def voids(ctx, _input):
        value = await ctx.run(booked(ledger, "void", empty))
        await ctx.run(booked(ledger, "next"))
        return [value]

    async def story():
        assert await bench.crash(lambda r: r.start(voids, execution_id="x"), voids, at=3)
        assert ("STEP_COMPLETED", "void") == (await bench.log())[-1]
        await bench.recover(voids)
        return await bench.state(voids)

    state = trio.run(story)
    assert [None if empty != empty else empty] == state["output"]  # K-JSON-1 decides: NaN is recorded as null
    assert ["void", "next"] == ledger


def test_b16_results_outlive_the_children_they_came_from(bench, family):
    """Compaction drops children, and with them results that nothing else holds."""
    before = []

    @flow
    async def child(ctx, n):
        return {"item": n}

    @flow
    async def parent(ctx, _input):
        items = await await_children(ctx, {f"i{n}": (child, n) for n in range(3)})
        before.append(items)
        await ctx.suspend("g")
        return items

    async def story():
        async with family(bench, parent, child) as (runtime, _):
            await runtime.start(parent, execution_id="x")
            await bench.settle()
            await runtime.compact("x")
            for n in range(3):
                await runtime.delete(f"x::i{n}")
        async with family(bench, parent, child) as (runtime, _):
            await runtime.deliver("x", "g", delivery_id="d")
            return await runtime.wait_result("x"), [e.execution_id for e in await runtime.executions()]

    output, left = trio.run(story)
    assert [{f"i{n}": {"item": n} for n in range(3)}] * 2 == before
    assert (before[0], ["x"]) == (output, left)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_b17_a_batch_too_large_to_store_inline_is_the_same_on_a_re_run(bench, booked, over):
    """What is stored in place of a large result says less than the result did."""
    ledger, seen = [], []

    @flow
    async def batch(ctx, size):
        async with ctx.branches() as branches:
            items = [branches.start(ctx.run, booked(ledger, f"i{n}", "x" * size)) for n in range(5)]
        seen.append([len(item.result) for item in items])
        await ctx.sleep(1)
        enough = [item for item in items if len(item.result) == size][:3]
        return [len(enough), "3 of 5" if len(enough) == 3 else "all"]

    async def length(size):
        """How long the longest record of a result of that size is."""
        await bench.run(batch, size)
        lengths = [len(event.text) for event in await bench.envelopes()]
        await bench.store.delete("x")
        return max(lengths)

    async def story():
        limit = await length(1000)
        ledger.clear(), seen.clear()
        stores = with_content(bench.store.stores, bench.store, inline_bytes_max=limit)
        await bench.run(batch, 1000 + over, stores=stores)
        bench.clock.advance(1)
        await bench.recover(batch, stores=stores)
        kept = any("__loomContent" in e.text for e in await bench.store.read_from("x", 0))
        async with bench.process(batch, stores=stores) as runtime:
            return kept, await runtime.wait_result("x")

    assert (over > 0, [3, "3 of 5"]) == trio.run(story)
    assert [[1000 + over] * 5] * 2 == seen
    assert 5 == len(ledger)
