"""Gates of several members: any of them, or all with results by key (K-FLOW-6)."""

from __future__ import annotations

import itertools

import pytest
import trio

from kernel import GateTimeout, flow
from kernel.errors import GateInBranch
from kernel.gates import KERNEL_GATES

PAIRS = [("done", "a"), ("done", "b"), ("note", None)]


@flow
async def any_then_one(ctx, _input):
    first = await ctx.suspend_any(["p1", ("p2", "k")])
    await ctx.emit("opened")
    second = await ctx.suspend("p3")
    third = await ctx.suspend("p2", "k")
    return [first.on, first.correlation_key, first.payload, second, third]


@flow
async def all_three(ctx, _input):
    await ctx.emit("waiting")
    got = await ctx.suspend_all([("done", "a"), ("done", "b"), "note"])
    await ctx.emit("opened")
    return [[on, key, payload] for (on, key), payload in got.items()]


async def send(runtime, *deliveries):
    for on, key, payload in deliveries:
        await runtime.deliver("x", on, payload, correlation_key=key, delivery_id=f"{on}/{key}/{payload}")


def test_any_of_several_opens_and_the_others_wait_for_gates_of_their_own(bench):
    # K-FLOW-6, K-RUN-2, B32
    async def story():
        async with bench.process(any_then_one) as runtime:
            handle = await runtime.start(any_then_one, execution_id="x")
            await bench.settle()
            await send(runtime, ("p2", "other", 0), ("p1", None, 1), ("p2", "k", 2))
            await bench.settle()
            assert ("EXECUTION_SUSPENDED", "p3") == (await bench.log())[-1]
            await send(runtime, ("p3", None, 3))
            return await handle.result(), await bench.emits()

    assert (["p1", None, 1, 3, 2], ["opened*"]) == trio.run(story)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("early", [0, 1, 2, 3])
def test_all_of_several_come_in_any_order_before_the_gate_or_after(bench, order, early):
    # K-FLOW-6, B29: each is one event, in order of arrival, and the results are in the gate's order
    sent = [(*PAIRS[n], n) for n in order]

    @flow
    async def held(ctx, _input):
        await ctx.suspend("begin")
        return await all_three.function(ctx, None)

    async def story():
        async with bench.process(held) as runtime:
            handle = await runtime.start(held, execution_id="x")
            await send(runtime, *sent[:early], ("begin", None, None))
            await bench.settle()
            await send(runtime, *sent[early:])
            result = await handle.result()
        kinds = [e.type for e in await bench.envelopes() if "DELIVERED" in e.type or "RESUMED" in e.type]
        return result, kinds, await bench.emits(), len((await bench.state(held))["deliveries"])

    result, kinds, emits, remembered = trio.run(story)
    assert [["done", "a", 0], ["done", "b", 1], ["note", None, 2]] == result
    assert ["EXECUTION_RESUMED", "GATE_DELIVERED", "GATE_DELIVERED", "EXECUTION_RESUMED"] == kinds
    assert (["waiting*", "opened*"], 4) == (emits, remembered)


def test_a_second_delivery_to_a_member_waits_for_another_gate(bench):
    # K-FLOW-6, K-RUN-2
    @flow
    async def twice(ctx, _input):
        got = await ctx.suspend_all(["a", "b"])
        return [*got.values(), await ctx.suspend("a")]

    async def story():
        async with bench.process(twice) as runtime:
            handle = await runtime.start(twice, execution_id="x")
            await bench.settle()
            await send(runtime, ("a", None, 1), ("a", None, 2))
            await send(runtime, ("a", None, 1))  # a duplicate of what has passed
            await send(runtime, ("b", None, 3))
            return await handle.result()

    assert [1, 3, 2] == trio.run(story)


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
def test_whatever_append_a_process_dies_at_each_delivery_passes_once(make_bench, landed, compacted):
    # K-FLOW-6, K-RUN-2, K-FOLD-6
    async def story():
        for crash_at in range(9):
            bench = make_bench(snapshot_every=1 if compacted else None)

            async def drive(runtime):
                await runtime.start(all_three, execution_id="x")
                await send(runtime, *[(*pair, n) for n, pair in enumerate(PAIRS)])

            await bench.crash(drive, all_three, at=crash_at, landed=landed)
            async with bench.process(all_three) as runtime:
                await drive(runtime)
                await runtime.recover_all()
                if compacted:
                    await runtime.compact("x")
                assert [0, 1, 2] == [payload for _on, _key, payload in await runtime.wait_result("x")]
            if not compacted:
                passed = [e.payload["deliveryId"] for e in await bench.envelopes() if "deliveryId" in (e.payload or {})]
                assert sorted(set(passed)) == sorted(passed)

    trio.run(story)


def test_a_gate_of_several_times_out_with_what_has_come(bench):
    # K-FLOW-6
    @flow
    async def patient(ctx, _input):
        try:
            await ctx.suspend_all(["a", "b"], timeout=5)
        except GateTimeout as late:
            first = [[on, payload] for (on, _key), payload in late.arrived.items()]
        try:
            await ctx.suspend_any(["a", "b"], timeout=5)
        except GateTimeout as late:
            return [first, late.arrived == {}, await ctx.suspend("c")]

    async def story():
        async with bench.process(patient) as runtime:
            handle = await runtime.start(patient, execution_id="x")
            await bench.settle()
            await send(runtime, ("b", None, 1))
            await bench.settle()
            bench.clock.advance(5)
            await bench.settle()
            bench.clock.advance(5)
            await bench.settle()
            await send(runtime, ("c", None, 2))
            return await handle.result()

    assert [[["b", 1]], True, 2] == trio.run(story)


def version(wait):
    @flow(id="v")
    async def a_flow(ctx, _input):
        await wait(ctx)
        await ctx.suspend("end")

    return a_flow


WAITS = {
    "one": lambda ctx: ctx.suspend("a"),
    "any": lambda ctx: ctx.suspend_any(["a", "b"]),
    "other any": lambda ctx: ctx.suspend_any(["b", "a"]),
    "all": lambda ctx: ctx.suspend_all(["a", "b"]),
}


@pytest.mark.parametrize("passed", [False, True])
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(WAITS, 2)))
def test_a_gate_of_other_members_or_mode_blocks(bench, before, after, passed):
    # K-FLOW-9
    async def story():
        async with bench.process(version(WAITS[before])) as runtime:
            await runtime.start("v", execution_id="x")
            await bench.settle()
            if passed:
                await send(runtime, ("a", None, 1), ("b", None, 2))
                await bench.settle()
        async with bench.process(version(WAITS[after])) as runtime:
            await send(runtime, *([("end", None, 3)] if passed else [("a", None, 1), ("b", None, 2)]))
            await bench.settle()
        return (await bench.log())[-1]

    assert ("EXECUTION_BLOCKED",) == trio.run(story)


def test_a_gate_of_several_in_a_branch_or_of_nothing_or_of_the_same_twice_is_refused(bench):
    # K-FLOW-6
    refused = []

    @flow
    async def wrong(ctx, _input):
        async def inside():
            try:
                await ctx.suspend_any(["a"])
            except GateInBranch as error:
                refused.append(type(error))

        async with ctx.branches() as b:
            b.start(inside)
        for wait in (ctx.suspend_any([]), ctx.suspend_all(["a", ("a", None)])):
            try:
                await wait
            except ValueError as error:
                refused.append(type(error))
        return await ctx.suspend_all([]) == {}

    async def story():
        await bench.run(wrong)
        return (await bench.state(wrong))["output"]

    assert trio.run(story) is True
    assert [GateInBranch, ValueError, ValueError] == refused


@pytest.mark.parametrize("name", [*sorted(KERNEL_GATES), "a\0b", "\ud800"])
@pytest.mark.parametrize("wait", ["suspend", "suspend_any", "suspend_all"])
def test_a_gate_on_what_nothing_can_be_delivered_on_is_refused_and_not_parked_at(bench, name, wait):
    # K-FLOW-6, K-RUN-2: else it waits for ever; a sleep is what waits for time
    @flow
    async def hopeful(ctx, _input):
        with pytest.raises(ValueError, match=r"kernel's own|lone surrogate"):
            await getattr(ctx, wait)(name if wait == "suspend" else ["other", name])
        return "refused"

    async def story():
        await bench.run(hopeful)
        return (await bench.state(hopeful))["output"], await bench.log()

    assert ("refused", [("EXECUTION_STARTED",), ("EXECUTION_COMPLETED",)]) == trio.run(story)
