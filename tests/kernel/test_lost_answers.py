"""Appends whose answer is lost: what decides, and how long it is asked for (K-LOG-2)."""

from __future__ import annotations

import attrs
import pytest
import trio

from kernel import SURFACES, ExecutionInterrupted, flow, step
from kernel.adapters.memory import MemoryStore
from kernel.errors import AppendUnknown
from kernel.journal import SETTLE_ATTEMPTS
from kernel.lifecycle import compact


class Losing(MemoryStore):
    """A store that loses the answer to its nth append, after `meanwhile` has happened; `landed` has all it made."""

    def __init__(self, nth, meanwhile, times=1):
        super().__init__()
        self._nth, self._meanwhile, self._times = nth, meanwhile, times
        self.landed = []
        self.asked = 0

    async def append(self, execution_id, expected, batch, **more):
        self.asked += 1
        await super().append(execution_id, expected, batch, **more)
        self.landed += [(event.type, event.payload.get("step")) for event in batch]
        if len(self.landed) == self._nth + 1 and self._times:
            self._times -= 1
            await self._meanwhile(self)
            raise AppendUnknown("the answer was lost")


async def _compacted(store):
    await compact(store.stores, "x", projections=(SURFACES,))


EVENTS = [
    ("EXECUTION_STARTED", None),
    ("STEP_STARTED", "once"),
    ("STEP_COMPLETED", "once"),
    ("note", None),
    ("EXECUTION_COMPLETED", None),
]


@pytest.mark.parametrize("nth", range(len(EVENTS)))
def test_a_compaction_between_a_lost_answer_and_the_question_hides_nothing(make_bench, nth):
    # K-LOG-2, K-FLOW-4: the snapshot says whose event it was; the run goes on, and nothing is in doubt
    runs, effects = [], []

    async def effect(_ectx, _input):
        effects.append("once")
        return 1

    @flow
    async def paying(ctx, _input):
        runs.append("run")
        await ctx.run(step("once", effect, at_most_once=True))
        await ctx.emit("note", {})
        return "paid"

    async def story():
        bench = make_bench(store=Losing(nth, _compacted))
        async with bench.process(paying) as runtime:
            await runtime.start(paying, execution_id="x")
            await bench.settle()
            return (await runtime.state("x"))["output"], bench.store.landed

    assert ("paid", EVENTS) == trio.run(story)
    assert (["run"], ["once"]) == (runs, effects)


def test_an_operators_word_is_heard_though_the_log_was_compacted_before_its_answer(make_bench):
    # K-LOG-2, K-FLOW-9: EXECUTION_UNBLOCKED is the fifth event; the execution goes on at once
    choices = iter("ab")

    @flow
    async def parted(ctx, _input):
        await ctx.suspend(next(choices, "a"))
        return "end"

    async def story():
        bench = make_bench(store=Losing(4, _compacted))
        async with bench.process(parted) as runtime:
            await runtime.start(parted, execution_id="x")
            await runtime.deliver("x", "a", delivery_id="d")
            await bench.settle()
            assert "blocked" == (await runtime.state("x"))["status"]
            await runtime.resume_blocked("x")
            await bench.settle()
            return (await runtime.state("x"))["output"], [type for type, _ in bench.store.landed]

    output, landed = trio.run(story)
    assert "end" == output
    assert ["EXECUTION_BLOCKED", "EXECUTION_UNBLOCKED", "EXECUTION_COMPLETED"] == landed[3:]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_position_that_another_took_and_a_compaction_hides_is_still_the_others(make_bench, goes_on):
    # K-LOG-2, K-RUN-1: two starts at once; the loser does not take the winner's event for its own, and runs nothing
    runs = []

    @flow
    async def waiting(ctx, _input):
        runs.append("run")
        if goes_on:
            await ctx.suspend("go")
        await trio.sleep_forever()

    async def story():
        bench = make_bench()
        async with bench.process(waiting) as winner:
            await winner.start(waiting, 1, execution_id="x")
            await bench.settle()
            await winner.compact("x")
            failing = bench.failing(append=(0, AppendUnknown))
            async with bench.process(waiting, stores=failing.stores) as loser:
                await loser.start(waiting, 1, execution_id="x")
                await bench.settle()
            return failing.fired, (await winner.state("x"))["lastSequence"], (await bench.store.entry("x")).fence

    assert (1, int(goes_on), 0) == trio.run(story)
    assert ["run"] == runs


@attrs.define
class Timed:
    """A clock that is only ever slept by, and says for how long."""

    ms: int = 0
    slept_ms: list[int] = attrs.field(factory=list)

    def now_ms(self):
        return self.ms

    async def sleep_until(self, due_ms):
        self.slept_ms.append(due_ms - self.ms)
        self.ms = max(self.ms, due_ms)
        await trio.lowlevel.checkpoint()


@flow
async def plain(ctx, _input):
    await ctx.emit("note", {})
    return "end"


def test_a_store_that_never_answers_is_asked_a_bounded_number_of_times_with_growing_pauses(make_bench):
    # K-LOG-2: the first question comes at once, the pauses are told by the clock port
    async def story():
        store = Losing(1, _silent)
        bench = make_bench(store=store, clock=Timed())
        async with bench.process(plain) as runtime:
            handle = await runtime.start(plain, execution_id="x")
            await bench.settle()
            with pytest.raises(ExecutionInterrupted, match=r"16 appends at position 1 .* may or may not") as ended:
                await handle.result()
            return bench.clock.slept_ms, ended.value.__cause__.__cause__, store.asked

    slept, cause, asked = trio.run(story)
    assert isinstance(cause, AppendUnknown)
    assert SETTLE_ATTEMPTS - 2 == len(slept), "none before the first question, none after the last"
    assert sorted(slept) == slept
    assert slept[0] < 100 < 1_000 < slept[-1]
    assert sum(slept) < 60_000
    assert 1 + SETTLE_ATTEMPTS == asked


async def _silent(store):
    async def append(*_args, **_more):
        store.asked += 1
        raise AppendUnknown("no answer")

    store.append = append


def test_a_start_that_was_not_answered_may_be_made_again_and_goes_on(make_bench):
    # K-RUN-1, K-LOG-2: the caller is told that it may have landed; the same start again settles it and drives it
    async def story():
        store = Losing(0, _silent)
        bench = make_bench(store=store, clock=Timed())
        async with bench.process(plain) as runtime:
            with pytest.raises(AppendUnknown, match="may or may not have landed"):
                await runtime.start(plain, execution_id="x")
            del store.append
            handle = await runtime.start(plain, execution_id="x")
            return await handle.result(), [type for type, _ in store.landed]

    assert ("end", ["EXECUTION_STARTED", "note", "EXECUTION_COMPLETED"]) == trio.run(story)
