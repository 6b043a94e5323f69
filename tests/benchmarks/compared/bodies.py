"""The planted bugs, as plain async code that knows no tool: every tool runs these very bodies.

A body says `await pause(what, *touched)` before each of its steps; what stands between two pauses happens at once.
The pause is the tool's: a checkpoint, a point, a `sleep(0)`.  `touched` names what the next step reads and changes, for
tools that want to be told; others ignore it.  The first pause of a task is its start where starting a task is a choice
of the tool's scheduler already, so that nobody has to search through a choice that changes nothing.

Each body has a `mended` form without its bug and with as many steps: what is exhausted is counted on that.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

Pause = Callable[..., Awaitable[None]]
Body = Callable[[Pause], Awaitable[None]]

READ, WRITE, ADD = "read", "write", "add"


class World:
    """What the tasks of one run share.  `broken` says what went wrong, "" if nothing did."""

    story: ClassVar[str]
    crashes: ClassVar[bool] = False  # does its process die and start again?  Then it has one task

    drawn: ClassVar[bool] = False  # is the bug another from another seed?

    def __init__(self, seed: int, *, mended: bool) -> None:
        self.mended = mended
        self.broken = ""

    def tasks(self) -> Sequence[Body]:
        """Return the tasks that run side by side."""
        raise NotImplementedError

    def visible(self) -> Any:
        """Return all there is, as JSON has it."""
        raise NotImplementedError


class OrderOfFive(World):
    """Five tasks of one step.  The order that breaks is drawn from the seed, the same for every tool."""

    story = "five tasks of one step; one order of the 120 breaks"
    drawn = True

    def __init__(self, seed: int, *, mended: bool) -> None:
        super().__init__(seed, mended=mended)
        self.wanted = wanted_order(seed)
        self.seen: list[int] = []

    def tasks(self) -> Sequence[Body]:
        return [self._task(number) for number in range(5)]

    def _task(self, number: int) -> Body:
        async def task(pause: Pause) -> None:
            await pause(f"step {number}", ("order", WRITE))
            self.seen.append(number)
            if self.seen == self.wanted and not self.mended:
                self.broken = f"order {self.seen}"

        return task

    def visible(self) -> Any:
        return self.seen


def wanted_order(seed: int) -> list[int]:
    """Return an order of five that is not the calm one."""
    draws = random.Random(f"order {seed}")
    while (order := draws.sample(range(5), 5)) == sorted(order):
        pass
    return order


class Starvation(World):
    """A task that waits while the others do all their six ticks."""

    story = "breaks if one task is not run while two others make six steps"

    def __init__(self, seed: int, *, mended: bool) -> None:
        super().__init__(seed, mended=mended)
        self.ticks = 0
        self.began = -1

    def tasks(self) -> Sequence[Body]:
        return [self._patient, self._busy, self._busy]

    async def _patient(self, pause: Pause) -> None:
        await pause("begins", ("ticks", READ))
        self.began = self.ticks
        await pause("goes on", ("ticks", READ))
        if self.ticks - self.began >= 6 and not self.mended:
            self.broken = f"{self.ticks - self.began} ticks passed meanwhile"

    async def _busy(self, pause: Pause) -> None:
        for _ in range(3):
            await pause("tick", ("ticks", ADD))
            self.ticks += 1

    def visible(self) -> Any:
        return [self.ticks, self.began]


class LostUpdate(World):
    """Two tasks that read a counter and write it; the second has three steps of its own before."""

    story = "two tasks read and then write a counter; calmly one is through before the other begins"

    def __init__(self, seed: int, *, mended: bool) -> None:
        super().__init__(seed, mended=mended)
        self.counter = 0
        self.left = 2

    def tasks(self) -> Sequence[Body]:
        return [self._adds, self._adds_later]

    async def _adds(self, pause: Pause) -> None:
        await pause("read", ("counter", READ))
        value = self.counter
        await pause("write", ("counter", WRITE))
        self.counter = (self.counter if self.mended else value) + 1
        self.left -= 1
        if not self.left and self.counter != 2:
            self.broken = f"the counter is {self.counter} after two additions"

    async def _adds_later(self, pause: Pause) -> None:
        for _ in range(3):
            await pause("thinks", ("thought", WRITE))
        await self._adds(pause)

    def visible(self) -> Any:
        return [self.counter, self.left]


class Workflow(World):
    """Six steps, each done and then written down.  A process that dies is started again and goes on by what is written.

    What was written is put into a snapshot when a process starts, and then cut off the log.
    """

    story = ""
    crashes = True
    steps = 6

    def __init__(self, seed: int, *, mended: bool) -> None:
        super().__init__(seed, mended=mended)
        self.log: list[int] = []  # all of this outlives the process
        self.snapshot: tuple[tuple[int, ...], int] = ((), 0)  # the steps it has absorbed, and the sum of what they gave
        self.done = [0] * self.steps  # how often each step was really done
        self.result = -1

    def tasks(self) -> Sequence[Body]:
        return [self.process]

    async def process(self, pause: Pause) -> None:
        """One life of the process."""
        known, total = self._recovered()
        if self.log:
            await pause("snapshot")
            self.snapshot = (tuple(sorted(known)), total)
            await pause("truncate")
            self.log.clear()
        for step in range(self.steps):
            if step not in known:
                await pause(f"do {step}")
                self._do(step)
                await pause(f"write {step}")
                self.log.append(step)
                total += step + 1
        await pause("end")
        self.result = total
        if total != 21:
            self.broken = f"the steps gave {total}, not 21"

    def _recovered(self) -> tuple[set[int], int]:
        known, total = set(self.snapshot[0]), self.snapshot[1]
        for step in self.log:
            if step not in known or self.counts_twice():
                total += step + 1
            known.add(step)
        return known, total

    def _do(self, step: int) -> None:
        if self.done[step] and not self.does_twice(step):
            return  # who is asked again under the same key does nothing
        self.done[step] += 1
        if self.done[step] > 1:
            self.broken = f"step {step} was done {self.done[step]} times"

    def does_twice(self, step: int) -> bool:
        """Is this step done again when it is asked for again?"""
        return False

    def counts_twice(self) -> bool:
        """Is a step counted again that the snapshot has absorbed?"""
        return False

    def visible(self) -> Any:
        return [self.log, self.snapshot, self.done, self.result]


class DoneTwice(Workflow):
    """The fourth step is done again if a crash comes after it and before it is written down."""

    story = "six steps and crashes: the fourth is done twice if one comes before it is written down"

    def does_twice(self, step: int) -> bool:
        return step == 3 and not self.mended


class CountedTwice(Workflow):
    """Recovery counts again what the snapshot has absorbed: for that it has to die between the snapshot and the cut."""

    story = "six steps and crashes: two are needed, the second in recovery, between the snapshot and the cut of the log"

    def counts_twice(self) -> bool:
        return not self.mended


class Independent(World):
    """Three tasks of three steps that share nothing.  There is no bug."""

    story = "three tasks of three steps that share nothing: no bug"

    def __init__(self, seed: int, *, mended: bool) -> None:
        super().__init__(seed, mended=mended)
        self.own = [[0], [0], [0]]

    def tasks(self) -> Sequence[Body]:
        return [self._task(number, own) for number, own in enumerate(self.own)]

    def _task(self, number: int, own: list[int]) -> Body:
        async def task(pause: Pause) -> None:
            for _ in range(3):
                await pause("step", (f"own {number}", WRITE))
                own[0] += 1

        return task

    def visible(self) -> Any:
        return self.own


ROWS: Mapping[str, type[World]] = {
    "order-of-5": OrderOfFive,
    "starvation": Starvation,
    "lost-update": LostUpdate,
    "crash-done-twice": DoneTwice,
    "crash-in-recovery": CountedTwice,
    "independent": Independent,
}
HAS_BUG = [name for name in ROWS if name != "independent"]
LIVES_MAX = 3
"""Lives of a process in one run of a tool that has to be told when to stop crashing."""

PAUSES_MAX = 16
"""No life has as many pauses."""


def make(row: str, seed: int, *, mended: bool) -> World:
    """Return a new world."""
    return ROWS[row](seed, mended=mended)
