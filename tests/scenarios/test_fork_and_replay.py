"""What forks are served, and where they are from."""

from __future__ import annotations

import pytest

from dst.choices import Written
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.verdict import Verdict
from scenarios.fork_and_replay import STRIDE, ForkAndReplay

CALM_HEADS = {"published": 12, "waiting": 9}


def play(first: int) -> RunResult:
    elsewhere = [Deviation(at="fork:first#1", do=str(first))] if first else []
    return host(lambda h: h.run(ForkAndReplay, Written(elsewhere)))


def forks(result: RunResult) -> set[str]:
    return {record[1] for record in result.records if record[0] == "forked"}


def test_in_four_ways_of_the_world_every_position_is_forked():
    made = set[str]().union(*(forks(play(first)) for first in range(STRIDE)))
    assert {f"{name}-{at}" for name, head in CALM_HEADS.items() for at in range(head + 1)} == made


@pytest.mark.parametrize("first", range(STRIDE))
def test_forks_are_sound_and_take_no_review_twice(first):  # K-RUN-5
    result = play(first)
    assert Verdict.PASS is result.verdict
    reviews = [(r[1], r[2].payload["deliveryId"]) for r in result.records if r[0] == "EXECUTION_RESUMED"]
    assert len(set(reviews)) == len(reviews)


def test_what_a_fork_has_inherited_is_not_made_again():  # K-RUN-5, K-EMIT-2
    records = play(0).records
    begun = [r[1] for r in records if r[0] == "emitted" and r[-1].type == "article.begun"]
    assert len(set(begun)) == len(begun) == 2 + len(forks(play(0)))
