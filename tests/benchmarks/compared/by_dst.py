"""`dst` on the planted bugs: campaigns of its strategies, and exploration."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import bodies
import trio
from trying import Exhausted, Limits, Tool, Try, main

import dst
from dst.choices import Written
from dst.executors.assignment import Assignment
from dst.executors.exploring import describe_found
from dst.executors.inline import run_inline
from dst.executors.tally import Tally
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, HOLDING, menu
from dst.invariants import Broken, Invariant
from dst.judging import run_one
from dst.node import Incarnation
from dst.records import FailureRecord
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.simulation import Simulation
from dst.strategies.explore import Exploration, explore
from dst.strategies.view import Bounds
from dst.trace import Record
from dst.transparency import Transparency


class Whole(Invariant[int]):
    """What every body promises."""

    name = "whole"
    says = "nothing goes wrong"
    kinds = ("broken", "ended")
    initial = 0

    def key(self, record: Record) -> tuple[object, object]:
        """There is one world."""
        return "world", "world"

    def advance(self, state: int, record: Record) -> int:
        """Look at what the world says."""
        if record[0] == "broken":
            raise Broken(record[1], "nothing wrong")
        return state


class Played(Scenario):
    """A body as a scenario: each pause is a point, and the step after it is the work of the point."""

    version = "1"
    invariants: ClassVar = (Whole(),)
    world: ClassVar[Any]  # makes a new one

    def build(self, sim: Simulation) -> None:
        """Start the process."""
        self.sim, self.now = sim, type(self).world()
        options = (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER), (HOLD, HOLDING))
        self.menu = menu(tuple(sim.faults), options)
        sim.add_node("process", self.live)

    async def drive(self, sim: Simulation) -> None:
        """Nothing comes from outside."""

    async def live(self, _: Incarnation) -> None:
        """Run all tasks side by side."""
        async with trio.open_nursery() as nursery:
            for number, body in enumerate(self.now.tasks()):
                nursery.start_soon(self.run, number, body, name=f"task {number}")

    async def run(self, number: int, body: bodies.Body) -> None:
        """Run one."""
        steps = Steps(self, number)
        await body(steps.pause)
        await steps.end()

    def tell(self) -> None:
        """Say it when something is broken."""
        if self.now.broken:
            self.sim.note("broken", self.now.broken)

    def finish(self, sim: Simulation) -> None:
        """Have the invariant judge a world in which nothing was."""
        sim.note("ended")

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """All there is."""
        return json.dumps(self.now.visible())


class Steps:
    """The points of one task.  Mutable: where it is."""

    def __init__(self, played: Played, number: int) -> None:
        self._played, self._number = played, number
        self._point = self._act = ""

    async def pause(self, what: str, *touched: tuple[str, str]) -> None:
        """End the step before, and come to the point of the next."""
        await self.end()
        sim = self._played.sim
        point, act = sim.enter(f"step:{self._number}:{what}", self._played.menu)
        if act or sim.crowded():
            act = await sim.approach(point, act)
        if act == "crash-before":
            await sim.crash(point)
        for resource, mode in touched:
            sim.touch(resource, mode)
        self._point, self._act = point, act

    async def end(self) -> None:
        """The step is done."""
        if self._point:
            point, act, self._point = self._point, self._act, ""
            self._played.tell()
            self._played.sim.happened(point)
            if act == "crash-after":
                await self._played.sim.crash(point)


@functools.cache
def scenario(row: str, seed: int, mended: bool) -> type[Played]:
    """Return the scenario of a body."""
    kind = bodies.ROWS[row]
    space = {
        "name": row.replace("-", "_"),
        "story": kind.story,
        "faults": (CRASH_BEFORE, CRASH_AFTER) if kind.crashes else (HOLDING,),
        "world": staticmethod(functools.partial(bodies.make, row, seed, mended=mended)),
    }
    return type(kind.__name__, (Played,), space)


_ALL_ORDERS = "explore --orders all"


class Dst(Tool):
    """Campaigns with each strategy, as `dst fuzz` runs them, and `dst explore`."""

    name = "dst"
    version = dst.__version__ if hasattr(dst, "__version__") else "this checkout"

    def ways(self, row: str) -> Mapping[str, str]:
        """Return the default, what is there for the kind of bug, and exploration."""
        orders = "explore" if bodies.ROWS[row].crashes else "explore --orders all"
        names = (
            ("portfolio", "pct", "pos", "walk", orders)
            if not bodies.ROWS[row].crashes
            else ("portfolio", "swarm", orders)
        )
        return dict.fromkeys(names, "deviations")

    def draws(self, way: str) -> bool:
        """Exploring draws nothing."""
        return not way.startswith("explore")

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        """Search until the first failure."""
        tested = scenario(row, seed, mended=False)
        if way.startswith("explore"):
            return _explored(tested, way, seed, limits)
        return _drawn(tested, way, seed, limits)

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        """Run campaigns, or explorations, of the mended body one after another."""
        tested, runs, began = scenario(row, 1, mended=True), 0, time.perf_counter()
        while (seconds := time.perf_counter() - began) < limits.seconds:
            if way.startswith("explore"):
                runs += host(lambda h: explore(h, tested, _bounds(way, limits))).runs
            else:
                runs += _campaign(tested, way, runs, 1_000, limits.seconds - seconds)[0]
        return runs, seconds

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        """Explore until it is closed."""
        way = "explore" if bodies.ROWS[row].crashes else _ALL_ORDERS
        report = host(lambda h: explore(h, scenario(row, 1, mended=True), _bounds(way, limits)))
        what = "any number of crashes" if bodies.ROWS[row].crashes else "all port orders"
        says = f"closed ({what})" if report.closed else "; ".join(report.cut_short)
        return [Exhausted(way, report.runs, report.seconds, report.closed, says, whole=True)]


def _bounds(way: str, limits: Limits) -> Bounds:
    orders = way.endswith("all")
    return Bounds(all_orders=orders, orders_max=min(limits.runs, 10**6), seconds_max=limits.seconds)


# ---- campaigns -------------------------------------------------------------------------------------------------------


def _drawn(tested: type[Played], way: str, seed: int, limits: Limits) -> Try:
    runs, seconds, found = _campaign(tested, way, seed, limits.runs, limits.seconds)
    if found is None:
        return Try(seed=seed, found=False, runs=runs, seconds=seconds)
    return _told(tested, seed, runs, seconds, found)


def _campaign(
    tested: type[Played], way: str, seed: int, runs: int, seconds: float
) -> tuple[int, float, FailureRecord | None]:
    """Return (runs, seconds up to the failure, the failure): shrinking is not in the seconds."""
    plan = Assignment(scenarios=(tested.name,), strategy=way, seed=seed, schedules=runs, explaining=False)
    known: list[FailureRecord] = []
    ended: list[float] = []
    began = time.perf_counter()

    def keep(failure: FailureRecord) -> FailureRecord:
        known.append(failure)
        return failure

    def find(_name: str, _mutant: str | None) -> type[Scenario]:
        return tested

    tally = Tally(plan, keep, lambda divergence: divergence, find=find)
    run_inline(plan, tally, seconds, lambda: ended.append(time.perf_counter() - began), find)
    return tally.schedules, (ended[-2:-1] or ended)[0] if known else time.perf_counter() - began, (known or [None])[0]


def _told(tested: type[Played], seed: int, runs: int, seconds: float, found: FailureRecord) -> Try:
    return Try(
        seed=seed, found=True, runs=runs, seconds=seconds, size=len(found.deviations), replayed=_replays(tested, found)
    )


def _replays(tested: type[Played], found: FailureRecord) -> bool:
    """Run the schedule of a failure again, as `dst replay` does: does it end in the same trace?"""
    deviations = tuple(Deviation(at=each.at, do=each.do, until=each.until) for each in found.deviations)

    async def body(simulations: Host) -> bool:
        result, broken = await run_one(simulations, Transparency(simulations), tested, Written(deviations))
        return broken is not None and broken.invariant == found.invariant and result.digest == found.digest

    return host(body, brief=True)


# ---- exploration -----------------------------------------------------------------------------------------------------


def _explored(tested: type[Played], way: str, seed: int, limits: Limits) -> Try:
    async def body(simulations: Host) -> tuple[Exploration, list[FailureRecord]]:
        report = await explore(simulations, tested, _bounds(way, limits))
        return report, [found async for found in describe_found(simulations, tested, report, "")]

    report, found = host(body)
    if not found:
        return Try(seed=seed, found=False, runs=report.runs, seconds=report.seconds)
    return _told(tested, seed, report.runs, report.seconds, found[0])


if __name__ == "__main__":
    main(Dst())
