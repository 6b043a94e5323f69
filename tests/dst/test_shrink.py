"""Shrinking, over schedules that fail by a rule that can be said: nothing is run here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Fault, Strength, menu
from dst.passings import Passing
from dst.schedule import Deviation
from dst.shrink import Shrunk, shrink

LOST, REFUSED = Fault(name="lost", strength=Strength.UNTOLD), Fault(name="refused")
STALE = Fault(name="stale", strength=Strength.UNTOLD)

Rule = Callable[[frozenset[str]], bool]


def deviation(text: str) -> Deviation:
    return Deviation(at=text if "#" in text else f"{text}#1", do="x")


def names(deviations: Sequence[Deviation]) -> list[str]:
    return [d.at for d in deviations]


def run(
    start: str, rule: Rule, budget: int = 400, took_place: Callable[[list[str]], list[str]] = list
) -> tuple[Shrunk, list[list[str]]]:
    """Shrink `start` (points, blank between) by a rule over the points that took place."""
    tried: list[list[str]] = []

    async def fails(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...] | None:
        happened = took_place(names(deviations))
        tried.append(names(deviations))
        return tuple(d for d in deviations if d.at in happened) if rule(frozenset(happened)) else None

    return asyncio.run(shrink([deviation(text) for text in start.split()], fails, budget)), tried


def test_what_is_not_needed_goes():
    shrunk, _ = run("a b c d e f g h", lambda s: {"b#1", "g#1"} <= s)
    assert (["b#1", "g#1"], True) == (names(shrunk.deviations), shrunk.minimal)


def test_nothing_may_be_left():
    shrunk, _ = run("a b c", lambda s: True)
    assert ([], True) == (names(shrunk.deviations), shrunk.minimal)


def test_what_is_minimal_stays_and_that_was_tried():
    shrunk, tried = run("a b", lambda s: {"a#1", "b#1"} <= s)
    assert (["a#1", "b#1"], True) == (names(shrunk.deviations), shrunk.minimal)
    assert ["a#1"] in tried
    assert ["b#1"] in tried


@given(st.sets(st.integers(0, 11), min_size=0, max_size=5), st.integers(1, 12))
@settings(max_examples=120, derandomize=True, deadline=None)
def test_a_set_that_is_needed_is_found_exactly(needed, size):
    needed = {n % size for n in needed}
    shrunk, _ = run(" ".join(f"p{n}" for n in range(size)), lambda s: {f"p{n}#1" for n in needed} <= s)
    assert (sorted(f"p{n}#1" for n in needed), True) == (sorted(names(shrunk.deviations)), shrunk.minimal)


@given(st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=4))
@settings(max_examples=120, derandomize=True, deadline=None)
def test_minimal_means_that_no_single_one_can_go(ways):
    """Any rule at all: several ways to fail, none of them monotone in the others."""

    def rule(s: frozenset[str]) -> bool:
        return any({f"p{n}#1" for n in way} <= s for way in ways) and len(s) % 5 != 4

    everything = " ".join(f"p{n}" for n in range(8))
    shrunk, _ = run(everything, rule)
    left = frozenset(names(shrunk.deviations))
    assert rule(left)
    assert shrunk.minimal
    assert not any(rule(left - {one}) for one in left)


def test_removing_what_happened_first_counts_down_what_happens_later():
    """Without it `a#1` gone makes `a#2` never happen, and the schedule would seem to need both."""

    def took_place(points: list[str]) -> list[str]:  # the second passing is there only if the first one failed
        return [p for p in points if p != "a#2" or "a#1" in points]

    shrunk, _ = run("a#1 a#2", lambda s: bool(s), took_place=took_place)
    assert ["a#1"] == names(shrunk.deviations)
    shrunk, tried = run("c#1 a#2 b#3", lambda s: {"a#2", "b#3", "c#1"} == s or {"a#1", "b#2"} == s)
    assert ["a#1", "b#2"] in tried
    assert (["a#1", "b#2"], True) == (names(shrunk.deviations), shrunk.minimal)


def test_the_site_of_what_was_removed_may_be_counted_down_alone():
    """A card that is not declined the first time leaves the passings of other places where they are."""
    shrunk, _ = run("a#1 b#2 a#3", lambda s: s in ({"a#1", "b#2", "a#3"}, {"b#2", "a#2"}))
    assert ["b#2", "a#2"] == names(shrunk.deviations)


def test_it_happens_at_an_earlier_occurrence_if_it_can():
    shrunk, _ = run("a#7", lambda s: bool(s & {"a#7", "a#5", "a#3"}))
    assert ["a#3"] == names(shrunk.deviations)


def test_what_took_place_is_kept_and_not_what_was_asked_for():
    shrunk, _ = run("a b c", lambda s: "a#1" in s, took_place=lambda points: [p for p in points if p != "b#1"])
    assert ["a#1"] == names(shrunk.deviations)


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 11])
def test_the_budget_is_kept_and_the_best_so_far_returned(budget):
    def rule(s: frozenset[str]) -> bool:
        return {"p1#1", "p6#1", "p8#1"} <= s

    shrunk, tried = run(" ".join(f"p{n}" for n in range(10)), rule, budget)
    assert len(tried) == shrunk.runs <= budget
    assert rule(frozenset(names(shrunk.deviations)))
    assert not shrunk.minimal
    failing = [t for t in tried if rule(frozenset(t))]
    assert len(shrunk.deviations) == min([10, *map(len, failing)])


def test_no_schedule_is_run_twice():
    _, tried = run("a b c d e f#3 g", lambda s: {"b#1", "g#1"} <= s)
    assert len(tried) == len({tuple(t) for t in tried})


def test_a_run_that_fails_otherwise_is_not_taken():
    """`fails` says None for another signature: the schedule that keeps the first one stays."""
    shrunk, _ = run("a b", lambda s: {"a#1", "b#1"} <= s or not s)
    assert ["a#1", "b#1"] == names(shrunk.deviations)


def test_progress_is_told_after_each_run():
    told: list[tuple[int, int]] = []

    async def fails(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...] | None:
        return deviations if "a#1" in names(deviations) else None

    shrunk = asyncio.run(
        shrink([deviation(t) for t in "abcd"], fails, progress=lambda runs, left: told.append((runs, left)))
    )
    assert list(range(1, shrunk.runs + 1)) == [runs for runs, _ in told]
    assert 1 == told[-1][1] == min(left for _, left in told)


# ---- what the run came to is known -----------------------------------------------------------------------------------

CRASH: tuple[tuple[str, Fault], ...] = (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER))
EFFECT = menu(
    (CRASH_BEFORE, CRASH_AFTER, HOLDING, LOST, REFUSED, STALE),
    (*CRASH, ("hold", HOLDING), ("lost", LOST), ("refused", REFUSED), ("hide-1", STALE), ("hide-2", STALE)),
)


def life(*points: str, node: str = "worker.1") -> list[Passing]:
    """One node comes to these points, one after the other."""
    return [
        Passing(at=f"{p}#1", menu=EFFECT, node=node, task=node, came=2 * i, done=2 * i + 1, footprint=frozenset())
        for i, p in enumerate(points, 1)
    ]


def run_seen(
    start: Deviation, rule: Callable[[tuple[Deviation, ...]], bool], passings: Sequence[Passing]
) -> tuple[Shrunk, list[str]]:
    tried: list[str] = []

    async def fails(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...] | None:
        tried.extend(f"{d.do} {d.at}" for d in deviations)
        return deviations if rule(deviations) else None

    async def look(_: tuple[Deviation, ...]) -> Sequence[Passing]:
        return passings

    return asyncio.run(shrink([start], fails, look=look)), tried


def doing(*acts: str) -> Callable[[tuple[Deviation, ...]], bool]:
    return lambda deviations: bool(deviations) and all(f"{d.do} {d.at}" in acts for d in deviations)


@pytest.mark.parametrize(
    ("fails_with", "left"),
    [
        (("lost a#1",), "lost"),
        (("lost a#1", "refused a#1"), "refused"),
        (("lost a#1", "hide-2 a#1"), "lost"),  # as strong
        (("crash-after a#1", "refused a#1", "lost a#1"), "refused"),
        (("hide-2 a#1", "hide-1 a#1"), "hide-1"),  # of one kind the one that is listed first
        (("hide-1 a#1", "hide-2 a#1"), "hide-1"),
        (("refused a#1", "lost a#1"), "refused"),
    ],
)
def test_the_weakest_fault_that_fails_alike_is_left(fails_with, left):
    shrunk, _ = run_seen(Deviation(at="a#1", do=fails_with[0].split()[0]), doing(*fails_with), life("a"))
    assert ((Deviation(at="a#1", do=left),), True) == (shrunk.deviations, shrunk.minimal)


def test_what_an_operator_does_is_neither_weaker_nor_stronger():
    apart = Fault(name="apart", strength=None)
    choices = menu((apart, LOST), (("apart", apart), ("lost", LOST)))
    assert ((), ()) == (choices.weaker("apart"), choices.weaker("lost"))


def test_a_crash_comes_as_early_in_the_life_of_its_node_as_still_fails():
    fails_with = ("crash-before d#1", "crash-after b#1", "crash-after c#1")
    shrunk, tried = run_seen(Deviation(at="d#1", do="crash-before"), doing(*fails_with), life("a", "b", "c", "d"))
    assert ((Deviation(at="b#1", do="crash-after"),), True) == (shrunk.deviations, shrunk.minimal)
    assert {"crash-before a#1", "crash-after a#1"} <= set(tried)  # what is earlier was tried


def test_a_crash_stays_in_its_life():
    fails_with = ("crash-before b#1", "crash-after a#1")
    passings = [*life("a", node="worker.1"), *life("b", node="worker.2")]
    shrunk, _ = run_seen(Deviation(at="b#1", do="crash-before"), doing(*fails_with), passings)
    assert (Deviation(at="b#1", do="crash-before"),) == shrunk.deviations


@pytest.mark.parametrize("gone", ["weaken", "crash_earlier"])
def test_these_are_found_by_these_passes_alone(monkeypatch, gone):
    """Planted: without the pass what is found stays as it was."""

    async def nothing(_: object) -> None:
        pass

    monkeypatch.setattr(f"dst.shrink._Shrinker.{gone}", nothing)
    start, other = {
        "weaken": (Deviation(at="b#1", do="lost"), "refused b#1"),
        "crash_earlier": (Deviation(at="b#1", do="crash-before"), "crash-after a#1"),
    }[gone]
    shrunk, _ = run_seen(start, doing(f"{start.do} b#1", other), life("a", "b"))
    assert (start,) == shrunk.deviations


def test_once_stopped_the_best_so_far_is_returned():
    runs: list[int] = []

    async def fails(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...] | None:
        runs.append(len(deviations))
        return deviations if "a#1" in names(deviations) else None

    shrunk = asyncio.run(shrink([deviation(t) for t in "abcdefgh"], fails, stopped=lambda: len(runs) >= 2))
    assert (2, 4, False) == (shrunk.runs, len(shrunk.deviations), shrunk.minimal)
