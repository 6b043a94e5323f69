"""Choices: the calm one is option 0, a seed says the same for ever, a written schedule says what is written."""

from __future__ import annotations

import attrs
import pytest

from dst.choices import IDLE, Calm, Choices, Random, Resumed, Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, GO, HOLDING, Fault, menu
from dst.schedule import Deviation

WEATHER = Fault(name="weather", environmental=True)
FAULTS = (CRASH_BEFORE, CRASH_AFTER, HOLDING, WEATHER)
MENU = menu(
    FAULTS, (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER), ("hold", HOLDING), ("rain", WEATHER))
)
CRASHES = menu(FAULTS, (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER)))


def chosen(choices: Choices, passes: int = 40, sites: int = 30) -> list[str]:
    """What is done at each point of a fixed walk over `sites` sites."""
    return [
        MENU.names[choices.choose(f"site-{site}", f"site-{site}#{nth}", MENU)]
        for nth in range(1, passes + 1)
        for site in range(sites)
    ]


def test_the_calm_option_comes_first():
    assert GO == MENU.names[0]
    assert MENU.options[0].fault is None


def test_calm_does_nothing():
    assert {GO} == set(chosen(Calm()))
    assert IDLE == Calm().hold_until("anything#1")


def test_a_menu_holds_only_what_is_allowed_and_is_made_once():
    only = menu((WEATHER,), (("crash-before", CRASH_BEFORE), ("rain", WEATHER)))
    assert (GO, "rain") == only.names
    assert only is menu((WEATHER,), (("crash-before", CRASH_BEFORE), ("rain", WEATHER)))
    assert only.index("crash-before") is None


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_says_the_same_again(seed):
    assert chosen(Random(seed, FAULTS)) == chosen(Random(seed, FAULTS))


def test_what_random_does_for_a_seed_is_pinned():
    walk = ["site-0", "site-1", "site-2"] * 8
    choices = Random(23, FAULTS, rate=0.3)
    done = [choices.choose(site, f"{site}#{nth}", MENU) for nth, site in enumerate(walk)]
    pinned = [0, 0, 0, 2, 2, 0, 0, 2, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0, 0, 0]
    assert pinned == done, "seeds that were written down mean something else now"


def test_the_settings_of_a_run_do_not_depend_on_what_it_passes():
    """Kinds and rates come from a stream of their own, drawn before anything is asked."""
    for seed in range(40):
        early, late = Random(seed, FAULTS), Random(seed, FAULTS)
        chosen(early)
        assert (early._kinds, vars(early._process), vars(early._world)) == (
            late._kinds,
            vars(late._process),
            vars(late._world),
        )


def test_another_rate_does_not_change_which_kinds_take_part():
    for seed in range(40):
        assert Random(seed, FAULTS)._kinds == Random(seed, FAULTS, rate=0.5)._kinds


def test_some_kind_always_takes_part():
    assert all(Random(seed, FAULTS)._kinds for seed in range(300))
    assert all({"weather"} == Random(seed, (WEATHER,))._kinds for seed in range(50))


def test_kinds_are_a_swarm():
    """Over seeds, each kind is sometimes in and sometimes out."""
    for fault in FAULTS:
        taking_part = sum(fault.name in Random(seed, FAULTS)._kinds for seed in range(200))
        assert 60 < taking_part < 150, fault.name


def test_choices_have_two_levels():
    """Within a run a site is on or off: where nothing has happened in 200 passes, nothing happens in 200 more."""
    endless = (attrs.evolve(CRASH_BEFORE, budget=10**6), attrs.evolve(CRASH_AFTER, budget=10**6))
    crashes = menu(endless, (("crash-before", endless[0]), ("crash-after", endless[1])))
    on = off = 0
    for seed in range(30):
        choices = Random(seed, endless)
        for site in range(20):
            halves = [sum(choices.choose(f"s{site}", f"s{site}#1", crashes) != 0 for _ in range(200)) for _ in "12"]
            on, off = on + all(halves), off + (halves == [0, 0])
    assert on + off == 30 * 20
    assert on > 50
    assert off > on


def test_a_rate_of_none_is_never_and_of_one_is_always_until_the_budget_is_used():
    assert {GO} == set(chosen(Random(3, (WEATHER,), rate=0.0)))
    assert ["rain"] * WEATHER.budget + [GO] * 5 == chosen(Random(3, (WEATHER,), rate=1.0))[: WEATHER.budget + 5]


def test_each_kind_is_used_within_its_budget():
    for seed in range(100):
        done = chosen(Random(seed, FAULTS))
        assert all(done.count(option.name) <= option.fault.budget for option in MENU.options[1:])


def test_a_fault_that_is_not_offered_is_never_done():
    done = {name for seed in range(60) for name in chosen(Random(seed, (WEATHER, CRASH_AFTER)), passes=5)}
    assert {GO, "rain", "crash-after"} == done


def test_no_faults_is_calm():
    assert {GO} == set(chosen(Random(1, ())))


def test_holds_last_from_one_to_sixteen_operations_and_mostly_few():
    choices = Random(8, FAULTS)
    lengths = [choices.hold_until("x#1") for _ in range(2000)]
    assert (1, 16) == (min(lengths), max(lengths))
    assert sorted(lengths)[1000] <= 4


# ---- written ---------------------------------------------------------------------------------------------------------

CRASH = Deviation(at="a#2", do="crash-before")
HOLD = Deviation(at="b#1", do="hold", until="c#1")


def test_written_does_what_is_written_where_it_is_written():
    choices = Written((CRASH, HOLD))
    walk = [("a", "a#1"), ("b", "b#1"), ("a", "a#2"), ("a", "a#3")]
    assert [GO, "hold", "crash-before", GO] == [MENU.names[choices.choose(site, at, MENU)] for site, at in walk]
    assert "c#1" == choices.hold_until("b#1")


def test_written_tells_what_has_not_found_its_point():
    choices = Written((CRASH, HOLD))
    choices.choose("a", "a#2", MENU)
    assert (HOLD,) == choices.missed
    choices.choose("b", "b#1", MENU)
    assert () == choices.missed


def test_what_cannot_be_done_at_its_point_is_missed_and_harms_nothing():
    choices = Written((HOLD,))
    assert 0 == choices.choose("b", "b#1", CRASHES)
    assert (HOLD,) == choices.missed


def test_written_does_a_thing_once():
    choices = Written((CRASH,))
    assert [1, 0] == [choices.choose("a", "a#2", MENU) for _ in range(2)]


# ---- resumed ---------------------------------------------------------------------------------------------------------


def test_what_resumes_is_asked_from_the_last_deviation_on():
    choices = Resumed((Deviation(at="b#1", do="crash-after"),), Random(23, (WEATHER,), rate=1))
    done = [MENU.names[choices.choose(site, f"{site}#1", MENU)] for site in "abcd"]
    assert ["go", "crash-after", "rain", "rain"] == done


def test_what_resumes_calmly_is_what_is_written():
    held = Deviation(at="a#1", do="hold", until="b#1")
    choices = Resumed((held, Deviation(at="a#1", do="crash-before")), Calm())
    assert MENU.index("hold") == choices.choose("a", "a#1", MENU)
    assert "b#1" == choices.hold_until("a#1")
    assert MENU.index("crash-before") == choices.after_hold("a#1", MENU)
    assert 0 == choices.choose("b", "b#1", MENU)
    assert IDLE == choices.hold_until("b#1"), "a hold of whoever goes on is theirs"
    assert Resumed((attrs.evolve(held, at="call:a#1"),), Calm()).at_calls


SELDOM_ASKED = Fault(name="says-no", rate=0.5)


def test_a_kind_with_a_rate_of_its_own_fires_at_that_rate_in_every_run():
    """Other kinds take part in half of the runs, at some of the sites; they are drawn where it does not fire."""
    faults = (*FAULTS, attrs.evolve(SELDOM_ASKED, budget=1000))
    asked = menu(faults, (("no", faults[-1]), ("rain", WEATHER)))
    for seed in range(20):
        choices = Random(seed, faults)
        done = [choices.choose(f"site-{n}", f"site-{n}#1", asked) for n in range(400)]
        assert 150 < done.count(1) < 250, seed


def test_a_kind_with_a_rate_of_its_own_keeps_to_its_budget_and_to_the_rate_of_the_campaign():
    asked = menu((SELDOM_ASKED,), (("no", SELDOM_ASKED),))
    within, never = Random(1, (SELDOM_ASKED,)), Random(1, (SELDOM_ASKED,), rate=0.0)
    assert SELDOM_ASKED.budget == sum(within.choose("site", f"site#{n}", asked) for n in range(400))
    assert not any(never.choose("site", f"site#{n}", asked) for n in range(400))


def test_a_kind_with_a_rate_of_its_own_does_not_fire_where_it_is_not_allowed():
    asked = menu((SELDOM_ASKED, WEATHER), (("no", SELDOM_ASKED), ("rain", WEATHER)))
    assert 1 not in {Random(seed, (WEATHER,)).choose("site", "site#1", asked) for seed in range(100)}


@pytest.mark.parametrize("rate", [0, -0.1, 1.5])
def test_a_rate_that_is_no_share_is_refused(rate):
    with pytest.raises(ValueError, match=f"'rate' must be .*: {rate}"):
        Fault(name="f", rate=rate)
