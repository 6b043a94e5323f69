"""Work that takes longer than somebody thought, and workers that come back under their old name."""

from __future__ import annotations

import pytest
import trio

from kernel import flow


def test_b25_work_longer_than_its_lease_is_done_once(bench, booked):
    """A claim that is not renewed is given to another while the work goes on."""
    ledger, go = [], trio.Event()

    @flow
    async def long(ctx, _input):
        await ctx.run(booked(ledger, "body", lambda *_: go.wait()))

    async def story():
        async with bench.process(long, lease_seconds=10) as one, bench.process(long, lease_seconds=10) as other:
            await one.start(long, execution_id="x")
            adopted = []
            for second in range(35):
                await bench.settle()
                bench.clock.advance(1)
                if second % 10 == 9:
                    await bench.settle()
                    adopted += await other.recover_all()
            go.set()
            await bench.settle()
            return adopted, await bench.log()

    adopted, log = trio.run(story)
    assert ([], ["body"]) == (adopted, ledger)
    assert [("STEP_STARTED", "body"), ("STEP_COMPLETED", "body"), ("EXECUTION_COMPLETED",)] == log[1:]


@pytest.mark.parametrize("order", ["prune, then sweep", "restart, then sweep"])
def test_b27_an_orphan_is_one_whatever_its_owners_name_is_now(bench, booked, order):
    """Orphans are told by their owner's name, not by which life of it."""
    ledger, hang = [], [True]

    async def body(_ectx, _input):
        if hang[0]:
            await trio.sleep_forever()

    @flow
    async def work(ctx, _input):
        await ctx.run(booked(ledger, "s", body))

    async def story():
        async with bench.process(work, worker="w1", lease_seconds=30) as first:
            await first.start(work, execution_id="x")
            await bench.settle()
        hang[0] = False
        if order == "prune, then sweep":
            bench.clock.advance(30)  # the lease has run out, and nobody of that name is there
        worker = "w2" if order == "prune, then sweep" else "w1"
        async with bench.process(work, worker=worker, lease_seconds=30) as sweeper:
            adopted = await sweeper.recover_all()
            await bench.settle()
        return adopted, (await bench.log())[-1]

    assert (["x"], ("EXECUTION_COMPLETED",)) == trio.run(story)
    assert ["s", "s"] == ledger
