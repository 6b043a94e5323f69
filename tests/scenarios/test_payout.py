"""An operator who gives up is met often enough, and keeps his word."""

from __future__ import annotations

from collections import Counter

import pytest

from dst.choices import Written
from dst.judging import terms_of
from dst.run import Host, RunResult, host
from dst.schedule import Deviation
from dst.strategies.portfolio import STRATEGIES
from dst.verdict import Ending, Verdict
from scenarios.payout import Payout

CLOSED = Deviation(at="effect:payout-1/transfer#1", do="closed")
GIVES_UP = Deviation(at="operator:payout-1:transfer#1", do="gives-up")
DIES_THEN = Deviation(at="append:payout-1:EFFECT_RESOLVED:transfer#1", do="crash-after")


def play(*deviations: Deviation) -> RunResult:
    return host(lambda h: h.run(Payout, Written(deviations)))


def test_a_bank_that_is_closed_leaves_the_transfer_in_doubt():
    result = play(CLOSED)
    assert Verdict.PASS is result.verdict
    assert {"tried once more", "paid"} <= set(result.marks)


def test_who_has_given_up_says_nothing_else_when_the_worker_dies_of_it():
    """Another word than the one in the log is refused: the one on call would look again for ever."""
    result = play(CLOSED, GIVES_UP, DIES_THEN)
    assert (Ending.QUIESCENT, Verdict.PASS) == (result.ending, result.verdict)
    assert {"said failed", "refused", "freed"} <= set(result.marks)


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_no_answer_of_the_operator_is_rare(strategy):
    runs = 300

    async def body(simulations: Host) -> Counter[str]:
        reached: Counter[str] = Counter()
        proposing = STRATEGIES[strategy](terms_of(Payout, None, None))
        for seed in range(runs):
            proposal = proposing.propose(seed)
            result = await simulations.run(Payout, proposal.choices(), judged=False, spy=proposal.spy)
            proposing.saw(proposal, result)
            reached.update(result.marks.keys())
        return reached

    reached = host(body)
    assert not {mark: count for mark in Payout.marks if (count := reached[mark]) < 0.04 * runs}
