"""How things are measured here: sizes, and the time of one call."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Awaitable, Callable, Iterator

import attrs

Times = dict[str, float]
"""Seconds for one operation, by variant; of what is counted and not timed, how many."""

Ratios = list[tuple[str, str]]
"""What is set against what: (dividend, divisor)."""


@attrs.frozen(kw_only=True)
class Sizes:
    """How much is measured."""

    rounds: int
    runs: int  # whole runs of the order flow, in each variant
    switches: int  # scheduling steps
    calls: int  # of what takes microseconds
    emits: tuple[int, ...]  # at how many stamped emits the next one is timed
    window: int  # over the last so many before each
    steps_in_snapshot: int
    emits_in_snapshot: int
    followed: int  # events that one live query follows
    subscribers: tuple[int, ...]  # how many follow one execution
    followed_by_all: int  # for so many events
    folded: tuple[int, ...]  # logs of so many events
    turns: tuple[int, ...]  # sessions of so many turns
    resumes: int  # turns that are added to the longest session; to shorter ones, as many more as they are shorter


FULL = Sizes(
    rounds=5,
    runs=300,
    switches=40_000,
    calls=4_000,
    emits=(1_000, 10_000, 50_000),
    window=1_000,
    steps_in_snapshot=2_000,
    emits_in_snapshot=20_000,
    followed=4_000,
    subscribers=(500, 2_000),
    followed_by_all=5,
    folded=(10_000, 50_000, 100_000),
    turns=(1_000, 5_000, 10_000),
    resumes=1,
)
QUICK = Sizes(
    rounds=2,
    runs=20,
    switches=2_000,
    calls=200,
    emits=(200, 400, 800),
    window=100,
    steps_in_snapshot=50,
    emits_in_snapshot=500,
    followed=100,
    subscribers=(10, 40),
    followed_by_all=2,
    folded=(100, 200, 400),
    turns=(10, 20, 40),
    resumes=1,
)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Collect, then keep the garbage collector off for the block."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def each(call: Callable[[], object], times: int) -> float:
    """Return the seconds that one call takes."""
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times


async def each_async(call: Callable[[], Awaitable[object]], times: int) -> float:
    """Return the seconds that one awaited call takes."""
    began = time.process_time()
    for _ in range(times):
        await call()
    return (time.process_time() - began) / times
