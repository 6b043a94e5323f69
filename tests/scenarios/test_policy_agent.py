"""What a learner is told of an agent that was compacted."""

from __future__ import annotations

import pytest

from dst.choices import Written
from dst.durable.credits import FIRST
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.verdict import Verdict
from scenarios.policy_agent import PolicyAgent


def play(begin: str = "", *more: Deviation) -> RunResult:
    first = [Deviation(at="begin:agent-1#1", do=begin)] if begin else []
    return host(lambda h: h.run(PolicyAgent, Written([*first, *more])))


def credits(result: RunResult) -> dict[str, str]:
    return {record[2]: record[4] for record in result.records if record[0] == "credited"}


ROUTES = {
    "route-b": "8.0 at discount 1.0, 4.0 at discount 0.5",
    "route-a": "8.0 at discount 1.0, 8.0 at discount 0.5",
}


@pytest.mark.parametrize("begin", ["", "log"])
def test_credit_goes_by_the_order_of_first_records_whatever_the_keys_say(begin):  # K-LEARN-1, ADR 0128
    by_first_record = {
        "10": "8.0 at discount 1.0, 1.0 at discount 0.5",
        "2": "8.0 at discount 1.0, 2.0 at discount 0.5",
        **ROUTES,
    }
    result = play(begin)
    assert by_first_record == credits(result)
    assert Verdict.PASS is result.verdict


def test_what_a_legacy_snapshot_has_absorbed_comes_first_in_no_order():  # K-FOLD-1, K-FOLD-5
    result = play("snapshot")
    assert {"10": FIRST, "2": FIRST, **ROUTES} == credits(result)
    assert Verdict.PASS is result.verdict


def test_the_first_choice_of_a_decision_that_was_recorded_twice_counts():  # K-FOLD-5
    ready = [r[-1].payload for r in play("log").records if r[0] == "emitted" and r[-1].type == "agent.ready"]
    assert [["on foot", "by day"]] * 2 == ready, "the old event, and its repeat with a stamp (ADR 0102 D8)"


def test_a_snapshot_that_an_older_kernel_wrote_is_what_its_successors_are_folded_on():
    folded = [record for record in play("snapshot").records if record[0] == "folded"]
    assert len(folded) > 1
    assert {""} == {record[3] for record in folded}
