"""The canonical JSON form: what is persisted, hashed, digested and handed out again (K-JSON, K-LOG-4).

`encode` turns a Python value into the one text that stands for it; `decode` reads such a text strictly.
Two laws hold for every value `v` that `encode` accepts and every text `t` that `decode` accepts:

* `encode(decode(encode(v))) == encode(v)`: what is stored does not change by being read and stored again;
* `decode(encode(decode(t)))` equals `decode(t)` in value, type and order: the type of a decoded number follows from
  its value alone (an integer within +-(2**53 - 1) is an `int`, every other number a `float`, `-0` is `0`), and
  decoded objects iterate in canonical order, even if a store has reordered their keys.

The readable code below defines the form.  `orjson`, when it can be imported and agrees with that code on a small
corpus, only does the same work faster for the values and texts where the two provably cannot differ.
"""

import importlib
import json
import re
from collections.abc import Callable
from itertools import pairwise
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Final, NoReturn, Protocol, TypeAlias, TypeVar, cast

import attrs

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

SAFE_INTEGER_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""

DEPTH_MAX: Final = 200
"""How deeply a payload may nest: arrays, objects and `to_json` calls count."""

DEPTH_MAX_STORED: Final = DEPTH_MAX + 32
"""How deeply a stored text may nest.  Envelopes and snapshots wrap payloads in a few levels of their own: without
the allowance, a payload accepted at the call would be refused when its envelope is encoded or read back."""


class NoJsonForm(ValueError):
    """A value cannot be persisted: the caller's fault.  `path` says where, the message also what to do. (K-JSON-3)"""

    def __init__(self, path: str, what: str, remedy: str) -> None:
        super().__init__(path, what, remedy)  # all arguments, so that the exception survives pickling
        self.path = path
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.what} has no JSON form; {self.remedy}"


class MalformedJson(ValueError):
    """A text is not strict JSON; `offset` says where, counted in `unit`s (characters, or bytes if it is not UTF-8)."""

    def __init__(self, what: str, offset: int, unit: str = "character") -> None:
        super().__init__(what, offset, unit)
        self.what = what
        self.offset = offset
        self.unit = unit

    def __str__(self) -> str:
        return f"malformed JSON: {self.what} at {self.unit} {self.offset}"


def encode(value: object, *, at: str = "payload", depth_max: int = DEPTH_MAX) -> str:
    """Return the canonical JSON text of `value`, or raise `NoJsonForm` with the path to what has none. (K-JSON-1, 2, 3)

    `to_json()` is looked up on the type of an object that is not exactly a plain JSON value, and returns a value to
    encode in its place (not JSON text).  `at` names the root in paths.  The text always encodes to UTF-8.
    """
    if _orjson is not None:
        text = _encode_fast(_orjson, value, depth_max)
        if text is not None:
            return text
    return _encode_slow(value, at, depth_max)


def decode(text: str | bytes) -> Json:
    """Return a fresh tree for a JSON text, or raise `MalformedJson`. (K-JSON-1, 3)

    Strict: UTF-8, no duplicate keys, no NaN or Infinity, no number too large for a double, limited depth.
    """
    if _orjson is not None:
        try:
            return _decode_fast(_orjson, text.encode() if isinstance(text, str) else text)
        except ValueError:
            pass  # malformed, or merely not provably the same: the slow path decides
    return _decode_slow(_utf8_text(text))


def decode_canonical(text: str) -> Json:
    """Return what `decode(text)` would, faster, for a text that `encode` returned; the caller vouches. (K-LOG-4)

    For any other text the answer is unspecified: duplicate keys, for one, go unnoticed.
    """
    if _orjson is not None:
        try:
            return _decode_canonical_fast(_orjson, text.encode())
        except ValueError:
            pass  # a lone surrogate or a long number
    try:
        return cast(Json, _TRUSTING.decode(text))
    except (ValueError, RecursionError, _Unacceptable):
        return _decode_slow(text)  # was not canonical: say what is wrong


def fresh(value: Json) -> Json:
    """Return a deep copy of a decoded tree: new dicts and lists, the same scalars. (K-LOG-4)"""
    if type(value) is dict:
        copy = value.copy()
        for key, item in copy.items():
            if type(item) is dict or type(item) is list:
                copy[key] = fresh(item)  # replacing the value of a key is allowed during iteration
        return copy
    if type(value) is list:
        return [fresh(item) if type(item) is dict or type(item) is list else item for item in value]
    return value


# --- Encoding: the definition --------------------------------------------------------------------------------------


_Member = TypeVar("_Member")


class _HasToJson(Protocol):
    def to_json(self) -> object: ...


class _Refused(Exception):
    """Unwinds from a value without JSON form to the root, collecting the path innermost step first."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy
        self.steps: list[str] = []


def _encode_slow(value: object, at: str, depth_max: int) -> str:
    try:
        return _well_formed(_written(value, depth_max, set()))
    except _Refused as refused:
        path = at + "".join(reversed(refused.steps))
        raise NoJsonForm(path, refused.what, refused.remedy) from None


def _written(value: object, depth: int, ancestors: set[int]) -> str:
    """Return the text of `value`; `depth` levels are left, `ancestors` holds the ids of the values it is inside of."""
    if type(value) is str:
        return encode_basestring(value)
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return _integer(value)
    if type(value) is float:
        return _number(value)
    return _nested(value, depth, ancestors)


def _nested(value: object, depth: int, ancestors: set[int]) -> str:
    """Return the text of an array, an object, or a value that may have a `to_json`."""
    if id(value) in ancestors:
        raise _Refused("a cycle", "the value contains itself: refer to the inner one by an id")
    if depth == 0:
        raise _Refused("a value nested this deeply", "flatten it, and check for a `to_json()` that never ends")
    ancestors.add(id(value))
    if type(value) is dict:
        text = _object(value, depth - 1, ancestors)
    elif type(value) is list or type(value) is tuple:
        text = _array(value, depth - 1, ancestors)
    elif callable(getattr(type(value), "to_json", None)):
        text = _written(cast(_HasToJson, value).to_json(), depth - 1, ancestors)
    else:
        raise _Refused(type(value).__name__, _remedy(type(value)))
    ancestors.discard(id(value))
    return text


def _array(items: list[object] | tuple[object, ...], depth: int, ancestors: set[int]) -> str:
    parts: list[str] = []
    try:
        for item in items:
            parts.append(_written(item, depth, ancestors))
    except _Refused as refused:
        refused.steps.append(f"[{len(parts)}]")
        raise
    return "[" + ",".join(parts) + "]"


def _object(members: dict[object, object], depth: int, ancestors: set[int]) -> str:
    for key in members:
        if type(key) is not str:
            raise _Refused(f"a key of type {type(key).__name__}", "object keys must be exactly str: convert them")
    ordered = _sorted_members(cast("dict[str, object]", members))
    name = ""
    parts: list[str] = []
    try:
        for name, member in ordered:
            parts.append(f"{encode_basestring(name)}:{_written(member, depth, ancestors)}")
    except _Refused as refused:
        refused.steps.append(f".{name}" if name.isidentifier() else f"[{json.dumps(name)}]")
        raise
    return "{" + ",".join(parts) + "}"


def _sorted_members(members: dict[str, _Member]) -> list[tuple[str, _Member]]:
    """Return the members in the order of their keys' UTF-16 code units. (K-JSON-2)"""
    if "".join(members).isascii():
        return sorted(members.items(), key=itemgetter(0))
    by_units = sorted((_utf16(name), name) for name in members)
    for (units, _), (next_units, name) in pairwise(by_units):
        # A surrogate pair kept as two characters reads back as one: the object would come back with fewer members.
        if units == next_units:
            raise _Refused(f"a second key that reads {json.dumps(name)}", "join surrogate pairs in the keys")
    return [(name, members[name]) for _, name in by_units]


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _well_formed(text: str) -> str:
    """Return `text` with surrogate pairs joined, as they would be read, and lone surrogates escaped. (K-JSON-1)"""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    joined = _utf16(text).decode("utf-16-be", "surrogatepass")
    return _SURROGATE.sub(lambda lone: f"\\u{ord(lone[0]):04x}", joined)


def _integer(value: int) -> str:
    if -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
        return str(value)
    raise _Refused("an integer beyond 2**53 - 1", "pass it as a str, or as a float if digits may be lost")


def _number(value: float) -> str:
    """Return the number as ES6 Number::toString prints it; NaN and the infinities are null. (K-JSON-1)

    `repr` gives the same shortest digits; only the choice between plain and exponent notation differs.
    """
    if value == 0:
        return "0"
    if value - value != 0:  # NaN and the infinities: their difference with themselves is NaN
        return "null"
    mantissa, _, exponent_text = repr(value).partition("e")
    if not exponent_text:
        return mantissa.removesuffix(".0")
    exponent = int(exponent_text)
    if not -7 < exponent < 21:
        return f"{mantissa}e{exponent:+d}"
    sign = "-" if value < 0 else ""
    digits = mantissa.lstrip("-").replace(".", "")
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    return sign + digits.ljust(exponent + 1, "0")


def _remedy(kind: type) -> str:
    if issubclass(kind, set | frozenset):
        return "convert it, for example to a sorted list"
    if issubclass(kind, bytes | bytearray | memoryview):
        return "convert it to a str, for example with base64"
    if issubclass(kind, str | int | float | dict | list | tuple):
        return "a subclass would come back as the plain type: convert it, or give its class a `to_json()` method"
    return "convert it to plain values, or give its class a `to_json()` method that returns them"


# --- Decoding: the definition --------------------------------------------------------------------------------------


class _Unacceptable(Exception):
    """Raised inside the standard decoder, which does not tell its hooks where they are."""


def _decode_slow(text: str) -> Json:
    if not text.isascii() and (surrogate := _SURROGATE.search(text)):
        raise MalformedJson("a lone surrogate, which is not UTF-8,", surrogate.start())
    if text.count("[") + text.count("{") > DEPTH_MAX_STORED:
        _check_depth(text)
    try:
        return cast(Json, _STRICT.decode(text))
    except json.JSONDecodeError as error:
        raise MalformedJson(error.msg, error.pos) from None
    except _Unacceptable:
        raise _first_unacceptable(text) from None


def _utf8_text(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise MalformedJson("invalid UTF-8", error.start, "byte") from None


def _unique_members(members: list[tuple[str, Json]]) -> dict[str, Json]:
    unique = dict(members)
    if len(unique) != len(members):
        raise _Unacceptable
    if "".join(unique).isascii() and (names := list(unique)) == sorted(names):  # nearly always: a copy would cost more
        return unique
    return dict(_sorted_members(unique))


def _number_of(token: str) -> int | float:
    """Return the value of a number token, its type following from the value alone. (K-JSON-1)"""
    if len(token) < 16 and token.lstrip("-").isdigit():
        return int(token)
    value = float(token)
    if value - value != 0:
        raise _Unacceptable
    # 2**53 is the rounded value of 2**53 + 1 as well, but both are beyond the limit.
    return int(value) if value.is_integer() and abs(value) <= SAFE_INTEGER_MAX else value


def _no_constant(_token: str) -> NoReturn:
    raise _Unacceptable


_STRICT: Final = json.JSONDecoder(
    object_pairs_hook=_unique_members, parse_int=_number_of, parse_float=_number_of, parse_constant=_no_constant
)
# For texts that `encode` returned: keys are unique and in order.
_TRUSTING: Final = json.JSONDecoder(parse_int=_number_of, parse_float=_number_of, parse_constant=_no_constant)

_TOKEN: Final = re.compile(
    r"""(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")(?P<key>\s*:)?
        |(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)
        |(?P<constant>NaN|-?Infinity)
        |[\[{\]}]""",
    re.DOTALL | re.VERBOSE,
)


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth > DEPTH_MAX_STORED:
            raise MalformedJson(f"nesting deeper than {DEPTH_MAX_STORED} levels", token.start())


def _first_unacceptable(text: str) -> MalformedJson:
    """Say what the strict decoder refused, and where; the text is well-formed JSON up to there."""
    names: list[set[str]] = []  # of the objects (and arrays) that are open, outermost first
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            names.append(set())
        elif token[0] in "]}":
            names.pop()
        elif token["key"]:
            name = json.loads(token["string"])
            if name in names[-1]:
                return MalformedJson(f"a duplicate key {json.dumps(name)}", token.start())
            names[-1].add(name)
        elif token["constant"]:
            return MalformedJson(f"{token[0]}, which is not JSON,", token.start())
        elif token["number"] and abs(float(token[0])) == float("inf"):
            return MalformedJson("a number too large for a double", token.start())
    raise AssertionError("the strict decoder refused a text in which nothing is wrong")


# --- The fast path -------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Orjson:
    """The two functions of `orjson`, which need not be installed."""

    dumps: Callable[[object, None, int], bytes]
    loads: Callable[[bytes], Json]
    options: int


_ASTRAL_LEADS: Final = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4")
_DIGITS_AS_ZEROS: Final = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))
_LONG_NUMBER: Final = b"0" * 16
_LONG_TOKEN: Final = re.compile(rb"[:,\[\s][-0-9.]{16}")
_INTEGRAL_FLOAT: Final = re.compile(rb"\.0(?![0-9])")


def _encode_fast(fast: _Orjson, value: object, depth_max: int) -> str | None:
    """Return the canonical text if `orjson` provably prints it, else None."""
    if not _is_plain((value,), depth_max + 1):
        return None
    try:
        text = fast.dumps(value, None, fast.options)
    except TypeError:  # a lone surrogate or a large integer
        return None
    return text.decode() if _is_in_order(text) else None


def _is_in_order(text: bytes) -> bool:
    """Whether keys sorted by UTF-8 bytes, as orjson does, are sorted by UTF-16 code units.

    The orders differ only between an astral character and one from U+E000 on.
    """
    return text.isascii() or not any(lead in text for lead in _ASTRAL_LEADS)


def _is_plain(items: tuple[object, ...] | list[object] | dict[object, object], depth: int) -> bool:
    """Whether all inside is of exactly the types that both paths print alike; orjson would take many more."""
    if depth == 0:
        return False
    if type(items) is dict:
        for key in items:
            if type(key) is not str:
                return False
    for item in items.values() if type(items) is dict else items:
        kind = type(item)
        if kind is str or kind is int or item is None or kind is bool:  # orjson's strict option checks the integers
            continue
        if kind is dict or kind is list or kind is tuple:
            if not _is_plain(item, depth - 1):  # type: ignore[arg-type]  # kind is type(item), which mypy does not see
                return False
        elif type(item) is not float or not _is_plain_float(item):
            return False
    return True


def _is_plain_float(value: float) -> bool:
    """Whether Python, orjson and ES6 agree: a fraction, in plain notation."""
    return 1e-4 <= abs(value) < 1e16 and not value.is_integer()


def _decode_fast(fast: _Orjson, raw: bytes) -> Json:
    """Return the tree if orjson prints it as the same bytes again; raise ValueError otherwise.

    Printing the same bytes excludes duplicate and unsorted keys, `-0`, and integers in exponent notation.
    """
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_MAX_STORED and not _INTEGRAL_FLOAT.search(raw) and _is_in_order(raw):
        value = _decode_canonical_fast(fast, raw)
        if fast.dumps(value, None, fast.options) == raw:
            return value
    raise ValueError("not provably the same: the slow path decides")


def _decode_canonical_fast(fast: _Orjson, raw: bytes) -> Json:
    # orjson reads integers up to 64 bits as int; a number with fewer than 16 digits in a row cannot tell.  Hashes have
    # such runs by chance, inside strings; a number inside an object or array follows one of these.
    if _LONG_NUMBER in raw.translate(_DIGITS_AS_ZEROS) and (raw[:1] not in b"{[" or _LONG_TOKEN.search(raw)):
        raise ValueError("a long number: the slow path decides")
    return fast.loads(raw)


_CHECKED_VALUES: Final[tuple[object, ...]] = (
    {"b": 1, "a": [None, True, False, -7, "x", {}, [], ("y", 2)], "aa": {"z": "", "A": 0}},
    {"é": '\x00\x07\b\t\n\f\r\x1f\x7f\x80"\\/\u2028', "\uffff": 1, "\ud7ff": 2, "\ue000": 3},
    {"\U0001f600": 1, "\ufffd": 2},
    [0.1, 1.5, -2.25, 0.0001, 0.00012345, 1 / 3, -123456789.123, 4503599627370495.5, 98765.43210987654],
    [1.0, -0.0, 1e16, 1e21, 1e-7, 5e-324, 0.00001],  # apart: one such number keeps its whole payload off the fast path
    [SAFE_INTEGER_MAX, -SAFE_INTEGER_MAX, 10**15, 10**14],
    "lone \ud800 surrogate",
    float("nan"),
    None,
)
_CHECKED_TEXTS: Final = (
    "[" * DEPTH_MAX_STORED + "]" * DEPTH_MAX_STORED,
    '{"b":1,"a":2}', '{"a":{"b":1.0}}', "[1.5,-0,-0.0,0.0,1e5,1e22,1E22,1.05,0.25,1e-7]", ' [1 , "\\u0041"] ',
    "[9007199254740991,9007199254740992,9223372036854775808]", '"\\ud800"', '"\\ud83d\\ude00"', "null",
)  # fmt: skip


def _agrees(fast: _Orjson) -> bool:
    """Whether the fast path gives the definition's answers wherever it gives one."""
    try:
        for value in _CHECKED_VALUES:
            if _encode_fast(fast, value, DEPTH_MAX) not in (None, _encode_slow(value, "payload", DEPTH_MAX)):
                return False
        canonical = [_encode_slow(value, "payload", DEPTH_MAX) for value in _CHECKED_VALUES]
        return all(_decodes_alike(fast, _decode_canonical_fast, text) for text in canonical) and all(
            _decodes_alike(fast, _decode_fast, text) for text in (*canonical, *_CHECKED_TEXTS)
        )
    except Exception:  # an unfamiliar version that fails otherwise than expected is no fast path either
        return False


def _decodes_alike(fast: _Orjson, read: Callable[[_Orjson, bytes], Json], text: str) -> bool:
    try:
        value = read(fast, text.encode())
    except ValueError:
        return True
    return repr(value) == repr(_decode_slow(text))  # repr shows types as well: 1 and 1.0, 0.0 and -0.0


def _load_orjson() -> _Orjson | None:
    """Return the fast path, or None where it is missing or would give other answers."""
    try:
        module = importlib.import_module("orjson")
        options: int = module.OPT_SORT_KEYS | module.OPT_STRICT_INTEGER
        fast = _Orjson(dumps=module.dumps, loads=module.loads, options=options)
    except Exception:  # not installed, built for another Python, or too old: all the same to us
        return None
    return fast if _agrees(fast) else None


_orjson: Final = _load_orjson()
