"""Child executions: started once, run side by side, heard of whatever is lost on the way (K-CHILD, ADR 0040)."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import re

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from kernel import ExecutionFailed, TypedFailure, flow, step
from kernel.adapters.memory import MemoryStore
from kernel.adapters.sqlite import open_sqlite
from kernel.errors import StoreUnavailable
from kernel.events import seal
from kernel.jsonform import encode
from kernel.orchestration import (
    CHILD_DONE,
    ChildFailed,
    ChildSpec,
    DuplicateChild,
    await_child,
    await_children,
    child_id_of,
    decide_child,
    failure_payload,
    outcome_of,
    output_payload,
    parent_and_key,
    read_spec,
    settle_children,
)
from kernel.supervision import Repair, Start, Supervisor, Tell, supervise_children

settle = trio.testing.wait_all_tasks_blocked
effects_run: list[str] = []


@pytest.fixture(autouse=True)
def _no_effects_yet():
    effects_run.clear()


@step("multiply")
async def multiply(ectx, number):
    effects_run.append(ectx.idempotency_key)
    return 2 * number


@flow
async def double(ctx, number):
    return await ctx.execute(multiply, number)


@flow
async def parent(ctx, _input):
    return {"fromChild": await await_child(ctx, "double", double, 5)}


@flow
async def gated(ctx, number):
    return [number, await ctx.suspend("go")]


class Declined(TypedFailure):
    wire_name = "Declined"


@flow
async def failing(ctx, input):
    if input == "typed":
        raise Declined({"code": 51})
    raise ValueError("no")


PARENT_LOG = [
    ("EXECUTION_STARTED",),
    ("DECISION_RECORDED", "child:double"),
    ("EXECUTION_SUSPENDED", CHILD_DONE),
    ("EXECUTION_RESUMED", CHILD_DONE),
    ("EXECUTION_COMPLETED",),
]
CHILD_LOG = [("EXECUTION_STARTED",), ("STEP_STARTED", "multiply"), ("STEP_COMPLETED", "multiply"), PARENT_LOG[-1]]


@contextlib.asynccontextmanager
async def supervised(runtime, supervisor, clock, *, host=None, **more):
    more = {"sweep_seconds": None} | more
    async with supervise_children(supervisor, host or runtime, clock=clock, **more) as supervision:
        yield supervision


@contextlib.asynccontextmanager
async def family(bench, *flows, supervisor=None, observers=(), stores=None, **more):
    """A process with a supervisor; when the block ends, it stops where it is."""
    supervisor = supervisor or Supervisor()
    everybody = [supervisor.observe, *observers]
    async with (
        bench.process(*flows, observers=everybody, stores=stores) as runtime,
        supervised(runtime, supervisor, bench.clock, **more) as supervision,
    ):
        yield runtime, supervision


async def output(runtime, execution_id="x"):
    state = await runtime.state(execution_id)
    return state["output"] if state["status"] == "completed" else (state["status"], state["error"])


def resumes(log):
    return [entry for entry in log if entry[0] == "EXECUTION_RESUMED"]


# ---- ids and specs ---------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
KEYS = TEXTS.filter(lambda key: key and "::" not in key and not key.startswith(":") and not re.search(r"~\d+\Z", key))


@given(TEXTS.filter(lambda id: not id.startswith(("timer:", "cancel:"))), KEYS)
def test_parent_and_key_come_back_from_a_child_id(parent_id, key):
    # K-CHILD-1
    assert f"{parent_id}::{key}" == child_id_of(parent_id, key)
    assert (parent_id, key) == parent_and_key(child_id_of(parent_id, key))


@pytest.mark.parametrize("key", ["", "::", "a::b", ":a", "::a", "a::", "a~1", "~0"])
def test_a_key_that_would_not_come_back_is_refused_before_anything_is_appended(bench, key):
    # K-CHILD-1
    @flow
    async def careless(ctx, _input):
        with pytest.raises(ValueError, match="child key"):
            await await_children(ctx, {"good": (double, 1), key: (double, 2)})
        return "refused"

    async def story():
        await bench.run(careless)
        return await bench.log()

    assert [("EXECUTION_STARTED",), ("EXECUTION_COMPLETED",)] == trio.run(story)


def test_an_id_without_a_separator_is_no_childs():
    # K-CHILD-1
    assert [None, None] == [parent_and_key("x"), parent_and_key("x::")]


@pytest.mark.parametrize(
    ("decision_id", "choice"),
    [
        ("route", {"childId": "x::a", "flowId": "f", "input": 1}),
        ("child:a", "north"),
        ("child:a", {"childId": 1, "flowId": "f", "input": 1}),
        ("child:a", {"childId": "x::a", "flowId": "f"}),
    ],
)
def test_other_decisions_are_no_specs(decision_id, choice):
    # K-CHILD-2
    assert read_spec(decision_id, choice) is None


def test_two_children_of_one_key_in_a_run_are_refused(bench):
    # K-CHILD-1: the child ends once, the second gate would never open
    @flow
    async def twice(ctx, _input):
        first = await await_child(ctx, "double", double, 5)
        with pytest.raises(DuplicateChild, match="child 'double' twice"):
            await await_child(ctx, "double", double, 6)
        return first

    async def story():
        async with family(bench, twice, double) as (runtime, _):
            return await (await runtime.start(twice, execution_id="x")).result()

    assert 10 == trio.run(story)


def test_a_decision_of_the_flows_own_under_a_childs_id_is_an_error(bench):
    # K-CHILD-1
    @flow
    async def confused(ctx, _input):
        await ctx.decide("child:double", lambda: "north")
        await await_child(ctx, "double", double, 6)

    async def story():
        await bench.run(confused)
        return await bench.state(confused)

    assert "is no child's" in trio.run(story)["error"]["message"]


# ---- end to end ------------------------------------------------------------------------------------------------------


def test_a_child_runs_and_its_output_comes_to_the_parent(bench):
    # ADR 0040, verification
    async def story():
        async with family(bench, parent, double) as (runtime, _):
            result = await (await runtime.start(parent, execution_id="x")).result()
        envelopes = await bench.envelopes()
        return result, await bench.log(), await bench.log("x::double"), [event.payload for event in envelopes[1:4]]

    result, log, child_log, (decision, gate, resume) = trio.run(story)
    assert {"fromChild": 10} == result
    assert PARENT_LOG == log
    assert CHILD_LOG == child_log
    spec = {"childId": "x::double", "flowId": "double", "input": 5}
    assert {"decisionId": "child:double", "choice": spec} == decision
    assert {"on": CHILD_DONE, "correlationKey": "x::double", "due": None, "ordinal": 0} == gate
    assert {"on": CHILD_DONE, "correlationKey": "x::double", "deliveryId": "x::double", "payload": 10} == resume


def test_a_completed_run_started_its_child_exactly_once(bench):
    # ADR 0040, verification: replay safety, also of a parent that is resumed again and again after it
    @flow
    async def goes_on(ctx, _input):
        seen = [await await_child(ctx, "double", double, 5)]
        for _ in range(3):
            seen.append(await ctx.suspend("go"))
        return seen

    async def story():
        for n in range(3):
            async with family(bench, goes_on, double) as (runtime, _):
                await runtime.start(goes_on, execution_id="x")
                await settle()
                await runtime.deliver("x", "go", n, delivery_id=f"d{n}")
                await settle()
        return await bench.log(), await bench.log("x::double"), await bench.state(goes_on)

    log, child_log, state = trio.run(story)
    assert [10, 0, 1, 2] == state["output"]
    assert 1 == log.count(("DECISION_RECORDED", "child:double"))
    assert CHILD_LOG == child_log
    assert 1 == len(effects_run)


def test_children_may_have_children(bench):
    # K-CHILD-1
    @flow
    async def tree(ctx, depth):
        if depth == 0:
            return "leaf"
        return [depth, await await_child(ctx, "left", tree, depth - 1), await await_child(ctx, "right", tree, 0)]

    async def story():
        async with family(bench, tree) as (runtime, supervision):
            result = await (await runtime.start(tree, 3, execution_id="x")).result()
            await settle()
            return result, supervision.supervisor.size(), [e.execution_id for e in await bench.store.entries()]

    result, size, ids = trio.run(story)
    assert [3, [2, [1, "leaf", "leaf"], "leaf"], "leaf"] == result
    assert 0 == size
    assert "x::left::left::right" in ids
    assert 7 == len(ids)


@pytest.mark.parametrize("fan", [1, 20])
def test_the_path_of_a_child_reads_no_store(bench, fan):
    # K-CHILD-2
    @flow
    async def fans(ctx, _input):
        return await await_children(ctx, {f"k{n}": (double, n) for n in range(fan)})

    class Watched:
        """A runtime that notes when it is asked for what a store holds."""

        def __init__(self, runtime):
            self.runtime, self.asked = runtime, []

        def __getattr__(self, name):
            if name in ("state", "executions"):
                self.asked.append(name)
            return getattr(self.runtime, name)

    async def story():
        supervisor = Supervisor()
        async with bench.process(fans, double, observers=[supervisor.observe]) as runtime:
            host = Watched(runtime)
            async with supervise_children(supervisor, host, sweep_seconds=None):
                await settle()
                host.asked.clear()
                result = await (await runtime.start(fans, execution_id="x")).result()
                await settle()
            return result, host.asked

    assert ({f"k{n}": 2 * n for n in range(fan)}, []) == trio.run(story)


def event(kind, payload, execution_id="x"):
    """An event as an observer sees it."""
    return seal(
        execution_id=execution_id,
        sequence=0,
        type=kind,
        payload_text=encode(payload),
        timestamp_ms=1,
        append_id="w/1",
        previous_hash="0" * 64,
    )


def test_a_supervisor_learns_starts_and_tells_by_what_it_observes():
    # K-CHILD-2
    spec = {"childId": "x::a", "flowId": "f", "input": 1}

    def actions(*observed):
        supervisor = Supervisor()
        for one in observed:
            supervisor.observe(one)
        return [*supervisor._queue.values()]

    decided = event("DECISION_RECORDED", {"decisionId": "child:a", "choice": spec})
    parked = event("EXECUTION_SUSPENDED", {"on": CHILD_DONE, "correlationKey": "x::a", "due": None})
    elsewhere = event("EXECUTION_SUSPENDED", {"on": "go", "correlationKey": "x::a", "due": None})
    ended = event("EXECUTION_COMPLETED", {"output": 7}, "x::a")
    cancelled = event("EXECUTION_CANCELLED", {"error": None}, "x::a")
    over = event("EXECUTION_CANCELLED", {"error": None})
    start = Start(spec=ChildSpec(child_id="x::a", flow_id="f", input=1), waiter="x")
    repair = Repair(execution_id="x")
    assert [] == actions(decided)
    assert [] == actions(decided, elsewhere)
    assert [start] == actions(decided, parked)
    assert [repair] == actions(parked), "its decision was made before this process"
    assert [start, Tell(child_id="x::a", waiter="x", payload=7)] == actions(decided, parked, ended)
    assert failure_payload("x::a", "cancelled", None) == actions(decided, parked, cancelled)[-1].payload
    assert [repair] == actions(ended), "somebody else knows the parent"
    assert [start, repair] == actions(decided, parked, over, ended), "nobody waits any more"


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input", "error"),
    [
        ("typed", {"data": {"code": 51}, "name": "Declined", "type": "Declined"}),
        ("untyped", {"message": "no", "type": "ValueError"}),
    ],
)
def test_a_failed_child_is_a_typed_failure_of_the_parent(bench, input, error):
    # K-CHILD-3: the same on a re-run, after the gate behind it
    @flow
    async def catches(ctx, input):
        try:
            await await_child(ctx, "fails", failing, input)
        except ChildFailed as failed:
            return [failed.wire_name, failed.data, str(failed), await ctx.suspend("go")]

    async def story():
        async with family(bench, catches, failing) as (runtime, _):
            handle = await runtime.start(catches, input, execution_id="x")
            await settle()
            await runtime.deliver("x", "go", "again", delivery_id="d")
            return await handle.result()

    data = {"childId": "x::fails", "error": error, "status": "failed"}
    assert ["ChildFailed", data, f"child 'x::fails' failed: {error}", "again"] == trio.run(story)


def test_an_uncaught_failure_of_a_child_fails_the_parent_and_so_on_up(bench):
    # K-CHILD-3
    @flow
    async def above(ctx, depth):
        await await_child(ctx, "below", above if depth else failing, depth - 1 if depth else "typed")

    async def story():
        async with family(bench, above, failing) as (runtime, _):
            with pytest.raises(ExecutionFailed) as failed:
                await (await runtime.start(above, 1, execution_id="x")).result()
            return failed.value.error

    declined = {"data": {"code": 51}, "name": "Declined", "type": "Declined"}
    inner = {"childId": "x::below::below", "error": declined, "status": "failed"}
    middle = {"data": inner, "name": "ChildFailed", "type": "ChildFailed"}
    outer = {"childId": "x::below", "error": middle, "status": "failed"}
    assert {"data": outer, "name": "ChildFailed", "type": "ChildFailed"} == trio.run(story)


async def end_by_hand(bench, execution_id, kind, payload, status):
    """Append an end to a parked execution, as another worker would."""
    last = (await bench.envelopes(execution_id))[-1]
    entry = await bench.store.entry(execution_id)
    event = seal(
        execution_id=execution_id,
        sequence=last.sequence + 1,
        type=kind,
        payload_text=encode(payload),
        timestamp_ms=1,
        append_id="other/1",
        previous_hash=last.hash,
    )
    await bench.store.append(
        execution_id, event.sequence, [event], fence=entry.fence, flow_id=entry.flow_id, status=status, due_ms=None
    )


@pytest.mark.parametrize("seen", [True, False], ids=["here", "elsewhere"])
def test_a_cancelled_child_is_a_typed_failure_of_the_parent(bench, seen):
    # K-CHILD-3, K-RUN-4
    @flow
    async def asks(ctx, _input):
        try:
            return await await_child(ctx, "gated", gated, 1)
        except ChildFailed as failed:
            return failed.data["status"]

    async def story():
        async with family(bench, asks, gated) as (runtime, supervision):
            await runtime.start(asks, execution_id="x")
            await settle()
            if seen:
                await runtime.cancel("x::gated")
            else:
                await end_by_hand(bench, "x::gated", "EXECUTION_CANCELLED", {"error": None}, "cancelled")
                await supervision.sweep()
            await settle()
            return await output(runtime)

    assert "cancelled" == trio.run(story)


def test_a_child_of_a_cancelled_parent_goes_on_and_tells_nobody(bench):
    # K-CHILD-2, B47
    @flow
    async def asks(ctx, _input):
        return await await_child(ctx, "gated", gated, 1)

    async def story():
        async with family(bench, asks, gated) as (runtime, supervision):
            await runtime.start(asks, execution_id="x")
            await settle()
            await runtime.cancel("x")
            await settle()
            await runtime.deliver("x::gated", "go", "yes", delivery_id="d")
            await settle()
            mail = await bench.store.pending("x")
            return (await output(runtime))[0], await output(runtime, "x::gated"), supervision.supervisor.size(), mail

    assert ("cancelled", [1, "yes"], 0, []) == trio.run(story)


def test_an_execution_of_another_kind_under_the_childs_id_is_a_failure(bench):
    # K-CHILD-3, K-RUN-1: before it is asked for, and after it has ended; the parent must not wait for ever
    @flow
    async def catches(ctx, _input):
        try:
            await await_child(ctx, "double", double, 5)
        except ChildFailed as failed:
            return [failed.data["status"], failed.data["error"]["type"]]

    async def story(ends):
        fresh = type(bench)()
        async with family(fresh, catches, double, gated) as (runtime, _):
            await runtime.start(double if ends else gated, 6, execution_id="x::double")
            await settle()
            result = await (await runtime.start(catches, execution_id="x")).result()
            return result, resumes(await fresh.log())

    for ends in (False, True):
        assert (["failed", "ExecutionMismatch"], [("EXECUTION_RESUMED", CHILD_DONE)]) == trio.run(story, ends)


def test_a_child_of_an_unknown_flow_waits_for_one_who_knows_it(bench, caplog):
    # K-CHILD-2: a worker of an older deploy must not fail what another can do
    async def story():
        async with family(bench, parent) as (runtime, _):
            await runtime.start(parent, execution_id="x")
            await settle()
            parked = await output(runtime)
        async with family(bench, parent, double) as (runtime, _):
            await settle()
            return parked, await output(runtime)

    with caplog.at_level(logging.WARNING, "kernel"):
        assert (("suspended", None), {"fromChild": 10}) == trio.run(story)
    assert "no flow 'double' here" in caplog.text


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [1, 199, 200])
def test_an_output_as_deep_as_a_log_holds_comes_to_the_parent(bench, depth):
    # K-CHILD-2, K-JSON-3
    @flow
    async def deep(_ctx, depth):
        return nested(depth)

    @flow
    async def measures(ctx, depth):
        value, depth = await await_child(ctx, "deep", deep, depth), 0
        while isinstance(value, list):
            value, depth = value[0], depth + 1
        return depth

    async def story():
        async with family(bench, measures, deep) as (runtime, _):
            return await (await runtime.start(measures, depth, execution_id="x")).result()

    assert depth == trio.run(story)


def test_an_error_too_deep_to_be_delivered_is_a_failure_all_the_same(bench):
    # K-CHILD-3: or else the parent would wait for ever
    @flow
    async def deep(_ctx, depth):
        raise Declined(nested(199))

    @flow
    async def catches(ctx, _input):
        try:
            await await_child(ctx, "deep", deep)
        except ChildFailed as failed:
            return failed.data["error"]["type"]

    async def story():
        async with family(bench, catches, deep) as (runtime, _):
            return await (await runtime.start(catches, execution_id="x")).result()

    assert "NoJsonForm" == trio.run(story)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "__loomChildFailed", "__loomChildOutput"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@given(JSON)
def test_no_output_is_taken_for_a_failure(value):
    # K-CHILD-3
    assert value == outcome_of(output_payload(value))


def test_an_output_is_delivered_as_it_is():
    # ADR 0040: the gate's payload is the child's output
    assert [10, {"a": 1}, None] == [output_payload(value) for value in (10, {"a": 1}, None)]
    failed = outcome_of(failure_payload("x::a", "failed", {"message": "no"}))
    assert {"childId": "x::a", "error": {"message": "no"}, "status": "failed"} == failed.data


# ---- crashes ---------------------------------------------------------------------------------------------------------


async def crash(bench, drive, *flows, at, landed):
    """Run `drive` in a process with a supervisor that dies at append `at`; False if it has not come to that."""
    supervisor = Supervisor()

    async def supervised_drive(runtime):
        async with supervised(runtime, supervisor, bench.clock):
            await settle()  # the sweep at the start would start children too, and number the appends by chance
            await drive(runtime)
            await settle()

    return await bench.crash(supervised_drive, *flows, at=at, landed=landed, observers=[supervisor.observe])


async def crash_everywhere(make_bench, flows, drive, check):
    """Crash at every append of parent and children, before it and after it; recover in a new process, and check."""
    fired = 0
    for at in itertools.count():
        before = fired
        for landed in (False, True):
            bench = make_bench()
            effects_run.clear()
            fired += await crash(bench, drive, *flows, at=at, landed=landed)
            async with family(bench, *flows) as (runtime, _):
                await drive(runtime)
                await runtime.recover_all()
                await settle()
                await check(bench, runtime)
        if fired == before:
            return fired
    raise AssertionError


def test_a_parent_hears_of_its_child_whatever_process_dies_at_whatever_append(make_bench):
    # K-CHILD-2, B31, B47
    async def drive(runtime):
        await runtime.start(parent, execution_id="x")

    async def check(bench, runtime):
        assert {"fromChild": 10} == await output(runtime)
        assert PARENT_LOG == await bench.log()
        child_log = await bench.log("x::double")
        assert CHILD_LOG == [entry for n, entry in enumerate(child_log) if entry not in child_log[:n]]
        assert 1 == child_log.count(("STEP_COMPLETED", "multiply"))

    appends = len(PARENT_LOG) + len(CHILD_LOG)
    assert 2 * appends == trio.run(crash_everywhere, make_bench, [parent, double], drive, check)


def test_a_grandchild_survives_the_same(make_bench):
    # K-CHILD-2
    @flow
    async def middle(ctx, number):
        return await await_child(ctx, "double", double, number)

    @flow
    async def top(ctx, _input):
        return await await_child(ctx, "middle", middle, 4)

    async def drive(runtime):
        await runtime.start(top, execution_id="x")

    async def check(bench, runtime):
        assert 8 == await output(runtime)
        for execution_id in ("x", "x::middle"):
            assert 1 == len(resumes(await bench.log(execution_id)))

    assert trio.run(crash_everywhere, make_bench, [top, middle, double], drive, check) > 20


def test_a_crash_between_an_end_and_its_delivery_is_repaired_by_the_sweep_at_the_start(bench):
    # K-CHILD-2: no supervisor at all while the child runs
    async def story():
        async with bench.process(parent, double) as runtime:
            await runtime.start(parent, execution_id="x")
            await runtime.start(double, 5, execution_id="x::double")
            await settle()
            before = await output(runtime)
        async with family(bench, parent, double) as (runtime, _):
            await settle()
            return before, await output(runtime)

    assert (("suspended", None), {"fromChild": 10}) == trio.run(story)


def test_a_child_that_was_heard_of_is_not_started_again_when_its_log_is_gone(bench):
    # K-CHILD-2: deleted after a while, as one may
    @flow
    async def asks(ctx, _input):
        return [await await_child(ctx, "double", double, 5), await await_child(ctx, "gated", gated, 1)]

    async def story():
        async with family(bench, asks, double, gated) as (runtime, _):
            await runtime.start(asks, execution_id="x")
            await settle()
        del bench.store._executions["x::double"]
        async with family(bench, asks, double, gated) as (runtime, _):
            await settle()
            await runtime.deliver("x::gated", "go", "yes", delivery_id="d")
            await settle()
            return await output(runtime), len(effects_run)

    assert ([10, [1, "yes"]], 1) == trio.run(story)


@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
def test_a_restart_goes_on_from_snapshots_alone(bench, sqlite, tmp_path):
    # K-CHILD-2, K-RUN-6: specs, ends and what has been heard of are in the fold
    @flow
    async def asks(ctx, _input):
        first = await await_child(ctx, "double", double, 5)
        return [first, await await_children(ctx, {"a": (double, 1), "b": (gated, 2)})]

    async def compact_all(runtime):
        for entry in await runtime.executions():
            await runtime.compact(entry.execution_id)

    async def story(store):
        bench.store = store
        async with family(bench, asks, double, gated) as (runtime, _):
            await runtime.start(asks, execution_id="x")
            await settle()
            await compact_all(runtime)
        async with bench.process(asks, double, gated) as runtime:  # no supervisor: nobody hears of the end
            await runtime.deliver("x::b", "go", "yes", delivery_id="d")
            await settle()
            await compact_all(runtime)
        async with family(bench, asks, double, gated) as (runtime, _):
            await settle()
            return await output(runtime), len(effects_run)

    async def on_sqlite():
        async with open_sqlite(tmp_path / "store.db", inline=True) as store:
            return await story(store)

    result = trio.run(on_sqlite) if sqlite else trio.run(story, MemoryStore())
    assert ([10, {"a": 2, "b": [2, "yes"]}], 2) == result


def test_the_sweep_comes_by_itself_now_and_then(bench):
    # K-CHILD-2
    async def story():
        async with family(bench, parent, double, supervisor=Deaf(), sweep_seconds=10) as (runtime, _):
            await settle()  # the sweep at the start
            await runtime.start(parent, execution_id="x")
            seen = []
            for _ in range(3):
                await settle()
                seen.append([entry.status for entry in await bench.store.entries()])
                bench.clock.advance(10)
            return seen

    first, *_, last = trio.run(story)
    assert ["suspended"] == first, "it observes nothing"
    assert ["completed", "completed"] == last


class Deaf(Supervisor):
    """Observes nothing."""

    def observe(self, event):
        pass


class Holding(MemoryStore):
    """Holds the parent's suspension back: before it is durable, or when it is and nobody has been told."""

    def __init__(self, landed):
        super().__init__()
        self.landed, self.release = landed, trio.Event()

    async def append(self, execution_id, expected, batch, **more):
        held = execution_id == "x" and batch[0].type == "EXECUTION_SUSPENDED"
        if held and not self.landed:
            await self.release.wait()
        await super().append(execution_id, expected, batch, **more)
        if held and self.landed:
            await self.release.wait()


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("swept", [False, True])
def test_a_child_may_end_before_its_parents_suspension_is_durable(bench, landed, swept):
    # B31
    async def story():
        bench.store = Holding(landed)
        async with family(bench, parent, double) as (runtime, supervision):
            await runtime.start(parent, execution_id="x")
            await runtime.start(double, 5, execution_id="x::double")
            await settle()
            if swept:
                await supervision.sweep()
                await settle()
            bench.store.release.set()
            await settle()
            return await output(runtime), resumes(await bench.log())

    assert ({"fromChild": 10}, [("EXECUTION_RESUMED", CHILD_DONE)]) == trio.run(story)


def test_a_store_that_fails_for_a_while_delays_only(bench):
    # K-CHILD-2
    class Away:
        def __init__(self, runtime):
            self.runtime, self.away = runtime, {"start", "deliver"}

        def __getattr__(self, name):
            async def refuse(*_args, **_more):
                self.away.discard(name)
                raise StoreUnavailable("away")

            return refuse if name in self.away else getattr(self.runtime, name)

    async def story():
        supervisor = Supervisor()
        async with (
            bench.process(parent, double, observers=[supervisor.observe]) as runtime,
            supervised(runtime, supervisor, bench.clock, host=Away(runtime), sweep_seconds=10),
        ):
            await runtime.start(parent, execution_id="x")
            for _ in range(3):
                await settle()
                bench.clock.advance(10)
            await settle()
            return await output(runtime)

    assert {"fromChild": 10} == trio.run(story)


def test_one_execution_that_cannot_be_read_stops_no_sweep(bench, caplog):
    # K-CHILD-2
    async def story():
        async with bench.process(parent, double) as runtime:
            for name in ("a", "x"):
                await runtime.start(parent, execution_id=name)
            await settle()
        log = bench.store._executions["a"].events
        log[1] = attrs.evolve(log[1], text="torn")
        async with family(bench, parent, double) as (runtime, _):
            await settle()
            return await output(runtime)

    with caplog.at_level(logging.WARNING, "kernel"):
        assert {"fromChild": 10} == trio.run(story)
    assert "('repair', 'a') failed" in caplog.text


# ---- many, and lossy -------------------------------------------------------------------------------------------------


class Lossy:
    """A runtime whose completion messages are lost, sent twice, or come late and in another order, by seed."""

    def __init__(self, runtime, seed):
        self.runtime, self.draw, self.late, self.fates = runtime, random.Random(seed), [], {}

    def __getattr__(self, name):
        return getattr(self.runtime, name)

    async def deliver(self, *args, **more):
        fate = self.draw.choice(["lost", "twice", "late", "late twice", "sent"])
        self.fates[fate] = self.fates.get(fate, 0) + 1
        for _ in range({"lost": 0, "late": 0, "late twice": 0, "twice": 2, "sent": 1}[fate]):
            await self.runtime.deliver(*args, **more)
        self.late += [(args, more)] * {"late": 1, "late twice": 2}.get(fate, 0)

    async def send_late(self):
        self.draw.shuffle(self.late)
        for args, more in self.late:
            await self.runtime.deliver(*args, **more)


@pytest.mark.parametrize("seed", [1])
def test_all_of_two_thousand_parents_hear_of_their_child(bench, seed):
    # B45
    parents = [f"p{n:04}" for n in range(2000)]

    @flow
    async def one(ctx, number):
        return await await_child(ctx, "child", child, number)

    @flow
    async def child(_ctx, number):
        return [number]

    async def story():
        bench.projections = ()
        supervisor = Supervisor()
        async with bench.process(one, child, observers=[supervisor.observe]) as runtime:
            lossy = Lossy(runtime, seed)
            async with supervised(runtime, supervisor, bench.clock, host=lossy):
                await settle()
                for n, name in enumerate(parents):
                    await runtime.start(one, n, execution_id=name)
                await settle()
                parked = len(await bench.store.entries("suspended"))
                await lossy.send_late()
                await settle()
                lost = len(await bench.store.entries("suspended"))
            async with supervised(runtime, supervisor, bench.clock) as repairing:
                await repairing.sweep()
                await settle()
            results = [await output(runtime, name) for name in parents]
            logs = [[entry[0] for entry in await bench.log(name)] for name in parents]
            return lossy.fates, parked, lost, results, logs, await bench.store.executions(), supervisor.size()

    fates, parked, lost, results, logs, mail, size = trio.run(story)
    assert {"lost", "twice", "late", "late twice", "sent"} == {*fates}
    assert parked > lost > 0, "some are late, some are lost for good, until they are swept"
    assert [[n] for n in range(2000)] == results
    assert [[kind for kind, *_ in PARENT_LOG]] * 2000 == logs
    assert 0 == size
    assert set(mail) <= set(parents)


@pytest.mark.parametrize("seed", range(8))
def test_events_that_a_supervisor_misses_or_sees_twice_or_late_are_made_up_for(bench, seed):
    # K-CHILD-2: the memory is never trusted for absence
    draw = random.Random(seed)
    supervisor = Supervisor()
    late = []

    def observe(event):
        fate = draw.randrange(5)
        if fate == 0:
            late.append(event)
        for _ in range({0: 0, 1: 0, 2: 2}.get(fate, 1)):
            supervisor.observe(event)

    @flow
    async def one(ctx, number):
        return await await_child(ctx, "child", double, number)

    async def story():
        async with (
            bench.process(one, double, observers=[observe]) as runtime,
            supervised(runtime, supervisor, bench.clock) as supervision,
        ):
            for n in range(40):
                await runtime.start(one, n, execution_id=f"p{n}")
            await settle()
            for event in late:
                supervisor.observe(event)
            await settle()
            for _ in range(2):  # one starts what is missing, the next tells of what has ended unseen
                await supervision.sweep()
                await settle()
            return [await output(runtime, f"p{n}") for n in range(40)]

    assert [2 * n for n in range(40)] == trio.run(story)
    assert 40 == len(effects_run)


def test_memory_and_queue_are_bounded_and_nothing_is_lost_by_it(bench):
    # K-CHILD-2
    class Measured(Supervisor):
        largest = 0

        def observe(self, event):
            super().observe(event)
            self.largest = max(self.largest, self.size())

    async def story():
        supervisor = Measured(known_max=2, queued_max=2)
        async with family(bench, parent, double, supervisor=supervisor) as (runtime, supervision):
            for n in range(60):
                await runtime.start(parent, execution_id=f"p{n}")
            for _ in range(3):
                await settle()
                await supervision.sweep()
            await settle()
            results = [await output(runtime, f"p{n}") for n in range(60)]
            return results, supervisor.largest

    results, largest = trio.run(story)
    assert [{"fromChild": 10}] * 60 == results
    assert largest <= 12


def test_parents_that_go_on_elsewhere_are_forgotten():
    # K-CHILD-2: decided here, and never seen to park
    supervisor = Supervisor(known_max=3)
    for n in range(50):
        spec = {"childId": f"p{n}::a", "flowId": "f", "input": None}
        supervisor.observe(event("DECISION_RECORDED", {"decisionId": "child:a", "choice": spec}, f"p{n}"))
    assert 3 == supervisor.size()
    parked = {"on": CHILD_DONE, "due": None}
    supervisor.observe(event("EXECUTION_SUSPENDED", parked | {"correlationKey": "p0::a"}, "p0"))
    supervisor.observe(event("EXECUTION_SUSPENDED", parked | {"correlationKey": "p49::a"}, "p49"))
    assert [Repair, Start] == [type(action) for action in supervisor._queue.values()]


def test_nothing_is_remembered_of_what_is_over(bench):
    # K-CHILD-2: of parents that end before their child, too
    async def story():
        async with family(bench, parent, double, gated) as (runtime, supervision):
            for n in range(30):
                await runtime.start(parent, execution_id=f"p{n}")
            await settle()
            return supervision.supervisor.size()

    assert 0 == trio.run(story)


# ---- several supervisors, several processes, forks -------------------------------------------------------------------


def test_two_supervisors_of_one_process_do_everything_once(bench):
    # K-CHILD-2
    async def story():
        second = Supervisor()
        async with family(bench, parent, double, observers=[second.observe]) as (runtime, _):
            async with supervised(runtime, second, bench.clock):
                for n in range(20):
                    await runtime.start(parent, execution_id=f"p{n}")
                await settle()
                results = [await output(runtime, f"p{n}") for n in range(20)]
            return results, [await bench.log(f"p{n}") for n in range(20)]

    results, logs = trio.run(story)
    assert [{"fromChild": 10}] * 20 == results
    assert [PARENT_LOG] * 20 == logs
    assert 20 == len(effects_run)


@pytest.mark.parametrize("finisher", [0, 1])
def test_a_child_that_ends_in_another_process_is_heard_of(bench, finisher):
    # K-CHILD-2: two workers over one store
    @flow
    async def asks(ctx, _input):
        return await await_child(ctx, "gated", gated, 1)

    async def story():
        async with family(bench, asks, gated) as (one, _), family(bench, asks, gated) as (two, supervision):
            await one.start(asks, execution_id="x")
            await settle()
            await supervision.sweep()
            await [one, two][finisher].deliver("x::gated", "go", "yes", delivery_id="d")
            await settle()
            return await output(one), resumes(await bench.log())

    assert ([1, "yes"], [("EXECUTION_RESUMED", CHILD_DONE)]) == trio.run(story)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("upto", [0, 1, 2])
def test_a_fork_hears_of_the_child_it_has_decided_on(bench, upto, ended):
    # K-CHILD-2, K-RUN-5: from the decision on, it waits for the same child; one from before has a child of its own
    @flow
    async def asks(ctx, _input):
        return await await_child(ctx, "gated", gated, 1)

    async def story():
        async with family(bench, asks, gated) as (runtime, supervision):
            await runtime.start(asks, execution_id="x")
            await settle()
            if ended:
                await runtime.deliver("x::gated", "go", "yes", delivery_id="d")
                await settle()
            await runtime.fork("x", upto=upto, new_id="fork")
            await settle()
            await supervision.sweep()
            for child in ("x::gated", "fork::gated"):
                if await bench.store.entry(child):
                    await runtime.deliver(child, "go", "yes", delivery_id="d")
            await settle()
            ids = [entry.execution_id for entry in await bench.store.entries()]
            return await output(runtime), await output(runtime, "fork"), ids

    own = ["fork::gated"] if upto == 0 else []
    assert ([1, "yes"], [1, "yes"], ["fork", *own, "x", "x::gated"]) == trio.run(story)


@pytest.mark.parametrize("arrived", range(4))
def test_a_fork_of_a_parent_in_the_middle_of_its_fan_out_hears_of_all(bench, arrived):
    # K-CHILD-2, K-CHILD-3, K-RUN-5: by the sweeps that come by themselves, though nobody was seen to park
    async def story():
        async with family(bench, fans_out, gated, sweep_seconds=10) as (runtime, _):
            await runtime.start(fans_out, ["a", "b", "c"], execution_id="x")
            await settle()
            for n, key in enumerate("abc"):
                if n == arrived:
                    await runtime.fork("x", new_id="fork")
                await runtime.deliver(f"x::{key}", "go", key, delivery_id="d")
                await settle()
            if arrived == 3:
                await runtime.fork("x", upto=6, new_id="fork")  # all have ended, two are in the log
            bench.clock.advance(10)
            await settle()
            ids = [entry.execution_id for entry in await bench.store.entries()]
            return await output(runtime), await output(runtime, "fork"), ids

    of_x, of_fork, ids = trio.run(story)
    assert {"a": [0, "a"], "b": [1, "b"], "c": [2, "c"]} == of_x == of_fork
    assert ["fork", "x", "x::a", "x::b", "x::c"] == ids


def test_a_sweep_reads_what_waits_for_no_child_once_and_again_when_its_log_has_grown(bench):
    # K-CHILD-2: ten sessions and a parent
    @flow
    async def session(ctx, _input):
        while await ctx.suspend("go") != "stop":
            pass

    async def story():
        async with bench.process(session, fans_out, gated) as runtime:
            for n in range(10):
                await runtime.start(session, execution_id=f"s{n}")
            await runtime.start(fans_out, ["k"], execution_id="x")
            await settle()
            read = []

            class Counted:
                def __getattr__(self, name):
                    return getattr(runtime, name)

                async def state(self, execution_id):
                    read.append(execution_id)
                    return await runtime.state(execution_id)

            async with supervised(runtime, Deaf(), bench.clock, host=Counted()) as supervision:
                await settle()
                first = sorted(set(read))
                for n in range(2):
                    read.clear()
                    await supervision.sweep()
                    later.append(sorted(read))
                    await runtime.deliver("s3", "go", delivery_id=f"d{n}")
                    await settle()
                return first

    later = []
    assert [*(f"s{n}" for n in range(10)), "x", "x::k"] == trio.run(story)
    assert [["x", "x::k", "x::k"], ["s3", "x", "x::k"]] == later, "and the child, which waits for none, once"


# ---- new beginnings --------------------------------------------------------------------------------------------------


@flow
async def thrice(ctx, number):
    doubled = await await_child(ctx, "double", double, number)
    return doubled if number == 3 else await ctx.continue_as_new(number + 1)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_parent_that_begins_anew_has_other_children_under_the_same_keys(bench, compacted):
    # K-CHILD-1, K-RUN-7: the end of an earlier child does not stand for that of a later one
    async def story():
        async with family(bench, thrice, double) as (runtime, supervision):
            await runtime.start(thrice, 1, execution_id="x")
            await settle()
            if compacted:
                await runtime.compact("x")
            await supervision.sweep()
            ids = [entry.execution_id for entry in await bench.store.entries()]
            return await output(runtime), ids, supervision.supervisor.size()

    assert (6, ["x", "x::double", "x::double~1", "x::double~2"], 0) == trio.run(story)
    assert ["x::double/multiply", "x::double~1~0/multiply", "x::double~2~0/multiply"] == effects_run


def test_the_effects_of_a_later_child_are_not_those_of_a_child_that_began_anew(bench):
    # K-CHILD-1, K-RUN-7: the key `x::twice~1/multiply` is one of them alone
    @flow
    async def twice(ctx, number):
        doubled = await ctx.run(multiply, number)
        return doubled if number % 2 else await ctx.continue_as_new(number + 1)

    @flow
    async def parent(ctx, number):
        doubled = await await_child(ctx, "twice", twice, number)
        return doubled if number else await ctx.continue_as_new(2)

    async def story():
        async with family(bench, parent, twice) as (runtime, _):
            await runtime.start(parent, 0, execution_id="x")
            await settle()

    trio.run(story)
    assert 4 == len(set(effects_run)) == len(effects_run)


def test_a_parent_that_begins_anew_hears_of_its_children_whatever_dies(make_bench):
    # K-CHILD-1, K-CHILD-2, K-RUN-7
    async def drive(runtime):
        await runtime.start(thrice, 1, execution_id="x")

    async def check(bench, runtime):
        assert await output(runtime) == 6
        for child in ("x::double", "x::double~1", "x::double~2"):
            assert CHILD_LOG == [*dict.fromkeys(await bench.log(child))]

    assert trio.run(crash_everywhere, make_bench, [thrice, double], drive, check) > 20


def test_what_a_parent_decided_on_before_it_began_anew_is_not_started_after(bench):
    # K-CHILD-2, K-RUN-7
    @flow
    async def fickle(ctx, number):
        if number == 0:
            await decide_child(ctx, "never", double, 1)
            await ctx.continue_as_new(1)
        return await await_child(ctx, "double", double, number)

    async def story():
        async with family(bench, fickle, double) as (runtime, _):
            await runtime.start(fickle, 0, execution_id="x")
            await settle()
            return await output(runtime), [entry.execution_id for entry in await bench.store.entries()]

    assert (2, ["x", "x::double~1"]) == trio.run(story)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_parent_is_resumed_when_a_child_that_begins_anew_really_ends(bench, restarted):
    # K-CHILD-2, K-RUN-7: also by a supervisor that has to look into the store
    @flow
    async def renewed(ctx, number):
        await ctx.suspend("go")
        return number if number == 2 else await ctx.continue_as_new(number + 1)

    @flow
    async def asks(ctx, _input):
        return await await_child(ctx, "c", renewed, 0)

    async def story():
        async with contextlib.AsyncExitStack() as stack:
            runtime, _ = await stack.enter_async_context(family(bench, asks, renewed))
            await runtime.start(asks, execution_id="x")
            await settle()
            for n in range(3):
                assert await output(runtime) == ("suspended", None)
                await runtime.deliver("x::c", "go", delivery_id=f"d{n}")
                await settle()
                if restarted:
                    await stack.aclose()
                    runtime, _ = await stack.enter_async_context(family(bench, asks, renewed))
                    await settle()
            return await output(runtime), resumes(await bench.log())

    assert (2, [("EXECUTION_RESUMED", CHILD_DONE)]) == trio.run(story)


# ---- fan-out ---------------------------------------------------------------------------------------------------------


@flow
async def fans_out(ctx, keys):
    return await await_children(ctx, {key: (gated, n) for n, key in enumerate(keys)})


@pytest.mark.parametrize("order", ["forwards", "backwards", "shuffled"])
def test_children_run_at_the_same_time_and_end_in_any_order(bench, order):
    # K-CHILD-3
    keys = [f"k{n}" for n in range(50)]

    async def story():
        async with family(bench, fans_out, gated) as (runtime, supervision):
            handle = await runtime.start(fans_out, keys, execution_id="x")
            await settle()
            waiting = [entry.execution_id for entry in await bench.store.entries("suspended")]
            ended = {"forwards": keys, "backwards": keys[::-1], "shuffled": random.Random(7).sample(keys, 50)}[order]
            for key in ended:
                assert (await runtime.state("x"))["status"] == "suspended"
                await runtime.deliver(f"x::{key}", "go", key, delivery_id="d")
                await settle()
            log = [entry[0] for entry in await bench.log()]
            return waiting, await handle.result(), supervision.supervisor.size(), log

    waiting, result, size, log = trio.run(story)
    assert [1, 49, 1] == [log.count(kind) for kind in ("EXECUTION_SUSPENDED", "GATE_DELIVERED", "EXECUTION_RESUMED")]
    assert sorted(["x", *(f"x::{key}" for key in keys)]) == waiting
    assert {key: [n, key] for n, key in enumerate(keys)} == result
    assert 0 == size


@pytest.mark.parametrize("seed", range(6))
def test_fifty_children_survive_a_crash_in_the_middle(bench, seed):
    # K-CHILD-3
    @flow
    async def all_double(ctx, _input):
        return await await_children(ctx, {f"k{n}": (double, n) for n in range(50)})

    async def drive(runtime):
        await runtime.start(all_double, execution_id="x")

    async def story():
        draw = random.Random(seed)
        crashed = 0
        for landed in (False, True, False):  # a second start of a child lands nothing, and nobody dies after it
            crashed += await crash(bench, drive_all, all_double, double, at=draw.randrange(110), landed=landed)
        async with family(bench, all_double, double) as (runtime, _):
            await drive_all(runtime)
            await settle()
            logs = [await bench.log(f"x::k{n}") for n in range(50)]
            return crashed, await output(runtime), logs

    async def drive_all(runtime):
        await drive(runtime)
        await runtime.recover_all()

    crashed, result, logs = trio.run(story)
    assert crashed >= 1
    assert {f"k{n}": 2 * n for n in range(50)} == result
    assert [1] * 50 == [log.count(("STEP_COMPLETED", "multiply")) for log in logs]


def test_failures_among_many_are_heard_of_when_all_have_ended(bench):
    # K-CHILD-3: the first in the order of the call, not of time
    def children(keys):
        return {
            key: (failing if key.startswith("bad") else double, key if key.startswith("bad") else 2) for key in keys
        }

    @flow
    async def raises(ctx, keys):
        await await_children(ctx, children(keys))

    @flow
    async def settles(ctx, keys):
        outcomes = await settle_children(ctx, children(keys))
        return {key: "failed" if isinstance(one, ChildFailed) else one for key, one in outcomes.items()}

    async def story():
        async with family(bench, raises, settles, failing, double) as (runtime, _):
            keys = ["a", "bad2", "b", "bad1"]
            with pytest.raises(ExecutionFailed) as failed:
                await (await runtime.start(raises, keys, execution_id="x")).result()
            ended = [entry.status for entry in await bench.store.entries()]
            settled = await (await runtime.start(settles, keys, execution_id="y")).result()
            return failed.value.error["data"]["childId"], ended, settled

    child_id, ended, settled = trio.run(story)
    assert "x::bad2" == child_id
    assert ["failed", "completed", "completed", "failed", "failed"] == ended
    assert {"a": 4, "bad2": "failed", "b": 4, "bad1": "failed"} == settled


def test_no_children_at_all_are_no_gate(bench):
    # K-CHILD-3
    @flow
    async def none(ctx, _input):
        return await await_children(ctx, {})

    async def story():
        await bench.run(none)
        return await bench.log(), (await bench.state(none))["output"]

    assert ([("EXECUTION_STARTED",), ("EXECUTION_COMPLETED",)], {}) == trio.run(story)


@pytest.mark.parametrize("first", ["child", "stop"])
def test_a_child_may_be_one_of_several_things_a_gate_waits_on(bench, first):
    # K-CHILD-2, B49: what comes late waits for a gate of its own
    @flow
    async def races(ctx, _input):
        spec = await decide_child(ctx, "gated", gated, 1)
        won = await ctx.suspend_any([(CHILD_DONE, spec.child_id), "stop"])
        other = "stop" if won.on == CHILD_DONE else CHILD_DONE
        lost = await ctx.suspend(other, None if other == "stop" else spec.child_id)
        return [won.on, outcome_of(won.payload), lost]

    async def story():
        async with family(bench, races, gated) as (runtime, _):
            handle = await runtime.start(races, execution_id="x")
            await settle()
            ways = [("x::gated", "go"), ("x", "stop")]
            for execution_id, on in ways if first == "child" else ways[::-1]:
                await runtime.deliver(execution_id, on, "now", delivery_id="d")
                await settle()
            return await handle.result()

    wanted = {"child": [CHILD_DONE, [1, "now"], "now"], "stop": ["stop", "now", [1, "now"]]}
    assert wanted[first] == trio.run(story)
