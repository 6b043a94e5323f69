"""The ground truth of emits and values: what the harness notes of a flow, without asking the kernel."""

from __future__ import annotations

import pytest
import trio

from dst.choices import Written
from dst.durable.observed import Observing, describe, observed, same
from dst.durable.scenario import DurableScenario
from dst.durable.services import Service
from dst.durable.stores import EXECUTING, LIVE, REPEATED, UNSETTLED
from dst.run import RunResult, host
from dst.schedule import Deviation
from kernel import Context, Flow, Parts, RetryPolicy, flow, step

ask = step("ask")


class Emits(DurableScenario):
    """Runs one flow, over one service."""

    name = "emits"
    story = "a test's own"
    invariants = ()
    emitting: Flow

    def flows(self):
        return (type(self).emitting,)

    def world(self, sim):
        return {"ask": Service(sim, "clerk").effect("ask", lambda asked: (1, asked))}

    async def drive(self, sim):
        await self.start("emits", None, execution_id="x")
        await self.deliver("x", "go", delivery_id="d1")


def play(function, *deviations: Deviation) -> RunResult:
    emitting = flow(id="emits")(function)
    return host(lambda h: h.run(type("Emits", (Emits,), {"emitting": emitting}), Written(deviations)))


def emits(result: RunResult, kind: str = "emit") -> list[tuple[int, str, str]]:
    """Segment, type and logical identity of each."""
    return [(r[2], r[3].partition("/")[0], r[4].partition("@")[2]) for r in result.records if r[0] == kind]


def facts(result: RunResult) -> list[str]:
    return [record[5] for record in result.records if record[0] == "emitted"]


async def two_sites(ctx, input):
    await ctx.emit("a", 1)
    await ctx.emit("a", 1)


async def one_site(ctx, input):
    for _ in range(2):
        await ctx.emit("a", 1)


async def two_contents(ctx, input):
    for number in range(2):
        await ctx.emit("a", number)


def test_a_call_is_known_by_its_place_in_the_flow_and_how_often_it_was_passed():
    assert ["two_sites:1#1", "two_sites:2#1"] == [logical for *_, logical in emits(play(two_sites))]
    assert ["one_site:2#1", "one_site:2#2"] == [logical for *_, logical in emits(play(one_site))]
    assert ["two_contents:2#1", "two_contents:2#1"] == [logical for *_, logical in emits(play(two_contents))]


def test_a_re_run_makes_the_same_calls_under_the_same_names():
    crash = Deviation(at="append:x:EXECUTION_COMPLETED#1", do="crash-before")
    calls = emits(play(one_site, crash))
    assert calls[:2] == calls[2:]
    assert emits(play(one_site, crash), "acked") == calls
    assert 2 == len(emits(play(one_site, crash), "emitted"))


def test_surfaces_and_streams_are_emits_of_the_flow_that_makes_them():
    async def shows(ctx, input):
        await ctx.ui.set("price", 1)
        await ctx.stream("chunk")

    assert [(0, "SURFACE_PATCH", "shows:1#1"), (0, "STREAM_CHUNK", "shows:2#1")] == emits(play(shows))


def test_segments_are_counted_by_gates_that_were_passed():
    async def parks(ctx, input):
        await ctx.emit("a")
        await ctx.suspend("go")
        await ctx.emit("a")
        await ctx.sleep(60)
        await ctx.emit("a")

    calls = emits(play(parks))
    assert [0, 0, 1, 0, 1, 2] == [segment for segment, *_ in calls]
    assert 3 == len(set(calls))


def test_the_facts_of_an_emit_are_those_of_its_segment_and_run():
    async def lives(ctx, input):
        await ctx.emit("before")
        await ctx.run(ask)
        await ctx.emit("after")
        await ctx.suspend("go")
        await ctx.emit("next segment")

    assert ["", LIVE, ""] == facts(play(lives))


def test_a_step_that_is_served_is_not_live():
    async def lives(ctx, input):
        await ctx.run(ask)
        await ctx.emit("after")

    crash = Deviation(at="append:x:STEP_COMPLETED:ask#1", do="crash-after")
    assert [""] == facts(play(lives, crash))


def test_what_ended_unsettled_stays_so_over_gates():
    async def fails(ctx, input):
        try:
            await ctx.run(ask)
        except Exception:
            await ctx.emit("failed")
        await ctx.suspend("go")
        await ctx.emit("next segment")

    refused = [Deviation(at=f"effect:x/ask#{nth}", do="refused") for nth in (1, 2)]
    assert UNSETTLED == facts(play(fails, *refused))[-1]
    assert "" == facts(play(fails, refused[0]))[-1], "a run that is given the answer knows of no failure"


def test_an_emit_of_an_effect_is_made_beside_an_effect():
    async def closes_over(ctx, input):
        async def effect(_context, _input):
            await ctx.emit("inside")

        await ctx.run(step("inner", effect=effect))
        await ctx.emit("after")

    assert [LIVE + EXECUTING, LIVE] == facts(play(closes_over))


def test_an_emit_of_a_decider_is_made_beside_an_effect():
    async def decides(ctx, input):
        async def decider():
            await ctx.emit("inside")
            return 1

        await ctx.decide("d", decider)
        await ctx.emit("after")

    assert [LIVE + EXECUTING, LIVE] == facts(play(decides))


def test_a_step_that_waits_for_its_next_try_is_live_before_it_starts():
    # K-EMIT-5, K-FLOW-11
    async def fails(effect, input):
        raise OSError("no")

    async def waits(ctx, input):
        patient = step("patient", fails, retry=RetryPolicy(attempts=2, backoff_seconds=20))
        async with ctx.branches() as b:
            b.start(ctx.run, patient)
            b.start(ctx.emit, "beside")

    crash = Deviation(at="append:x:STEP_FAILED:patient#1", do="crash-after")
    assert [LIVE, LIVE + REPEATED] == facts(play(waits, crash))


def test_an_outcome_is_unsettled_when_the_effect_has_ended_and_not_when_the_flow_wakes_up():
    # K-EMIT-5
    ended = trio.Event()

    async def fails(effect, input):
        ended.set()
        raise OSError("no")

    async def emits(ctx):
        await ended.wait()
        await ctx.emit("beside")

    async def races(ctx, input):
        async with ctx.branches() as b:
            b.start(emits, ctx)
            b.start(ctx.run, step("hasty", fails, deadline=5))

    assert [LIVE + UNSETTLED] == facts(play(races))


def test_branches_are_part_of_the_place():
    async def branches(ctx, input):
        async def one(_):
            await ctx.emit("a")

        async with ctx.branches() as b:
            b.start(one, 1)
            b.start(one, 2)

    places = [record[4].partition("@")[0] for record in play(branches).records if record[0] == "emit"]
    assert 2 == len(set(places))
    assert "" not in places


def test_values_are_compared_with_the_record():
    async def asks(ctx, input):
        return [await ctx.run(ask, "x"), await ctx.decide("d", lambda: (1, 2))]

    handed = [record[2:] for record in play(asks).records if record[0] == "handed"]
    assert [("step", "ask", ""), ("decision", "d", "")] == handed


def test_a_value_that_is_not_the_record_is_told_with_its_types():
    class Raw(Context):
        def live_value(self, raw, text):
            return raw

    async def asks(ctx, input):
        return list(await ctx.run(ask, "x"))

    emitting = flow(id="emits")(asks)
    raw = type("Emits", (Emits,), {"emitting": emitting, "parts": Parts(context=Raw)})
    result = host(lambda h: h.run(raw, Written(())))
    assert [("step", "ask", "tuple(int 1, str x) for list(int 1, str x)")] == [
        record[2:] for record in result.records if record[0] == "handed"
    ]


def test_the_observed_context_is_that_very_context():
    class Own(Context):
        pass

    assert Observing is observed(Context)
    assert issubclass(observed(Own), Own)
    assert observed(Own) is observed(Own)


# ---- equality, types and all ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        ((1,), [1]),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        ("1", 1),
        (None, 0),
    ],
)
def test_what_differs_in_a_type_is_not_the_same(one, other):
    assert not same(one, other)
    assert same(one, one)


def test_what_is_nested_is_compared_too():
    assert same({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]})
    assert not same({"a": [1, {"b": None}]}, {"a": [1, {"b": False}]})


def test_the_order_of_keys_does_not_matter():
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_values_are_told_without_address_or_repr():
    assert "{a: list(int 1, float 0.5, NoneType None), b: object}" == describe({"a": [1, 0.5, None], "b": object()})
