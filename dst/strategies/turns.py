"""The turns of a run: which happened before which, and which could have come the other way round.

A turn happens before another if both are of one task, if they conflict, or by way of a turn in between.  What
conflicts, with nothing in between, is a race: the later could have been first.  Of the orders in which it is, those to
be run at the earlier turn begin with something that can come first there: an *initial* of what comes after that turn
and not because of it [Abdulla, Aronis, Jonsson, Sagonas: Optimal dynamic partial order reduction, 2014; this is its
source-DPOR].

Who let a task go on does not count.  Otherwise: 1. either of two turns does, 2. the one that was first seems to come
before what the task does next, 3. an order in which the other does, and that task is before the first, is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dst.footprints import Footprint, independent


@attrs.define(kw_only=True)
class Turn:
    """One choice of the run that was last made.  Mutable: what was tried there, and what is tried now."""

    pending: tuple[str, ...]
    chosen: str
    task: int  # whose turn it is, of those that were held in the order in which they first were
    asleep: dict[str, Footprint]
    wanted: set[str]  # of those that are pending, what is to be tried here unless it sleeps
    fresh: bool  # did all that came before end with nobody held?  Then nothing here could have come earlier
    tried: dict[str, Footprint] = attrs.field(factory=dict)  # before `chosen`
    footprint: Footprint = frozenset()  # of `chosen`, once it was done
    before: int = 0  # the turns that happen before this one: bit n is turn n

    @property
    def left(self) -> list[str]:
        """What is still to be tried here."""
        return [p for p in self.pending if p in self.wanted and p not in self.tried and p not in self.asleep]


def site_of(point: str) -> str:
    """Return the site of a point."""
    return point.rpartition("#")[0]


def want_reversals(turns: Sequence[Turn], first: int) -> None:
    """See to it that of each race with a turn from `first` on the other order is run, where no order run has it."""
    for at in range(first, len(turns)):
        for earlier in _races(turns, at):
            _want(turns, earlier, at)


def want_all(turns: Sequence[Turn]) -> None:
    """See to it that everything is tried at these turns: what they do to each other is not known."""
    for turn in turns:
        turn.wanted.update(turn.pending)


def _races(turns: Sequence[Turn], at: int) -> list[int]:
    """Note what happens before a turn; return those of it that it races with."""
    turn, races = turns[at], list[int]()
    since = next((i for i in range(at, 0, -1) if turns[i].fresh), 0)
    turn.before = (1 << since) - 1
    for i in range(at - 1, since - 1, -1):
        if turn.before >> i & 1:
            continue  # by way of a turn in between
        is_own = turns[i].task == turn.task
        if is_own or _conflict(turns[i], turn):
            turn.before |= turns[i].before | 1 << i
            races += [] if is_own else [i]
    return races


def _conflict(one: Turn, other: Turn) -> bool:
    """Do they not lead to the same, whichever is first?  Of several at one site nobody knows which is which."""
    return site_of(one.chosen) == site_of(other.chosen) or not independent(one.footprint, other.footprint)


def _want(turns: Sequence[Turn], earlier: int, later: int) -> None:
    """Have the later one come before the earlier one, unless an order in which it does is run anyway."""
    turn, initials, so_far = turns[earlier], list[str](), 0
    for i in range(earlier + 1, later + 1):
        if i < later and turns[i].before >> earlier & 1:
            continue  # it comes because of the earlier one
        if not turns[i].before & so_far and turns[i].chosen in turn.pending:
            initials.append(turns[i].chosen)
        so_far |= 1 << i
    if not initials:
        turn.wanted.update(turn.pending)
    elif not any(point in turn.wanted or point in turn.asleep for point in initials):
        turn.wanted.add(initials[-1])
