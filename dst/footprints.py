"""Footprints: what an operation reads and changes, and whether two operations can change places.

Two operations are independent if they touch no common resource, or both read it, or both change it by the same class of
update that commutes.  A footprint is recorded while the operation is done; who does not say what it touches touches
everything.
"""

from __future__ import annotations

from collections.abc import Iterable

READ = "read"
WRITE = "write"
"""Conflicts with any other touch.  Every mode but these two is a class of updates that commute among themselves."""

ADD = "add"
"""Counts something up or down, or puts something into a set."""

SET = "set"
"""Sets a flag that is never taken back here."""

EVERYTHING = "*"
"""A resource that has part in every other one."""

Footprint = frozenset[tuple[str, str]]
"""Pairs of resource and mode."""


def independent(one: Iterable[tuple[str, str]], other: Iterable[tuple[str, str]]) -> bool:
    """Do two operations with these footprints lead to the same state, whichever is first?"""
    modes: dict[str, set[str]] = {}
    for resource, mode in one:
        modes.setdefault(resource, set()).add(mode)
    touched = list(other)
    if EVERYTHING in modes:
        return not touched
    for resource, mode in touched:
        if resource == EVERYTHING:
            return not modes
        if any(mode != known or mode == WRITE for known in modes.get(resource, ())):
            return False
    return True
