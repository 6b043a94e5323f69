"""The bodies on asyncio, as all its tools run them: with no choice for a scheduler but which of them goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import bodies


def side_by_side_of(world: bodies.World, ended: asyncio.Event) -> Sequence[Coroutine[Any, Any, None]]:
    """Return what is to be run side by side; the last one sets `ended`.

    Who gathers tasks, or waits for them one by one, is woken by each that ends: more choices, and none that matters.
    """
    tasks = world.tasks()
    left = len(tasks)

    async def run(body: bodies.Body) -> None:
        nonlocal left
        await body(_pauses())
        left -= 1
        if not left:
            ended.set()

    return [run(body) for body in tasks]


def side_by_side(row: str, seed: int, *, mended: bool) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return the bodies of a row without crashes as one test."""

    async def test() -> None:
        world, ended = bodies.make(row, seed, mended=mended), asyncio.Event()
        tasks = [asyncio.ensure_future(each) for each in side_by_side_of(world, ended)]
        await ended.wait()
        assert not world.broken, world.broken
        del tasks

    return test


def _pauses() -> bodies.Pause:
    begun = False

    async def pause(*_: Any) -> None:
        nonlocal begun
        if begun:
            await asyncio.sleep(0)
        begun = True

    return pause


class Life:
    """One life of a process that dies at its pause number `crash_at`, 0 for never.  Mutable: how far it is.

    `over` is set when it has died or ended.  Whoever waits for it is alone then, and has to crash the host that it ran
    on if it died.
    """

    def __init__(self, world: bodies.World, crash_at: int) -> None:
        self._world = world
        self._left = crash_at
        self.over = asyncio.Event()
        self.died = False

    async def run(self) -> None:
        """Live."""
        (process,) = self._world.tasks()
        await process(self._pause)
        self.over.set()

    async def _pause(self, *_: Any) -> None:
        self._left -= 1
        if not self._left:
            self.died = True
            self.over.set()
            await asyncio.Event().wait()
