"""Log records say which execution and step they are of; a flow's own log does not repeat itself (K-USER-4)."""

from __future__ import annotations

import io
import logging
import logging.handlers
import queue

import pytest
import trio

from dst.choices import Random
from dst.run import host
from kernel import Flow, LogIds, flow, step
from kernel.errors import StoreUnavailable
from scenarios.order_saga import OrderSaga

mine = logging.getLogger("tests.of.mine")


class Keeping(logging.Handler):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.addFilter(LogIds())
        self.records = []

    def emit(self, record):
        self.records.append(record)

    @property
    def said(self):
        return [record.getMessage() for record in self.records]


@pytest.fixture
def heard():
    """All that is logged at INFO, as a handler with `LogIds` gets it."""
    handler, root = Keeping(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def places(handler, *fields):
    """What was said, and by which execution and step."""
    fields = fields or ("execution_id", "flow_id", "step_id", "attempt")
    return [(r.getMessage(), *(getattr(r, field) for field in fields)) for r in handler.records]


def logging_step(name, **more):
    async def effect(_ectx, input):
        mine.info("in %s", name)
        return input

    return step(name, effect, **more)


# ---- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [None, 30.0])
def test_records_of_flows_and_effects_carry_their_ids_whoever_runs_the_effect(bench, heard, deadline):
    # K-USER-4
    charge = logging_step("charge", deadline=deadline)

    @flow
    async def order(ctx, input):
        mine.info("before")
        await ctx.run(charge, key="a")
        mine.info("after")

    trio.run(bench.run, order)
    mine.info("outside")

    assert [
        ("before", "x", "order", None, None),
        ("in charge", "x", "order", "charge[a]", 1),
        ("after", "x", "order", None, None),
        ("outside", None, None, None, None),
    ] == places(heard)
    assert ["w1", "w1", "w1", None] == [record.incarnation for record in heard.records]


def test_the_attempt_is_that_of_the_log(bench, heard):
    # K-USER-4
    async def fails_once(ectx, input):
        mine.info("trying")
        if ectx.attempt == 1:
            raise OSError

    @flow
    async def order(ctx, input):
        try:
            await ctx.run(step("charge", fails_once))
        except OSError:
            await ctx.suspend("again")

    async def story():
        await bench.run(order)
        await bench.deliver(order, on="again", id="d")

    trio.run(story)
    assert [("trying", "charge", 1), ("trying", "charge", 2)] == places(heard, "step_id", "attempt")


def test_branches_and_threads_have_the_ids_of_their_own_step(bench, heard):
    # K-USER-4
    async def threaded(_ectx, input):
        await trio.to_thread.run_sync(mine.info, "in a thread of %s", input)

    @flow
    async def order(ctx, input):
        async with ctx.branches() as b:
            for name in "ab":
                b.start(ctx.run, step(name, threaded), name)

    async def story():
        async with bench.process(order) as runtime:
            await (await runtime.start(order, execution_id="x")).result()

    trio.run(story)
    assert [("in a thread of a", "a"), ("in a thread of b", "b")] == sorted(places(heard, "step_id"))


def test_an_execution_that_an_effect_starts_has_ids_of_its_own(bench, heard):
    # K-USER-4
    @flow
    async def inner(ctx, input):
        mine.info("inner")

    @flow
    async def outer(ctx, input):
        async def start(_ectx, _input):
            await (await runtimes[0].start(inner, execution_id="y")).result()
            mine.info("started")

        await ctx.run(step("start", start))

    runtimes = []

    async def story():
        async with bench.process(outer, inner) as runtime:
            runtimes.append(runtime)
            await (await runtime.start(outer, execution_id="x")).result()

    trio.run(story)
    assert [("inner", "y", "inner", None), ("started", "x", "outer", "start")] == places(
        heard, "execution_id", "flow_id", "step_id"
    )


def test_the_kernel_s_own_records_carry_ids_without_a_filter_of_the_user_s(bench, heard):
    # K-USER-4
    @flow
    async def order(ctx, input):
        await ctx.emit("noted")

    heard.filters.clear()
    failing = bench.failing(append=(1, StoreUnavailable))
    trio.run(lambda: bench.run(order, stores=failing.stores))

    assert [("x", "order", "w1")] == [(r.execution_id, r.flow_id, r.incarnation) for r in heard.records]
    assert "interrupted, recover it" in heard.said[0]


def test_ids_that_a_record_has_are_left_to_it_by_a_filter_in_another_thread():
    # K-USER-4
    records = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    record = logging.LogRecord("n", logging.INFO, "p", 1, "m", None, None)
    record.execution_id = "x"
    handler.addFilter(LogIds())
    handler.handle(record)
    got = records.get()
    assert ("x", None) == (got.execution_id, got.step_id)


def test_ids_can_be_part_of_a_format(bench):
    # K-USER-4
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(execution_id)s %(step_id)s: %(message)s"))
    handler.addFilter(LogIds())
    mine.addHandler(handler)
    mine.setLevel(logging.INFO)
    try:

        @flow
        async def order(ctx, input):
            await ctx.run(logging_step("charge"))

        trio.run(bench.run, order)
    finally:
        mine.removeHandler(handler)
        mine.setLevel(logging.NOTSET)
    assert "x charge: in charge\n" == out.getvalue()


# ---- a flow's own log ------------------------------------------------------------------------------------------------


@flow
async def chatty(ctx, input):
    ctx.log.info("begun with %s", input)
    await ctx.run(step("one", _give_one))
    ctx.log.info("one is done")
    await ctx.decide("way", lambda: "left")
    ctx.log.info("decided")
    heard = await ctx.suspend("go")
    ctx.log.info("heard %s", heard)
    return heard


async def _give_one(_ectx, _input):
    return 1


SAID = ["begun with 7", "one is done", "decided", "heard 5"]


def test_a_line_before_what_is_served_is_not_logged_again(bench, heard):
    # K-USER-4
    async def story():
        await bench.run(chatty, 7)
        await bench.recover(chatty)
        await bench.deliver(chatty, on="go", payload=5, id="d")

    trio.run(story)
    assert SAID == heard.said
    assert {("x", "chatty")} == {(record.execution_id, record.flow_id) for record in heard.records}


def test_no_crash_loses_a_line_that_the_flow_came_to(bench, sweep, heard):
    # K-USER-4
    async def drive(runtime):
        await runtime.start(chatty, 7, execution_id="x")
        await bench.settle()
        await runtime.deliver("x", "go", 5, delivery_id="d")

    async def check(swept):
        if [kind for kind, *_ in await swept.log()][-1] == "EXECUTION_COMPLETED":
            assert SAID == list(dict.fromkeys(heard.said))
            ends.append(len(heard.said))
        heard.records.clear()

    ends = []
    fired = trio.run(sweep, lambda: chatty, drive, check)
    assert fired > 0
    assert len(SAID) in ends


def test_after_the_first_thing_that_is_not_served_every_line_is_logged(bench, heard):
    # K-USER-4
    @flow
    async def order(ctx, input):
        try:
            await ctx.run(step("charge", _refuse))
        except OSError:
            ctx.log.info("refused")
        await ctx.run(step("one", _give_one))
        ctx.log.info("gone on")
        await ctx.suspend("go")

    async def _refuse(_ectx, _input):
        raise OSError

    async def story():
        await bench.run(order)
        await bench.deliver(order, on="go", id="d")

    trio.run(story)
    assert ["refused", "gone on", "refused", "gone on"] == heard.said


def test_a_silent_log_says_that_it_is_not_enabled(bench, heard):
    # K-USER-4
    enabled = []

    @flow
    async def order(ctx, input):
        enabled.append(ctx.log.isEnabledFor(logging.INFO))
        await ctx.suspend("go")
        enabled.append(ctx.log.isEnabledFor(logging.INFO))

    async def story():
        await bench.run(order)
        await bench.deliver(order, on="go", id="d")

    trio.run(story)
    assert [True, False, True] == enabled


# ---- and nothing of it is in a run -----------------------------------------------------------------------------------


class Talking(OrderSaga):
    """Orders whose flow says what it does."""

    def flows(self):
        (order,) = super().flows()

        async def talking(ctx, input):
            ctx.log.info("begun")
            mine.info("begun")
            try:
                return await order.function(ctx, input)
            finally:
                ctx.log.info("ended")

        return [Flow(id=order.id, function=talking)]


def test_a_simulation_is_the_same_whether_it_is_listened_to_or_not(heard):
    # K-USER-4
    def digests(scenario):
        async def body(simulations):
            return [
                (await simulations.run(scenario, Random(seed, OrderSaga.faults), judged=True)).digest
                for seed in range(30)
            ]

        return host(body)

    logging.getLogger().setLevel(logging.CRITICAL)
    silent = digests(OrderSaga)
    assert [] == heard.records
    logging.getLogger().setLevel(logging.DEBUG)
    assert silent == digests(Talking)
    assert {"begun", "ended"} == set(heard.said)
