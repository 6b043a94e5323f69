"""Strategies: what they draw, what they learn, and that each of their runs can be had again."""

from __future__ import annotations

import json
import shlex
from typing import ClassVar

import pytest

from dst.choices import Written
from dst.corpus import KEPT_MAX, read_corpus, write_corpus
from dst.errors import WrongUsage
from dst.executors.assignment import Assignment
from dst.executors.chunk import Chunk, ChunkRunner, Row
from dst.faults import HOLDING, menu
from dst.home import Home
from dst.judging import choices_of, terms_of
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.simulation import Simulation
from dst.strategies.closure import Closure
from dst.strategies.explore import explore
from dst.strategies.guided import Guided
from dst.strategies.portfolio import STRATEGIES, of_seed
from scenarios.order_saga import OrderSaga

SEEDED = ("random", "swarm", "pct", "pos", "walk")


class ThreeTasks(Scenario):
    """Three tasks of the world, one operation each: six orders."""

    name = "three_tasks"
    story = "three tasks, one operation each"
    faults: ClassVar = (HOLDING,)
    invariants: ClassVar = ()
    behaviour: ClassVar = Scenario.behaviour

    def build(self, sim: Simulation) -> None:
        """Nothing."""
        self.order: list[str] = []

    async def drive(self, sim: Simulation) -> None:
        """Start them."""
        choices = menu(tuple(sim.faults), (("hold", HOLDING),))

        async def operate(name: str) -> None:
            point, act = sim.enter(f"write:{name}", choices)
            await sim.approach(point, act)
            self.order.append(name)
            sim.happened(point)

        for name in "abc":
            sim.spawn(lambda name=name: operate(name), name)

    def outcome(self, sim: Simulation) -> str:
        """The order."""
        return "".join(self.order)


def rows(strategy: str, runs: int = 60) -> list[Row]:
    """Run the first piece of a campaign over `order_saga`."""
    plan = Assignment(scenarios=("order_saga",), strategy=strategy, schedules=runs, seed=3, failures_max=None)

    async def body(simulations: Host) -> list[Row]:
        return [row async for row in ChunkRunner(simulations, plan).rows(Chunk(start=0, stop=runs))]

    return host(body)


def digest_of_seed(seed: int, strategy: str) -> str:
    async def body(simulations: Host) -> str:
        return (await simulations.run(OrderSaga, choices_of(OrderSaga, seed, strategy=strategy))).digest

    return host(body)


@pytest.mark.parametrize("strategy", SEEDED)
def test_a_seed_and_the_strategys_name_make_the_run_again(strategy):
    found = rows(strategy, 12)
    assert [row.digest for row in found] == [digest_of_seed(row.seed, strategy) for row in found]


def test_a_seed_alone_makes_a_run_of_the_portfolio_again():
    found = [row for row in rows("portfolio") if row.strategy in SEEDED]
    assert len(found) > 10
    assert [row.digest for row in found] == [digest_of_seed(row.seed, "portfolio") for row in found]


@pytest.mark.parametrize("strategy", [*STRATEGIES])
def test_the_same_piece_of_work_comes_to_the_same_runs(strategy):
    assert [row.digest for row in rows(strategy, 30)] == [row.digest for row in rows(strategy, 30)]


def test_the_portfolio_mixes_the_closure_in_and_goes_on_with_all_its_members():
    names = [row.strategy for row in rows("portfolio", 300)]
    assert {"closure"} == set(names[15:100:16])
    assert {*SEEDED, "guided"} == {name for at, name in enumerate(names) if at % 16 != 15}


def test_what_is_proposed_is_the_same_when_it_is_run_twice():
    """Guided and closure runs are made by no seed: it is the proposal that is run again."""

    async def body(simulations: Host) -> list[tuple[str, str]]:
        strategy, pairs = STRATEGIES["portfolio"](terms_of(OrderSaga, opening=True)), []
        for seed in range(60):
            proposal = strategy.propose(seed)
            result = await simulations.run(OrderSaga, proposal.choices(), spy=proposal.spy)
            strategy.saw(proposal, result)
            pairs.append((result.digest, (await simulations.run(OrderSaga, proposal.choices())).digest))
        return pairs

    assert all(one == other for one, other in host(body))


@pytest.mark.parametrize("strategy", SEEDED)
def test_every_order_of_three_tasks_is_reached(strategy):
    async def body(simulations: Host) -> set[object]:
        terms = terms_of(ThreeTasks)
        return {(await simulations.run(ThreeTasks, of_seed(strategy, seed, terms))).outcome for seed in range(300)}

    assert {"abc", "acb", "bac", "bca", "cab", "cba"} == host(body)


def test_the_closure_runs_each_behaviour_once_like_exploration():
    async def body(simulations: Host) -> tuple[int, int]:
        closure, runs = Closure(terms_of(OrderSaga)), 0
        while not closure.exhausted:
            proposal = closure.propose(0)
            result = await simulations.run(OrderSaga, proposal.choices(), spy=proposal.spy)
            closure.saw(proposal, result)
            runs += 1
        return runs, (await explore(simulations, OrderSaga)).states

    runs, states = host(body)
    assert runs == states


# ---- guided ----------------------------------------------------------------------------------------------------------


def test_guided_keeps_what_is_new_and_goes_on_from_it():
    found = rows("guided", 100)
    kept = [row.kept for row in found if row.kept]
    assert 5 < len(kept) < 90
    assert any(kept[0][:1] == row.kept[:1] for row in found[40:] if row.kept)


def test_guided_begins_from_a_corpus():
    crash = Deviation(at="append:order-1:STEP_STARTED:reserve#1", do="crash-after")
    strategy = Guided(terms_of(OrderSaga, corpus=((crash,),)))

    async def body(simulations: Host) -> list[tuple[Deviation, ...]]:
        return [(await simulations.run(OrderSaga, strategy.propose(seed).choices())).deviations for seed in range(20)]

    assert sum(crash in deviations for deviations in host(body)) > 8


def test_a_corpus_is_kept_on_disk_newest_last_and_each_once(tmp_path):
    home = Home(tmp_path)
    schedules = [(Deviation(at=f"x#{i}", do="hold", until="idle"),) for i in range(1, KEPT_MAX + 11)]
    write_corpus(home, "a/b", [*schedules, schedules[-1]])
    assert tuple(schedules[-KEPT_MAX:]) == read_corpus(home, "a/b")
    assert () == read_corpus(home, "a-b")


def test_a_damaged_corpus_is_named_and_may_be_deleted(tmp_path):
    write_corpus(Home(tmp_path), "s", [(Deviation(at="x#1", do="y"),)])
    (path,) = (tmp_path / "corpus").iterdir()
    path.write_text(path.read_text()[:-20] + "\n")
    with pytest.raises(WrongUsage, match=r"line 1 is not JSON.*it is only a cache: delete it"):
        read_corpus(Home(tmp_path), "s")


def test_a_guided_campaign_reads_what_the_last_one_kept(command):
    first = json.loads(
        command.call("fuzz", "order_saga", "--strategy", "guided", "--seed", "1", "-n", "60", "--json").out
    )
    second = json.loads(
        command.call("fuzz", "order_saga", "--strategy", "guided", "--seed", "1", "-n", "60", "--json").out
    )
    assert first["digest"] != second["digest"]
    assert 5 < len(read_corpus(Home(command.home), "order_saga"))


# ---- tokens ---------------------------------------------------------------------------------------------------------


def test_a_failure_that_no_seed_makes_is_replayed_by_its_token(command):
    done = command.call("fuzz", "--mutant", "retry-in-doubt", "--seed", "117", "--home", "/dev/null/x")
    (line,) = [line for line in done.out.splitlines() if line.startswith("Reproduce:")]
    words = shlex.split(line)[1:]
    assert words[2].startswith("dst:payout=retry-in-doubt")
    assert 1 == command.call(*words[1:]).code


def test_a_written_run_of_a_campaigns_row_is_that_row():
    (row, *_) = [row for row in rows("guided", 60) if row.kept]

    async def body(simulations: Host) -> str:
        assert row.kept is not None
        return (await simulations.run(OrderSaga, Written(row.kept))).digest

    assert row.digest == host(body)
