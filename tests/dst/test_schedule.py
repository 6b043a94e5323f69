"""Schedules as files: what is written is read again, and whatever else a file holds is refused by name and place."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dst.schedule import BadSchedule, Deviation, Schedule, parse

TEXT = st.text(max_size=30)  # of all characters there are, lone surrogates left out
LONE = st.text(st.characters(), max_size=10)
SCHEDULES = st.builds(
    Schedule,
    scenario=TEXT,
    mutant=st.none() | TEXT,
    seed=st.none() | st.integers(-(2**70), 2**70),
    versions=st.dictionaries(TEXT, TEXT, max_size=3).map(lambda d: tuple(d.items())),
    deviations=st.lists(st.builds(Deviation, at=TEXT, do=TEXT, until=TEXT), max_size=6).map(tuple),
)
GOOD = {
    "format": 1,
    "scenario": "order_saga",
    "mutant": None,
    "seed": 7,
    "versions": {"scenario": "1"},
    "deviations": [{"at": "a#1", "do": "hold", "until": "b#1"}, {"at": "c#2", "do": "crash-before"}],
}


def good(**changes: object) -> str:
    return json.dumps({**GOOD, **changes})


@given(SCHEDULES)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_what_is_written_is_read(schedule):
    assert schedule == parse(schedule.to_text(), "x")


@given(st.builds(Deviation, at=LONE, do=LONE, until=LONE))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_even_half_characters_are_read(deviation):
    schedule = Schedule(scenario="s", deviations=(deviation,))
    assert schedule == parse(schedule.to_text(), "x")


def test_a_file_has_one_deviation_a_line_and_plain_ascii():
    schedule = parse(good(scenario="pão"), "x")
    lines = schedule.to_text().splitlines()
    assert 2 == sum('"at"' in line for line in lines)
    assert schedule.to_text().isascii()


def test_the_same_schedule_is_the_same_text():
    assert parse(good(), "x").to_text() == parse(parse(good(), "x").to_text(), "y").to_text()


def test_optional_fields_may_be_left_out():
    assert Schedule(scenario="s") == parse('{"format": 1, "scenario": "s", "deviations": []}', "x")


DEEP = 100_000
REFUSED = {
    "empty": ("", "not JSON"),
    "not JSON": ("hold a until b", "not JSON"),
    "half a file": (good()[:-20], "not JSON"),
    "too deep": ("[" * DEEP, "not JSON"),
    "too deep, in a field": (good(scenario=0).replace("0", "[" * DEEP, 1), "not JSON"),
    "a number nobody reads": (good().replace("7", "7" * 5000), "not JSON"),
    "a list": ("[]", "wanted an object"),
    "null": ("null", "wanted an object"),
    "foreign JSON": ('{"name": "package", "version": 3}', "wanted an object"),
    "no deviations": ('{"format": 1, "scenario": "s"}', "`deviations`"),
    "no format": ('{"scenario": "s", "deviations": []}', "format None"),
    "a newer format": (good(format=2), "format 2"),
    "format as text": (good(format="1"), "format '1'"),
    "format true": (good(format=True), "format True"),
    "unknown fields": (good(color="red", author="me"), "['author', 'color']"),
    "deviations of another type": (good(deviations={"at": "a"}), "`deviations`"),
    "too many deviations": (good(deviations=[0] * 10_001), "10000"),
    "too large a file": (" " * 4_000_001, "4000001 characters"),
    "scenario is no text": (good(scenario=5), "scenario: wanted a text"),
    "mutant is no text": (good(mutant=["m"]), "mutant: wanted a text"),
    "seed is no integer": (good(seed="7"), "`seed`"),
    "seed is true": (good(seed=True), "`seed`"),
    "seed is a float": (good(seed=7.0), "`seed`"),
    "seed is infinite": (good(seed=float("inf")), "`seed`"),
    "versions is a list": (good(versions=["1"]), "`versions`"),
    "versions is an empty list": (good(versions=[]), "`versions`"),
    "a version is no text": (good(versions={"scenario": 1}), "versions: wanted a text"),
    "a deviation is a text": (good(deviations=["a#1"]), "deviation 1: wanted an object"),
    "a deviation lacks do": (good(deviations=[{"at": "a#1"}]), "deviation 1: wanted an object"),
    "a deviation knows more": (good(deviations=[{"at": "a", "do": "b", "if": "c"}]), "deviation 1: wanted an object"),
    "at is a number": (good(deviations=[{"at": 1, "do": "b"}]), "deviation 1: wanted a text"),
    "the second is wrong": (good(deviations=[{"at": "a", "do": "b"}, {"at": "a", "do": None}]), "deviation 2"),
    "until is null": (good(deviations=[{"at": "a", "do": "hold", "until": None}]), "deviation 1: wanted a text"),
    "a label is too long": (good(deviations=[{"at": "a" * 2001, "do": "b"}]), "2000 characters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_schedule_is_refused_where_it_is_wrong(case):
    text, said = REFUSED[case]
    with pytest.raises(BadSchedule) as caught:
        parse(text, "runs/x.json")
    assert str(caught.value).startswith("runs/x.json")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_no_depth_of_nesting_gets_past_the_reader_and_breaks_what_comes_after():
    """A value that could just be read is shown in the error: that must not recurse further than reading did."""
    limit = sys.getrecursionlimit()
    for depth in range(limit - 150, limit + 50, 3):
        with pytest.raises(BadSchedule):
            parse(good(scenario="DEEP").replace('"DEEP"', "[" * depth + "]" * depth), "x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["format", "scenario", "deviations", "at", "do", "until", "seed", "versions"]),
                inner,
                max_size=8,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_any_json_is_a_schedule_or_a_bad_one(value):
    for text in (json.dumps(value), good(deviations=value), good(versions=value), good(seed=value)):
        try:
            read = parse(text, "x")
        except BadSchedule:
            continue
        assert read == parse(read.to_text(), "x")


@given(st.text(max_size=200))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_any_text_is_a_schedule_or_a_bad_one(text):
    with pytest.raises(BadSchedule):
        parse(text, "x")


# ---- deviations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "site", "occurrence"),
    [
        ("append:order-1:STEP_COMPLETED:charge#1", "append:order-1:STEP_COMPLETED:charge", 1),
        ("effect:o/refund#compensate:1#12", "effect:o/refund#compensate:1", 12),
        ("two\nlines#3", "two\nlines", 3),
        ("task:worker", "task:worker", 1),
        ("#4", "", 4),
    ],
)
def test_a_point_is_a_site_and_its_occurrence(at, site, occurrence):
    deviation = Deviation(at=at, do="hold")
    assert (site, occurrence) == (deviation.site, deviation.occurrence)


@pytest.mark.parametrize(
    ("deviation", "said"),
    [
        (Deviation(at="a#1", do="crash-after"), "crash-after at a#1"),
        (Deviation(at="a#1", do="hold", until="b#2"), "hold a#1 until b#2"),
        (Deviation(at="a#1", do="hold", until="idle"), "hold a#1 until nothing else can run"),
    ],
)
def test_a_deviation_reads_as_a_sentence(deviation, said):
    assert said == deviation.sentence()


def test_other_deviations_come_from_no_seed():
    schedule = parse(good(), "x").with_deviations(())
    assert (None, ()) == (schedule.seed, schedule.deviations)
