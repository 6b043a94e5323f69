"""Stock trio on the planted bugs: the body run again and again as it comes.

Trio shuffles each batch of tasks that can run, with chance of its own that no seed makes.  There is a private switch
and a private generator that tests of some projects use: with them a seed makes a run again.  A crash is a cancellation
at a drawn checkpoint; nothing is shrunk.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import bodies
import trio
from trio._core import _run as private
from trying import Exhausted, Limits, Stopwatch, Tool, Try, main, run_for

STOCK, SEEDED = "stock", "private seed"


class Trio(Tool):
    """`trio.run`, in a loop."""

    name = "stock trio"
    version = trio.__version__

    def ways(self, row: str) -> Mapping[str, str]:
        return dict.fromkeys((STOCK, SEEDED), "")

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        watch = Stopwatch(limits)
        while not watch.over:
            watch.runs += 1
            broken = _run(row, way, seed, watch.runs, mended=False)
            if broken:
                seconds = watch.seconds
                replayed = _run(row, way, seed, watch.runs, mended=False) == broken if way == SEEDED else None
                return Try(seed, True, watch.runs, seconds, replayed=replayed)
        return Try(seed, False, watch.runs, watch.seconds)

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        return run_for(limits, lambda number: _run(row, way, 1, number, mended=True))

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        return []


def _run(row: str, way: str, seed: int, number: int, *, mended: bool) -> str:
    """Run the body once; return what is broken."""
    world = bodies.make(row, seed, mended=mended)
    draws = random.Random(f"{seed} {number}")
    private._ALLOW_DETERMINISTIC_SCHEDULING = way == SEEDED
    if way == SEEDED:
        private._r.seed(draws.random())
    if world.crashes:
        trio.run(_lives, world, draws)
    else:
        trio.run(_side_by_side, world)
    return world.broken


async def _side_by_side(world: bodies.World) -> None:
    async with trio.open_nursery() as nursery:
        for body in world.tasks():
            nursery.start_soon(body, _pauses())


def _pauses() -> bodies.Pause:
    begun = False

    async def pause(*_: Any) -> None:
        nonlocal begun
        if begun:
            await trio.lowlevel.checkpoint()
        begun = True

    return pause


async def _lives(world: bodies.World, draws: random.Random) -> None:
    (process,) = world.tasks()
    for life in range(bodies.LIVES_MAX):
        left = draws.randint(0, bodies.PAUSES_MAX) if life < bodies.LIVES_MAX - 1 else 0
        with trio.CancelScope() as scope:

            async def pause(*_: Any) -> None:
                nonlocal left
                left -= 1
                if not left:
                    scope.cancel()
                await trio.lowlevel.checkpoint()

            await process(pause)
        if not scope.cancelled_caught:
            return


if __name__ == "__main__":
    main(Trio())
