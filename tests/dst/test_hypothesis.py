"""Schedules drawn by Hypothesis: what they can do, what they shrink to, and that they can be pasted."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import pytest
from hypothesis import Phase, example, find, given, seed, settings
from hypothesis.database import InMemoryExampleDatabase

from dst.choices import Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, Fault, menu
from dst.lookup import find_mutant, shipped_scenarios
from dst.run import host
from dst.scenario import Scenario
from dst.schedule import Schedule
from dst.signature import violation_of
from dst.strategies.hypothesis import SIMULATING, schedules
from dst.testing import InvariantFailed, WrongUsage, run, token
from tests.dst.toy_scenarios import Forgetful, Steady

ORDER = shipped_scenarios()["order_saga"]
QUIETLY = settings(SIMULATING, database=None, max_examples=100)


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """Failures are filed in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


def fails(scenario: type[Scenario], schedule: Schedule) -> bool:
    """Does an invariant fail?"""
    return violation_of(host(lambda h: h.run(scenario, Written(schedule.deviations)), brief=True)) is not None


@settings(QUIETLY)
@given(schedule=schedules(ORDER))
def test_a_schedule_that_is_drawn_takes_place_as_written(schedule):
    choices = Written(schedule.deviations)
    result = host(lambda h: h.run(ORDER, choices), brief=True)
    assert () == choices.missed
    assert schedule.deviations == result.deviations


@settings(QUIETLY)
@given(schedule=schedules(ORDER))
def test_no_fault_is_drawn_beyond_its_budget(schedule):
    budgets = {fault.name: fault.budget for fault in ORDER.faults}
    result = host(lambda h: h.run(ORDER, Written(schedule.deviations)), brief=True)
    assert all(count <= budgets[name] for name, count in result.fired.items() if name in budgets)


@pytest.mark.slow
def fired_in(examples, faults=None):
    """Return the kinds that fired in so many drawn runs."""
    fired = set()

    @seed(1)
    @settings(QUIETLY, max_examples=examples, phases=[Phase.generate])
    @given(schedule=schedules(ORDER, faults=faults))
    def draw(schedule):
        fired.update(host(lambda h: h.run(ORDER, Written(schedule.deviations)), brief=True).fired)

    draw()
    return fired


def test_every_kind_of_fault_can_be_drawn_and_crashes_in_recovery_too():
    """Few sites can refuse anything but an append, and all come after a crash: among all kinds they are rare."""
    left = {fault.name for fault in ORDER.faults} - fired_in(300)
    assert left <= {"store-refused", "stale-read", "step-timeout", "append-answer-lost"}
    assert {*left, "crash-in-recovery"} <= fired_in(300, ["crash-before", "cancel", *sorted(left)])


@settings(QUIETLY, max_examples=50)
@given(schedule=schedules(ORDER, faults=["crash-before"]))
def test_only_faults_that_were_asked_for_are_drawn(schedule):
    assert {"crash-before"} >= {deviation.do for deviation in schedule.deviations}


def test_a_kind_that_is_none_of_the_scenario_s_is_refused():
    with pytest.raises(WrongUsage, match="did you mean 'crash-before'"):
        schedules(ORDER, faults=["crash-befroe"])


# ---- shrinking -------------------------------------------------------------------------------------------------------


def test_the_simplest_schedule_is_the_calm_one():
    assert Schedule(scenario="order_saga") == find(schedules(ORDER), lambda _: True, settings=QUIETLY)


def test_a_failure_shrinks_to_the_one_deviation_that_makes_it():
    found = find(schedules(Forgetful), lambda schedule: fails(Forgetful, schedule), settings=QUIETLY)
    assert ["crash-after"] == [deviation.do for deviation in found.deviations]


@pytest.mark.slow
def test_a_failure_that_takes_two_deviations_shrinks_to_two():
    broken = find_mutant("emit-ordinal").apply(ORDER)
    looking = settings(QUIETLY, max_examples=1500)

    def lost(schedule: Schedule) -> bool:
        return fails(broken, schedule)

    assert 2 == len(find(schedules(broken), lost, settings=looking, random=Random(4)).deviations)


# ---- in a property ---------------------------------------------------------------------------------------------------


def prop(scenario, *examples, **changed):
    """Return a property of the scenario, with these tokens as examples."""

    @settings(QUIETLY, **changed)
    @given(schedule=schedules(scenario))
    def holds(schedule):
        run(scenario, schedule).check()

    for text in examples:
        holds = example(schedule=token(text))(holds)
    return holds


def test_a_property_that_holds_passes():
    prop(Steady)()


def test_what_a_failing_property_prints_can_be_pasted_as_an_example():
    with pytest.raises(InvariantFailed) as failed:
        prop(Forgetful)()
    printed = next(line for line in failed.value.__notes__[0].splitlines() if "schedule=" in line)
    text = printed.partition("token('")[2].partition("')")[0]

    with pytest.raises(InvariantFailed, match="FAIL written-once"):
        prop(Forgetful, text, phases=[Phase.explicit])()


def test_the_database_keeps_a_failure_and_replays_it():
    kept = InMemoryExampleDatabase()
    with pytest.raises(InvariantFailed):
        prop(Forgetful, database=kept)()

    with pytest.raises(InvariantFailed, match="FAIL written-once"):
        prop(Forgetful, database=kept, phases=[Phase.reuse])()
    prop(Steady, database=kept, phases=[Phase.reuse])()


def test_the_text_of_a_failing_property_ends_with_the_line_that_reproduces_it():
    with pytest.raises(InvariantFailed) as failed:
        prop(Forgetful)()
    lines = str(failed.value).splitlines()
    assert lines[0].startswith("FAIL written-once")
    assert lines[-1].startswith("Reproduce:  ")


SPITE = Fault(name="spite")


class TwoBugs(Steady):
    """A crash and a spiteful act each write an item twice: two failures of one invariant, with different keys."""

    name = "two_bugs"
    looks: ClassVar = False
    faults: ClassVar = (CRASH_BEFORE, CRASH_AFTER, SPITE)

    async def drive(self, sim):
        """Do a second wrong thing, of another kind, at a point of its own."""
        point, act = sim.enter("deliver:spite:box-1:spite", menu(tuple(sim.faults), (("spite", SPITE),)))
        await sim.approach(point, act)
        if act:
            raise RuntimeError("spite")
        sim.happened(point)


def test_two_bugs_are_told_apart_while_they_shrink():
    with pytest.raises(ExceptionGroup) as failed:
        seed(1)(prop(TwoBugs, max_examples=400))()
    assert {"written-once", "unbroken"} == {error.failures[0].invariant for error in failed.value.exceptions}
    assert all(1 == len(error.failures[0].deviations) for error in failed.value.exceptions)
