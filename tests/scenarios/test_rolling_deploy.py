"""What a deploy does to an order under way, and the one loss that is declared."""

from __future__ import annotations

import pytest

from dst.choices import Calm, Written
from dst.durable.invariants import NoEmitLost
from dst.invariants import Judge
from dst.mutant import exchange
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.verdict import Verdict
from kernel import Parts
from kernel.events import EXECUTION_BLOCKED, EXECUTION_COMPLETED
from scenarios.mutants.emit import ContentGlobal, NoLiveGuard, NoSegment, Ordinal, RollingDigest
from scenarios.rolling_deploy import MOVED, RollingDeploy

SCREENED_AND_DIED = Deviation(at="append:order-1:STEP_COMPLETED:screen#1", do="crash-after")
TAKEN = "the new notice was taken for the old one"


def play(*deviations: Deviation, **exchanged: object) -> RunResult:
    scenario = exchange(**exchanged)(RollingDeploy)
    return host(lambda h: h.run(scenario, Written(deviations) if deviations else Calm()))


def emitted(result: RunResult) -> list[str]:
    return [record[-1].type for record in result.records if record[0] == "emitted"]


def test_a_notice_behind_a_live_step_is_given_again():  # K-EMIT-2
    assert 2 == emitted(play()).count("order.notice")
    assert TAKEN not in play().marks


def test_one_behind_a_step_that_is_served_is_taken_for_the_old_one():  # K-EMIT-8, ADR 0102 D2 (a)
    result = play(SCREENED_AND_DIED)
    assert 1 == emitted(result).count("order.notice")
    assert (1, Verdict.PASS) == (result.marks[TAKEN], result.verdict)


@pytest.mark.parametrize("moved", [(), [(1, "order.notice")], [(0, "order.clerk")]])
def test_only_what_is_declared_is_accepted(moved):
    records = play(SCREENED_AND_DIED).records
    (violation,) = Judge([NoEmitLost(moved=moved)]).judge(records).violations
    assert violation.key.startswith("order-1/0/order.notice/")
    assert () == Judge([NoEmitLost(moved=[MOVED])]).judge(records).violations


def test_a_bad_version_blocks_the_order_and_loses_nothing():  # K-FLOW-9
    result = play()
    types = [record[-1].type for record in result.records if hasattr(record[-1], "sequence")]
    assert 1 == types.count(EXECUTION_BLOCKED)
    assert EXECUTION_COMPLETED == types[-1]
    assert [1, 1, 1] == [emitted(result).count(f"order.{what}") for what in ("received", "approved", "dispatched")]


RULES = {
    Ordinal: {(0, "order.notice"), (0, "order.screened")},
    RollingDigest: {(0, "order.notice")},
    ContentGlobal: {(0, "order.notice"), (1, "order.clerk")},
    NoLiveGuard: {(0, "order.notice")},
    NoSegment: {(1, "order.clerk")},
}


@pytest.mark.parametrize("rule", RULES)
def test_a_deploy_alone_shows_what_a_rejected_rule_loses(rule):  # ADR 0102 D7
    violations = play(parts=Parts(emit_rule=rule)).judgement.violations
    lost = {(int(v.key.split("/")[1]), v.key.split("/")[2]) for v in violations}
    assert {"no-emit-lost"} == {violation.invariant for violation in violations}
    assert RULES[rule] == lost
