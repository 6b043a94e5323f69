"""Configuration: who wins, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dst.config import KEYS, duration, settings, share, variable
from dst.errors import WrongUsage

PROJECT = """
[tool.dst]
schedules = 100
workers = "auto"
max-time = "10m"
[tool.dst.profiles.ci]
schedules = 5000
[tool.dst.profiles.short]
schedules = 10
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    return inner


def test_flag_then_environment_then_profile_then_project(project: Path) -> None:
    def schedules(flag: str | None = None, **environ: str) -> object:
        return settings({"schedules": flag}, environ, project).get("schedules")

    assert 100 == schedules()
    assert 10 == schedules(DST_PROFILE="short")
    assert 7 == schedules(DST_PROFILE="short", DST_SCHEDULES="7")
    assert 3 == schedules("3", DST_PROFILE="short", DST_SCHEDULES="7")


def test_ci_is_noticed_where_its_profile_is_defined(project: Path, tmp_path: Path) -> None:
    assert 5000 == settings({}, {"CI": "true"}, project).get("schedules")
    assert 10 == settings({}, {"CI": "true", "DST_PROFILE": "short"}, project).get("schedules")
    assert 100 == settings({}, {"CI": "false"}, project).get("schedules")
    (tmp_path / "pyproject.toml").write_text("[tool.dst]\nschedules = 100\n")
    assert 100 == settings({}, {"CI": "true"}, project).get("schedules")


def test_every_setting_says_where_it_is_from(project: Path, tmp_path: Path) -> None:
    found = settings({"seed": "3"}, {"DST_WORKERS": "2", "CI": "1"}, project)
    assert "--seed" == found.source("seed")
    assert "DST_WORKERS" == found.source("workers")
    assert "[tool.dst.profiles.ci]" == found.source("schedules")
    assert f"{tmp_path}/pyproject.toml [tool.dst]" == found.source("max-time")
    assert "" == found.source("faults")


WRONG = [
    ("[tool.dst]\nschedule = 3", "'schedule': did you mean 'schedules'?"),
    ("[tool.dst]\nprofile = 'x'", "no profile (from"),
    ("[tool.dst.profiles.x]\nseeed = 3", "no setting (in [tool.dst.profiles.x]) 'seeed': did you mean 'seed'?"),
    ("[tool.dst.profiles.x]\nprofile = 'y'", "'profile'"),
    ("[tool.dst]\nschedules = 'many'", "schedules in"),
    ("[tool.dst]\nschedules = true", "wanted a whole number"),
    ("[tool.dst]\nprofiles = 3", "is no table"),
    ("[tool]\ndst = 3", "[tool.dst] is no table"),
    ("[tool.dst", "cannot read"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[text for text, _ in WRONG])
def test_what_is_wrong_in_a_project_is_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(WrongUsage) as refused:
        settings({}, {}, tmp_path)
    assert said in str(refused.value)


def test_a_variable_that_is_nearly_known_is_told(tmp_path: Path) -> None:
    found = settings({}, {"DST_SCHEDULE": "3", "DST_OF_THE_ROAD": "3", "DST_SEED": ""}, tmp_path)
    assert ("DST_SCHEDULE in the environment is not known: did you mean DST_SCHEDULES?",) == found.notes


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("1h30m5s", 5405), (3, 3), (0.5, 0.5)]
)
def test_durations(text: object, seconds: float) -> None:
    assert seconds == duration(text)


@pytest.mark.parametrize("text", ["", "0", "m", "-3s", "10x", "1m1h", True, None, [], "nan", "inf"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="a time"):
        duration(text)


@pytest.mark.parametrize(("text", "number"), [("2%", 0.02), ("1/50", 0.02), (0.02, 0.02), (1, 1), ("0", 0)])
def test_shares(text: object, number: float) -> None:
    assert number == share(text)


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_refuses_a_list_of_numbers(key: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.dst]\n{key} = [1]\n")
    with pytest.raises(WrongUsage, match=f"{key} in .*: wanted"):
        settings({}, {}, tmp_path)
    assert variable(key).startswith("DST_")


# ---- on the command line ---------------------------------------------------------------------------------------------


def test_a_project_names_its_scenarios(command, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.dst]\nscenarios = ["toy_scenarios:Forgetful"]\nhome = "kept"\n')
    done = command.call("fuzz", "--seed", "1", "--json")
    failure = json.loads(done.out)["failures"][0]
    assert (1, ["forgetful"]) == (done.code, json.loads(done.out)["scenario"])
    assert f"dst replay {failure['id']}" == failure["replay"]
    assert 1 == command.call("replay", failure["id"]).code
    assert (tmp_path / "kept" / "failures" / failure["id"]).is_dir()


def test_a_folder_elsewhere_is_part_of_the_command(command) -> None:
    done = command.call("fuzz", "toy_scenarios:Forgetful", "--seed", "1", "--home", "else where", "--json")
    failure = json.loads(done.out)["failures"][0]
    assert failure["replay"].endswith("--home 'else where'")


def test_the_environment_steers_the_command(command) -> None:
    done = command.call("fuzz", "toy_scenarios:Steady", "--json", DST_SEED="5", DST_SCHEDULES="20", DST_HOME="x")
    fields = json.loads(done.out)
    assert (20, 5) == (fields["schedules"], fields["seeds"]["campaign"])
    assert (command.folder / "x" / "last-seed").read_text() == "5\n"
