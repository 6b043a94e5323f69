"""Sagas: ADR 0041 with its amendment, and a rollback that has begun is finished (K-SAGA)."""

from __future__ import annotations

import collections
import contextlib

import attrs
import pytest
import trio

from kernel import RollbackInProgress, Saga, SagaCompensationError, flow, saga, step
from kernel.saga import SagaMisuse

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()


def undoable(id, effect=None, **declared):
    """A step that notes that it was done, and does what `effect` does."""

    async def noting(ectx, input):
        done.append(id)
        return await effect(ectx, input) if effect is not None else {"by": id, "of": input}

    return step(id, noting, **declared)


async def down(_ectx, _input):
    raise OSError("carrier down")


async def down_once(ectx, _input):
    if ectx.attempt == 1:
        raise OSError("carrier down")
    return "shipped"


reserve, charge = undoable("reserve"), undoable("charge")
unreserve, refund = undoable("unreserve"), undoable("refund")
ship, ship_flaky = undoable("ship", down), undoable("ship", down_once)


def order(shipping, body=None):
    @flow(id="order")
    async def placing(ctx, _input):
        async with saga(ctx) as s:
            held = await s.run(reserve, "stock", compensate=unreserve)
            await s.run(charge, held, compensate=refund)
            await ctx.emit("order.paid")
            if body is not None:
                await body(ctx, s)
            return await s.run(shipping)

    return placing


def play(bench, a_flow, **more):
    async def story():
        async with bench.process(a_flow, **more) as runtime:
            result = await bench.outcome(await runtime.start(a_flow, execution_id="x"))
        return result, await bench.log()

    return trio.run(story)


FORWARD = [
    ("EXECUTION_STARTED",),
    ("STEP_STARTED", "reserve"),
    ("STEP_COMPLETED", "reserve"),
    ("STEP_STARTED", "charge"),
    ("STEP_COMPLETED", "charge"),
    ("emit", "order.paid", "stamped"),
    ("STEP_STARTED", "ship"),
]
BACKWARD = [
    ("STEP_FAILED", "ship", "error"),
    ("STEP_STARTED", "refund#compensate:1"),
    ("STEP_COMPLETED", "refund#compensate:1"),
    ("STEP_STARTED", "unreserve#compensate:0"),
    ("STEP_COMPLETED", "unreserve#compensate:0"),
    ("EXECUTION_FAILED",),
]


# ---- ADR 0041's own verification -------------------------------------------------------------------------------------


def test_without_a_failure_the_log_is_byte_identical_to_that_of_the_flow_without_a_saga(make_bench):
    # K-SAGA-2, ADR 0041 verification
    @flow(id="order")
    async def without(ctx, _input):
        held = await ctx.execute(reserve, "stock")
        await ctx.execute(charge, held)
        await ctx.emit("order.paid")
        return await ctx.execute(undoable("ship"))

    def texts(a_flow):
        bench = make_bench()
        play(bench, a_flow)
        return [stored.text for stored in trio.run(bench.store.read_from, "x", 0)]

    with_saga = texts(order(undoable("ship")))
    assert texts(without) == with_saga
    assert not any("#compensate:" in text for text in with_saga)


def test_on_a_failure_compensators_run_in_reverse_and_the_error_is_raised_again(bench):
    # K-SAGA-1, K-SAGA-2, ADR 0041 verification
    error, _log = play(bench, order(ship))
    assert {"message": "carrier down", "type": "OSError"} == error
    assert ["reserve", "charge", "ship", "refund", "unreserve"] == done


def test_the_rollback_is_recorded_as_durable_steps_before_the_execution_fails(bench):
    # K-SAGA-2, ADR 0041 verification: the exact log
    assert FORWARD + BACKWARD == play(bench, order(ship))[1]


def test_compensators_are_given_the_forward_output(bench):
    # K-SAGA-2
    given = {}

    async def note(ectx, input):
        given[ectx.idempotency_key] = input

    @flow
    async def f(ctx, _input):
        async with saga(ctx) as s:
            held = await s.run(reserve, 1, compensate=step("undo", note))
            s.compensate(step("log", note), {"explicit": True})
            held["by"] = "changed by the flow"
            await s.run(ship)

    play(bench, f)
    expected = {"x/undo#compensate:0": {"by": "reserve", "of": 1}, "x/log#compensate:1": {"explicit": True}}
    assert expected == given


def test_a_compensator_is_looked_up_by_its_declared_id_or_tool_id(bench):
    # K-SAGA-2, ADR 0041 amendment
    called = []

    def tool(name):
        async def effect(ectx, _input):
            called.append((name, ectx.idempotency_key))

        return effect

    @flow
    async def f(ctx, _input):
        async with saga(ctx) as s:
            await s.run(reserve, compensate=step("unreserve"))
            await s.run(charge, compensate=step("refund", tool_id="bank.refund"))
            await s.run(ship)

    error, _log = play(bench, f, effects={"unreserve": tool("by id"), "bank.refund": tool("by tool")})
    assert "OSError" == error["type"]
    assert [("by tool", "x/refund#compensate:1"), ("by id", "x/unreserve#compensate:0")] == called


def test_a_compensation_frame_keeps_the_tool_id_in_the_log(bench):
    # K-SAGA-2, ADR 0041 amendment
    play(bench, order(ship))
    frames = [e.payload for e in trio.run(bench.envelopes) if e.type == "STEP_STARTED"][-2:]
    assert [("refund", "compensation"), ("unreserve", "compensation")] == [(f["toolId"], f["kind"]) for f in frames]


def test_a_failing_compensator_does_not_stop_the_rest_and_every_failure_is_told(bench):
    # K-SAGA-3, ADR 0041 amendment
    raised = []

    @flow
    async def f(ctx, _input):
        try:
            async with saga(ctx) as s:
                await s.run(reserve, compensate=unreserve)
                await s.run(charge, compensate=undoable("refund", down))
                await s.run(undoable("pack"), compensate=undoable("unpack", down))
                await s.run(ship)
        except SagaCompensationError as error:
            raised.append(error)
            raise

    error, log = play(bench, f)
    failures = [(journal_id, type(failure).__name__) for journal_id, failure in raised[0].failures]
    assert [("unpack#compensate:2", "OSError"), ("refund#compensate:1", "OSError")] == failures
    assert ("SagaCompensationError", "OSError") == (error["type"], type(raised[0].__cause__).__name__)
    assert ("STEP_COMPLETED", "unreserve#compensate:0") in log


def test_a_suspension_passes_a_saga_and_the_stack_is_rebuilt_on_the_resume(bench):
    # K-SAGA-1, ADR 0041
    async def gate(ctx, _s):
        await ctx.suspend("go")

    waiting = order(ship, gate)

    async def story():
        await bench.run(waiting)
        parked = await bench.log()
        await bench.deliver(waiting, on="go", id="d1")
        return parked, await bench.log()

    parked, log = trio.run(story)
    assert [*FORWARD[:-1], ("EXECUTION_SUSPENDED", "go")] == parked
    assert [*parked, ("EXECUTION_RESUMED", "go"), FORWARD[-1], *BACKWARD] == log


def test_an_explicit_saga_rolls_back_when_it_is_told_to(bench):
    # K-SAGA-1
    @flow
    async def f(ctx, _input):
        s = Saga(ctx)
        await s.run(reserve, compensate=unreserve)
        await s.rollback()
        await s.rollback()
        return "given back"

    assert ("given back", ["reserve", "unreserve"]) == (play(bench, f)[0], done)


def test_a_real_error_in_an_exception_group_rolls_back(bench):
    # K-SAGA-1, K-FLOW-8
    @flow
    async def f(ctx, _input):
        async with saga(ctx) as s:
            await s.run(reserve, compensate=unreserve)
            async with trio.open_nursery():
                raise ValueError("in a nursery")

    error, _log = play(bench, f)
    assert ("ValueError", ["reserve", "unreserve"]) == (error["type"], done)


def test_an_error_beside_a_suspension_parks_for_there_is_work_to_undo_first(bench):
    # K-SAGA-1, K-FLOW-10: the run is over and can undo nothing; the resumed one meets the error and rolls back
    @flow
    async def f(ctx, _input):
        begun = trio.Event()

        async def fail():
            begun.set()
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("beside")

        async with saga(ctx) as s:
            await s.run(reserve, compensate=unreserve)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                await begun.wait()
                await ctx.suspend("go")
                nursery.cancel_scope.cancel()

    async def story():
        await bench.run(f)
        parked = (await bench.log())[-1]
        await bench.deliver(f, on="go", id="d1")
        return parked, (await bench.log())[-1]

    assert (("EXECUTION_SUSPENDED", "go"), ("EXECUTION_FAILED",)) == trio.run(story)
    assert ["reserve", "unreserve"] == done


# ---- names and tasks -------------------------------------------------------------------------------------------------


def test_a_name_scopes_the_journal_ids(bench):
    # K-SAGA-2
    @flow
    async def f(ctx, _input):
        async with saga(ctx, "outer") as outer:
            await outer.run(reserve, compensate=unreserve)
            async with saga(ctx, "inner") as inner:
                await inner.run(charge, compensate=unreserve)
                await inner.run(ship)

    completed = [entry[1] for entry in play(bench, f)[1] if entry[0] == "STEP_COMPLETED"]
    assert ["reserve", "charge", "unreserve#compensate:inner:0", "unreserve#compensate:outer:0"] == completed


def test_a_collision_of_journal_ids_is_an_error_before_the_work_is_done(bench):
    # K-SAGA-2
    @flow
    async def f(ctx, _input):
        async with saga(ctx) as outer:
            await outer.run(reserve, compensate=unreserve)
            async with saga(ctx) as inner:
                await inner.run(charge, compensate=unreserve)

    error, _log = play(bench, f)
    assert ("SagaMisuse", ["reserve", "unreserve"]) == (error["type"], done)


def test_two_sagas_of_one_flow_without_a_name_go_on_after_one_another(bench):
    # K-SAGA-2, K-SAGA-4: the first one's frames are no rollback of the second
    @flow
    async def f(ctx, _input):
        with contextlib.suppress(OSError):
            async with saga(ctx) as first:
                await first.run(reserve, compensate=unreserve)
                await first.run(ship)
        async with saga(ctx) as second:
            return await second.run(charge, "again", compensate=refund)

    result, _log = play(bench, f)
    assert ({"by": "charge", "of": "again"}, ["reserve", "ship", "unreserve", "charge"]) == (result, done)


def test_one_saga_in_two_tasks_at_a_time_is_an_error(bench):
    # K-SAGA-1
    @flow
    async def f(ctx, _input):
        s = Saga(ctx)
        begun, refused = trio.Event(), []

        @step("slow")
        async def slow(_ectx, _input):
            begun.set()
            while len(refused) < 3:
                await trio.lowlevel.checkpoint()

        async def other():
            await begun.wait()
            for use in (lambda: s.run(charge), s.rollback):
                with pytest.raises(SagaMisuse):
                    await use()
                refused.append(1)
            with pytest.raises(SagaMisuse):
                s.compensate(refund)
            refused.append(1)

        async with ctx.branches() as branches:
            branches.start(s.run, slow)
            branches.start(other)
        return len(refused)

    assert 3 == play(bench, f)[0]


def test_a_failed_forward_step_gives_its_compensations_id_back(bench):
    # K-SAGA-2: indices count what is registered
    @flow
    async def f(ctx, _input):
        async with saga(ctx) as s:
            with contextlib.suppress(OSError):
                await s.run(ship, compensate=refund)
            await s.run(reserve, compensate=refund)
            raise ValueError

    assert ("STEP_COMPLETED", "refund#compensate:0") in play(bench, f)[1]


# ---- crashes ---------------------------------------------------------------------------------------------------------


def start(a_flow):
    async def drive(runtime):
        await runtime.start(a_flow, execution_id="x")

    return drive


def completions(log):
    return collections.Counter(entry[1] for entry in log if entry[0] == "STEP_COMPLETED")


def test_a_failing_saga_that_crashes_at_any_append_compensates_exactly_once(sweep):
    # K-SAGA-4, ADR 0041 verification (saga.dst.test)
    failing = order(ship)

    async def check(bench):
        log = await bench.log()
        once = ["reserve", "charge", "refund#compensate:1", "unreserve#compensate:0"]
        assert collections.Counter(once) == completions(log)
        assert [("EXECUTION_FAILED",)] == [entry for entry in log if entry[0].startswith("EXECUTION_")][1:]

    assert 2 * len(FORWARD + BACKWARD) == trio.run(sweep, lambda: failing, start(failing), check)


def rolled_back_or_shipped(log):
    """Which of the two consistent ends a log tells of; a KeyError is neither."""
    counts = completions(log)
    assert max(counts.values()) == 1, "a step completed twice"
    end = log[-1][0]
    undone = counts["refund#compensate:1"], counts["unreserve#compensate:0"]
    return {
        ("EXECUTION_COMPLETED", (0, 0), 1): "shipped",
        ("EXECUTION_FAILED", (1, 1), 0): "rolled back",
    }[end, undone, counts["ship"]]


async def as_it_is(ctx, s):
    pass


BODIES = {}


def body_of(function):
    BODIES[function.__name__] = flow(id="order")(function)
    return function


@body_of
async def through_the_saga(ctx, _input):
    async with saga(ctx) as s:
        await s.run(reserve, compensate=unreserve)
        await s.run(charge, compensate=refund)
        await s.run(ship_flaky)


@body_of
async def by_a_direct_execute(ctx, _input):
    async with saga(ctx) as s:
        await s.run(reserve, compensate=unreserve)
        await s.run(charge, compensate=refund)
        await ctx.execute(ship_flaky)


@body_of
async def in_a_branch(ctx, _input):
    async with saga(ctx) as s:
        await s.run(reserve, compensate=unreserve)
        await s.run(charge, compensate=refund)
        async with ctx.branches() as branches:
            branches.start(ctx.execute, ship_flaky)


@body_of
async def swallowing_what_is_not_the_carriers(ctx, _input):
    async with saga(ctx) as s:
        await s.run(reserve, compensate=unreserve)
        await s.run(charge, compensate=refund)
        try:
            await s.run(ship_flaky)
        except RollbackInProgress:
            return "it will be fine"


@body_of
async def by_hand(ctx, _input):
    s = Saga(ctx)
    try:
        await s.run(reserve, compensate=unreserve)
        await s.run(charge, compensate=refund)
        await s.run(ship_flaky)
    except Exception:
        await s.rollback()
        raise


@body_of
async def in_an_inner_saga(ctx, _input):
    async with saga(ctx) as outer:
        await outer.run(reserve, compensate=unreserve)
        await outer.run(charge, compensate=refund)
        async with saga(ctx, "inner") as inner:
            await inner.run(ship_flaky)


@body_of
async def with_a_saga_before_it(ctx, _input):
    with contextlib.suppress(ValueError):
        async with saga(ctx, "probe") as probe:
            await probe.run(undoable("probe"), compensate=undoable("unprobe"))
            raise ValueError
    async with saga(ctx) as s:
        await s.run(reserve, compensate=unreserve)
        await s.run(charge, compensate=refund)
        await s.run(ship_flaky)


@pytest.mark.parametrize("body", BODIES)
def test_a_rollback_that_has_begun_is_finished_though_the_failure_would_not_come_again(sweep, body):
    # K-SAGA-4: wherever it crashes, goods are shipped and paid, or neither
    ends = set()

    async def check(bench):
        ends.add(rolled_back_or_shipped(await bench.log()))

    a_flow = BODIES[body]
    assert 0 < trio.run(sweep, lambda: a_flow, start(a_flow), check)
    assert {"rolled back", "shipped"} == ends


def test_a_rollback_is_finished_if_the_failure_was_caught_before_and_more_was_registered(sweep):
    # K-SAGA-4: the frame belongs to a step that the re-run has not come to when it makes the failed one again
    @flow(id="order")
    async def roundabout(ctx, _input):
        async with saga(ctx) as s:
            await s.run(reserve, compensate=unreserve)
            try:
                await s.run(ship_flaky, compensate=refund)
            except OSError:
                await s.run(charge, compensate=refund)
                raise

    async def check(bench):
        log = await bench.log()
        counts = completions(log)
        if any("#compensate:" in step for step in counts):
            assert (("EXECUTION_FAILED",), 1, 0) == (log[-1], counts["unreserve#compensate:0"], counts["ship"])

    trio.run(sweep, lambda: roundabout, start(roundabout), check)


def test_without_the_check_some_crash_ships_the_goods_and_refunds_the_charge(sweep, monkeypatch):
    # K-SAGA-4: the record as written, which does not see the case
    monkeypatch.setattr(Saga, "refuse_live", lambda _saga, _what: None)
    monkeypatch.setattr(Saga, "owes_rollback", False)
    shipped_and_refunded = []

    async def check(bench):
        try:
            rolled_back_or_shipped(await bench.log())
        except KeyError:
            shipped_and_refunded.append(1)

    a_flow = BODIES["through_the_saga"]
    trio.run(sweep, lambda: a_flow, start(a_flow), check)
    assert shipped_and_refunded


def test_a_body_that_swallows_everything_ends_as_rolled_back(bench):
    # K-SAGA-4
    @flow(id="order")
    async def swallowing(ctx, _input):
        async with saga(ctx) as s:
            await s.run(reserve, compensate=unreserve)
            await s.run(charge, compensate=refund)
            with contextlib.suppress(RollbackInProgress):
                await s.run(ship_flaky)
            with contextlib.suppress(RollbackInProgress):
                await ctx.decide("more", lambda: 1)
            with contextlib.suppress(RollbackInProgress):
                await ctx.suspend("go")
            return "all is well"

    async def story():
        # Up to the first compensation's start: 6 forward events, the failure, and then the frame.
        assert await bench.crash(start(swallowing), swallowing, at=8)
        await bench.recover(swallowing)
        log = await bench.log()
        assert ("DECISION_RECORDED", "more") not in log
        return (await bench.state(swallowing))["error"]["type"], completions(log)

    error, counts = trio.run(story)
    assert ("RollbackInProgress", {"reserve", "charge", "refund#compensate:1", "unreserve#compensate:0"}) == (
        error,
        set(counts),
    )


def test_a_failing_compensator_may_fail_again_after_a_crash_and_the_rest_is_done_once(sweep):
    # K-SAGA-3, K-SAGA-4
    @flow(id="order")
    async def f(ctx, _input):
        async with saga(ctx) as s:
            await s.run(reserve, compensate=unreserve)
            await s.run(charge, compensate=undoable("refund", down))
            await s.run(ship)

    async def check(bench):
        log = await bench.log()
        assert ("EXECUTION_FAILED",) == log[-1]
        assert {"reserve": 1, "charge": 1, "unreserve#compensate:0": 1} == dict(completions(log))

    assert 0 < trio.run(sweep, lambda: f, start(f), check)


def test_an_inner_compensation_that_failed_is_made_again_though_the_outer_rollback_has_begun(bench):
    # K-SAGA-4: a compensation is no forward syscall of the sagas around it
    unpack = undoable("unpack", down_once)

    @flow(id="order")
    async def nested(ctx, _input):
        async with saga(ctx, "outer") as outer:
            await outer.run(reserve, compensate=unreserve)
            async with saga(ctx, "inner") as inner:
                await inner.run(undoable("pack"), compensate=unpack)
                await inner.run(ship)

    async def story():
        # Start, three forward steps of two events, unpack started and failed; then it dies after the outer frame.
        assert await bench.crash(start(nested), nested, at=9, landed=True)
        await bench.recover(nested)
        return completions(await bench.log())

    once = ["reserve", "pack", "unpack#compensate:inner:0", "unreserve#compensate:outer:0"]
    assert collections.Counter(once) == trio.run(story)


def test_two_crashes_in_one_rollback_compensate_once(bench):
    # K-SAGA-4
    flaky = BODIES["through_the_saga"]

    async def recover(runtime):
        await runtime.recover_all()

    async def story():
        seen = set()
        for first in range(13):
            for second in range(13):
                world = attrs.evolve(bench, store=type(bench.store)())
                await world.crash(start(flaky), flaky, at=first, landed=second % 2 == 0)
                await world.crash(recover, flaky, at=second, landed=first % 2 == 0)
                async with world.process(flaky) as runtime:
                    await runtime.start(flaky, execution_id="x")
                    await runtime.recover_all()
                    await world.settle()
                seen.add(rolled_back_or_shipped(await world.log()))
        return seen

    assert {"rolled back", "shipped"} == trio.run(story)


def test_what_was_begun_beyond_a_failure_that_the_body_got_over_is_named_if_it_is_out_of_reach(bench):
    # K-SAGA-3, K-SAGA-4: the known limit, which nobody passes over in silence
    @flow(id="order")
    async def roundabout(ctx, _input):
        async with saga(ctx) as s:
            await s.run(reserve, compensate=unreserve)
            try:
                await s.run(ship_flaky)
            except OSError:
                await s.run(charge, compensate=refund)
                raise

    async def story():
        # Start, three forward steps of two events, then the start of the refund, after which it dies.
        assert await bench.crash(start(roundabout), roundabout, at=7, landed=True)
        await bench.recover(roundabout)
        return (await bench.state(roundabout))["error"], completions(await bench.log())

    error, counts = trio.run(story)
    assert {"reserve": 1, "charge": 1, "unreserve#compensate:0": 1} == dict(counts)
    assert "SagaCompensationError" == error["type"]
    assert "'refund#compensate:1' was begun before a crash and is not finished" in error["message"]
