"""A timer fires once, or not at all."""

from __future__ import annotations

import pytest
import trio

from kernel import GateTimeout, flow
from kernel.replay import Outcome, replay


@pytest.mark.parametrize("first", ["timer", "delivery", "both"])
def test_b41_a_timer_has_fired_or_was_overtaken_and_never_both(bench, booked, first):
    """A timer that has fired unseen is cancelled, and the log says both."""
    # K-FLOW-6 decides: a timer belongs to a gate, and one event opens it; of two that have come, the delivery.
    ledger = []

    @flow
    async def waits(ctx, _input):
        try:
            await ctx.suspend("stop", timeout=5)
        except GateTimeout:
            await ctx.run(booked(ledger, "late"))
        await ctx.run(booked(ledger, "z"))

    async def story():
        await bench.run(waits)
        if first == "timer":
            bench.clock.advance(5)
            await bench.recover(waits)
        async with bench.process(waits) as runtime:
            await runtime.deliver("x", "stop", delivery_id="d")
            if first == "both":  # nobody has looked yet, and now the timer is due as well
                bench.clock.advance(5)
            await bench.settle()
        bench.clock.advance(5)
        await bench.recover(waits)
        return await bench.log(), (await replay(waits, await bench.envelopes())).outcome

    log, outcome = trio.run(story)
    fired = first == "timer"
    assert [("EXECUTION_RESUMED", "TIMER_FIRED" if fired else "stop")] == [e for e in log if "RESUMED" in e[0]]
    assert (["late", "z"] if fired else ["z"], Outcome.SAME) == (ledger, outcome)
    assert ("EXECUTION_COMPLETED",) == log[-1]


def test_b43_two_workers_that_see_one_timer_due_fire_it_once(bench, booked, view):
    """Several nodes read the same due timer, and each of them fires it."""
    # K-LOG-2 decides: the second is refused, and nothing of it is written.
    ledger, tried, go = [], [], trio.Event()

    @flow
    async def sleeps(ctx, _input):
        await ctx.sleep(10)
        await ctx.run(booked(ledger, "after"))

    async def append(execution_id, expected, batch, **more):
        if batch[0].type == "EXECUTION_RESUMED":
            tried.append(batch[0].payload["on"])
            await go.wait()
        await bench.store.append(execution_id, expected, batch, **more)

    async def story():
        more = {"lease_seconds": 30, "stores": view(bench.store, append=append)}
        async with bench.process(sleeps, **more) as one, bench.process(sleeps, **more) as other:
            await one.start(sleeps, execution_id="x")
            await bench.settle()
            await other.recover_all()
            bench.clock.advance(10)
            await bench.settle()
            assert ["TIMER_FIRED"] * 2 == tried
            go.set()
            await bench.settle()
            return await bench.log()

    log = trio.run(story)
    assert [("EXECUTION_SUSPENDED", "TIMER"), ("EXECUTION_RESUMED", "TIMER_FIRED")] == log[1:3]
    assert [("STEP_STARTED", "after"), ("STEP_COMPLETED", "after"), ("EXECUTION_COMPLETED",)] == log[3:]
    assert ["after"] == ledger
