"""Two workers on one store: the log has one author at a time."""

from __future__ import annotations

import trio

from kernel import GateTimeout, flow


def test_b55_a_decision_from_a_stale_prefix_is_not_carried_out(bench, booked, view):
    """Two runs see different prefixes, take different branches, and both go on."""
    # K-LOG-2 decides: what a stale run would append is refused, and it starts again from the tail.
    ledger, release = [], trio.Event()

    @flow
    async def races(ctx, _input):
        try:
            await ctx.suspend("gate", timeout=10)
        except GateTimeout:
            return await ctx.run(booked(ledger, "onTimer", "timer"))
        return await ctx.run(booked(ledger, "onGate", "gate"))

    async def no_mail(_execution_id):
        return () if not release.is_set() else await bench.store.pending("x")

    async def late(execution_id, expected, batch, **more):
        await release.wait()
        await bench.store.append(execution_id, expected, batch, **more)

    async def story():
        stale = view(bench.store, pending=no_mail, append=late)
        lease = {"lease_seconds": 30}
        async with bench.process(races, **lease) as b, bench.process(races, stores=stale, **lease) as a:
            await b.start(races, execution_id="x")
            await bench.settle()
            await b.deliver("x", "gate", delivery_id="d")
            await a.recover_all()  # sees a gate whose timer is due, and no delivery
            bench.clock.ms += 10_000
            await bench.settle()
            release.set()
            await bench.settle()
            return await a.wait_result("x"), await b.wait_result("x"), await bench.log()

    one, other, log = trio.run(story)
    assert ("gate", "gate", ["onGate"]) == (one, other, ledger)
    assert [("EXECUTION_SUSPENDED", "gate"), ("EXECUTION_RESUMED", "gate"), ("STEP_STARTED", "onGate")] == log[1:4]
    assert [("STEP_COMPLETED", "onGate"), ("EXECUTION_COMPLETED",)] == log[4:]


def test_b57_what_an_overtaken_owner_still_holds_comes_to_nothing(bench, booked):
    """The lease is lost, and its old owner goes on with what it has at hand."""
    # K-RUN-3 decides: an overtaken owner begins no other effect; what it had begun counts as an attempt (K-FLOW-1).
    go = trio.Event()

    def work(ledger, held):
        async def effect(_ectx, _input):
            if held:
                await go.wait()

        @flow(id="work")
        async def work(ctx, _input):
            async with ctx.branches() as branches:
                for id in "abc":
                    branches.start(ctx.run, booked(ledger, id, effect))
            await ctx.run(booked(ledger, "after"))

        return work

    old, new = [], []

    async def story():
        one, two = work(old, True), work(new, False)
        async with bench.process(one, lease_seconds=30) as first, bench.process(two, lease_seconds=30) as second:
            await first.start(one, execution_id="x")
            await bench.settle()
            bench.clock.ms += 31_000  # its process stands still and renews nothing
            adopted = await second.recover_all()
            await bench.settle()
            taken = await bench.log()
            go.set()  # three completions come in
            await bench.settle()
            return adopted, taken, await bench.log()

    adopted, taken, log = trio.run(story)
    assert (["x"], taken, ("EXECUTION_COMPLETED",)) == (adopted, log, log[-1])
    assert (["a", "b", "c"], ["a", "b", "c", "after"]) == (sorted(old), [*sorted(new[:3]), *new[3:]])
    assert 4 == sum(event[0] == "STEP_COMPLETED" for event in log)


def test_b59_a_delivery_that_comes_again_and_again_is_absorbed(bench):
    """A repeated delivery is stored, and every run finds it and begins anew."""
    # K-RUN-2 decides: steps are completed by their owner alone; what comes from outside is known by its delivery id.
    bodies = []

    @flow
    async def waits(ctx, _input):
        bodies.append(1)
        return [await ctx.suspend("s"), await ctx.suspend("s")]

    async def story():
        async with bench.process(waits) as runtime:
            await runtime.start(waits, execution_id="x")
            for id in ("1", "1", "1", "2", "1"):
                await runtime.deliver("x", "s", id, delivery_id=id)
                await bench.settle()
            output = await runtime.wait_result("x")
            return output, await bench.log()

    output, log = trio.run(story)
    assert (["1", "2"], 2) == (output, log.count(("EXECUTION_RESUMED", "s")))
    assert 3 == len(bodies)
