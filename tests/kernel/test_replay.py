"""Replaying logs against new code, offline (K-RUN-7)."""

from __future__ import annotations

import re

import pytest
import trio

from kernel import CancelRequested, TypedFailure, flow, step
from kernel.events import parse
from kernel.replay import Outcome, replay
from kernel.vectors import load_fold_vectors


class Declined(TypedFailure):
    pass


effects = []


async def effect(_ectx, input):
    effects.append(input)
    if input == "fail":
        raise OSError("no")
    if input == "decline":
        raise Declined(1)
    return input


A, B, C = (step(name, effect, failures=(Declined,)) for name in "abc")


def declared(function):
    return flow(id="f")(function)


@declared
async def first(ctx, input):
    await ctx.emit("begun")
    a = await ctx.execute(A, 1)
    chosen = await ctx.decide("d", lambda: "x")
    await ctx.suspend("go")
    try:
        await ctx.execute(B, input)
    except (Declined, OSError):
        a = "failed"
    return [a, chosen]


@declared
async def other_input(ctx, input):
    await ctx.execute(A, 2)


@declared
async def without_the_step(ctx, input):
    await ctx.emit("begun")
    await ctx.decide("d", lambda: "x")
    await ctx.suspend("go")


@declared
async def one_more_step(ctx, input):
    await ctx.execute(C, 0)
    return await first.function(ctx, input)


@declared
async def other_gate(ctx, input):
    await ctx.execute(A, 1)
    await ctx.suspend("come")


@declared
async def other_output(ctx, input):
    await first.function(ctx, input)
    return "other"


@declared
async def raises(ctx, input):
    await first.function(ctx, input)
    raise ValueError("in new code")


@declared
async def other_emit(ctx, input):
    await ctx.emit("begun anew")
    return await first.function(ctx, input)


async def log_of(bench, input, *, finished):
    await bench.run(first, input)
    if finished:
        await bench.deliver(first, on="go", id="d")
    effects.clear()
    return await bench.envelopes()


@pytest.mark.parametrize("input", ["ok", "decline"])
def test_a_log_replays_against_its_own_code_after_every_event(bench, input):
    # K-RUN-7, B67, B75
    async def story():
        log = await log_of(bench, input, finished=True)
        outcomes = [(await replay(first, log[:n])).outcome for n in range(1, len(log) + 1)]
        assert log == await bench.envelopes()
        return outcomes, [e.type for e in log]

    outcomes, kinds = trio.run(story)
    for outcome, kind in zip(outcomes, kinds, strict=True):
        assert (Outcome.UNDECIDED if kind == "STEP_STARTED" else Outcome.SAME) == outcome
    assert [] == effects


CHANGES = [
    (other_input, False, "step 'a' .* another input"),
    (other_input, True, "step 'a' .* another input"),
    (without_the_step, True, "not asked for step 'a'|asked for a|step 'a'"),
    (
        one_more_step,
        False,
        "asks for step 'c', where its log records a gate|asks for step 'c', where its log records step",
    ),
    (one_more_step, True, "asks for step 'c', and its log has ended"),
    (other_gate, False, "parked on .*'go'.* waits on .*'come'"),
    (other_gate, True, "passed on .*'go'.* waits on .*'come'"),
    (other_output, True, "returns 'other'"),
    (raises, True, "ends as failed .*in new code"),
]


@pytest.mark.parametrize(("changed", "finished", "detail"), CHANGES)
def test_the_first_divergence_is_named(bench, changed, finished, detail):
    # K-RUN-7, K-FLOW-9, B12, B77
    async def story():
        return await replay(changed, await log_of(bench, "ok", finished=finished))

    replayed = trio.run(story)
    assert Outcome.DIVERGED == replayed.outcome
    assert re.search(detail, replayed.detail), replayed.detail
    assert [] == effects


def test_what_would_run_again_decides_nothing(bench):
    # K-RUN-7, K-FLOW-2
    async def story():
        return await replay(first, await log_of(bench, "fail", finished=True))

    replayed = trio.run(story)
    assert (Outcome.UNDECIDED, []) == (replayed.outcome, effects)


def test_new_emits_are_listed_and_are_no_divergence(bench):
    # K-RUN-7, ADR 0102 D2
    async def story():
        log = await log_of(bench, "ok", finished=True)
        return await replay(first, log), await replay(other_emit, log)

    same, changed = trio.run(story)
    assert ((), Outcome.SAME) == (same.new_emits, changed.outcome)
    assert (("begun anew", None),) == changed.new_emits


def test_a_truncated_log_replays_from_its_snapshots_state(bench):
    # K-RUN-7, K-RUN-6
    async def story():
        await log_of(bench, "ok", finished=False)
        async with bench.process(first) as runtime:
            await runtime.compact("x")
            state = await runtime.state("x")
        await bench.deliver(first, on="go", id="d")

        tail = [parse(stored) for stored in await bench.store.read_from("x", state["lastSequence"] + 1)]
        return await replay(first, tail, initial=state), await replay(other_gate, tail, initial=state)

    assert [Outcome.SAME, Outcome.DIVERGED] == [replayed.outcome for replayed in trio.run(story)]


def test_a_cancelled_log_replays(bench):
    # K-RUN-7, K-RUN-4
    @declared
    async def polite(ctx, input):
        try:
            await first.function(ctx, input)
        except CancelRequested:
            await ctx.execute(C, 0)

    async def story():
        await bench.run(polite, "ok")
        async with bench.process(polite) as runtime:
            await runtime.cancel("x")
            await bench.settle()
        effects.clear()
        return await replay(polite, await bench.envelopes()), await replay(first, await bench.envelopes())

    assert [Outcome.SAME, Outcome.DIVERGED] == [replayed.outcome for replayed in trio.run(story)]


def test_vectors_cover_forks_and_new_beginnings():
    # K-FOLD-7
    events = [event for vector in load_fold_vectors() for event in vector.events]
    assert {"EXECUTION_CONTINUED"} <= {event.type for event in events}
    assert any("forkedFrom" in event.metadata for event in events)
