"""simloop on the planted bugs: seeds under its two policies.

It keeps no old failures.  Its own crash of a host is used; when to crash is drawn from its seeded randomness, which its
shrinking leaves as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import bodies
import simloop
from on_asyncio import Life, side_by_side
from trying import Exhausted, Limits, Stopwatch, Tool, Try, main

Main = Callable[[], Coroutine[Any, Any, None]]
BATCH = 200


def played(row: str, seed: int, *, mended: bool) -> Main:
    """Return the body as a test."""

    async def with_crashes() -> None:
        world, host = bodies.make(row, seed, mended=mended), asyncio.get_running_loop().net.host("node")
        for life in range(bodies.LIVES_MAX):
            one = Life(world, simloop.sim.random.randint(0, bodies.PAUSES_MAX) if life < bodies.LIVES_MAX - 1 else 0)
            process = host.create_task(one.run())
            await one.over.wait()
            if not one.died:
                break
            host.crash()
            host.restart()
            del process
        assert not world.broken, world.broken

    return with_crashes if bodies.ROWS[row].crashes else side_by_side(row, seed, mended=mended)


class Simloop(Tool):
    """Its `explore`, with shrinking as it offers it."""

    name = "simloop"
    version = simloop.__version__

    def ways(self, row: str) -> Mapping[str, str]:
        return dict.fromkeys(("random", "pct"), "steps out of order")

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        watch, tested = Stopwatch(limits), played(row, seed, mended=False)
        runs, report = _search(tested, way, seed * 10**6, watch, limits)
        if report is None:
            return Try(seed, False, runs, watch.seconds)
        seconds = watch.seconds
        again = simloop.explore(tested, [report.seed], policy=way, shrink=True)  # what its replay option does
        replayed = again is not None and again.trace_hash == report.trace_hash
        shrinks = again is not None and again.shrunk is not None and not bodies.ROWS[row].crashes
        size = len(again.shrunk.kept) if shrinks else None
        return Try(seed, True, runs, seconds, size=size, replayed=replayed)

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        watch, tested, runs = Stopwatch(limits), played(row, 1, mended=True), 0
        while not watch.over:
            runs += _search(tested, way, runs, watch, limits)[0]
        return runs, watch.seconds

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        return []  # it has only seeds


def _search(
    tested: Main, way: str, first: int, watch: Stopwatch, limits: Limits
) -> tuple[int, simloop.SeedReport | None]:
    runs = 0
    while runs < limits.runs and not watch.over:
        batch = min(BATCH, limits.runs - runs)
        report = simloop.explore(tested, range(first + runs, first + runs + batch), policy=way)
        if report is not None:
            return runs + report.seeds_passed + 1, report
        runs += batch
    return runs, None


if __name__ == "__main__":
    main(Simloop())
