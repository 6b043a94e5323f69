"""Telling real errors from control signals, in exception groups too (K-FLOW-8)."""

from __future__ import annotations

from collections.abc import Iterator

from kernel.errors import ControlSignal


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, in order, however deep; or the one that is none."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def verdict(error: BaseException) -> BaseException:
    """Return what an exception comes to: a foreign one (cancellation, interrupt) as it is, else the first real error,
    else the first control signal."""
    found = list(leaves(error))
    if any(not isinstance(leaf, Exception | ControlSignal) for leaf in found):
        return error
    for leaf in found:
        if isinstance(leaf, Exception):
            return leaf
    return found[0]
