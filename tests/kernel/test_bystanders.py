"""Observers and projections: code of users that is handed events, and may fail (K-FOLD-6)."""

from __future__ import annotations

import logging

import pytest
import trio

from kernel import SURFACES, ExecutionInterrupted, Projection, flow
from kernel.errors import ProjectionFailed
from kernel.lifecycle import compact, load


@flow
async def noting(ctx, _input):
    for n in range(3):
        await ctx.emit("note", {"n": n})
    return "end"


def test_an_observer_that_fails_is_said_in_the_log_and_stops_neither_the_execution_nor_the_others(bench, caplog):
    # K-FOLD-6
    seen = []

    def broken(event):
        raise KeyError(event.type)

    async def story():
        async with bench.process(noting, observers=[broken, seen.append]) as runtime:
            return await (await runtime.start(noting, execution_id="x")).result()

    with caplog.at_level(logging.ERROR, "kernel"):
        assert "end" == trio.run(story)
    assert [0, 1, 2, 3, 4] == [event.sequence for event in seen]
    assert "execution x: an observer failed at event 1 (note)" in caplog.text


def _count(value, event):
    if event.type != "note":
        return value
    return value + event.payload["n"] // (2 - event.payload["n"])  # the third note divides by zero


def _counts(apply):
    return Projection(name="sum", initial=0, apply=apply)


def test_a_projection_that_fails_interrupts_with_its_name_and_the_event_and_goes_on_when_it_is_mended(make_bench):
    # K-FOLD-6, K-RUN-6
    broken, mended = _counts(_count), _counts(lambda sum, event: sum + 1 if event.type == "note" else sum)
    told = r"projection 'sum' cannot take event 3 \(note\) of 'x': ZeroDivisionError"

    async def story():
        bench = make_bench(projections=(SURFACES, broken))
        async with bench.process(noting) as runtime:
            handle = await runtime.start(noting, execution_id="x")
            with pytest.raises(ProjectionFailed, match=told):
                await handle.result()
            with pytest.raises(ProjectionFailed, match=told):
                await runtime.compact("x")
        before = await bench.log()
        bench.projections = (SURFACES, mended)
        await bench.recover(noting)
        loaded = await load(bench.store.stores, "x", projections=bench.projections)
        return before, await bench.log(), loaded.projected["sum"]

    before, after, sum = trio.run(story)
    assert [("EXECUTION_STARTED",), *[("emit", f"note {{'n': {n}}}", "stamped") for n in range(3)]] == before
    assert (before, [("EXECUTION_COMPLETED",)]) == (after[:4], after[4:])
    assert 3 == sum


def test_no_snapshot_is_taken_of_a_projection_that_has_failed(make_bench):
    # K-RUN-6: it would drop the only events that the value could be made from
    async def story():
        bench = make_bench(projections=(_counts(_count),), snapshot_every=1)
        async with bench.process(noting) as runtime:
            await runtime.start(noting, execution_id="x")
            await bench.settle()
            with pytest.raises((ProjectionFailed, ExecutionInterrupted)):
                await runtime.wait_result("x")
        with pytest.raises(ProjectionFailed):
            await compact(bench.store.stores, "x", projections=bench.projections)
        return (await bench.store.load("x")).sequence, len(await bench.envelopes())

    assert (2, 4) == trio.run(story)
