"""`dst fuzz`: one seed, one report, for any number of workers and whatever happens to them."""

from __future__ import annotations

import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from dst import trace
from dst.doctor import DoctorFailed
from dst.executors.assignment import Assignment
from dst.records import parse_campaign, parse_failure

STEADY, FORGETFUL = "toy_scenarios:Steady", "toy_scenarios:Forgetful"
WALL_CLOCK = ("seconds", "workers", "scenarios")

PROMISED = {
    "scenario", "strategy", "seeds", "schedules", "seconds", "verdict", "failures", "fired", "judged", "marks",
    "missing", "digest", "exit_code",
}  # fmt: skip
PROMISED_OF_FAILURES = {
    "id", "signature", "invariant", "scenario", "seed", "deviations", "seen", "wanted", "minimal", "digest", "replay",
}  # fmt: skip


def report(out: str) -> dict[str, object]:
    """Return what must be equal of a report."""
    fields = json.loads(out)
    scenarios = [{k: v for k, v in s.items() if k != "run_seconds"} for s in fields["scenarios"]]
    return {**{key: value for key, value in fields.items() if key not in WALL_CLOCK}, "scenarios": scenarios}


# ---- the report ------------------------------------------------------------------------------------------------------


def test_json_is_one_object_with_all_that_is_promised(command) -> None:
    done = command.run("fuzz", FORGETFUL, "--seed", "1", "--json")
    assert done.code == 1
    assert done.err == ""
    fields = json.loads(done.out)
    assert set(fields) >= PROMISED
    assert set(fields["failures"][0]) >= PROMISED_OF_FAILURES
    assert {"at", "do", "until"} == set(fields["failures"][0]["deviations"][0])
    assert ("fail", 1, ["forgetful"]) == (fields["verdict"], fields["exit_code"], fields["scenario"])


def test_a_failure_ends_with_the_line_that_reproduces_it(command) -> None:
    done = command.call("fuzz", FORGETFUL, "--seed", "1")
    id = command.kept()[0]
    assert done.code == 1
    assert f"Reproduce:  dst replay {id} --scenario {FORGETFUL}\n" in done.out
    assert 1 == command.call("replay", id, "--scenario", FORGETFUL).code


def test_a_green_campaign_says_what_it_did(command) -> None:
    done = command.call("fuzz", STEADY, "--seed", "1", "-n", "60")
    assert done.code == 0
    for part in ("60 schedules", "crash-after", "written-once", "PASS", "campaign digest", "seed 1"):
        assert part in done.out
    assert "under two hash seeds: 3 runs, same digests" in done.out


def test_that_nothing_was_compared_between_processes_is_told(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise DoctorFailed("a traceback\nno such module")

    monkeypatch.setattr("dst.cli.fuzz.between_hash_seeds", fails)
    done = command.call("fuzz", STEADY, "--seed", "1", "-n", "60")
    assert 0 == done.code
    assert "nothing was compared between hash seeds: no such module" in done.err
    assert "under two hash seeds" not in done.out


def test_a_mutant_brings_its_scenario(command) -> None:
    fields = json.loads(command.call("fuzz", "--mutant", "emit-always-append", "--seed", "1", "--json").out)
    assert ["chat_session"] == fields["scenario"]
    assert fields["failures"][0]["mutant"] == "emit-always-append"


def test_without_shrinking_a_schedule_stays_as_it_was_found(command) -> None:
    long = json.loads(command.call("fuzz", FORGETFUL, "--seed", "4", "--no-shrink", "--json").out)["failures"][0]
    assert long["found_with"] == len(long["deviations"])
    assert not long["minimal"]


def test_max_failures_and_going_on(command) -> None:
    one = json.loads(command.call("fuzz", FORGETFUL, "--seed", "1", "-n", "80", "--json").out)
    all_ = json.loads(command.call("fuzz", FORGETFUL, "--seed", "1", "-n", "80", "--continue-on-failure", "--json").out)
    assert one["schedules"] < 80
    assert all_["schedules"] == 80
    assert len(one["failures"]) <= len(all_["failures"])
    assert all_["failures"][0]["repeats"] > 0


def test_seed_last_runs_the_same_again(command) -> None:
    first = command.call("fuzz", STEADY, "-n", "20", "--json")
    assert report(first.out) == report(command.call("fuzz", STEADY, "-n", "20", "--seed", "last", "--json").out)
    ranged = command.call("fuzz", STEADY, "--seeds", "5:9", "--json")
    assert report(ranged.out) == report(command.call("fuzz", STEADY, "--seed", "last", "--json").out)


def test_a_range_of_seeds_is_run_on_each_scenario(command) -> None:
    fields = json.loads(command.call("fuzz", STEADY, "order_saga", "--seeds", "5:9", "--json").out)
    assert [4, 4] == [s["schedules"] for s in fields["scenarios"]]
    assert {"campaign": None, "first": 5, "last": 8} == fields["seeds"]


def test_chosen_faults_alone_fire(command) -> None:
    fields = json.loads(command.call("fuzz", STEADY, "-n", "30", "--faults", "crash-after", "--json").out)
    assert ["crash-after"] == sorted(fields["fired"])


def test_time_is_a_limit_or_the_plan(command) -> None:
    planned = command.call("fuzz", STEADY, "--max-time", "0.5s", "--json")
    assert 0 == planned.code
    assert json.loads(planned.out)["planned"] is None
    cut = command.call("fuzz", STEADY, "--max-time", "0.5s", "-n", "10000000", "--json")
    assert 6 == cut.code
    assert "time was out" in json.loads(cut.out)["stopped"]


def test_a_bug_in_a_scenario_breaks_the_harness_and_is_told(command) -> None:
    for workers in ("1", "2"):
        done = command.run("fuzz", "toy_scenarios:Bug", "-n", "300", "--seed", "1", "-w", workers, "--json")
        assert (3, "unknown") == (done.code, json.loads(done.out)["verdict"])
        assert "RuntimeError: a bug in the scenario" in done.err
        assert "Reproduce:  dst replay toy_scenarios:Bug --seed " in done.err


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_a_campaign_is_kept(command) -> None:
    done = command.call("fuzz", FORGETFUL, "--seed", "1", "--json", "--report", "ndjson")
    home = command.home
    assert "*\n" == (home / ".gitignore").read_text()
    assert "1\n" == (home / "last-seed").read_text()
    folder = home / "campaigns" / (home / "campaigns" / "latest").read_text().strip()
    assert json.loads(done.out) == json.loads((folder / "stats.json").read_text())
    assert parse_campaign((folder / "stats.json").read_text(), "stats").failures
    runs = [json.loads(line) for line in (folder / "runs.ndjson").read_text().splitlines()]
    assert json.loads(done.out)["schedules"] == len(runs)
    kinds = [json.loads(line)["kind"] for line in (folder / "records.ndjson").read_text().splitlines()]
    assert ["failure", "campaign"] == [kind for kind in kinds if kind != "progress"]
    failure = home / "failures" / command.kept()[0]
    assert parse_failure((failure / "failure.json").read_text(), "failure").invariant == "written-once"
    assert [] == [path for path in home.rglob("*") if path.name.startswith(".") and path.name != ".gitignore"]


def test_what_cannot_be_kept_is_still_printed(command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = command.call("fuzz", FORGETFUL, "--seed", "1", "--json", "--home", "file")
    fields = json.loads(done.out)
    assert (2, 2) == (done.code, fields["exit_code"])
    assert "fail" == fields["verdict"]
    assert "--seed" in fields["failures"][0]["replay"], "what is not kept has no id to be replayed by"
    assert "cannot write file" in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is writable for root")
def test_a_folder_without_permission_is_told(command, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    done = command.call("fuzz", STEADY, "--seed", "1", "-n", "20")
    assert done.code == 2
    assert "cannot write" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_a_full_disk_is_told(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        with Path("/dev/full").open("wb", buffering=0) as disk:
            disk.write(b"x")

    monkeypatch.setattr(os, "fsync", full)
    done = command.call("fuzz", STEADY, "--seed", "1", "-n", "20")
    assert done.code == 2
    assert "No space left on device" in done.err
    assert "PASS" in done.out


# ---- workers ---------------------------------------------------------------------------------------------------------


def test_the_report_is_the_same_for_any_number_of_workers(command) -> None:
    words = ("fuzz", FORGETFUL, STEADY, "--seed", "3", "-n", "300", "--continue-on-failure", "--json")
    alone = report(command.run(*words).out)
    assert alone["failures"]
    assert alone == report(command.run(*words, "-w", "3").out)


def test_a_first_failure_is_the_same_for_any_number_of_workers(command) -> None:
    words = ("fuzz", FORGETFUL, "--seed", "9", "-n", "1000", "--json")
    assert report(command.run(*words).out) == report(command.run(*words, "-w", "2").out)


def test_a_worker_that_dies_loses_nothing(command, tmp_path: Path) -> None:
    words = ("fuzz", "toy_scenarios:DiesOnce", "--seed", "1", "-n", "250", "--json", "-w", "2")
    done = command.run(*words, TOY_MARK=str(tmp_path / "mark"))
    assert done.code == 0
    assert report(done.out) == report(command.run(*words, TOY_MARK=str(tmp_path / "mark")).out)


def test_workers_that_die_again_and_again_are_given_up(command) -> None:
    done = command.run("fuzz", "toy_scenarios:AlwaysDies", "--seed", "1", "-n", "150", "--json", "-w", "2")
    assert done.code == 6
    assert "workers died" in json.loads(done.out)["stopped"]


@pytest.mark.parametrize(("workers", "sent"), [("1", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)])
def test_an_interruption_leaves_a_partial_report_and_no_process(command, workers: str, sent: signal.Signals) -> None:
    process = command.start("fuzz", STEADY, "--seed", "1", "-n", "10000000", "-w", workers, "--json")
    wait_for_runs(command.home)
    os.killpg(process.pid, sent) if sent is signal.SIGINT else process.send_signal(sent)
    out, err = process.communicate(timeout=30)
    fields = json.loads(out)
    assert (130, 130, True) == (process.returncode, fields["exit_code"], fields["interrupted"])
    assert fields["schedules"] > 0
    assert err == ""
    assert json.loads((next((command.home / "campaigns").glob("*/stats.json"))).read_text()) == fields
    assert_group_is_gone(process.pid)


def test_no_worker_outlives_a_command_that_was_killed(command) -> None:
    process = command.start("fuzz", STEADY, "--seed", "1", "-n", "10000000", "-w", "2")
    wait_for_runs(command.home)
    process.kill()
    process.communicate(timeout=30)
    assert_group_is_gone(process.pid)


def test_sigterm_ends_a_command_that_was_started_without_ctrl_c(command) -> None:
    """As a shell starts what is to run in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture puts it back
    process = command.start("fuzz", STEADY, "--seed", "1", "-n", "10000000")
    wait_for_runs(command.home)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert 0 != process.returncode
    assert_group_is_gone(process.pid)


def wait_for_runs(home: Path) -> None:
    """Wait until the campaign says that it got somewhere."""
    for _ in range(1200):
        lines = [line for p in home.glob("campaigns/*/records.ndjson") for line in p.read_text().splitlines()]
        if any(json.loads(line)["schedules"] for line in lines):
            return
        time.sleep(0.05)
    raise AssertionError("no run in 60 s")


def assert_group_is_gone(group: int) -> None:
    """Check that no process of the group is left; one may take a moment to see that its pipe has ended."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process is left")


# ---- shares of the work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenarios", [("a",), ("a", "b"), ("a", "b", "c")])
@pytest.mark.parametrize("schedules", [1, 7, 12])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_share_all_runs(scenarios: tuple[str, ...], schedules: int, shards: int) -> None:
    parts = [
        [part.run(i)[:2] for i in range(part.runs)]
        for shard in range(shards)
        for part in [Assignment(scenarios=scenarios, schedules=schedules, seed=5, shard=(shard, shards))]
    ]
    whole = Assignment(scenarios=scenarios, schedules=schedules, seed=5)
    assert sorted(run for part in parts for run in part) == sorted(whole.run(i)[:2] for i in range(schedules))


def test_every_scenario_is_run_twice_now_and_then() -> None:
    plan = Assignment(scenarios=("a", "b"), schedules=200, recheck_one_in=50)
    assert {0, 1} == {scenario for scenario, _, twice in map(plan.run, range(200)) if twice}


def test_the_campaign_digest_is_that_of_all_runs(command) -> None:
    done = command.call("fuzz", STEADY, "-n", "20", "--json", "--report", "ndjson")
    folder = next((command.home / "campaigns").glob("*-steady"))
    digests = [json.loads(line)["digest"] for line in (folder / "runs.ndjson").read_text().splitlines()]
    assert trace.digest([tuple(digests)]) == json.loads(done.out)["digest"]
