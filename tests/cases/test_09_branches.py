"""Concurrent branches come to one outcome."""

from __future__ import annotations

import itertools

import pytest
import trio

from kernel import flow


@pytest.mark.parametrize("compacted", [False, True])
def test_b51_a_join_runs_once_with_all_inputs_though_a_snapshot_was_cut_in_between(make_bench, booked, compacted):
    """State is saved with one branch done and another under way, and the join is ready twice."""
    ledger, inputs, hang = [], [], [True]
    bench = make_bench(snapshot_every=1)

    async def slow(_ectx, _input):
        if hang[0]:
            await trio.sleep_forever()
        return 2

    @flow
    async def joins(ctx, _input):
        async with ctx.branches() as branches:
            a = branches.start(ctx.run, booked(ledger, "a", 1))
            b = branches.start(ctx.run, booked(ledger, "b", slow))
        await ctx.run(booked(ledger, "join", lambda _, input: inputs.append(input)), [a.result, b.result])

    async def story():
        await bench.run(joins)
        snapshot = await bench.store.load("x")
        assert '"a"' in snapshot.text
        hang[0] = False
        async with bench.process(joins) as runtime:
            if compacted:
                await runtime.compact("x")
            await runtime.recover_all()
            await runtime.wait_result("x")

    trio.run(story)
    assert (["a", "b", "b", "join"], [[1, 2]]) == (sorted(ledger), inputs)  # K-FLOW-1: b had no end on record


@pytest.mark.parametrize("later", list(itertools.permutations(["t1", "t2", "t3"])))
def test_b53_an_order_that_is_not_the_flows_swaps_no_results(bench, booked, later):
    """The order of a set or of a wait leaks into the order of the syscalls, and differs in each process."""
    # K-FLOW-9 decides: identity, not position, says what is served, so another order changes nothing.
    ledger, orders = [], [["t1", "t2", "t3"], list(later)]

    @flow
    async def each(ctx, _input):
        done = orders.pop(0)
        return {name: await ctx.run(booked(ledger, "work", lambda _, n: f"of {n}"), name, key=name) for name in done}

    async def story():
        assert await bench.crash(lambda r: r.start(each, execution_id="x"), each, at=5)  # the third has not begun
        await bench.recover(each)
        return (await bench.state(each))["output"]

    assert {name: f"of {name}" for name in later} == trio.run(story)
    assert ["work[t1]", "work[t2]", "work[t3]"] == ledger
