"""ADR 0102: a flow's emits are appended once per execution.  The record's own examples, with exact logs.

The tests of a guard run one story twice: under the rule, and under the rule without that guard.  A story is a list of
processes, one after the other, over one store.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel import Parts, StepTimeout, TypedFailure, flow, step
from kernel.emit_rule import EmitRule, Ruling

Story = Callable[..., Awaitable[list[str]]]


class NoLiveGuard(EmitRule):
    def went_live(self) -> None:
        pass


class NoUnsettledFlag(EmitRule):
    def ended_unsettled(self) -> None:
        pass


class NoSegment(EmitRule):
    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        segment, self.segment = self.segment, 0
        try:
            return super().identity(event_type_json, payload_json)
        finally:
            self.segment = segment


class NoInFlightWindow(EmitRule):
    def effect_began(self) -> None:
        pass

    def effect_settled(self) -> None:
        pass


class WindowUntilDeadline(NoUnsettledFlag, NoInFlightWindow):
    """Without both guards that a timed-out effect's zombie needs."""


class Ordinal(EmitRule):
    """Round 0, withdrawn: emit i is served while i is under the number counted; in-flight ones do not count."""

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        return "0" * 16

    def rule(self, digest: str | None) -> Ruling:
        assert digest is not None
        if self.executing:
            return Ruling.UNSTAMPED
        nth = self._taken.get(digest, 0)
        self._taken[digest] = nth + 1
        return Ruling.SERVED if self._logged(digest) > nth else Ruling.STAMPED


class TruncatedDigest(EmitRule):
    """A digest of no bits: any two emits collide."""

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        return "f" * 16


def compare(make_bench, story: Story, mutant: type[EmitRule]) -> tuple[list[str], list[str]]:
    """The emits in the log after a story, under the rule and under a rule that lacks something."""
    bodies = [(story, make_bench(), Parts(emit_rule=rule)) for rule in (EmitRule, mutant)]
    right, wrong = [trio.run(body, bench, parts, clock=trio.testing.MockClock()) for body, bench, parts in bodies]
    return right, wrong


# ---- the defect ------------------------------------------------------------------------------------------------------


@flow
async def runner(ctx, _input):
    await ctx.emit("response.committed")
    await ctx.suspend("go")


def test_a_runner_that_emits_suspends_and_is_resumed_appends_the_emit_once(bench):
    # K-EMIT-2, ADR 0102 context
    async def story():
        await bench.run(runner)
        await bench.deliver(runner, on="go", id="d1")
        return await bench.log()

    assert [
        ("EXECUTION_STARTED",),
        ("emit", "response.committed", "stamped"),
        ("EXECUTION_SUSPENDED", "go"),
        ("EXECUTION_RESUMED", "go"),
        ("EXECUTION_COMPLETED",),
    ] == trio.run(story)


def test_a_surface_built_before_a_gate_holds_one_item_after_a_resume(bench):
    # K-EMIT-2, ADR 0102 context
    @flow
    async def timeline(ctx, _input):
        await ctx.ui.append("timeline", "x")
        await ctx.suspend("go")

    async def story():
        await bench.run(timeline)
        await bench.deliver(timeline, on="go", id="d1")
        return await bench.surfaces()

    assert {"timeline": ["x"]} == trio.run(story)


@flow
async def chat(ctx, turns):
    for _ in range(turns):
        message = await ctx.suspend("message")
        await ctx.emit("turn.committed", message)
        await ctx.ui.increment("turns")


def test_every_turn_of_a_long_session_is_committed_once(bench):
    # K-EMIT-2, ADR 0081
    async def story():
        await bench.run(chat, 3)
        for n in (1, 2, 3):
            await bench.deliver(chat, on="message", payload="hi", id=f"d{n}")
        return await bench.emits(), await bench.surfaces()

    turn = ["turn.committed hi*", "increment turns 1*"]
    assert (turn * 3, {"turns": 3}) == trio.run(story)


def test_emits_are_served_after_compaction_in_mid_session(bench):
    # K-EMIT-2, K-FOLD-4, ADR 0102 D5
    async def story():
        async with bench.process(chat) as runtime:
            await runtime.start(chat, 2, execution_id="x")
            await bench.settle()
            await runtime.deliver("x", "message", "hi", delivery_id="d1")
            await bench.settle()
            cut = await runtime.compact("x")
            await runtime.deliver("x", "message", "hi", delivery_id="d2")
            await bench.settle()
        return len(await bench.store.read_from("x", cut + 1)), await bench.surfaces()

    resumed_two_emits_completed = 4
    assert (resumed_two_emits_completed, {"turns": 2}) == trio.run(story)


# ---- the four guards -------------------------------------------------------------------------------------------------


@step("price")
async def price(_ectx, _input):
    return 7


async def live_guard_story(bench, parts):
    @flow(id="f")
    async def before(ctx, _input):
        await ctx.emit("quoted")
        await ctx.suspend("go")

    @flow(id="f")
    async def after(ctx, _input):
        await ctx.execute(price)
        await ctx.emit("quoted")
        await ctx.suspend("go")

    await bench.run(before, parts=parts)
    await bench.deliver(after, on="go", id="d1", parts=parts)
    return await bench.emits()


def test_live_guard_a_deploy_inserts_a_live_step_before_identical_content(make_bench):
    # K-EMIT-2, K-EMIT-5, ADR 0102 D4
    assert (["quoted*", "quoted"], ["quoted*"]) == compare(make_bench, live_guard_story, NoLiveGuard)


def failing_once(error=OSError):
    """A step whose first attempt fails untyped, by a fault that passes."""
    calls = []

    @step("flaky")
    async def flaky(_ectx, _input):
        calls.append(1)
        if len(calls) == 1:
            raise error("transient")

    return flaky


async def live_decider_story(bench, parts):
    @flow(id="f")
    async def before(ctx, _input):
        await ctx.emit("quoted")
        await ctx.suspend("go")

    @flow(id="f")
    async def after(ctx, _input):
        await ctx.decide("route", lambda: "north")
        await ctx.emit("quoted")
        await ctx.suspend("go")

    await bench.run(before, parts=parts)
    await bench.deliver(after, on="go", id="d1", parts=parts)
    return await bench.emits()


def test_live_guard_a_deploy_inserts_a_decision_before_identical_content(make_bench):
    # K-EMIT-5, ADR 0102 D4: a decider that is invoked counts like a step that is not served
    assert (["quoted*", "quoted"], ["quoted*"]) == compare(make_bench, live_decider_story, NoLiveGuard)


async def reviewers_p2(bench, parts):
    """Run 1 increments for a transient failure.  Run 2 completes that step and a later one.  Run 3 makes the new
    increment with nothing live before it: a stamp of run 1 would absorb it."""
    flaky = failing_once()

    @flow
    async def counting(ctx, _input):
        try:
            await ctx.execute(flaky)
        except OSError:
            await ctx.ui.increment("n")
            await ctx.suspend("go")
            return
        await ctx.execute(price)
        await ctx.ui.increment("n")

    # Appends: start, flaky started, flaky failed, increment; it dies before the gate is durable.
    assert await bench.crash(start(counting), counting, at=4, parts=parts)
    # Flaky started and completed, price started and completed; it dies before the new increment is durable.
    assert await bench.crash(recover, counting, at=4, parts=parts)
    await bench.recover(counting, parts=parts)
    return await bench.emits()


def start(a_flow):
    async def drive(runtime):
        await runtime.start(a_flow, execution_id="x")

    return drive


async def recover(runtime):
    await runtime.recover_all()


def test_unsettled_flag_a_transient_failures_increment_does_not_absorb_a_later_steps(make_bench):
    # K-EMIT-3, K-EMIT-5, ADR 0102 D4: the reviewer's P2, round 2
    twice, once = ["increment n 1", "increment n 1*"], ["increment n 1*"]
    assert (twice, once) == compare(make_bench, reviewers_p2, NoUnsettledFlag)


async def timeout_story(bench, parts, *, zombie):
    """Run 1: the step times out, and content is emitted by its zombie, or by the flow when the zombie has settled.
    Run 2: its retry completes, then the process dies.  Run 3 emits equal content after the step, all of it served."""
    attempts, contexts = [], []

    @step("slow", deadline=1)
    async def slow(_ectx, _input):
        attempts.append(1)
        if len(attempts) == 1:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
                if zombie:
                    await contexts[0].emit("progress")

    @flow
    async def impatient(ctx, _input):
        contexts.append(ctx)
        try:
            await ctx.execute(slow)
        except StepTimeout:
            await trio.sleep(5)  # the zombie settles meanwhile
            if not zombie:
                await ctx.emit("progress")
            await ctx.suspend("never")
        await ctx.emit("progress")

    async with trio.open_nursery() as nursery:
        # Start, started, timed out, progress; it dies before the gate is durable.
        nursery.start_soon(jump, bench, 8)
        assert await bench.crash(start(impatient), impatient, at=4, parts=parts, wait=jumped)
    assert await bench.crash(recover, impatient, at=2, parts=parts)
    await bench.recover(impatient, parts=parts)
    return await bench.emits()


async def jump(bench, seconds):
    for _ in range(seconds):
        await bench.settle()
        trio.lowlevel.current_clock().jump(1)


async def jumped():
    await trio.sleep(8)


def test_unsettled_flag_what_a_handler_emits_after_a_timeout_is_not_stamped(make_bench):
    # K-FLOW-2, K-EMIT-5, ADR 0102 D4
    story = functools.partial(timeout_story, zombie=False)
    assert (["progress", "progress*"], ["progress*"]) == compare(make_bench, story, NoUnsettledFlag)


def test_a_timed_out_steps_zombie_is_covered_twice_and_its_emit_absorbs_nothing(make_bench):
    # K-FLOW-3, K-EMIT-5, ADR 0102 D4: either guard suffices, without both the emit is lost
    story = functools.partial(timeout_story, zombie=True)
    right = ["progress", "progress*"]
    assert (right, ["progress*"]) == compare(make_bench, story, WindowUntilDeadline)
    assert (right, right) == compare(make_bench, story, NoUnsettledFlag)
    assert (right, right) == compare(make_bench, story, NoInFlightWindow)


async def segment_story(bench, parts):
    @flow(id="f")
    async def before(ctx, _input):
        await ctx.emit("note")
        await ctx.suspend("go")

    @flow(id="f")
    async def after(ctx, _input):
        await ctx.suspend("go")
        await ctx.emit("note")

    await bench.run(before, parts=parts)
    await bench.deliver(after, on="go", id="d1", parts=parts)
    return await bench.emits()


def test_segment_scope_a_deploy_removes_an_emit_and_makes_equal_content_in_a_later_segment(make_bench):
    # K-EMIT-4, ADR 0102 D3
    assert (["note*", "note*"], ["note*"]) == compare(make_bench, segment_story, NoSegment)


async def emit_inside_an_effect(bench, parts):
    @flow
    async def generating(ctx, _input):
        @step("generate")
        async def generate(_ectx, _input):
            await ctx.stream("token")

        await ctx.execute(generate)
        await ctx.stream("token")

    # Start, started, the effect's chunk, completed; it dies before the flow's own chunk is durable.
    assert await bench.crash(start(generating), generating, at=4, parts=parts)
    await bench.recover(generating, parts=parts)
    return await bench.emits()


async def emit_inside_a_decider(bench, parts):
    @flow
    async def choosing(ctx, _input):
        async def decider():
            await ctx.stream("token")
            return 1

        await ctx.decide("choice", decider)
        await ctx.stream("token")

    assert await bench.crash(start(choosing), choosing, at=3, parts=parts)
    await bench.recover(choosing, parts=parts)
    return await bench.emits()


@pytest.mark.parametrize("story", [emit_inside_an_effect, emit_inside_a_decider])
def test_in_flight_window_identical_content_emitted_inside_an_effect_or_a_decider(make_bench, story):
    # K-EMIT-3, ADR 0102 D4
    right, wrong = ["STREAM_CHUNK token", "STREAM_CHUNK token*"], ["STREAM_CHUNK token*"]
    assert (right, wrong) == compare(make_bench, story, NoInFlightWindow)


async def overlapping_step(bench, parts):
    """A step re-executes on the re-run, and overlaps an emit that it did not overlap before."""
    runs = []

    @flow
    async def overlapping(ctx, _input):
        runs.append(1)
        failed, polled, emitted = trio.Event(), trio.Event(), trio.Event()

        @step("poll")
        async def poll(_ectx, _input):
            polled.set()
            if len(runs) > 1:
                await emitted.wait()
            raise OSError("down")

        async def polling():
            try:
                await ctx.execute(poll)
            except OSError:
                failed.set()

        async def emitting():
            await (failed if len(runs) == 1 else polled).wait()
            await ctx.emit("early")
            emitted.set()

        async with ctx.branches() as branches:
            branches.start(polling)
            branches.start(emitting)
        await ctx.suspend("go")
        await ctx.emit("late")

    await bench.run(overlapping, parts=parts)
    await bench.deliver(overlapping, on="go", id="d1", parts=parts)
    return await bench.emits()


def test_ordinal_matching_loses_an_emit_when_an_overlapping_step_re_executes(make_bench):
    # K-EMIT-2, ADR 0102 D7: the reviewer's counterexample to round 0
    assert (["early", "early", "late"], ["early*", "early"]) == compare(make_bench, overlapping_step, Ordinal)


# ---- legacy logs -----------------------------------------------------------------------------------------------------


class BeforeStamps(EmitRule):
    """As kernels did before 1.19.0: no emit is stamped, none is served."""

    def rule(self, digest: str | None) -> Ruling:
        return Ruling.UNSTAMPED


@flow
async def two_gates(ctx, _input):
    await ctx.emit("a")
    await ctx.suspend("go")
    await ctx.emit("b")
    await ctx.suspend("go")


def test_a_legacy_logs_prefix_is_emitted_once_more_stamped_and_is_then_stable(bench):
    # K-EMIT-7, ADR 0102 D8
    async def story():
        await bench.run(two_gates, parts=Parts(emit_rule=BeforeStamps))
        seen = [await bench.emits()]
        for n in (1, 2):
            await bench.deliver(two_gates, on="go", id=f"d{n}")
            seen.append(await bench.emits())
        return seen

    assert [["a"], ["a", "a*", "b*"], ["a", "a*", "b*"]] == trio.run(story)


# ---- what may still be lost, exactly ---------------------------------------------------------------------------------


def deployed(bench, before, after, rule=EmitRule):
    """The emits after a run of one version to its gate `go` and, resumed, of another."""

    async def story():
        first, second = flow(id="f")(before), flow(id="f")(after)
        await bench.run(first, parts=Parts(emit_rule=rule))
        await bench.deliver(second, on="go", id="d1", parts=Parts(emit_rule=rule))
        return await bench.emits()

    return trio.run(story)


def test_residual_a_an_emit_moved_within_one_served_segment_is_taken_for_the_old_one(bench):
    # K-EMIT-8, ADR 0102 D2 (a)
    async def before(ctx, _input):
        await ctx.emit("note")
        await ctx.execute(price)
        await ctx.suspend("go")

    async def after(ctx, _input):
        await ctx.execute(price)
        await ctx.emit("note")
        await ctx.suspend("go")

    assert ["note*"] == deployed(bench, before, after)


def test_residual_b_a_flow_that_branches_on_what_is_not_logged_may_lose_an_emit(bench):
    # K-EMIT-8, ADR 0102 D2 (b)
    coin = iter([True, False])

    async def tossing(ctx, _input):
        if next(coin):
            await ctx.emit("note")  # one logical emit
        else:
            await ctx.emit("note")  # and another, of equal content
        await ctx.suspend("go")

    assert ["note*"] == deployed(bench, tossing, tossing)


@pytest.mark.parametrize(("rule", "emits"), [(EmitRule, ["old*", "new*"]), (TruncatedDigest, ["old*"])])
def test_residual_c_a_colliding_digest_loses_the_emit_that_replaces_another(bench, rule, emits):
    # K-EMIT-8, ADR 0102 D2 (c); with the real digest it is the bounded duplicate of a deploy that edits an emit
    async def before(ctx, _input):
        await ctx.emit("old")
        await ctx.suspend("go")

    async def after(ctx, _input):
        await ctx.emit("new")
        await ctx.suspend("go")

    assert emits == deployed(bench, before, after, rule)


def test_colliding_digests_lose_nothing_while_the_code_stays_as_it_is(bench):
    # K-EMIT-8: counts are what a collision shares
    async def pair(ctx, _input):
        await ctx.emit("one")
        await ctx.emit("two")
        await ctx.suspend("go")
        await ctx.emit("three")

    assert ["one*", "two*", "three*"] == deployed(bench, pair, pair, TruncatedDigest)


# ---- the duplicates that remain, exactly -----------------------------------------------------------------------------


class Declined(TypedFailure):
    wire_name = "declined"


def caught_failure(failures):
    @step("charge", failures=failures)
    async def charge(_ectx, _input):
        raise Declined()

    async def session(ctx, _input):
        with contextlib.suppress(Declined):
            await ctx.execute(charge)
        for turn in range(3):
            await ctx.emit(f"turn {turn}")
            await ctx.suspend("go")

    return flow(id="f")(session)


def resumed(bench, a_flow, times):
    async def story():
        await bench.run(a_flow)
        for n in range(times):
            await bench.deliver(a_flow, on="go", id=f"d{n}")
        return await bench.emits()

    return trio.run(story)


def test_after_an_undeclared_failure_every_later_emit_is_appended_again_on_each_resume(bench):
    # K-EMIT-8, ADR 0102 D2
    runs = [["turn 0"], ["turn 0", "turn 1"], ["turn 0", "turn 1", "turn 2"]]
    assert [*runs[0], *runs[1], *runs[2]] == resumed(bench, caught_failure(()), 2)


def test_with_the_failure_declared_the_emits_converge(bench):
    # K-EMIT-8, ADR 0102 D2
    assert ["turn 0*", "turn 1*", "turn 2*"] == resumed(bench, caught_failure((Declined,)), 2)


def test_an_emit_that_overlapped_an_effect_is_appended_once_more_and_is_then_stable(bench):
    # K-EMIT-8, ADR 0102 D2
    runs = []

    @flow
    async def overlapping(ctx, _input):
        begun, emitted, served = trio.Event(), trio.Event(), bool(runs)
        runs.append(1)

        @step("wait")
        async def wait(_ectx, _input):
            begun.set()
            await emitted.wait()

        async def emitting():
            if not served:
                await begun.wait()
            await ctx.emit("progress")
            emitted.set()

        async with ctx.branches() as branches:
            branches.start(ctx.execute, wait)
            branches.start(emitting)
        for _ in range(3):
            await ctx.suspend("go")

    assert ["progress", "progress*"] == resumed(bench, overlapping, 3)


def test_a_payload_with_no_json_form_is_refused_before_anything_is_appended(bench):
    # K-JSON-3 (deviation from ADR 0102 D3), K-EMIT-8
    @flow
    async def wrong(ctx, _input):
        await ctx.emit("note", {"items": [1, {2, 3}]})

    async def story():
        async with bench.process(wrong) as runtime:
            error = await bench.outcome(await runtime.start(wrong, execution_id="x"))
        return error["type"], error["message"].partition(";")[0], await bench.emits()

    assert ("NoJsonForm", "payload.items[1]: set has no JSON form", []) == trio.run(story)


def test_kernel_facts_and_effects_own_emits_are_never_stamped(bench):
    # K-EMIT-1, ADR 0102 D1
    @step("work")
    async def work(ectx, _input):
        await ectx.emit("progress")

    @flow
    async def working(ctx, _input):
        await ctx.execute(work)
        await ctx.decide("choice", lambda: 1)
        await ctx.emit("progress")

    async def story():
        await bench.run(working)
        return [e.type for e in await bench.envelopes() if "flowEmit" in e.metadata], await bench.emits()

    assert (["progress"], ["progress", "progress*"]) == trio.run(story)


# ---- any flow, any crashes -------------------------------------------------------------------------------------------

KINDS = ["emit", "emit", "inside", "step", "flaky", "decide", "gate", "branches"]
programs = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("xy")), max_size=7)
crashes = st.lists(st.tuples(st.integers(1, 14), st.booleans(), st.frozensets(st.integers(0, 6))), max_size=4)


class Truth:
    """The emits that were acknowledged, by content and segment: distinct logical ones, which the kernel does not know.

    A logical emit is the place it is made at with the path that led there.  Mutable: it outlives the processes.
    """

    def __init__(self, program):
        self.program = program
        self.fails = frozenset()  # places at which a flaky step fails in this process
        self.made = collections.defaultdict(set)

    def flow(self):
        @flow(id="f")
        async def interpreted(ctx, _input):
            path, segment = [], 0

            async def emit(content, identity):
                made_in = segment
                await ctx.emit(content, made_in)
                self.made[made_in, content].add(identity)

            async def work(place, content):
                async def effect(ectx, _input):
                    if content is not None:
                        await emit(content, ("inside", place, ectx.idempotency_key, ectx.attempt))

                await ctx.execute(step(f"s{place}", effect))

            async def flaky(place, content):
                async def effect(_ectx, _input):
                    if place in self.fails:
                        raise OSError("down")

                try:
                    await ctx.execute(step(f"s{place}", effect))
                    path.append((place, "done"))
                except OSError:
                    path.append((place, "failed"))
                    await emit(content, (place, "handler", *path))

            for place, (kind, content) in enumerate(self.program):
                if kind == "emit":
                    await emit(content, (place, *path))
                elif kind == "gate":
                    await ctx.suspend("go")
                    segment += 1
                elif kind == "flaky":
                    await flaky(place, content)
                elif kind == "decide":
                    await ctx.decide(f"d{place}", lambda: 1)
                elif kind == "branches":
                    async with ctx.branches() as branches:
                        branches.start(work, place, content)
                        branches.start(emit, content, (place, "beside", *path))
                else:
                    await work(place, content if kind == "inside" else None)

        return interpreted

    async def drive(self, runtime):
        await runtime.start("f", execution_id="x")
        await runtime.recover_all()
        for n in range(sum(kind == "gate" for kind, _content in self.program)):
            await runtime.deliver("x", "go", delivery_id=f"d{n}")

    def lost(self, envelopes):
        """Contents of which more logical emits were acknowledged than events are in the log.

        The payload says of which segment an event is: one that a re-run appends lies behind later gates in the log.
        """
        events = collections.Counter((e.payload, e.type) for e in envelopes if e.type in ("x", "y"))
        return sorted(key for key, identities in self.made.items() if len(identities) > events[key])


async def interpret(bench, program, schedule, rule=EmitRule):
    truth, parts = Truth(program), Parts(emit_rule=rule)
    for at, landed, truth.fails in schedule:
        await bench.crash(truth.drive, truth.flow(), at=at, landed=landed, parts=parts)
    truth.fails = frozenset()
    async with bench.process(truth.flow(), parts=parts) as runtime:
        await truth.drive(runtime)
        await bench.settle()
    assert (await bench.log())[-1] == ("EXECUTION_COMPLETED",)
    return truth.lost(await bench.envelopes())


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs, crashes)
def test_no_flow_loses_an_emit_under_any_schedule_of_crashes(make_bench, program, schedule):
    # K-EMIT-2: "a duplicate is acceptable, a lost emit is not"
    assert [] == trio.run(interpret, make_bench(), program, schedule)


def test_the_same_search_finds_what_the_missing_guards_lose(make_bench):
    # K-EMIT-8: the oracle sees a loss where there is one
    def lost(program, schedule, rule):
        return trio.run(interpret, make_bench(), program, schedule, rule)

    flaky = [("flaky", "x"), ("emit", "x")], [(4, False, frozenset({0})), (3, False, frozenset())]
    inside = [("inside", "x"), ("emit", "x")], [(4, False, frozenset())]
    assert [(0, "x")] == lost(*flaky, NoUnsettledFlag)
    assert [(0, "x")] == lost(*inside, NoInFlightWindow)
    assert [[], []] == [lost(*flaky, EmitRule), lost(*inside, EmitRule)]
