"""Live query: the state now and every newer one, for one row an event (K-LIVE, ADR 0040)."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import flow, step
from kernel.adapters.memory import MemoryStore
from kernel.adapters.sqlite import open_sqlite
from kernel.conformance import NOTIFICATION_CHECKS, ConformanceFailure, check_notifications
from kernel.errors import StoreUnavailable
from kernel.events import seal
from kernel.fold import HANDLERS, FoldPass
from kernel.jsonform import encode
from kernel.lifecycle import compact, load, save_snapshot
from kernel.live_query import LiveQuery
from kernel.ports import Stores


class Counting(MemoryStore):
    """Counts what is read, and may fail."""

    def __init__(self):
        super().__init__()
        self.rows = self.reads = self.loads = 0
        self.error = None

    async def read_from(self, execution_id, sequence):
        if self.error is not None:
            raise self.error
        events = await super().read_from(execution_id, sequence)
        self.rows += len(events)
        self.reads += 1
        return events

    async def load(self, execution_id):
        self.loads += 1  # of the snapshot: once for each full load
        return await super().load(execution_id)


class Writer:
    """Appends to one execution of a store."""

    def __init__(self, store, execution_id="x"):
        self.store, self.id, self.fold = store, execution_id, FoldPass()

    async def append(self, type="NOTE", payload=None):
        state = self.fold.state
        event = seal(
            execution_id=self.id,
            sequence=state["lastSequence"] + 1,
            type=type,
            payload_text=encode(payload),
            timestamp_ms=1,
            append_id="w/1",
            previous_hash=state["lastHash"],
        )
        await self.store.append(
            self.id, event.sequence, [event], fence=0, flow_id="f", status=state["status"] or "running", due_ms=None
        )
        self.fold.apply(event)

    async def start(self):
        await self.append("EXECUTION_STARTED", {"flowId": "f", "input": None})

    async def step(self, n):
        """One event of a kind that the fold keeps something of."""
        kinds = [
            ("DECISION_RECORDED", {"decisionId": f"d{n}", "choice": n}),
            ("STEP_COMPLETED", {"step": f"s{n}", "output": [n]}),
            ("EXECUTION_SUSPENDED", {"on": "go", "correlationKey": None, "due": None}),
            ("EXECUTION_RESUMED", {"on": "go", "correlationKey": None, "payload": n, "deliveryId": f"m{n}"}),
            ("NOTE", n),
        ]
        await self.append(*kinds[n % len(kinds)])


def live(store):
    return LiveQuery(store.stores, store)


async def snapshot_now(store, execution_id="x"):
    """What a full load gives, on a store that does not count it."""
    return (await load(MemoryStore.stores.fget(store), execution_id)).fold.release()


async def follow(states, seen):
    async for state in states:
        seen.append(state)


def positions(states):
    return [state["lastSequence"] for state in states]


@contextlib.asynccontextmanager
async def following(query, execution_id="x"):
    """Follow in a task of its own, into the list that is given."""
    async with trio.open_nursery() as nursery, query.subscribe(execution_id) as states:
        seen = []
        nursery.start_soon(follow, states, seen)
        await trio.testing.wait_all_tasks_blocked()
        yield seen
        states.close()


settle = trio.testing.wait_all_tasks_blocked


# ---- snapshot and subscription ---------------------------------------------------------------------------------------


def test_a_snapshot_folds_on_demand_and_is_none_for_an_unknown_id():
    # K-LIVE-1
    async def story():
        store = MemoryStore()
        before = await live(store).snapshot("x")
        writer = Writer(store)
        await writer.start()
        return before, await live(store).snapshot("x"), await snapshot_now(store)

    before, after, wanted = trio.run(story)
    assert before is None
    assert wanted == after


def test_a_subscriber_gets_the_state_at_once_and_then_every_change_to_the_end(bench):
    # K-LIVE-1: from a real flow, with its gate
    @step("work")
    async def work(_ectx, _input):
        return 7

    @flow
    async def waits(ctx, _input):
        await ctx.execute(work)
        return await ctx.suspend("go")

    async def story():
        async with bench.process(waits) as runtime:
            await runtime.start(waits, execution_id="x")
            await settle()
            async with following(live(bench.store)) as seen:
                await runtime.deliver("x", "go", 5, delivery_id="d")
                await settle()
            return seen

    seen = trio.run(story)
    assert ("suspended", 3) == (seen[0]["status"], seen[0]["lastSequence"])
    assert ("completed", 5) == (seen[-1]["status"], seen[-1]["output"])
    assert sorted(set(positions(seen))) == positions(seen)


def test_a_burst_is_one_read_and_one_state():
    # K-LIVE-2: latest wins
    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        async with following(live(store)) as seen:
            store.reads = 0
            for n in range(20):
                await writer.append("NOTE", n)
            await settle()
            return positions(seen), store.reads

    assert ([0, 20], 1) == trio.run(story)


def test_events_during_a_read_make_one_more_and_nothing_overtakes():
    # K-LIVE-2: one refold in flight, one more if dirty
    class Slow(Counting):
        gate = None

        async def read_from(self, execution_id, sequence):
            events = await super().read_from(execution_id, sequence)
            if self.gate is not None:
                await self.gate.wait()
            return events

    async def story():
        store = Slow()
        writer = Writer(store)
        await writer.start()
        async with following(live(store)) as seen:
            store.reads, store.gate = 0, trio.Event()
            for n in range(9):
                await writer.append("NOTE", n)
                await settle()
            held = store.reads
            store.gate.set()
            await settle()
            return held, store.reads, positions(seen)

    assert (1, 2, [0, 1, 9]) == trio.run(story)


def test_an_execution_that_does_not_exist_yet_may_be_followed():
    # K-LIVE-1
    async def story():
        store = MemoryStore()
        writer = Writer(store)
        async with following(live(store)) as seen:
            nothing = [*seen]
            await writer.start()
            await settle()
            return nothing, positions(seen)

    assert ([], [0]) == trio.run(story)


def test_an_event_between_subscribing_and_loading_is_not_missed():
    # K-LIVE-1: at every point of the first read
    class Racing(MemoryStore):
        writer = None

        async def load(self, execution_id):
            snapshot = await super().load(execution_id)
            writer, self.writer = self.writer, None
            if writer is not None:
                await writer.append("NOTE", "between")
            return snapshot

    class After(MemoryStore):
        writer = None

        async def read_from(self, execution_id, sequence):
            events = await super().read_from(execution_id, sequence)
            writer, self.writer = self.writer, None
            if writer is not None:
                await writer.append("NOTE", "after")
            return events

    async def story(kind):
        store = kind()
        writer = Writer(store)
        await writer.start()
        store.writer = writer
        async with following(live(store)) as seen:
            await settle()
            return positions(seen)

    assert [1] == trio.run(story, Racing)
    assert [0, 1] == trio.run(story, After)


def test_nothing_is_delivered_after_a_close():
    # K-LIVE-1: to one who waits, to one who is reading, to one who asks later
    async def story():
        store = MemoryStore()
        writer = Writer(store)
        await writer.start()
        async with following(live(store)) as seen:
            pass
        async with live(store).subscribe("x") as states:
            first = await anext(states)
        await writer.append("NOTE")
        await settle()
        with pytest.raises(StopAsyncIteration):
            await anext(states)
        return positions(seen), first["lastSequence"], store._bells._hung

    assert ([0], 0, {}) == trio.run(story)


def test_a_close_during_a_read_delivers_nothing():
    # K-LIVE-1
    class Held(MemoryStore):
        async def read_from(self, execution_id, sequence):
            with trio.CancelScope(shield=True):
                await release.wait()
            return await super().read_from(execution_id, sequence)

    release = trio.Event()

    async def story():
        store = Held()
        await Writer(store).start()
        seen = []
        async with trio.open_nursery() as nursery, live(store).subscribe("x") as states:
            nursery.start_soon(follow, states, seen)
            await settle()
            states.close()
            release.set()
        return seen

    assert [] == trio.run(story)


def test_a_subscription_goes_on_after_the_end_and_an_ended_one_is_told_of():
    # K-LIVE-1: terminal states are states
    async def story(kind, payload):
        store = MemoryStore()
        writer = Writer(store)
        await writer.start()
        async with following(live(store)) as early:
            await writer.append(kind, payload)
            await settle()
        async with following(live(store)) as late:
            await settle()
        return [early[-1], *late], await snapshot_now(store)

    for kind, payload in (
        ("EXECUTION_COMPLETED", {"output": 1}),
        ("EXECUTION_FAILED", {"error": {"message": "no"}}),
        ("EXECUTION_CANCELLED", {"error": None}),
    ):
        seen, wanted = trio.run(story, kind, payload)
        assert [wanted] * 2 == seen


def test_two_tasks_may_not_ask_one_subscription():
    # K-LIVE-2
    async def story():
        store = MemoryStore()
        async with trio.open_nursery() as nursery, live(store).subscribe("x") as states:
            nursery.start_soon(follow, states, [])
            await settle()
            with pytest.raises(trio.BusyResourceError):
                await anext(states)
            states.close()

    trio.run(story)


def test_a_cancelled_wait_loses_no_state():
    # K-LIVE-1: wherever the cancellation comes
    async def story(checkpoints):
        class Yielding(MemoryStore):
            async def read_from(self, execution_id, sequence):
                await trio.lowlevel.checkpoint()
                events = await super().read_from(execution_id, sequence)
                await trio.lowlevel.checkpoint()
                return events

        store = Yielding()
        writer = Writer(store)
        await writer.start()
        async with live(store).subscribe("x") as states:
            await anext(states)
            await writer.append("NOTE")
            state = None
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:

                    async def cancel():
                        for _ in range(checkpoints):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel)
                    state = await anext(states)
            return (state or await anext(states))["lastSequence"]

    for checkpoints in range(8):
        assert 1 == trio.run(story, checkpoints)


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [500, 4000])
def test_a_lifetime_costs_one_row_an_event(count):
    # K-LIVE-1: a re-fold at each wake-up would read N(N+1)/2
    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        async with live(store).subscribe("x") as states:
            await anext(states)
            for n in range(count):
                await writer.append("NOTE", n)
                assert n + 1 == (await anext(states))["lastSequence"]
        return store.rows, store.loads

    rows, loads = trio.run(story)
    assert rows <= count + 2
    assert 1 == loads


def test_rows_of_two_thousand_subscribers_are_linear():
    # K-LIVE-1
    events = 3

    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        async with contextlib.AsyncExitStack() as stack:
            all_states = [await stack.enter_async_context(live(store).subscribe("x")) for _ in range(2000)]
            for states in all_states:
                await anext(states)
            for n in range(events):
                await writer.append("NOTE", n)
                for states in all_states:
                    await anext(states)
        return store.rows, store.loads

    rows, loads = trio.run(story)
    assert rows <= 2000 * (events + 2)
    assert 2000 == loads


def test_a_load_from_a_snapshot_reads_its_tail_only():
    # K-LIVE-1, K-RUN-6
    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        for n in range(50):
            await writer.step(n)
        await compact(store.stores, "x")
        store.rows = 0
        async with following(live(store)) as seen:
            for n in range(50, 60):
                await writer.step(n)
                await settle()
            return store.rows, seen[-1] == await snapshot_now(store)

    assert (10, True) == trio.run(story)


# ---- the same as a full load -----------------------------------------------------------------------------------------


class Unreliable:
    """Notifications that come twice, late, or not until a later one repeats them, by seed."""

    def __init__(self, store, draw):
        self.store, self.draw = store, draw

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id):
        async with self.store.subscribe(execution_id) as inner:
            yield SimpleNamespace(wait=functools.partial(self.wait, inner, [0]))

    async def wait(self, inner, repeats):
        if repeats[0]:
            repeats[0] -= 1  # of a change that may have been read long ago
            await trio.lowlevel.checkpoint()
            return
        await inner.wait()
        fate = self.draw.random()
        if fate < 0.3:
            repeats[0] = self.draw.randrange(1, 4)
        elif fate < 0.6:
            for _ in range(self.draw.randrange(1, 6)):
                await trio.lowlevel.checkpoint()
        elif fate < 0.8:
            with trio.move_on_after(0.001):  # dropped, until a later one comes or somebody repeats it
                await inner.wait()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_incremental_state_equals_a_full_load_after_every_event(seed, count):
    # K-LIVE: across snapshots every 7 events, some with the log cut under the subscriber
    async def story():
        draw = random.Random(seed)
        store = Counting()
        writer = Writer(store)
        await writer.start()
        wanted = {0: copy.deepcopy(await snapshot_now(store))}
        query = LiveQuery(store.stores, Unreliable(store, draw))
        async with following(query) as seen:
            for n in range(count):
                await writer.step(n)
                state = await snapshot_now(store)
                wanted[state["lastSequence"]] = copy.deepcopy(state)
                if state["lastSequence"] % 7 == 0:
                    await save_snapshot(store, "x", state, {})
                    if draw.random() < 0.5:
                        await store.truncate_prefix("x", state["lastSequence"] - draw.randrange(2))
                for _ in range(draw.randrange(12)):
                    await trio.lowlevel.checkpoint()
            while positions(seen)[-1] < count:
                await settle()
                await trio.sleep(0.01)
        return wanted, seen

    wanted, seen = trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [wanted[state["lastSequence"]] for state in seen] == seen, "also those handed out long ago, unchanged"
    assert sorted(set(positions(seen))) == positions(seen), "never older after newer"
    assert count == positions(seen)[-1]


def test_a_log_cut_under_a_subscriber_costs_one_full_reload():
    # K-LIVE-2
    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        async with live(store).subscribe("x") as states:
            first = await anext(states)
            for n in range(10):
                await writer.step(n)
            await compact(Stores(events=store, snapshots=store, mailbox=store), "x")
            store.loads = 0
            await writer.step(10)
            state = await anext(states)
            wanted = await snapshot_now(store)
            loads = store.loads - 1  # the line above makes one
            await writer.step(11)
            last = await anext(states)
            return first["lastSequence"], state == wanted, loads, last["lastSequence"], store.loads

    assert (0, True, 1, 12, 2) == trio.run(story)


def test_a_first_row_that_does_not_join_costs_one_full_reload():
    # K-LIVE-2: a store that skips rows instead of saying that they are gone
    class Skipping(Counting):
        skip = False

        async def read_from(self, execution_id, sequence):
            rows = await super().read_from(execution_id, sequence)
            skip, self.skip = self.skip, False
            return rows[1:] if skip else rows

    async def story():
        store = Skipping()
        writer = Writer(store)
        await writer.start()
        async with live(store).subscribe("x") as states:
            await anext(states)
            for n in range(3):
                await writer.step(n)
            store.skip, store.loads = True, 0
            state = await anext(states)
            return store.loads, state == await snapshot_now(store)

    assert (1, True) == trio.run(story)


def test_a_reload_that_shows_less_than_was_handed_out_emits_nothing():
    # K-LIVE-2: never an older state after a newer, not from a store whose reads lag either
    class Lagging(MemoryStore):
        shown = 99
        skip = False

        async def read_from(self, execution_id, sequence):
            rows = [row for row in await super().read_from(execution_id, sequence) if row.sequence <= self.shown]
            if self.skip and sequence:
                self.shown = 0
                return rows[1:]
            return rows

    async def story():
        store = Lagging()
        writer = Writer(store)
        await writer.start()
        await writer.append("NOTE")
        async with following(live(store)) as seen:
            store.skip = True
            await writer.append("NOTE")
            await writer.append("NOTE")
            await settle()
            store.skip, store.shown = False, 1
            store._bells.ring("x")
            await settle()
            lagging = positions(seen)
            store.shown = 99
            await writer.append("NOTE")
            await settle()
            return lagging, positions(seen)

    assert ([1], [1, 4]) == trio.run(story)


def test_a_wake_up_without_news_emits_nothing():
    # K-LIVE-3
    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        async with following(live(store)) as seen:
            for _ in range(5):
                store._bells.ring("x")
                await settle()
            return positions(seen), store.rows, store.reads

    assert ([0], 1, 6) == trio.run(story)


def test_a_deleted_execution_is_silent():
    # K-LIVE-3: before the first load as after it, with its snapshot and without
    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        await writer.append("NOTE")
        async with following(live(store)) as seen:
            del store._executions["x"]
            store._bells.ring("x")
            await settle()
            async with following(live(store)) as nothing:
                store._bells.ring("x")
                await settle()
            return positions(seen), nothing

    assert ([1], []) == trio.run(story)


# ---- failures --------------------------------------------------------------------------------------------------------


class ContentMissing(Exception):
    """What a read path raises for a payload whose content is gone (K-LOG-6)."""


@pytest.mark.parametrize("error", [ContentMissing("no content abc"), StoreUnavailable("away")])
def test_a_failure_of_the_read_path_surfaces_and_the_subscription_can_go_on(error):
    # K-LIVE-3: in the first load and in a later delta
    async def story():
        store = Counting()
        writer = Writer(store)
        await writer.start()
        async with live(store).subscribe("x") as states:
            seen = []
            for n in range(2):
                store.error = error
                with pytest.raises(type(error)):
                    await anext(states)
                with pytest.raises(type(error)):
                    await anext(states)
                store.error = None
                seen.append(await anext(states))
                await writer.append("NOTE", n)
            return positions(seen), "__loomContent" in encode(seen)

    assert ([0, 1], False) == trio.run(story)


def test_an_event_that_does_not_fold_is_an_error_every_time():
    # K-LIVE-3: the fold has taken its position before it failed; nothing goes on from there
    async def story():
        store = MemoryStore()
        writer = Writer(store)
        await writer.start()
        async with live(store).subscribe("x") as states:
            await anext(states)
            with contextlib.suppress(KeyError):
                await writer.append("STEP_COMPLETED", {})
            for _ in range(3):
                with pytest.raises(KeyError):
                    await anext(states)

    assert "STEP_COMPLETED" in HANDLERS
    trio.run(story)


# ---- notifications ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def memory(_path):
    store = MemoryStore()
    yield store.stores, store


@contextlib.asynccontextmanager
async def sqlite(path, *, inline=False):
    async with open_sqlite(path, inline=inline, poll_seconds=60) as store:
        yield store.stores, store


@contextlib.asynccontextmanager
async def sqlite_of_another_process(path):
    async with open_sqlite(path, inline=True, poll_seconds=0.002) as one, open_sqlite(path, inline=True) as other:
        yield other.stores, one


NOTIFYING = {
    "memory": memory,
    "sqlite": sqlite,
    "sqlite-inline": functools.partial(sqlite, inline=True),
    "sqlite-polled": sqlite_of_another_process,
}


@pytest.mark.parametrize("check", NOTIFICATION_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("make", NOTIFYING)
def test_notifications_conform(make, check, tmp_path):
    # K-LOG-5
    trio.run(check.run, functools.partial(NOTIFYING[make], tmp_path / "store.db"))


class BrokenBell:
    """What comes while nobody waits is lost."""

    def __init__(self, inner):
        self.inner = inner

    async def wait(self):
        self.inner._rung = trio.Event()
        await self.inner.wait()


class ForgetfulBell(BrokenBell):
    """What comes to a wait that is cancelled is lost, and all that comes after it."""

    dead = False

    async def wait(self):
        if self.dead:
            await trio.sleep_forever()
        try:
            await self.inner.wait()
        except trio.Cancelled:
            self.dead = True
            raise


class FirstOnly(MemoryStore):
    """One subscriber an execution."""

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id):
        if execution_id in self._bells._hung:
            yield SimpleNamespace(wait=trio.sleep_forever)
        else:
            async with super().subscribe(execution_id) as bell:
                yield bell


class KnownOnly(MemoryStore):
    """Hangs up nothing for an execution that is not there."""

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id):
        if await self.entry(execution_id) is None:
            yield SimpleNamespace(wait=trio.sleep_forever)
        else:
            async with super().subscribe(execution_id) as bell:
                yield bell


class LeavesAltogether(MemoryStore):
    """One who leaves takes the bells of all away."""

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id):
        async with super().subscribe(execution_id) as bell:
            yield bell
            for other in self._bells._hung[execution_id]:
                other.ring = lambda: None


def with_bell(kind):
    class Store(MemoryStore):
        @contextlib.asynccontextmanager
        async def subscribe(self, execution_id):
            async with super().subscribe(execution_id) as bell:
                yield kind(bell)

    return Store


class FirstOfABurst(BrokenBell):
    """Is deaf for a while after each ring."""

    deaf = False

    async def wait(self):
        if self.deaf:
            await settle()
            self.inner._rung = trio.Event()
        await self.inner.wait()
        self.deaf = True


BROKEN = {
    "append_wakes_every_subscriber": FirstOnly,
    "wake_up_waits_for_its_subscriber": with_bell(BrokenBell),
    "newest_of_a_burst_wakes": with_bell(FirstOfABurst),
    "execution_to_come_may_be_followed": KnownOnly,
    "subscriber_who_leaves_disturbs_nobody": LeavesAltogether,
    "cancelled_wait_loses_nothing": with_bell(ForgetfulBell),
}


@pytest.mark.parametrize("check", NOTIFICATION_CHECKS, ids=lambda check: check.name)
def test_check_sees_broken_notifications(check):
    # K-LOG-5
    @contextlib.asynccontextmanager
    async def make():
        store = BROKEN[check.name]()
        yield store.stores, store

    with pytest.raises(ConformanceFailure, match=rf"^{check.name} \({check.rule}\): saw no answer within"):
        trio.run(check.run, make, clock=trio.testing.MockClock(autojump_threshold=0))


def test_all_notification_failures_are_in_one_message():
    # K-LOG-5
    @contextlib.asynccontextmanager
    async def make():
        store = with_bell(BrokenBell)()
        yield store.stores, store

    names = trio.run(check_notifications, functools.partial(memory, None))
    assert tuple(check.name for check in NOTIFICATION_CHECKS) == names
    with pytest.raises(ConformanceFailure, match=r"(?s)append_wakes_every_subscriber.*wake_up_waits"):
        trio.run(check_notifications, make, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_subscriber_follows_what_another_process_writes(tmp_path):
    # K-LOG-5, K-LIVE-1: through one SQLite file
    async def story():
        async with sqlite_of_another_process(tmp_path / "store.db") as (stores, notifications):
            writer = Writer(stores.events)
            await writer.start()
            query = LiveQuery(attrs.evolve(stores, events=notifications, snapshots=notifications), notifications)
            async with query.subscribe("x") as states:
                seen = [(await anext(states))["lastSequence"]]
                for n in range(5):
                    await writer.append("NOTE", n)
                    seen.append((await anext(states))["lastSequence"])
            return seen

    assert [0, 1, 2, 3, 4, 5] == trio.run(story)


def test_a_store_that_cannot_be_asked_surfaces_on_the_subscription(tmp_path):
    # K-LIVE-3
    async def story():
        async with open_sqlite(tmp_path / "store.db", inline=True, poll_seconds=0.001) as store:
            await Writer(store).start()
            async with live(store).subscribe("x") as states:
                await anext(states)
                await store.aclose()
                with pytest.raises(StoreUnavailable, match="closed"):
                    await anext(states)

    trio.run(story)
