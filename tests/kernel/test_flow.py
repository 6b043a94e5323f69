"""The flow context: what a flow's syscalls promise (K-FLOW)."""

from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing

from kernel import EffectContext, GateTimeout, StepTimeout, TypedFailure, flow, step
from kernel.errors import (
    ConcurrencyConflict,
    DuplicateStep,
    GateInBranch,
    ReservedEventType,
    SyscallOutsideFlow,
)
from kernel.events import parse
from kernel.ports import Stores


class Declined(TypedFailure):
    wire_name = "declined"


class OwnInit(TypedFailure):
    wire_name = "own-init"

    def __init__(self, code: int) -> None:
        super().__init__({"code": code})


def play(bench, a_flow, *deliveries, input=None, **more):
    """Run a flow, deliver each payload on `go` in a process of its own, and return the result or error, and the log."""

    async def story():
        await bench.run(a_flow, input, **more)
        for n, payload in enumerate(deliveries):
            await bench.deliver(a_flow, on="go", payload=payload, id=f"d{n}", **more)
        state = await bench.state(a_flow)
        return state["error"] or state["output"], await bench.log()

    return trio.run(story, clock=trio.testing.MockClock())


def counted(id, effect=None, **declared):
    """A step that counts its effect's runs; returns the step and the count."""
    runs = []

    async def counting(ectx, input):
        runs.append(ectx.attempt)
        return await effect(ectx, input) if effect is not None else input

    return step(id, counting, **declared), runs


# ---- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [None, 0, False, "", [], {}, float("nan"), (1, 2.0), {"b": 1, "a": [1.5]}])
def test_a_completed_step_is_served_its_recorded_output_and_its_effect_does_not_run(bench, output):
    # K-FLOW-1, K-LOG-4: what is recorded is present, however empty; live and served values are alike
    async def effect(_ectx, _input):
        return output

    produce, runs = counted("produce", effect)
    seen = []

    @flow
    async def f(ctx, _input):
        seen.append(repr(await ctx.execute(produce)))
        await ctx.suspend("go")

    play(bench, f, None)
    assert ([1], 2, seen[0]) == (runs, len(seen), seen[1])


@pytest.mark.parametrize("failure", [Declined({"code": (51, 1.0)}), OwnInit(51)])
def test_a_typed_failure_is_raised_again_as_the_same_type_with_the_same_data(bench, failure):
    # K-FLOW-1, K-LOG-4
    async def effect(_ectx, _input):
        raise failure

    charge, runs = counted("charge", effect, failures=(Declined, OwnInit))
    seen = []

    @flow
    async def f(ctx, _input):
        try:
            await ctx.execute(charge)
        except TypedFailure as error:
            seen.append((type(error), repr(error.data)))
        await ctx.suspend("go")

    play(bench, f, None)
    data = "{'code': [51, 1]}" if isinstance(failure, Declined) else "{'code': 51}"
    assert ([1], [(type(failure), data)] * 2) == (runs, seen)


def test_the_most_specific_declaration_names_a_typed_failure(bench):
    # K-FLOW-1
    class Stolen(Declined):
        wire_name = "stolen"

    @step("charge", failures=(Declined, Stolen))
    async def charge(_ectx, _input):
        raise Stolen()

    @flow
    async def f(ctx, _input):
        await ctx.execute(charge)

    assert {"data": None, "name": "stolen", "type": "Stolen"} == play(bench, f)[0]


def test_an_untyped_failure_executes_again_on_a_re_run_and_attempts_run_on(bench):
    # K-FLOW-1, K-FLOW-2
    async def effect(ectx, _input):
        if ectx.attempt < 3:
            raise OSError("down")
        return "up"

    poll, runs = counted("poll", effect)

    @flow
    async def f(ctx, _input):
        with contextlib.suppress(OSError):
            return await ctx.execute(poll)
        await ctx.suspend("go")
        return None

    result, log = play(bench, f, None)
    assert [("STEP_FAILED", "poll", "error")] == sorted({entry for entry in log if entry[0] == "STEP_FAILED"})
    assert ([1, 2], None) == (runs, result)


def test_a_failure_that_cannot_be_recorded_is_untyped(bench):
    # K-JSON-3, K-FLOW-2
    @step("charge", failures=(Declined,))
    async def charge(_ectx, _input):
        raise Declined({1, 2})

    @flow
    async def f(ctx, _input):
        await ctx.execute(charge)

    error, log = play(bench, f)
    assert ("NoJsonForm", ("STEP_FAILED", "charge", "error")) == (error["type"], log[-2])


def test_the_effect_gets_an_idempotency_key_and_attempts_that_run_on_across_crashes(bench):
    # K-FLOW-1
    seen = []

    @step("charge", deadline=30)
    async def charge(ectx: EffectContext, _input):
        seen.append((ectx.idempotency_key, ectx.attempt, ectx.deadline_seconds))

    @flow
    async def f(ctx, _input):
        await ctx.execute(charge, key="first")

    async def story():
        async def drive(runtime):
            await runtime.start(f, execution_id="x")

        assert await bench.crash(drive, f, at=2)  # the completion does not land
        await bench.recover(f)

    trio.run(story)
    assert [("x/charge[first]", 1, 30), ("x/charge[first]", 2, 30)] == seen


def test_the_same_step_twice_in_one_run_needs_a_key(bench):
    # K-FLOW-1
    pay, runs = counted("pay")
    raised = []

    @flow
    async def f(ctx, _input):
        await ctx.execute(pay, 1)
        try:
            await ctx.execute(pay, 2)
        except DuplicateStep as error:
            raised.append(str(error))
        await ctx.execute(pay, 3, key="b")

    play(bench, f)
    assert (1, [1, 1]) == (len(raised), runs)
    assert "'pay'" in raised[0]


def test_a_step_that_ended_unsettled_may_be_executed_again_in_the_same_run(bench):
    # K-FLOW-1
    async def effect(ectx, _input):
        if ectx.attempt == 1:
            raise OSError("down")
        return "up"

    poll, runs = counted("poll", effect)

    @flow
    async def f(ctx, _input):
        with contextlib.suppress(OSError):
            await ctx.execute(poll)
        return await ctx.execute(poll)

    assert ("up", [1, 2]) == (play(bench, f)[0], runs)


async def echo(_ectx, input):
    return input


def test_a_step_names_its_effect_by_its_id_or_by_a_tool_id(bench):
    # K-FLOW-1
    @flow
    async def f(ctx, _input):
        return await ctx.execute(step("b"), 1), await ctx.execute(step("s", tool_id="a"), 2)

    assert [1, 2] == play(bench, f, effects={"a": echo, "b": echo})[0]


def test_a_step_whose_effect_is_not_registered_blocks_and_goes_on_when_it_is(bench):
    # K-FLOW-1: a deployment that lacks something ends no execution, whatever the flow would make of an error
    seen = []

    @flow
    async def f(ctx, _input):
        first = await ctx.execute(step("b"), 1)
        try:
            return [first, await ctx.execute(step("missing", tool_id="tool"), 2)]
        except Exception as error:
            seen.append(error)

    async def story():
        await bench.run(f, effects={"a": echo, "b": echo})
        log, blocked = await bench.log(), (await bench.state(f))["blocked"]
        async with bench.process(f, effects={"b": echo, "tool": echo}) as runtime:
            await runtime.resume_blocked("x")
            return log, blocked, await runtime.wait_result("x")

    log, blocked, result = trio.run(story)
    assert ([], [1, 2], ("EXECUTION_BLOCKED",)) == (seen, result, log[-1])
    assert ("STEP_STARTED", "missing") not in log
    detail = "step 'missing' names the tool 'tool', for which no effect is registered; registered are ['a', 'b']"
    assert {"reason": "unregistered", "detail": detail} == blocked


# ---- deadlines and cancellation --------------------------------------------------------------------------------------


def test_a_deadline_ends_the_wait_and_a_zombies_result_is_never_recorded(bench):
    # K-FLOW-3: shielded, it goes on; the run is not held up
    settled = []

    @step("slow", deadline=1)
    async def slow(_ectx, _input):
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        settled.append(trio.current_time())
        return "late"

    ended = []

    @flow
    async def f(ctx, _input):
        with pytest.raises(StepTimeout):
            await ctx.execute(slow)
        ended.append(trio.current_time())

    async def story():
        clock = trio.lowlevel.current_clock()
        begun = trio.current_time()
        async with bench.process(f) as runtime:
            await runtime.start(f, execution_id="x")
            for _ in range(12):
                await bench.settle()
                clock.jump(1)
            await bench.settle()
        return begun, await bench.log()

    begun, log = trio.run(story, clock=trio.testing.MockClock())
    assert ([1], [10]) == ([round(t - begun) for t in ended], [round(t - begun) for t in settled])
    assert [("STEP_STARTED", "slow"), ("STEP_FAILED", "slow", "timeout"), ("EXECUTION_COMPLETED",)] == log[1:]


def test_an_effect_that_ends_when_it_is_asked_to_stop_leaves_no_trace(bench):
    # K-FLOW-3
    stopped = []

    @step("slow", deadline=1)
    async def slow(_ectx, _input):
        try:
            await trio.sleep_forever()
        finally:
            stopped.append(1)

    @flow
    async def f(ctx, _input):
        await ctx.execute(slow)

    async def story():
        async with bench.process(f) as runtime:
            handle = await runtime.start(f, execution_id="x")
            await bench.settle()
            trio.lowlevel.current_clock().jump(2)
            return (await bench.outcome(handle))["type"]

    assert ("StepTimeout", [1]) == (trio.run(story, clock=trio.testing.MockClock()), stopped)


def test_a_step_its_flow_gives_up_is_recorded_as_cancelled_and_unsettled(bench):
    # K-FLOW-1, K-FLOW-2
    @step("slow")
    async def slow(_ectx, _input):
        await trio.sleep_forever()

    @flow
    async def f(ctx, _input):
        with trio.move_on_after(1):
            await ctx.execute(slow)
        await ctx.emit("note")

    async def story():
        async with bench.process(f) as runtime:
            handle = await runtime.start(f, execution_id="x")
            await bench.settle()
            trio.lowlevel.current_clock().jump(2)
            await handle.result()
        return (await bench.log())[2:]

    log = trio.run(story, clock=trio.testing.MockClock())
    assert [("STEP_CANCELLED", "slow"), ("emit", "note", "unstamped"), ("EXECUTION_COMPLETED",)] == log


@pytest.mark.parametrize("ending", ["error", "timeout", "cancelled"])
def test_an_unsettled_outcome_counts_from_when_it_is_known_not_from_when_it_is_appended(bench, ending):
    # K-EMIT-5: an emit of a branch, made while the outcome is on its way to the log
    appending, emitted = trio.Event(), trio.Event()

    class SlowOutcome:
        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def append(self, execution_id, expected, batch, **more):
            if batch[0].type in ("STEP_FAILED", "STEP_CANCELLED"):
                appending.set()
                await emitted.wait()
            await bench.store.append(execution_id, expected, batch, **more)

    @step("work", deadline=1 if ending == "timeout" else None)
    async def work(_ectx, _input):
        if ending == "error":
            raise OSError("down")
        await trio.sleep_forever()

    @flow
    async def f(ctx, _input):
        async def working():
            with trio.move_on_after(1 if ending == "cancelled" else 9), contextlib.suppress(OSError, StepTimeout):
                await ctx.execute(work)

        async def emitting():
            await appending.wait()
            async with ctx.branches() as inner:
                inner.start(ctx.emit, "note")
                for _ in range(3):  # until the emit waits for its turn to be appended
                    await trio.lowlevel.checkpoint()
                emitted.set()

        async with ctx.branches() as branches:
            branches.start(working)
            branches.start(emitting)

    async def story():
        slow = SlowOutcome()
        async with bench.process(f, stores=Stores(events=slow, snapshots=slow, mailbox=slow)) as runtime:
            await runtime.start(f, execution_id="x")
            await bench.settle()
            trio.lowlevel.current_clock().jump(2)
            await bench.settle()
        return await bench.emits()

    assert ["note"] == trio.run(story, clock=trio.testing.MockClock())


def test_giving_up_the_append_of_a_completion_is_unsettled_too(bench):
    # K-FLOW-2, K-EMIT-3: it may have landed, and the next run is served it
    quick, _runs = counted("quick")

    class Slow:
        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def append(self, execution_id, expected, batch, **more):
            await bench.store.append(execution_id, expected, batch, **more)
            if batch[0].type == "STEP_COMPLETED":
                await trio.sleep(5)

    @flow
    async def f(ctx, _input):
        with trio.move_on_after(1) as scope:
            await ctx.execute(quick)
        await ctx.emit("late" if scope.cancelled_caught else "in time")

    async def story():
        slow = Slow()
        stores = Stores(events=slow, snapshots=slow, mailbox=slow)
        async with bench.process(f, stores=stores) as runtime:
            handle = await runtime.start(f, execution_id="x")
            await bench.settle()
            trio.lowlevel.current_clock().jump(2)
            await handle.result()
        return await bench.emits()

    # The position of `late` is taken by the completion: the run begins again from the tail, and is in time.
    assert ["in time*"] == trio.run(story, clock=trio.testing.MockClock())


# ---- decisions -------------------------------------------------------------------------------------------------------


def test_a_decision_is_made_once_and_served_with_the_same_value_and_type(bench):
    # K-FLOW-5, K-LOG-4
    calls, seen = [], []

    async def decider():
        calls.append(1)
        return (1, 2.0, float("nan"))

    @flow
    async def f(ctx, _input):
        seen.append(repr(await ctx.decide("route", decider)))
        await ctx.suspend("go")

    log = play(bench, f, None)[1]
    assert ([1], ["[1, 2, None]"] * 2, 1) == (calls, seen, log.count(("DECISION_RECORDED", "route")))


def test_a_decision_for_none_is_a_decision(bench):
    # K-FLOW-5
    calls = []

    @flow
    async def f(ctx, _input):
        await ctx.decide("none", lambda: calls.append(1))
        await ctx.suspend("go")

    play(bench, f, None)
    assert [1] == calls


def test_a_decision_is_single_flight_under_branches(bench):
    # K-FLOW-5
    calls = []

    @flow
    async def f(ctx, _input):
        async def decider():
            calls.append(1)
            await trio.lowlevel.checkpoint()
            return len(calls)

        async with ctx.branches() as branches:
            made = [branches.start(ctx.decide, "route", decider) for _ in range(3)]
        return [branch.result for branch in made]

    result, log = play(bench, f)
    assert ([1], [1, 1, 1], 1) == (calls, result, log.count(("DECISION_RECORDED", "route")))


def test_a_decider_that_raises_appends_nothing_and_is_unsettled(bench):
    # K-FLOW-2, K-FLOW-5
    calls = []

    def decider():
        calls.append(1)
        raise OSError("no policy")

    @flow
    async def f(ctx, _input):
        with contextlib.suppress(OSError):
            await ctx.decide("route", decider)
        await ctx.emit("note")
        await ctx.suspend("go")

    log = play(bench, f, None)[1]
    assert ([1, 1], ["unstamped"] * 2) == (calls, [entry[2] for entry in log if entry[0] == "emit"])
    assert ("DECISION_RECORDED", "route") not in log


def test_now_random_uuid_and_patched_are_decisions(bench):
    # K-FLOW-5
    seen = []

    @flow
    async def f(ctx, _input):
        async def draw():
            return [await ctx.random(), await ctx.random()]

        async with ctx.branches() as branches:
            made = [branches.start(draw) for _ in range(2)]
        seen.append([await ctx.now(), await ctx.uuid(), await ctx.patched("p"), *[branch.result for branch in made]])
        bench.clock.advance(9)
        await ctx.suspend("go")

    play(bench, f, None)
    assert (2, seen[0]) == (len(seen), seen[1])
    assert 4 == len({number for draws in seen[0][3:] for number in draws})


@pytest.mark.parametrize("passed", ["gate", "step", "decision", "nothing"])
def test_patched_is_false_for_executions_that_are_past_the_place_and_true_for_others(bench, passed):
    # K-FLOW-5
    work, _runs = counted("work")
    seen = []

    async def the_rest(ctx):
        if passed == "step":
            await ctx.execute(work)
        if passed == "decision":
            await ctx.decide("d", lambda: 1)
        await ctx.suspend("go" if passed == "gate" else "other")
        await ctx.suspend("never")

    @flow(id="f")
    async def before(ctx, _input):
        await the_rest(ctx)

    @flow(id="f")
    async def after(ctx, _input):
        seen.append(await ctx.patched("p"))
        await the_rest(ctx)

    async def story():
        def drive(runtime):
            return runtime.start(before, execution_id="x")

        # Dies before its first gate is durable, or, where a gate is to be passed, at its second.
        assert await bench.crash(drive, before, at={"gate": 1, "step": 3, "decision": 2, "nothing": 1}[passed])
        if passed == "gate":
            await bench.run(before)
            await bench.deliver(after, on="go", id="d1")
        await bench.recover(after)
        await bench.deliver(after, on="other", id="d2")

    trio.run(story)
    assert {passed == "nothing"} == set(seen)


# ---- gates -----------------------------------------------------------------------------------------------------------


def test_gates_match_ordinally_and_each_payload_goes_to_its_gate(bench):
    # K-FLOW-6
    @flow
    async def f(ctx, _input):
        return [await ctx.suspend("go") for _ in range(3)]

    result, log = play(bench, f, "a", "b", "c")
    assert (["a", "b", "c"], 3, 3) == (
        result,
        log.count(("EXECUTION_SUSPENDED", "go")),
        log.count(("EXECUTION_RESUMED", "go")),
    )


@pytest.mark.parametrize(("on", "key"), [("other", None), ("go", "other")])
def test_a_gate_passed_on_another_name_or_key_blocks_the_execution(bench, on, key):
    # K-FLOW-6, K-FLOW-9
    @flow(id="f")
    async def before(ctx, _input):
        await ctx.suspend("go")

    @flow(id="f")
    async def after(ctx, _input):
        await ctx.suspend(on, key)

    async def story():
        await bench.run(before)
        await bench.deliver(after, on="go", id="d1")
        return await bench.state(after)

    state = trio.run(story)
    assert ("blocked", True) == (state["status"], repr((on, key)) in state["blocked"]["detail"])


def test_a_timer_does_not_pass_for_another_gate_than_the_one_it_opened(bench):
    # K-FLOW-6
    @flow(id="f")
    async def before(ctx, _input):
        await ctx.sleep(5)

    @flow(id="f")
    async def after(ctx, _input):
        await ctx.suspend("approval", timeout=5)

    async def story():
        await bench.run(before)
        bench.clock.advance(6)
        await bench.recover(after)
        return (await bench.state(after))["status"]

    assert "blocked" == trio.run(story)


def test_a_gate_in_a_branch_or_beside_one_is_refused(bench):
    # K-FLOW-6
    raised = []

    @flow
    async def f(ctx, _input):
        async def gate(wait):
            try:
                await wait()
            except GateInBranch:
                raised.append(1)

        async with ctx.branches() as branches:
            branches.start(gate, lambda: ctx.suspend("go"))
            branches.start(gate, lambda: ctx.sleep(1))
            await gate(lambda: ctx.suspend("go"))
        return await ctx.suspend("go")

    assert ("ok", [1] * 6) == (play(bench, f, "ok")[0], raised)


def test_a_gate_times_out_at_the_due_time_fixed_when_it_was_reached(bench):
    # K-FLOW-6
    @flow
    async def f(ctx, _input):
        try:
            return await ctx.suspend("go", timeout=60)
        except GateTimeout:
            return "too late"

    async def story():
        await bench.run(f)
        bench.clock.advance(59.999)
        await bench.recover(f)
        early = (await bench.state(f))["status"]
        async with bench.process(f) as runtime:
            await runtime.recover_all()
            await bench.settle()
            bench.clock.advance(0.001)
            await bench.settle()
        return early, (await bench.state(f))["output"], await bench.log()

    early, output, log = trio.run(story)
    assert ("suspended", "too late", 1) == (early, output, log.count(("EXECUTION_RESUMED", "TIMER_FIRED")))


def test_a_delivery_goes_before_a_timer_that_is_due_as_well(bench):
    # K-FLOW-6, K-RUN-2
    @flow
    async def f(ctx, _input):
        return await ctx.suspend("go", timeout=60)

    async def story():
        await bench.run(f)
        bench.clock.advance(99)
        await bench.deliver(f, on="go", payload="just", id="d1")
        return (await bench.state(f))["output"]

    assert "just" == trio.run(story)


def test_sleeps_are_durable_and_timers_of_passed_gates_do_not_fire(bench):
    # K-FLOW-7
    @flow
    async def f(ctx, _input):
        await ctx.suspend("go", timeout=10)
        await ctx.sleep(86_400)
        return await ctx.now()

    async def story():
        async with bench.process(f) as runtime:
            handle = await runtime.start(f, execution_id="x")
            await bench.settle()
            await runtime.deliver("x", "go", delivery_id="d1")
            await bench.settle()
            bench.clock.advance(11)
            await bench.settle()
            parked = (await runtime.state("x"))["status"]
            bench.clock.advance(86_400)
            return parked, await handle.result() - bench.clock.ms

    assert ("suspended", 0) == trio.run(story)


def test_a_passed_gates_timer_is_no_longer_watched(bench):
    # K-FLOW-6: a session with a timeout on every turn leaves no sleeper behind for each
    @flow
    async def f(ctx, _input):
        for seconds in (10, 20, 30):
            await ctx.suspend("go", timeout=seconds)

    async def story():
        seen = []
        async with bench.process(f) as runtime:
            await runtime.start(f, execution_id="x")
            for n in range(3):
                await bench.settle()
                seen.append(bench.clock.due())
                await runtime.deliver("x", "go", delivery_id=f"d{n}")
            await bench.settle()
            return [*seen, bench.clock.due()]

    assert [[10], [20], [30], []] == trio.run(story)


# ---- branches --------------------------------------------------------------------------------------------------------


def test_the_first_real_error_in_branch_order_is_raised_when_all_siblings_have_settled(bench):
    # K-FLOW-8
    order = []

    @flow
    async def f(ctx, _input):
        first_failed = trio.Event()

        async def late_but_first():
            await first_failed.wait()
            raise ValueError("first in order")

        async def early_but_second():
            first_failed.set()
            raise KeyError("first in time")

        async def sibling():
            await first_failed.wait()
            await trio.lowlevel.checkpoint()
            order.append("sibling settled")

        try:
            async with ctx.branches() as branches:
                for branch in (late_but_first, early_but_second, sibling):
                    branches.start(branch)
        finally:
            order.append("block ended")

    error = play(bench, f)[0]
    assert ("first in order", ["sibling settled", "block ended"]) == (error["message"], order)


def test_exception_groups_are_unwrapped(bench):
    # K-FLOW-8
    @flow
    async def f(_ctx, _input):
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("found")])])

    assert {"message": "found", "type": "ValueError"} == play(bench, f)[0]


def test_a_group_with_a_suspension_alone_is_a_suspension(bench):
    # K-FLOW-8
    @flow
    async def f(ctx, _input):
        async with trio.open_nursery():
            return await ctx.suspend("go")

    result, log = play(bench, f, "resumed")
    assert ("resumed", ("EXECUTION_COMPLETED",)) == (result, log[-1])


def test_a_group_with_a_suspension_and_a_real_error_is_that_error(bench):
    # K-FLOW-8
    @flow
    async def f(ctx, _input):
        begun = trio.Event()

        async def fail():
            begun.set()
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("beside")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            await begun.wait()
            await ctx.suspend("go")

    assert {"message": "beside", "type": "ValueError"} == play(bench, f)[0]


def test_syscalls_from_a_foreign_task_and_from_inside_an_effect_are_refused(bench):
    # K-FLOW-8
    other, runs = counted("other")

    @flow
    async def f(ctx, _input):
        refused = []

        async def attempt(syscall):
            try:
                await syscall()
            except SyscallOutsideFlow:
                refused.append(1)

        @step("effect")
        async def effect(_ectx, _input):
            for syscall in (
                lambda: ctx.execute(other),
                lambda: ctx.decide("d", lambda: 1),
                lambda: ctx.suspend("go"),
                lambda: ctx.sleep(1),
            ):
                await attempt(syscall)

        await ctx.execute(effect)
        async with trio.open_nursery() as nursery:
            for syscall in (lambda: ctx.execute(other), lambda: ctx.emit("note"), lambda: ctx.suspend("go")):
                nursery.start_soon(attempt, syscall)
        return len(refused)

    assert (7, []) == (play(bench, f)[0], runs)


def test_syscalls_from_inside_a_decider_are_refused(bench):
    # K-FLOW-8
    other, runs = counted("other")

    @flow
    async def f(ctx, _input):
        await ctx.decide("d", lambda: ctx.execute(other))

    assert ("SyscallOutsideFlow", []) == (play(bench, f)[0]["type"], runs)


def test_a_position_lost_in_one_branch_ends_the_run_and_its_siblings_effects(bench):
    # K-LOG-2, K-FLOW-8: a sibling's cancellation is not taken for the outcome
    begun = trio.Event()
    runs = []

    class Rival:
        lost = False

        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def append(self, execution_id, expected, batch, **more):
            if '"step":"second"' in batch[0].text and not self.lost:
                self.lost = True
                raise ConcurrencyConflict("another was first")
            await bench.store.append(execution_id, expected, batch, **more)

    @flow
    async def f(ctx, _input):
        runs.append(1)

        async def first(_ectx, _input):
            begun.set()
            if len(runs) == 1:
                await trio.sleep_forever()

        async def second():
            await begun.wait()
            await ctx.execute(counted("second")[0])

        async with ctx.branches() as branches:
            branches.start(ctx.execute, step("first", first))
            branches.start(second)

    async def story():
        rival = Rival()
        async with bench.process(f, stores=Stores(events=rival, snapshots=rival, mailbox=rival)) as runtime:
            await (await runtime.start(f, execution_id="x")).result()
        return await bench.log()

    log = trio.run(story)
    assert ([1, 1], 2) == (runs, log.count(("STEP_STARTED", "first")))
    assert not any(entry[0] == "STEP_CANCELLED" for entry in log)


# ---- the end of a run ------------------------------------------------------------------------------------------------


def test_a_swallowed_suspension_does_not_go_on(bench):
    # K-FLOW-10
    after, runs = counted("after")
    got = []

    @flow
    async def f(ctx, _input):
        with contextlib.suppress(BaseException):
            got.append(await ctx.suspend("go"))
        with contextlib.suppress(BaseException):
            await ctx.emit("note")
        with contextlib.suppress(BaseException):
            await ctx.execute(after)
        return "end"

    async def story():
        await bench.run(f)
        parked = await bench.log()
        await bench.deliver(f, on="go", payload=1, id="d1")
        return parked, (await bench.log())[-1]

    parked, last = trio.run(story)
    assert [("EXECUTION_STARTED",), ("EXECUTION_SUSPENDED", "go")] == parked
    assert (("EXECUTION_COMPLETED",), [1], [1]) == (last, got, runs)


def test_an_error_raised_in_place_of_a_suspension_does_not_fail_the_execution(bench):
    # K-FLOW-10: `finally` code that needs what the gate has not given yet
    @flow
    async def f(ctx, _input):
        try:
            answer = await ctx.suspend("go")
        finally:
            len(answer)
        return answer

    async def story():
        await bench.run(f)
        parked = (await bench.log())[-1]
        await bench.deliver(f, on="go", payload="yes", id="d1")
        return parked, (await bench.state(f))["output"]

    assert (("EXECUTION_SUSPENDED", "go"), "yes") == trio.run(story)


def test_an_ended_run_refuses_its_zombies_emits_and_every_syscall(bench):
    # K-FLOW-10
    refused = []

    @flow
    async def f(ctx, _input):
        @step("slow", deadline=1)
        async def slow(ectx, _input):
            with trio.CancelScope(shield=True):
                await trio.sleep(5)
            for syscall in (lambda: ectx.emit("late"), lambda: ctx.emit("late"), lambda: ctx.execute(slow)):
                try:
                    await syscall()
                except BaseException as error:
                    refused.append(type(error).__name__)
            async with trio.open_nursery():  # a group of signals must not reach the worker either
                await ectx.emit("late")

        with contextlib.suppress(StepTimeout):
            await ctx.execute(slow)

    async def story():
        async with bench.process(f) as runtime:
            await runtime.start(f, execution_id="x")
            for _ in range(8):
                await bench.settle()
                trio.lowlevel.current_clock().jump(1)
            await bench.settle()
            await runtime.start(f, execution_id="y")  # the worker is alive
        return (await bench.log())[-1]

    assert ("EXECUTION_COMPLETED",) == trio.run(story, clock=trio.testing.MockClock())
    assert ["RunEnded"] * 3 == refused


def test_an_emit_that_waits_for_its_turn_while_the_run_parks_is_refused(bench):
    # K-FLOW-10: nothing follows the suspension but its resume
    parking, waits = trio.Event(), trio.Event()

    class SlowPark:
        def __getattr__(self, name):
            return getattr(bench.store, name)

        async def append(self, execution_id, expected, batch, **more):
            if batch[0].type == "EXECUTION_SUSPENDED":
                parking.set()
                await waits.wait()
            await bench.store.append(execution_id, expected, batch, **more)

    @step("slow", deadline=1)
    async def slow(ectx, _input):
        with trio.CancelScope(shield=True):
            await parking.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ectx.emit, "late")
                for _ in range(3):
                    await trio.lowlevel.checkpoint()
                waits.set()

    @flow
    async def f(ctx, _input):
        with contextlib.suppress(StepTimeout):
            await ctx.execute(slow)
        await ctx.suspend("go")

    async def story():
        store = SlowPark()
        async with bench.process(f, stores=Stores(events=store, snapshots=store, mailbox=store)) as runtime:
            await runtime.start(f, execution_id="x")
            await bench.settle()
            trio.lowlevel.current_clock().jump(2)
            await bench.settle()
        return (await bench.log())[-1]

    assert ("EXECUTION_SUSPENDED", "go") == trio.run(story, clock=trio.testing.MockClock())
    assert waits.is_set()


def test_a_context_kept_from_an_earlier_run_is_refused_and_harms_nobody(bench):
    # K-FLOW-10
    kept = []

    @flow
    async def f(ctx, _input):
        kept.append(ctx)
        if len(kept) > 1:
            await kept[0].emit("note")
        await ctx.suspend("go")

    async def story():
        await bench.run(f)
        async with bench.process(f) as runtime:
            await runtime.deliver("x", "go", delivery_id="d1")
            await bench.settle()
            await runtime.start(f, execution_id="y")
        return await bench.log()

    assert ("EXECUTION_RESUMED", "go") == trio.run(story)[-1]


def test_a_shutdown_beside_which_a_flow_fails_is_no_error_of_the_runtime(bench):
    # K-RUN-3
    @flow
    async def f(_ctx, _input):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("in the flow's own cleaning up")

    async def story():
        await bench.run(f)
        return await bench.log()

    assert [("EXECUTION_STARTED",)] == trio.run(story)


def test_a_shutdown_appends_nothing(bench):
    # K-RUN-3: a shutdown is a crash; not even what a flow or an effect makes of its cancellation
    @step("serve")
    async def serve(_ectx, _input):
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise OSError("connection closed") from None

    @step("wait")
    async def wait(_ectx, _input):
        await trio.sleep_forever()

    @flow
    async def f(ctx, input):
        try:
            await ctx.execute(serve if input else wait)
        finally:
            await ctx.emit("bye")

    async def story():
        async with bench.process(f) as runtime:
            await runtime.start(f, True, execution_id="x")
            await runtime.start(f, False, execution_id="y")
            await bench.settle()
        return [(await bench.log("x"))[-1], (await bench.log("y"))[-1]]

    assert [("STEP_STARTED", "serve"), ("STEP_STARTED", "wait")] == trio.run(story)


# ---- values and types ------------------------------------------------------------------------------------------------


def test_mutating_what_a_flow_was_given_changes_nothing(bench):
    # K-LOG-4
    async def effect(_ectx, input):
        input["n"] = "changed by the effect"
        return {"n": 1}

    produce, _runs = counted("produce", effect)
    seen = []

    @flow
    async def f(ctx, input):
        sent = {"n": 0}
        values = [input, await ctx.execute(produce, sent), await ctx.decide("d", lambda: {"n": 2})]
        values.append(await ctx.suspend("go"))
        seen.append([dict(value) for value in [*values, sent]])
        for value in values:
            value["n"] = "changed by the flow"
        await ctx.emit("note", sent)
        sent["n"] = 9
        await ctx.suspend("go")
        return values[0]

    async def story():
        await bench.run(f, {"n": -1})
        for n in (1, 2):
            await bench.deliver(f, on="go", payload={"n": 3}, id=f"d{n}")
        return [parse(stored).payload for stored in await bench.store.read_from("x", 0)]

    payloads = trio.run(story)
    assert [[{"n": -1}, {"n": 1}, {"n": 2}, {"n": 3}, {"n": 0}]] * 2 == seen
    assert 1 == payloads.count({"n": 0})


@pytest.mark.parametrize("type_", ["EXECUTION_STARTED", "STEP_COMPLETED", "DECISION_RECORDED", "EFFECT_INDOUBT"])
def test_kernel_event_types_are_refused_to_flows_and_effects(bench, type_):
    # K-FLOW-7
    @step("forge")
    async def forge(ectx, _input):
        with pytest.raises(ReservedEventType):
            await ectx.emit(type_, {})

    @flow
    async def f(ctx, _input):
        await ctx.execute(forge)
        with pytest.raises(ReservedEventType):
            await ctx.emit(type_, {})

    assert ("EXECUTION_COMPLETED",) == play(bench, f)[1][-1]


def test_a_patch_that_does_not_fit_its_surface_leaves_the_log_readable(bench):
    # K-FLOW-7, K-FOLD-6
    @flow
    async def f(ctx, _input):
        await ctx.ui.set("title", "text")
        await ctx.ui.increment("title")
        await ctx.ui.append("title", 1)
        await ctx.emit("SURFACE_PATCH", ["no patch"])
        await ctx.ui.increment("count", 2)
        return "done"

    result, _log = play(bench, f)
    assert ("done", {"count": 2, "title": "text"}) == (result, trio.run(bench.surfaces))


def test_an_error_that_cannot_be_described_fails_the_execution_all_the_same(bench):
    # K-RUN
    class Unspeakable(Exception):
        def __str__(self):
            raise RuntimeError

    failures = {"x": Unspeakable(), "y": Declined(object())}

    @flow
    async def f(ctx, _input):
        raise failures[ctx.execution_id]

    async def story():
        async with bench.process(f) as runtime:
            return [(await bench.outcome(await runtime.start(f, execution_id=id)))["type"] for id in failures]

    assert ["Unspeakable", "Declined"] == trio.run(story)


# ---- gates that are left out -----------------------------------------------------------------------------------------


def test_a_step_that_failed_and_succeeds_on_the_rerun_may_leave_out_the_sleep_between(bench):
    # K-FLOW-2, K-FLOW-9: fail, sleep, try again: the first try of the re-run succeeds, and there is no need to sleep
    async def flaky(ectx, _input):
        if ectx.attempt == 1:
            raise OSError("no")
        return ectx.attempt

    @flow
    async def patient(ctx, _input):
        while True:
            try:
                return await ctx.run(step("flaky", flaky))
            except OSError:
                await ctx.sleep(60)

    async def story():
        await bench.run(patient)
        bench.clock.advance(60)
        await bench.recover(patient)
        return (await bench.state(patient))["output"]

    assert 2 == trio.run(story)


def test_a_decider_that_threw_and_decides_on_the_rerun_may_leave_out_a_gate(bench):
    # K-FLOW-2, K-FLOW-9
    asked = []

    def decider():
        asked.append("asked")
        if len(asked) == 1:
            raise OSError("no")
        return "decided"

    @flow
    async def unsure(ctx, _input):
        try:
            return await ctx.decide("d", decider)
        except OSError:
            return await ctx.suspend("help")

    async def story():
        await bench.run(unsure)
        await bench.deliver(unsure, on="help", id="h")
        return (await bench.state(unsure))["output"]

    assert "decided" == trio.run(story)


@pytest.mark.parametrize("anew", [False, True])
def test_a_flow_that_ends_or_begins_anew_without_a_gate_it_once_passed_blocks_with_nothing_lost(bench, anew):
    # K-FLOW-9, K-RUN-7: the payload of the gate would be seen by nobody
    gates = ["first", "second"]

    @flow
    async def shrinking(ctx, input):
        seen = [await ctx.suspend(gate) for gate in gates]
        if anew and input is None:
            await ctx.continue_as_new("again")
        return seen if input is None else "anew"

    async def story():
        await bench.run(shrinking)
        await bench.deliver(shrinking, on="first", payload=1, id="d1")
        gates.remove("second")
        await bench.deliver(shrinking, on="second", payload=2, id="d2")
        async with bench.process(shrinking) as runtime:
            blocked = (await runtime.state("x"))["blocked"]
            gates.append("second")
            await runtime.resume_blocked("x")
            await bench.settle()
            state = await runtime.state("x")
            return blocked, state["output"] or state["gate"]["on"]

    blocked, then = trio.run(story)
    assert "nondeterministic" == blocked["reason"]
    assert "passed on 'second'" in blocked["detail"]
    assert then == ("first" if anew else [1, 2])
