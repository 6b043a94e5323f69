"""What was done is undone, each piece once, and what could not be undone is told."""

from __future__ import annotations

import pytest
import trio

from kernel import ExecutionCancelled, ExecutionFailed, Saga, TypedFailure, flow, saga, step


class Stop(TypedFailure):
    pass


def _stop(_ectx, _input):
    raise Stop


def test_b89_an_undo_is_not_cancelled_by_the_cancellation_it_answers(bench, booked):
    """Compensations run in the scope that is cancelled, so nothing is undone."""
    ledger, in_c, in_undo, go_c, go_undo = [], *(trio.Event() for _ in range(4))

    def held(reached, go):
        async def effect(_ectx, _input):
            reached.set()
            await go.wait()

        return effect

    @flow
    async def books(ctx, _input):
        async with saga(ctx) as s:
            await s.run(booked(ledger, "A"), compensate=booked(ledger, "undoA"))
            await s.run(booked(ledger, "B"), compensate=booked(ledger, "undoB", held(in_undo, go_undo)))
            await s.run(booked(ledger, "C", held(in_c, go_c)))
            await s.run(booked(ledger, "D"))

    async def story():
        async with bench.process(books) as runtime:
            await runtime.start(books, execution_id="x")
            for reached, go in ((in_c, go_c), (in_undo, go_undo)):
                await reached.wait()
                await runtime.cancel("x", "enough")
                go.set()
            with pytest.raises(ExecutionCancelled):
                await runtime.wait_result("x")
            return [event for event in (await bench.log())[7:] if event[0] != "STEP_STARTED"]

    undone = [("STEP_COMPLETED", "undoB#compensate:1"), ("STEP_COMPLETED", "undoA#compensate:0")]
    assert [("CANCEL_REQUESTED",), *undone, ("EXECUTION_CANCELLED",)] == trio.run(story)
    assert ["A", "B", "C", "undoB#compensate:1", "undoA#compensate:0"] == ledger


def test_b91_an_undo_that_fails_stops_none_of_the_others_and_alone_is_tried_again(bench, booked):
    """The first undo that fails ends the waiting for the rest, and hides what they come to."""
    # K-SAGA-3 decides: the end is a failure that names what is not undone; only a crash before it is there tries again.
    ledger = []

    def breaks(_ectx, _input):
        raise OSError("no")

    @flow
    async def books(ctx, _input):
        async with saga(ctx) as s:
            for id, then in (("A", None), ("B", breaks), ("C", None)):
                await s.run(booked(ledger, id), compensate=booked(ledger, f"undo{id}", then))
            await s.run(booked(ledger, "D", _stop, failures=(Stop,)))

    async def story():
        assert await bench.crash(lambda r: r.start(books, execution_id="x"), books, at=15)
        first = ledger[4:]
        await bench.recover(books)
        return first, ledger[4 + len(first) :], (await bench.state(books))["error"], await bench.log()

    first, again, error, log = trio.run(story)
    assert ["undoC#compensate:2", "undoB#compensate:1", "undoA#compensate:0"] == first
    assert ["undoB#compensate:1"] == again
    assert ("SagaCompensationError", True) == (error["type"], "1 compensators failed: undoB" in error["message"])
    assert (2, ("EXECUTION_FAILED",)) == (log.count(("STEP_FAILED", "undoB#compensate:1", "error")), log[-1])


def test_b93_each_instance_is_undone_once_and_no_saga_waits_for_another(bench, booked):
    """Compensations are told apart by what they are defined as, not by which one they are."""
    # K-SAGA-2 decides: an index under the saga's name.  K-SAGA-4: a saga that has rolled back begins nothing more.
    ledger, go = [], trio.Event()

    async def undo(_ectx, input):
        if input == ["Y", 2]:
            await go.wait()

    async def loop(ctx, name):
        for part, numbers in ((name, (1, 2)), (name + "later", (3,))):
            s = Saga(ctx, part)
            for n in numbers:
                a = booked([], "a", lambda _, input: input)
                await s.run(a, [name, n], key=f"{name}{n}", compensate=booked(ledger, "u", undo))
            await s.rollback()

    @flow
    async def loops(ctx, _input):
        async with ctx.branches() as branches:
            for name in "XY":
                branches.start(loop, ctx, name)

    async def story():
        async with bench.process(loops) as runtime:
            await runtime.start(loops, execution_id="x")
            await bench.settle()
            waiting = [entry for entry in ledger if ":X" in entry]
            go.set()
            await runtime.wait_result("x")
            return waiting

    assert ["u#compensate:X:1", "u#compensate:X:0", "u#compensate:Xlater:0"] == trio.run(story)
    assert [f"u#compensate:Y{rest}" for rest in (":1", ":0", "later:0")] == [e for e in ledger if ":Y" in e]
    assert 6 == len(ledger)


def test_b95_an_undo_that_nobody_knows_any_more_is_no_success(bench, booked):
    """Recovery passes over undo steps it has no code for, and ends as if all were undone."""
    # K-FLOW-1 decides: the execution blocks and says which; when the code is back, the rollback is finished in order.
    ledger = []
    known = {"undoB": booked(ledger, "undoB").effect}

    @flow
    async def books(ctx, _input):
        async with saga(ctx) as s:
            await s.run(booked(ledger, "A"), compensate=booked(ledger, "undoA"))
            await s.run(booked(ledger, "B"), compensate=step("undoB"))
            await s.run(booked(ledger, "C", _stop, failures=(Stop,)))

    async def story():
        assert await bench.crash(lambda r: r.start(books, execution_id="x"), books, at=8, effects=known)
        await bench.recover(books, effects={})  # the code for it is gone
        state, undone = await bench.state(books), ledger[3:]
        async with bench.process(books, effects=known) as runtime:
            await runtime.resume_blocked("x")
            with pytest.raises(ExecutionFailed) as failed:
                await runtime.wait_result("x")
        return state["status"], state["blocked"], undone, failed.value.error

    status, why, undone, error = trio.run(story)
    assert ("blocked", "unregistered", True) == (status, why["reason"], "tool 'undoB'" in why["detail"])
    assert ["undoB#compensate:1"] == undone, "tried before the crash; nothing is undone out of its order"
    assert ["undoB#compensate:1", "undoB#compensate:1", "undoA#compensate:0"] == ledger[3:]
    assert "Stop" == error["type"]
