"""What one run of a campaign comes to: its seed, its choices, all that is judged of it, and a failure shrunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from dst import trace
from dst.choices import Choices, Random, Written
from dst.passings import Looking, Passing
from dst.prng import derive
from dst.run import Host, RunResult, Spy
from dst.scenario import Scenario
from dst.schedule import Deviation, Schedule
from dst.shrink import Fails, Shrunk, shrink
from dst.signature import Signature, signature_of, violation_of
from dst.strategies.portfolio import DEFAULT, of_seed
from dst.strategies.strategy import Terms
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import Transparency
from dst.verdict import Verdict, Violation
from dst.versions import versions_of

SHORT = 3
"""A shrunk schedule of more deviations than this makes it worth while to look for another."""

_OTHERS_TRIED = 200  # runs in which another is looked for
_SIMPLER = 7  # the stream they are drawn from
_SEED_BITS = 48  # a run's seed is short enough to be read out, and exact in JSON everywhere


def run_seed(campaign_seed: int, index: int) -> int:
    """Return the seed of a campaign's run `index`: it alone reproduces the run."""
    return derive(campaign_seed, index) >> (64 - _SEED_BITS)


@attrs.frozen(kw_only=True)
class Failure:
    """One failure, shrunk and replayed."""

    signature: Signature
    violation: Violation
    seed: int | None  # None if no seed makes the run that found it
    schedule: Schedule
    found_with: int  # deviations of the run that found it
    choices: int  # points that run passed
    minimal: bool
    digest: str
    replays: bool  # the shrunk schedule, run again, gave the same digest


@attrs.frozen(kw_only=True)
class Divergence:
    """Two runs of the same choices that differ: something in them is not under control."""

    record: int
    first: str
    second: str


def terms_of(
    scenario: type[Scenario], faults: frozenset[str] | None = None, rate: float | None = None, **more: Any
) -> Terms:
    """Return what holds for runs of a scenario with these kinds of faults, all without."""
    chosen = tuple(f for f in scenario.faults if faults is None or f.name in faults)
    return Terms(scenario=scenario, faults=chosen, rate=rate, **more)


def choices_of(
    scenario: type[Scenario],
    seed: int,
    faults: frozenset[str] | None = None,
    rate: float | None = None,
    strategy: str = DEFAULT,
) -> Choices:
    """Return the choices a seed stands for under a strategy."""
    return of_seed(strategy, seed, terms_of(scenario, faults, rate))


async def run_one(
    host: Host, transparency: Transparency, scenario: type[Scenario], choices: Choices, spy: Spy | None = None
) -> tuple[RunResult, Violation | None]:
    """Run once and judge all there is to judge."""
    result = await host.run(scenario, choices, spy=spy)
    compared, violation = await transparency.check(scenario, result)
    judged = (*result.judgement.judged, (TRANSPARENT, int(compared)))
    result = attrs.evolve(result, judgement=attrs.evolve(result.judgement, judged=judged))
    return result, violation_of(result) or violation


def diverged(one: RunResult, other: RunResult) -> Divergence:
    """Return where two runs of the same choices part."""
    at = trace.first_difference(one.records, other.records)
    assert at is not None, "their digests differ"

    def shown(records: Sequence[trace.Record]) -> str:
        return trace.encode([records[at]]).decode() if at < len(records) else "(the trace has ended)"

    return Divergence(record=at, first=shown(one.records), second=shown(other.records))


async def _simpler(
    host: Host, scenario: type[Scenario], found: Shrunk, fails: Fails, budget: int, stopped: Callable[[], bool]
) -> Shrunk:
    """Return a shorter schedule that fails alike, if one is met soon among runs with the kinds of faults of this one.

    Removing deviations one or two at a time can end where a shorter story needs one that is not among them, as where a
    crash stands for a request that was refused.
    """
    final = await host.run(scenario, Written(found.deviations), judged=False)
    kinds = [fault for fault in scenario.faults if fault.name in final.fired]
    for number in range(_OTHERS_TRIED):
        if stopped():
            break
        drawn = await host.run(scenario, Random(derive(number, _SIMPLER), kinds, subset=False))
        failing = await fails(drawn.deviations) if drawn.verdict is Verdict.FAIL else None
        if failing is None:
            continue
        other = await shrink(failing, fails, budget, stopped=stopped)
        if len(other.deviations) < len(found.deviations):
            found = other
            if len(found.deviations) <= SHORT:
                break
    return found


async def investigate(
    host: Host,
    transparency: Transparency,
    scenario: type[Scenario],
    result: RunResult,
    violation: Violation,
    signature: Signature,
    *,
    seed: int | None,
    mutant: str | None,
    budget: int,
    progress: Callable[[int, int], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Failure:
    """Shrink a failing run, and replay what is left; once `stopped()` is true, that is the best so far."""

    async def fails(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...] | None:
        again, wrong = await run_one(host, transparency, scenario, Written(deviations))
        if wrong is None or signature_of(again, mutant, wrong) != signature:
            return None
        return again.deviations

    async def look(deviations: tuple[Deviation, ...]) -> Sequence[Passing]:
        looking = Looking(deviations)
        await host.run(scenario, looking, judged=False)
        return looking.passings()

    shrunk = await shrink(result.deviations, fails, budget, progress, look, stopped)
    if budget and len(shrunk.deviations) > SHORT:
        other = await _simpler(host, scenario, shrunk, fails, budget, stopped)
        if other is not shrunk:
            shrunk = await shrink(other.deviations, fails, budget, progress, look, stopped)
    final, wrong = await run_one(host, transparency, scenario, Written(shrunk.deviations))
    again = await host.run(scenario, Written(shrunk.deviations))
    return Failure(
        signature=signature,
        violation=wrong or violation,
        seed=seed,
        schedule=Schedule(
            scenario=scenario.name,
            mutant=mutant,
            seed=seed,
            deviations=shrunk.deviations,
            versions=versions_of(scenario),
        ),
        found_with=len(result.deviations),
        choices=result.operations,
        minimal=shrunk.minimal,
        digest=final.digest,
        replays=wrong is not None and final.digest == again.digest,
    )
