"""The FNV-1a digest (K-JSON-4): fixed vectors, and a differential test against plain big-integer arithmetic."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import digest
from kernel.digest import fnv1a64


def plain_fnv1a64(data: bytes) -> str:
    """As the published definition has it, reduced only at the end of each round by division."""
    value = 14695981039346656037
    for byte in data:
        value = ((value ^ byte) * 1099511628211) % 18446744073709551616
    return hex(value)[2:].rjust(16, "0")


def truncating(data: bytes) -> int:
    """As a binding to a C string function would: up to the first NUL."""
    return digest._fnv1a64_reference(data.split(b"\x00")[0])


def reloaded() -> ModuleType:
    """A second copy of the module, imported under the present `sys.modules`."""
    spec = importlib.util.spec_from_file_location("digest_again", digest.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("expected", "data"),
    [
        ("cbf29ce484222325", ""),
        ("af63dc4c8601ec8c", "a"),
        ("85944171f73967e8", "foobar"),
        ("af63bd4c8601b7df", "\x00"),
        ("08328807b4eb6fed", "\x00\x00"),
        ("0ac21707b7181e01", "é"),
        ("00f5898e9456454c", "13900"),
    ],
)
def test_known_digests_as_16_lower_case_hex_digits(expected: str, data: str) -> None:
    assert expected == fnv1a64(data) == fnv1a64(data.encode())  # K-JSON-4
    assert expected == plain_fnv1a64(data.encode())


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=600))
@example(b"\x00" * 100)
@example(b"x" * 5000)
def test_every_implementation_agrees_with_plain_big_integer_arithmetic(data: bytes) -> None:
    expected = plain_fnv1a64(data)  # K-JSON-4
    assert expected == fnv1a64(data)
    assert expected == f"{digest._fnv1a64_slow(data):016x}"
    assert expected == f"{digest._fnv1a64_reference(data):016x}"


@settings(deadline=None)
@given(st.text())
def test_the_digest_of_a_text_is_that_of_its_utf8_bytes(text: str) -> None:
    assert plain_fnv1a64(text.encode()) == fnv1a64(text)  # K-JSON-4


def test_a_text_that_has_no_utf8_bytes_has_no_digest() -> None:
    with pytest.raises(UnicodeEncodeError):
        fnv1a64("\ud800")


def test_long_texts_are_not_kept_in_memory() -> None:
    digest._cached.cache_clear()
    digest._fnv1a64_slow(b"x" * (digest._CACHED_LENGTH_MAX + 1))
    assert 0 == digest._cached.cache_info().currsize
    digest._fnv1a64_slow(b"x" * digest._CACHED_LENGTH_MAX)
    assert 1 == digest._cached.cache_info().currsize


@pytest.mark.parametrize(
    "module",
    [None, SimpleNamespace(), SimpleNamespace(fnv1a_64=truncating), SimpleNamespace(fnv1a_64=lambda: 0)],
    ids=["missing", "without the function", "stopping at NUL", "with another signature"],
)
def test_a_missing_or_wrong_fast_path_is_not_used(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "fnv_c", module)
    plain = reloaded()
    assert plain._fnv1a64 is plain._fnv1a64_slow
    assert "af63bd4c8601b7df" == plain.fnv1a64("\x00")


def test_the_installed_fast_path_is_used() -> None:
    module = pytest.importorskip("fnv_c", exc_type=ImportError)
    assert digest._fnv1a64 is module.fnv1a_64


def test_a_fast_path_that_agrees_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = digest._fnv1a64_reference
    monkeypatch.setitem(sys.modules, "fnv_c", SimpleNamespace(fnv1a_64=fast))
    assert reloaded()._fnv1a64 is fast
