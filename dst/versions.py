"""What a schedule was written for, and what is here now: versions, and a digest of the scenario's code.

Labels are meant to outlive edits, so a schedule of other versions is run like any other.  But whoever reads that it
fails no more, or in another way, wants to know that it was written for something else.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator

from dst.scenario import Scenario
from dst.schedule import Versions

DIGEST = "scenario code"
_DIGEST_BYTES = 5
_HARNESS = __name__.partition(".")[0]


def versions_of(scenario: type[Scenario]) -> Versions:
    """Return what a schedule of this scenario is written for, by name; what cannot be known is left out."""
    code = _digest(tuple(sorted(set(_modules(scenario)))))
    known = {"scenario": scenario.version, DIGEST: code, "harness": _harness(), **scenario.built_on()}
    return tuple((name, version) for name, version in known.items() if version)


def changed(written: Versions, scenario: type[Scenario]) -> tuple[tuple[str, str, str], ...]:
    """Return (name, version written for, version here) of all that a schedule says and that is another here."""
    here = dict(versions_of(scenario))
    return tuple((name, was, here.get(name, "unknown")) for name, was in written if here.get(name) != was)


def said(changes: tuple[tuple[str, str, str], ...]) -> str:
    """Return the changes in words, "" if there are none."""
    each = ", ".join(f"{name} {was} (here {now})" for name, was, now in changes)
    return f"written for {each}" if each else ""


def _harness() -> str:
    try:
        return importlib.metadata.version("loom-dst")
    except importlib.metadata.PackageNotFoundError:
        return ""  # run from a checkout


@functools.cache
def _digest(modules: tuple[str, ...]) -> str:
    """Return a digest of the text of these modules, "" if there is none."""
    try:
        texts = [inspect.getsource(sys.modules[name]) for name in modules]
    except (OSError, TypeError, KeyError):
        return ""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=_DIGEST_BYTES).hexdigest() if texts else ""


def _modules(scenario: type[Scenario]) -> Iterator[str]:
    """Yield the modules that the scenario and its own bases are in: of a mutant's class, which is made here, none."""
    for cls in scenario.__mro__:
        if issubclass(cls, Scenario) and cls.__module__.partition(".")[0] != _HARNESS:
            yield cls.__module__
