"""Nothing is stuck for being too large, and nothing that was started is left without anybody to go on with it."""

from __future__ import annotations

import pytest
import trio

from kernel import TooLarge, flow
from kernel.adapters.memory import MemoryStore

LIMIT = 200


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_b97_an_input_over_the_limit_is_the_steps_error_and_can_be_caught(bench, booked, over):
    """A size limit that the engine's own write meets fails the run, which is tried for ever."""
    ledger, bodies = [], []

    @flow
    async def sends(ctx, _input):
        bodies.append(1)
        try:
            await ctx.run(booked(ledger, "s"), "x" * (LIMIT - 2 + over))  # two for its quotes
        except TooLarge as error:
            return str(error)

    async def story():
        async with bench.process(sends, payload_bytes_max=LIMIT) as runtime:
            handle = await runtime.start(sends, execution_id="x")
            return await handle.result(), await bench.log()

    output, log = trio.run(story)
    if over > 0:
        assert output.startswith("input of step 's': its JSON has 201 bytes, 200 is the most")
        assert ([("EXECUTION_STARTED",), ("EXECUTION_COMPLETED",)], []) == (log, ledger)
    else:
        assert (None, ["s"]) == (output, ledger)
    assert [1] == bodies


@pytest.mark.parametrize("landed", [False, True])
def test_b99_a_start_that_was_lost_is_made_again_by_any_re_run(bench, booked, landed):
    """A dispatch is accepted and lost, and its key keeps every later one from being made."""
    # K-FLOW-1 decides: there is no queue between a flow and its steps; the log alone says what is yet to be done.
    ledger, lost = [], []

    class Losing(MemoryStore):
        async def append(self, execution_id, expected, batch, **more):
            loses = batch[0].type == "STEP_STARTED" and batch[0].payload["step"] == "s3" and len(lost) < 3
            if landed or not loses:
                await super().append(execution_id, expected, batch, **more)
            if loses:
                lost.append(expected)
                await trio.sleep_forever()

    @flow
    async def four(ctx, _input):
        async def branch(n):
            for _ in range(9 * n):
                await trio.lowlevel.checkpoint()  # so the one that is lost begins when the others have ended
            await ctx.run(booked(ledger, f"s{n}"))

        async with ctx.branches() as branches:
            for n in range(4):
                branches.start(branch, n)

    async def story():
        bench.store = Losing()
        for _ in range(4):
            await bench.run(four)
        return await bench.log(), await bench.store.entries("running")

    log, running = trio.run(story)
    assert ([], ("EXECUTION_COMPLETED",), 3) == (running, log[-1], len(lost))
    assert ["s0", "s1", "s2", "s3"] == ledger
    assert (4 if landed else 1) == log.count(("STEP_STARTED", "s3"))
