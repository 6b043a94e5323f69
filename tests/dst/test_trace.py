"""The trace: the same bytes with orjson and without, and nothing in it that differs between Pythons."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dst import trace
from dst.trace import digest, encode, encode_slowly, first_difference

FIELDS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)
RECORDS = st.lists(st.tuples(st.text(max_size=8), FIELDS, FIELDS), max_size=8)


class Worded:
    """As envelopes are: a canonical text stands for the object."""

    def __init__(self, text: object) -> None:
        self.text = text


@pytest.fixture(params=[True, False], ids=["orjson", "pure"])
def _either(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(trace, "orjson", None)


@given(RECORDS)
@settings(max_examples=300, derandomize=True, deadline=None)
def test_both_ways_to_write_give_the_same_bytes(records):
    assert encode_slowly(records) == encode(records)


def test_every_character_is_written_alike():
    for start in range(0, 0x11000, 0x800):
        text = "".join(map(chr, range(start, start + 0x800))) if not 0xD800 <= start < 0xE000 else ""
        assert encode_slowly([("t", text)]) == encode([("t", text)])


def test_an_object_is_written_as_its_text():
    assert (
        b'[["event","{\\"a\\":1}"]]'
        == encode([("event", Worded('{"a":1}'))])
        == encode_slowly([("event", Worded('{"a":1}'))])
    )


@pytest.mark.usefixtures("_either")
def test_the_digest_is_pinned():
    records = [("start", "worker.1"), ("clock", 1_000_000_000), ("final", "é", None, True, (1, ("x",)))]
    assert "9c6ff20087f02be41dda6a3dafc346d0" == digest(records), (
        "traces that were written down have other identities now"
    )


class Colour(enum.Enum):
    RED = 1


@dataclass
class Point:
    x: int


FOREIGN = {
    "float": 1.5,
    "whole float": 1.0,
    "nan": float("nan"),
    "float in a tuple": (1, (2, 0.5)),
    "object": object(),
    "set": {1},
    "bytes": b"x",
    "type": int,
    "text that is none": Worded(5),
    "uuid": uuid.UUID(int=0),
    "enum": Colour.RED,
    "dataclass": Point(1),
    "error": ValueError("x"),
}


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("name", FOREIGN)
def test_what_differs_between_pythons_is_refused(name):
    with pytest.raises((TypeError, ValueError)):
        encode([("note", FOREIGN[name])])


# ---- where two traces part -------------------------------------------------------------------------------------------

A, B, C = ("a", 1), ("b", (2, None)), ("c", "x")


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [
        ([], [], None),
        ([A, B], [A, B], None),
        ([A, B], [A, C], 1),
        ([A, B], [A, B, C], 2),
        ([], [A], 0),
        ([A], [("a", True)], 0),  # equal in Python, other bytes
        ([("a", Worded("x"))], [("a", Worded("x"))], None),  # other objects, the same bytes
        ([("a", (1,))], [("a", [1])], None),
    ],
)
def test_the_first_difference_is_found(one, other, at):
    assert at == first_difference(one, other) == first_difference(other, one)


@given(RECORDS, RECORDS)
@settings(max_examples=100, derandomize=True, deadline=None)
def test_traces_have_a_difference_exactly_if_their_digests_differ(one, other):
    assert (first_difference(one, other) is None) == (digest(one) == digest(other))
