"""Where nothing can crash, races decide which orders are run: no end is lost, on small systems drawn from seeds."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from dst.errors import WrongUsage
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, HOLDING, Fault, menu
from dst.footprints import Footprint, independent
from dst.run import Host, host
from dst.scenario import Scenario
from dst.simulation import Simulation
from dst.strategies.explore import explore
from dst.strategies.orders import Blocked, Orders
from dst.strategies.view import Bounds, can_be_left

SYSTEMS = 300
TWO_LET_IT_GO = (1257, 1642)  # a task goes on after either of two turns: rare, and once lost
HERE = Path(__file__).parent


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Systems drawn from seeds."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("waiting_toys")


def ends(scenario: type[Scenario], orders: Orders) -> tuple[int, set[str]]:
    """Run all orders: how many there were, and what they end in."""
    found = set[str]()

    async def body(simulations: Host) -> int:
        runs, more = 0, True
        while more:
            steer = orders.steer((), scenario)
            with contextlib.suppress(Blocked):
                result = await simulations.run(scenario, steer)
                found.update(record[1] for record in result.records if record[0] == "stands")
            steer.finish()
            runs, more = runs + 1, orders.advance()
        return runs

    return host(body, brief=True), found


def system(toys: ModuleType, seed: int) -> type[Scenario]:
    """Return the system of a seed."""
    return type("System", (toys.Waiting,), {"system": toys.drawn(seed)})


def test_races_lose_no_end_of_any_small_system(toys: ModuleType) -> None:
    wrong, totals = [], [0, 0, 0]
    for seed in (*range(SYSTEMS), *TWO_LET_IT_GO):
        one = system(toys, seed)
        (every, all_ends), (asleep, _), (raced, raced_ends) = (
            ends(one, Orders(reduced=False)),
            ends(one, Orders()),
            ends(one, Orders(ends_only=True)),
        )
        print(f"system {seed}: {every} orders, {asleep} with sleep sets, {raced} with races")  # noqa: T201
        totals = [sum(pair) for pair in zip(totals, (every, asleep, raced), strict=True)]
        if raced_ends != all_ends:
            wrong.append(seed)
    print("together:", *totals)  # noqa: T201
    assert wrong == []
    assert totals[0] > 2 * totals[1] > 2 * totals[2]


@pytest.mark.parametrize("resource", ["x", "lock 0"])
def test_races_that_overlook_a_resource_lose_ends(
    toys: ModuleType, monkeypatch: pytest.MonkeyPatch, resource: str
) -> None:
    def careless(one: Footprint, other: Footprint) -> bool:
        return independent([touch for touch in one if touch[0] != resource], other)

    monkeypatch.setattr("dst.strategies.turns.independent", careless)
    systems = (system(toys, seed) for seed in range(SYSTEMS))
    assert any(ends(one, Orders(ends_only=True))[1] != ends(one, Orders(reduced=False))[1] for one in systems)


# ---- exploration -----------------------------------------------------------------------------------------------------

APART = "states on the way that no operation sees"
ALL = Bounds(all_orders=True)


def test_tasks_that_share_nothing_are_run_in_one_order(toys: ModuleType) -> None:
    report = host(lambda h: explore(h, toys.Apart, ALL))
    assert (True, 1, 1, 0, 1) == (report.closed, report.runs, report.orders, report.orders_pruned, report.states)
    assert any(said.startswith(APART) for said in report.left_out)


def test_where_a_crash_can_come_in_each_state_is_still_visited(toys: ModuleType) -> None:
    crashing = type("Crashing", (toys.Apart,), {"faults": (CRASH_BEFORE, HOLDING)})
    report = host(lambda h: explore(h, crashing, ALL))
    assert (True, 28, 27) == (report.closed, report.orders, report.orders_pruned)
    assert not any(said.startswith(APART) for said in report.left_out)


def test_what_may_be_done_to_a_run_on_its_way_is_what_its_faults_and_the_bounds_say(toys: ModuleType) -> None:
    assert can_be_left(type("Crashing", (toys.Waiting,), {"faults": (HOLDING, CRASH_AFTER)}), ALL)
    refusing = type("Refusing", (toys.Waiting,), {"faults": (HOLDING, Fault(name="refused"))})
    assert [False, True] == [can_be_left(refusing, Bounds(all_orders=True, others=others)) for others in (0, 1)]
    assert not can_be_left(toys.Waiting, ALL)
    assert not can_be_left(toys.Waiting, Bounds(all_orders=True, others=2))


def test_a_crash_that_is_offered_and_not_among_the_faults_is_refused(toys: ModuleType) -> None:
    def build(self: Scenario, sim: Simulation) -> None:
        toys.Waiting.build(self, sim)
        self.menu = menu((HOLDING, CRASH_BEFORE), ((HOLD, HOLDING), ("crash-before", CRASH_BEFORE)))  # type: ignore[attr-defined]

    undeclared = type("Undeclared", (toys.Apart,), {"build": build})
    with pytest.raises(WrongUsage, match="offers crash-before"):
        host(lambda h: explore(h, undeclared, ALL))


def test_the_command_says_that_one_order_was_enough(command) -> None:
    done = command.call("explore", "waiting_toys:Apart", "--orders", "all", "--json")
    assert (0, 0) == (done.code, json.loads(done.out)["exit_code"])
    said = command.call("explore", "waiting_toys:Apart", "--orders", "all").out
    assert "closed (all port orders)" in said
    assert "PASS" in said
