"""One simulation: crashes, restarts, requests, holds, endings; each with the smallest scenario that shows it."""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable

import pytest
import trio

from dst.choices import IDLE, Calm, Choices, Random, Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, STALLING, Fault, menu
from dst.node import Incarnation
from dst.run import Limits, RunResult, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.scheduler import NODE
from dst.signature import inconclusive, violation_of
from dst.simulation import RESTART_SECONDS, STALL_SECONDS, Simulation
from dst.trace import Record
from dst.verdict import Ending, Verdict

WEATHER = Fault(name="weather", environmental=True)
FAULTS = (CRASH_BEFORE, CRASH_AFTER, HOLDING, STALLING, WEATHER)
OPTIONS = (
    ("crash-before", CRASH_BEFORE),
    ("crash-after", CRASH_AFTER),
    ("hold", HOLDING),
    ("stall", STALLING),
    ("rain", WEATHER),
)
SECOND = 1_000_000_000


class Tiny(Scenario):
    """A worker with one method, `op`; subclasses say what it does when it starts and what the client asks."""

    name = "tiny"
    story = "a test's own"
    faults = FAULTS
    invariants = ()

    def build(self, sim: Simulation) -> None:
        self.sim = sim
        self.menu = menu(sim.faults, OPTIONS)
        self.durable: list[str] = []
        self.worker = sim.add_node("worker", self.main)

    async def main(self, incarnation: Incarnation) -> None:
        await self.recover(incarnation)
        incarnation.serve(self)
        await trio.sleep_forever()

    async def recover(self, incarnation: Incarnation) -> None:
        """Nothing to recover."""

    async def drive(self, sim: Simulation) -> None:
        """Ask for nothing."""

    async def op(self, site: str) -> None:
        """A port as others are: a point, its work, what follows."""
        point, act = self.sim.enter(site, self.menu)
        if act or self.sim.crowded():
            await self.sim.approach(point, act)
        if act == "crash-before":
            await self.sim.crash(point)
        self.durable.append(site)
        self.sim.note("did", site, NODE.get())
        self.sim.happened(point)
        if act == "crash-after":
            await self.sim.crash(point)

    async def ask(self, *sites: str) -> None:
        """Ask the worker to do one thing after another."""

        async def call(incarnation: Incarnation) -> None:
            for site in sites:
                await self.op(site)

        await self.sim.request(self.worker, call, "ask")


def play(scenario: type[Scenario], choices: Choices | None = None, limits: Limits | None = None) -> RunResult:
    return host(lambda h: h.run(scenario, choices or Calm()), limits)


def written(*deviations: str) -> Written:
    """`"hold a#1 until b#1"` and `"crash-before a#1"`."""
    parts = [deviation.split() for deviation in deviations]
    return Written([Deviation(at=p[1], do=p[0], until=p[3] if len(p) > 2 else "") for p in parts])


def did(result: RunResult) -> list[str]:
    return [f"{record[1]} by {record[2]}" for record in result.records if record[0] == "did"]


def kinds(result: RunResult, *of: str) -> list[Record]:
    return [record for record in result.records if record[0] in of]


# ---- points ----------------------------------------------------------------------------------------------------------


class TwoOps(Tiny):
    async def drive(self, sim):
        await self.ask("a", "b")


def test_a_calm_run_has_no_deviation_and_passes():
    result = play(TwoOps)
    assert ((), {}, Verdict.PASS, Ending.QUIESCENT) == (
        result.deviations,
        result.fired,
        result.verdict,
        result.ending,
    )
    assert ["a by worker.1", "b by worker.1"] == did(result)
    assert 2 == result.operations


def test_occurrences_are_counted_by_site():
    class Thrice(Tiny):
        async def drive(self, sim):
            await self.ask("a", "b", "a")

    result = play(Thrice, written("rain a#2"))
    assert (Deviation(at="a#2", do="rain"),) == result.deviations
    assert {"a": (("",), ("rain",))} == result.environment
    assert {"weather": 1} == result.fired


def test_a_fault_that_the_scenario_does_not_declare_does_not_happen():
    class Calmer(TwoOps):
        faults = (WEATHER,)

    choices = written("crash-before a#1")
    assert () == play(Calmer, choices).deviations
    assert 1 == len(choices.missed)


# ---- crash -----------------------------------------------------------------------------------------------------------


def test_a_crash_before_leaves_nothing_done_and_the_client_asks_again():
    assert ["a by worker.2", "b by worker.2"] == did(play(TwoOps, written("crash-before a#1")))


def test_a_crash_after_leaves_it_done_and_the_client_asks_again():
    result = play(TwoOps, written("crash-after a#1"))
    assert ["a by worker.1", "a by worker.2", "b by worker.2"] == did(result)


def test_the_node_comes_back_after_restart_seconds():
    result = play(TwoOps, written("crash-after a#1"))
    assert [
        ("start", "worker.1"),
        ("crash", "worker.1", "a#1"),
        ("clock", round(RESTART_SECONDS * SECOND)),
        ("start", "worker.2"),
    ] == kinds(result, "start", "crash", "clock")


def test_it_may_crash_again_and_again():
    result = play(TwoOps, written("crash-before a#1", "crash-after a#2", "crash-before b#1"))
    assert ["a by worker.2", "a by worker.3", "a by worker.4", "b by worker.4"] == did(result)
    assert 3 == len(kinds(result, "crash"))


class Cleans(Tiny):
    """A worker that would clean up behind itself, and a task beside it that would go on."""

    async def drive(self, sim):
        async def call(incarnation):
            incarnation.spawn(self.beside)
            try:
                await self.op("a")
            finally:
                sim.note("cleaned")

        await sim.request(self.worker, call, "ask")

    async def beside(self):
        await trio.sleep(RESTART_SECONDS / 2)
        self.sim.note("went on", NODE.get())


def test_a_crash_freezes_no_finally_and_no_other_task_of_the_dead_runs():
    result = play(Cleans, written("crash-after a#1"))
    assert [("went on", "worker.2")] == kinds(result, "went on")
    assert [("cleaned",)] == kinds(result, "cleaned")
    assert result.records.index(("cleaned",)) > result.records.index(("start", "worker.2"))


def test_the_trace_is_closed_when_the_dead_are_reaped():
    """What their `finally` blocks do then is no part of the run, even if they note it themselves."""

    class Last(Cleans):
        def finish(self, sim):
            sim.note("end")

        async def op(self, site):
            try:
                await super().op(site)
            finally:
                self.sim.records.append(("late", NODE.get()))
                self.sim.note("late too")
                self.sim.sometimes("late")

    result = play(Last, written("crash-after a#1"))
    assert ("end",) == result.records[-1]
    assert {"late": 1} == result.marks
    assert 1 == len(kinds(result, "late too"))


def test_a_crash_in_recovery_is_counted():
    class Recovers(Tiny):
        async def recover(self, incarnation):
            incarnation.recovering = incarnation.number > 1
            await self.op("recover")
            incarnation.recovering = False

        async def drive(self, sim):
            await self.ask("a")

    assert {"crash-before": 1} == play(Recovers, written("crash-before recover#1")).fired
    result = play(Recovers, written("crash-before a#1", "crash-before recover#2"))
    assert {"crash-before": 2, "crash-in-recovery": 1} == result.fired
    assert ["recover by worker.1", "recover by worker.3", "a by worker.3"] == did(result)


# ---- stall -----------------------------------------------------------------------------------------------------------


class Beside(Tiny):
    """A worker that does `a` and `b`, with a task beside that looks at the time each second; a client that counts."""

    async def drive(self, sim):
        async def call(incarnation):
            incarnation.spawn(self.beside)
            await trio.sleep(0.5)
            await self.op("a")
            await self.op("b")

        await sim.request(self.worker, call, "ask")

    async def beside(self):
        for _ in range(3):
            await trio.sleep(1)
            self.sim.note("beat", NODE.get(), self.sim.scheduler.now_ns // SECOND)


def test_a_node_that_stalls_does_nothing_meanwhile_and_then_goes_on_where_it_was():
    result = play(Beside, written("stall a#1"))
    stood, went_on = (result.records.index(r) for r in kinds(result, "stall", "goes on"))
    assert [] == [r for r in result.records[stood + 1 : went_on] if r[0] != "clock"]
    assert ["a by worker.1", "b by worker.1"] == did(result)
    assert {"stall": 1} == result.fired


def test_timers_that_come_due_while_a_node_stalls_come_when_it_goes_on():
    result = play(Beside, written("stall a#1"))
    beats = [record[2] for record in kinds(result, "beat")]
    assert [STALL_SECONDS, STALL_SECONDS + 1, STALL_SECONDS + 2] == beats


def test_a_node_may_stall_and_then_die():
    result = play(TwoOps, written("stall a#1", "crash-before b#1"))
    assert ["a by worker.1", "a by worker.2", "b by worker.2"] == did(result)
    assert [("stall", "worker.1", "a#1"), ("goes on", "worker.1")] == kinds(result, "stall", "goes on")


def test_while_a_node_is_down_another_is_asked():
    class Either(Tiny):
        def build(self, sim):
            super().build(sim)
            self.other = sim.add_node("other", self.main)

        async def drive(self, sim):
            await sim.request(self.worker, lambda _: self.op("a"), "ask", others=[self.other])

    assert ["a by other.1"] == did(play(Either, written("crash-before a#1")))
    assert ["a by worker.1"] == did(play(Either))


def test_two_nodes_die_alone():
    class Two(Tiny):
        def build(self, sim):
            super().build(sim)
            self.other = sim.add_node("other", self.main)

        async def drive(self, sim):
            async def call(_):
                await trio.sleep(5)
                await self.op("b")

            sim.spawn(lambda: sim.request(self.other, call, "ask other"), "client of other")
            await self.ask("a")

    assert ["a by worker.2", "b by other.1"] == did(play(Two, written("crash-before a#1")))


def test_a_request_waits_for_a_node_that_is_not_up_yet():
    class Slow(Tiny):
        async def recover(self, incarnation):
            await trio.sleep(3)

        async def drive(self, sim):
            await self.ask("a")
            sim.note("answered", sim.scheduler.now_ns)

    result = play(Slow, written("crash-before a#1"))
    assert [("answered", round((3 + RESTART_SECONDS + 3) * SECOND))] == kinds(result, "answered")


def test_a_request_that_fails_fails_its_client():
    class Fails(Tiny):
        async def drive(self, sim):
            async def call(_):
                raise LookupError("no such thing")

            with pytest.raises(LookupError):
                await sim.request(self.worker, call, "ask")
            sim.note("seen")

    result = play(Fails)
    assert Verdict.PASS is result.verdict
    assert 1 == len(kinds(result, "seen"))


def test_two_clients_may_ask_for_the_same_thing_at_once():
    class TwoClients(Tiny):
        async def drive(self, sim):
            sim.spawn(lambda: self.ask("a"), "second client")
            await self.ask("a")

    for choices in (Calm(), written("crash-before a#1"), written("hold a#1 until a#2")):
        result = play(TwoClients, choices)
        assert () == result.failures
        assert 2 == len(did(result))


def test_the_world_does_not_crash():
    class Crashes(Tiny):
        async def drive(self, sim):
            await self.op("a")

    result = play(Crashes, written("crash-before a#1"))
    assert Verdict.FAIL is result.verdict
    assert "the world does not crash" in result.failures[0]


# ---- holds -----------------------------------------------------------------------------------------------------------


class Race(Tiny):
    """One worker task does a, then two more; another does b."""

    async def drive(self, sim):
        async def first():
            for site in ("a", "a2", "a3"):
                await self.op(site)

        async def call(incarnation):
            incarnation.spawn(first)
            await self.op("b")

        await sim.request(self.worker, call, "ask")


def order(result: RunResult) -> str:
    return " ".join(record[1] for record in result.records if record[0] == "did")


def test_a_hold_ends_when_its_point_has_happened():
    result = play(Race, written("hold a#1 until b#1"))
    assert "b a a2 a3" == order(result)
    assert (Deviation(at="a#1", do="hold", until="b#1"),) == result.deviations


def test_a_hold_on_the_second_lets_the_first_go_on_for_as_long_as_is_written():
    calm = order(play(Race))
    assert "a a2 b a3" == order(play(Race, written("hold b#1 until a2#1"))) != calm
    assert "a a2 a3 b" == order(play(Race, written("hold b#1 until a3#1")))


def test_a_hold_whose_point_never_comes_ends_when_nobody_else_can_run():
    result = play(Race, written("hold b#1 until never#1"))
    assert "a a2 a3 b" == order(result)
    assert IDLE == result.deviations[0].until
    assert [] == kinds(result, "clock"), "it ends before time moves"


class Counting:
    """Holds at one point for a number of operations."""

    def __init__(self, at: str, operations: int) -> None:
        self._at = at
        self._operations = operations

    def choose(self, site, point, menu):
        return menu.index("hold") if point == self._at else 0

    def hold_until(self, point):
        return self._operations


@pytest.mark.parametrize(("operations", "until", "seen"), [(1, "a#1", "a b a2 a3"), (2, "a2#1", "a a2 b a3")])
def test_a_counted_hold_ends_after_its_operations_and_is_written_down_by_the_last(operations, until, seen):
    result = play(Race, Counting("b#1", operations))
    assert (seen, until) == (order(result), result.deviations[0].until)
    assert result.digest == play(Race, Written(result.deviations)).digest


def test_a_counted_hold_that_outlasts_the_rest_ends_at_idle():
    result = play(Race, Counting("b#1", 9))
    assert ("a a2 a3 b", IDLE) == (order(result), result.deviations[0].until)


def test_holds_end_oldest_first_when_nobody_else_can_run():
    result = play(Race, written("hold a#1 until x#1", "hold b#1 until x#1"))
    assert ["hold", "hold"] == [deviation.do for deviation in result.deviations]
    assert {IDLE} == {deviation.until for deviation in result.deviations}
    assert order(result).startswith(result.deviations[0].at[0])


def test_a_hold_dies_with_its_node():
    result = play(Race, written("hold b#1 until a3#1", "crash-after a2#1"))
    assert "a a2" == order(result)[:4]
    assert 2 == len(kinds(result, "start"))
    assert IDLE == result.deviations[0].until
    assert result.digest == play(Race, Written(result.deviations)).digest
    assert Verdict.PASS is result.verdict


def test_one_can_be_held_at_its_step_too():
    """Tasks at no port are points as well: `task:…`."""
    seen = {order(play(Race, Random(seed, (HOLDING,), rate=0.5))) for seed in range(40)}
    assert len(seen) > 2
    sites = {d.site for seed in range(40) for d in play(Race, Random(seed, (HOLDING,), rate=0.5)).deviations}
    assert any(site.startswith("task:") for site in sites)


class ManyTasks(Tiny):
    """Three tasks of one name that do nothing but step."""

    async def drive(self, sim):
        async def walk():
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            self.sim.note("walked")

        for _ in range(3):
            sim.spawn(walk, "walker")


class Listening(Calm):
    """Calm, and notes the points."""

    def __init__(self) -> None:
        self.points: list[str] = []

    def choose(self, site, point, menu):
        self.points.append(point)
        return 0


def test_points_of_tasks_are_numbered_from_one_whatever_else_was_asked():
    """A task's number says which of those with its name it is, never how often another was looked at."""
    listening = Listening()
    play(ManyTasks, listening)
    walkers = [point for point in listening.points if "walker" in point]
    assert {"task:walker", "task:walker(2)", "task:walker(3)"} >= {point.rpartition("#")[0] for point in walkers}
    for site in {point.rpartition("#")[0] for point in walkers}:
        numbers = [int(point.rpartition("#")[2]) for point in walkers if point.startswith(f"{site}#")]
        assert list(range(1, len(numbers) + 1)) == numbers, site


# ---- endings ---------------------------------------------------------------------------------------------------------


class Spins(Tiny):
    """Never ends, and time stands still."""

    async def drive(self, sim):
        while True:
            await trio.lowlevel.checkpoint()


class SpinsLater(Tiny):
    """Lives a little first."""

    async def drive(self, sim):
        for _ in range(5):
            await trio.sleep(1)
        await Spins.drive(self, sim)


class SpinsNoting(Tiny):
    """Never ends, time stands still, and it does something all the while."""

    async def drive(self, sim):
        await trio.sleep(1)
        while True:
            await self.ask("a")
            await trio.lowlevel.checkpoint()


class Polls(Tiny):
    """Never ends, and time goes on."""

    async def drive(self, sim):
        while True:  # noqa: ASYNC110  # that is what is tested
            await trio.sleep(1)


class Waits(Tiny):
    """Waits for what never comes."""

    async def drive(self, sim):
        await trio.Event().wait()


class Far(Tiny):
    """Ends after a century."""

    async def drive(self, sim):
        await trio.sleep(100 * 365 * 24 * 3600)


@pytest.mark.parametrize(
    ("scenario", "ending"),
    [
        (Spins, Ending.LIVELOCK),
        (SpinsLater, Ending.LIVELOCK),
        (SpinsNoting, Ending.LIVELOCK),
        (Polls, Ending.OUT_OF_STEPS),
        (Waits, Ending.STUCK),
        (Far, Ending.OUT_OF_TIME),
    ],
)
def test_a_run_that_does_not_come_to_its_end_is_no_pass_and_says_how(scenario, ending):
    result = play(scenario, limits=Limits(steps=400))
    assert ending is result.ending
    assert Verdict.UNKNOWN is result.verdict
    assert ending.value in inconclusive(result)
    assert violation_of(result) is None


def test_a_run_after_one_that_was_given_up_is_untouched_by_it():
    async def body(h):
        return [(await h.run(scenario, Calm())).digest for scenario in (TwoOps, Spins, TwoOps, Far, Waits, TwoOps)]

    digests = host(body, Limits(steps=300))
    assert 1 == len({digests[0], digests[2], digests[5]})


def test_a_hold_that_is_on_when_the_run_is_given_up_is_replayed_too():
    """Its schedule is what a person gets to see of such a run."""

    class HoldsOn(Race):
        async def drive(self, sim):
            sim.spawn(lambda: Race.drive(self, sim), "race")
            await trio.sleep(1)
            while True:
                await trio.lowlevel.checkpoint()

    class Forever(Race):
        async def drive(self, sim):
            async def spin():
                while True:
                    await trio.lowlevel.checkpoint()

            sim.spawn(spin, "spin")
            await super().drive(sim)

    for scenario in (HoldsOn, Forever):
        result = play(scenario, Counting("b#1", 50), Limits(steps=300))
        again = play(scenario, Written(result.deviations), Limits(steps=300))
        assert result.digest == again.digest
        assert result.deviations == again.deviations


# ---- two phases ------------------------------------------------------------------------------------------------------


class Heals(Tiny):
    async def drive(self, sim):
        await self.ask("a")

    def heal(self, sim):
        sim.spawn(lambda: self.ask("a", "b"), "healer")


def test_after_the_faults_have_stopped_no_fault_happens():
    choices = written("crash-before a#2", "crash-before b#1")
    result = play(Heals, choices)
    assert 2 == len(choices.missed)
    assert () == result.deviations
    assert ["a by worker.1", "a by worker.1", "b by worker.1"] == did(result)


def test_healing_begins_when_all_is_quiet():
    result = play(Heals, written("crash-before a#1"))
    names = [record[0] for record in result.records]
    assert [("healed",)] == kinds(result, "healed")
    assert ["a by worker.2"] == did(result)[:1]
    assert names.index("healed") > names.index("did")


# ---- errors that nobody injected -----------------------------------------------------------------------------------


class DriveFails(Tiny):
    async def drive(self, sim):
        raise LookupError("no address 0x7f")


class WorkerFails(Tiny):
    async def recover(self, incarnation):
        raise LookupError("no index")


class TaskFails(Tiny):
    async def drive(self, sim):
        async def call(incarnation):
            async def task():
                raise LookupError("beside")

            incarnation.spawn(task)

        await sim.request(self.worker, call, "ask")


class HealFails(Tiny):
    def heal(self, sim):
        sim.spawn(lambda: DriveFails.drive(self, sim), "healer")


@pytest.mark.parametrize(
    ("scenario", "who"),
    [(DriveFails, "drive"), (WorkerFails, "worker.1"), (TaskFails, "worker.1"), (HealFails, "healer")],
)
def test_an_error_of_a_task_is_a_failure_that_names_the_task_and_the_error(scenario, who):
    result = play(scenario)
    assert Verdict.FAIL is result.verdict
    assert "unbroken" == violation_of(result).invariant
    assert result.failures[0].startswith(f"{who} ended by")
    assert "LookupError" in result.failures[0]
    assert ("broke", who, "LookupError") in result.records


# ---- the real world ------------------------------------------------------------------------------------------------


def asking(asks: Callable[[], Awaitable[object]], *, swallow: bool = False) -> type[Scenario]:
    class Real(Tiny):
        async def drive(self, sim):
            async def call(_):
                try:
                    await asks()
                except Exception:
                    if not swallow:
                        raise

            await sim.request(self.worker, call, "ask")

    return Real


async def _io() -> None:
    with socket.socket() as plain:
        await trio.lowlevel.wait_readable(plain)


async def _socket() -> None:
    await trio.open_tcp_stream("127.0.0.1", 9)


async def _thread() -> None:
    await trio.to_thread.run_sync(math.sqrt, 4)


async def _process() -> None:
    await trio.run_process(["true"])


@pytest.mark.parametrize("asks", [_io, _socket, _thread, _process])
@pytest.mark.parametrize("swallow", [True, False])
def test_what_reaches_for_the_real_world_fails_even_if_it_swallows_the_error(asks, swallow):
    result = play(asking(asks, swallow=swallow))
    assert Verdict.FAIL is result.verdict
    assert "simulated-world" == violation_of(result).invariant
    assert "ports" in violation_of(result).seen


def test_the_next_run_does_not_hear_of_what_was_refused():
    async def body(h):
        return [(await h.run(scenario, Calm())).refused for scenario in (asking(_thread), TwoOps)]

    refused = host(body)
    assert (True, ()) == (bool(refused[0]), refused[1])


def test_time_is_virtual_and_begins_at_zero_for_each_run():
    class Tells(Tiny):
        async def drive(self, sim):
            sim.note("begins", sim.scheduler.now_ns)
            await trio.sleep(3600)
            sim.note("ends", sim.scheduler.now_ns)

    async def body(h):
        return [(await h.run(Tells, Calm())).records for _ in "12"]

    first, second = host(body)
    assert first == second
    assert ("begins", 0) in first
    assert ("ends", 3600 * SECOND) in first


def test_marks_are_counted_when_their_condition_holds():
    class Marks(Tiny):
        async def drive(self, sim):
            sim.sometimes("once")
            for number in range(3):
                sim.sometimes("odd", number % 2 == 1)
                sim.sometimes("never", number > 5)

    assert {"once": 1, "odd": 1} == play(Marks).marks


# ---- what is replayed ------------------------------------------------------------------------------------------------


def test_whatever_a_seed_does_is_written_down_so_that_it_is_done_again():
    """The deviations of a random run, written, give the same trace and the same deviations."""

    async def body(h):
        for scenario in (TwoOps, Race, Cleans, Heals, ManyTasks):
            for seed in range(60):
                result = await h.run(scenario, Random(seed, FAULTS, rate=0.4))
                choices = Written(result.deviations)
                again = await h.run(scenario, choices)
                assert (result.digest, result.deviations) == (again.digest, again.deviations), (scenario, seed)
                assert () == choices.missed

    host(body)
