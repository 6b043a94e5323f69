"""A crash between an effect and its record, or between a record and what should follow it."""

from __future__ import annotations

import pytest
import trio

from kernel import flow
from kernel.errors import AppendUnknown, ConcurrencyConflict
from kernel.events import seal


@pytest.mark.parametrize("at_most_once", [False, True])
def test_b19_an_effect_whose_record_is_missing_is_not_silently_repeated(bench, booked, at_most_once):
    """The effect has happened, and the log does not say so."""
    # K-FLOW-4 decides for steps that run at most once; K-FLOW-1 for others, whose key is the same each time.
    ledger, keys = [], []
    charge = booked(ledger, "charge", lambda ectx, _: keys.append(ectx.idempotency_key), at_most_once=at_most_once)

    @flow
    async def pays(ctx, _input):
        await ctx.run(charge)

    async def story():
        assert await bench.crash(lambda r: r.start(pays, execution_id="x"), pays, at=2)
        for _ in range(2):
            await bench.recover(pays)
        return (await bench.log())[2:]

    log = trio.run(story)
    if at_most_once:
        assert (["charge"], [("EFFECT_INDOUBT",), ("EXECUTION_BLOCKED",)]) == (ledger, log)
    else:
        assert (2, {"x/charge"}) == (len(ledger), set(keys))
        assert [("STEP_STARTED", "charge"), ("STEP_COMPLETED", "charge"), ("EXECUTION_COMPLETED",)] == log


@pytest.mark.parametrize("landed", [False, True])
def test_b21_the_last_value_and_the_end_are_one_record(bench, booked, landed):
    """The output is recorded, the end is not: a flow that has ended runs again."""
    ledger, bodies = [], []

    @flow
    async def ends(ctx, _input):
        bodies.append(1)
        await ctx.run(booked(ledger, "s"))
        return 1

    async def story():
        assert await bench.crash(lambda r: r.start(ends, execution_id="x"), ends, at=3, landed=landed)
        await bench.recover(ends)
        return await bench.log(), (await bench.state(ends))["output"]

    log, output = trio.run(story)
    assert (1, 1) == (output, log.count(("EXECUTION_COMPLETED",)))
    # Without its one record the flow has not ended: it runs from the top, and its effect does not (K-FLOW-1).
    assert (["s"], 1 if landed else 2) == (ledger, len(bodies))


def _event(n, type="NOTE", previous="0" * 64):
    return seal(
        execution_id="y",
        sequence=n,
        type=type,
        payload_text="null",
        timestamp_ms=1,
        append_id=f"w/{n}",
        previous_hash=previous,
    )


@pytest.mark.parametrize("nth", range(4))
def test_b23_the_same_append_again_is_one_event(bench, booked, nth):
    """Whether a repeat is seen depends on how the expected position is given."""
    # K-LOG-2 decides: every append names its position.  A repeat loses it, and the append id says that it was mine.
    ledger, event = [], _event(0)

    @flow
    async def one(ctx, _input):
        await ctx.run(booked(ledger, "s"))

    async def story():
        about = {"fence": 0, "flow_id": "f", "status": "running", "due_ms": None}
        await bench.store.append("y", 0, [event], **about)
        for _ in range(2):
            with pytest.raises(ConcurrencyConflict):
                await bench.store.append("y", 0, [event], **about)
        await bench.run(one, stores=bench.failing(landed_append=(nth, AppendUnknown)).stores)
        return len(await bench.store.read_from("y", 0)), await bench.log()

    copies, log = trio.run(story)
    assert 1 == copies
    assert [("EXECUTION_STARTED",), ("STEP_STARTED", "s"), ("STEP_COMPLETED", "s"), ("EXECUTION_COMPLETED",)] == log
    assert ["s"] == ledger
