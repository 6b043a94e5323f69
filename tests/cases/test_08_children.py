"""Parents and children hear of each other, whatever is lost on the way."""

from __future__ import annotations

import random

import pytest
import trio

from kernel import Supervisor, await_child, flow
from kernel.orchestration import CHILD_DONE, decide_child, outcome_of


class Lossy(Supervisor):
    """Misses, doubles or reorders what it observes."""

    def __init__(self, seed):
        super().__init__()
        self._random, self._late = random.Random(seed), []

    def observe(self, event):
        fate = self._random.choice(["lost", "late", "twice", "once"])
        if fate == "late":
            self._late.append(event)
            return
        for seen in [event] * {"lost": 0, "twice": 2, "once": 1}[fate] + self._late:
            super().observe(seen)
        self._late = []


@pytest.mark.parametrize("seed", range(3))
def test_b45_every_parent_hears_of_its_child_though_messages_are_lost(bench, family, seed):
    """Of many parents a few are never told that their child has ended."""
    # K-CHILD-2 decides: what was missed is repaired by sweeps, from what the stores say of the child.
    many, ends = 2000, []

    @flow
    async def child(ctx, n):
        ends.append(n)
        return n

    @flow
    async def parent(ctx, n):
        return await await_child(ctx, "c", child, n)

    async def story():
        async with family(bench, parent, child, supervisor=Lossy(seed)) as (runtime, supervision):
            for n in range(many):
                await runtime.start(parent, n, execution_id=f"p{n}")
            for _ in range(4):
                await bench.settle()
                await supervision.sweep()
            await bench.settle()
            return [await runtime.wait_result(f"p{n}") for n in range(many)]

    assert list(range(many)) == trio.run(story) == sorted(ends)


@pytest.mark.parametrize("moment", ["EXECUTION_STARTED", "STEP_STARTED"])
@pytest.mark.parametrize("dies", [False, True])
def test_b47_a_child_of_a_parent_that_ends_is_not_there_or_comes_to_its_end(
    bench, booked, watched, family, moment, dies
):
    """A child is created as its parent closes: it exists, and nothing ever runs it."""
    # K-CHILD-2 decides: a child is an execution of its own; once started it runs, and recovery finds it.
    ledger, box = [], []

    @flow
    async def child(ctx, _input):
        await ctx.run(booked(ledger, "work"))

    @flow
    async def parent(ctx, _input):
        await await_child(ctx, "c", child)

    async def cancel_at(event):
        if (event.execution_id, event.type) == ("x::c", moment) and box:
            await box.pop().cancel("x")
            if dies:
                await trio.sleep_forever()

    async def story():
        bench.store = watched(cancel_at)
        async with family(bench, parent, child) as (runtime, _):
            box.append(runtime)
            await runtime.start(parent, execution_id="x")
            await bench.settle()
        async with family(bench, parent, child) as (runtime, _):
            await runtime.recover_all()
            await bench.settle()
            return {entry.execution_id: entry.status for entry in await runtime.executions()}

    statuses = trio.run(story)
    assert (statuses.pop("x::c", None), ledger) in [(None, []), ("completed", ["work"])]
    assert {"x": "cancelled"} == statuses


@pytest.mark.parametrize("order", [(CHILD_DONE, "cancel"), ("cancel", CHILD_DONE)])
def test_b49_a_child_and_a_wait_at_once_each_get_their_own(bench, family, order):
    """Two operations of one run are answered, and the answers change places."""

    # K-FLOW-6 decides: one gate of any; what comes late waits for a gate of its own.
    @flow
    async def child(ctx, _input):
        return await ctx.suspend("go")

    @flow
    async def parent(ctx, _input):
        spec = await decide_child(ctx, "c", child)
        members = [(CHILD_DONE, spec.child_id), ("cancel", None)]
        first = await ctx.suspend_any(members)
        members.remove((first.on, first.correlation_key))
        second = await ctx.suspend_any(members)
        return [[got.on, outcome_of(got.payload)] for got in (first, second)]

    async def story():
        async with family(bench, parent, child) as (runtime, _):
            await runtime.start(parent, execution_id="x")
            await bench.settle()
            for on in order:
                id, gate, value = ("x", "cancel", "no") if on == "cancel" else ("x::c", "go", "yes")
                await runtime.deliver(id, gate, value, delivery_id=gate)
                await bench.settle()
            return await runtime.wait_result("x")

    assert [[on, "no" if on == "cancel" else "yes"] for on in order] == trio.run(story)
