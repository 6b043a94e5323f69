"""Scenarios for the tests of exploration: a node with three steps, over no kernel, and ways to get it wrong."""

from __future__ import annotations

import json
import signal
from typing import ClassVar

import trio

from dst.faults import CRASH_AFTER, CRASH_BEFORE, menu
from dst.invariants import Broken, Invariant
from dst.node import Incarnation
from dst.scenario import Scenario
from dst.simulation import Simulation
from dst.trace import Record

STEPS = 3


class AtMost(Invariant[int]):
    """Each step is performed at most so often."""

    name = "performed-at-most"
    says = "each step is performed at most so often"
    kinds = ("performed",)
    initial = 0

    def __init__(self, most: int) -> None:
        self.most = most

    def key(self, record: Record) -> tuple[object, object]:
        """Keyed by step."""
        return "box", record[1]

    def advance(self, state: int, record: Record) -> int:
        """Count."""
        if state == self.most:
            raise Broken(f"step {record[1]} was performed {state + 1} times", f"at most {self.most}")
        return state + 1

    def compose(self, state: int) -> int:
        """More than the most is never reached."""
        return min(state, self.most)


class WrittenOnce(Invariant[int]):
    """What holds of all of them."""

    name = "written-once"
    says = "each step is written down once"
    kinds = ("wrote",)
    initial = 0

    def key(self, record: Record) -> tuple[object, object]:
        """Keyed by step."""
        return "box", record[1]

    def advance(self, state: int, record: Record) -> int:
        """Count."""
        if state:
            raise Broken(f"step {record[1]} was written down twice", "once")
        return state + 1


class Worker(Scenario):
    """Each step is performed, and then written down; what is written down is not performed again."""

    name = "worker"
    story = "three steps, each performed and then written down"
    faults: ClassVar = (CRASH_BEFORE, CRASH_AFTER)
    invariants: ClassVar = (WrittenOnce(),)

    def build(self, sim: Simulation) -> None:
        """Start the node."""
        self.sim, self.done, self.starts = sim, set[int](), 0
        self.menu = menu(tuple(sim.faults), (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER)))
        sim.add_node("worker", self.work)

    async def work(self, _: Incarnation) -> None:
        """Go on where the last one died."""
        self.starts += 1
        for step in range(STEPS):
            if step not in self.done:
                await self.step(step)
        await trio.sleep_forever()

    async def step(self, step: int) -> None:
        """Perform, then write down."""
        if self.performs(step):
            self.sim.note("performed", step)
        point, act = self.sim.enter(f"write:{step}", self.menu)
        await self.sim.approach(point, act)
        if act == "crash-before":
            await self.sim.crash(point)
        self.done.add(step)
        self.sim.note("wrote", step)
        self.sim.happened(point)
        if act == "crash-after":
            await self.sim.crash(point)

    def performs(self, step: int) -> bool:
        """What subclasses do otherwise."""
        return True

    async def drive(self, sim: Simulation) -> None:
        """Nothing more."""

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """What is written down."""
        return json.dumps(sorted(self.done))


class OftenPerformed(Worker):
    """No run that exploration makes performs a step three times: only a path of two of its edges does."""

    name = "often_performed"
    invariants: ClassVar = (AtMost(2),)


class Tired(OftenPerformed):
    """From its third life on it performs nothing, and does not say so."""

    name = "tired"

    def performs(self, step: int) -> bool:
        """Not when tired."""
        return self.starts < 3


class Counting(Worker):
    """It gives up a step that it has begun three times, and says how often it has up to the cap."""

    name = "counting"

    async def work(self, incarnation: Incarnation) -> None:
        """Give up after the second life."""
        if self.starts >= 2:
            self.done |= {0, 1}
        await super().work(incarnation)

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """What is written down, and how often it has started."""
        return json.dumps([sorted(self.done), min(self.starts, cap)])


class Crashless(Worker):
    """Nothing can crash."""

    name = "crashless"
    faults: ClassVar = ()


class Interrupted(Worker):
    """Whoever explores it is interrupted."""

    name = "interrupted"
    seen: ClassVar = [0]

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """Press Ctrl-C, as it were."""
        self.seen[0] += 1
        if self.seen[0] == 20:
            signal.raise_signal(signal.SIGINT)
        return super().behaviour(sim, cap) + str(self.seen)


class Endless(Worker):
    """It never comes to rest."""

    name = "endless"

    async def drive(self, sim: Simulation) -> None:
        """Sleep again and again."""
        while True:  # noqa: ASYNC110  # nothing is waited for: that is the point
            await trio.sleep(1)


class Moody(Worker):
    """What it does depends on how often it was made: no schedule does the same again."""

    name = "moody"
    made: ClassVar = [0]

    def build(self, sim: Simulation) -> None:
        """Every other time there is nothing left to do."""
        super().build(sim)
        self.made[0] += 1
        if self.made[0] % 2 == 0:
            self.done |= set(range(STEPS))


class Interrupting(AtMost):
    """Whoever searches with it is interrupted, when no run is left to be made."""

    advanced = 0

    def advance(self, state: int, record: Record) -> int:
        """Press Ctrl-C, as it were."""
        Interrupting.advanced += 1
        if Interrupting.advanced == 2_000:
            signal.raise_signal(signal.SIGINT)
        return super().advance(state, record)


class Boundless(Worker):
    """How often a step was performed is counted on paths without end."""

    name = "boundless"
    invariants: ClassVar = (WrittenOnce(), AtMost(10**9))


class InterruptedSearch(Worker):
    """Likewise, and whoever searches is interrupted."""

    name = "interrupted_search"
    invariants: ClassVar = (WrittenOnce(), Interrupting(10**9))


class SecondOnce(AtMost):
    """The second step is performed once."""

    def key(self, record: Record) -> tuple[object, object] | None:  # type: ignore[override]
        """The others do not matter."""
        return ("box", 1) if record[1] == 1 else None


class TwoLives(Invariant[int]):
    """Two are enough."""

    name = "two-lives"
    says = "it does not begin a third time"
    kinds = ("start",)
    initial = 0

    def key(self, record: Record) -> tuple[object, object]:
        """There is one worker."""
        return "worker", "worker"

    def advance(self, state: int, record: Record) -> int:
        """Count."""
        if state == 2:
            raise Broken("a third life", "two at most")
        return state + 1


class Lived(Worker):
    """A run of two crashes breaks something, and a path of one crash that no run takes something else."""

    name = "lived"
    invariants: ClassVar = (TwoLives(), SecondOnce(1))

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """What is written down, and in which life."""
        return json.dumps([sorted(self.done), min(self.starts, 3)])


class Boundless2(Boundless):
    """Another one."""

    name = "boundless_2"


class Silent(Worker):
    """It does not say which moments are alike."""

    name = "silent"
    behaviour = Scenario.behaviour


class SilentOften(OftenPerformed):
    """Likewise."""

    name = "silent_often"
    behaviour = Scenario.behaviour


class Loud(OftenPerformed):
    """Each start breaks something that is looked at last."""

    name = "loud"
    invariants: ClassVar = (TwoLives(), AtMost(2))
