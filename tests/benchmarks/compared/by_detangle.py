"""detangle on the planted bugs: its default portfolio, its strategies by name, and its bounded exhaustive search.

Its memory of old failures is off: `database=False`.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import bodies
import detangle
from on_asyncio import Life, side_by_side_of
from trying import Exhausted, Limits, Stopwatch, Tool, Try, main

Main = Callable[[], Coroutine[Any, Any, None]]
DELAYS = (1, 2, 3, 4, 6, 8, 10)
"""Bounds of the exhaustive search, one after another: what a user does who wants the shortest."""

NO_BOUND = 1_000
DELAYS_OF_CRASHES = (8, 16, 2 * bodies.PAUSES_MAX)
"""A crash counts as many delays as the number of the pause that it comes at."""


def played(row: str, seed: int, *, mended: bool) -> Main:
    """Return the body as a test."""

    async def side_by_side() -> None:
        world, ended = bodies.make(row, seed, mended=mended), asyncio.Event()
        tasks = [detangle.spawn(each) for each in side_by_side_of(world, ended)]
        await ended.wait()
        assert not world.broken, world.broken
        del tasks

    async def with_crashes() -> None:
        world, net = bodies.make(row, seed, mended=mended), detangle.network()
        for life in range(bodies.LIVES_MAX):
            crash_at = detangle.randint(0, bodies.PAUSES_MAX) if life < bodies.LIVES_MAX - 1 else 0
            one = Life(world, crash_at)
            process = detangle.spawn(one.run(), host="node")
            await one.over.wait()
            if not one.died:
                break
            net.crash("node")
            await asyncio.wait([process])
            net.restart("node")
        assert not world.broken, world.broken

    return with_crashes if bodies.ROWS[row].crashes else side_by_side


class Detangle(Tool):
    """Its `explore`, as its documentation shows it."""

    name = "detangle"
    version = detangle.__version__

    def ways(self, row: str) -> Mapping[str, str]:
        names = ("auto", "random", "pct:3", "dfs, bound by bound", "dfs, no bound")
        return dict.fromkeys(names, "deviations")

    def draws(self, way: str) -> bool:
        return not way.startswith("dfs")

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        watch, tested, runs = Stopwatch(limits), played(row, seed, mended=False), 0
        for strategy in _strategies(row, way):
            try:
                stats = _explore(tested, strategy, seed, limits.runs - runs, limits.seconds - watch.seconds)
            except detangle.BugFound as found:
                report, seconds = found.report, watch.seconds
                shrunk = _shrunk(tested, strategy, seed, report.runs)
                again = detangle.replay(tested, shrunk.token, raise_on_failure=False)
                replayed = again.failure is not None and again.failure.signature() == report.failure.signature()
                return Try(seed, True, runs + report.runs, seconds, size=shrunk.deviations, replayed=replayed)
            runs += stats.runs
            if watch.over or runs >= limits.runs:
                break
        return Try(seed, False, runs, watch.seconds)

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        tested, watch, runs = played(row, 1, mended=True), Stopwatch(limits), 0
        while not watch.over:
            for strategy in _strategies(row, way):
                runs += _explore(tested, strategy, runs, 10**9, max(limits.seconds - watch.seconds, 1e-9)).runs
        return runs, watch.seconds

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        tested = played(row, 1, mended=True)
        strategy = detangle.DFS(max_delays=NO_BOUND, max_branch=bodies.PAUSES_MAX + 1)
        began = time.perf_counter()
        stats = _explore(tested, strategy, 1, limits.runs, limits.seconds)
        crashes = bodies.ROWS[row].crashes
        bound = f", at most {bodies.LIVES_MAX - 1} crashes" if crashes else ""
        says = f"exhausted (no bound of delays{bound})" if stats.exhausted else ""
        seconds = time.perf_counter() - began
        return [Exhausted("dfs, no bound", stats.runs, seconds, stats.exhausted, says, whole=not crashes)]


def _strategies(row: str, way: str) -> list[Callable[[], Any]]:
    if not way.startswith("dfs"):
        return [lambda: way]
    delays = DELAYS_OF_CRASHES if bodies.ROWS[row].crashes else DELAYS
    if way == "dfs, no bound":
        delays = (NO_BOUND,)
    branch = bodies.PAUSES_MAX + 1
    return [functools.partial(detangle.DFS, max_delays=each, max_branch=branch) for each in delays]


def _explore(tested: Main, strategy: Any, seed: int, runs: int, seconds: float, *, shrink: bool = False) -> Any:
    made = strategy() if callable(strategy) else strategy
    return detangle.explore(
        tested, runs=runs, strategy=made, seed=seed, max_duration=seconds, shrink=shrink, database=False
    )


def _shrunk(tested: Main, strategy: Any, seed: int, runs: int) -> Any:
    """Find it again, the same way, and shrink it: apart, so that the time is not that of the search."""
    try:
        _explore(tested, strategy, seed, runs, 60.0, shrink=True)
    except detangle.BugFound as found:
        return found.report
    raise AssertionError("the same search does not find the same bug")


if __name__ == "__main__":
    main(Detangle())
