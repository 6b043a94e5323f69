"""`dst list`, `run`, `replay`, `shrink`: what they answer, and how they refuse."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dst.schedule import Deviation, Schedule
from scenarios.catalogue import SCENARIOS

STEADY, FORGETFUL = "toy_scenarios:Steady", "toy_scenarios:Forgetful"


@pytest.fixture
def failed(command):
    """A folder with one failure, and its id."""
    done = command.call("fuzz", FORGETFUL, "--seed", "1", "-n", "50", "--json")
    assert done.code == 1, done.err
    return json.loads(done.out)["failures"][0]["id"]


def write_schedule(path: Path, *deviations: tuple[str, str], scenario: str = "forgetful") -> str:
    schedule = Schedule(scenario=scenario, deviations=tuple(Deviation(at=at, do=do) for at, do in deviations))
    path.write_text(schedule.to_text())
    return str(path)


# ---- list ------------------------------------------------------------------------------------------------------------


def test_list_tells_all_in_json(command) -> None:
    done = command.call("list", "--json")
    listed = json.loads(done.out)
    saga = next(s for s in listed["scenarios"] if s["name"] == "order_saga")
    assert {"name", "story", "faults", "invariants", "marks", "version", "reference", "parameters"} == set(saga)
    assert all(invariant["says"] for invariant in saga["invariants"])
    assert {"name", "breaks", "scenario", "expected", "equivalent"} == set(listed["mutants"][0])


def test_list_can_be_read(command) -> None:
    done = command.call("list")
    assert done.code == 0
    for part in ("order_saga", "crash-after", "no-emit-lost", "every acknowledged logical emit", "emit-ordinal"):
        assert part in done.out


@pytest.mark.parametrize("name", ["list", "run", "fuzz", "replay", "shrink", "explain", "doctor"])
def test_every_help_text_has_an_example(command, name: str) -> None:
    done = command.call(name, "--help")
    assert done.code == 0
    assert "Examples:" in done.out
    assert f"dst {name}" in done.out


# ---- run -------------------------------------------------------------------------------------------------------------


def test_a_calm_run_shows_its_trace(command) -> None:
    done = command.call("run", "order_saga")
    assert done.code == 0
    assert "worker-1 starts" in done.out
    assert "EXECUTION_COMPLETED" in done.out
    assert "PASS  order_saga" in done.out


def test_a_run_in_json(command) -> None:
    run = json.loads(command.call("run", FORGETFUL, "--seed", "3", "--json").out)
    assert run["digest"] == json.loads(command.call("run", FORGETFUL, "--seed", "3", "--json").out)["digest"]
    assert run["trace"]
    assert run["exit_code"] == (1 if run["verdict"] == "fail" else 0)


def test_a_run_that_never_rests_is_inconclusive(command) -> None:
    done = command.call("run", "toy_scenarios:Endless", "-q", "--max-steps", "200")
    assert done.code == 6
    assert "UNKNOWN  endless: out of steps" in done.out


# ---- replay ----------------------------------------------------------------------------------------------------------


def test_a_failure_is_replayed_by_its_id(command, failed: str) -> None:
    for id in (failed, failed.lower()):
        done = command.call("replay", id, "--scenario", FORGETFUL)
        assert done.code == 1
        assert "FAIL written-once" in done.out
        assert "replayed: same digest" in done.out
        assert done.out.strip().splitlines()[-1].startswith("Reproduce:  dst replay")


def test_what_was_found_out_when_it_was_shrunk_is_told_again(command, failed: str) -> None:
    done = command.call("replay", failed, "--scenario", FORGETFUL)
    assert "  schedule: 1 deviation of 4 choices, 1-minimal" in done.out
    assert "decides it: 16 of 16 runs" in done.out


def test_a_failure_is_replayed_by_its_seed(command) -> None:
    failure = json.loads(command.call("fuzz", FORGETFUL, "--seed", "1", "-n", "50", "--json").out)["failures"][0]
    done = command.call("replay", FORGETFUL, "--seed", str(failure["seed"]), "--json")
    assert done.code == 1
    assert json.loads(done.out)["failure"]["id"] == failure["id"]


def test_the_words_of_a_failure(command, failed: str) -> None:
    done = command.call("replay", failed, "--scenario", FORGETFUL)
    assert "1. crash writer-1 after it appended WRITTEN item 0 of box-1" in done.out
    assert "broken: each item is written once" in done.out
    assert "\x1b" not in done.out, "what a scenario says is escaped"


def test_a_healed_failure_is_dropped(command, failed: str) -> None:
    path = command.home / "failures" / failed / "schedule.json"
    path.write_text(path.read_text().replace('"forgetful"', '"steady"'))
    done = command.call("replay", failed, "--scenario", STEADY)
    assert done.code == 0
    assert f"{failed} does not fail any more" in done.out
    assert [] == command.kept()


def test_a_file_that_holds_now_is_left_alone(command, tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "x.json", ("append:box-1:WRITTEN:item 0#1", "crash-after"), scenario="steady")
    done = command.call("replay", path, "--scenario", STEADY)
    assert done.code == 0
    assert "does not fail any more" in done.out
    assert Path(path).exists()


STALE = [
    (("append:box-1:WRITTEN:item 7#1", "crash-after"), "never came to this point; the nearest is append:box-1:WRITTEN"),
    (("append:box-1:WRITTEN:item 1#1", "explode"), "'explode' cannot be done there: wanted one of go, crash-before"),
]


@pytest.mark.parametrize(("deviation", "why"), STALE)
def test_a_deviation_that_finds_no_point_is_named(command, tmp_path: Path, deviation, why: str) -> None:
    path = write_schedule(tmp_path / "x.json", ("append:box-1:WRITTEN:item 0#1", "crash-before"), deviation)
    strict = command.call("replay", path, "--scenario", FORGETFUL)
    assert strict.code == 2
    assert "1 of 2 deviations of the schedule did not take place" in strict.out
    assert why in strict.out
    lenient = command.call("replay", path, "--scenario", FORGETFUL, "--lenient")
    assert lenient.code == 0
    assert why in lenient.out


GONE = ("append:box-1:WRITTEN:item 7#1", "crash-after")


def test_the_modes_of_a_replay(command, tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "x.json", ("append:box-1:WRITTEN:item 0#1", "crash-before"), GONE)

    def answer(*words: str) -> dict:
        return json.loads(command.call("replay", path, "--scenario", FORGETFUL, "--json", *words).out)

    strict, lenient = answer("--mode", "strict"), answer("--mode", "lenient")
    assert {"mode": "strict", "exit_code": 2, "strict": True}.items() <= strict.items() == answer().items()
    assert {"mode": "lenient", "exit_code": 0, "strict": False}.items() <= lenient.items()
    assert lenient == answer("--lenient")
    assert [GONE[0]] == [missed["at"] for missed in lenient["missed"]] == [missed["at"] for missed in strict["missed"]]


def test_a_resumed_replay_goes_on_under_a_strategy_and_is_repeated_by_its_line(command, tmp_path: Path) -> None:
    written = ("append:box-1:WRITTEN:item 0#1", "crash-before")
    path = write_schedule(tmp_path / "x.json", written, GONE)
    words = ["replay", path, "--scenario", FORGETFUL, "--mode", "resume", "--strategy", "random"]
    runs = {seed: json.loads(command.call(*words, "--seed", seed, "--json").out) for seed in "0123456789"}

    for run in runs.values():
        assert written == (run["deviations"][0]["at"], run["deviations"][0]["do"])
        assert [GONE[0]] == [missed["at"] for missed in run["missed"]]
    assert 3 < len({run["digest"] for run in runs.values()})
    assert runs["0"]["digest"] == json.loads(command.call(*words, "--json").out)["digest"]
    assert {0, 1} == {run["exit_code"] for run in runs.values()}, "what comes after it may fail, or not"

    failing = next(run for run in runs.values() if run["exit_code"] == 1)
    again = command.call(*shlex.split(failing["replay"])[1:])
    assert 1 == again.code
    assert "after the schedule's last deviation random went on, from seed" in again.out
    assert failing["replay"] in again.out


def test_a_deviation_whose_count_has_shifted_is_moved_unless_the_replay_is_strict(command, tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "x.json", ("append:box-1:WRITTEN:item 0#3", "crash-after"))
    words = ["replay", path, "--scenario", FORGETFUL]
    assert 2 == command.call(*words).code
    lenient = command.call(*words, "--lenient")
    assert 1 == lenient.code
    assert "append:box-1:WRITTEN:item 0#3: the run never came to this point" in lenient.out
    assert "done where it is alike: append:box-1:WRITTEN:item 0#1" in lenient.out
    (missed,) = json.loads(command.call(*words, "--lenient", "--json").out)["missed"]
    assert {"at": "append:box-1:WRITTEN:item 0#1", "until": ""} == missed["moved_to"]
    resumed = json.loads(command.call(*words, "--mode", "resume", "--strategy", "random", "--json").out)
    assert "append:box-1:WRITTEN:item 0#1" == resumed["deviations"][0]["at"]


def test_a_kept_failure_that_holds_with_what_was_moved_is_kept(command, failed: str) -> None:
    path = command.home / "failures" / failed / "schedule.json"
    path.write_text(path.read_text().replace('"forgetful"', '"steady"').replace("item 0#1", "item 0#7"))
    done = command.call("replay", failed, "--scenario", STEADY, "--lenient")
    assert (0, [failed]) == (done.code, command.kept())
    assert "without what did not take place" in done.out


def test_a_kept_failure_is_not_dropped_by_a_run_that_went_on_otherwise(command, failed: str) -> None:
    path = command.home / "failures" / failed / "schedule.json"
    path.write_text(path.read_text().replace('"forgetful"', '"steady"'))
    done = command.call("replay", failed, "--scenario", STEADY, "--mode", "resume")
    assert (0, [failed]) == (done.code, command.kept())
    assert f"{failed} does not fail when it goes on like this" in done.out


def test_a_schedule_says_what_it_was_written_for_and_what_has_changed_is_told(command, failed: str) -> None:
    path = command.home / "failures" / failed / "schedule.json"
    assert command.call("replay", failed, "--scenario", FORGETFUL).out.count("written for") == 0

    schedule = json.loads(path.read_text())
    assert {"scenario": "1"}.items() <= schedule["versions"].items()
    code = schedule["versions"]["scenario code"]
    schedule["versions"] |= {"scenario code": "0123456789", "scenario": "0", "kernel": "0.9.0"}
    schedule["deviations"].append({"at": GONE[0], "do": GONE[1]})
    path.write_text(json.dumps(schedule))

    strict = command.call("replay", failed, "--scenario", FORGETFUL)
    changes = f"scenario 0 (here 1), scenario code 0123456789 (here {code}), kernel 0.9.0 (here unknown)"
    assert f"written for {changes}" in strict.out
    assert "STALE" in strict.out
    lenient = json.loads(command.call("replay", failed, "--scenario", FORGETFUL, "--lenient", "--json").out)
    assert {
        "scenario": {"written": "0", "here": "1"},
        "scenario code": {"written": "0123456789", "here": code},
        "kernel": {"written": "0.9.0", "here": "unknown"},
    } == lenient["versions_changed"]


def test_a_mutant_is_in_the_schedule(command) -> None:
    done = command.call("fuzz", "--mutant", "live-value-not-decoded", "--seed", "1", "--json")
    failure = json.loads(done.out)["failures"][0]
    assert failure["replay"] == f"dst replay {failure['id']}"
    again = command.call("replay", failure["id"], "--json")
    assert again.code == 1
    assert json.loads(again.out)["digest"] == failure["digest"]


# ---- shrink ----------------------------------------------------------------------------------------------------------


def test_shrink_makes_it_small_and_keeps_it(command, tmp_path: Path) -> None:
    path = write_schedule(
        tmp_path / "big.json",
        ("append:box-1:WRITTEN:item 0#1", "crash-before"),
        ("append:box-1:WRITTEN:item 1#1", "crash-after"),
        ("append:box-1:WRITTEN:item 0#3", "crash-after"),
    )
    output = tmp_path / "small.json"
    done = command.call("shrink", path, "--scenario", FORGETFUL, "-o", str(output))
    assert done.code == 0, done.err
    assert "from 3 to 1 deviations" in done.out
    assert "1-minimal" in done.out
    assert len(json.loads(output.read_text())["deviations"]) == 1
    assert 1 == command.call("replay", command.kept()[0], "--scenario", FORGETFUL).code


def test_shrink_refuses_what_does_not_fail(command, tmp_path: Path) -> None:
    done = command.call("shrink", write_schedule(tmp_path / "x.json", scenario="steady"), "--scenario", STEADY)
    assert done.code == 2
    assert "does not fail" in done.err


# ---- refusals --------------------------------------------------------------------------------------------------------

REFUSALS = [
    (["fuz"], "no command 'fuz': did you mean 'fuzz'?"),
    (
        ["fuzz", "ordr_saga"],
        f"no scenario 'ordr_saga': did you mean 'order_saga'?\nknown: {', '.join(sorted(SCENARIOS))}",
    ),
    (["fuzz", "--mutant", "emit-ordnal"], "no mutant 'emit-ordnal': did you mean 'emit-ordinal'?"),
    (["fuzz", "--faults", "crash-aftr"], "no fault 'crash-aftr': did you mean 'crash-after'?"),
    (["fuzz", "--strategy", "randm"], "no strategy 'randm': did you mean 'random'?"),
    (["fuzz", "--report", "ndjsn"], "no report 'ndjsn': did you mean 'ndjson'?"),
    (["fuzz", "--scheduels", "7"], "--schedules"),
    (["fuzz", "-n", "none"], "--schedules: wanted a whole number from 1 to 1000000000, saw 'none'"),
    (["fuzz", "--max-time", "soon"], "--max-time: wanted a time such as 90s, 10m or 1h30m, saw 'soon'"),
    (["fuzz", "--shard", "0/4"], "--shard: wanted I/N, from 1/N to N/N, saw '0/4'"),
    (["fuzz", "--seeds", "9:3"], "--seeds: wanted A:B with A < B"),
    (["fuzz", "--seeds", "1:3", "--seed", "3"], "--seed and --seeds: give one of them"),
    (["fuzz", "--seed", "last"], "no campaign has run here"),
    (["fuzz", "--recheck", "150%"], "--recheck: wanted a share from 0 to 1"),
    (["fuzz", "--profile", "fast"], "no profile (from --profile) 'fast'"),
    (["fuzz", "nowhere.at_all:X"], "cannot import 'nowhere.at_all'"),
    (["fuzz", "toy_scenarios:Stedy"], "no scenario class in toy_scenarios 'Stedy': did you mean 'Steady'?"),
    (["fuzz", ":"], "':' is no `package.module:Class`"),
    (["run", "order_saga", "--seed", "x"], "--seed: wanted a whole number"),
    (["replay", "AAAAAA"], "no failure 'AAAAAA': none is kept"),
    (["replay", "order_saga"], "order_saga is a scenario: say which run of it with --seed N"),
    (["replay", "../../etc/passwd"], "no id, file or scenario '../../etc/passwd'"),
    (["replay", "x" * 5000], "no id, file or scenario"),
    (["fuzz", "dst.scenario:Scenario"], "no scenario class in dst.scenario 'Scenario'"),
    (["fuzz", "dst.durable.scenario:DurableScenario"], "lacks `name`, `story`, `invariants`, `drive`"),
    (["fuzz", "order_saga", "scenarios.order_saga:OrderSaga"], "two scenarios are called 'order_saga'"),
    (["replay", "order_saga", "--seed", "1", "--lenient"], "--mode lenient is for schedules"),
    (["replay", "AAAAAA", "--mode", "resume", "--lenient"], "--lenient is --mode lenient: it does not go with"),
    (["replay", "AAAAAA", "--mode", "resume", "--mutant", "emit-ordinal"], "a schedule names its mutant itself"),
    (["replay", "dst:order_saga", "--mode", "resume", "--seed", "x"], "--seed: wanted a whole number"),
    (["replay", "dst:order_saga", "--mode", "resume", "--strategy", "randm"], "did you mean 'random'"),
    (["replay", "dst:order_saga", "--mode", "sloppy"], "'sloppy' is not one of 'strict', 'lenient', 'resume'"),
    (["replay", "missing.json"], "no id, file or scenario 'missing.json'"),
    (["replay", "\x1b[31m"], "no id, file or scenario '\\x1b[31m'"),
]


@pytest.mark.parametrize(("words", "said"), REFUSALS, ids=[" ".join(words)[:60] for words, _ in REFUSALS])
def test_what_is_unknown_is_refused_with_what_is_known(command, words: list[str], said: str) -> None:
    done = command.call(*words)
    assert (2, "") == (done.code, done.out)
    assert said in done.err
    assert "\x1b" not in done.err


def test_a_refusal_in_json_is_an_object_too(command) -> None:
    done = command.call("fuzz", "ordr_saga", "--json")
    assert done.code == 2
    assert 2 == json.loads(done.out)["exit_code"]


FOREIGN = [
    ("not json \x1b[31m", "is not JSON"),
    ("[]", "is no schedule"),
    ('{"format": 9, "scenario": "steady", "deviations": []}', "has format 9"),
    ('{"format": 1, "scenario": "os:system", "deviations": []}', "no scenario 'os:system'"),
    ('{"format": 1, "scenario": "\\u001b[31m", "deviations": []}', "no scenario '\\x1b[31m'"),
    ('{"format": 1, "scenario": "steady", "deviations": [{"at": 1, "do": "x"}]}', "deviation 1"),
    ('{"format": 1, "scenario": "order_saga", "mutant": "none", "deviations": []}', "no mutant 'none'"),
    ("\udcff", "not UTF-8"),
]


@pytest.mark.parametrize(("text", "said"), FOREIGN, ids=[said for _, said in FOREIGN])
@pytest.mark.parametrize("name", ["replay", "shrink"])
def test_a_foreign_file_is_refused(command, tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = command.call(name, str(path))
    assert (2, "") == (done.code, done.out)
    assert said in done.err
    assert "\x1b" not in done.err


def test_ids_that_are_kept_are_listed(command, failed: str) -> None:
    done = command.call("replay", "AAAAAA")
    assert done.code == 2
    assert f"known: {failed}" in done.err


# ---- a real process --------------------------------------------------------------------------------------------------


def test_a_bug_in_a_scenario_is_told_with_the_command_that_shows_it(command) -> None:
    done = command.run("run", "toy_scenarios:Bug")
    assert (3, "") == (done.code, done.out)
    assert "RuntimeError: a bug in the scenario" in done.err
    assert "Reproduce:  dst run toy_scenarios:Bug" in done.err


def test_the_version_is_told(command) -> None:
    done = command.call("--version")
    assert done.code == 0
    assert "trio" in done.out


def test_no_command_is_no_success(command) -> None:
    done = command.run()
    assert (2, "") == (done.code, done.out)
    assert "dst fuzz" in done.err


def test_a_reader_who_leaves_gets_no_traceback(command) -> None:
    process = command.start("run", "chat_session")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert "" == process.stderr.read()
    assert process.wait(60) in (0, 141)
    process.stderr.close()
