"""At-most-once steps: no second effect, and an operator's word (K-FLOW-4)."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing

from kernel import ExecutionBlocked, TypedFailure, flow, saga, step
from kernel.errors import NothingToResolve, UnknownExecution
from kernel.vectors import load_fold_vectors


class Declined(TypedFailure):
    wire_name = "declined"


class World:
    """What the outside world has seen of a step, and what it does next."""

    def __init__(self, *behaviours) -> None:
        self.calls = []
        self._behaviours = list(behaviours)

    async def __call__(self, ectx, input):
        self.calls.append(ectx.attempt)
        behaviour = self._behaviours.pop(0) if self._behaviours else "done"
        if isinstance(behaviour, Exception):
            raise behaviour
        if behaviour == "hang":
            await trio.sleep_forever()
        return behaviour


def charging(world, **more):
    charge = step("charge", world, at_most_once=True, failures=(Declined,), **more)

    @flow
    async def buy(ctx, _input):
        try:
            return await ctx.execute(charge)
        except Declined as failure:
            return f"declined {failure.data}"

    return buy


def at(story):
    return trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


ENDS = [
    ("error", OSError("no answer"), {}),
    ("timeout", "hang", {"deadline": 3}),
    ("error", {1, 2}, {}),  # has no JSON form: it has happened, and what it gave is not known
    ("error", Declined({1, 2}), {}),
]


@pytest.mark.parametrize(("reason", "behaviour", "declared"), ENDS)
def test_an_end_that_is_none_leaves_the_step_in_doubt_once_and_blocks(bench, reason, behaviour, declared):
    # K-FLOW-4, K-FLOW-2
    world = World(behaviour)
    buy = charging(world, **declared)

    async def story():
        async with bench.process(buy) as runtime:
            handle = await runtime.start(buy, execution_id="x")
            with pytest.raises(ExecutionBlocked) as blocked:
                await handle.result()
            again = await runtime.start(buy, execution_id="x")
            with contextlib.suppress(ExecutionBlocked):
                await again.result()
        await bench.recover(buy)
        return blocked.value.reason, (await bench.envelopes())[2].payload, await bench.log()

    blocked, doubt, log = at(story)
    assert ("indoubt", ["charge"]) == (blocked["reason"], blocked["steps"])
    assert (1, reason, "charge") == (doubt["attempt"], doubt["reason"], doubt["step"])
    assert [("STEP_STARTED", "charge"), ("EFFECT_INDOUBT",), ("EXECUTION_BLOCKED",)] == log[1:]
    assert [1] == world.calls


def test_a_declared_failure_is_no_doubt(bench):
    # K-FLOW-4
    world = World(Declined(51))

    async def story():
        await bench.run(charging(world))
        return (await bench.state(charging(world)))["output"], await bench.log()

    output, log = at(story)
    assert ("declined 51", ("STEP_FAILED", "charge", "typed")) == (output, log[2])


@pytest.mark.parametrize("landed", [False, True])
def test_whatever_append_a_process_dies_at_there_is_no_second_effect(make_bench, landed):
    # K-FLOW-4, B19
    seen = set()

    async def story():
        for crash_at in range(6):
            world = World()
            buy = charging(world)
            bench = make_bench()

            async def drive(runtime, buy=buy):
                await runtime.start(buy, execution_id="x")

            await bench.crash(drive, buy, at=crash_at, landed=landed)
            for _ in range(2):
                await bench.recover(buy)
            kinds = [event[0] for event in await bench.log()]
            assert len(world.calls) <= 1
            assert kinds.count("EFFECT_INDOUBT") <= 1
            seen.add(kinds[-1] if kinds else "nothing")

    trio.run(story)
    assert {"EXECUTION_BLOCKED", "EXECUTION_COMPLETED"} <= seen


def test_a_crash_between_the_doubt_and_the_block_says_neither_twice(bench):
    # K-FLOW-4
    world = World(OSError())
    buy = charging(world)

    async def drive(runtime):
        await runtime.start(buy, execution_id="x")

    async def story():
        assert await bench.crash(drive, buy, at=3)
        await bench.recover(buy)
        await bench.recover(buy)
        return await bench.log()

    assert [("EFFECT_INDOUBT",), ("EXECUTION_BLOCKED",)] == trio.run(story)[2:]
    assert [1] == world.calls


def test_a_flow_that_gives_the_step_up_goes_no_further(bench):
    # K-FLOW-4: trio's cancellation is the flow's own, and swallowed by its scope
    world, after = World("hang"), World()
    charge = step("charge", world, at_most_once=True)
    ship = step("ship", after)

    @flow
    async def impatient(ctx, _input):
        with trio.move_on_after(1):
            await ctx.execute(charge)
        await ctx.execute(ship)

    async def story():
        async with bench.process(impatient) as runtime:
            handle = await runtime.start(impatient, execution_id="x")
            with pytest.raises(ExecutionBlocked):
                await handle.result()
        return (await bench.envelopes())[2].payload["reason"], await bench.log()

    reason, log = at(story)
    assert ("cancelled", [("EFFECT_INDOUBT",), ("EXECUTION_BLOCKED",)]) == (reason, log[2:])
    assert ([1], []) == (world.calls, after.calls)


def test_a_completion_whose_append_the_flow_does_not_wait_for_is_no_doubt(bench):
    # K-FLOW-4: the effect has happened, so its record must not depend on the flow's patience
    scopes = []

    async def effect(_ectx, _input):
        scopes[0].cancel()
        return "charged"

    charge = step("charge", effect, at_most_once=True)

    @flow
    async def impatient(ctx, _input):
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await ctx.execute(charge)
        return "went on"

    async def story():
        await bench.run(impatient)
        return await bench.log()

    assert [("STEP_COMPLETED", "charge"), ("EXECUTION_COMPLETED",)] == trio.run(story)[2:]


@pytest.mark.parametrize("beside", ["branch", "body"])
def test_siblings_settle_before_the_execution_blocks(bench, beside):
    # K-FLOW-4, K-FLOW-8: they end what they are at, and begin nothing
    slow, after = World("slow"), World()
    begun, failed = trio.Event(), trio.Event()

    async def slowly(ectx, input):
        begun.set()
        await failed.wait()
        await trio.lowlevel.checkpoint()
        return await slow(ectx, input)

    async def failing(_ectx, _input):
        await begun.wait()
        failed.set()
        raise OSError

    charge = step("charge", failing, at_most_once=True)

    @flow
    async def both(ctx, _input):
        async def slow_then_next():
            await ctx.execute(step("slow", slowly))
            await ctx.execute(step("next", after))

        async with ctx.branches() as b:
            b.start(slow_then_next)
            if beside == "branch":
                b.start(ctx.execute, charge)
            else:
                await ctx.execute(charge)

    async def story():
        await bench.run(both)
        return await bench.log()

    assert [("EFFECT_INDOUBT",), ("STEP_COMPLETED", "slow"), ("EXECUTION_BLOCKED",)] == trio.run(story)[3:]
    assert [] == after.calls


def test_no_rollback_begins_while_a_step_is_in_doubt(bench):
    # K-FLOW-4, K-SAGA-1
    undone = World()
    book, charge = step("book", World()), step("charge", World(OSError()), at_most_once=True)

    @flow
    async def trip(ctx, _input):
        async with saga(ctx) as s:
            await s.run(book, compensate=step("unbook", undone))
            await s.run(charge)

    async def story():
        await bench.run(trip)
        return (await bench.log())[-1]

    assert ("EXECUTION_BLOCKED",) == trio.run(story)
    assert [] == undone.calls


# ---- resolving -------------------------------------------------------------------------------------------------------

WORDS = [
    ({"completed": "by hand"}, "by hand", [1]),
    ({"completed": None}, None, [1]),
    ({"failed": Declined(7)}, "declined 7", [1]),
    ({"retry": True}, "done", [1, 2]),
]


@pytest.mark.parametrize(("word", "output", "calls"), WORDS)
@pytest.mark.parametrize("compacted", [False, True])
def test_an_operators_word_is_one_event_and_the_execution_goes_on(bench, word, output, calls, compacted):
    # K-FLOW-4, K-FOLD-6
    world = World(OSError())
    buy = charging(world)

    async def story():
        await bench.run(buy)
        async with bench.process(buy) as runtime:
            if compacted:
                await runtime.compact("x")
            before = (await runtime.executions("blocked"))[0]
            await runtime.resolve("x", "charge", **word)
            await runtime.resolve("x", "charge", attempt=1, **word)  # the answer was lost: the same again
            result = await runtime.wait_result("x")
            events = [stored.text for stored in await bench.store.read_from("x", before.head + 1)]
            return result, sum('"EFFECT_RESOLVED"' in text for text in events), await runtime.executions("blocked")

    assert (output, 1, []) == trio.run(story)
    assert calls == world.calls


def test_a_retry_that_ends_in_doubt_again_needs_another_word(bench):
    # K-FLOW-4
    world = World(OSError(), OSError())
    buy = charging(world)

    async def story():
        await bench.run(buy)
        async with bench.process(buy) as runtime:
            await runtime.resolve("x", "charge", retry=True, attempt=1)
            await bench.settle()
            await runtime.resolve("x", "charge", retry=True, attempt=1)  # said before: allows nothing more
            await bench.settle()
            assert [1, 2] == world.calls
            await runtime.resolve("x", "charge", retry=True)
            return await runtime.wait_result("x")

    assert "done" == trio.run(story)
    assert [1, 2, 3] == world.calls


def test_with_several_steps_in_doubt_the_execution_goes_on_after_the_last_word(bench):
    # K-FLOW-4
    begun = []

    async def failing(_ectx, _input):
        begun.append(1)
        while len(begun) < 2:
            await trio.lowlevel.checkpoint()
        raise OSError

    steps = [step(name, failing, at_most_once=True) for name in "ab"]

    @flow
    async def both(ctx, _input):
        async with ctx.branches() as b:
            branches = [b.start(ctx.execute, one) for one in steps]
        return [branch.result for branch in branches]

    async def story():
        await bench.run(both)
        async with bench.process(both) as runtime:
            await runtime.resolve("x", "b", completed=2)
            await bench.settle()
            assert ("EFFECT_RESOLVED",) == (await bench.log())[-1]
            await runtime.resolve("x", "a", completed=1)
            return await runtime.wait_result("x")

    assert [1, 2] == trio.run(story)


def test_a_crash_while_an_operator_speaks_loses_no_word(make_bench):
    # K-FLOW-4
    async def story():
        ends = []
        for crash_at in range(4):
            world = World(OSError())
            buy, bench = charging(world), make_bench()
            await bench.run(buy)

            async def say(runtime):
                await runtime.resolve("x", "charge", completed=1)

            await bench.crash(say, buy, at=crash_at)
            async with bench.process(buy) as runtime:
                await say(runtime)
                await runtime.recover_all()
                ends.append((await runtime.wait_result("x"), world.calls))
        return ends

    assert [(1, [1])] * 4 == trio.run(story)


def test_two_operators_at_once_are_one(bench):
    # K-FLOW-4
    world = World(OSError())
    buy = charging(world)

    async def story():
        await bench.run(buy)
        async with bench.process(buy) as one, bench.process(buy) as other:
            async with trio.open_nursery() as nursery:
                for runtime in (one, other, one):

                    async def say(runtime=runtime):
                        with contextlib.suppress(NothingToResolve):
                            await runtime.resolve("x", "charge", completed=1)

                    nursery.start_soon(say)
            await bench.settle()
        return [event[0] for event in await bench.log()][4:]

    assert ["EFFECT_RESOLVED", "EXECUTION_UNBLOCKED", "EXECUTION_COMPLETED"] == trio.run(story)


def test_what_is_not_in_doubt_takes_no_word(bench):
    # K-FLOW-4
    world = World(OSError())
    buy = charging(world)

    async def story():
        async with bench.process(buy) as runtime:
            with pytest.raises(UnknownExecution):
                await runtime.resolve("x", "charge", retry=True)
            await runtime.start(buy, execution_id="x")
            await bench.settle()
            with pytest.raises(NothingToResolve, match="no step 'other'"):
                await runtime.resolve("x", "other", retry=True)
            with pytest.raises(NothingToResolve, match="attempt 2"):
                await runtime.resolve("x", "charge", retry=True, attempt=2)
            with pytest.raises(ValueError, match="2 resolutions"):
                await runtime.resolve("x", "charge", retry=True, completed=1)
            await runtime.resolve("x", "charge", completed=1)
            await runtime.wait_result("x")
            with pytest.raises(NothingToResolve):
                await runtime.resolve("x", "charge", retry=True)
            with pytest.raises(NothingToResolve, match="completed"):
                await runtime.resume_blocked("x")

    trio.run(story)


# ---- blocked for another reason --------------------------------------------------------------------------------------


def test_a_flow_that_has_parted_from_its_log_goes_on_when_its_code_is_mended(bench):
    # K-FLOW-9
    world = World()
    pay = step("pay", world)

    def version(amount):
        @flow(id="buy")
        async def buy(ctx, _input):
            await ctx.execute(pay, amount)
            await ctx.suspend("go")
            return amount

        return buy

    async def story():
        await bench.run(version(1))
        await bench.deliver(version(2), on="go", id="d")
        assert ("EXECUTION_BLOCKED",) == (await bench.log())[-1]
        async with bench.process(version(2)) as runtime:
            await runtime.resume_blocked("x")
            await bench.settle()
            assert ("EXECUTION_BLOCKED",) == (await bench.log())[-1]
        async with bench.process(version(1)) as runtime:
            await runtime.resume_blocked("x")
            return await runtime.wait_result("x"), (await runtime.state("x"))["blocked"]

    assert (1, None) == trio.run(story)
    assert [1] == world.calls


def test_the_fold_vectors_cover_resolutions():
    # K-FOLD-7
    said = {
        event.payload["resolution"]
        for vector in load_fold_vectors()
        for event in vector.events
        if event.type == "EFFECT_RESOLVED"
    }
    assert {"completed", "failed", "retry"} == said
