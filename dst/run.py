"""Running one simulation of a scenario, and judging it."""

from __future__ import annotations

import functools
import gc
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

import attrs

from dst import trace
from dst.choices import Choices
from dst.faults import Menu
from dst.invariants import Judge, Judgement
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.scheduler import Idle, Scheduler
from dst.scheduler import run as run_scheduler
from dst.simulation import Moment, Simulation
from dst.trace import Record
from dst.verdict import Ending, Verdict

T = TypeVar("T")
Spy = Callable[[Scenario, Simulation, str, Menu, Moment], None]

_COLLECT_EVERY = 64  # simulations between two garbage collections: never inside one


@attrs.frozen(kw_only=True)
class Limits:
    """When a run is given up as inconclusive."""

    steps: int = 20_000
    virtual_seconds: int = 90 * 24 * 3600


@attrs.frozen(kw_only=True)
class RunResult:
    """All that is known of one run."""

    scenario: str
    digest: str
    ending: Ending
    judgement: Judgement
    deviations: tuple[Deviation, ...]
    kinds: tuple[str, ...]  # for each deviation, the fault it is
    environment: dict[str, tuple[tuple[str, ...], ...]]  # see `Simulation.environmental_acts`
    fired: dict[str, int]
    marks: dict[str, int]
    steps: int
    operations: int
    records: tuple[Record, ...]
    outcome: Hashable | None
    failures: tuple[str, ...]
    refused: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of what the invariants say and how the run ended."""
        if self.failures or self.refused:
            return Verdict.FAIL
        if self.ending is Ending.QUIESCENT:
            return self.judgement.verdict
        return max(Verdict.UNKNOWN, self.judgement.verdict)


class Host:
    """Runs simulations one after another in one `trio.run`.  Mutable: counts them, to collect garbage between."""

    def __init__(self, scheduler: Scheduler, limits: Limits | None = None) -> None:
        self._scheduler = scheduler
        self._limits = limits or Limits()
        self._count = 0
        self._judges: dict[type[Scenario], Judge] = {}

    async def run(
        self, scenario_type: type[Scenario], choices: Choices, *, judged: bool = True, spy: Spy | None = None
    ) -> RunResult:
        """Run one simulation from beginning to end; `spy` is called at each point of its calm way.

        A run that is not judged is for its outcome alone: it has no digest either, and nothing looks back at it.
        """
        self._count += 1
        if self._count % _COLLECT_EVERY == 0:
            gc.collect()
        scheduler = self._scheduler
        scheduler.max_steps = self._limits.steps
        scheduler.time_limit_ns = self._limits.virtual_seconds * 1_000_000_000
        scenario = scenario_type()
        async with scheduler.simulation() as nursery:
            sim = Simulation(scheduler, nursery, choices, scenario.faults)
            if spy is not None:
                sim.watch = functools.partial(spy, scenario)
            ending = await _play(scenario, sim, looking_back=judged)
            if ending in (Ending.QUIESCENT, Ending.STUCK):
                scenario.finish(sim)  # how things stand at the end says nothing of a run that was cut short
            sim.close()
            # Here, before the dead are unwound and what was dropped is finalised: that is no part of the run, and may
            # come from an earlier one, whose garbage was found just now.
            result = self._result(scenario_type, sim, scenario.outcome(sim), ending, judged)
        # Cut the cycles of what was a world: the collector, which runs between simulations, then has little to find.
        vars(sim).clear()
        vars(scenario).clear()
        return result

    def _result(
        self,
        scenario: type[Scenario],
        sim: Simulation,
        outcome: Hashable | None,
        ending: Ending,
        judged: bool,
    ) -> RunResult:
        records = tuple(sim.records)
        judge = self._judges.get(scenario)
        if judge is None:
            judge = self._judges[scenario] = Judge(scenario.invariants)
        return RunResult(
            scenario=scenario.name,
            digest=trace.digest(records) if judged else "",
            ending=ending,
            judgement=judge.judge(records if judged else ()),
            deviations=tuple(sim.deviations),
            kinds=tuple(sim.kinds),
            environment=sim.environmental_acts(),
            fired=dict(sim.fired),
            marks=dict(sim.marks),
            steps=sim.scheduler.steps,
            operations=sim.operations,
            records=records,
            outcome=outcome,
            failures=tuple(sim.failures),
            refused=tuple(str(error) for error in self._scheduler.refused),
        )


async def _play(scenario: Scenario, sim: Simulation, *, looking_back: bool) -> Ending:
    """Two phases: under faults until all is quiet, then healed until all is quiet again."""
    scenario.build(sim)
    driven = False

    async def drive() -> None:
        nonlocal driven
        await scenario.drive(sim)
        driven = True

    sim.spawn(drive, "drive")
    idle = await sim.scheduler.wait_idle()
    if idle is Idle.QUIESCENT:
        sim.quiet = True
        sim.note("healed")
        scenario.heal(sim)
        idle = await sim.scheduler.wait_idle()
    if idle is Idle.QUIESCENT and looking_back:
        scenario.look_back(sim)
        idle = await sim.scheduler.wait_idle()
    if idle is Idle.TIME_LIMIT:
        return Ending.OUT_OF_TIME
    if idle is Idle.STEP_LIMIT:
        return _spinning(sim)
    return Ending.QUIESCENT if driven else Ending.STUCK


def _spinning(sim: Simulation) -> Ending:
    """Out of steps: if time has stood still over the last half of them, nothing will end it."""
    still = sim.scheduler.steps - sim.jumped_at
    return Ending.LIVELOCK if 2 * still > sim.scheduler.steps else Ending.OUT_OF_STEPS


def host(body: Callable[[Host], Awaitable[T]], limits: Limits | None = None, *, brief: bool = False) -> T:
    """Run `body(host)`, with the garbage collector off but for between simulations.

    A `brief` host, for a run or two, leaves what garbage there is alone: looking for it takes longer than a run.
    """

    async def main(scheduler: Scheduler) -> T:
        return await body(Host(scheduler, limits))

    enabled = gc.isenabled()
    if not brief:
        gc.collect()
        gc.freeze()
    gc.disable()
    try:
        return run_scheduler(main)
    finally:
        if not brief:
            gc.unfreeze()
        if enabled:
            gc.enable()
