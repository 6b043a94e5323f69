"""Broken kernels: each is killed by the invariant that must see it, with a schedule that a person can read."""

from __future__ import annotations

import functools

import pytest

from dst.choices import Written
from dst.executors.assignment import Assignment
from dst.executors.inline import run_inline
from dst.executors.tally import Tally
from dst.findings import schedule_of
from dst.judging import run_one
from dst.lookup import all_invariants
from dst.records import FailureRecord
from dst.run import Host, host
from dst.schedule import Deviation, parse
from dst.signature import signature_of
from dst.transparency import Transparency
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS

SCHEDULES, DEVIATIONS_MAX = 5_000, 5
HARDEST = ("emit-no-unsettled", "emit-inflight-until-deadline", "emit-no-unsettled-until-deadline")


@functools.cache
def killed(name: str, seed: int) -> tuple[FailureRecord, ...]:
    plan = Assignment(scenarios=(MUTANTS[name].scenario,), schedules=SCHEDULES, seed=seed, mutant=name)
    tally = Tally(plan, lambda failure: failure)
    assert run_inline(plan, tally, None, lambda: None)
    return tuple(tally.failures)


def written(failure: FailureRecord) -> tuple[Deviation, ...]:
    """Return the deviations as they come back from a schedule file."""
    version = SCENARIOS[failure.scenario].version
    return parse(schedule_of(failure, version).to_text(), "x").deviations


TOLD_APART = [name for name, mutant in MUTANTS.items() if not mutant.equivalent]
CASES = [
    pytest.param(name, seed, marks=[pytest.mark.slow] if name in HARDEST or seed > 1 else [])
    for name in TOLD_APART
    for seed in (1, 2, 3)
]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_it_is_killed_by_what_must_see_it(name, seed):
    assert len(killed(name, seed)) == 1, f"{SCHEDULES} schedules, and nothing was found"
    assert killed(name, seed)[0].invariant in MUTANTS[name].expected


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_its_schedule_is_short_minimal_and_replays(name, seed):
    (failure,) = killed(name, seed)
    assert len(failure.deviations) <= DEVIATIONS_MAX
    assert (True, True) == (failure.minimal, failure.replays)


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_its_schedule_passes_on_the_true_kernel(name, seed):
    """Otherwise it was not the mutant that was found."""
    (failure,) = killed(name, seed)
    true = SCENARIOS[MUTANTS[name].scenario]

    async def body(h: Host):
        return await run_one(h, Transparency(h), true, Written(written(failure)))

    result, violation = host(body)
    assert violation is None
    assert 0 == result.verdict


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in HARDEST else []) for n in TOLD_APART]
)
def test_no_single_deviation_can_go(name):
    """`minimal`, checked again by other means."""
    (failure,) = killed(name, 1)
    mutant = MUTANTS[name]
    broken = mutant.apply(SCENARIOS[mutant.scenario])
    deviations = written(failure)

    async def body(h: Host):
        for left_out in range(len(deviations)):
            fewer = deviations[:left_out] + deviations[left_out + 1 :]
            result, violation = await run_one(h, Transparency(h), broken, Written(fewer))
            assert violation is None or signature_of(result, name, violation).text != failure.signature, left_out

    host(body)


def test_what_is_expected_is_an_invariant_of_the_scenario():
    for mutant in MUTANTS.values():
        known = {name for name, _ in all_invariants(SCENARIOS[mutant.scenario])}
        assert set(mutant.expected) <= known, mutant.name
        assert mutant.expected, mutant.name


def test_what_is_called_equivalent_says_why_and_is_not_found():
    """A thousand schedules are no proof; the reason is what is to be read."""
    for name in sorted(set(MUTANTS) - set(TOLD_APART)):
        assert len(MUTANTS[name].equivalent.split()) > 20, name
        plan = Assignment(scenarios=(MUTANTS[name].scenario,), schedules=1_000, seed=1, mutant=name)
        tally = Tally(plan, lambda failure: failure)
        assert run_inline(plan, tally, None, lambda: None)
        assert [] == list(tally.failures), name
