"""frontrun on the planted bugs: its search of orders (DPOR) with and without a bound of preemptions, and at random.

It keeps no old failures, and has no crashes: two tasks more ask the process to die, and when they do is an order like
any other.  It does not shrink; what is counted is the schedule that it shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import bodies
import frontrun
from trying import Exhausted, Limits, Stopwatch, Tool, Try, main

DPOR, DPOR_BOUNDED, RANDOM = "dpor, no bound", "dpor, 2 preemptions", "random"


class Killed(Exception):
    """The process dies."""


class Shared:
    """What one execution shares: the world, and how often the process was asked to die.  Mutable."""

    def __init__(self, row: str, seed: int, mended: bool) -> None:
        self.world = bodies.make(row, seed, mended=mended)
        self.tasks = self.world.tasks()
        self.asked = 0


def workers(row: str) -> list[Callable[[Shared], Awaitable[None]]]:
    """Return the tasks, as frontrun takes them."""
    if bodies.ROWS[row].crashes:
        return [_lives, *[_kills] * (bodies.LIVES_MAX - 1)]
    return [_worker(number) for number in range(len(bodies.make(row, 1, mended=False).tasks()))]


def _worker(number: int) -> Callable[[Shared], Awaitable[None]]:
    async def worker(shared: Shared) -> None:
        await shared.tasks[number](_Pauses())

    return worker


class _Pauses:
    """The first is the start of the task."""

    begun = False

    async def __call__(self, *_: Any) -> None:
        if self.begun:
            await asyncio.sleep(0)
        self.begun = True


async def _kills(shared: Shared) -> None:
    shared.asked += 1


async def _lives(shared: Shared) -> None:
    for deaths in range(bodies.LIVES_MAX):

        async def pause(*_: Any) -> None:
            await asyncio.sleep(0)
            if shared.asked > deaths:  # noqa: B023  # of this life
                raise Killed

        try:
            await shared.tasks[0](pause)
        except Killed:
            continue
        return


class Frontrun(Tool):
    """Its `explore` of async workers."""

    name = "frontrun"
    version = version("frontrun")

    def ways(self, row: str) -> Mapping[str, str]:
        return dict.fromkeys((DPOR, DPOR_BOUNDED, RANDOM), "steps of the whole schedule")

    def draws(self, way: str) -> bool:
        return way == RANDOM

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        watch = Stopwatch(limits)
        result = _explore(row, way, seed, limits, mended=False)
        if result.property_holds is not False:
            return Try(seed, False, result.num_explored, watch.seconds)
        seconds = watch.seconds
        again = _explore(row, way, seed, limits, mended=False, replays=1)
        if way == RANDOM:  # it has the seed alone to go by
            replayed = (again.num_explored, again.counterexample) == (result.num_explored, result.counterexample)
            return Try(seed, True, result.num_explored, seconds, replayed=replayed)
        replayed = again.reproduction_successes == again.reproduction_attempts == 1
        return Try(seed, True, result.num_explored, seconds, size=len(result.counterexample), replayed=replayed)

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        watch, runs = Stopwatch(limits), 0
        while not watch.over:
            left = Limits(limits.runs, max(limits.seconds - watch.seconds, 0.01))
            runs += _explore(row, way, runs, left, mended=True).num_explored
        return runs, watch.seconds

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        watch = Stopwatch(limits)
        result = _explore(row, DPOR, 1, limits, mended=True)
        ended = bool(result.property_holds) and not watch.over and result.num_explored < limits.runs
        says = "exhausted" if result.exhausted else "it holds" if ended else ""
        crashes = bodies.ROWS[row].crashes
        return [Exhausted(DPOR, result.num_explored, watch.seconds, ended, says, whole=not crashes)]


def _explore(row: str, way: str, seed: int, limits: Limits, *, mended: bool, replays: int = 0) -> Any:
    options: dict[str, Any] = {"total_timeout": limits.seconds, "detect_io": False}
    if way == RANDOM:
        options |= {"strategy": "random", "seed": seed, "max_attempts": limits.runs}
    else:
        bound = None if way == DPOR else 2
        options |= {"preemption_bound": bound, "max_executions": limits.runs, "reproduce_on_failure": replays}

    async def body() -> Any:
        return await frontrun.explore(
            setup=lambda: Shared(row, seed, mended),
            workers=workers(row),
            invariant=lambda shared: not shared.world.broken,
            **options,
        )

    return asyncio.run(body())


if __name__ == "__main__":
    main(Frontrun())
