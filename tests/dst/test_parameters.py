"""Scenarios in several sizes: one name and one class for each, and a failure is told in the smallest that shows it."""

from __future__ import annotations

import importlib
import json
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dst.choices import Written
from dst.errors import WrongUsage
from dst.investigating import Failure, investigate
from dst.judging import run_one
from dst.lookup import find_scenario, known, shipped_mutants, shipped_scenarios
from dst.parameters import Parameter, declared, parameters_of, resized, sized, smaller, split_name, suffix
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import Deviation, Schedule, token
from dst.signature import signature_of
from dst.testing import InvariantFailed, check, run
from dst.transparency import Transparency
from tests.dst.conftest import CommandLine

HERE = Path(__file__).parent
CHAT = shipped_scenarios()["chat_session"]
OTHERS = [name for name, scenario in shipped_scenarios().items() if parameters_of(scenario)]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Small scenarios over no kernel, `KnowsTheFirst` and `ForgetsTheLast` with a parameter."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("toy_scenarios")


# ---- a size ----------------------------------------------------------------------------------------------------------


def test_a_parameter_is_a_number_of_the_class_and_of_its_objects() -> None:
    assert (3, 3) == (CHAT.turns, CHAT().turns)
    assert (6, 6) == (sized(CHAT, turns=6).turns, sized(CHAT, turns=6)().turns)


def test_a_default_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="a parameter of 12: wanted one from 1 to 9"):
        Parameter(12, least=1, most=9, says="too many")


def test_a_name_says_only_what_differs() -> None:
    larger = sized(CHAT, turns=6)
    assert "chat_session@turns=6" == larger.name
    assert CHAT is sized(CHAT, turns=3)
    assert "chat_session" == sized(larger, turns=3).name
    assert "chat_session@turns=2" == sized(larger, turns=2).name
    assert {} == sized(larger, turns=3).sizes


def test_a_size_is_of_the_class_that_somebody_wrote() -> None:
    assert CHAT is declared(sized(sized(CHAT, turns=6), turns=2))
    assert CHAT.__module__ == sized(CHAT, turns=6).__module__


def test_a_subclass_may_settle_a_parameter(toys: ModuleType) -> None:
    class Two(toys.KnowsTheFirst):  # type: ignore[name-defined,misc]
        items = 2

    assert {} == parameters_of(Two)
    with pytest.raises(WrongUsage, match="no parameter of knows_the_first 'items'\nit has none"):
        sized(Two, items=3)


def test_a_mutant_of_a_size_has_that_size() -> None:
    mutant = shipped_mutants()["emit-always-append"].apply(sized(CHAT, turns=1))
    assert (1, "chat_session@turns=1") == (mutant.turns, mutant.name)
    assert (2, "chat_session@turns=2") == (sized(mutant, turns=2).turns, sized(mutant, turns=2).name)
    assert mutant.runtime is sized(mutant, turns=2).runtime


@pytest.mark.parametrize("value", [0, 10, True, "2", 2.0])
def test_a_number_that_it_cannot_be_is_refused(value: object) -> None:
    with pytest.raises(WrongUsage, match=r"chat_session: turns=.*, wanted a whole number from 1 to 9"):
        sized(CHAT, turns=value)  # type: ignore[arg-type]


@given(
    st.text(st.characters(exclude_characters="@")),
    st.dictionaries(st.from_regex("[a-z_]{1,9}", fullmatch=True), st.integers(-99, 99)),
)
def test_a_name_is_taken_apart_as_it_was_put_together(name: str, sizes: dict[str, int]) -> None:
    assert (name, sizes) == split_name(name + suffix(sizes))


@pytest.mark.parametrize("name", ["", "@", "svc@v2", "a@b=", "a@=1", "a@b=x", "a@b=1.5", "a@b=1@c", "a@b=٣"])
def test_what_is_no_size_belongs_to_the_name(name: str) -> None:
    assert (name, {}) == split_name(name)


@pytest.mark.parametrize("turns", range(1, 10))
def test_smaller_sizes_begin_with_the_least_and_end_with_one_less(turns: int) -> None:
    found = [s.turns for s in smaller(sized(CHAT, turns=turns))]
    assert sorted(set(found)) == found
    assert found[:1] == ([1] if turns > 1 else [])
    assert found[-1:] == ([turns - 1] if turns > 1 else [])


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_scenario_is_found_by_name_and_by_reference_in_any_size(toys: ModuleType) -> None:
    assert 1 == find_scenario("chat_session@turns=1").turns
    assert 7 == find_scenario("toy_scenarios:KnowsTheFirst@items=7").items
    own = known(["toy_scenarios:KnowsTheFirst@items=7"])
    reference, scenario = own.find("knows_the_first@items=2")
    assert ("toy_scenarios:KnowsTheFirst@items=2", 2) == (reference, scenario.items)
    assert 2 == find_scenario(reference).items
    assert 5 == own.find("knows_the_first")[1].items
    assert "knows_the_first@items=9" in own
    assert "nobody@items=9" not in own


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chat_session@turns=99", "chat_session: turns=99, wanted a whole number from 1 to 9"),
        ("chat_session@turn=2", "no parameter of chat_session 'turn': did you mean 'turns'?"),
        ("chat_session@turns", "wanted chat_session@PARAMETER=NUMBER; chat_session has turns (1 to 9)"),
        ("chat_session@turns=two", "wanted chat_session@PARAMETER=NUMBER; chat_session has turns (1 to 9)"),
        ("order_saga@x=1", "no parameter of order_saga 'x'\nit has none"),
        ("order_saga@", "wanted order_saga@PARAMETER=NUMBER; order_saga has no parameters"),
        ("nobody@x=1", "no scenario 'nobody@x=1'"),
        ("toy_scenarios:Steady@x=1", "no parameter of steady 'x'\nit has none"),
    ],
)
def test_a_name_that_says_no_size_is_told(name: str, said: str, command: CommandLine) -> None:
    done = command.call("fuzz", name)
    assert 2 == done.code
    assert said in done.err


def test_a_name_of_ones_own_that_reads_like_a_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toys: ModuleType
) -> None:
    (tmp_path / "odd_name.py").write_text(
        "from toy_scenarios import Steady\nclass Odd(Steady):\n    name = 'odd@x=1'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WrongUsage, match="does not end like a size, in @NAME=NUMBER"):
        find_scenario("odd_name:Odd")


def test_a_schedule_keeps_its_size(toys: ModuleType) -> None:
    schedule = Schedule(scenario="chat_session@turns=1", deviations=(Deviation(at="a#1", do="go"),))
    assert schedule == token(schedule.to_token())
    with pytest.raises(WrongUsage, match="turns=99"):
        run(CHAT, token("dst:chat_session@turns=99".replace("=", "%3D")))
    assert 1 == len({run(scenario, schedule).result.digest for scenario in (CHAT, sized(CHAT, turns=6))})
    assert "chat_session@turns=1" == run(sized(CHAT, turns=6), schedule).result.scenario
    assert "chat_session" == run(sized(CHAT, turns=6), Schedule(scenario="chat_session")).result.scenario


# ---- shrinking -------------------------------------------------------------------------------------------------------


def investigated(scenario: type[Scenario], *deviations: Deviation, stopped: bool = False, budget: int = 100) -> Failure:
    async def body(simulations: Host) -> Failure:
        transparency = Transparency(simulations)
        result, violation = await run_one(simulations, transparency, scenario, Written(deviations))
        assert violation is not None
        return await investigate(
            simulations,
            transparency,
            scenario,
            result,
            violation,
            signature_of(result, None, violation),
            seed=7,
            mutant=None,
            budget=budget,
            stopped=lambda: stopped,
        )

    return host(body)


def crash(item: int) -> Deviation:
    return Deviation(at=f"append:box-1:WRITTEN:item {item}#1", do="crash-after")


def test_a_failure_is_told_in_the_smallest_story_that_fails_alike(toys: ModuleType) -> None:
    found = investigated(toys.KnowsTheFirst, crash(3))
    assert "knows_the_first@items=2" == found.schedule.scenario
    assert (crash(1),) == found.schedule.deviations
    assert found.minimal
    assert found.replays
    assert ("knows_the_first", None) == (found.found_in, found.schedule.seed)
    assert "knows_the_first" == found.signature.scenario
    result = host(lambda h: h.run(sized(toys.KnowsTheFirst, items=2), Written(found.schedule.deviations)))
    assert (False, found.digest) == (result.judgement.violations == (), result.digest)
    one = sized(toys.KnowsTheFirst, items=1)
    with pytest.raises(InvariantFailed):
        run(toys.KnowsTheFirst, found.schedule).check()
    assert run(one, Schedule(scenario=one.name, deviations=(crash(0),))).check()


def test_what_befell_what_is_gone_befalls_what_is_left(toys: ModuleType) -> None:
    found = investigated(toys.ForgetsTheLast, crash(4))
    assert "forgets_the_last@items=1" == found.schedule.scenario
    assert (crash(0),) == found.schedule.deviations


def test_what_fails_in_no_smaller_story_keeps_its_size_and_its_seed(toys: ModuleType) -> None:
    found = investigated(sized(toys.KnowsTheFirst, items=2), crash(1))
    assert ("knows_the_first@items=2", 7) == (found.schedule.scenario, found.schedule.seed)
    assert found.found_in == found.schedule.scenario
    assert found.minimal


def test_who_is_stopped_before_all_sizes_were_tried_does_not_say_minimal(toys: ModuleType) -> None:
    found = investigated(toys.KnowsTheFirst, crash(1), stopped=True)
    assert ("knows_the_first", False) == (found.schedule.scenario, found.minimal)


def test_without_a_budget_the_size_stays(toys: ModuleType) -> None:
    assert "knows_the_first" == investigated(toys.KnowsTheFirst, crash(1), budget=0).schedule.scenario


# ---- as a user meets it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_campaign_files_the_smaller_story_and_its_line_replays_it(command: CommandLine, workers: str) -> None:
    words = ("toy_scenarios:KnowsTheFirst@items=7", "--seed", "1", "-n", "300", "-w", workers)
    campaign = json.loads(command.run("fuzz", *words, "--json").out)
    (failure,) = campaign["failures"]
    assert ["knows_the_first@items=7"] == campaign["scenario"]
    assert ("knows_the_first@items=2", "knows_the_first@items=7") == (failure["scenario"], failure["found_in"])
    kept = json.loads((command.home / "failures" / failure["id"] / "schedule.json").read_text())
    assert ("knows_the_first@items=2", None) == (kept["scenario"], kept["seed"])
    _, *again = shlex.split(failure["replay"])
    done = command.run(*again)
    assert 1 == done.code
    assert "knows_the_first@items=2" in done.out
    assert "; found in knows_the_first@items=7" in done.out
    by_seed = command.run("replay", "toy_scenarios:KnowsTheFirst@items=7", "--seed", str(failure["seed"]))
    assert f"knows_the_first@items=7  id {failure['id']}" in by_seed.out


def test_where_nothing_can_be_kept_the_line_is_the_run_that_found_it(command: CommandLine) -> None:
    (command.folder / "file").write_text("no folder")
    words = ("toy_scenarios:KnowsTheFirst", "--seed", "1", "-n", "300", "--home", "file/home")
    line = next(line for line in command.run("fuzz", *words).out.splitlines() if line.startswith("Reproduce:"))
    assert line.startswith("Reproduce:  dst replay toy_scenarios:KnowsTheFirst --seed ")
    done = command.run(*shlex.split(line.removeprefix("Reproduce:  dst ")))
    assert 1 == done.code


def test_exploring_and_shrinking_make_the_story_smaller_too(command: CommandLine) -> None:
    done = json.loads(command.run("explore", "toy_scenarios:KnowsTheFirst", "--max-states", "50", "--json").out)
    assert {"knows_the_first@items=2"} == {failure["scenario"] for failure in done["failures"]}
    schedule = Schedule(scenario="knows_the_first", deviations=(crash(3),))
    (command.folder / "large.json").write_text(schedule.to_text())
    shrunk = command.run("shrink", "large.json", "--scenario", "toy_scenarios:KnowsTheFirst", "-o", "small.json")
    assert "; found in knows_the_first" in shrunk.out, shrunk.err
    assert "knows_the_first@items=2" == json.loads((command.folder / "small.json").read_text())["scenario"]


def test_a_check_replays_what_is_kept_in_whatever_size(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, toys: ModuleType
) -> None:
    monkeypatch.setattr("dst.ambient.current", None)
    monkeypatch.setattr("sys.path", ["", *importlib.import_module("sys").path])
    kept = command.folder / "tests" / "regressions"
    kept.mkdir(parents=True)
    small = Schedule(scenario="knows_the_first@items=2", deviations=(crash(1),))
    (kept / "small.json").write_text(small.to_text())
    with pytest.raises(InvariantFailed, match=r"small\.json"):
        check(sized(toys.KnowsTheFirst, items=1), schedules=20)
    (kept / "small.json").unlink()
    with pytest.raises(InvariantFailed) as caught:
        check(sized(toys.KnowsTheFirst, items=6), seed=1)
    (failure,) = caught.value.failures
    assert ("knows_the_first@items=2", "knows_the_first@items=6") == (failure.scenario, failure.found_in)
    *_, line = str(caught.value).splitlines()
    assert 1 == command.call(*shlex.split(line.removeprefix("Reproduce:  dst "))).code


@pytest.mark.parametrize("name", OTHERS)
def test_shipped_scenarios_hold_in_their_least_and_in_a_larger_size(name: str, command: CommandLine) -> None:
    scenario = shipped_scenarios()[name]
    for sizes in (
        {p.name: p.least for p in parameters_of(scenario).values()},
        {p.name: min(p.most, p.default + 2) for p in parameters_of(scenario).values()},
    ):
        done = json.loads(command.call("fuzz", name + suffix(sizes), "--seed", "1", "-n", "60", "--json").out)
        assert ([], 60) == (done["failures"], done["schedules"]), sizes


def test_a_size_is_the_same_in_every_place() -> None:
    wanted = resized(CHAT, "chat_session@turns=2")
    runs = [host(lambda h, cls=cls: h.run(cls, Written(()))) for cls in (wanted, find_scenario("chat_session@turns=2"))]  # type: ignore[misc]
    assert 1 == len({result.digest for result in runs})
    assert runs[0].digest != host(lambda h: h.run(CHAT, Written(()))).digest
