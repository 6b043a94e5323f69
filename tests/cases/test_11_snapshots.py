"""Snapshots, compaction and new beginnings change nothing that is served."""

from __future__ import annotations

import random

import pytest
import trio

from kernel import TypedFailure, flow, fold_events, saga
from kernel.adapters.memory import MemoryStore
from kernel.events import parse
from kernel.lifecycle import decode_snapshot, encode_snapshot
from kernel.replay import Outcome, replay


@pytest.mark.parametrize("seed", range(6))
def test_b61_what_comes_while_a_flow_begins_again_is_carried_over(make_bench, seed):
    """What is pending when a flow restarts itself is not carried over the cut."""
    chance = random.Random(seed)
    bench = make_bench(snapshot_every=chance.choice([None, 1, 3]))

    @flow
    async def counts(ctx, n):
        await ctx.suspend("e")
        if n + 1 < 10:
            await ctx.continue_as_new(n + 1)
        return n + 1

    async def burst(runtime):
        await runtime.start(counts, 0, execution_id="x")
        for n in range(10):
            await runtime.deliver("x", "e", n, delivery_id=f"d{n}")
            if chance.random() < 0.3:
                await bench.settle()

    async def story():
        await bench.crash(burst, counts, at=chance.randrange(35), landed=chance.random() < 0.5)
        async with bench.process(counts) as runtime:
            await burst(runtime)
            await runtime.recover_all()
            output, state = await runtime.wait_result("x"), await runtime.state("x")
            return output, list(state["deliveries"]), await bench.store.pending("x")

    output, passed, pending = trio.run(story)
    assert (10, [f"d{n}" for n in range(10)]) == (output, passed)
    assert {f"d{n}" for n in range(10)} >= {delivery.delivery_id for delivery in pending}


def _sums(booked, ledger):
    @flow
    async def sums(ctx, _input):
        total = 0
        for n in range(3):
            await ctx.emit("added", n)
            await ctx.ui.increment("total", n)
            total += await ctx.run(booked(ledger, "add", n), key=str(n))
        await ctx.decide("d", lambda: total)
        return [total, await ctx.suspend("go")]

    return sums


def test_b63_a_snapshot_at_any_place_and_the_rest_are_the_whole(bench, booked):
    """Recovery folds an event again that the snapshot has in it."""
    sums = _sums(booked, [])

    async def story():
        await bench.run(sums)
        await bench.deliver(sums, on="go", payload=1, id="d")
        return await bench.envelopes()

    log = trio.run(story)
    whole = fold_events(log)
    for k in range(1, len(log) + 1):
        snapshot = decode_snapshot(encode_snapshot(fold_events(log[:k]), {}))
        assert k - 1 == snapshot.sequence
        assert whole == fold_events(log[k:], snapshot.state), k
    assert [3, 1] == whole["output"]


def test_b65_a_snapshot_taken_in_the_middle_of_a_run_has_each_event_once(bench, booked):
    """A snapshot is made of what is stored and of what is pending, and these overlap."""
    seen, ledger = [], []

    class Checking(MemoryStore):
        async def save(self, execution_id, snapshot):
            await super().save(execution_id, snapshot)
            log = [parse(stored) for stored in await self.read_from(execution_id, 0)]
            decoded = decode_snapshot(snapshot)
            seen.append((decoded.sequence, len(log) - 1, decoded.projected["surfaces"]))
            assert fold_events(log[: snapshot.sequence + 1]) == decoded.state

    async def story():
        bench.store, bench.snapshot_every = Checking(), 1
        await bench.run(_sums(booked, ledger))
        return len(await bench.envelopes())

    count = trio.run(story)
    assert list(range(count)) == [sequence for sequence, _, _ in seen]
    assert all(sequence <= last for sequence, last, _ in seen)
    assert {"total": 3} == seen[-1][2]


@pytest.mark.parametrize("landed", [False, True])
def test_b67_a_replay_appends_nothing(make_bench, booked, landed):
    """What is only being replayed writes progress all the same, and the counter runs ahead."""

    class Stop(TypedFailure):
        pass

    def at_seven(_ectx, n):
        if n == 7:
            raise Stop

    async def story(at):
        ledger, bench = [], make_bench()

        @flow
        async def loop(ctx, _input):
            async with saga(ctx) as s:
                for n in range(10):
                    work = booked(ledger, "work", at_seven, failures=(Stop,))
                    await s.run(work, n, key=str(n), compensate=booked(ledger, "undo"))
                    await ctx.emit("progress", n)

        await bench.crash(lambda r: r.start(loop, execution_id="x"), loop, at=at, landed=landed)
        before = [event.text for event in await bench.envelopes()]
        pure = await replay(loop, await bench.envelopes()) if before else None
        assert pure is None or (pure.outcome is not Outcome.DIVERGED and len(pure.new_emits) <= 1)
        await bench.run(loop)
        after = await bench.envelopes()
        assert before == [event.text for event in after][: len(before)]
        assert 7 == len([event for event in after if event.type == "progress"])
        return after[-1].type

    assert {"EXECUTION_FAILED"} == {trio.run(story, at) for at in range(0, 40, 3)}
