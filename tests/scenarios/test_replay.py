"""Replay: what a seed did is its deviations, and no seed is asked a second time."""

from __future__ import annotations

import pytest

from dst import trace
from dst.choices import Calm, Choices, Random, Written
from dst.faults import HOLDING, Fault
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import Schedule, parse
from dst.verdict import Verdict
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS

MANY_HOLDS = Fault(name="hold", budget=60)


class Restless:
    """Holds wherever it can, most of the time, beyond any budget; of the rest it takes a little."""

    def __init__(self, seed: int, scenario: type[Scenario]) -> None:
        self._some = Random(seed, scenario.faults)
        self._holds = Random(seed, (MANY_HOLDS,), rate=0.5)

    def choose(self, site, point, menu):
        return self._some.choose(site, point, menu) or (menu.index("hold") or 0) * (
            self._holds._draws.below(2) if "hold" in menu.names else 0
        )

    def hold_until(self, point):
        return self._holds.hold_until(point)


def replayed(scenario: type[Scenario], make, seeds: range) -> int:
    """Run each seed, then its deviations through a schedule's text; return how many deviations there were."""

    async def body(h: Host) -> int:
        deviations = 0
        for seed in seeds:
            result = await h.run(scenario, make(seed))
            schedule = Schedule(scenario=scenario.name, seed=seed, deviations=result.deviations)
            choices = Written(parse(schedule.to_text(), "x").deviations)
            again = await h.run(scenario, choices)
            at = trace.first_difference(result.records, again.records)
            assert at is None, f"seed {seed} parts at record {at}: {result.records[at : at + 1]}"
            assert result.digest == again.digest
            assert result.deviations == again.deviations
            assert (result.steps, result.operations) == (again.steps, again.operations)
            assert () == choices.missed
            deviations += len(result.deviations)
        return deviations

    return host(body)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_deviations_of_a_seed_are_the_run(name):
    scenario = SCENARIOS[name]
    assert replayed(scenario, lambda seed: Random(seed, scenario.faults), range(60)) > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_deviations_of_hundreds_of_seeds_are_their_runs(name):
    scenario = SCENARIOS[name]
    assert replayed(scenario, lambda seed: Random(seed, scenario.faults), range(1000, 1200)) > 300


@pytest.mark.parametrize("name", SCENARIOS)
def test_so_are_those_of_holds_alone(name):
    scenario = SCENARIOS[name]
    assert replayed(scenario, lambda seed: Random(seed, (HOLDING,), rate=0.5), range(30)) > 30


@pytest.mark.parametrize("name", SCENARIOS)
def test_so_are_those_of_a_run_that_is_held_at_every_other_point(name):
    scenario = SCENARIOS[name]
    assert replayed(scenario, lambda seed: Restless(seed, scenario), range(25)) > 200


@pytest.mark.parametrize("mutant", MUTANTS)
def test_so_are_those_of_broken_kernels(mutant):
    """A failing run is the one that is worth replaying."""
    broken = MUTANTS[mutant].apply(SCENARIOS[MUTANTS[mutant].scenario])
    assert replayed(broken, lambda seed: Random(seed, broken.faults), range(20)) > 20


class NeverAsked:
    """A source of choices that must not be asked."""

    def choose(self, site, point, menu):
        raise AssertionError(point)

    def hold_until(self, point):
        raise AssertionError(point)


def test_a_replay_asks_no_generator(monkeypatch):
    scenario = SCENARIOS["order_saga"]
    result = host(lambda h: h.run(scenario, Random(11, scenario.faults)))
    monkeypatch.setattr(Random, "choose", NeverAsked.choose)
    monkeypatch.setattr("dst.choices.SplitMix64.next64", lambda _: pytest.fail("a number was drawn"))
    assert result.digest == host(lambda h: h.run(scenario, Written(result.deviations))).digest


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("choices", [Calm(), Written(())])
def test_no_deviation_is_calm(name, choices: Choices):
    result = host(lambda h: h.run(SCENARIOS[name], choices))
    assert ((), Verdict.PASS) == (result.deviations, result.verdict)
    assert host(lambda h: h.run(SCENARIOS[name], Calm())).digest == result.digest


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_hold_on_the_true_kernel(name):
    scenario = SCENARIOS[name]

    async def body(h: Host):
        for seed in range(5000, 5080):
            result = await h.run(scenario, Random(seed, scenario.faults))
            assert Verdict.PASS is result.verdict, (seed, result.judgement.violations, result.failures)

    host(body)
