"""What is particular to the swarm: who hears of a child from whom."""

from __future__ import annotations

import pytest

from dst.choices import Calm, Written
from dst.durable.families import FamilyScenario
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.verdict import Verdict
from scenarios.research_swarm import ARCHIVE, LEAD, ResearchSwarm

ARCHIVE_ENDS = f"observe:{ARCHIVE}:EXECUTION_COMPLETED#1"


def run(*deviations: tuple[str, str]) -> RunResult:
    choices = Written([Deviation(at=at, do=do) for at, do in deviations])
    result = host(lambda h: h.run(ResearchSwarm, choices), brief=True)
    assert () == choices.missed
    assert Verdict.PASS is result.verdict, result.judgement.violations
    return result


def seconds(result: RunResult) -> float:
    return max((record[1] for record in result.records if record[0] == "clock"), default=0) / 1e9


def landed(result: RunResult, kind: str, execution: str) -> int:
    return sum(record[:2] == (kind, execution) for record in result.records)


def test_a_calm_run_takes_no_time_and_each_child_starts_once():
    # K-CHILD-2: nobody has to sweep
    result = host(lambda h: h.run(ResearchSwarm, Calm()), brief=True)
    assert (0, 5) == (
        seconds(result),
        sum(record[0] == "EXECUTION_STARTED" and "::" in record[1] for record in result.records),
    )
    assert ["all was read"] == list(result.marks)


@pytest.mark.parametrize("act", ["missed", "late"])
def test_a_parent_hears_from_a_sweep_what_its_supervisor_was_not_told(act):
    # K-CHILD-2: the archive's reader is the last to end, so that nothing comes after its end
    result = run((ARCHIVE_ENDS, act))
    assert FamilyScenario.swept_mark in result.marks
    assert 15 == seconds(result)


def test_an_end_that_is_observed_twice_is_heard_once():
    # K-CHILD-2
    result = run((ARCHIVE_ENDS, "twice"))
    heard = [r for r in result.records if r[0] in ("GATE_DELIVERED", "EXECUTION_RESUMED") and r[1] == LEAD]
    assert (5, 0) == (len(heard), seconds(result)), "four readers and a writer, and no sweep"


def test_a_supervisor_that_dies_with_its_worker_goes_on_where_it_was():
    # K-CHILD-2: what it knew is gone, the children are not started again
    result = run((f"append:{ARCHIVE}:EXECUTION_STARTED#1", "crash-after"))
    assert 1 == landed(result, "EXECUTION_STARTED", ARCHIVE)
    assert 1 == landed(result, "EXECUTION_COMPLETED", LEAD)


def test_a_fork_of_a_parked_parent_hears_of_the_same_children():
    # K-CHILD-2: from a sweep, for nobody has observed what it waits for
    result = run((f"append:{ARCHIVE}:STEP_STARTED:read#1", "fork"))
    fork = f"{LEAD}-fork-1"
    assert 1 == landed(result, "EXECUTION_COMPLETED", fork)
    assert 1 == landed(result, "EXECUTION_STARTED", ARCHIVE)
    assert 1 == landed(result, "EXECUTION_COMPLETED", f"{fork}::report"), "decided on after the fork: its own"
