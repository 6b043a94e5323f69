"""Naming the moment, over curves that are known by construction: nothing is run here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dst.cause import Search, Share, evenly, turn_of

Shares = Callable[[int], float]


def searched(
    shares: Shares, deviations: list[int], last: int, times: int = 10, budget: int = 10_000, spread: int = 0
) -> tuple[Search, bool]:
    """Search moments 0 to `last`, of which each has a known share of failing continuations."""

    async def fork(followed: int, number: int) -> bool:
        return number < round(shares(followed) * times)

    search = Search(fork, moments=range(last + 1), deviations=deviations, times=times, budget=budget)
    return search, asyncio.run(search.run(spread=spread))


def curve(*shares: tuple[int, int]) -> tuple[Share, ...]:
    return tuple(Share(followed=followed, failing=failing, of=10) for followed, failing in shares)


@given(st.data())
@settings(max_examples=100, derandomize=True, deadline=None)
def test_the_one_moment_from_which_all_fail_is_found_exactly(data):
    last = data.draw(st.integers(1, 60))
    deviations = sorted(data.draw(st.sets(st.integers(1, last), min_size=1, max_size=4)))
    turns = data.draw(st.integers(deviations[0], last))

    search, whole = searched(lambda followed: 1.0 if followed >= turns else 0.2, deviations, last)

    assert (turns, True, True) == (search.turn.at.followed, search.turn.certain, search.exact(search.turn))
    assert (True, turns - 1) == (whole, search.turn.before.followed)


def test_narrowing_down_takes_few_moments():
    search, _ = searched(lambda followed: float(followed >= 700), [3], 1_000)
    assert 700 == search.turn.at.followed
    assert len(search.curve) <= 15


def test_what_fails_before_the_first_deviation_is_not_named():
    """The share just before it is told all the same."""
    search, _ = searched(lambda followed: 1.0, [5, 9], 12)
    assert (5, 4) == (search.turn.at.followed, search.turn.before.followed)


def test_a_share_that_falls_again_is_not_certain_until_it_stays():
    falling, staying = curve((1, 0), (2, 10), (3, 5)), curve((1, 0), (2, 10), (3, 9))
    assert [(2, False), (2, True)] == [(t.at.followed, t.certain) for t in (turn_of(c, 1) for c in (falling, staying))]


def test_what_rises_to_less_than_certain_is_named_all_the_same():
    named = turn_of(curve((0, 1), (2, 2), (4, 7), (6, 8)), first=2)
    assert (4, 2, False) == (named.at.followed, named.before.followed, named.certain)


def test_it_is_found_exactly():
    search, whole = searched(lambda followed: 0.6 if followed >= 17 else 0.1, [4], 40)
    assert (17, False, True, True) == (search.turn.at.followed, search.turn.certain, search.exact(search.turn), whole)


def test_passing_a_limit_by_little_names_nothing():
    """Among few continuations one more is chance: what matters is where the share leaps."""
    named = turn_of(curve((0, 0), (3, 1), (7, 8), (8, 8), (9, 9), (12, 10)), first=3)
    assert (7, 3) == (named.at.followed, named.before.followed)


def test_of_two_large_rises_it_is_the_last():
    """After the first the failure could still be escaped."""
    assert 9 == turn_of(curve((0, 0), (3, 5), (8, 5), (9, 10)), first=3).at.followed
    assert 9 == turn_of(curve((0, 0), (3, 6), (8, 6), (9, 9)), first=3).at.followed


def test_a_small_rise_after_a_large_one_is_chance():
    assert 3 == turn_of(curve((0, 0), (3, 7), (8, 6), (9, 9)), first=3).at.followed


def test_one_that_always_gets_away_does_not_move_the_moment():
    search, _ = searched(lambda followed: 0.9 if followed >= 6 else 0.1, [6], 30, spread=8)
    assert (6, True) == (search.turn.at.followed, search.turn.certain)


def test_where_calm_runs_fail_it_is_the_start():
    search, whole = searched(lambda followed: 0.7, [], 20)
    assert (0, None, False, True) == (search.turn.at.followed, search.turn.before, search.turn.certain, whole)
    assert 10 == search.runs


@pytest.mark.parametrize("budget", [0, 9, 10, 25, 60])
def test_a_moment_is_measured_whole_or_not_at_all(budget):
    search, whole = searched(lambda followed: float(followed >= 40), [4, 8], 50, budget=budget)
    assert budget // 10 * 10 == search.runs
    assert not whole
    assert all(10 == share.of for share in search.curve)


def test_what_is_known_when_the_budget_is_out_is_told_as_not_exact():
    search, _ = searched(lambda followed: float(followed >= 40), [4, 8], 50, budget=40)
    assert (50, 29, False) == (search.turn.at.followed, search.turn.before.followed, search.exact(search.turn))


def test_nothing_measured_names_nothing():
    search, _ = searched(lambda followed: 1.0, [4], 50, budget=0)
    assert (None, ()) == (search.turn, search.curve)


@pytest.mark.parametrize(
    ("count", "among", "chosen"),
    [(0, [1, 2, 3], []), (1, [1, 2, 3], [3]), (2, [1, 2, 3], [1, 3]), (3, [0, 4, 5, 9, 11], [0, 5, 11]), (9, [7], [7])],
)
def test_moments_are_chosen_evenly(count, among, chosen):
    assert chosen == evenly(count, among)
