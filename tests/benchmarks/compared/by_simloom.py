"""simloom on the planted bugs: seeds under its schedulers, and its bounded exhaustive search.

It keeps no old failures.  Its own crash of a host is used; when to crash is drawn from its tape.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import bodies
import simloom
from on_asyncio import Life, side_by_side
from trying import Exhausted, Limits, Stopwatch, Tool, Try, furthest, main

Main = Callable[..., Coroutine[Any, Any, None]]
BATCH = 200
NO_BOUND = 1_000


def played(row: str, seed: int, *, mended: bool) -> Main:
    """Return the body as a test."""

    async def with_crashes(world: simloom.World) -> None:
        shared, host = bodies.make(row, seed, mended=mended), world.host("node")
        lives: list[Life] = []

        def live() -> Coroutine[Any, Any, None]:
            may_crash = len(lives) < bodies.LIVES_MAX - 1
            lives.append(Life(shared, simloom.draw("crash at", bodies.PAUSES_MAX + 1) if may_crash else 0))
            return lives[-1].run()

        host.spawn(live)
        while True:
            await asyncio.sleep(1)  # virtual: by then whatever there is to do at once is done
            if not lives[-1].died:
                break
            host.crash()
            host.restart()
        assert not shared.broken, shared.broken

    return with_crashes if bodies.ROWS[row].crashes else side_by_side(row, seed, mended=mended)


class Simloom(Tool):
    """Its `explore`, `explore_systematic` and `shrink`."""

    name = "simloom"
    version = simloom.__version__

    def ways(self, row: str) -> Mapping[str, str]:
        names = ("random", "pct:auto", "systematic, bound by bound", "systematic, no bound")
        return dict.fromkeys(names, "deviations")

    def draws(self, way: str) -> bool:
        return not way.startswith("systematic")

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        watch, tested = Stopwatch(limits), played(row, seed, mended=False)
        runs, failed, _ = _search(tested, row, way, seed * 10**6, watch, limits)
        if failed is None:
            return Try(seed, False, runs, watch.seconds)
        seconds = watch.seconds
        shrunk = simloom.shrink(tested, failed)
        again = simloom.replay(tested, tape=shrunk.result, raise_on_error=False)
        replayed = again.outcome == "error" and str(again.error) == str(shrunk.result.error)
        return Try(seed, True, runs, seconds, size=shrunk.deviations, replayed=replayed)

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        watch, tested, runs = Stopwatch(limits), played(row, 1, mended=True), 0
        while not watch.over:
            runs += _search(tested, row, way, runs, watch, limits)[0]
        return runs, watch.seconds

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        tested, told = played(row, 1, mended=True), list[Exhausted]()
        crashes = bodies.ROWS[row].crashes
        bound = f", at most {bodies.LIVES_MAX - 1} crashes" if crashes else ""
        for delays in (2, 4, NO_BOUND):
            watch = Stopwatch(limits)
            runs, _, all_of_it = _systematic(tested, delays, limits.runs, watch)
            some = "no bound of" if delays == NO_BOUND else f"{delays}"
            says = f"exhausted ({some} delays{bound})" if all_of_it else ""
            whole = delays == NO_BOUND and not crashes
            told.append(Exhausted(f"systematic, {some} delays", runs, watch.seconds, all_of_it, says, whole))
            if not all_of_it:
                break
        return furthest(told)


def _search(
    tested: Main, row: str, way: str, first: int, watch: Stopwatch, limits: Limits
) -> tuple[int, simloom.RunResult | None, bool]:
    """Return (runs, what failed, was it all there is?)."""
    runs = 0
    if way.startswith("systematic"):
        for delays in (NO_BOUND,) if way.endswith("no bound") else (1, 2, 3, 4, 6, 10):
            more, failed, all_of_it = _systematic(tested, delays, limits.runs - runs, watch)
            runs += more
            if failed is not None or watch.over or runs >= limits.runs:
                break
        return runs, failed, all_of_it
    while runs < limits.runs and not watch.over:
        batch = min(BATCH, limits.runs - runs)
        found = simloom.explore(tested, runs=batch, start_seed=first + runs, scheduler=way)
        runs += found.runs
        if found.first_failure is not None:
            return runs, found.first_failure, False
    return runs, None, False


def _systematic(tested: Main, delays: int, runs: int, watch: Stopwatch) -> tuple[int, simloom.RunResult | None, bool]:
    """Likewise; it takes no limit of time, so that it is interrupted."""
    done = 0

    def counted() -> None:
        nonlocal done
        if watch.over:
            raise OutOfTime
        done += 1

    async def alone() -> None:
        counted()
        await tested()

    async def with_world(world: simloom.World) -> None:
        counted()
        await tested(world)

    main = with_world if inspect.signature(tested).parameters else alone
    try:
        result = simloom.explore_systematic(main, max_delays=delays, max_schedules=max(runs, 1))
    except OutOfTime:
        return done, None, False
    return result.schedules, result.first, result.exhaustive


class OutOfTime(KeyboardInterrupt):
    """The one thing that ends a run and is no failure of it."""


if __name__ == "__main__":
    main(Simloom())
