"""The harness itself: nothing passes by silence, what fails is found again, and a verdict is the program's own.

All is small here and uses what any test suite uses; `tests/dst` says more of each.
"""

from __future__ import annotations

import itertools
import json
import shlex
import sys

import pytest
import trio

from dst.choices import Random, Written
from dst.durable.scenario import DurableScenario
from dst.faults import HOLD, HOLDING, Fault, menu
from dst.invariants import Broken, Invariant
from dst.prng import SplitMix64
from dst.run import host
from dst.scenario import Scenario
from dst.testing import InvariantFailed, Nondeterminism, Vacuous, check, run, token
from kernel import ExecutionFailed, flow
from kernel.replay import Outcome, replay
from scenarios.order_saga import OrderSaga
from tests.dst.conftest import command, ctrl_c  # noqa: F401  # fixtures
from tests.dst.toy_scenarios import Dated, Fireproof, Forgetful, Remembering, Steady, Unjudged, Unmarked

FORGETFUL = "toy_scenarios:Forgetful"


@pytest.fixture(autouse=True)
def _fails_rather_than_hangs():
    """Simulations have limits of their own."""


@pytest.fixture(autouse=True)
def alone(command, monkeypatch):  # noqa: F811
    """An empty folder, and no test that the plugin would tell of."""
    monkeypatch.setattr("dst.ambient.current", None)
    return command


def test_b101_a_fault_whose_hook_is_nowhere_is_no_green_campaign():
    """Faults are configured, the hook is never installed, and all is green for faults that never happened."""
    with pytest.raises(Vacuous, match="fault fire of fireproof never fired"):
        check(Fireproof, schedules=20, seed=1)


def test_b101_a_fault_that_fires_and_does_nothing_is_told():
    """The same, with a hook that is installed and does nothing."""
    # Reported, for a person to judge, and no failure: two recoveries at once must change nothing.

    class Shrugging(Steady):
        name = "shrugging"
        faults = (Fault(name="fire"),)

        def build(self, sim):
            super().build(sim)
            self.menu = menu(sim.faults, (("fire", sim.faults[0]),))

    (told,) = check(Shrugging, schedules=300, seed=1).scenarios
    assert told.fired["fire"] > 0
    assert told.sampled["fire"] == told.unchanged["fire"] > 0


class Counted(Invariant):
    name = "counted"
    says = "two who add one each make two"
    kinds = ("total",)
    initial = 0

    def key(self, record):
        return "all", "all"

    def advance(self, state, record):
        if record[1] != 2:
            raise Broken(f"a total of {record[1]}", "2")
        return 1


class LostUpdate(Scenario):
    """Two tasks read, come to a point, and write."""

    name = "lost_update"
    story = "two add one each"
    faults = (HOLDING,)
    invariants = (Counted(),)

    def build(self, sim):
        self.total, self.menu = 0, menu(sim.faults, ((HOLD, HOLDING),))

    async def drive(self, sim):
        async def add():
            read = self.total
            point, act = sim.enter("write:total", self.menu)
            if act:
                await sim.approach(point, act)
            self.total = read + 1
            sim.happened(point)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(add)
            nursery.start_soon(add)
        sim.note("total", self.total)


def test_b103_a_lost_update_is_found_and_the_place_of_its_race_is_told():
    """A lost update is not found, since nothing is scheduled between the read and the write."""
    with pytest.raises(InvariantFailed, match="FAIL counted") as found:
        check(LostUpdate, schedules=300, seed=1)
    assert ["write:total#1"] == [deviation.at for deviation in found.value.failures[0].deviations]


def test_b103_the_lost_update_that_is_planted_in_the_kernel_is_found():
    """The same, where two runs append at one position."""
    with pytest.raises(InvariantFailed, match="FAIL log-sound"):
        check(OrderSaga, mutant="append-without-expectation", schedules=2000, seed=1)


@pytest.mark.parametrize("toy", [Unjudged, Unmarked])
def test_b104_what_never_once_happened_is_no_pass(toy):
    """A rule never succeeds, a quarter of the runs execute none at all, and the test passes."""
    with pytest.raises(Vacuous, match="missing: ") as vacuous:
        check(toy, schedules=20, seed=1)
    (told,) = vacuous.value.record.scenarios
    assert 0 in {**told.judged, **told.marks}.values()


def test_b105_time_and_chance_that_a_flow_takes_from_the_world_are_noticed():
    """The global random source is not seeded by the runner."""
    with pytest.raises(Nondeterminism, match="part at record") as noticed:
        check(Dated, schedules=3, seed=1)
    (divergence,) = noticed.value.record.divergences
    assert '"asked/' in divergence.first
    assert divergence.first != divergence.second


def test_b107_a_schedule_without_its_first_action_means_the_same_by_the_others():
    """Removing an early action changes what all later choices mean, so that shrinking gets nowhere."""
    first, second = "append:box-1:WRITTEN:item 0#1=crash-before", "append:box-1:WRITTEN:item 2#1=crash-after"
    both, one = (run(Forgetful, token(f"dst:forgetful;{text}")) for text in (f"{first};{second}", second))
    assert both.violation is not None
    assert (both.violation.invariant, both.violation.key) == (one.violation.invariant, one.violation.key)
    assert both.result.deviations[1:] == one.result.deviations

    with pytest.raises(InvariantFailed) as failed:
        check(Forgetful, schedules=50, seed=1)
    (shrunk,) = failed.value.failures
    assert (True, True, 1) == (shrunk.minimal, shrunk.replays, len(shrunk.deviations))


def test_b109_what_is_drawn_before_there_is_a_seed_is_found(alone):
    """The random source is used before the seed has been read: another machine id with the same seed."""
    done = alone.run("doctor", "toy_imported:Imported", "-n", "1", "--python", sys.executable)
    assert 4 == done.code
    assert "chance: random.randrange at" in done.out
    assert "toy_imported.py" in done.out
    assert "in <module>" in done.out


def test_b110_the_printed_line_reproduces_in_one_run_of_a_fresh_process(alone):
    """The printed seed is the campaign's; the generators drift after the first iteration."""
    rare = ("--strategy", "random", "--fault-rate", "0.0002", "--home", "/dev/null/none")
    found = alone.run("fuzz", FORGETFUL, "--seed", "1", "-n", "2000", "--json", *rare)
    told = json.loads(found.out)
    (failure,) = told["failures"]
    assert told["schedules"] > 100, "it is not the campaign's first run"
    program, *words = shlex.split(failure["replay"])
    again = alone.run(*words, "--json")
    assert ("dst", 1) == (program, again.code)
    assert failure["id"] == json.loads(again.out)["failure"]["id"]


def test_b111_a_replay_asks_no_generator_and_the_program_is_what_is_compared(monkeypatch):
    """A check of determinism that asks the scheduler again tests the scheduler."""
    drawn = host(lambda h: h.run(OrderSaga, Random(3, OrderSaga.faults)))

    def never(*_):
        raise AssertionError("a replay draws nothing")

    monkeypatch.setattr(SplitMix64, "next64", never)
    again = host(lambda h: h.run(OrderSaga, Written(drawn.deviations)))
    assert drawn.deviations
    assert (drawn.records, drawn.digest) == (again.records, again.digest)
    monkeypatch.undo()
    with pytest.raises(Nondeterminism, match=r"part at record \d+"):
        check(Remembering, schedules=1, seed=1)


@flow(id="waits")
async def waits(ctx, _input):
    return await ctx.suspend("go", timeout=3600)


class Watched(DurableScenario):
    """Somebody waits for a result while a timer of an hour and a delivery in five seconds are pending."""

    name = "watched"
    story = "an observer waits"
    faults = ()
    invariants = ()

    def flows(self):
        return (waits,)

    async def drive(self, sim):
        await self.start("waits", execution_id="w-1")

        async def deliver():
            await self.deliver("w-1", "go", "came", delivery_id="d-1")

        async def watch(runtime):
            for _ in range(5):
                await trio.testing.wait_all_tasks_blocked()
            sim.note("watched", sim.scheduler.now_ns)
            try:
                sim.note("result", await runtime.wait_result("w-1"), sim.scheduler.now_ns)
            except ExecutionFailed as error:
                sim.note("result", str(error), sim.scheduler.now_ns)

        sim.spawn(deliver, "delivery", after_seconds=5)
        await self.ask(watch, "watch w-1", None)


def test_b113_whoever_waits_for_a_result_does_not_move_the_clock():
    """Asking for a result turns time skipping back on: flows time out that would not, or time never moves."""
    records = run(Watched).check().records
    second = 10**9
    assert [("watched", 0), ("result", "came", 5 * second)] == [r for r in records if r[0] in ("watched", "result")]
    result = records.index(("result", "came", 5 * second))
    moves = [record[1] for record in records[:result] if record[0] == "clock"]
    assert 5 * second == max(moves) == moves[-1], "each move is in the trace, and none goes to the timer"
    assert all(a < b for a, b in itertools.pairwise(moves))


def test_b115_what_settles_after_the_end_is_no_divergence(bench, booked):
    """The replay verifier feeds what came after the end while it withholds the end itself."""
    # K-RUN decides: nothing follows a terminal event, so that a zombie's result is in no log (K-FLOW-10).
    ledger, hold = [], trio.Event()

    @flow
    async def cancelled(ctx, _input):
        await ctx.run(booked(ledger, "slow", lambda *_: hold.wait()))
        await ctx.run(booked(ledger, "never"))

    async def story():
        async with bench.process(cancelled) as runtime:
            await runtime.start(cancelled, execution_id="x")
            await bench.settle()
            await runtime.cancel("x")
            await bench.settle()
            hold.set()
            await bench.settle()
        log = await bench.envelopes()
        return await bench.log(), [(await replay(cancelled, log[:n])).outcome for n in range(1, len(log) + 1)]

    log, outcomes = trio.run(story)
    assert (["slow"], ("EXECUTION_CANCELLED",)) == (ledger, log[-1])
    assert Outcome.DIVERGED not in outcomes
    assert Outcome.SAME is outcomes[-1]
