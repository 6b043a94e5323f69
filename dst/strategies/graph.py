"""The graph of crash states that exploration builds, and what can be read off it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from dst.schedule import Deviation
from dst.trace import Record

Key = tuple[str, ...]
Cost = tuple[int, int]
"""Of a way from the root: faults, then records.  What is held is how a way goes on, and no fault."""


@attrs.frozen(kw_only=True)
class Hold:
    """A moment of a state's calm way at which something else may be done: an edge to another state.

    That all goes on in another order leads, at its first moment, to a state of that order.
    """

    position: int  # records of the segment before it
    point: str
    nth: int  # which passing of its site, counted from the segment's start: what it is on any path to this state
    option: str
    crash: bool
    child: Key
    order: bool = False


@attrs.define(kw_only=True, eq=False)
class State:
    """A behaviour, by the cheapest schedule found that leads to it.  Mutable until it has been run."""

    key: Key
    deviations: tuple[Deviation, ...]
    cost: Cost = (0, 0)
    visited: bool = False
    records: Sequence[Record] = ()  # its segment: from the last deviation to the end of the calm run
    holds: Sequence[Hold] = ()
    counts: Mapping[str, int] = attrs.field(factory=dict)  # how often sites were passed before its segment
    order: tuple[Deviation, ...] = ()  # what makes the order of its segment another than the calm one, if it is


Graph = dict[Key, State]


def visited(graph: Graph) -> Graph:
    """Return the part of a graph that has been run: what can be said of it holds, wherever the rest would lead."""
    done = {key: state for key, state in graph.items() if state.visited}
    if len(done) == len(graph):
        return graph
    return {
        key: attrs.evolve(state, holds=[hold for hold in state.holds if hold.child in done])
        for key, state in done.items()
    }


def count_schedules(graph: Graph, root: Key, crashes_max: int) -> list[int]:
    """Return, for n = 0, 1, …, how many schedules of up to n crashes the graph stands for.

    A schedule is a path: which crash, at which moment of the way that the last one left, and so on; other faults may
    lie between, as far as the graph has them.
    """
    if root not in graph:
        return [0] * (crashes_max + 1)
    order = _children_first(graph, root)
    sums: list[int] = []
    fewer: dict[Key, int] = {}  # ways to go on from a state with one crash less
    for crashes in range(crashes_max + 1):
        ways: dict[Key, int] = {}  # with exactly so many crashes
        for key in order:
            total = 1 if crashes == 0 else 0
            for hold in graph[key].holds:
                if not hold.crash:
                    total += ways[hold.child]
                elif crashes:
                    total += fewer[hold.child]
            ways[key] = total
        sums.append(ways[root] + (sums[-1] if sums else 0))
        fewer = ways
    return sums


def _children_first(graph: Graph, root: Key) -> list[Key]:
    """Order states so that what other faults lead to comes before: those edges have no cycles, budgets run down."""
    order: list[Key] = []
    done: set[Key] = set()
    stack: list[tuple[Key, bool]] = [(key, False) for key in (*graph, root)]
    while stack:
        key, left = stack.pop()
        if left:
            order.append(key)
        elif key not in done:
            done.add(key)
            stack.append((key, True))
            stack += [(hold.child, False) for hold in graph[key].holds if not hold.crash]
    return order
