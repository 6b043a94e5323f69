"""Races between the operations of one run: which of them could have come in another order, and matter.

Where no crash can come in between, another order is worth a run only if two operations that depend on each other
change places in it [source sets: Abdulla, Aronis, Jonsson, Sagonas, POPL 2014].  What depends on what is said by
footprints alone, and by who does it: that one operation lets another come about is no reason for it to come first,
since something else might have done so.  Time moves only when nothing is held, so that nothing goes back over that.

An operation has one footprint in all runs: all that it touches in any of them.  Otherwise: 1. what it reads decides
what it writes, 2. so it depends on a second only where a third has not come first, 3. of the orders in which the third
has come first one is run, 4. nothing in that one tells that there is a race without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from dst.footprints import Footprint, independent


@attrs.frozen(kw_only=True)
class Operation:
    """One operation of a run.

    It was what its turn let go, or else was come to when nobody else could run: then nothing could come there instead.
    """

    turn: int
    let_go: bool
    point: str
    task: int
    time_ns: int
    footprint: Footprint


@attrs.frozen(kw_only=True)
class Race:
    """Two operations could change places if another went on in a turn: any one of `firsts` that was there."""

    turn: int
    firsts: frozenset[str]


def races(run: Sequence[Operation], since: int) -> Iterator[Race]:
    """Yield the races of which the later operation was done in turn `since` or later."""
    before: list[int] = []  # for each operation the set of those that it must come after, as bits
    for at, operation in enumerate(run):
        must, seen = 0, list[int]()
        for earlier in range(at - 1, -1, -1):
            if must >> earlier & 1:
                continue  # there is something in between that comes after the one and before the other
            if _ordered(run[earlier], operation):
                must |= before[earlier] | 1 << earlier
                seen.append(earlier)
        before.append(must)
        if operation.turn >= since:
            for earlier in seen:
                if _can_be_reversed(run[earlier], operation):
                    yield Race(turn=run[earlier].turn, firsts=_firsts(run, before, earlier, at))


def _ordered(one: Operation, other: Operation) -> bool:
    return one.task == other.task or one.time_ns != other.time_ns or not independent(one.footprint, other.footprint)


def _can_be_reversed(one: Operation, other: Operation) -> bool:
    """Of two that are ordered and have nothing in between."""
    return one.let_go and one.task != other.task and one.time_ns == other.time_ns


def _firsts(run: Sequence[Operation], before: Sequence[int], one: int, other: int) -> frozenset[str]:
    """Return the points that can come first of what is to be done before `one`, for `other` to come before it."""
    way = [at for at in range(one + 1, other) if not before[at] >> one & 1] + [other]
    done, firsts = 0, set[str]()
    for at in way:
        # What `other` must come after, but for `one` itself, comes before it here as well.
        if not before[at] & done:
            firsts.add(run[at].point)
        done |= 1 << at
    return frozenset(firsts)


class Recording:
    """The operations of one run, as they come.  Mutable.

    It is `unclear` once something else has been seen than operations that are choices of their own.  Otherwise: 1. what
    follows from an operation by itself is done in whichever turn makes it possible, 2. turns that touch nothing in
    common do so once they have changed places, 3. an order is lost.  Nor may two tasks come to one site: which of them
    has which name is then another in another order.
    """

    def __init__(self, known: dict[str, Footprint]) -> None:
        """`known` is what operations have touched in the runs so far, all together: it is added to."""
        self.operations: list[Operation] = []
        self.unclear = False
        self.grown = False  # has an operation touched what it had not touched in an earlier run?
        self._known = known
        self._owners: dict[str, object] = {}  # of sites
        self._tasks: dict[object, int] = {}
        self._awaited: tuple[str, int, bool, int] | None = None

    def come(self, site: str, task: object) -> None:
        """A task has come to a site."""
        self.unclear |= self._owners.setdefault(site, task) is not task

    def go_on(self, point: str, turn: int, time_ns: int, *, let_go: bool) -> None:
        """The next operation is going on."""
        self._awaited = point, turn, let_go, time_ns

    def happened(self, point: str, task: object, time_ns: int, footprint: Footprint) -> Footprint:
        """An operation is done.  Return what it counts as touching in all runs: all that it has ever touched."""
        if self._awaited is None or (self._awaited[0], self._awaited[3]) != (point, time_ns):
            self.unclear = True
            return footprint
        _, turn, let_go, _ = self._awaited
        self._awaited = None
        known = self._known.setdefault(point, footprint)
        if not footprint <= known:
            self._known[point] = known = known | footprint
            self.grown = True
        self.operations.append(
            Operation(
                turn=turn,
                let_go=let_go,
                point=point,
                task=self._tasks.setdefault(task, len(self._tasks)),
                time_ns=time_ns,
                footprint=known,
            )
        )
        return known

    def end_operation(self, *, touched: bool) -> None:
        """All that follows from the last operation is done; was anything touched since?"""
        self.unclear |= touched or self._awaited is not None
