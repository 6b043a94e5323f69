"""How many orders of operations there are, and how many of them sleep sets leave to be run.

    .venv/bin/python tests/benchmarks/interleavings.py [--quick] [--json]

For each flow: the runs of every order, the runs with sleep sets, their ratio, the states that runs end in and the
states that a crash could leave behind.  Both searches must see the same states, or this fails.  Where all orders are
too many, only the reduced search is run, as far as its bound.  Seconds are process CPU time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence

import attrs
from interleaved import Decisions, Emits, Steps

from dst.faults import Menu
from dst.run import Host, host
from dst.scenario import Scenario
from dst.simulation import Moment, Simulation
from dst.strategies.orders import Orders
from scenarios.parallel_quotes import ParallelQuotes


@attrs.frozen(kw_only=True)
class Searched:
    """What a search of all orders came to."""

    runs: int
    pruned: int  # of the runs, those that were cut short: what was left had been run in another order
    whole: bool  # was the search run to its end?
    final: frozenset[str]  # behaviours that runs ended in
    visible: frozenset[str]  # behaviours that a crash could leave behind
    seconds: float


def search(scenario: type[Scenario], *, reduced: bool, runs_max: int = 100_000) -> Searched:
    """Run a scenario in all orders of its operations; every run must hold."""
    return host(lambda simulations: _search(simulations, scenario, Orders(reduced=reduced), runs_max))


async def _search(simulations: Host, scenario: type[Scenario], orders: Orders, runs_max: int) -> Searched:
    began, runs, pruned, more = time.process_time(), 0, 0, True
    visible, final = set[str](), set[str]()
    while more and runs < runs_max:
        steer, seen = orders.steer((), scenario), list[str]()

        def spy(world: Scenario, sim: Simulation, point: str, menu: Menu, moment: Moment) -> None:
            if f"crash-{moment.value}" in menu.names and not steer.will_hold(point, menu):  # noqa: B023
                seen.append(world.behaviour(sim, 1))  # noqa: B023

        result = await simulations.run(scenario, steer, spy=spy)
        steer.finish()
        if result.verdict.name != "PASS":
            raise AssertionError(f"{scenario.name} failed in one order: {result.judgement.violations}")
        runs, pruned, more = runs + 1, pruned + steer.blocked, orders.advance()
        visible.update(seen)
        final.update(seen[-1:])
    return Searched(
        runs=runs,
        pruned=pruned,
        whole=not more,
        final=frozenset(final),
        visible=frozenset(visible),
        seconds=time.process_time() - began,
    )


def measure(*, quick: bool) -> list[dict[str, object]]:
    """Return a row for each flow."""
    rows = []
    for scenario in (Steps, Decisions) if quick else (Emits, Steps, Decisions):
        every, fewer = search(scenario, reduced=False), search(scenario, reduced=True)
        if (every.final, every.visible) != (fewer.final, fewer.visible):
            raise AssertionError(f"{scenario.name}: sleep sets have lost states")
        rows.append(_row(scenario, every, fewer))
    rows.append(_row(ParallelQuotes, None, search(ParallelQuotes, reduced=True, runs_max=50 if quick else 5_000)))
    return rows


def _row(scenario: type[Scenario], every: Searched | None, fewer: Searched) -> dict[str, object]:
    return {
        "flow": scenario.story,
        "every order": None if every is None else every.runs,
        "sleep sets": fewer.runs,
        "pruned": fewer.pruned,
        "whole": fewer.whole,
        "ratio": None if every is None else round(every.runs / fewer.runs, 1),
        "final states": len(fewer.final),
        "crash-visible states": len(fewer.visible),
        "seconds, every order": None if every is None else round(every.seconds, 2),
        "seconds, sleep sets": round(fewer.seconds, 2),
    }


def show(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    """Yield the table's lines."""
    heads = [head for head in rows[0] if head not in ("flow", "whole")]
    yield "  ".join(heads)
    for row in rows:
        cells = ["-" if row[head] is None else str(row[head]) for head in heads]
        bound = "" if row["whole"] else " (as far as its bound)"
        yield (
            "  ".join(f"{cell:>{len(head)}}" for cell, head in zip(cells, heads, strict=True))
            + f"  {row['flow']}{bound}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Count orders of operations, with and without sleep sets.")
    parser.add_argument("--quick", action="store_true", help="the smallest flows only: a test of the benchmark itself")
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    arguments = parser.parse_args()
    rows = measure(quick=arguments.quick)
    sys.stdout.write(json.dumps(rows, indent=2) + "\n" if arguments.json else "\n".join(show(rows)) + "\n")


if __name__ == "__main__":
    main()
