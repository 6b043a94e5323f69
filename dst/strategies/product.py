"""Invariants on the graph: each monitor instance is run on the product of the states and its own."""

from __future__ import annotations

import bisect
import sys
from collections import deque
from collections.abc import Hashable, Iterator, Sequence

import attrs

from dst.invariants import AnyInvariant, Broken
from dst.strategies.graph import Graph, Hold, Key, State
from dst.trace import Record


@attrs.frozen(kw_only=True)
class Suspect:
    """A path on which an instance of an invariant breaks, by the graph: to be run raw before anything is said of it."""

    invariant: str
    instance: Hashable
    seen: str
    path: tuple[tuple[Key, Hold], ...]  # from the root: which hold was taken in which state


@attrs.frozen(kw_only=True)
class Searched:
    """What a search of the product found."""

    suspects: tuple[Suspect, ...]  # for each broken instance the path with the fewest deviations
    pairs: int  # (state of the system, state of a monitor) that were visited
    crashed: tuple[str, ...] = ()  # checkers that broke themselves, and how: unknown, never a pass


Rows = list[tuple[int, Record, bool]]
"""Records of a segment: position in it, record, and whether it is about the instance itself or about its group."""

_UNSEEN = object()
"""The state of an instance that nothing has been about so far: what happens to its group does not concern it."""

Instance = tuple[Hashable, Hashable]


def search(graph: Graph, root: Key, invariants: Sequence[AnyInvariant]) -> Searched:
    """Return the broken instances of all `invariants` whose states compose."""
    exits = {key: _Exits(state) for key, state in graph.items()}
    suspects: list[Suspect] = []
    crashed: list[str] = []
    pairs = 0
    for invariant in invariants:
        segments = {key: _by_instance(invariant, state.records) for key, state in graph.items()}
        instances = dict.fromkeys(
            instance for rows in segments.values() for instance in rows if instance[1] is not None
        )  # in the order in which they show
        for instance in instances:
            own = {key: _rows_of(rows, instance) for key, rows in segments.items()}
            try:
                found, visited = _search_instance(exits, root, invariant, own, instance[1])
            except Exception as error:  # the row tells how
                crashed.append(f"checker {invariant.name} broke on a path: {type(error).__name__}: {error}")
                break
            pairs += visited
            if found is not None:
                suspects.append(found)
    return Searched(suspects=tuple(suspects), pairs=pairs, crashed=tuple(crashed))


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


def _search_instance(
    exits: dict[Key, _Exits], root: Key, invariant: AnyInvariant, segments: dict[Key, Rows], instance: Hashable
) -> tuple[Suspect | None, int]:
    """Breadth first over (state, monitor state): the first violation has the fewest deviations."""
    start: tuple[Key, Hashable] = (root, _UNSEEN)
    came: dict[tuple[Key, Hashable], tuple[tuple[Key, Hashable], Hold] | None] = {start: None}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        try:
            for holds, then in _along(invariant, exits[at[0]], segments[at[0]], at[1]):
                for hold in holds:
                    follower = (hold.child, then)
                    if follower not in came:
                        came[follower] = (at, hold)
                        queue.append(follower)
        except Broken as broken:
            path = _path(came, at)
            return Suspect(invariant=invariant.name, instance=instance, seen=broken.seen, path=path), len(came)
    return None, len(came)


class _Exits:
    """Where a state's calm way can be left.  Mutable: remembers which exits between two places lead elsewhere.

    Between two records that concern an instance its monitor stands still, and most exits there lead to the same states.
    """

    def __init__(self, state: State) -> None:
        self._holds = state.holds
        self._positions = [hold.position for hold in state.holds]
        self._distinct: dict[tuple[int, int], list[Hold]] = {}

    def up_to(self, record: int) -> int:
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


def _along(
    invariant: AnyInvariant, exits: _Exits, rows: Rows, monitor: Hashable
) -> Iterator[tuple[list[Hold], Hashable]]:
    """Run a monitor along a state's calm way; yield its state and the exits there.  Raises `Broken`."""
    start = 0
    for at, record, own in rows:
        stop = exits.up_to(at)
        if stop > start:
            yield exits.between(start, stop), _composed(invariant, monitor)
            start = stop
        if own and monitor is _UNSEEN:
            monitor = invariant.initial
        if monitor is not _UNSEEN:
            monitor = invariant.advance(monitor, record)
    stop = exits.up_to(sys.maxsize)
    if stop > start:
        yield exits.between(start, stop), _composed(invariant, monitor)
    if monitor is not _UNSEEN:
        invariant.at_end(monitor)


def _composed(invariant: AnyInvariant, monitor: Hashable) -> Hashable:
    return monitor if monitor is _UNSEEN else invariant.compose(monitor)


def _path(
    came: dict[tuple[Key, Hashable], tuple[tuple[Key, Hashable], Hold] | None], at: tuple[Key, Hashable]
) -> tuple[tuple[Key, Hold], ...]:
    path: list[tuple[Key, Hold]] = []
    while (step := came[at]) is not None:
        at, hold = step
        path.append((at[0], hold))
    return tuple(reversed(path))
