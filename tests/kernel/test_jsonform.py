"""The canonical JSON form (K-JSON): exact expectations, refusals with their paths, and laws over generated values."""

import importlib.util
import json
import math
import pickle
import struct
import sys
from collections import OrderedDict, defaultdict, namedtuple
from datetime import datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock
from uuid import UUID

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import jsonform
from kernel.jsonform import (
    DEPTH_MAX,
    DEPTH_MAX_STORED,
    SAFE_INTEGER_MAX,
    Json,
    MalformedJson,
    NoJsonForm,
    decode,
    decode_canonical,
    encode,
    fresh,
)

# --- Values to test with -------------------------------------------------------------------------------------------

AWKWARD = 'aZ\x00\x08\n\x1f\x7f\x80"\\/é\u2028\ud7ff\ud800\udbff\udc00\udfff\ue000\ufffd\uffff\U00010000\U0001f600'
ANY_TEXT = st.text(st.sampled_from(AWKWARD) | st.characters(), max_size=6)
UTF8_TEXT = st.text(
    st.sampled_from([c for c in AWKWARD if not "\ud800" <= c <= "\udfff"]) | st.characters(codec="utf-8")
)
SAFE_INTEGERS = st.integers(-SAFE_INTEGER_MAX, SAFE_INTEGER_MAX)
DOUBLES = st.integers(0, 2**64 - 1).map(lambda bits: float(struct.unpack("<d", struct.pack("<Q", bits))[0]))
FLOATS = st.floats() | DOUBLES | st.integers(-(10**22), 10**22).map(float) | st.sampled_from([0.1, 12.75, -0.0, 1e21])


def trees(text: st.SearchStrategy[str], floats: st.SearchStrategy[float]) -> st.SearchStrategy[object]:
    scalars = st.none() | st.booleans() | SAFE_INTEGERS | floats | text
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    )


VALUES = trees(ANY_TEXT, FLOATS)
PLAIN_VALUES = trees(st.text("abc:é1.0", max_size=5), st.floats(-1000, 1000).map(lambda value: round(value, 2)))
TEXTS = st.one_of(
    VALUES.map(lambda value: json.dumps(value, allow_nan=True)),
    VALUES.map(lambda value: json.dumps(value, allow_nan=False, separators=(",", ":")) if is_finite(value) else "[]"),
    st.text(st.sampled_from('[]{},:"0123456789-.eE \\untrfalse')),
    st.lists(st.sampled_from(["{", "}", "[", "]", ",", ":", '"a"', '"b"', "1", "1.0", "-0", "1e400", "NaN"])).map(
        "".join
    ),
    st.lists(st.sampled_from(['"a":1', '"a":{"a":2}', '"\\u0061":[]', '"b":1.0'])).map(
        lambda m: "{" + ",".join(m) + "}"
    ),
)


def is_finite(value: object) -> bool:
    return not any(word in repr(value) for word in ("nan", "inf"))


def is_encodable(value: object) -> bool:
    """Two keys that read alike once surrogate pairs are joined are refused, and generated now and then."""
    try:
        encode(value)
    except NoJsonForm:
        return False
    return True


class Money:
    def __init__(self, amount: object) -> None:
        self.amount = amount

    def to_json(self) -> object:
        return {"amount": self.amount}


class Wrapping:
    def to_json(self) -> object:
        return [Wrapping()]


class Itself:
    def to_json(self) -> object:
        return self


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Name(StrEnum):
    ADA = "ada"


class Speaking(StrEnum):
    HELLO = "hello"

    def to_json(self) -> object:
        return {"says": self.value}


class Fraction(float):
    pass


Point = namedtuple("Point", "x y")


def nested(levels: int, innermost: object) -> object:
    for _ in range(levels):
        innermost = [innermost]
    return innermost


def refusal(value: object) -> NoJsonForm:
    with pytest.raises(NoJsonForm) as caught:
        encode(value)
    return caught.value


def malformed(text: str | bytes) -> MalformedJson:
    with pytest.raises(MalformedJson) as caught:
        decode(text)
    return caught.value


def typed(value: Json) -> str:
    """A text that shows types and order as well as values: 1 and 1.0 differ, and so do 0.0 and -0.0."""
    return repr(value)


def reloaded() -> ModuleType:
    """A second copy of the module, imported under the present `sys.modules`."""
    spec = importlib.util.spec_from_file_location("jsonform_again", jsonform.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- Encoding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ("null", None),
        ("true", True),
        ("false", False),
        ("9007199254740991", 2**53 - 1),
        ("-9007199254740991", 1 - 2**53),
        ("[1,2]", (1, 2)),
        ("[]", ()),
        ("{}", {}),
        ('{"a":2,"b":1}', {"b": 1, "a": 2}),
        ('{"A":1,"a":[{"x":null,"y":"z"}],"b":2}', {"b": 2, "a": [{"y": "z", "x": None}], "A": 1}),
    ],
)
def test_plain_values_print_as_json_stringify_does_with_sorted_keys_and_no_spaces(expected: str, value: object) -> None:
    assert expected == encode(value)  # K-JSON-1, K-JSON-2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_become_null(value: float) -> None:
    assert '[null,{"x":null}]' == encode([value, {"x": value}])  # K-JSON-1
    assert "null" == encode(value)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        ("1", 1.0),
        ("0", 0.0),
        ("0", -0.0),
        ("-1", -1.0),
        ("0.1", 0.1),
        ("-2.5", -2.5),
        ("10000000000000000", 1e16),
        ("12345678901234567000", 12345678901234567890.0),
        ("100000000000000000000", 1e20),
        ("-120000000000000000000", -1.2e20),
        ("1e+21", 1e21),
        ("-1.5e+300", -1.5e300),
        ("1.7976931348623157e+308", sys.float_info.max),
        ("0.0001", 1e-4),
        ("0.00001", 1e-5),
        ("0.000001", 0.000001),
        ("-0.0000012345", -1.2345e-6),
        ("1e-7", 1e-7),
        ("-1.25e-9", -1.25e-9),
        ("5e-324", 5e-324),
        ("9007199254740992", 2.0**53),
    ],
)
def test_numbers_print_as_es6_does(expected: str, value: float) -> None:
    assert expected == encode(value)  # K-JSON-1
    assert f"[{expected}]" == encode([value])


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (r'"\b\t\n\f\r"', "\b\t\n\f\r"),
        (r'"\u0000\u0007\u000b\u001f"', "\x00\x07\x0b\x1f"),
        (r'"\"\\/"', '"\\/'),
        ('"\x7f\x80é\u2028\uffff\U0001f600"', "\x7f\x80é\u2028\uffff\U0001f600"),
        (r'"\ud800"', "\ud800"),
        (r'"\udfffx\udbff"', "\udfffx\udbff"),
        (r'"\udc00\ud800"', "\udc00\ud800"),
    ],
)
def test_strings_are_escaped_as_json_stringify_does(expected: str, value: str) -> None:
    assert expected == encode(value)  # K-JSON-1
    assert f"{{{expected}:{expected}}}" == encode({value: value})


def test_a_surrogate_pair_kept_as_two_characters_is_the_character_it_stands_for() -> None:
    assert '"\U0001f600"' == encode("\ud83d\ude00")  # K-JSON-1
    assert r'"\ud83d' + '\U0001f600"' == encode("\ud83d\ud83d\ude00")
    assert '{"\U0001f600":1}' == encode({"\ud83d\ude00": 1})


def test_keys_are_sorted_by_utf16_code_units() -> None:
    astral, replacement = "\U0001f600", "\ufffd"  # K-JSON-2
    assert astral > replacement, "the other way round as code points"
    assert f'{{"a":3,"{astral}":1,"{replacement}":2}}' == encode({replacement: 2, "a": 3, astral: 1})
    assert r'{"\ud83c":3,"' + f'{astral}":1,"{replacement}":2}}' == encode({replacement: 2, astral: 1, "\ud83c": 3})


def test_keys_that_read_alike_are_refused() -> None:
    refused = refusal({"m": {"\ud83d\ude00": 1, "\U0001f600": 2}})  # K-JSON-3
    assert "payload.m" == refused.path
    assert "second key" in str(refused)


def test_to_json_hooks_are_called_and_their_results_encoded_in_turn() -> None:
    price = Money((Money(1.0), None))  # K-JSON-1
    assert '[{"amount":[{"amount":1},null]}]' == encode([price])
    assert '{"says":"hello"}' == encode(Speaking.HELLO)


def test_a_hook_on_the_instance_alone_does_not_count() -> None:
    assert "MagicMock" == refusal(MagicMock()).what  # K-JSON-3: it answers to every name
    assert "type" == refusal(Money).what


def test_an_error_raised_by_a_hook_reaches_the_caller_unchanged() -> None:
    class Inner:
        def to_json(self) -> object:
            return encode({"deep": {1}}, at="inner")

    with pytest.raises(NoJsonForm, match=r"^inner\.deep: set has no JSON form"):
        encode([Inner()])


@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX_STORED])
def test_values_nest_up_to_the_limit_and_no_further(depth: int) -> None:
    text = encode(nested(depth, 1), depth_max=depth)  # K-JSON-3
    assert "[" * depth + "1" + "]" * depth == text
    with pytest.raises(NoJsonForm, match="nested this deeply") as caught:
        encode(nested(depth + 1, 1), depth_max=depth)
    assert "payload" + "[0]" * depth == caught.value.path


def test_very_deep_values_and_endless_hooks_are_refused_without_recursion_error() -> None:
    assert "nested this deeply" in refusal(nested(100_000, 1)).what  # K-JSON-3
    assert "nested this deeply" in refusal(Wrapping()).what


def test_a_cycle_is_named_where_it_closes() -> None:
    flow: dict[str, object] = {"steps": [0]}
    steps = flow["steps"]
    assert isinstance(steps, list)
    steps.append(flow)
    refused = refusal({"flow": flow})  # K-JSON-3
    assert "payload.flow.steps[1]" == refused.path
    assert "cycle" in str(refused)
    assert "cycle" in str(refusal([Itself()]))


def test_a_value_that_occurs_twice_is_no_cycle() -> None:
    shared = {"x": [1]}
    assert '[{"x":[1]},{"x":[1]},[{"x":[1]}]]' == encode([shared, shared, (shared,)])
    price = Money(shared)
    assert '[{"amount":{"x":[1]}},{"amount":{"x":[1]}}]' == encode([price, price])


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("datetime", datetime(2024, 1, 1)),
        ("Decimal", Decimal("1.5")),
        ("UUID", UUID(int=1)),
        ("bytes", b"x"),
        ("bytearray", bytearray(b"x")),
        ("set", {1}),
        ("frozenset", frozenset({1})),
        ("complex", 1j),
        ("ellipsis", ...),
        ("object", object()),
        ("function", refusal),
        ("Colour", Colour.RED),
        ("Level", Level.LOW),
        ("Name", Name.ADA),
        ("Fraction", Fraction(1.5)),
        ("Point", Point(1, 2)),
        ("defaultdict", defaultdict(list)),
        ("OrderedDict", OrderedDict(a=1)),
        ("a key of type int", {1: "a"}),
        ("a key of type NoneType", {None: "a"}),
        ("a key of type tuple", {("a",): "a"}),
        ("a key of type Name", {Name.ADA: "a"}),
        ("an integer beyond 2**53 - 1", 2**53),
        ("an integer beyond 2**53 - 1", -(2**53)),
        ("an integer beyond 2**53 - 1", 2**63),
        pytest.param("an integer beyond 2**53 - 1", 10**5000, id="an integer that cannot be printed"),
    ],
)
def test_a_value_without_json_form_is_refused_wherever_it_stands(what: str, value: object) -> None:
    assert (what, "payload") == (refusal(value).what, refusal(value).path)  # K-JSON-3
    assert (what, "payload[1].x") == (refusal([0, {"x": value}]).what, refusal([0, {"x": value}]).path)
    assert (what, "payload.amount[0]") == (refusal(Money((value,))).what, refusal(Money((value,))).path)


def test_the_refusal_says_where_and_what_and_what_to_do() -> None:
    payload = {"items": [1, 2, 3, {"when": datetime(2024, 1, 1)}]}
    assert (
        "payload.items[3].when: datetime has no JSON form; "
        "convert it to plain values, or give its class a `to_json()` method that returns them"
    ) == str(refusal(payload))  # K-JSON-3


def test_paths_start_at_the_given_name_and_quote_what_is_no_identifier() -> None:
    with pytest.raises(NoJsonForm) as caught:
        encode({"a b": {"": {"é": {"\ud800": [{1}]}}}}, at="input")
    assert r'input["a b"][""].é["\ud800"][0]' == caught.value.path  # K-JSON-3


def test_both_errors_survive_pickling() -> None:
    for error in (refusal([{1}]), malformed("[1,]"), malformed(b"\xff")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(error), str(error), vars(error)) == (type(again), str(again), vars(again))


# --- Decoding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        (1, "1"),
        (0, "-0"),
        (0, "-0.0"),
        (1, "1.0"),
        (100000, "1e5"),
        (1.5, "1.5"),
        (1e-7, "1e-7"),
        (2**53 - 1, "9007199254740991"),
        (1 - 2**53, "-9007199254740991"),
        (2.0**53, "9007199254740992"),
        (-(2.0**53), "-9007199254740993"),
        (2.0**63, "9223372036854775808"),
        (1e21, "1e+21"),
        (1e30, "1" + "0" * 30),
        (0, "1e-400"),
    ],
)
def test_a_number_is_an_int_iff_its_value_is_a_safe_integer(expected: int | float, text: str) -> None:
    for value in (decode(text), decode(text.encode()), decode(f" {text} ")):  # K-JSON-1
        assert typed(expected) == typed(value)
    assert typed([{"x": expected}]) == typed(decode(f'[{{"x":{text}}}]'))


@pytest.mark.parametrize("text", ["1e400", "-1e400", "9" * 400, "1" * 5000, "1.5e999"])
def test_a_number_too_large_for_a_double_is_malformed(text: str) -> None:
    error = malformed(f"[1, {text}]")  # K-JSON-1
    assert ("a number too large for a double", 4) == (error.what, error.offset)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_tokens_are_malformed(text: str) -> None:
    assert 5 == malformed(f'{{"x":{text}}}').offset  # K-JSON-1
    assert text in str(malformed(text))


@pytest.mark.parametrize(
    ("before", "duplicate"),
    [
        ('{"a":1,', '"a":2}'),
        ('{"a":1,', '"a":1}'),
        ('{"a":1,', '"\\u0061":2}'),
        ('[{"a":{"a":1}},"a",{"":1,"b":[{"":2}], ', '"" :3}]'),
    ],
)
def test_duplicate_keys_are_refused_where_they_stand(before: str, duplicate: str) -> None:
    error = malformed(before + duplicate)  # K-JSON-3
    assert "duplicate key" in error.what
    assert len(before) == error.offset


@pytest.mark.parametrize(
    "text", ["", " ", "[1,]", "{'a':1}", "[1] 2", "01", "+1", ".5", "1.", "nul", '"\n"', '"\\x"', "\ufeff1"]
)
def test_what_is_not_json_is_malformed(text: str) -> None:
    assert "malformed JSON: " in str(malformed(text))
    assert "malformed JSON: " in str(malformed(text.encode()))


def test_only_utf8_is_read() -> None:
    assert (2, "byte") == (malformed(b'["\xff"]').offset, malformed(b'["\xff"]').unit)  # K-JSON-1
    assert "byte 1" in str(malformed(b'"\xed\xa0\x80"'))
    assert (2, "character") == (malformed('["\ud800"]').offset, malformed('["\ud800"]').unit)
    assert ["é"] == decode('["é"]'.encode())


def test_texts_nest_up_to_the_limit_and_no_further() -> None:
    opening, closing = '[{"a":' * (DEPTH_MAX_STORED // 2), "}]" * (DEPTH_MAX_STORED // 2)
    assert opening + "1" + closing == encode(decode(opening + "1" + closing), depth_max=DEPTH_MAX_STORED)
    error = malformed(opening + "[1]" + closing)
    assert len(opening) == error.offset
    assert DEPTH_MAX_STORED == malformed("[" * 100_000).offset
    assert ["[" * 1000, "{" * 1000] == decode(f'["{"[" * 1000}","{"{" * 1000}"]')


def test_objects_iterate_in_canonical_order_whatever_the_order_of_the_text() -> None:
    text = '{"\ufffd":1,"b":{"d":2,"c":3},"\U0001f600":4,"a":5}'  # K-JSON-2, K-RUN-6
    assert repr({"a": 5, "b": {"c": 3, "d": 2}, "\U0001f600": 4, "\ufffd": 1}) == repr(decode(text))
    assert repr({"a": 2, "b": 1}) == repr(decode('{"b":1,"a":2}'))
    by_utf8 = '{"\ufffd":1,"\U0001f600":2}'
    assert repr({"\U0001f600": 2, "\ufffd": 1}) == repr(decode(by_utf8))


@pytest.mark.parametrize("text", ["", "[1", "[NaN]", "1e400", "[" * 100_000])
def test_a_damaged_text_taken_for_canonical_is_malformed(text: str) -> None:
    with pytest.raises(MalformedJson):
        decode_canonical(text)


def test_every_reading_is_a_fresh_tree() -> None:
    text = '{"a":[{"b":[]}]}'  # K-LOG-4
    tree = decode(text)
    for other in (decode(text), decode_canonical(text), fresh(tree)):
        assert isinstance(tree, dict)
        assert isinstance(other, dict)
        assert tree == other
        assert tree is not other
        assert tree["a"] is not other["a"]
        other["a"] = None
    assert {"a": [{"b": []}]} == tree


# --- Laws ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=200)
@given(VALUES.filter(is_encodable))
@example({"\U0001f600": "\ud800", "\ufffd": [1e16, -0.0, math.nan]})
def test_storing_what_was_read_changes_nothing(value: object) -> None:
    text = encode(value)  # K-JSON-1
    assert text == encode(decode(text))
    assert text == text.encode("utf-8").decode("utf-8")


@settings(deadline=None, max_examples=200)
@given(VALUES.filter(is_encodable))
def test_all_readers_of_a_canonical_text_agree_in_value_and_type(value: object) -> None:
    text = encode(value)  # K-LOG-4
    expected = typed(decode(text))
    assert expected == typed(decode_canonical(text))
    assert expected == typed(decode(text.encode()))
    assert expected == typed(fresh(decode(text)))
    assert expected == typed(jsonform._decode_slow(text))


@settings(deadline=None, max_examples=200)
@given(VALUES.filter(is_encodable))
def test_the_standard_library_reads_the_same_value(value: object) -> None:
    text = encode(value)  # K-JSON-1: all numbers are doubles
    assert json.loads(text, parse_int=float) == decode(text)


@settings(deadline=None, max_examples=200)
@given(trees(UTF8_TEXT, FLOATS.filter(math.isfinite)))
def test_the_form_is_that_of_rfc_8785_where_both_accept_the_value(value: object) -> None:
    assert rfc8785.dumps(value).decode() == encode(value)  # type: ignore[arg-type]  # K-JSON-2


@settings(deadline=None, max_examples=300)
@given(DOUBLES)
def test_any_double_prints_as_rfc_8785_does_and_reads_back_as_itself(value: float) -> None:
    if math.isfinite(value):  # K-JSON-1
        assert rfc8785.dumps(value).decode() == encode(value)
        assert value == decode(encode(value))


@settings(deadline=None, max_examples=300)
@given(TEXTS)
@example('{"a":1.0}')
@example('{"a":1,"a":1}')
@example("1E400E")
@example("NaNa")
def test_decoding_is_the_standard_library_s_made_strict(text: str) -> None:
    try:
        value = decode(text)
    except MalformedJson:
        return
    assert json.loads(text, parse_int=float) == value  # K-JSON-1
    assert typed(value) == typed(decode(encode(value)))


# --- The fast path -------------------------------------------------------------------------------------------------


def fast_path() -> jsonform._Orjson:
    """The fast path, which must be in use wherever orjson can be imported."""
    pytest.importorskip("orjson", exc_type=ImportError)
    assert jsonform._orjson is not None, "the installed orjson disagrees with the definition"
    return jsonform._orjson


@settings(deadline=None, max_examples=300)
@given(VALUES | PLAIN_VALUES)
def test_the_fast_encoder_gives_the_definition_s_text_or_none(value: object) -> None:
    fast = fast_path()
    text = jsonform._encode_fast(fast, value, DEPTH_MAX)
    assert text is None or text == jsonform._encode_slow(value, "payload", DEPTH_MAX)


@settings(deadline=None, max_examples=300)
@given(TEXTS | (VALUES | PLAIN_VALUES).filter(is_encodable).map(encode))
@example("1.0")
@example('{"b":1,"a":2}')
@example('{"\ufffd":1,"\U0001f600":2}')
@example("[1e22,100000000000000000000000]")
def test_the_fast_decoder_gives_the_definition_s_tree_or_none(text: str) -> None:
    fast = fast_path()
    try:
        value = jsonform._decode_fast(fast, text.encode())
    except ValueError:
        return
    assert typed(jsonform._decode_slow(text)) == typed(value)


def test_the_fast_path_is_taken_for_everyday_payloads() -> None:
    payload = {"orderId": "o-1", "name": "Zoë", "total": 12.75, "items": [{"qty": 2, "tags": ("a",)}], "paid": True}
    fast = fast_path()
    text = jsonform._encode_fast(fast, payload, DEPTH_MAX)
    assert text == encode(payload)
    assert decode(text) == jsonform._decode_fast(fast, text.encode())
    assert decode(text) == jsonform._decode_canonical_fast(fast, text.encode())


def test_without_orjson_the_module_works_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orjson", None)
    plain = reloaded()
    assert plain._orjson is None
    for value in jsonform._CHECKED_VALUES:
        text = encode(value)
        assert text == plain.encode(value)
        assert typed(decode(text)) == typed(plain.decode(text)) == typed(plain.decode_canonical(text))


@pytest.mark.parametrize("broken", [lambda value, _default, _options: b"{}", lambda value: b"{}", None])
def test_an_orjson_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch, broken: object) -> None:
    fake = SimpleNamespace(dumps=broken, loads=json.loads, OPT_SORT_KEYS=1, OPT_STRICT_INTEGER=2)
    monkeypatch.setitem(sys.modules, "orjson", fake)
    plain = reloaded()
    assert plain._orjson is None
    assert '{"a":2,"b":1}' == plain.encode({"b": 1, "a": 2})
