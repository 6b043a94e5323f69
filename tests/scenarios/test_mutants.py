"""Broken kernels: each is killed by the invariant that must see it, with a schedule that a person can read."""

from __future__ import annotations

import functools

import pytest

from dst import killing
from dst.choices import Written
from dst.explain import Effort, Explanation
from dst.forks import Failing, failing_run
from dst.judging import run_one
from dst.lookup import all_invariants, find_scenario
from dst.parameters import smaller
from dst.records import ExplanationRecord, FailureRecord, KillRecord
from dst.run import Host, RunResult, host
from dst.scenario import Scenario
from dst.schedule import Deviation, token
from dst.signature import signature_of
from dst.strategies.portfolio import DEFAULT
from dst.transparency import Transparency
from dst.verdict import Verdict, Violation
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS

SCHEDULES, SECONDS, DEVIATIONS_MAX = 5_000, 60.0, 5
HARDEST = ("emit-no-unsettled", "emit-inflight-until-deadline", "emit-no-unsettled-until-deadline")
TOLD_APART = [name for name, mutant in MUTANTS.items() if not mutant.equivalent]


@functools.cache
def tried(name: str, seed: int) -> tuple[KillRecord, FailureRecord | None]:
    return killing.tried(
        killing.Attempt(mutant=name, strategy=DEFAULT, seed=seed, schedules_max=SCHEDULES, seconds_max=SECONDS)
    )


CASES = [
    pytest.param(name, seed, marks=[pytest.mark.slow] if name in HARDEST or seed > 1 else [])
    for name in TOLD_APART
    for seed in (1, 2, 3)
]


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_it_is_killed_by_what_must_see_it(name, seed):
    found, _ = tried(name, seed)
    assert found.killed, f"{found.schedules} schedules, and only {found.others} were found"
    assert found.invariant in MUTANTS[name].expected


@pytest.mark.parametrize(("name", "seed"), CASES)
def test_its_schedule_is_short_and_minimal_and_passes_on_the_true_kernel(name, seed):
    """Otherwise it was not the mutant that was found, or no person can say what happened."""
    found, _ = tried(name, seed)
    assert found.deviations <= DEVIATIONS_MAX
    assert (True, True) == (found.minimal, found.true_kernel_holds)
    assert found.deviations == len(found.sentences)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in HARDEST else []) for n in TOLD_APART]
)
def test_no_single_deviation_can_go_and_no_smaller_story_fails_alike(name):
    """`minimal`, checked again by other means; and the whole schedule, as it comes back from its token, does fail."""
    schedule = token(tried(name, 1)[0].token)
    deviations, broken = schedule.deviations, MUTANTS[name].apply(find_scenario(schedule.scenario))

    async def signature(h: Host, kept: tuple[int, ...], scenario: type[Scenario] = broken) -> str:
        choices = Written([deviations[i] for i in kept])
        result, violation = await run_one(h, Transparency(h), scenario, choices)
        return "" if violation is None else signature_of(result, name, violation).text

    async def body(h: Host):
        every = tuple(range(len(deviations)))
        whole = await signature(h, every)
        assert whole
        for left_out in every:
            assert whole != await signature(h, tuple(i for i in every if i != left_out)), left_out
        for story in smaller(broken):
            assert whole != await signature(h, every, story), story.name

    host(body)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in HARDEST else []) for n in TOLD_APART]
)
def test_the_moment_named_is_between_the_first_deviation_and_the_violation(name):
    """And it matters: the share leaps there.  Where nothing has to go wrong it is the start, and the text says so."""
    failing, record, _ = explained(name)
    first = next((i for i, point in enumerate(failing.passed, 1) if point.deviates), 0)
    turn, cause = record.turn, record.failure.cause
    assert first <= turn.at.followed <= failing.last
    assert turn.at.record <= record.failure.record
    if record.failure.deviations:
        assert turn.at.failing > turn.before.failing
        assert turn.at.failing - turn.before.failing >= turn.at.of / 4 or "other faults of the kind do it too" in cause
        assert cause.startswith(turn.at.says)
    else:
        assert turn.at.followed == 0
        assert cause.startswith("nothing has to go wrong: the calm run fails")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in HARDEST else []) for n in TOLD_APART]
)
def test_the_nearest_passing_run_passes_and_parts_where_it_is_said_to(name):
    failing, record, near = explained(name)
    if record.nearest is None:
        assert not record.failure.deviations or not record.passing
        return
    result, violation = near
    assert (Verdict.PASS, None) == (result.verdict, violation)
    at = record.nearest.record
    assert failing.result.records[:at] == result.records[:at]
    assert failing.result.records[at : at + 1] != result.records[at : at + 1]


@functools.cache
def explained(name: str) -> tuple[Failing, ExplanationRecord, tuple[RunResult, Violation | None] | None]:
    """Explain the kill from the first seed; return the nearest passing run, made again, as well."""
    kill, failure = tried(name, 1)
    broken = MUTANTS[name].apply(find_scenario(failure.scenario))

    async def body(h: Host):
        transparency = Transparency(h)
        failing = await failing_run(h, transparency, broken, name, token(kill.token).deviations)
        explanation = Explanation(failing, Effort(times=16, moments=0, budget=250), lambda runs: None)
        await explanation.run(h, transparency)
        record = explanation.record(failure, 0)
        if record.nearest is None:
            return failing, record, None
        choices = Written([Deviation(at=d.at, do=d.do, until=d.until) for d in record.nearest.deviations])
        return failing, record, await run_one(h, transparency, broken, choices)

    return host(body)


def test_what_is_expected_is_an_invariant_of_the_scenario():
    for mutant in MUTANTS.values():
        known = {name for name, _ in all_invariants(SCENARIOS[mutant.scenario])}
        assert set(mutant.expected) <= known, mutant.name
        assert mutant.expected, mutant.name


def test_what_is_called_equivalent_says_why_and_is_not_found():
    """A thousand schedules are no proof; the reason is what is to be read."""
    for name in sorted(set(MUTANTS) - set(TOLD_APART)):
        assert len(MUTANTS[name].equivalent.split()) > 20, name
        plan = killing.Attempt(mutant=name, strategy=DEFAULT, seed=1, schedules_max=1_000, seconds_max=SECONDS)
        found = killing.attempt(plan)
        assert (False, ()) == (found.killed, found.others), name
