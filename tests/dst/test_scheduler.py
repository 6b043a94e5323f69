"""The scheduler and the virtual clock, through their public names; trio's internals only to break them on purpose."""

from __future__ import annotations

import gc
import hashlib
import itertools
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import outcome
import pytest
import trio
import trio.testing

from dst.clock import LAST_NS, due_ns
from dst.scheduler import (
    NODE,
    UNLIMITED,
    Deadlock,
    Idle,
    RealIO,
    RealThread,
    Reaped,
    RefusesToEnd,
    Scheduler,
    StepLimit,
    TimeLimit,
    UnknownTrio,
    core,
    known_trio,
    run,
)

S = 1_000_000_000
ROOT = Path(__file__).parents[2]


def simulate(body: Callable[[Scheduler, trio.Nursery], Awaitable[object]], pick=None):
    """Return what `body` returns as the main of one simulation in a run of its own."""

    async def main(scheduler: Scheduler):
        scheduler.pick = pick
        async with scheduler.simulation() as nursery:
            return await body(scheduler, nursery)

    return run(main)


def seeded(seed: int) -> Callable[[list[trio.lowlevel.Task]], int]:
    rng = random.Random(seed)
    return lambda options: rng.randrange(len(options))


async def dead_node(scheduler: Scheduler, log: list[str]) -> None:
    """A node that crashes at 1 s, with a shielded zombie and `finally` blocks that all want to go on."""
    NODE.set("node-1")

    async def zombie() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        log.append("zombie")

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(zombie)
            await trio.sleep(1)
            scheduler.freeze("node-1")
            await scheduler.hold_forever()
    finally:
        log.append("finally")


# --- who runs


async def orders_of_five(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[int, ...]:
    seen: list[int] = []

    async def worker(number: int) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(number)

    for number in range(5):
        nursery.start_soon(worker, number)
    await scheduler.wait_idle()
    return tuple(seen)


def test_a_seeded_pick_reaches_all_orders_of_five_tasks():
    async def main(scheduler: Scheduler) -> int:
        orders = set()
        for seed in range(3000):
            scheduler.pick = seeded(seed)
            async with scheduler.simulation() as nursery:
                orders.add(await orders_of_five(scheduler, nursery))
        return len(orders)

    assert 120 == run(main)


def test_the_calm_order_is_the_order_of_arrival():
    assert (0, 1, 2, 3, 4) == simulate(orders_of_five)


@pytest.mark.parametrize("turns", [0, 1, 7, 500])
def test_a_task_can_be_starved_for_any_number_of_steps(turns):
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> int:
        async def busy() -> None:
            nonlocal done
            while not found:
                await trio.lowlevel.checkpoint()
                done += 1

        async def starved() -> None:
            found.append(done)

        done, found = 0, []
        scheduler.pick = lambda options: [t.name for t in options].index("starved" if done >= turns else "busy")
        nursery.start_soon(busy, name="busy")
        nursery.start_soon(starved, name="starved")
        await scheduler.wait_idle()
        return found[0]

    assert turns == simulate(body)


def test_options_are_ordered_by_arrival_then_creation():
    seen = []

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def wait(event: trio.Event) -> None:
            await event.wait()

        first, second = trio.Event(), trio.Event()
        for name, event in [("a", second), ("b", first), ("c", first), ("d", second)]:
            nursery.start_soon(wait, event, name=name)
        await scheduler.wait_idle()
        scheduler.pick = lambda options: seen.append([task.name[-4:] for task in options]) or len(options) - 1
        first.set()
        await scheduler.yield_now()
        second.set()
        await scheduler.wait_idle()

    simulate(body)
    assert [["b", "c", "main"], ["b", "c", "a", "d"], ["b", "c", "a"], ["b", "c"]] == seen


def test_pick_is_not_asked_when_one_task_is_runnable():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> int:
        asked: list[int] = []
        scheduler.pick = lambda options: asked.append(len(options)) or 0
        nursery.start_soon(trio.sleep, 1)
        await scheduler.wait_idle()
        return len(asked)

    assert 0 == simulate(body)


def test_steps_count_the_tasks_shown():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> int:
        before = scheduler.steps
        for _ in range(10):
            await scheduler.yield_now()
        return scheduler.steps - before

    assert 10 == simulate(body)


def test_others_runnable_sees_new_tasks_and_due_deadlines_but_not_the_held_or_the_dead():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[bool]:
        async def node() -> None:
            NODE.set("node-1")
            await event.wait()

        event = trio.Event()
        seen = [scheduler.others_runnable()]
        nursery.start_soon(trio.lowlevel.checkpoint)
        seen.append(scheduler.others_runnable())
        await scheduler.wait_idle()
        seen.append(scheduler.others_runnable())
        with trio.CancelScope() as scope:  # noqa: ASYNC100
            scope.deadline = trio.current_time()
            seen.append(scheduler.others_runnable())
        nursery.start_soon(node)
        await scheduler.wait_idle()
        (task,) = nursery.child_tasks
        scheduler.hold_back(task)
        event.set()
        seen.append(scheduler.others_runnable())
        scheduler.freeze("node-1")
        seen.append(scheduler.others_runnable())
        return seen

    assert [False, True, False, True, False, False] == simulate(body)


def test_yield_now_lets_others_go_first_and_is_no_cancellation_point():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[str]:
        async def other() -> None:
            seen.append("other")

        seen: list[str] = []
        nursery.start_soon(other)
        with trio.CancelScope() as scope:
            scope.cancel()
            await scheduler.yield_now()
            seen.append("me")
        return seen

    assert ["other", "me"] == simulate(body)


# --- time


def test_time_jumps_only_when_nobody_can_run_and_is_whole_nanoseconds():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[int, float, list[int]]:
        jumps: list[int] = []
        scheduler.on_jump = jumps.append
        for _ in range(100):
            await trio.lowlevel.checkpoint()
        before = scheduler.now_ns
        for _ in range(10):
            await trio.sleep(0.1)
        return before, trio.current_time(), jumps

    assert (0, 1.0, [n * S // 10 for n in range(1, 11)]) == simulate(body)


def test_time_is_0_at_the_start_of_each_simulation():
    async def main(scheduler: Scheduler) -> list[tuple[int, float, int]]:
        seen = []
        for _ in range(3):
            async with scheduler.simulation() as nursery:
                seen.append((scheduler.now_ns, trio.current_time(), scheduler.steps))
                nursery.start_soon(trio.sleep, 5)
                await trio.sleep(7)
        return seen

    assert [(0, 0.0, 0)] * 3 == run(main)


def test_deadlines_less_than_a_nanosecond_apart_are_due_together():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[object]:
        async def worker(*delays: float) -> None:
            for delay in delays:
                await trio.sleep(delay)
            options.append(scheduler.now_ns)

        options: list[object] = []
        nursery.start_soon(worker, 0.3)
        nursery.start_soon(worker, 0.1, 0.2)
        await trio.sleep(0.2)
        scheduler.pick = lambda tasks: options.append(len(tasks)) or 1
        await scheduler.wait_idle()
        return options

    assert 0.3 != 0.1 + 0.2
    assert [2, 3 * S // 10, 3 * S // 10] == simulate(body)


def test_deadlines_are_seen_after_trio_has_thrown_away_a_thousand_that_were_never_reached():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> float:
        for _ in range(3000):
            with trio.move_on_after(100):
                await scheduler.yield_now()
        for seconds in (1, 2, 3):
            await trio.sleep(seconds)
            assert not scheduler.others_runnable()
        return trio.current_time()

    assert 6 == simulate(body)


def test_a_task_that_waits_for_its_deadline_in_a_loop_gets_there():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        scheduler.max_steps = 5_000
        rng = random.Random(5)
        for _ in range(500):
            deadline = trio.current_time() + rng.random() * 10 ** rng.randrange(-12, 7)
            while trio.current_time() < deadline:  # noqa: ASYNC110
                await trio.sleep_until(deadline)
            assert abs(trio.current_time() - scheduler.now_ns / S) < 1e-9 + math.ulp(trio.current_time())

    simulate(body)


def test_a_whole_nanosecond_comes_back_from_float_seconds():
    rng = random.Random(5)
    for _ in range(2000):
        at_ns = rng.randrange(10 ** rng.randrange(1, 16))
        assert at_ns == due_ns(at_ns / S)
    assert LAST_NS + 1 == due_ns(1e300) == due_ns(math.inf)


def equal_deadlines(names: range) -> Callable[[Scheduler, trio.Nursery], Awaitable[tuple[str, ...]]]:
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[str, ...]:
        seen: list[str] = []

        async def worker(number: int) -> None:
            with trio.move_on_after(number % 3), trio.move_on_after(1):
                await trio.sleep(10)
            seen.append(f"{number}@{scheduler.now_ns}")

        for number in names:
            nursery.start_soon(worker, number)
        await scheduler.wait_idle()
        return tuple(seen)

    return body


def test_equal_deadlines_always_expire_in_one_order():
    keep = []  # keeps memory in use, so that ids differ from run to run
    runs = set()
    for _ in range(100):
        keep.append([object() for _ in range(random.randrange(99))])
        runs.add(simulate(equal_deadlines(range(9))))
    expected = [*(f"{n}@0" for n in (0, 3, 6)), *(f"{n}@{S}" for n in (1, 2, 4, 5, 7, 8))]
    assert {tuple(expected)} == runs


def test_mass_cancellation_wakes_tasks_in_order_of_creation():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[int]:
        async def sleeper(number: int) -> None:
            try:
                await trio.sleep_forever()
            finally:
                seen.append(number)

        seen: list[int] = []
        with trio.move_on_after(1):
            async with trio.open_nursery() as inner:
                for number in range(50):
                    inner.start_soon(sleeper, number)
        return seen

    assert list(range(50)) == simulate(body)


# --- holding back


def test_a_held_back_task_does_not_run_and_time_passes_it():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[object]:
        async def worker() -> None:
            seen.append(scheduler.now_ns)

        seen: list[object] = []
        nursery.start_soon(worker)
        (task,) = nursery.child_tasks
        scheduler.hold_back(task)
        await trio.sleep(3)
        seen.append(scheduler.held == (task,))
        seen.append(scheduler.release(task))
        seen.append(scheduler.release(task))
        await scheduler.wait_idle()
        return seen

    assert [True, True, False, 3 * S] == simulate(body)


def test_a_task_held_back_while_blocked_is_held_when_it_wakes():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[object]:
        async def worker() -> None:
            await trio.sleep(1)
            seen.append(scheduler.now_ns)

        seen: list[object] = []
        nursery.start_soon(worker)
        await scheduler.yield_now()
        (task,) = nursery.child_tasks
        scheduler.hold_back(task)
        seen.append(scheduler.held == ())
        await trio.sleep(2)
        seen.append(scheduler.held == (task,))
        scheduler.release(task)
        await scheduler.wait_idle()
        return seen

    assert [True, True, 2 * S] == simulate(body)


def test_on_idle_releases_before_the_clock_jumps():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[tuple[str, int]]:
        async def worker(name: str, delay: float) -> None:
            await trio.sleep(delay)
            seen.append((name, scheduler.now_ns))

        seen: list[tuple[str, int]] = []
        nursery.start_soon(worker, "held", 0, name="held")
        nursery.start_soon(worker, "sleeper", 1)
        (held,) = [task for task in nursery.child_tasks if task.name == "held"]
        scheduler.hold_back(held)
        scheduler.on_idle = lambda: any(scheduler.release(task) for task in scheduler.held[:1])
        assert await scheduler.wait_idle() is Idle.QUIESCENT
        return seen

    assert [("held", 0), ("sleeper", S)] == simulate(body)


def test_pick_may_hold_back_what_it_does_not_choose():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[list[int], int]:
        async def worker(number: int) -> None:
            seen.append(number)

        def pick(options: list[trio.lowlevel.Task]) -> int:
            scheduler.hold_back(options[0])
            return 1

        seen: list[int] = []
        for number in range(3):
            nursery.start_soon(worker, number)
        scheduler.pick = pick
        await scheduler.wait_idle()
        return seen, len(scheduler.held)

    assert ([1, 2], 1) == simulate(body)


def test_a_pick_that_holds_back_all_it_was_offered_is_an_error_not_a_hang():
    async def main(scheduler: Scheduler) -> None:
        def pick(options: list[trio.lowlevel.Task]) -> int:
            for task in options:
                scheduler.hold_back(task)
            return 0

        scheduler.begin()
        scheduler.pick = pick
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            nursery.start_soon(trio.sleep, 1)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(main)
    assert "and held it back" in str(caught.value.exceptions)


def test_a_parked_task_goes_on_when_released_and_not_when_cancelled():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[object]:
        async def worker() -> None:
            with trio.move_on_after(1) as scope:
                await scheduler.park()
            seen.append((scheduler.now_ns, scope.cancelled_caught))

        seen: list[object] = []
        for delay in (0.5, 2):
            nursery.start_soon(worker)
            start = scheduler.now_ns
            await trio.sleep(delay)
            (task,) = scheduler.held
            scheduler.release(task)
            await scheduler.wait_idle()
            seen.append(scheduler.now_ns - start)
        return seen

    assert [(S // 2, False), S // 2, (5 * S // 2, True), 2 * S] == simulate(body)


def test_a_deadline_already_due_when_parking_is_seen_on_release():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[bool, bool]:
        async def worker() -> None:
            nonlocal caught
            with trio.move_on_after(0) as scope:
                await scheduler.park()
            caught = scope.cancelled_caught

        caught = False
        nursery.start_soon(worker)
        await scheduler.wait_idle()
        before = caught
        scheduler.release(scheduler.held[0])
        await scheduler.wait_idle()
        return before, caught

    assert (False, True) == simulate(body)


# --- crash


def test_a_frozen_node_runs_nothing_after_its_crash():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[Idle, int, list[str]]:
        log: list[str] = []
        nursery.start_soon(dead_node, scheduler, log)
        why = await scheduler.wait_idle()
        return why, scheduler.now_ns, list(log)

    assert (Idle.QUIESCENT, S, []) == simulate(body)


def test_a_task_of_a_dead_node_that_wakes_later_stays_dead():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[list[str], list[str]]:
        log: list[str] = []
        event = trio.Event()

        async def member() -> None:
            NODE.set("node-1")
            await event.wait()
            log.append("member")

        async def ready() -> None:
            NODE.set("node-1")
            await trio.lowlevel.checkpoint()
            log.append("ready")

        async def parked() -> None:
            NODE.set("node-1")
            await scheduler.park()
            log.append("parked")

        async def world() -> None:
            await event.wait()
            log.append("world")

        for task in (member, parked, world):
            nursery.start_soon(task)
        await scheduler.wait_idle()
        waits = scheduler.held
        nursery.start_soon(ready)
        await scheduler.yield_now()
        scheduler.freeze("node-1")
        assert not any(scheduler.release(task) for task in waits)
        event.set()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await scheduler.wait_idle()
        return log, []

    assert (["world"], []) == simulate(body)


def test_the_next_incarnation_of_a_node_runs():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[str]:
        async def incarnation(name: str) -> None:
            NODE.set(name)
            await trio.sleep(2)
            log.append(name)

        log: list[str] = []
        nursery.start_soon(incarnation, "node-1.1")
        await trio.sleep(1)
        scheduler.freeze("node-1.1")
        nursery.start_soon(incarnation, "node-1.2")
        await scheduler.wait_idle()
        return log

    assert ["node-1.2"] == simulate(body)


# --- standing still


def test_nothing_of_a_paused_node_runs_until_it_goes_on():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[str]:
        log: list[str] = []

        async def member(name: str, seconds: float) -> None:
            NODE.set("node-1")
            await trio.sleep(seconds)
            log.append(f"{name} at {scheduler.now_ns // S}")

        async def world() -> None:
            await trio.sleep(1)
            scheduler.pause("node-1")
            nursery.start_soon(new)
            await trio.sleep(3)
            log.append("world")
            scheduler.resume("node-1")

        async def new() -> None:
            await member("new", 0)

        for name, seconds in (("c", 3), ("a", 2), ("late", 6)):
            nursery.start_soon(member, name, seconds)
        nursery.start_soon(world)
        await scheduler.wait_idle()
        return log

    assert ["world", "new at 4", "a at 4", "c at 4", "late at 6"] == simulate(body)


def test_a_deadline_that_passes_while_a_node_stands_still_is_told_when_it_goes_on():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[bool, int]:
        seen: list[tuple[bool, int]] = []

        async def member() -> None:
            NODE.set("node-1")
            with trio.move_on_after(2) as scope:
                await trio.sleep_forever()
            seen.append((scope.cancelled_caught, scheduler.now_ns // S))

        nursery.start_soon(member)
        await trio.sleep(1)
        scheduler.pause("node-1")
        await trio.sleep(9)
        scheduler.resume("node-1")
        await scheduler.wait_idle()
        return seen[0]

    assert (True, 10) == simulate(body)


def test_a_node_that_stands_still_can_die_and_does_not_go_on():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[str]:
        log: list[str] = []

        async def member() -> None:
            NODE.set("node-1")
            await trio.lowlevel.checkpoint()
            log.append("member")

        nursery.start_soon(member)
        scheduler.pause("node-1")
        await trio.sleep(1)
        assert not scheduler.others_runnable()
        scheduler.freeze("node-1")
        scheduler.resume("node-1")
        await scheduler.wait_idle()
        return list(log)

    assert [] == simulate(body)


def test_a_node_that_stands_still_when_the_simulation_ends_is_reaped_with_it():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> Idle:
        async def member() -> None:
            NODE.set("node-1")
            await trio.sleep(1)

        nursery.start_soon(member)
        scheduler.pause("node-1")
        return await scheduler.wait_idle()

    assert simulate(body) is Idle.QUIESCENT


# --- quiescence and limits


def test_wait_idle_returns_when_all_timers_are_over():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[Idle, int]:
        nursery.start_soon(trio.sleep, 5)
        nursery.start_soon(trio.sleep_forever)
        return await scheduler.wait_idle(), scheduler.now_ns

    assert (Idle.QUIESCENT, 5 * S) == simulate(body)


def test_wait_idle_has_one_caller_at_a_time_and_can_be_cancelled():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> Idle:
        with trio.CancelScope() as scope:

            async def second() -> None:
                with pytest.raises(RuntimeError, match="is in wait_idle already"):
                    await scheduler.wait_idle()
                scope.cancel()

            nursery.start_soon(second)
            await scheduler.wait_idle()
        assert scope.cancelled_caught
        return await scheduler.wait_idle()

    assert Idle.QUIESCENT is simulate(body)


def test_the_step_limit_stops_a_livelock_where_it_is():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> tuple[object, ...]:
        async def livelock() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                turns.append(scheduler.steps)

        turns: list[int] = []
        scheduler.max_steps = 50
        nursery.start_soon(livelock)
        first = await scheduler.wait_idle()
        counted = len(turns)
        again = await scheduler.wait_idle()
        scheduler.max_steps = 100
        last = await scheduler.wait_idle()
        return first, again, last, turns[counted - 1], max(turns)

    assert (*[Idle.STEP_LIMIT] * 3, 50, 100) == simulate(body)


@pytest.mark.parametrize("nested", [False, True])
def test_the_step_limit_is_raised_in_a_main_that_waits_for_something_else(nested):
    async def livelock() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        scheduler.max_steps = 50
        nursery.start_soon(livelock)
        if not nested:
            await trio.sleep_forever()
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)

    with pytest.raises(ExceptionGroup if nested else StepLimit) as caught:
        simulate(body)
    assert nested is (not isinstance(caught.value, StepLimit))
    assert "50 steps" in str(caught.value.exceptions if nested else caught.value)


def test_the_step_limit_reaches_a_main_that_is_itself_the_livelock():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        scheduler.max_steps = 50
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(StepLimit):
        simulate(body)


def test_the_clock_never_passes_the_time_limit():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[object]:
        scheduler.time_limit_ns = 5 * S
        nursery.start_soon(trio.sleep, 5)
        nursery.start_soon(trio.sleep, 5.000001)
        seen: list[object] = [await scheduler.wait_idle(), scheduler.now_ns, len(nursery.child_tasks)]
        scheduler.time_limit_ns = 6 * S
        return [*seen, await scheduler.wait_idle(), scheduler.now_ns]

    assert [Idle.TIME_LIMIT, 5 * S, 1, Idle.QUIESCENT, 5_000_001_000] == simulate(body)


def test_the_time_limit_is_raised_in_a_main_that_waits_for_something_else():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        scheduler.time_limit_ns = 5 * S
        await trio.sleep(1000)

    with pytest.raises(TimeLimit):
        simulate(body)


def test_a_deadlock_names_the_blocked():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def waits_for_godot() -> None:
            NODE.set("node-7")
            await trio.Event().wait()

        nursery.start_soon(waits_for_godot)
        nursery.start_soon(scheduler.park, name="car")
        await trio.sleep_forever()

    with pytest.raises(Deadlock) as caught:
        simulate(body)
    text = str(caught.value)
    assert "waits_for_godot (node node-7): waits in waits_for_godot" in text
    assert "car: parked" in text


@pytest.mark.parametrize("depth", [1, 2])
def test_a_deadlock_of_a_main_whose_nursery_the_dead_keep_open_still_gets_out(depth):
    log: list[str] = []

    async def main(scheduler: Scheduler) -> None:
        scheduler.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dead_node, scheduler, log)
            if depth == 2:
                async with trio.open_nursery() as inner:
                    inner.start_soon(scheduler.hold_forever)

    async def hosts(scheduler: Scheduler) -> Idle:
        with pytest.raises(BaseExceptionGroup) as caught:
            await main(scheduler)
        assert caught.value.subgroup(Deadlock) is not None
        async with scheduler.simulation():
            return await scheduler.wait_idle()

    assert Idle.QUIESCENT is run(hosts)


@pytest.mark.parametrize("hook", ["pick", "on_idle", "on_jump"])
def test_what_a_hook_raises_comes_out_of_main_and_no_hook_is_asked_again(hook):
    class Stop(BaseException):
        """Like the one Hypothesis stops a test with."""

    def raises(*_args: object) -> int:
        asked.append(hook)
        raise Stop

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        setattr(scheduler, hook, raises)
        for _ in range(5):
            nursery.start_soon(trio.sleep, 1)
        await scheduler.wait_idle()

    asked: list[str] = []
    with pytest.raises(Stop):
        simulate(body)
    assert [hook] == asked


def test_an_on_idle_that_claims_what_is_not_so_is_an_error():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        scheduler.on_idle = lambda: True
        await scheduler.wait_idle()

    with pytest.raises(RuntimeError, match="none is"):
        simulate(body)


def test_wait_all_tasks_blocked_wakes_before_the_clock_jumps_in_order_of_creation():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[tuple[int, int]]:
        async def worker(number: int) -> None:
            await trio.testing.wait_all_tasks_blocked()
            seen.append((number, scheduler.now_ns))

        seen: list[tuple[int, int]] = []
        nursery.start_soon(trio.sleep, 1)
        for number in range(20):
            nursery.start_soon(worker, number)
        await scheduler.wait_idle()
        return seen

    assert [(number, 0) for number in range(20)] == simulate(body)


def test_an_instrument_added_in_a_simulation_works():
    class Steps(trio.abc.Instrument):
        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            seen.append(task.name[-4:])

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        await scheduler.yield_now()
        with pytest.raises(KeyError):
            trio.lowlevel.remove_instrument(Steps())
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await scheduler.yield_now()
        trio.lowlevel.remove_instrument(steps)
        await scheduler.yield_now()

    seen: list[str] = []
    simulate(body)
    assert ["main"] == seen


# --- the real world


def test_real_io_is_refused_and_works_again_afterwards():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> int:
        left, right = socket.socketpair()
        with left, right:
            for attempt in (trio.lowlevel.wait_readable, trio.lowlevel.wait_writable):
                with pytest.raises(RealIO, match=rf"{attempt.__name__} on socket .*must go through ports"):
                    await attempt(left)
            trio.lowlevel.notify_closing(left)
        with pytest.raises(RealIO, match="opened a socket"):
            trio.socket.socket()
        return len(scheduler.refused)

    async def stock() -> None:
        left, right = socket.socketpair()
        with left, right:
            await trio.lowlevel.wait_writable(left)
        trio.socket.socket().close()

    assert 3 == simulate(body)
    trio.run(stock)


def test_real_threads_are_refused_and_work_again_afterwards():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> int:
        with pytest.raises(RealThread, match="wanted a thread"):
            await trio.to_thread.run_sync(threading.get_ident)
        with pytest.raises(RealThread):
            trio.lowlevel.start_thread_soon(threading.get_ident, print)
        return len(scheduler.refused)

    assert 2 == simulate(body)
    assert threading.get_ident() != trio.run(trio.to_thread.run_sync, threading.get_ident)


def test_another_threads_trio_keeps_its_threads_during_a_run():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> list[int]:
        found: list[int] = []
        other = threading.Thread(target=lambda: found.append(trio.run(trio.to_thread.run_sync, lambda: 7)), daemon=True)
        other.start()
        other.join(timeout=10)
        return found

    assert [7] == simulate(body)


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_gets_out_of_a_simulation_that_never_ends():
    async def livelock() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        def pick(_options: list[trio.lowlevel.Task]) -> int:
            if scheduler.steps == 1000:
                signal.raise_signal(signal.SIGINT)
            assert scheduler.steps < 100_000, "it goes on and on"
            return 0

        scheduler.pick = pick
        nursery.start_soon(dead_node, scheduler, [])
        nursery.start_soon(livelock)
        nursery.start_soon(livelock)
        await scheduler.wait_idle()

    with pytest.raises(KeyboardInterrupt):
        simulate(body)
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_that_hits_simulated_code_gets_out_too():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def task() -> None:
            async with trio.open_nursery():
                signal.raise_signal(signal.SIGINT)

        nursery.start_soon(dead_node, scheduler, [])
        await trio.sleep(2)
        nursery.start_soon(task)
        await scheduler.wait_idle()

    with pytest.raises(KeyboardInterrupt):
        simulate(body)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("at", range(1, 6))
def test_a_ctrl_c_that_hits_the_unwinding_itself_leaves_nobody_behind(at, monkeypatch):
    below, calls, log = core.below, itertools.count(1), []

    def hit(nursery: trio.Nursery) -> list[trio.lowlevel.Task]:
        if next(calls) == at:
            signal.raise_signal(signal.SIGINT)
        return below(nursery)

    async def leaf() -> None:
        try:
            await trio.sleep_forever()
        finally:
            log.append("ended")

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        nursery.start_soon(dead_node, scheduler, [])
        nursery.start_soon(leaf)
        await scheduler.wait_idle()

    async def again_and_again(scheduler: Scheduler) -> None:
        for _ in range(5):
            async with scheduler.simulation() as nursery:
                await body(scheduler, nursery)

    monkeypatch.setattr(core, "below", hit)
    with pytest.raises(KeyboardInterrupt):
        run(again_and_again)
    assert set(log) == {"ended"}


@pytest.mark.parametrize("part", ["runq", "deadlines", "entry_queue"])
def test_a_trio_with_a_part_missing_is_named(part, monkeypatch):
    monkeypatch.setitem(known_trio._NEEDED, "Runner", f"{part}_gone")
    with pytest.raises(UnknownTrio, match=rf"trio {trio.__version__} lacks Runner.{part}_gone.*0.22 to 0.35"):
        simulate(orders_of_five)


def test_a_trio_with_other_habits_is_named(monkeypatch):
    monkeypatch.setattr(known_trio, "_HABITS_KNOWN", [])
    monkeypatch.setattr(Scheduler, "_turn", lambda self, timeout: ())
    with pytest.raises(UnknownTrio, match="was expected"):
        simulate(orders_of_five)


# --- the end


def test_reap_unwinds_everything_children_before_parents():
    log: list[str] = []

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def leaf(name: str, wait: Callable[[], Awaitable[object]]) -> None:
            try:
                with trio.CancelScope(shield=True):
                    await wait()
            except Reaped:
                log.append(name)
                raise

        async def parent(name: str) -> None:
            try:
                async with trio.open_nursery() as inner:
                    inner.start_soon(leaf, f"{name}/sleeper", trio.sleep_forever)
                    inner.start_soon(leaf, f"{name}/parked", scheduler.park)
            finally:
                log.append(name)

        nursery.start_soon(parent, "a")
        nursery.start_soon(leaf, "lonely", scheduler.hold_forever)
        nursery.start_soon(parent, "b")
        nursery.start_soon(leaf, "timer", partial(trio.sleep, 9))
        await trio.sleep(1)

    simulate(body)
    assert ["a/sleeper", "a/parked", "a", "b/sleeper", "b/parked", "b", "lonely", "timer"] == log


def test_a_task_that_never_ran_never_does():
    log: list[str] = []

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def never() -> None:
            log.append("ran")

        nursery.start_soon(never)
        nursery.start_soon(never)
        scheduler.hold_back(sorted(nursery.child_tasks, key=lambda task: task._counter)[0])

    simulate(body)
    assert [] == log


def test_a_runnable_task_unwinds_and_does_not_go_on():
    log: list[str] = []

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def busy() -> None:
            try:
                while True:
                    log.append("step")
                    await trio.lowlevel.checkpoint()
            finally:
                log.append("finally")

        nursery.start_soon(busy)
        await scheduler.yield_now()
        log.append("end")

    simulate(body)
    assert ["step", "end", "finally"] == log


def test_a_task_may_swallow_reaped_a_few_times():
    swallowed: list[int] = []

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def stubborn() -> None:
            for turn in range(10):
                try:
                    with trio.CancelScope(shield=True):
                        await (scheduler.park if turn % 2 else scheduler.hold_forever)()
                except BaseException:
                    swallowed.append(turn)

        nursery.start_soon(stubborn)
        await scheduler.wait_idle()

    simulate(body)
    assert list(range(10)) == swallowed


async def refuses_asleep() -> None:
    while True:
        try:
            with trio.CancelScope(shield=True), trio.fail_after(7):
                await trio.sleep_forever()
        except GeneratorExit:
            raise
        except BaseException:
            pass


async def refuses_busily() -> None:
    while True:
        try:
            await trio.lowlevel.checkpoint()
        except GeneratorExit:  # when the process exits
            raise
        except BaseException:
            pass


async def refuses_by_children() -> None:
    while True:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()
        except GeneratorExit:
            raise
        except BaseException:
            pass


@pytest.mark.parametrize("refuses", [refuses_asleep, refuses_busily, refuses_by_children])
def test_a_task_that_refuses_to_end_is_named_and_the_next_simulation_is_clean(refuses):
    async def main(scheduler: Scheduler) -> list[object]:
        seen: list[object] = []
        with pytest.raises(RefusesToEnd, match=rf"{refuses.__name__} \(node node-3\)"):  # noqa: PT012
            async with scheduler.simulation() as nursery:

                async def node() -> None:
                    NODE.set("node-3")
                    async with trio.open_nursery() as inner:
                        inner.start_soon(refuses)

                nursery.start_soon(node)
                scheduler.max_steps = 20
                await scheduler.wait_idle()
        scheduler.max_steps = UNLIMITED
        async with scheduler.simulation() as nursery:
            nursery.start_soon(trio.sleep, 10)
            seen += [await scheduler.wait_idle(), scheduler.now_ns, scheduler.steps]
        return seen

    assert [Idle.QUIESCENT, 10 * S, 4 - 1] == run(main)


def test_reap_returns_what_unwinding_raised_and_keeps_earlier_errors_in_the_nursery():
    async def main(scheduler: Scheduler) -> str:
        async def breaks_late() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("late")

        async def breaks_early() -> None:
            raise KeyError("early")

        scheduler.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaks_late)
            await scheduler.wait_idle()
            noise = await scheduler.reap(nursery)
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with scheduler.simulation() as nursery:
                nursery.start_soon(breaks_early)
                await scheduler.wait_idle()
        return f"{noise} {caught.value.exceptions}"

    assert "(ValueError('late'),) (KeyError('early'),)" == run(main)


def test_an_error_of_the_simulations_block_comes_out_as_it_is():
    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        nursery.start_soon(dead_node, scheduler, [])
        await trio.sleep(2)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        simulate(body)


@pytest.mark.parametrize("inner", [False, True])
def test_a_cancellation_of_the_simulations_own_nursery_stays_inside(inner):
    async def main(scheduler: Scheduler) -> Idle:
        async with scheduler.simulation() as nursery:
            nursery.cancel_scope.cancel()
            if inner:
                async with trio.open_nursery() as second:
                    second.start_soon(trio.sleep_forever)
            await scheduler.wait_idle()
        with trio.CancelScope() as scope:
            async with scheduler.simulation():
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        async with scheduler.simulation():
            return await scheduler.wait_idle()

    assert Idle.QUIESCENT is run(main)


def test_reap_unwinds_a_task_in_the_middle_of_nursery_start():
    log: list[str] = []

    async def body(scheduler: Scheduler, nursery: trio.Nursery) -> None:
        async def slow(task_status: object) -> None:
            try:
                await trio.sleep_forever()
            finally:
                log.append("started")

        async def starter() -> None:
            try:
                async with trio.open_nursery() as inner:
                    await inner.start(slow)
            finally:
                log.append("starter")

        nursery.start_soon(starter)
        await scheduler.wait_idle()

    simulate(body)
    assert ["started", "starter"] == log


def test_a_deadline_around_simulations_is_refused():
    async def main(scheduler: Scheduler) -> None:
        with trio.move_on_after(60):  # noqa: ASYNC100
            scheduler.begin()

    with pytest.raises(RuntimeError, match="a deadline is pending"):
        run(main)


def test_a_simulation_that_was_not_reaped_is_named_by_the_next():
    async def main(scheduler: Scheduler) -> None:
        scheduler.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scheduler.park, name="left")
            await scheduler.wait_idle()
            with pytest.raises(RuntimeError, match=r"was not reaped:\s+left"):
                scheduler.begin()
            await scheduler.reap(nursery)

    run(main)


def test_a_dropped_async_generator_costs_no_step_and_is_finalised_when_reaped():
    log: list[str] = []

    async def main(scheduler: Scheduler) -> list[int]:
        async def numbers():
            try:
                yield 1
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                log.append("finalised")

        async def drop() -> None:
            async for _ in numbers():
                break

        steps = []
        for _ in range(2):
            async with scheduler.simulation() as nursery:
                nursery.start_soon(drop)
                await scheduler.wait_idle()
                gc.collect()
                await scheduler.wait_idle()
                log.append(f"{scheduler.now_ns}")
                steps.append(scheduler.steps)
        return steps

    with pytest.warns(ResourceWarning):
        first, second = run(main)
    assert first == second
    assert ["0", "finalised"] * 2 == log


def test_tasks_left_when_the_run_ends_are_given_back_to_trio():
    async def main(scheduler: Scheduler) -> str:
        async def system() -> None:
            await scheduler.park()

        task = trio.lowlevel.spawn_system_task(system)
        await scheduler.yield_now()
        scheduler.hold_back(trio.lowlevel.spawn_system_task(trio.lowlevel.checkpoint))
        return task.name

    assert run(main).endswith("system")


# --- the digest of a run


async def busy_world(scheduler: Scheduler, seed: int) -> str:
    """A simulation with a bit of everything; the digest is over all that its tasks saw."""
    trace = hashlib.blake2b(digest_size=8)
    rng = random.Random(seed)

    def note(*words: object) -> None:
        trace.update(f"{words} {scheduler.now_ns} {scheduler.steps}\n".encode())

    def pick(options: list[trio.lowlevel.Task]) -> int:
        index = rng.randrange(len(options))
        note("pick", index, [task.name for task in options])
        if rng.random() < 0.05:
            scheduler.hold_back(options[index - 1])
            return 0 if index != 1 else 1
        return index

    async def worker(node: str, number: int, events: list[trio.Event], lock: trio.Lock) -> None:
        NODE.set(node)
        for turn in range(4):
            with trio.move_on_after(1 + number % 2) as scope:
                if rng.random() < 0.3:
                    await scheduler.park()
                async with lock:
                    await trio.sleep(rng.randrange(3) / 3)
                events[turn].set()
                await events[(turn + number) % 4].wait()
            note(node, number, turn, scope.cancelled_caught)
            if rng.random() < 0.03:
                note("crash", node)
                scheduler.freeze(node)
                await scheduler.hold_forever()

    def on_idle() -> bool:
        note("idle", len(scheduler.held))
        return any(scheduler.release(task) for task in scheduler.held[:1])

    scheduler.pick, scheduler.on_idle, scheduler.on_jump = pick, on_idle, lambda at_ns: note("jump", at_ns)
    scheduler.max_steps = 2_000
    async with scheduler.simulation() as nursery:
        for node in ("node-1", "node-2", "world"):
            events, lock = [trio.Event() for _ in range(4)], trio.Lock()
            for number in range(4):
                nursery.start_soon(worker, node, number, events, lock, name=f"{node}-{number}")
        note(await scheduler.wait_idle())
    note("reaped")
    return trace.hexdigest()


def digests(seeds: range) -> list[str]:
    async def main(scheduler: Scheduler) -> list[str]:
        return [await busy_world(scheduler, seed) for seed in seeds]

    return run(main)


def test_many_simulations_in_one_run_equal_each_alone():
    together = digests(range(60))
    assert 60 == len(set(together))
    assert together == [digest for seed in range(60) for digest in digests(range(seed, seed + 1))]
    assert together[::-1] == digests(range(59, -1, -1))


def elsewhere(python: str, **environment: str) -> list[str]:
    """Return the same digests from another process."""
    path = os.pathsep.join(map(str, [ROOT, Path(trio.__file__).parents[1], Path(outcome.__file__).parents[1]]))
    code = f"import runpy; m = runpy.run_path({str(__file__)!r}); print(*m['digests'](range(20)))"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [python, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_another_process_gets_the_same_digests(hash_seed):
    assert digests(range(20)) == elsewhere(sys.executable, PYTHONHASHSEED=hash_seed)


def other_python(version: str) -> str | None:
    candidates = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(candidates[-1]) if candidates else shutil.which(f"python{version}")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_other_pythons_get_the_same_digests(version):
    python = other_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    probe = subprocess.run([python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{python} does not start: {probe.stderr.decode(errors='replace')[:200]}")
    assert digests(range(20)) == elsewhere(python)
