"""Retries: attempts of one call of a step (K-FLOW-11)."""

from __future__ import annotations

import statistics

import pytest
import trio
import trio.testing

from kernel import RetryPolicy, TypedFailure, flow, step


class Declined(TypedFailure):
    pass


THRICE = RetryPolicy(attempts=3, backoff_seconds=10, factor=3)


def failing(*failures, **declared):
    """A step that fails as told and then returns how often it was tried, and its attempts' numbers."""
    attempts = []

    async def effect(ectx, _input):
        attempts.append(ectx.attempt)
        if len(attempts) <= len(failures):
            raise failures[len(attempts) - 1]
        return len(attempts)

    return step("call", effect, **{"retry": THRICE, **declared}), attempts


def calling(one):
    @flow
    async def call(ctx, _input):
        try:
            value = await ctx.execute(one)
        except OSError as error:
            value = f"gave up: {error}"
        await ctx.emit("called")
        if await ctx.suspend("go") == "again":
            await ctx.execute(one)
        return value

    return call


async def pass_time(bench, *seconds):
    for each in seconds:
        await bench.settle()
        bench.clock.advance(each)
    await bench.settle()


def test_a_failing_attempt_is_tried_again_after_its_backoff(bench):
    # K-FLOW-11
    one, attempts = failing(OSError("1"), OSError("2"))

    async def story():
        async with bench.process(calling(one)) as runtime:
            await runtime.start("call", execution_id="x")
            await pass_time(bench, 9.9)
            assert [1] == attempts
            await pass_time(bench, 0.1, 29.9)
            assert [1, 2] == attempts
            await pass_time(bench, 0.1)
        return (await bench.state(calling(one)))["steps"]["call"], await bench.emits()

    entry, emits = trio.run(story)
    assert ([1, 2, 3], 3, 3) == (attempts, entry["output"], entry["attempts"])
    assert ["called*"] == emits  # a failed attempt that is retried is no outcome: nothing was unsettled


def test_the_last_failure_is_the_steps_and_unsettled(bench):
    # K-FLOW-11, K-FLOW-2
    one, attempts = failing(*[OSError(n) for n in range(1, 4)])

    async def story():
        async with bench.process(calling(one)) as runtime:
            await runtime.start("call", execution_id="x")
            await pass_time(bench, 10, 30)
        return await bench.emits(), [e.payload.get("retryDue") for e in await bench.envelopes() if "FAILED" in e.type]

    emits, dues = trio.run(story)
    assert ([1, 2, 3], ["called"]) == (attempts, emits)
    assert [1_010_000, 1_040_000, None] == dues


def test_a_later_call_has_its_tries_and_attempt_numbers_run_on(bench):
    # K-FLOW-11
    one, attempts = failing(*[OSError(n) for n in range(1, 6)])

    async def story():
        async with bench.process(calling(one)) as runtime:
            await runtime.start("call", execution_id="x")
            await pass_time(bench, 10, 30)
            await runtime.deliver("x", "go", "stop", delivery_id="d")
            await pass_time(bench, 10, 30)
            return await runtime.wait_result("x")

    assert 6 == trio.run(story)
    assert [1, 2, 3, 4, 5, 6] == attempts


@pytest.mark.parametrize("failure", [Declined(1), {1, 2}])
def test_declared_failures_and_what_cannot_be_recorded_are_not_retried(bench, failure):
    # K-FLOW-11
    attempts = []

    async def effect(ectx, _input):
        attempts.append(ectx.attempt)
        if isinstance(failure, Exception):
            raise failure
        return failure

    @flow
    async def once(ctx, _input):
        await ctx.execute(step("call", effect, retry=THRICE, failures=(Declined,)))

    async def story():
        await bench.run(once)
        return (await bench.log())[-1]

    assert ("EXECUTION_FAILED",) == trio.run(story)
    assert [1] == attempts


def test_a_crash_in_a_backoff_waits_for_the_rest_of_it(bench):
    # K-FLOW-11
    one, attempts = failing(OSError("1"))

    async def story():
        async with bench.process(calling(one)) as runtime:
            await runtime.start("call", execution_id="x")
            await pass_time(bench, 4)
        async with bench.process(calling(one)) as runtime:
            await runtime.recover_all()
            await pass_time(bench, 5.9)
            assert [1] == attempts
            await pass_time(bench, 0.1)
        return (await bench.state(calling(one)))["steps"]["call"]["output"]

    assert 2 == trio.run(story)
    assert [1, 2] == attempts


def test_a_crash_in_an_attempt_counts_as_one_but_is_no_reason_to_give_up(bench):
    # K-FLOW-11
    numbers, reached = [], []

    async def effect(ectx, _input):
        numbers.append(ectx.attempt)
        if len(numbers) <= 3:
            reached[-1].set()
            await trio.sleep_forever()
        raise OSError("no")

    one = step("call", effect, retry=THRICE)

    async def story():
        for crash in range(3):
            reached.append(trio.Event())
            async with bench.process(calling(one)) as runtime:
                if crash == 0:
                    await runtime.start("call", execution_id="x")
                await runtime.recover_all()
                await reached[-1].wait()
        await bench.recover(calling(one))
        return [e.payload.get("tries") for e in await bench.envelopes() if e.type == "STEP_STARTED"]

    assert [1, 2, 3, 3] == trio.run(story)
    assert [1, 2, 3, 4] == numbers


def test_each_attempt_has_the_deadline_and_a_zombie_of_an_earlier_one_unsettles_nothing(bench):
    # K-FLOW-11, K-FLOW-3, K-EMIT-5
    release = trio.Event()
    calls = []

    async def effect(ectx, _input):
        calls.append(ectx.attempt)
        if ectx.attempt == 1:
            with trio.CancelScope(shield=True):
                await release.wait()
            raise OSError("too late to matter")
        return "answered"

    one = step("call", effect, deadline=3, retry=RetryPolicy(attempts=2, backoff_seconds=0))

    @flow
    async def call(ctx, _input):
        value = await ctx.execute(one)
        release.set()
        await trio.testing.wait_all_tasks_blocked()
        await ctx.emit("called")
        return value

    async def story():
        async with bench.process(call) as runtime:
            handle = await runtime.start(call, execution_id="x")
            return await handle.result(), await bench.emits()

    assert ("answered", ["called*"]) == trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [1, 2] == calls


def test_a_flow_that_gives_up_in_a_backoff_ends_the_step_as_cancelled(bench):
    # K-FLOW-11, K-FLOW-2
    one, attempts = failing(OSError("1"))

    @flow
    async def impatient(ctx, _input):
        with trio.move_on_after(1):
            await ctx.execute(one)
        await ctx.emit("went on")

    async def story():
        async with bench.process(impatient) as runtime:
            handle = await runtime.start(impatient, execution_id="x")
            await handle.result()
        return await bench.log()

    log = trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [("STEP_FAILED", "call", "error"), ("STEP_CANCELLED", "call"), ("emit", "went on", "unstamped")] == log[2:5]
    assert [1] == attempts


def test_the_wait_is_a_pure_function_of_execution_step_and_attempt():
    # K-FLOW-11
    policy = RetryPolicy(backoff_seconds=8, factor=2, backoff_seconds_max=20, jitter=0.5)
    waits = [policy.wait_seconds("x", "call", n, n) for n in (1, 2, 3)]
    assert waits == [policy.wait_seconds("x", "call", n, n) for n in (1, 2, 3)]
    assert all(full / 2 <= wait <= full for wait, full in zip(waits, (8, 16, 20), strict=True))
    spread = [policy.wait_seconds(f"x{n}", "call", 1, 1) for n in range(500)]
    assert 5.8 < statistics.mean(spread) < 6.2
    assert len(set(spread)) == 500
    assert 20 == RetryPolicy(backoff_seconds_max=20).wait_seconds("x", "call", 5000, 5000)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"backoff_seconds": -1}, {"factor": 0.5}, {"jitter": 1.5}, {"backoff_seconds_max": -1}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    # K-FLOW-11
    with pytest.raises(ValueError, match="must be"):
        RetryPolicy(**wrong)


def test_a_step_that_runs_at_most_once_is_not_retried():
    # K-FLOW-11, K-FLOW-4
    with pytest.raises(ValueError, match="at most once"):
        step("charge", at_most_once=True, retry=RetryPolicy())
