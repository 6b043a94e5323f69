"""Orders of operations: sleep sets lose no state, every order is a schedule, and crashes are found in all of them."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dst.choices import Written
from dst.errors import WrongUsage
from dst.faults import HOLDING, Menu
from dst.footprints import ADD, EVERYTHING, READ, SET, WRITE, independent
from dst.records import ExplorationRecord
from dst.run import Host, RunResult, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.sentences import sentence
from dst.simulation import Moment, Simulation
from dst.strategies.explore import Exploration, Explorer, check_orders, explore
from dst.strategies.orders import Orders
from dst.strategies.view import Bounds
from dst.testing import check
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS

ALL = Bounds(all_orders=True)
HERE = Path(__file__).parent


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Tasks over no kernel."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("ordered_toys")


@pytest.fixture
def flows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The flows of the benchmark."""
    monkeypatch.syspath_prepend(HERE.parent / "benchmarks")
    return importlib.import_module("interleaved")


def explored(scenario: type[Scenario], bounds: Bounds) -> Exploration:
    """Explore on a host of its own."""
    return host(lambda h: explore(h, scenario, bounds))


# ---- footprints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "can_change_places"),
    [
        ([("x", WRITE)], [("y", WRITE)], True),
        ([("x", READ)], [("x", READ)], True),
        ([("x", ADD)], [("x", ADD)], True),
        ([("x", SET)], [("x", SET)], True),
        ([("x", READ)], [("x", ADD)], False),
        ([("x", ADD)], [("x", SET)], False),
        ([("x", WRITE)], [("x", WRITE)], False),
        ([("x", READ), ("x", ADD)], [("x", ADD)], False),
        ([("y", ADD), ("x", READ)], [("y", ADD), ("x", WRITE)], False),
        ([(EVERYTHING, WRITE)], [("x", READ)], False),
        ([("x", READ)], [(EVERYTHING, WRITE)], False),
        ([(EVERYTHING, WRITE)], [], True),
    ],
)
def test_what_can_change_places(
    one: list[tuple[str, str]], other: list[tuple[str, str]], can_change_places: bool
) -> None:
    assert can_change_places is independent(one, other) is independent(other, one)


# ---- against every order ---------------------------------------------------------------------------------------------


def searched(scenario: type[Scenario], *, reduced: bool) -> tuple[int, set[str], set[str]]:
    """Run all orders: how many there were, the final behaviours, and those that a crash could leave behind."""
    visible, final = set[str](), set[str]()

    async def body(simulations: Host) -> int:
        orders, runs = Orders(reduced=reduced), 0
        while True:
            steer, seen = orders.steer((), scenario), list[str]()

            def spy(world: Scenario, sim: Simulation, point: str, menu: Menu, moment: Moment) -> None:
                if f"crash-{moment.value}" in menu.names and not steer.will_hold(point, menu):  # noqa: B023
                    seen.append(world.behaviour(sim, 1))  # noqa: B023

            await simulations.run(scenario, steer, spy=spy)
            steer.finish()
            runs += 1
            visible.update(seen)
            final.update(seen[-1:])
            if not orders.advance():
                return runs

    return host(body), final, visible


OPERATIONS = st.tuples(st.sampled_from(["read", "write", "add", "set", "quiet"]), st.sampled_from("xy"))
SYSTEMS = st.lists(st.lists(OPERATIONS, min_size=1, max_size=3), min_size=2, max_size=3).filter(
    lambda tasks: sum(map(len, tasks)) <= 6
)


@settings(max_examples=40, deadline=None)
@given(tasks=SYSTEMS)
def test_sleep_sets_lose_no_state_of_any_small_system(tasks: Sequence[Sequence[tuple[str, str]]]) -> None:
    toys = importlib.import_module("tests.dst.ordered_toys")
    system = type("System", (toys.Tasks,), {"tasks": tasks})
    every, fewer = searched(system, reduced=False), searched(system, reduced=True)
    assert every[1:] == fewer[1:]
    assert fewer[0] <= every[0]


def test_what_does_not_say_what_it_touches_changes_places_with_nothing(toys: ModuleType) -> None:
    tasks = ((("quiet", "x"), ("quiet", "x")), (("quiet", "y"), ("quiet", "y")))
    runs, _, _ = searched(type("Silent", (toys.Tasks,), {"tasks": tasks}), reduced=True)
    assert runs == 6


# ---- an order is a schedule ------------------------------------------------------------------------------------------


def all_runs(scenario: type[Scenario]) -> list[tuple[RunResult, RunResult]]:
    """Return the runs of all orders, each with the run of its schedule."""

    async def body(simulations: Host) -> list[tuple[RunResult, RunResult]]:
        orders, found = Orders(), []
        while True:
            steer = orders.steer((), scenario)
            one = await simulations.run(scenario, steer)
            steer.finish()
            found.append((one, await simulations.run(scenario, Written(one.deviations))))
            if not orders.advance():
                return found

    return host(body)


@pytest.mark.parametrize("flow", ["Emits", "Steps", "Alike", "Decisions"])
def test_every_order_is_a_schedule_of_holds_that_does_the_same_again(flows: ModuleType, flow: str) -> None:
    runs = all_runs(getattr(flows, flow))
    assert len(runs) > 3
    for steered, raw in runs:
        assert steered.digest == raw.digest
        assert steered.deviations == raw.deviations
        assert {"hold"} == {deviation.do for deviation in raw.deviations}


def test_a_state_is_reached_by_its_schedule_in_whatever_order_a_crash_found_it(flows: ModuleType) -> None:
    async def body(simulations: Host) -> int:
        explorer = Explorer(simulations, flows.Alike, ALL)
        await explorer.run()
        crashed = [state for state in explorer.graph.values() if state.key[0] == "crash" and len(state.key) == 3]
        for state in crashed:
            seen: dict[tuple[str, Moment], str] = {}

            def spy(world: Scenario, sim: Simulation, point: str, menu: Menu, moment: Moment) -> None:
                seen[point, moment] = world.behaviour(sim, 1)  # noqa: B023

            way, last = state.deviations[:-1], state.deviations[-1]
            await simulations.run(flows.Alike, Written(way, at_calls=True), spy=spy)
            assert state.key[1] == seen[last.at, Moment(last.do.removeprefix("crash-"))]
        return len(crashed)

    assert host(body) > 15


def test_a_hold_may_wait_for_something_and_then_for_nothing_else_to_run() -> None:
    hold = Deviation(at="call:step:q:/0.0:a#1", do="hold", until="idle after append:order-1:STEP_COMPLETED:charge#1")
    assert sentence(hold).endswith("STEP_COMPLETED charge of order-1 is appended and nothing else can run")


def test_what_is_held_may_crash_when_it_goes_on(toys: ModuleType) -> None:
    class Two(toys.Tasks):
        tasks = ((("add", "a"),), (("add", "b"),))

    deviations = (
        Deviation(at="op:0.0#1", do="hold", until="op:1.0#1"),
        Deviation(at="op:0.0#1", do="crash-after"),
    )
    choices = Written(deviations)
    result = host(lambda h: h.run(Two, choices))
    assert () == choices.missed
    assert deviations == result.deviations
    assert [(1, 0), (0, 0)] == [record[1:] for record in result.records if record[0] == "did"]


def test_orders_of_what_never_crashes_are_explored_as_well(toys: ModuleType) -> None:
    class Crashless(toys.Tasks):
        faults = (HOLDING,)
        tasks = ((("write", "a"),), (("write", "a"),))

    record = check(Crashless, strategy="explore", all_orders=True)
    assert isinstance(record, ExplorationRecord)
    assert (True, 2, 1) == (record.closed, record.orders_run, record.transitions)


# ---- with crashes ----------------------------------------------------------------------------------------------------


def test_a_bug_that_needs_an_order_and_a_crash_is_found_in_all_orders_only(toys: ModuleType) -> None:
    calm, every = explored(toys.Held, Bounds()), explored(toys.Held, ALL)
    assert (True, []) == (calm.closed, calm.found)
    assert ["done-once"] == sorted({found.violation.invariant for found in every.found})
    assert not every.spurious
    assert any(deviation.do == "hold" for deviation in every.found[0].deviations)
    assert any(deviation.do.startswith("crash") for deviation in every.found[0].deviations)


def test_a_path_through_several_orders_is_put_together_and_run(toys: ModuleType) -> None:
    report = explored(toys.HeldAgain, ALL)
    assert ["done-twice"] == sorted({found.violation.invariant for found in report.found})
    assert not report.spurious
    assert 2 == sum(deviation.do.startswith("crash") for deviation in report.found[0].deviations)


def test_a_mutant_that_the_calm_order_hides_is_killed_in_all_orders(flows: ModuleType) -> None:
    mutant = MUTANTS["emit-ordinal"].apply(flows.Crossed)
    calm, every = explored(mutant, Bounds()), explored(mutant, ALL)
    assert (True, []) == (calm.closed, calm.found)
    assert "emit-once" in {found.violation.invariant for found in every.found}


@pytest.mark.parametrize("flow", ["Alike", pytest.param("Crossed", marks=pytest.mark.slow)])
def test_the_true_kernel_closes_in_all_orders(flows: ModuleType, flow: str) -> None:
    scenario = getattr(flows, flow)
    calm, every = explored(scenario, Bounds()), explored(scenario, ALL)
    assert every.closed
    assert (0, 0, "") == (len(every.found), len(every.spurious), every.diverged)
    assert every.states > calm.states
    assert every.schedules_covered[2] > calm.schedules_covered[2]


def crash_states(scenario: type[Scenario], bounds: Bounds = ALL) -> set[str]:
    """Return every behaviour that a crash leaves behind, after any number of crashes."""

    async def body(simulations: Host) -> set[str]:
        explorer = Explorer(simulations, scenario, bounds)
        report = await explorer.run()
        assert not report.bounded_by[len(report.left_out) :]
        return {key[1] for key in explorer.graph if key[0] == "crash"}

    return host(body)


@pytest.mark.parametrize("flow", ["Alike", "Fine", pytest.param("Decisions", marks=pytest.mark.slow)])
def test_after_any_number_of_crashes_sleep_sets_have_lost_no_state(
    flows: ModuleType, toys: ModuleType, flow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = getattr(flows, flow, None) or getattr(toys, flow)
    fewer = crash_states(scenario)
    monkeypatch.setattr("dst.strategies.explore.Orders", functools.partial(Orders, reduced=False))
    assert fewer == crash_states(scenario)
    assert len(fewer) > 8


@pytest.mark.parametrize("flow", ["Alike", "Crossed"])
def test_all_orders_have_all_that_the_calm_order_has(flows: ModuleType, flow: str) -> None:
    scenario = getattr(flows, flow)
    assert crash_states(scenario, Bounds()) < crash_states(scenario)


def test_a_bound_on_orders_is_named(flows: ModuleType) -> None:
    report = explored(flows.Steps, Bounds(all_orders=True, orders_max=3, states_max=4))
    assert not report.closed
    assert ["4 states", "not all orders of 4 of the states"] == sorted(report.cut_short)


def test_a_port_that_does_not_crash_where_it_was_held_is_told(toys: ModuleType) -> None:
    report = explored(toys.Deaf, ALL)
    assert "a port does what `approach` returns" in report.diverged
    assert not report.closed


def test_an_order_that_cannot_be_run_again_is_told(toys: ModuleType) -> None:
    report = explored(toys.Moody, ALL)
    assert "was not there when its order was run again" in report.diverged
    assert not report.closed


def test_all_orders_are_refused_where_nothing_can_be_held_or_other_faults_take_part() -> None:
    with pytest.raises(WrongUsage, match="HOLDING"):
        check_orders(type("Bare", (SCENARIOS["order_saga"],), {"faults": ()}), ALL)
    with pytest.raises(WrongUsage, match="crashes alone"):
        check_orders(SCENARIOS["order_saga"], Bounds(all_orders=True, others=1))


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_finds_what_only_an_order_and_a_crash_show_and_shrinks_it(command) -> None:
    calm = json.loads(command.call("explore", "ordered_toys:Held", "--json").out)
    assert (True, "calm", 0) == (calm["closed"], calm["orders"], calm["exit_code"])
    every = json.loads(command.call("explore", "ordered_toys:Held", "--orders", "all", "--json").out)
    assert ("all", 1) == (every["orders"], every["exit_code"])
    assert "--orders all" in every["repeat"]
    failure = every["failures"][0]
    assert (True, True) == (failure["replays"], failure["minimal"])
    assert ["crash", "hold"] == sorted({d["do"].partition("-")[0] for d in failure["deviations"]})
    assert 1 == command.call("replay", failure["id"], "--scenario", "ordered_toys:Held").code


def test_the_command_says_that_all_orders_were_closed(command) -> None:
    done = command.call("explore", "ordered_toys:Fine", "--orders", "all")
    assert 0 == done.code
    assert "closed (all port orders): every crash schedule with any number of crashes" in done.out
    assert "orders run" in done.out
    assert "bounded by: orders of what lies between ports" in done.out
