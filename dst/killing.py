"""How soon a strategy kills a mutant: the harness, measured on broken kernels.

A mutant is killed when a campaign over it breaks an invariant that is expected to see it, and the schedule that shows
it, shrunk, breaks nothing on the true kernel.
"""

from __future__ import annotations

import time

import attrs

from dst import command_line
from dst.choices import Written
from dst.executors.assignment import CHUNK, Assignment, Chunk
from dst.executors.chunk import ChunkRunner
from dst.explain import Effort, Explanation
from dst.findings import describe, schedule_of
from dst.forks import failing_run
from dst.investigating import investigate
from dst.judging import run_one
from dst.lookup import find_mutant, find_scenario
from dst.mutant import Mutant
from dst.records import ExplanationRecord, FailureRecord, KillRecord
from dst.run import Host, host
from dst.schedule import token
from dst.shrink import BUDGET
from dst.signature import signature_of
from dst.strategies.explore import Explorer, Found
from dst.strategies.view import Bounds
from dst.transparency import Transparency

EXPLORE = "explore"
"""What exploring is called among the strategies."""

_OTHERS_MAX = 1  # faults besides crashes that exploring tries with, after it has tried without


@attrs.frozen(kw_only=True)
class Attempt:
    """One try at one mutant: by which strategy, from which seed, and when it is given up."""

    mutant: str
    strategy: str
    seed: int
    schedules_max: int
    seconds_max: float


def attempt(plan: Attempt) -> KillRecord:
    """Try, in this process."""
    return tried(plan)[0]


def tried(plan: Attempt) -> tuple[KillRecord, FailureRecord | None]:
    """Try, and return also the failure that killed, None if none did."""
    return host(lambda simulations: _try(simulations, plan))


async def _try(simulations: Host, plan: Attempt) -> tuple[KillRecord, FailureRecord | None]:
    mutant, began = find_mutant(plan.mutant), time.monotonic()
    search = _explored if plan.strategy == EXPLORE else _drawn
    schedules, failure, others = await search(simulations, mutant, plan)
    seconds = time.monotonic() - began
    kill = KillRecord(
        mutant=plan.mutant,
        strategy=plan.strategy,
        seed=plan.seed,
        killed=failure is not None,
        invariant="" if failure is None else failure.invariant,
        others=others,
        schedules=schedules,
        seconds=seconds,
        deviations=None if failure is None else len(failure.deviations),
        minimal=failure is not None and failure.minimal,
        sentences=() if failure is None else failure.sentences,
        token="" if failure is None else schedule_of(failure).to_token(),
        true_kernel_holds=None if failure is None else await _holds(simulations, failure),
    )
    return kill, failure


async def _holds(simulations: Host, failure: FailureRecord) -> bool:
    """Does the schedule break nothing on the true kernel?"""
    scenario = find_scenario(failure.scenario)
    deviations = schedule_of(failure).deviations
    _, violation = await run_one(simulations, Transparency(simulations), scenario, Written(deviations))
    return violation is None


# ---- strategies that draw --------------------------------------------------------------------------------------------


async def _drawn(simulations: Host, mutant: Mutant, plan: Attempt) -> tuple[int, FailureRecord | None, tuple[str, ...]]:
    """Return (schedules, the failure that kills, invariants that broke before it and are not expected to)."""
    assignment = Assignment(
        scenarios=(mutant.scenario,),
        mutant=mutant.name,
        strategy=plan.strategy,
        seed=plan.seed,
        schedules=plan.schedules_max,
        failures_max=None,
        recheck_one_in=0,
        explaining=False,
    )
    runner, ends_at, done = ChunkRunner(simulations, assignment), time.monotonic() + plan.seconds_max, 0
    known: set[str] = set()
    others: dict[str, None] = {}
    for start in assignment.chunks():
        left = ends_at - time.monotonic()
        if left <= 0:
            break
        stop = min(start + CHUNK, assignment.runs)
        async for row in runner.rows(Chunk(start=start, stop=stop, seconds_left=left, known=frozenset(known))):
            done += 1
            known |= {row.signature} - {""}
            if row.failure is not None and row.failure.invariant in mutant.expected:
                return done, row.failure, tuple(others)
            if row.failure is not None:
                others[row.failure.invariant] = None
    return done, None, tuple(others)


# ---- explaining ------------------------------------------------------------------------------------------------------


def explained(kill: KillRecord) -> ExplanationRecord:
    """Explain a kill, in this process, as `dst explain` does."""
    return host(lambda simulations: _explain(simulations, kill))


async def _explain(simulations: Host, kill: KillRecord) -> ExplanationRecord:
    mutant, transparency = find_mutant(kill.mutant), Transparency(simulations)
    schedule = token(kill.token)
    scenario = mutant.apply(find_scenario(schedule.scenario))
    failing = await failing_run(simulations, transparency, scenario, kill.mutant, schedule.deviations)
    assert failing is not None, f"{kill.token} does not fail any more"
    explanation = Explanation(failing, Effort(), lambda runs: None)
    await explanation.run(simulations, transparency)
    failure = describe(
        scenario,
        failing.result,
        failing.violation,
        failing.signature,
        seed=None,
        deviations=failing.result.deviations,
        found_with=len(failing.result.deviations),
        minimal=kill.minimal,
        shrunk=True,
        replays=True,
        replay=command_line.replay_token(kill.token, None),
    )
    return explanation.record(failure, 0)


# ---- exploring -------------------------------------------------------------------------------------------------------


async def _explored(
    simulations: Host, mutant: Mutant, plan: Attempt
) -> tuple[int, FailureRecord | None, tuple[str, ...]]:
    """Likewise; a schedule is a run.  What breaks other invariants is passed by.

    Exploring with crashes alone gets half of the time, and what it leaves is for one other fault.
    """
    scenario = mutant.apply(find_scenario(mutant.scenario))
    ends_at, runs = time.monotonic() + plan.seconds_max, 0
    for faults in range(_OTHERS_MAX + 1):
        left = max((ends_at - time.monotonic()) / (_OTHERS_MAX + 1 - faults), 0.001)
        bounds = Bounds(others=faults, states_max=plan.schedules_max, seconds_max=left)
        report = await Explorer(simulations, scenario, bounds, wanted=frozenset(mutant.expected)).run()
        runs += report.runs
        if report.found:
            return runs, await _described(simulations, mutant, report.found[0]), ()
    return runs, None, ()


async def _described(simulations: Host, mutant: Mutant, found: Found) -> FailureRecord:
    scenario = mutant.apply(find_scenario(mutant.scenario))
    signature = signature_of(found.result, mutant.name, found.violation)
    shrunk = await investigate(
        simulations,
        Transparency(simulations),
        scenario,
        found.result,
        found.violation,
        signature,
        seed=None,
        mutant=mutant.name,
        budget=BUDGET,
    )
    final = await simulations.run(shrunk.scenario, Written(shrunk.schedule.deviations))
    return describe(
        shrunk.scenario,
        final,
        shrunk.violation,
        signature,
        seed=None,
        deviations=shrunk.schedule.deviations,
        found_with=len(found.deviations),
        minimal=shrunk.minimal,
        shrunk=True,
        replays=shrunk.replays,
        replay="",
        found_in=shrunk.found_in,
    )
