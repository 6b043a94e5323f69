"""FNV-1a in 64 bits: the digest that identifies an emit (K-JSON-4).

It is part of the log format: other implementations compute the same digits.  It is not a defence against forgery.
"""

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

_OFFSET: Final = 0xCBF29CE484222325
_PRIME: Final = 0x100000001B3
_MASK: Final = 2**64 - 1


def fnv1a64(data: str | bytes) -> str:
    """Return the FNV-1a 64 digest of the UTF-8 bytes as 16 lower-case hex digits. (K-JSON-4)

    A str with lone surrogates has no UTF-8 bytes: UnicodeEncodeError.  Canonical JSON text never has them.
    """
    return f"{_fnv1a64(data.encode() if isinstance(data, str) else data):016x}"


def _fnv1a64_reference(data: bytes) -> int:
    """The definition."""
    digest = _OFFSET
    for byte in data:
        digest = (digest ^ byte) * _PRIME & _MASK
    return digest


# The loop costs 50 ns a byte, and a run that is repeated digests the same texts again.  Larger texts are not
# kept: the cache must stay within a few megabytes.
_CACHED_LENGTH_MAX: Final = 1024
_cached = lru_cache(maxsize=2048)(_fnv1a64_reference)


def _fnv1a64_slow(data: bytes) -> int:
    return _cached(data) if len(data) <= _CACHED_LENGTH_MAX else _fnv1a64_reference(data)


_CHECKED: Final = (
    b"", b"a", b"\x00", b"a\x00b", b"\x00" * 9, b"foobar", bytes(range(256)), b"\xff" * 33,
    '0|["caf\u00e9",{"n":1}]'.encode(), b"[" * 1025,
)  # fmt: skip


def _load() -> Callable[[bytes], int]:
    """Return `fnv_c`'s function where it is installed and agrees with the definition, which C strings may not."""
    try:
        fast: Callable[[bytes], int] = importlib.import_module("fnv_c").fnv1a_64
        agrees = all(fast(data) == _fnv1a64_reference(data) for data in _CHECKED)
    except Exception:  # not installed, built for another Python, or with another interface: all the same to us
        return _fnv1a64_slow
    return fast if agrees else _fnv1a64_slow


_fnv1a64: Final = _load()
