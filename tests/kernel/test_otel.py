"""Spans of runs and attempts, made of the events that a process appends (K-USER-4)."""

from __future__ import annotations

import contextlib

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from kernel import Supervisor, TypedFailure, await_child, flow, step, supervise_children
from kernel.adapters.otel import Spans


class Declined(TypedFailure):
    pass


class Exporter(InMemorySpanExporter):
    """What was exported, told as plain values: names, seconds, attributes without their prefix."""

    def __init__(self):
        super().__init__()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self))
        self.tracer = provider.get_tracer("test")

    def named(self, name):
        return [span for span in self.get_finished_spans() if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span

    def told(self):
        return [
            (
                span.name,
                span.start_time // 10**9 - 1000,
                span.end_time // 10**9 - 1000,
                span.status.status_code.name,
                span.attributes["loom.outcome"],
            )
            for span in self.get_finished_spans()
        ]


@pytest.fixture
def exporter():
    return Exporter()


@pytest.fixture
def spans(exporter):
    return Spans(exporter.tracer)


def taking(bench, seconds, outcome=None):
    """An effect that takes a while by the bench's clock, and then returns or raises."""

    async def effect(_ectx, _input):
        bench.clock.advance(seconds)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return effect


# ---- what a run leaves -----------------------------------------------------------------------------------------------


def test_a_run_is_a_span_with_a_child_for_each_attempt_at_the_times_of_the_events(bench, exporter, spans):
    # K-USER-4
    @flow
    async def order(ctx, input):
        await ctx.run(step("charge", taking(bench, 3)), key="a")
        await ctx.run(step("ship", taking(bench, 4)))

    trio.run(lambda: bench.run(order, observers=[spans]))

    assert [
        ("step charge", 0, 3, "UNSET", "completed"),
        ("step ship", 3, 7, "UNSET", "completed"),
        ("run order", 0, 7, "UNSET", "completed"),
    ] == exporter.told()
    run, charge = exporter.one("run order"), exporter.one("step charge")
    assert run.parent is None
    assert run.context == charge.parent
    assert {
        "loom.execution_id": "x",
        "loom.flow_id": "order",
        "loom.incarnation": "w1",
        "loom.first_sequence": 0,
        "loom.last_sequence": 5,
        "loom.outcome": "completed",
    } == dict(run.attributes)
    assert ("charge[a]", 1, "x", "charge", "step") == tuple(
        charge.attributes[f"loom.{name}"] for name in ("step_id", "attempt", "execution_id", "tool_id", "step_kind")
    )


@pytest.mark.parametrize(
    ("error", "more", "ends", "kind"),
    [
        (Declined({"code": 5}), {"failures": (Declined,)}, ("failed", "failed"), "Declined"),
        (OSError("secret"), {}, ("failed", "failed"), "OSError"),
        (OSError("secret"), {"at_most_once": True}, ("indoubt", "blocked"), "OSError"),
    ],
)
def test_what_fails_is_an_error_with_its_type_and_nothing_of_its_message(
    bench, exporter, spans, error, more, ends, kind
):
    # K-USER-4, K-USER-3
    @flow
    async def order(ctx, input):
        await ctx.run(step("charge", taking(bench, 1, error), **more), "secret")

    trio.run(lambda: bench.run(order, observers=[spans]))

    attempt, run = exporter.get_finished_spans()
    assert ends == (attempt.attributes["loom.outcome"], run.attributes["loom.outcome"])
    assert ["ERROR", "ERROR"] == [span.status.status_code.name for span in (attempt, run)]
    assert kind == attempt.attributes["error.type"] == attempt.status.description
    assert "secret" not in attempt.to_json() + run.to_json()


def test_a_timeout_is_an_error_and_the_zombie_has_no_say_in_it(bench, exporter, spans):
    # K-USER-4
    async def slow(_ectx, _input):
        await trio.sleep_forever()

    @flow
    async def order(ctx, input):
        await ctx.run(step("charge", slow, deadline=0.01))

    async def story():
        async with bench.process(order, observers=[spans]) as runtime:
            await bench.outcome(await runtime.start(order, execution_id="x"))

    trio.run(story)
    assert [("step charge", 0, 0, "ERROR", "timeout"), ("run order", 0, 0, "ERROR", "failed")] == exporter.told()


# ---- links -----------------------------------------------------------------------------------------------------------


def links(exporter, name):
    """The spans that the newest span of this name is linked to, by kind of link."""
    by_id = {span.context.span_id: span for span in exporter.get_finished_spans()}
    return {link.attributes["loom.link"]: by_id[link.context.span_id] for link in exporter.named(name)[-1].links}


def test_a_run_after_a_gate_has_a_trace_of_its_own_and_a_link_to_the_one_before(bench, exporter, spans):
    # K-USER-4
    @flow
    async def order(ctx, input):
        await ctx.suspend_all(["go", "on"])

    async def story():
        async with bench.process(order, observers=[spans]) as runtime:
            handle = await runtime.start(order, execution_id="x")
            await bench.settle()
            for name in ("go", "on"):
                bench.clock.advance(10)
                await runtime.deliver("x", name, delivery_id=name)
                await bench.settle()
            await handle.result()

    trio.run(story)
    assert [("run order", 0, 0, "UNSET", "suspended"), ("run order", 20, 20, "UNSET", "completed")] == exporter.told()
    first, second = exporter.get_finished_spans()
    assert {"earlier run": first} == links(exporter, "run order")
    assert first.context.trace_id != second.context.trace_id


def test_a_child_is_linked_to_the_run_that_asked_for_it(bench, exporter, spans):
    # K-USER-4, K-CHILD-2
    @flow
    async def child(ctx, input):
        return input

    @flow
    async def parent(ctx, input):
        return await await_child(ctx, "c", "child", 5)

    async def story():
        supervisor = Supervisor()
        async with (
            bench.process(parent, child, observers=[spans, supervisor.observe]) as runtime,
            supervise_children(supervisor, runtime, clock=bench.clock),
        ):
            await (await runtime.start(parent, execution_id="x")).result()

    trio.run(story)
    assert {"parent": exporter.named("run parent")[0]} == links(exporter, "run child")


def test_the_first_run_is_linked_to_the_span_in_which_it_was_started(bench, exporter, spans):
    # K-USER-4
    @flow
    async def order(ctx, input):
        await ctx.suspend("go")

    async def story():
        async with bench.process(order, observers=[spans]) as runtime:
            with exporter.tracer.start_as_current_span("request", attributes={"loom.outcome": "n/a"}):
                await runtime.start(order, execution_id="x")
                await bench.settle()
            assert {"caller": exporter.one("request")} == links(exporter, "run order")
            await runtime.deliver("x", "go", delivery_id="d")
            await runtime.wait_result("x")

    trio.run(story)
    assert {"earlier run"} == set(links(exporter, "run order"))
    assert [None, None] == [span.parent for span in exporter.named("run order")]


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_recovered_run_begins_with_what_the_new_process_does(bench, exporter):
    # K-USER-4
    @flow
    async def order(ctx, input):
        await ctx.run(step("quote", taking(bench, 1)))
        await ctx.run(step("charge", taking(bench, 2)))

    async def drive(runtime):
        await runtime.start(order, execution_id="x")

    async def story():
        with Spans(exporter.tracer) as spans:
            assert await bench.crash(drive, order, at=4, observers=[spans])
        bench.clock.advance(100)
        with Spans(exporter.tracer) as spans:
            await bench.recover(order, observers=[spans])

    trio.run(story)
    assert [
        ("step quote", 0, 1, "UNSET", "completed"),
        ("step charge", 1, 1, "UNSET", "unfinished"),
        ("run order", 0, 1, "UNSET", "unfinished"),
        ("step charge", 103, 105, "UNSET", "completed"),
        ("run order", 103, 105, "UNSET", "completed"),
    ] == exporter.told()
    assert [1, 1, 2] == [span.attributes["loom.attempt"] for span in exporter.get_finished_spans() if span.parent]
    assert ["w1", "w2"] == [span.attributes["loom.incarnation"] for span in exporter.named("run order")]


def test_a_run_that_another_worker_has_gone_on_from_ends_where_it_was_seen_last(bench, exporter, spans):
    # K-USER-4, K-LOG-2
    async def stolen(ectx, _input):
        bench.clock.advance(1)
        if ectx.attempt == 1:
            await bench.recover(order)  # by another process, which ends it
            bench.clock.advance(50)

    @flow
    async def order(ctx, input):
        await ctx.run(step("charge", stolen))

    async def story():
        async with bench.process(order, observers=[spans]) as runtime:
            await (await runtime.start(order, execution_id="x")).result()
            await runtime.delete("x")
            await (await runtime.start(order, execution_id="x")).result()

    trio.run(story)
    assert ("run order", 0, 0, "UNSET", "overtaken") == exporter.told()[1]
    assert ("step charge", 0, 0, "UNSET", "unfinished") == exporter.told()[0]


# ---- effects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_what_an_effect_calls_is_beneath_its_attempt(bench, exporter, spans, deadline):
    # K-USER-4
    async def charge(_ectx, _input):
        with spans.current(), exporter.tracer.start_as_current_span("POST /charges"):
            await trio.lowlevel.checkpoint()
        assert not trace.get_current_span().get_span_context().is_valid

    @flow
    async def order(ctx, input):
        await ctx.run(step("charge", charge, deadline=deadline))

    trio.run(lambda: bench.run(order, observers=[spans]))
    assert exporter.one("step charge").context == exporter.one("POST /charges").parent


def test_outside_an_effect_there_is_no_span_of_one(exporter, spans):
    # K-USER-4
    with spans.current(), exporter.tracer.start_as_current_span("lonely"):
        pass
    assert exporter.one("lonely").parent is None


# ---- determinism -----------------------------------------------------------------------------------------------------


def test_spans_are_a_function_of_the_story_and_leave_no_trace_in_the_log(make_bench):
    # K-USER-4
    def tell(*, observed):
        bench, exporter = make_bench(), Exporter()

        @flow
        async def order(ctx, input):
            for name in "abc":
                await ctx.run(step(name, taking(bench, 1)))
            await ctx.emit("noted", await ctx.now())
            with contextlib.suppress(OSError):
                await ctx.run(step("fails", taking(bench, 1, OSError())))
            await ctx.suspend("go")

        async def story():
            for act in (bench.run, lambda f, **more: bench.deliver(f, on="go", id="d", **more)):
                with Spans(exporter.tracer) as spans:
                    await act(order, observers=[spans] if observed else [])
            return [envelope.text for envelope in await bench.envelopes()]

        log, finished = trio.run(story), exporter.get_finished_spans()
        return log, [(told, dict(span.attributes)) for told, span in zip(exporter.told(), finished, strict=True)]

    log, seen = tell(observed=True)
    assert (log, seen) == tell(observed=True)
    assert (log, []) == tell(observed=False)
    assert len(seen) == 7
