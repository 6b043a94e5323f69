"""The trace: one record for each thing that happened, and the digest that is a run's identity.

A record is a tuple that begins with its kind.  It holds texts, integers, None, booleans, tuples of those, and objects
that have a canonical `text`; never a float and never a repr, so that its bytes are the same under every Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

Record = tuple[Any, ...]
"""Its kind, and fields that only those who know the kind can type."""

try:
    import orjson
except ImportError:  # pure Python writes the same bytes, more slowly
    orjson = None  # type: ignore[assignment]


def _text_of(value: object) -> str:
    text = getattr(value, "text", None)
    if not isinstance(text, str):
        raise TypeError(f"a trace record holds a {type(value).__name__}: wanted text, integer, None, tuple or `.text`")
    return text


_PLAIN = frozenset({str, int, bool, type(None)})


def _check(fields: Sequence[object]) -> None:
    """Refuse what the two writers would not write alike: floats, and what orjson knows and json does not."""
    if _PLAIN.issuperset(map(type, fields)):
        return
    for field in fields:
        if isinstance(field, tuple | list):
            _check(field)
        elif type(field) not in _PLAIN:
            _text_of(field)


def encode_slowly(records: Sequence[Record]) -> bytes:
    """Return the canonical bytes of records, without orjson."""
    _check(records)
    return json.dumps(records, ensure_ascii=False, separators=(",", ":"), default=_text_of).encode()


def encode(records: Sequence[Record]) -> bytes:
    """Return the canonical bytes of records."""
    if orjson is None:
        return encode_slowly(records)
    _check(records)
    return orjson.dumps(records, default=_text_of)


def digest(records: Sequence[Record]) -> str:
    """Return the digest of a trace: 32 hex digits."""
    return hashlib.blake2b(encode(records), digest_size=16).hexdigest()


def first_difference(one: Sequence[Record], other: Sequence[Record]) -> int | None:
    """Return the index of the first record at which two traces part, or None if they are equal."""
    for index in range(max(len(one), len(other))):
        if index >= len(one) or index >= len(other) or encode([one[index]]) != encode([other[index]]):
            return index
    return None
