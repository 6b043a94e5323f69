"""A cancellation is one signal, and never a value."""

from __future__ import annotations

import itertools

import pytest
import trio

from kernel import CancelRequested, ExecutionCancelled, await_child, flow
from kernel.replay import Outcome, replay


@pytest.mark.parametrize("ending", ["shutdown", "cancel"])
def test_b85_what_ends_a_wait_from_outside_is_not_its_result(bench, family, ending):
    """The signal that ends a wait is stored as what the wait has returned."""
    # K-RUN-4 decides: a cancelled execution does not go on; K-RUN-3: a shutdown is a crash, and nothing is recorded.
    seen = []

    @flow
    async def child(ctx, _input):
        return await ctx.suspend("go")

    @flow
    async def parent(ctx, _input):
        try:
            seen.append(await await_child(ctx, "c", child))
        except BaseException as signal:
            seen.append(type(signal).__name__)
            raise
        return seen[-1]

    async def story():
        async with family(bench, parent, child) as (runtime, _):
            await runtime.start(parent, execution_id="x")
            await bench.settle()
            if ending == "cancel":
                await runtime.cancel("x")
                await bench.settle()
        async with family(bench, parent, child) as (runtime, _):
            await runtime.recover_all()
            await runtime.deliver("x::c", "go", "done", delivery_id="d")
            await bench.settle()
            return [event for event in (await bench.log())[3:] if event != ("CANCEL_REQUESTED",)]

    log = trio.run(story)
    if ending == "shutdown":
        assert ([("EXECUTION_RESUMED", "CHILD_DONE"), ("EXECUTION_COMPLETED",)], "done") == (log, seen[-1])
    else:
        assert [("EXECUTION_RESUMED", "CANCEL_REQUESTED"), ("EXECUTION_CANCELLED",)] == log
        assert ["Suspended", "CancelRequested"] == seen, "and nothing after it"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_b87_scopes_that_are_cancelled_end_in_one_order(bench, booked, order):
    """Pending scopes are cancelled in an order that differs from run to run."""
    # K-FLOW-8 decides: every branch has the signal at its own next syscall; the group has one outcome, and one record.
    ledger, holds = [], [trio.Event() for _ in range(3)]

    @flow
    async def waits(ctx, _input):
        async def branch(n):
            await ctx.run(booked(ledger, f"w{n}", lambda *_: holds[n].wait()))
            await ctx.run(booked(ledger, f"never{n}"))

        try:
            async with ctx.branches() as branches:
                started = [branches.start(branch, n) for n in range(3)]
        except CancelRequested:
            for n, each in enumerate(started):
                assert isinstance(each.error, CancelRequested)
                await ctx.run(booked(ledger, f"cancelled{n}"))
            raise

    async def story():
        async with bench.process(waits) as runtime:
            await runtime.start(waits, execution_id="x")
            await bench.settle()
            await runtime.cancel("x", "enough")
            for n in order:
                holds[n].set()
                await bench.settle()
            with pytest.raises(ExecutionCancelled):
                await runtime.wait_result("x")
            return await bench.log(), (await replay(waits, await bench.envelopes())).outcome

    log, outcome = trio.run(story)
    assert Outcome.SAME == outcome
    assert ["w0", "w1", "w2"] == sorted(ledger[:3])
    assert ["cancelled0", "cancelled1", "cancelled2"] == ledger[3:]
    assert (1, ("EXECUTION_CANCELLED",)) == (log.count(("CANCEL_REQUESTED",)), log[-1])
