"""`dst explain`: the story of a failure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dst.explain import Explanation
from dst.schedule import Deviation, Schedule

FORGETFUL = "toy_scenarios:Forgetful"
CRASH = Deviation(at="append:box-1:WRITTEN:item 1#1", do="crash-after")


@pytest.fixture
def failed(command):
    """The id of a kept failure."""
    done = command.call("fuzz", FORGETFUL, "--seed", "1", "-n", "50", "--json")
    assert done.code == 1, done.err
    return json.loads(done.out)["failures"][0]["id"]


def explained(command, target: str, *words: str):
    return command.call("explain", target, "--scenario", FORGETFUL, "--times", "10", "--moments", "3", *words)


def written(path: Path, *deviations: Deviation) -> str:
    path.write_text(Schedule(scenario="forgetful", deviations=deviations).to_text())
    return str(path)


def test_it_tells_the_story_and_ends_with_the_line_that_reproduces_it(command, failed) -> None:
    done = explained(command, failed)
    assert (0, "") == (done.code, done.err)
    for part in ("1. crash writer-1 after it appended", "cause:  the crash of writer-1", "=> ", "of 10 "):
        assert part in done.out
    assert "The nearest passing run is the one" in done.out
    assert f"Reproduce:  dst replay {failed} --scenario {FORGETFUL}" == done.out.rstrip().splitlines()[-1]


def test_the_same_failure_has_the_same_text(command, failed) -> None:
    assert explained(command, failed).out == explained(command, failed).out


def test_json_has_all_of_it(command, tmp_path) -> None:
    done = explained(command, written(tmp_path / "s.json", CRASH), "--json")
    found = json.loads(done.out)
    turn = found["turn"]
    assert (0, 0, "") == (done.code, found["exit_code"], found["stopped"])
    assert (CRASH.at, 1, True, True) == (turn["at"]["point"], turn["at"]["deviation"], turn["certain"], turn["exact"])
    assert all(10 == share["of"] for share in found["curve"])
    assert found["failure"]["cause"].startswith("the crash of writer-1")
    near = found["nearest"]
    assert near["failing"].startswith("FAULT crash-after at: WRITTEN item 1 of box-1")
    assert near["passing"] == "wrote 1"


def test_a_campaign_tells_the_cause_and_a_replay_repeats_it(command, failed) -> None:
    said = re.compile(
        r"^  cause:  the crash of writer-1 .* decides it: 16 of 16 runs .* fail alike, \d+ of 16 from just before it$",
        re.MULTILINE,
    )
    assert said.search(command.call("fuzz", FORGETFUL, "--seed", "1", "-n", "50").out)
    assert said.search(command.call("replay", failed, "--scenario", FORGETFUL).out)
    assert said.search(command.call("shrink", failed, "--scenario", FORGETFUL).out)


def test_what_was_not_shrunk_has_no_cause(command) -> None:
    assert "cause:" not in command.call("fuzz", FORGETFUL, "--seed", "1", "-n", "50", "--no-shrink").out


def test_what_does_not_fail_is_not_explained(command, tmp_path) -> None:
    done = explained(command, written(tmp_path / "s.json"))
    assert done.code == 2
    assert "does not fail any more: there is nothing to explain" in done.err


def test_a_deviation_that_does_not_take_place_is_told(command, tmp_path) -> None:
    lost = Deviation(at="append:box-1:WRITTEN:item 9#1", do="crash-after")
    done = explained(command, written(tmp_path / "s.json", CRASH, lost))
    assert done.code == 0
    assert "did not take place: crash the worker after it appended WRITTEN item 9 of box-1" in done.out


def test_a_budget_that_is_used_up_is_told(command, tmp_path) -> None:
    done = explained(command, written(tmp_path / "s.json", CRASH), "--budget", "15")
    assert done.code == 0
    assert "stopped: the budget of 15 runs is used up" in done.out


def test_time_that_is_out_is_told(command, tmp_path) -> None:
    done = explained(command, written(tmp_path / "s.json", CRASH), "--max-time", "0.000001")
    assert done.code == 0
    assert "No passing run is known: none was looked for" in done.out
    assert "stopped: time was out after 1e-06 s" in done.out


def test_interrupted_it_tells_what_is_known(command, tmp_path, monkeypatch) -> None:
    inner = Explanation.__init__

    def interrupted_later(self, failing, effort, before_run) -> None:
        def before(runs: int) -> None:
            if runs == 30:
                raise KeyboardInterrupt
            before_run(runs)

        inner(self, failing, effort, before)

    monkeypatch.setattr(Explanation, "__init__", interrupted_later)
    done = explained(command, written(tmp_path / "s.json", CRASH), "--json")
    found = json.loads(done.out)
    assert (130, "interrupted", 30) == (done.code, found["stopped"], found["runs"])
    assert found["curve"]


def test_where_calm_runs_fail_nothing_has_to_go_wrong(command, tmp_path) -> None:
    token = Schedule(scenario="order_saga", mutant="effect-before-started").to_token()
    done = command.call("explain", token, "--times", "5", "--moments", "2")
    assert done.code == 0
    assert "nothing has to go wrong: the calm run fails, and 4 of 4 runs with faults by chance fail alike" in done.out
    assert "=> is the moment named: record 0, at 0.000 s" in done.out
