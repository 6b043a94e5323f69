"""`check` and `run`: what is no pass is an error with the command line's own text, and the line in it reproduces."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import trio

from dst.findings import schedule_of
from dst.lookup import shipped_scenarios
from dst.records import CampaignRecord, ExplorationRecord
from dst.schedule import Deviation, Schedule
from dst.testing import (
    CheckFailed,
    HarnessBroke,
    Inconclusive,
    InvariantFailed,
    Nondeterminism,
    Stale,
    Vacuous,
    WrongUsage,
    check,
    run,
    token,
)
from tests.dst.conftest import CommandLine, Done

ORDER = shipped_scenarios()["order_saga"]
CRASH = token("dst:forgetful;append:box-1:WRITTEN:item 0#1=crash-after")


def toys() -> dict[str, type]:
    """The toys, as the command line finds them from a folder on its path."""
    import toy_scenarios

    return vars(toy_scenarios)


def reproduced(command: CommandLine, error: CheckFailed) -> Done:
    """Run the last line of an error's text, in this process."""
    before, _, line = str(error).splitlines()[-1].partition("Reproduce:  ")
    assert before == ""
    program, *words = shlex.split(line)
    assert program == "dst"
    return command.call(*words)


@pytest.fixture
def outside(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """An empty folder, and no test that the plugin would tell of; toys are where another process finds them, too."""
    monkeypatch.setattr("dst.ambient.current", None)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    return command


# ---- check -----------------------------------------------------------------------------------------------------------


def test_a_campaign_that_holds_returns_its_record(outside: CommandLine) -> None:
    record = check(toys()["Steady"], schedules=50, seed=1)
    assert isinstance(record, CampaignRecord)
    assert (50, "pass", 1) == (record.schedules, record.verdict, record.seeds.campaign)


def test_a_failing_campaign_says_what_the_command_says(outside: CommandLine) -> None:
    with pytest.raises(InvariantFailed) as failed:
        check(toys()["Forgetful"], schedules=50, seed=1)

    said = outside.call("fuzz", "toy_scenarios:Forgetful", "--seed", "1", "-n", "50", "-q").out
    lines = [line for line in str(failed.value).splitlines() if not line.startswith("  found:")]
    assert lines == said.splitlines()[: len(lines)]


@pytest.mark.parametrize("how", ["campaign", "run", "explore"])
def test_the_last_line_of_a_failure_reproduces_it(how: str, outside: CommandLine) -> None:
    ways = {
        "campaign": lambda: check(toys()["Forgetful"], seed=1),
        "run": lambda: run(toys()["Forgetful"], CRASH).check(),
        "explore": lambda: check(ORDER, strategy="explore", others=1, mutant="emit-ordinal"),
    }
    with pytest.raises(InvariantFailed) as failed:
        ways[how]()

    again = reproduced(outside, failed.value)
    assert 1 == again.code
    assert f"FAIL {failed.value.failures[0].invariant}" in again.out


def test_a_failure_is_filed_under_its_id(outside: CommandLine) -> None:
    with pytest.raises(InvariantFailed) as failed:
        check(toys()["Forgetful"], seed=1)
    assert [failed.value.failures[0].id] == outside.kept()


def test_a_run_that_fails_as_one_that_is_kept_does_not_forget_what_was_found_out(outside: CommandLine) -> None:
    with pytest.raises(InvariantFailed) as found:
        check(toys()["Forgetful"], seed=1)
    (kept,) = found.value.failures
    assert kept.cause
    with pytest.raises(InvariantFailed) as failed:
        run(toys()["Forgetful"], schedule_of(kept, "")).check()
    (again,) = failed.value.failures
    assert (kept.cause, True, True) == (again.cause, again.minimal, again.shrunk)


def test_a_failure_that_cannot_be_filed_is_reproduced_by_its_token(outside: CommandLine) -> None:
    outside.home.write_text("no folder")
    with pytest.raises(InvariantFailed, match="Reproduce:  dst replay 'dst:forgetful;") as failed:
        run(toys()["Forgetful"], CRASH).check()
    assert 1 == reproduced(outside, failed.value).code


def test_a_run_that_does_not_end_is_inconclusive(outside: CommandLine) -> None:
    with pytest.raises(Inconclusive, match="out of steps"):
        run(toys()["Endless"], max_steps=300).check()


def test_runs_that_differ_are_nondeterminism(outside: CommandLine) -> None:
    with pytest.raises(Nondeterminism, match="part at record") as failed:
        check(toys()["Diced"], schedules=3)
    assert 4 == reproduced(outside, failed.value).code


def test_a_scenario_that_breaks_is_no_verdict_and_says_how_to_see_it(outside: CommandLine) -> None:
    with pytest.raises(HarnessBroke) as broke:
        check(toys()["Bug"], schedules=1)
    assert isinstance(broke.value.__cause__, RuntimeError)
    (note,) = broke.value.__notes__
    assert note.startswith("Reproduce:  dst replay toy_scenarios:Bug --seed ")


def test_every_error_has_the_exit_code_that_the_command_would_end_with() -> None:
    kinds = (InvariantFailed, Stale, Nondeterminism, Vacuous, Inconclusive)
    assert [1, 2, 4, 5, 6] == [kind.exit_code for kind in kinds]
    assert all(issubclass(kind, AssertionError) for kind in kinds)


def test_an_exploration_returns_its_record(outside: CommandLine) -> None:
    record = check(ORDER, strategy="explore")
    assert isinstance(record, ExplorationRecord)
    assert record.closed


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"strategy": "radnom"}, "did you mean 'random'"),
        ({"faults": ["crash-afetr"]}, "did you mean 'crash-after'"),
        ({"schedules": 0}, "schedules=0: wanted a whole number"),
        ({"mutant": "nobody"}, "no mutant 'nobody'"),
    ],
)
def test_what_cannot_be_asked_for_is_wrong_usage(asked: dict, said: str, outside: CommandLine) -> None:
    with pytest.raises(WrongUsage, match=said):
        check(toys()["Steady"], **asked)


# ---- run -------------------------------------------------------------------------------------------------------------


def test_a_run_that_holds_returns_its_result(outside: CommandLine) -> None:
    result = run(toys()["Steady"], Schedule(scenario="steady", deviations=CRASH.deviations)).check()
    assert CRASH.deviations == result.deviations


def test_a_deviation_that_finds_no_point_is_stale(outside: CommandLine) -> None:
    gone = Schedule(scenario="steady", deviations=(Deviation(at="append:box-1:WRITTEN:item 9#1", do="crash-after"),))
    with pytest.raises(Stale, match="the run never came to this point; the nearest is") as failed:
        run(toys()["Steady"], gone).check()
    assert 2 == reproduced(outside, failed.value).code


def test_a_lenient_run_goes_on_calmly_and_says_what_it_lost(outside: CommandLine) -> None:
    gone = Deviation(at="append:box-1:WRITTEN:item 9#1", do="crash-after")
    schedule = Schedule(scenario="steady", deviations=(*CRASH.deviations, gone))
    done = run(toys()["Steady"], schedule, mode="lenient")
    assert CRASH.deviations == done.check().deviations == done.ran.deviations
    (lost,) = done.lost
    assert "the run never came to this point" in lost
    assert () == run(toys()["Steady"], schedule.with_deviations(CRASH.deviations)).lost


def test_a_resumed_run_fails_with_the_schedule_of_all_that_took_place(outside: CommandLine) -> None:
    first = Deviation(at="append:box-1:WRITTEN:item 0#1", do="crash-before")
    gone = Deviation(at="append:box-1:WRITTEN:item 9#1", do="crash-after")
    schedule = Schedule(scenario="forgetful", deviations=(first, gone))
    runs = [run(toys()["Forgetful"], schedule, mode="resume", seed=seed, strategy="random") for seed in range(10)]
    assert all(done.result.deviations[0] == first and len(done.lost) == 1 for done in runs)
    assert {True, False} == {done.violation is None for done in runs}

    failing = next(done for done in runs if done.violation is not None)
    with pytest.raises(InvariantFailed) as failed:
        failing.check()
    assert len(failed.value.failures[0].deviations) == len(failing.result.deviations) > 1
    assert 1 == reproduced(outside, failed.value).code


def test_an_unknown_mode_is_refused(outside: CommandLine) -> None:
    with pytest.raises(WrongUsage, match="no mode 'lenent': did you mean 'lenient'"):
        run(toys()["Steady"], mode="lenent")
    with pytest.raises(WrongUsage, match="no mode 'lenent': did you mean 'lenient'"):
        check(toys()["Steady"], mode="lenent")


def test_kept_schedules_are_replayed_in_the_mode_that_is_asked_for(outside: CommandLine) -> None:
    (folder := Path("tests/regressions")).mkdir(parents=True)
    gone = Deviation(at="append:box-1:WRITTEN:item 9#1", do="crash-after")
    kept = Schedule(scenario="steady", deviations=(*CRASH.deviations, gone), versions=(("scenario", "0"),))
    (folder / "kept.json").write_text(kept.to_text())
    with pytest.raises(Stale, match=r"written for scenario 0 \(here 1\)") as failed:
        check(toys()["Steady"], schedules=5, seed=1)
    assert 2 == reproduced(outside, failed.value).code
    for mode in ("lenient", "resume"):
        assert "pass" == check(toys()["Steady"], schedules=50, seed=1, mode=mode).verdict


def test_a_schedule_of_another_scenario_is_refused(outside: CommandLine) -> None:
    with pytest.raises(WrongUsage, match="'forgetful' cannot be run on 'steady'"):
        run(toys()["Steady"], CRASH)


def test_a_schedule_over_a_mutant_runs_over_it(outside: CommandLine) -> None:
    lost = token(
        "dst:order_saga=emit-ordinal;effect:order-1/quote#1=refused;emit:order-1:0/order.reserved/38a83bd3#1=crash-after"
    )
    with pytest.raises(InvariantFailed, match="FAIL no-emit-lost"):
        run(ORDER, lost).check()


def test_failures_with_different_signatures_are_of_different_classes(outside: CommandLine) -> None:
    def kind(name: str) -> type[InvariantFailed]:
        renamed = type(name, (toys()["Forgetful"],), {"name": name})
        with pytest.raises(InvariantFailed) as failed:
            run(renamed, Schedule(scenario=name, deviations=CRASH.deviations)).check()
        return type(failed.value)

    assert kind("one") is kind("one")
    assert kind("one") is not kind("other")


def test_from_async_code_it_is_an_error_that_says_so(outside: CommandLine) -> None:
    async def main() -> None:
        run(toys()["Steady"])

    with pytest.raises(RuntimeError, match="inside a run"):
        trio.run(main)
