"""Which operations raced: a run with a hold, compared operation by operation with the run without it.

A hold changes the order of many operations, and most of those could change places anyway.  What it is for are two that
could not: they touch something in common, and without the hold they come the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from dst.choices import CALL
from dst.faults import HOLD
from dst.footprints import independent
from dst.passings import Passing
from dst.schedule import Deviation

_TRIED_MAX = 24


def races(hold: Deviation, without: Sequence[Passing], held: Sequence[Passing]) -> list[Deviation]:
    """Return the holds that `hold` may stand for, from the one that says it best, few enough to try them all.

    Each is of an operation until one that conflicts with it and is before it because of the hold.  `held` is what the
    run came to, `without` what it comes to without the hold.  An operation is said better than a turn of a task, one of
    the task that was held better than another's, what happens for the first time better than what has happened before,
    then those two best that are next to each other.

    Last come holds of the same point until the operations that are done meanwhile: what a task does in its turn may
    be no operation, or may have others do it.
    """
    owner = next((passing.task for passing in held if passing.at == hold.at), "")
    found = {
        attrs.evolve(hold, at=first.at, until=second.at): (
            first.rank,
            first.task != owner,
            first.occurrence + second.occurrence,
            second.done - operation.done if second.done and operation.done else 0,
            -first.came,
        )
        for operation, second in _inverted(hold, without, held)
        for first in _held_for(operation, without)
    }
    pairs = sorted(found, key=lambda pair: (found[pair], pair))
    return list(dict.fromkeys((*pairs[:_TRIED_MAX], *_ends(hold, held)[:_TRIED_MAX])))


def _ends(hold: Deviation, held: Sequence[Passing]) -> list[Deviation]:
    """Return the hold until each operation that is done since it began."""
    began = next((passing for passing in held if passing.at == hold.at), None)
    if began is None:
        return []
    ends = [
        (passing.occurrence, passing.done, passing.at)
        for passing in held
        if passing.done and passing.done > began.came and passing.task != began.task and passing.rank == 0
    ]
    return [attrs.evolve(hold, until=at) for _, _, at in sorted(ends)]


def _inverted(
    hold: Deviation, without: Sequence[Passing], held: Sequence[Passing]
) -> Iterator[tuple[Passing, Passing]]:
    """Yield the operations that change places with one that they conflict with, each with that one."""
    then = {passing.at: passing for passing in held}
    since = next((passing.came for passing in without if passing.at == hold.at), 0)
    did = [p for p in without if p.done is not None and p.done > since and not p.at.startswith(CALL)]
    for first in did:
        for second in did:
            if second.done is None or first.done is None or second.done <= first.done or second.task == first.task:
                continue
            if _changed_places(first, second, then) and not independent(first.footprint, second.footprint):
                yield first, second


def _changed_places(first: Passing, second: Passing, then: dict[str, Passing]) -> bool:
    """Is the second one done before the first one now?"""
    one, other = then.get(first.at), then.get(second.at)
    if one is None or other is None or other.done is None:
        return False
    return one.done is None or one.done > other.done


def _held_for(operation: Passing, without: Sequence[Passing]) -> Iterator[Passing]:
    """Yield the points at which to hold a task for it to be late with an operation, and with none before it."""
    for passing in reversed(without):
        if passing.task != operation.task or passing.came > operation.came:
            continue
        if passing.at != operation.at and passing.rank == 0:
            return
        if passing.menu.index(HOLD) is not None:
            yield passing
