"""Invariants on the graph: each monitor instance is run on the product of the states and its own."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence

import attrs

from dst.invariants import AnyInvariant, Broken
from dst.strategies.graph import Cost, Graph, Hold, Key, State
from dst.trace import Record

NO_LIMIT: Cost = (sys.maxsize, sys.maxsize)
_ASKED_EVERY = 256  # pairs between two looks at the time


@attrs.frozen(kw_only=True)
class Suspect:
    """A path on which an instance of an invariant breaks, by the graph: to be run raw before anything is said of it."""

    invariant: str
    instance: Hashable
    seen: str
    path: tuple[tuple[Key, Hold], ...]  # from the root: which hold was taken in which state
    cost: Cost


@attrs.frozen(kw_only=True)
class Searched:
    """What a search of the product with one invariant found."""

    invariant: str
    suspects: tuple[Suspect, ...]  # for each broken instance the path with the fewest faults, then records
    pairs: int  # (state of the system, state of a monitor) that were visited
    whole: bool  # False if it was ended before all was visited
    crashed: str = ""  # how the checker broke itself: unknown, never a pass


Rows = list[tuple[int, Record, bool]]
"""Records of a segment: position in it, record, and whether it is about the instance itself or about its group."""

_UNSEEN = object()
"""The state of an instance that nothing has been about so far: what happens to its group does not concern it."""

Instance = tuple[Hashable, Hashable]
Pair = tuple[Key, Hashable]
Came = dict[Pair, "tuple[Pair, Hold] | None"]
"""How each pair was come to at the least cost."""


def _always() -> bool:
    return True


def search(
    graph: Graph,
    root: Key,
    invariants: Sequence[AnyInvariant],
    *,
    cheaper_than: Cost = NO_LIMIT,
    go_on: Callable[[], bool] = _always,
) -> Iterator[Searched]:
    """Yield what each of `invariants`, whose states compose, comes to on paths that are `cheaper_than` something.

    `go_on` is asked now and then; if it says no, the invariant at work is the last, and is not `whole`.
    """
    exits = {key: _Exits(state) for key, state in graph.items()}
    for invariant in invariants:
        searched = _Search(exits, root, invariant, cheaper_than, go_on).run(graph)
        yield searched
        if not searched.whole and not searched.crashed:
            return


class _Ended(Exception):
    """There is no more time."""


class _Search:
    """One invariant.  Mutable: counts pairs."""

    def __init__(
        self,
        exits: dict[Key, _Exits],
        root: Key,
        invariant: AnyInvariant,
        cheaper_than: Cost,
        go_on: Callable[[], bool],
    ) -> None:
        self._exits = exits
        self._root = root
        self._invariant = invariant
        self._cheaper_than = cheaper_than
        self._go_on = go_on
        self._pairs = 0

    def run(self, graph: Graph) -> Searched:
        """Search for each instance, in the order in which they show."""
        invariant, suspects, whole, crashed = self._invariant, list[Suspect](), False, ""
        segments = {key: _by_instance(invariant, state.records) for key, state in graph.items()}
        instances = dict.fromkeys(i for rows in segments.values() for i in rows if i[1] is not None)
        try:
            for instance in instances:
                own = {key: _rows_of(rows, instance) for key, rows in segments.items()}
                found = self._search(own, instance[1])
                suspects += [] if found is None else [found]
            whole = True
        except _Ended:
            pass
        except Exception as error:  # the row tells how
            crashed = f"checker {invariant.name} broke on a path: {type(error).__name__}: {error}"
        return Searched(
            invariant=invariant.name, suspects=tuple(suspects), pairs=self._pairs, whole=whole, crashed=crashed
        )

    def _search(self, segments: dict[Key, Rows], instance: Hashable) -> Suspect | None:
        """Go through (state, monitor state) in the order of faults, then records [Dijkstra].

        A break is no pair but a place on the way from one, so that it is final only when no pair is left that costs
        less than it.
        """
        start: Pair = (self._root, _UNSEEN)
        came: Came = {start: None}
        costs: dict[Pair, Cost] = {start: (0, 0)}
        queue: list[tuple[Cost, int, Pair]] = [((0, 0), 0, start)]
        numbers = itertools.count(1)  # of two that cost the same the one that was come to first
        limit, found = self._cheaper_than, None
        while queue and queue[0][0] < limit:
            cost, _, at = heapq.heappop(queue)
            if cost != costs[at]:
                continue  # it was come to at less
            self._count()
            (faults, records), exits = cost, self._exits[at[0]]
            try:
                for holds, then in _along(self._invariant, exits, segments[at[0]], at[1]):
                    for hold in holds:
                        follower = (hold.child, then)
                        total = (faults + (not hold.order), records + hold.position)
                        if total < costs.get(follower, NO_LIMIT):
                            costs[follower], came[follower] = total, (at, hold)
                            heapq.heappush(queue, (total, next(numbers), follower))
            except _BrokenAt as broken:
                total = (faults, records + broken.position)
                if total < limit:
                    limit, found = total, (broken.seen, at)
        if found is None:
            return None
        seen, at = found
        return Suspect(invariant=self._invariant.name, instance=instance, seen=seen, path=_path(came, at), cost=limit)

    def _count(self) -> None:
        self._pairs += 1
        if self._pairs % _ASKED_EVERY == 0 and not self._go_on():
            raise _Ended


def _by_instance(invariant: AnyInvariant, records: Sequence[Record]) -> dict[Instance, Rows]:
    """Return the records an invariant subscribes to, by whom they are about: (group, None) is the whole group."""
    kinds = frozenset(invariant.kinds)
    found: dict[Instance, Rows] = {}
    for at, record in enumerate(records):
        if record[0] in kinds and (keyed := invariant.key(record)) is not None:
            found.setdefault(keyed, []).append((at, record, keyed[1] is not None))
    return found


def _rows_of(rows: dict[Instance, Rows], instance: Instance) -> Rows:
    own, of_all = rows.get(instance, []), rows.get((instance[0], None), [])
    return sorted((*own, *of_all), key=lambda row: row[0]) if own and of_all else own or of_all


class _Exits:
    """Where a state's calm way can be left.  Mutable: remembers which exits between two places lead elsewhere.

    Between two records that concern an instance its monitor stands still, and most exits there lead to the same states.
    """

    def __init__(self, state: State) -> None:
        self._holds = state.holds
        self._positions = [hold.position for hold in state.holds]
        self._distinct: dict[tuple[int, int], list[Hold]] = {}
        self.records = len(state.records)

    def up_to(self, record: float) -> int:
        """Return how many exits come before the record of that position."""
        return bisect.bisect_right(self._positions, record)

    def between(self, start: int, stop: int) -> list[Hold]:
        """Return one exit, the first, for each state that the exits from `start` up to `stop` lead to."""
        found = self._distinct.get((start, stop))
        if found is None:
            first: dict[Key, Hold] = {}
            for hold in self._holds[start:stop]:
                first.setdefault(hold.child, hold)
            found = self._distinct[start, stop] = list(first.values())
        return found


class _BrokenAt(Exception):
    """An invariant broke at this position of a segment."""

    def __init__(self, position: int, seen: str) -> None:
        super().__init__(position, seen)
        self.position = position
        self.seen = seen


def _along(
    invariant: AnyInvariant, exits: _Exits, rows: Rows, monitor: Hashable
) -> Iterator[tuple[list[Hold], Hashable]]:
    """Run a monitor along a state's calm way; yield its state and the exits there.  Raises `_BrokenAt`."""
    start = at = 0
    try:
        for at, record, own in rows:
            stop = exits.up_to(at)
            if stop > start:
                yield exits.between(start, stop), _composed(invariant, monitor)
                start = stop
            if own and monitor is _UNSEEN:
                monitor = invariant.initial
            if monitor is not _UNSEEN:
                monitor = invariant.advance(monitor, record)
        stop = exits.up_to(math.inf)
        if stop > start:
            yield exits.between(start, stop), _composed(invariant, monitor)
        at = exits.records
        if monitor is not _UNSEEN:
            invariant.at_end(monitor)
    except Broken as broken:
        raise _BrokenAt(at, broken.seen) from None


def _composed(invariant: AnyInvariant, monitor: Hashable) -> Hashable:
    return monitor if monitor is _UNSEEN else invariant.compose(monitor)


def _path(came: Came, at: Pair) -> tuple[tuple[Key, Hold], ...]:
    path: list[tuple[Key, Hold]] = []
    while (step := came[at]) is not None:
        at, hold = step
        path.append((at[0], hold))
    return tuple(reversed(path))
