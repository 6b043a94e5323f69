"""Invariants on the graph: each monitor instance is run on the product of the states and its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

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


def search(graph: Graph, root: Key, invariants: Sequence[AnyInvariant]) -> Searched:
    """Return the broken instances of all `invariants` whose states compose."""
    suspects: list[Suspect] = []
    pairs = 0
    for invariant in invariants:
        relevant = _relevant(graph, invariant)
        for group, instance in _instances(graph, invariant, relevant):
            found, visited = _search_instance(graph, root, invariant, relevant, group, instance)
            pairs += visited
            if found is not None:
                suspects.append(found)
    return Searched(suspects=tuple(suspects), pairs=pairs)


def _relevant(graph: Graph, invariant: AnyInvariant) -> dict[Key, list[tuple[int, Record]]]:
    """Return the records of each segment that the invariant subscribes to, with their positions."""
    kinds = frozenset(invariant.kinds)
    return {
        key: [(at, record) for at, record in enumerate(state.records) if record[0] in kinds]
        for key, state in graph.items()
    }


def _instances(
    graph: Graph, invariant: AnyInvariant, relevant: dict[Key, list[tuple[int, Record]]]
) -> list[tuple[Hashable, Hashable]]:
    """Return every instance that any record is about, in the order in which they show."""
    found: dict[tuple[Hashable, Hashable], None] = {}
    for key in graph:
        for _, record in relevant[key]:
            keyed = invariant.key(record)
            if keyed is not None and keyed[1] is not None:
                found[keyed] = None
    return list(found)


def _search_instance(
    graph: Graph,
    root: Key,
    invariant: AnyInvariant,
    relevant: dict[Key, list[tuple[int, Record]]],
    group: Hashable,
    instance: Hashable,
) -> tuple[Suspect | None, int]:
    """Breadth first over (state, monitor state): the first violation has the fewest deviations."""
    segments = {key: _of_instance(invariant, rows, group, instance) for key, rows in relevant.items()}
    start = (root, invariant.compose(invariant.initial))
    came: dict[tuple[Key, Hashable], tuple[tuple[Key, Hashable], Hold] | None] = {start: None}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        state, monitor = graph[at[0]], at[1]
        try:
            for hold, then in _along(invariant, state, segments[at[0]], monitor):
                follower = (hold.child, then)
                if follower not in came:
                    came[follower] = (at, hold)
                    queue.append(follower)
        except Broken as broken:
            path = _path(came, at)
            return Suspect(invariant=invariant.name, instance=instance, seen=broken.seen, path=path), len(came)
    return None, len(came)


def _of_instance(
    invariant: AnyInvariant, rows: list[tuple[int, Record]], group: Hashable, instance: Hashable
) -> list[tuple[int, Record]]:
    return [
        (at, r)
        for at, r in rows
        if (keyed := invariant.key(r)) is not None and keyed in ((group, instance), (group, None))
    ]


def _along(
    invariant: AnyInvariant, state: State, rows: list[tuple[int, Record]], monitor: Hashable
) -> list[tuple[Hold, Hashable]]:
    """Run a monitor along a state's calm way; return its state at each hold.  Raises `Broken`."""
    reached: list[tuple[Hold, Hashable]] = []
    holds = iter(state.holds)
    hold = next(holds, None)
    for at, record in rows:
        while hold is not None and hold.position <= at:
            reached.append((hold, invariant.compose(monitor)))
            hold = next(holds, None)
        monitor = invariant.advance(monitor, record)
    while hold is not None:
        reached.append((hold, invariant.compose(monitor)))
        hold = next(holds, None)
    invariant.at_end(monitor)
    return reached


def _path(
    came: dict[tuple[Key, Hashable], tuple[tuple[Key, Hashable], Hold] | None], at: tuple[Key, Hashable]
) -> tuple[tuple[Key, Hold], ...]:
    path: list[tuple[Key, Hold]] = []
    while (step := came[at]) is not None:
        at, hold = step
        path.append((at[0], hold))
    return tuple(reversed(path))
