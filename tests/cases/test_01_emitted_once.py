"""What is emitted comes out once, or says which attempt it is of."""

from __future__ import annotations

import trio

from kernel import RetryPolicy, flow


def test_b01_stream_inside_a_retried_effect_is_told_apart(bench, booked):
    """Output from inside a retried effect, without a key, piles up."""

    # K-EMIT-1 decides: what an effect emits is at least once, and every copy says of which attempt it is.
    async def body(ectx, _input):
        await ectx.emit("STREAM_CHUNK", "a")
        if ectx.attempt < 3:
            raise OSError("not yet")

    ledger = []
    produce = booked(ledger, "s", body, retry=RetryPolicy(attempts=3, backoff_seconds=0))

    @flow
    async def streams(ctx, _input):
        await ctx.run(produce)
        await ctx.stream("end")

    async def story():
        await bench.run(streams)
        return [(e.payload, e.metadata) for e in await bench.envelopes() if e.type == "STREAM_CHUNK"]

    chunks = trio.run(story)
    assert [("a", 1), ("a", 2), ("a", 3), ("end", None)] == [(p, m.get("attempt")) for p, m in chunks]
    assert 1 == sum("flowEmit" in metadata for _, metadata in chunks), "one logical write of the flow's own"
    assert 3 == len(ledger)


def test_b03_an_emit_held_back_goes_before_the_end_of_its_run(bench, watched):
    """'Nothing is pending' is decided while a writer of the same turn is still on its way."""
    release = trio.Event()

    async def hold(event):
        if event.type == "late":
            await release.wait()

    @flow
    async def emits(ctx, _input):
        async with ctx.branches() as branches:
            branches.start(ctx.emit, "late", 1)

    async def story():
        bench.store = watched(hold)
        async with bench.process(emits) as runtime:
            await runtime.start(emits, execution_id="x")
            await bench.settle()
            held = await bench.log()
            release.set()
            await bench.settle()
            return held, await bench.log()

    held, log = trio.run(story)
    assert [("EXECUTION_STARTED",)] == held
    assert [("EXECUTION_STARTED",), ("emit", "late 1", "stamped"), ("EXECUTION_COMPLETED",)] == log
