"""What is delivered passes the gate that it is for, once, whenever it comes."""

from __future__ import annotations

import itertools

import pytest
import trio

from kernel import GateTimeout, await_child, flow
from kernel.adapters.memory import MemoryStore
from kernel.errors import GateInBranch, StoreUnavailable
from kernel.replay import Outcome, replay

RESULT_LOG = [("EXECUTION_SUSPENDED", "result"), ("EXECUTION_RESUMED", "result"), ("EXECUTION_COMPLETED",)]


@pytest.mark.parametrize("moment", ["STEP_STARTED", "STEP_COMPLETED", "EXECUTION_SUSPENDED", "parked"])
def test_b29_a_delivery_that_comes_before_its_gate_is_kept(bench, booked, watched, moment):
    """An event is dropped when nobody waits for it yet."""
    ledger, box, pending = [], [], []

    @flow
    async def submits(ctx, _input):
        await ctx.run(booked(ledger, "submit"))
        return await ctx.suspend("result")

    async def deliver_at(event):
        if event.type == moment:
            await box[0].deliver("x", "result", 7, delivery_id="d")
            pending.extend(await bench.store.pending("x"))

    async def story():
        bench.store = watched(deliver_at)
        async with bench.process(submits) as runtime:
            box.append(runtime)
            await runtime.start(submits, execution_id="x")
            await bench.settle()
            if moment == "parked":
                await runtime.deliver("x", "result", 7, delivery_id="d")
            return await runtime.wait_result("x"), (await bench.log())[3:]

    assert (7, RESULT_LOG) == trio.run(story)
    assert (["submit"], 0 if moment == "parked" else 1) == (ledger, len(pending))  # K-RUN-2: the early ones wait


def test_b31_a_child_that_ends_before_its_parent_is_parked_wakes_it(bench, watched, family):
    """What would wake a flow comes before it is on record that it sleeps."""
    release = trio.Event()

    @flow
    async def fast(ctx, _input):
        return "done"

    @flow
    async def parent(ctx, _input):
        return await await_child(ctx, "c", fast)

    async def hold(event):
        if (event.execution_id, event.type) == ("x", "EXECUTION_SUSPENDED"):
            await release.wait()

    async def story():
        bench.store = watched(hold)
        async with family(bench, parent, fast) as (runtime, _):
            await runtime.start(parent, execution_id="x")
            await runtime.start(fast, execution_id="x::c")
            await bench.settle()
            ended = (await bench.store.entry("x::c")).status
            release.set()
            return ended, await runtime.wait_result("x"), (await bench.log())[2:]

    ended, output, log = trio.run(story)
    assert ("completed", "done") == (ended, output)
    assert [("EXECUTION_SUSPENDED", "CHILD_DONE"), ("EXECUTION_RESUMED", "CHILD_DONE"), RESULT_LOG[-1]] == log


def test_b32_what_an_earlier_gate_waited_for_wakes_nobody_later(bench):
    """The wait set of one gate is still registered at the next."""
    bodies = []

    @flow
    async def waits(ctx, _input):
        bodies.append(1)
        first = await ctx.suspend_any(["p1", "p2"])
        return [first.on, await ctx.suspend("p3")]

    async def story():
        async with bench.process(waits) as runtime:
            await runtime.start(waits, execution_id="x")
            await bench.settle()
            await runtime.deliver("x", "p1", delivery_id="1")
            await bench.settle()
            parked = len(bodies), await bench.log()
            await runtime.deliver("x", "p2", delivery_id="2")
            await bench.settle()
            assert parked == (len(bodies), await bench.log())
            pending = await bench.store.pending("x")
            await runtime.deliver("x", "p3", 3, delivery_id="3")
            output = await runtime.wait_result("x")
            return output, [e for e in await bench.log() if e[0] == "EXECUTION_RESUMED"], pending

    output, resumes, pending = trio.run(story)
    assert (["p1", 3], [("EXECUTION_RESUMED", "p1"), ("EXECUTION_RESUMED", "p3")]) == (output, resumes)
    assert ["2"] == [delivery.delivery_id for delivery in pending]  # K-FLOW-6: it waits for a gate of its own


def test_b33_a_wait_that_has_run_out_takes_no_later_delivery(bench):
    """A dead waiter swallows what is meant for the next one."""

    @flow
    async def patient(ctx, _input):
        while True:
            try:
                return await ctx.suspend("e", timeout=5)
            except GateTimeout:
                pass

    async def story():
        async with bench.process(patient) as runtime:
            await runtime.start(patient, execution_id="x")
            for _ in range(2):
                await bench.settle()
                bench.clock.advance(5)
            await bench.settle()
            await runtime.deliver("x", "e", "v", delivery_id="d")
            return await runtime.wait_result("x"), await bench.envelopes()

    output, log = trio.run(story)
    assert "v" == output
    assert ["TIMER_FIRED", "TIMER_FIRED", "e"] == [e.payload["on"] for e in log if e.type == "EXECUTION_RESUMED"]
    assert [0, 1, 2] == [e.payload["ordinal"] for e in log if e.type == "EXECUTION_SUSPENDED"]


def test_b35_a_re_run_comes_to_the_same_next_thing_after_every_event(bench, booked):
    """Live and replayed runs see a completion and a signal in different orders."""
    ledger = []

    @flow
    async def commanded(ctx, _input):
        for command, id in (("start", "A"), ("resume", "B")):
            if await ctx.suspend(command) == "go":
                await ctx.run(booked(ledger, id))

    async def story():
        await bench.run(commanded)
        for on in ("start", "resume"):
            await bench.deliver(commanded, on=on, payload="go", id=on)
        log = await bench.envelopes()
        return [(r.outcome, r.detail) for r in [await replay(commanded, log[:n]) for n in range(1, len(log))]]

    def would(what):
        return Outcome.SAME, f"the flow would go on with {what}"

    def again(id):
        return Outcome.UNDECIDED, f"step '{id}' has no end that could be served: it would run again"

    parked = Outcome.SAME, "the flow is parked where its log says"
    first = [would("gate on 'start'"), parked, would("step 'A'"), again("A")]
    second = [would("gate on 'resume'"), parked, would("step 'B'"), again("B")]
    assert [*first, *second, (Outcome.SAME, "the flow would end as completed")] == trio.run(story)
    assert ["A", "B"] == ledger


@pytest.mark.parametrize("order", list(itertools.permutations("ab")))
def test_b37_two_waits_at_once_are_told_apart(bench, order):
    """Two waits of one name share an identity, and their values are swapped."""
    # K-FLOW-6 decides: no gate inside a branch; one gate waits for both, each under its own correlation key.
    refused = []

    @flow
    async def approvals(ctx, _input):
        try:
            async with ctx.branches() as branches:
                branches.start(ctx.suspend, "approve", "a")
        except GateInBranch as error:
            refused.append(error)
        got = await ctx.suspend_all([("approve", "a"), ("approve", "b")])
        await ctx.suspend("end")
        return [got["approve", "a"], got["approve", "b"]]

    async def story():
        async with bench.process(approvals) as runtime:
            await runtime.start(approvals, execution_id="x")
            await bench.settle()
            for key in ("nobody's", None, *order):
                value = {"a": 1, "b": 2}.get(key)
                await runtime.deliver("x", "approve", value, correlation_key=key, delivery_id=f"{key}")
                await bench.settle()
            pending = [d.delivery_id for d in await bench.store.pending("x")]
            await runtime.deliver("x", "end", delivery_id="end")
            return await runtime.wait_result("x"), pending

    assert ([1, 2], ["nobody's", "None"]) == trio.run(story)
    assert refused


@pytest.mark.parametrize("mend", ["retry", "sweep"])
def test_b39_a_delivery_whose_wake_up_failed_is_one_and_is_found(bench, mend):
    """The message is durable, what would wake its reader is not; the sender tries again, and there are two."""

    class Failing(MemoryStore):
        fails = 1

        async def entry(self, execution_id):
            if self.fails and await self.pending(execution_id):
                self.fails -= 1
                raise StoreUnavailable("just now")
            return await super().entry(execution_id)

    @flow
    async def waits(ctx, _input):
        return [await ctx.suspend("g"), await ctx.suspend("g", timeout=5)]

    async def story():
        bench.store = Failing()
        async with bench.process(waits) as runtime:
            await runtime.start(waits, execution_id="x")
            await bench.settle()
            with pytest.raises(StoreUnavailable):
                await runtime.deliver("x", "g", 1, delivery_id="d")
            await bench.settle()
            assert 1 == len(await bench.store.pending("x"))
            if mend == "sweep":
                assert ["x"] == await runtime.recover_all()
            else:
                await runtime.deliver("x", "g", 1, delivery_id="d")
            await bench.settle()
            return await bench.log(), await bench.store.pending("x")

    log, pending = trio.run(story)
    assert [("EXECUTION_RESUMED", "g"), ("EXECUTION_SUSPENDED", "g")] == log[2:]
    assert [] == pending
