"""Where no crash can follow, only what races is tried in another order: no run's end is lost by that."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

import attrs
import pytest

from dst.faults import CRASH_BEFORE, GO, HOLD, HOLDING, Menu, Option, menu
from dst.footprints import READ, WRITE, Footprint, independent
from dst.run import Host, host
from dst.scenario import Scenario
from dst.simulation import Simulation
from dst.strategies.explore import Exploration, crashes_can_follow, explore
from dst.strategies.orders import Orders
from dst.strategies.races import Operation, races
from dst.strategies.view import Bounds
from scenarios.catalogue import SCENARIOS
from tests.dst.conftest import CommandLine
from tests.dst.drawn_systems import Drawn, Op, systems

ALL = Bounds(all_orders=True)
PASSED_BY = "states on the way that no operation sees, since no crash can come there"


@attrs.frozen
class Ends:
    """What running orders came to."""

    ends: frozenset[Hashable]
    runs: int
    blocked: int
    by_races: bool  # to the end


async def ends_of(simulations: Host, scenario: type[Scenario], *, reduced: bool = True, crashes: bool = False) -> Ends:
    """Run all orders."""
    orders, ends, runs, blocked = Orders(reduced=reduced, crashes=crashes), set[Hashable](), 0, 0
    while True:
        steer = orders.steer((), scenario)
        result = await simulations.run(scenario, steer)
        steer.finish()
        assert not result.failures
        ends.add(result.outcome)
        runs, blocked = runs + 1, blocked + steer.blocked
        if not orders.advance():
            return Ends(frozenset(ends), runs, blocked, orders.by_races)


async def three_ways(simulations: Host, scenario: type[Scenario]) -> tuple[Ends, Ends, Ends]:
    """Run every order, those that sleep sets leave, and those that races ask for."""
    return (
        await ends_of(simulations, scenario, reduced=False),
        await ends_of(simulations, scenario, crashes=True),
        await ends_of(simulations, scenario),
    )


def drawn(*tasks: Sequence[Op]) -> type[Drawn]:
    """Return a system of these tasks."""
    return type("System", (Drawn,), {"tasks": tasks})


# ---- against every order ---------------------------------------------------------------------------------------------


def compared(seed: int, count: int, operations_max: int) -> Iterator[tuple[type[Drawn], Ends, Ends, Ends]]:
    """Yield systems, each run in every order, with sleep sets alone, and by races."""

    async def body(simulations: Host) -> list[tuple[type[Drawn], Ends, Ends, Ends]]:
        drawn_ones = itertools.islice(systems(seed, operations_max), count)
        return [(system, *await three_ways(simulations, system)) for system in drawn_ones]

    yield from host(body)


@pytest.mark.parametrize(
    ("seed", "count", "operations_max"), [(1, 400, 6), pytest.param(2, 1_200, 8, marks=pytest.mark.slow)]
)
def test_no_end_of_any_drawn_system_is_lost(seed: int, count: int, operations_max: int) -> None:
    every = sleep = by_races = blocked = ends = unclear = 0
    for system, brute, slept, raced in compared(seed, count, operations_max):
        assert brute.ends == slept.ends, system.tasks
        assert brute.ends == raced.ends, system.tasks
        every, sleep, by_races = every + brute.runs, sleep + slept.runs, by_races + raced.runs
        blocked, ends, unclear = blocked + raced.blocked, ends + len(brute.ends), unclear + (not raced.by_races)
    runs = f"{every:,} orders, {sleep:,} with sleep sets, {by_races:,} by races ({blocked:,} blocked)"
    print(f"{count:,} systems, {ends:,} ends: {runs}")  # noqa: T201  # for who asks with -s
    assert ends > 2 * count  # most have something to lose
    assert 3 * by_races < 2 * sleep < every
    assert unclear < count / 20


def test_races_that_are_overlooked_lose_ends_and_this_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(one: Footprint, other: Footprint) -> bool:
        return independent([touch for touch in one if touch[0] != "x"], other)

    monkeypatch.setattr("dst.strategies.races.independent", blind)
    lost = [brute.ends - raced.ends for _, brute, _, raced in compared(1, 100, 6)]
    assert sum(map(bool, lost)) > 5


def test_what_wakes_another_need_not_come_before_it() -> None:
    """Either of two lets a third go on, which then races with the first of them."""
    setting = Op("set", "e")
    system = drawn((Op("write", "x"), setting), (setting,), (Op("wait", "e"), Op("copy", "x", "y")))

    async def body(simulations: Host) -> tuple[Ends, Ends]:
        return await ends_of(simulations, system, reduced=False), await ends_of(simulations, system)

    every, fewer = host(body)
    assert every.ends == fewer.ends
    assert len(every.ends) == 2
    assert fewer.runs < every.runs / 2


def test_what_an_operation_touches_in_one_order_counts_in_all() -> None:
    """What a task reads decides what it writes: before the flag it races with the last addition."""
    system = drawn(
        (Op("join", tasks=((Op("write", "x"),),)), Op("add", "y")),
        (Op("branch", "x", "z"),),
        (Op("read", "x"), Op("flag", "z")),
        (Op("branch", "z", "y"),),
    )

    async def body(simulations: Host) -> tuple[Ends, Ends]:
        return await ends_of(simulations, system, reduced=False), await ends_of(simulations, system)

    every, fewer = host(body)
    assert len(every.ends) == 28
    assert every.ends == fewer.ends
    assert fewer.by_races


# ---- what is a race --------------------------------------------------------------------------------------------------


def run_of(*operations: tuple[int, str], time: Sequence[int] = ()) -> list[Operation]:
    """Return a run: for each operation its task, and the variable that it writes, if any."""
    return [
        Operation(
            turn=at,
            let_go=True,
            point=f"{task}#{at}",
            task=task,
            time_ns=time[at] if time else 0,
            footprint=frozenset({(variable, WRITE)} if variable else ()),
        )
        for at, (task, variable) in enumerate(operations)
    ]


def seen(run: Sequence[Operation], since: int = 0) -> list[tuple[int, list[str]]]:
    """Return the races of a run."""
    return [(race.turn, sorted(race.firsts)) for race in races(run, since)]


def test_of_two_that_touch_the_same_the_later_could_come_first() -> None:
    assert [(0, ["1#1"])] == seen(run_of((0, "x"), (1, "x")))
    assert [] == seen(run_of((0, "x"), (1, "y")))
    assert [] == seen(run_of((0, "x"), (0, "x")))


def test_what_the_later_comes_after_has_to_come_first_as_well() -> None:
    assert [(0, ["1#1"])] == seen(run_of((0, "x"), (1, "y"), (1, "x")))
    assert [(0, ["1#1", "2#2"])] == seen(run_of((0, "x"), (1, "y"), (2, "x")))


def test_two_with_something_between_them_that_is_after_the_one_and_before_the_other_do_not_race() -> None:
    assert [(0, ["1#1"]), (1, ["2#2"])] == seen(run_of((0, "x"), (1, "x"), (2, "x")))


def test_a_race_is_told_once() -> None:
    assert [(1, ["2#2"])] == seen(run_of((0, "x"), (1, "x"), (2, "x")), since=2)


def test_nothing_goes_back_over_a_move_of_time() -> None:
    assert [] == seen(run_of((0, "x"), (1, "x"), time=(0, 1)))


# ---- where it does not hold ------------------------------------------------------------------------------------------


class OneSite(Drawn):
    """All tasks come to one site, so that their points change names."""

    tasks: ClassVar = ((Op("write", "x"),), (Op("write", "y"),), (Op("write", "z"),))

    def site(self, name: str, at: int) -> str:
        """Return the same for all."""
        return "op"


class Followed(Drawn):
    """Each operation is followed by one that is not held: who does it in another order is not known."""

    tasks: ClassVar = OneSite.tasks

    async def port(self, site: str, name: str, op: Op) -> None:
        """Do it, and something more."""
        await super().port(site, name, op)
        point, _ = self.sim.enter(f"after:{name}", menu((), ()))
        self.sim.touch(name, WRITE)
        self.sim.happened(point)


class Afterwards(Drawn):
    """Touches something when its operation is done."""

    tasks: ClassVar = OneSite.tasks

    async def port(self, site: str, name: str, op: Op) -> None:
        """Do it, and touch something."""
        await super().port(site, name, op)
        self.sim.touch(name, READ)


_WITH_CRASH = Menu((Option(name=GO), Option(name="crash-before", fault=CRASH_BEFORE), Option(name=HOLD, fault=HOLDING)))


class Undeclared(Drawn):
    """Can crash, and does not say so."""

    tasks: ClassVar = ((Op("read", "x"), Op("read", "y")), (Op("write", "x"),), (Op("write", "z"),))

    async def port(self, site: str, name: str, op: Op) -> None:
        """Have a menu of its own, in some orders."""
        if any(self.memory["t0"]):
            self.menu = _WITH_CRASH
        await super().port(site, name, op)

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """All there is."""
        return str(super().outcome(sim))

    def outcome(self, sim: Simulation) -> Hashable:
        """Nothing: what a crash leaves is not what a calm run does."""
        return None


@pytest.mark.parametrize("system", [OneSite, Followed, Afterwards])
def test_where_operations_are_not_choices_with_names_of_their_own_all_that_is_awake_is_tried(
    system: type[Drawn],
) -> None:
    every, slept, raced = host(lambda h: three_ways(h, system))
    assert not raced.by_races
    assert every.ends == raced.ends
    assert (slept.runs, slept.blocked) == (raced.runs, raced.blocked)
    assert raced.runs > 1


def test_once_it_shows_that_it_does_not_hold_all_is_begun_anew() -> None:
    class Late(Drawn):
        """Two tasks come to one site, if the first of them has read what the third has written."""

        tasks: ClassVar = ((Op("read", "x"), Op("read", "y")), (Op("write", "x"),), (Op("read", "z"),))

        def site(self, name: str, at: int) -> str:
            """Return another once something was read."""
            return super().site("t2" if any(self.memory["t0"]) else name, 0)

    every, slept, raced = host(lambda h: three_ways(h, Late))
    assert not raced.by_races
    assert every.ends == raced.ends
    assert raced.runs > slept.runs  # those from before it was known are counted


# ---- exploration -----------------------------------------------------------------------------------------------------


def explored(scenario: type[Scenario]) -> Exploration:
    """Explore all orders."""
    return host(lambda h: explore(h, scenario, ALL))


def test_three_tasks_that_share_nothing_are_one_order() -> None:
    report = explored(drawn(*(tuple(Op("write", variable) for _ in range(3)) for variable in "xyz")))
    assert (True, 1, 0, 0) == (report.closed, report.orders, report.orders_pruned, report.transitions)
    assert report.crossroads > 1
    assert any(said.startswith(PASSED_BY) for said in report.left_out)


def test_one_order_of_several_is_no_exploration_of_nothing(command: CommandLine) -> None:
    text = "from tests.dst.drawn_systems import Drawn, Op\n\n\nclass Apart(Drawn):\n    tasks = {tasks}\n"
    apart = '((Op("write", "x"),), (Op("write", "y"),))'
    (command.folder / "apart.py").write_text(text.format(tasks=apart), encoding="utf-8")
    (command.folder / "alone.py").write_text(text.format(tasks="()").replace("Apart", "Alone"), encoding="utf-8")
    done = command.run("explore", "apart:Apart", "--orders", "all")
    assert 0 == done.code, done.out + done.err
    assert "closed (all port orders)" in done.out
    assert PASSED_BY in done.out
    nothing = command.run("explore", "alone:Alone", "--orders", "all")
    assert 5 == nothing.code
    assert "VACUOUS" in nothing.out


def test_where_crashes_can_follow_no_state_is_passed_by() -> None:
    crashing = type("Crashing", (Drawn,), {"tasks": ((Op("write", "x"),),), "faults": (CRASH_BEFORE, HOLDING)})
    assert not any(said.startswith(PASSED_BY) for said in explored(crashing).left_out)


def test_crashes_follow_where_they_are_declared_or_seen() -> None:
    assert not crashes_can_follow(Drawn, ALL)
    assert crashes_can_follow(Drawn, Bounds(all_orders=True, others=1))
    assert crashes_can_follow(SCENARIOS["order_saga"], ALL)


def test_a_crash_that_is_not_declared_is_followed_all_the_same() -> None:
    declared = type("Declared", (Undeclared,), {"faults": (CRASH_BEFORE, HOLDING)})
    one, other = explored(Undeclared), explored(declared)
    assert one.states == other.states > 1
    assert one.orders > other.orders  # those from before it was seen are counted
