"""Campaigns: what they find, what they notice that did not happen, and that it is all there again from a seed."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable

import attrs
import pytest
import trio

from dst.choices import Random, Written
from dst.errors import HarnessBroke
from dst.executors.assignment import Assignment
from dst.executors.inline import run_inline
from dst.executors.tally import FAILED, INCONCLUSIVE, NONDETERMINISM, VACUOUS, Tally
from dst.faults import CRASH_BEFORE, Fault, menu
from dst.findings import schedule_of
from dst.invariants import Broken, Invariant
from dst.judging import choices_of, run_one, run_seed
from dst.mutant import exchange
from dst.records import CampaignRecord
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import parse
from dst.signature import signature_of, violation_of
from dst.transparency import Transparency
from dst.versions import versions_of
from scenarios import catalogue
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS
from scenarios.order_saga import OrderSaga

RAIN = Fault(name="rain", environmental=True)
HAIL = Fault(name="hail", environmental=True)


class Wet(Invariant[int]):
    """Fails where it rains at `place`."""

    says = "it does not rain there"
    kinds = ("fault",)
    initial = 0

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self._place = place

    def key(self, record):
        return ("all", record[1]) if record[1].startswith(self._place) else None

    def advance(self, state, record):
        raise Broken(f"{record[2]} at {record[1]}", "none")


class Always(Wet):
    """Is judged in each run, and holds."""

    name = "always"

    def __init__(self) -> None:
        super().__init__(type(self).name, "")

    kinds = ("walked",)

    def key(self, record):
        return "all", "all"

    def advance(self, state, record):
        return 1


class Walk(Scenario):
    """Someone walks past some places."""

    name = "walk"
    story = "a test's own"
    faults = (RAIN,)
    invariants = (Always(),)
    marks = ("wet",)
    places = ("park", "street", "bridge", "park")

    def build(self, sim):
        self.menu = menu(sim.faults, (("rain", RAIN), ("hail", HAIL)))

    async def drive(self, sim):
        for place in self.places:
            point, act = sim.enter(place, self.menu)
            sim.note("walked", place)
            sim.sometimes("wet", bool(act))
            sim.happened(point)

    def outcome(self, sim):
        return "home"


def scenario(**parts: object) -> type[Scenario]:
    return exchange(**parts)(Walk)


def campaign(
    *scenarios: type[Scenario],
    seconds_max: float | None = None,
    progress: Callable[[Tally], None] = lambda _: None,
    **options: object,
) -> CampaignRecord:
    """Run a campaign in this process; it finds its scenarios by name, as each campaign does."""
    named = {s.name: s for s in scenarios}
    assert len(named) == len(set(scenarios)), "two scenarios of one name"
    with pytest.MonkeyPatch.context() as patch:
        for name, each in named.items():
            patch.setitem(catalogue.SCENARIOS, name, each)
        plan = Assignment(scenarios=tuple(s.name for s in scenarios), **{"schedules": 60, **options})
        tally = Tally(plan, lambda failure: failure)
        if not run_inline(plan, tally, seconds_max, lambda: progress(tally)):
            tally.stopped = "time was out"
        return tally.record(seconds=0.0, workers=1, planned=plan.runs, repeat="")


def test_a_campaign_in_which_all_happened_and_nothing_failed_is_a_pass():
    report = campaign(Walk)
    assert ("pass", 0, (), ()) == (report.verdict, report.exit_code, report.missing, report.failures)
    assert 60 == report.schedules == report.judged["always"]


def test_two_campaigns_of_one_seed_are_the_same_and_of_two_are_not():
    one, two, other = campaign(Walk), campaign(Walk), campaign(Walk, seed=1)
    assert (one.digest, one.fired, one.judged, one.marks) == (two.digest, two.fired, two.judged, two.marks)
    assert one.digest != other.digest


def test_progress_is_told_after_each_run():
    seen = []
    campaign(Walk, schedules=5, progress=lambda tally: seen.append(tally.schedules))
    assert [1, 2, 3, 4, 5] == seen


def test_time_that_has_run_out_ends_it():
    report = campaign(Walk, schedules=10**6, seconds_max=0.05)
    assert 0 < report.schedules < 10**5
    assert ("unknown", INCONCLUSIVE) == (report.verdict, report.exit_code), "it is no pass"


class LikeManyCalmRuns(Walk):
    """It rains at nine places, so that it could be like 512 calm runs; it is like none, and each takes its time."""

    name = "like-many-calm-runs"
    faults = (Fault(name="rain", budget=9, environmental=True, rate=1.0), Fault(name="fire", rate=1.0))
    places = tuple("abcdefghi")
    turns = 500
    runs = 0  # a test's own count, which no run looks at but to press Ctrl-C
    interrupted_at = 0

    def build(self, sim):
        type(self).runs += 1
        rain, fire = self.faults
        self.menu, self.fires = menu(sim.faults, (("rain", rain),)), menu(sim.faults, (("fire", fire),))

    async def drive(self, sim):
        await super().drive(sim)
        point, act = sim.enter("fire", self.fires)
        self.ended = act or "home"
        sim.happened(point)
        if self.runs == self.interrupted_at:
            signal.raise_signal(signal.SIGINT)
        for _ in range(self.turns):
            await trio.lowlevel.checkpoint()

    def outcome(self, sim):
        return self.ended


def test_time_ends_a_comparison_with_calm_runs_and_the_run_says_nothing():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LikeManyCalmRuns, "runs", 0)
        report = campaign(LikeManyCalmRuns, schedules=1, seconds_max=0.1)
        assert 1 < LikeManyCalmRuns.runs < 400, "it was being compared"
    assert (0, (), INCONCLUSIVE) == (report.schedules, report.failures, report.exit_code)


def test_with_enough_time_the_comparison_is_made_to_its_end():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LikeManyCalmRuns, "turns", 0)
        reports = [campaign(LikeManyCalmRuns, schedules=1, seconds_max=t, shrinking=False) for t in (None, 600.0)]
    assert ["crash-transparent"] * 2 == [report.failures[0].invariant for report in reports]
    assert 1 == len({report.digest for report in reports})


def test_ctrl_c_ends_a_comparison_with_calm_runs(ctrl_c):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LikeManyCalmRuns, "runs", 0)
        patch.setattr(LikeManyCalmRuns, "interrupted_at", 20)
        with pytest.raises(KeyboardInterrupt):
            campaign(LikeManyCalmRuns, schedules=1)
        assert 20 == LikeManyCalmRuns.runs


def test_no_run_at_all_is_no_pass():
    report = campaign(Walk, schedules=0)
    assert ("unknown", VACUOUS, ("no schedule was run",)) == (report.verdict, report.exit_code, report.missing)


# ---- nothing passes by silence ---------------------------------------------------------------------------------------


class NeverAsked(Invariant[int]):
    """Subscribes to what never comes."""

    name = "never-asked"
    says = "nothing"
    kinds = ("nothing",)
    initial = 0


SILENT = {
    "a fault that never fires": ({"faults": (RAIN, CRASH_BEFORE)}, "fault crash-before of walk never fired"),
    "an invariant that is never judged": (
        {"invariants": (Always(), NeverAsked())},
        "invariant never-asked of walk was never judged where it could fail",
    ),
    "a mark that is never reached": ({"marks": ("wet", "home dry")}, "mark 'home dry' of walk was never reached"),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_was_asked_for_and_did_not_happen_is_told(case):
    parts, said = SILENT[case]
    report = campaign(scenario(**parts))
    assert ((said,), "unknown", VACUOUS) == (report.missing, report.verdict, report.exit_code)


@pytest.mark.parametrize("case", SILENT)
def test_it_is_told_of_one_scenario_even_if_it_happened_in_another(case):
    parts, said = SILENT[case]

    class Other(Walk):
        name = "other"
        faults = (RAIN, HAIL, CRASH_BEFORE)
        invariants = (Always(), type("Asked", (Always,), {"name": "never-asked"})())
        marks = ("wet", "home dry")

        def build(self, sim):
            self.menu = menu(sim.faults, (("rain", RAIN), ("hail", HAIL), ("crash-before", CRASH_BEFORE)))

        async def drive(self, sim):
            await super().drive(sim)
            sim.sometimes("home dry")

    assert () == campaign(Other).missing
    assert (said,) == campaign(scenario(**parts), Other, schedules=120).missing


def test_only_the_faults_that_were_asked_for_must_fire():
    wetter = scenario(faults=(RAIN, HAIL))
    report = campaign(wetter, faults=frozenset({"rain"}))
    assert {"rain"} == set(report.fired)
    assert () == report.missing


def test_a_comparison_that_was_never_made_is_told():
    report = campaign(scenario(outcome=lambda self, sim: None))
    assert 0 == report.judged["crash-transparent"]
    assert ("invariant crash-transparent of walk was never judged where it could fail",) == report.missing
    assert ("unknown", VACUOUS) == (report.verdict, report.exit_code)


def test_no_comparison_is_missed_where_a_scenario_has_no_outcome_to_compare():
    report = campaign(scenario(outcome=Scenario.outcome))
    assert ("pass", ()) == (report.verdict, report.missing)


async def _sleeps(self, sim):
    await trio.sleep(10**9)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"invariants": (Always(), type("Breaks", (Always,), {"key": lambda *_: 1 // 0})())}, "ZeroDivisionError"),
        ({"drive": lambda self, sim: trio.Event().wait()}, "stuck"),
        ({"drive": _sleeps}, "out of virtual time"),
    ],
)
def test_runs_that_say_nothing_make_no_pass(parts, why):
    report = campaign(scenario(**parts), schedules=3)
    assert "unknown" == report.verdict
    assert 3 == len(report.inconclusive) == report.inconclusive_runs
    assert why in report.inconclusive[0].why


def test_a_single_run_that_says_nothing_among_many_makes_no_pass():
    async def walk(self, sim):
        await Walk.drive(self, sim)
        if "wet" in sim.marks:
            await trio.sleep(10**9)

    report = campaign(scenario(drive=walk))
    assert 0 < report.inconclusive_runs < 60
    assert ("unknown", INCONCLUSIVE, ()) == (report.verdict, report.exit_code, report.missing)


# ---- determinism -----------------------------------------------------------------------------------------------------

_calls = itertools.count()


class Forgetful(Walk):
    """Keeps something between runs: the canary of every determinism check."""

    name = "forgetful"

    async def drive(self, sim):
        sim.note("before")
        sim.note("call", next(_calls))
        await super().drive(sim)


def test_a_share_of_runs_is_run_twice_and_what_differs_is_shown():
    report = campaign(Forgetful)
    assert ("fail", NONDETERMINISM) == (report.verdict, report.exit_code)
    (divergence,) = report.divergences
    assert ("forgetful", run_seed(0, 0), 1) == (divergence.scenario, divergence.seed, divergence.record)
    assert '["call",' == divergence.first[:8] == divergence.second[:8]
    assert divergence.first != divergence.second


@pytest.mark.parametrize("among", [2, 5])
def test_every_scenario_gets_its_share_of_second_runs(among):
    """Runs take turns among scenarios: the share must not fall on the same ones for ever."""
    report = campaign(*[Walk] * (among - 1), Forgetful, schedules=50 * among)
    assert 1 == len(report.divergences)


@pytest.mark.parametrize("shard", [0, 1, 2, 3])
def test_every_shard_gets_its_share_of_second_runs(shard):
    report = campaign(Walk, schedules=800, shard=(shard, 4))
    assert (200, 4) == (report.schedules, report.rechecked)


# ---- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_shards_are_a_partition(shards):
    plans = [
        Assignment(scenarios=("walk", "forgetful"), schedules=50, seed=3, shard=(shard, shards))
        for shard in range(shards)
    ]
    parts = [[plan.run(index)[:2] for index in range(plan.runs)] for plan in plans]
    everything = [run for part in parts for run in part]
    assert sorted((i % 2, run_seed(3, i)) for i in range(50)) == sorted(everything)
    assert max(map(len, parts)) - min(map(len, parts)) <= 2, "a round of two scenarios, no more"


def test_what_shards_run_is_what_the_whole_campaign_runs():
    whole = campaign(Walk, schedules=60, strategy="swarm")  # one that learns learns other things in each shard
    parts = [campaign(Walk, schedules=60, strategy="swarm", shard=(shard, 3)) for shard in range(3)]
    assert whole.schedules == sum(part.schedules for part in parts)
    assert whole.fired["rain"] == sum(part.fired["rain"] for part in parts)
    assert whole.marks["wet"] == sum(part.marks["wet"] for part in parts)


def test_seeds_that_are_given_are_the_ones_that_are_run():
    report = campaign(scenario(invariants=(Always(), Wet("wet", "park"))), seeds=(100, 140), failures_max=99)
    assert report.failures
    assert 40 == report.schedules
    assert all(100 <= failure.seed < 140 for failure in report.failures)


# ---- failures --------------------------------------------------------------------------------------------------------

ALL_WET = (Always(), Wet("wet-park", "park"), Wet("wet-street", "street"), Wet("wet-bridge", "bridge"))


def test_it_stops_at_the_first_failure_unless_told_otherwise():
    wet = scenario(invariants=ALL_WET)
    one = campaign(wet, schedules=300)
    assert (1, "fail", FAILED) == (len(one.failures), one.verdict, one.exit_code)
    assert one.schedules < 300
    two = campaign(wet, schedules=300, failures_max=2)
    assert 2 == len(two.failures)
    assert two.schedules < 300
    assert 300 == campaign(wet, schedules=300, failures_max=None).schedules


def test_failures_of_one_kind_are_one_with_its_repeats():
    report = campaign(scenario(invariants=ALL_WET), schedules=300, failures_max=99)
    assert {"wet-park", "wet-street", "wet-bridge"} == {failure.invariant for failure in report.failures}
    assert 3 == len(report.failures), "the second passing of the park is the same failure as the first"
    assert 3 == len({failure.id for failure in report.failures})
    assert sum(failure.repeats for failure in report.failures) > 10


def test_a_failure_is_one_deviation_long_and_replays():
    for failure in campaign(scenario(invariants=ALL_WET), schedules=300, failures_max=99).failures:
        assert (1, True, True) == (len(failure.deviations), failure.minimal, failure.replays)
        assert failure.deviations[0].at.endswith("#1")
        schedule = schedule_of(failure, versions_of(Walk))
        assert schedule == parse(schedule.to_text(), "x")


def test_without_shrinking_the_schedule_is_the_run_that_was_found():
    (failure,) = campaign(scenario(invariants=(Always(), Wet("w", "bridge"))), shrinking=False).failures
    assert failure.found_with == len(failure.deviations)
    assert failure.replays
    assert not failure.minimal


@pytest.mark.parametrize(
    ("caused", "raised"), [(None, HarnessBroke), (ValueError(), HarnessBroke), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_an_error_in_a_run_breaks_the_harness_unless_a_ctrl_c_led_to_it(caused, raised, monkeypatch):
    async def breaks(*_):
        raise ExceptionGroup("of a nursery", [RuntimeError("a cancel scope is corrupted")]) from caused

    monkeypatch.setattr("dst.executors.chunk.run_one", breaks)
    with pytest.raises(raised):
        campaign(Walk)


# ---- the printed seed ------------------------------------------------------------------------------------------------


def _mutated(name: str) -> tuple[CampaignRecord, type[Scenario]]:
    true = SCENARIOS[MUTANTS[name].scenario]
    return campaign(true, schedules=2000, mutant=name, strategy="swarm"), MUTANTS[name].apply(true)


def test_the_seed_of_a_failure_reproduces_it_in_one_run_of_its_own():
    report, broken = _mutated("saga-resumes-forward")
    (failure,) = report.failures

    async def alone(h: Host):
        return await run_one(h, Transparency(h), broken, choices_of(broken, failure.seed, strategy="swarm"))

    result, violation = host(alone)
    assert failure.signature == signature_of(result, "saga-resumes-forward", violation).text
    assert failure.found_with == len(result.deviations)


def test_so_does_its_shrunk_schedule_from_its_text():
    report, broken = _mutated("emit-ordinal")
    (failure,) = report.failures
    schedule = parse(schedule_of(failure, versions_of(broken)).to_text(), "x")
    result = host(lambda h: h.run(broken, Written(schedule.deviations)))
    assert failure.digest == result.digest
    found = violation_of(result)
    assert (failure.invariant, failure.key, failure.record) == (found.invariant, found.key, found.at)
    assert (failure.seen, failure.wanted) == (found.seen, found.wanted)


def test_each_run_of_a_campaign_is_the_one_its_seed_makes_alone():
    async def together(h: Host):
        return [(await h.run(OrderSaga, Random(run_seed(4, i), OrderSaga.faults))).digest for i in range(12)]

    digests = host(together)
    assert digests == [
        host(lambda h, i=i: h.run(OrderSaga, Random(run_seed(4, i), OrderSaga.faults))).digest for i in range(12)
    ]


def test_a_mutant_that_is_not_found_is_no_missing_case(monkeypatch):
    harmless = attrs.evolve(MUTANTS["saga-resumes-forward"], apply=exchange())
    monkeypatch.setitem(MUTANTS, harmless.name, harmless)
    report = campaign(SCENARIOS[harmless.scenario], schedules=2, mutant=harmless.name)
    assert ("pass", 2, ()) == (report.verdict, report.schedules, report.missing)
