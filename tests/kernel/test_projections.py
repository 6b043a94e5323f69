"""Projections: pure folds beside the kernel's own, which a pass may work in place (K-FOLD-6)."""

from __future__ import annotations

import copy
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel import SURFACES, Projection
from kernel.events import seal
from kernel.jsonform import encode
from kernel.projections import ProjectionPass

COUNT = Projection(name="count", initial=0, apply=lambda value, _event: value + 1)  # type: ignore[operator]


def patched(number, payload, type="SURFACE_PATCH"):
    return seal(
        execution_id="x",
        sequence=number,
        type=type,
        payload_text=encode(payload),
        timestamp_ms=1,
        append_id="w/1",
        previous_hash="0" * 64,
    )


VALUES = st.one_of(st.integers(0, 3), st.just([]), st.just([[]]), st.just("text"))
PATCHES = st.one_of(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["set", "append", "increment", "odd"]),
            "surface": st.sampled_from("ab"),
            "value": VALUES,
        }
    ),
    st.sampled_from([None, {"op": "append"}]),
)


@given(st.lists(PATCHES, max_size=12))
def test_a_pass_comes_to_what_the_pure_fold_comes_to_and_changes_nothing_that_it_was_given(patches):
    # K-FOLD-1, K-FOLD-6
    events = [patched(number, patch) for number, patch in enumerate(patches)]
    payloads = copy.deepcopy([event.payload for event in events])
    pure = functools.reduce(SURFACES.apply, events, SURFACES.initial)
    for k in range(len(events) + 1):
        first = ProjectionPass([SURFACES, COUNT])
        for event in events[:k]:
            first.apply(event)
        given_on = copy.deepcopy(first.values)
        second = ProjectionPass([SURFACES, COUNT], first.values)
        for event in events[k:]:
            second.apply(event)
        assert given_on == first.values
        assert {"surfaces": pure, "count": len(events)} == second.values
    assert payloads == [event.payload for event in events]
    assert {} == SURFACES.initial


def test_the_pure_fold_changes_no_value_that_it_was_given():
    # K-FOLD-1
    before = {"chat": [1]}
    after = SURFACES.apply(before, patched(0, {"op": "append", "surface": "chat", "value": 2}))
    assert ({"chat": [1]}, {"chat": [1, 2]}) == (before, after)


@pytest.mark.parametrize("kept", [None, {"surfaces": {"chat": [0, 0], "other": []}}])
def test_a_growing_surface_is_copied_once_in_a_pass(kept):
    # K-FOLD-6
    fold = ProjectionPass([SURFACES], kept)
    append = {"op": "append", "surface": "chat", "value": 0}
    fold.apply(patched(0, append))
    surfaces, chat = fold.values["surfaces"], fold.values["surfaces"]["chat"]
    for number in range(1, 10):
        fold.apply(patched(number, append))
    assert surfaces is fold.values["surfaces"]
    assert chat is fold.values["surfaces"]["chat"]
