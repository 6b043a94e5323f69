"""`dst explore`: what it says, what it keeps, and how it ends."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from dst.records import BadRecords, parse_exploration, parse_explorations, to_text

WORKER, OFTEN, TIRED = "explored_toys:Worker", "explored_toys:OftenPerformed", "explored_toys:Tired"

PROMISED = {
    "scenario", "strategy", "closed", "runs", "states", "transitions", "pairs", "schedules_covered", "bounded_by",
    "judged_raw_only", "seconds", "verdict", "failures", "spurious", "exit_code",
}  # fmt: skip


def test_json_is_one_object_with_all_that_is_promised(command) -> None:
    done = command.run("explore", "order_saga", "--json")
    assert (0, "") == (done.code, done.err)
    fields = json.loads(done.out)
    assert set(fields) >= PROMISED
    assert ("order_saga", "explore", True, "pass", 0) == (
        fields["scenario"], fields["strategy"], fields["closed"], fields["verdict"], fields["exit_code"],
    )  # fmt: skip
    assert [str(crashes) for crashes in range(11)] == list(fields["schedules_covered"])
    assert fields["schedules_covered"]["10"] > 10**9
    assert "calm order: no interleavings" in fields["bounded_by"]
    assert {"log-sound", "crash-transparent"} <= set(fields["judged_raw_only"])


def test_a_closed_space_is_told_in_words_and_numbers(command) -> None:
    done = command.call("explore", WORKER)
    assert 0 == done.code
    for part in (
        "closed (calm order): every crash schedule with any number of crashes, along the calm way of the environment",
        "states",
        "transitions",
        "schedules covered, of up to so many crashes:",
        "PASS",
        f"Repeat:  dst explore {WORKER}\n",
    ):
        assert part in done.out
    assert "" == done.err, "progress is for terminals"


def test_quiet_is_the_verdict_and_verbose_is_more(command) -> None:
    quiet, plain, verbose = (command.call("explore", WORKER, *flags).out for flags in (("-q",), (), ("-v",)))
    assert 2 == len(quiet.splitlines())
    assert "written-once: judged" in verbose
    assert "written-once: judged" not in plain


def test_a_failure_ends_with_the_line_that_reproduces_it(command) -> None:
    done = command.call("explore", OFTEN)
    id = command.kept()[0]
    assert 1 == done.code
    assert done.out.endswith(f"Reproduce:  dst replay {id} --scenario {OFTEN}\n")
    assert "FAIL performed-at-most" in done.out
    assert 1 == command.call("replay", id, "--scenario", OFTEN).code


def test_a_failure_is_kept_and_told_as_fuzz_does(command) -> None:
    explored = json.loads(command.call("explore", "--mutant", "emit-ordinal", "--others", "1", "--json").out)
    kept = json.loads((command.home / "failures" / explored["failures"][0]["id"] / "failure.json").read_text())
    assert kept == explored["failures"][0]
    fuzzed = json.loads(command.call("fuzz", "--mutant", "emit-ordinal", "--seed", "1", "--json").out)["failures"][0]
    assert set(fuzzed) == set(kept)
    assert ("emit-ordinal", None, True, True) == (kept["mutant"], kept["seed"], kept["minimal"], kept["replays"])
    assert ("fail", 1, False) == (explored["verdict"], explored["exit_code"], explored["closed"])


def test_a_mutant_brings_its_scenario(command) -> None:
    fields = json.loads(command.call("explore", "--mutant", "emit-always-append", "--json").out)
    assert ("chat_session", "emit-always-append", 1) == (fields["scenario"], fields["mutant"], fields["exit_code"])
    assert "dst replay " in fields["failures"][0]["replay"]


def test_without_shrinking_a_schedule_stays_as_it_was_found(command) -> None:
    failure = json.loads(command.call("explore", OFTEN, "--no-shrink", "--json").out)["failures"][0]
    assert (False, False) == (failure["shrunk"], failure["minimal"])
    assert failure["found_with"] == len(failure["deviations"])


@pytest.mark.parametrize(
    ("flags", "bound"), [(("--max-states", "3"), "3 states"), (("--max-time", "0.001s"), "0.001 s")]
)
def test_a_bound_that_comes_first_is_no_pass(command, flags: tuple[str, ...], bound: str) -> None:
    fields = json.loads(command.call("explore", "order_saga", *flags, "--json").out)
    assert (6, "unknown", False) == (fields["exit_code"], fields["verdict"], fields["closed"])
    assert bound in fields["bounded_by"]
    done = command.call("explore", "order_saga", *flags)
    assert 6 == done.code
    assert f"stopped: {bound}" in done.out
    assert "not closed" in done.out


def test_a_wrong_digest_is_unknown_and_says_what_to_do(command) -> None:
    done = command.call("explore", TIRED)
    assert 6 == done.code
    assert "the digest is wrong" in done.out
    assert "`behaviour`" in done.out
    fields = json.loads(command.call("explore", TIRED, "--json").out)
    assert ("unknown", False) == (fields["verdict"], fields["closed"])
    assert fields["spurious"] > 0
    assert [] == fields["failures"]


def test_a_cap_that_matters_is_told(command) -> None:
    assert 6 == command.call("explore", "explored_toys:Counting").code
    done = command.call("explore", "explored_toys:Counting", "--cap", "2")
    assert 0 == done.code
    assert "--cap 2" in done.out


def test_nothing_explored_is_vacuous(command) -> None:
    done = command.call("explore", "explored_toys:Crashless")
    assert 5 == done.code
    assert "VACUOUS" in done.out


def test_runs_that_say_nothing_are_inconclusive(command) -> None:
    done = command.call("explore", "explored_toys:Endless", "--max-steps", "300")
    assert 6 == done.code
    assert "inconclusive: " in done.out


def test_nondeterminism_is_told(command) -> None:
    done = command.call("explore", "explored_toys:Moody")
    assert 4 == done.code
    assert "NONDETERMINISTIC" in done.out


def test_an_interruption_tells_what_is_known_so_far(command) -> None:
    done = command.run("explore", "explored_toys:Interrupted", "--json")
    fields = json.loads(done.out)
    assert (130, "") == (done.code, done.err)
    assert (130, True, False, "unknown") == (
        fields["exit_code"], fields["interrupted"], fields["closed"], fields["verdict"],
    )  # fmt: skip
    assert fields["runs"] > 0
    assert fields["schedules_covered"]["1"] > 0


def test_an_interrupted_search_says_what_it_did_not_come_to(command) -> None:
    done = command.run("explore", "explored_toys:InterruptedSearch", "--json")
    fields = json.loads(done.out)
    assert (130, "", True) == (done.code, done.err, fields["interrupted"])
    assert "paths of the graph were not searched to the end for: performed-at-most" in fields["stopped"]


def test_a_scenario_without_behaviour_is_a_tree_to_its_bounds(command) -> None:
    fields = json.loads(command.call("explore", "explored_toys:Silent", "--max-states", "30", "--json").out)
    assert (6, ["30 states"]) == (fields["exit_code"], fields["stopped"])
    assert "no two moments are taken for alike: it does not say in `behaviour` which are" in fields["bounded_by"]
    assert 30 == fields["states"] - fields["unvisited"] < fields["schedules_covered"]["10"] < 60
    done = command.call("explore", "explored_toys:SilentOften", "--json")
    assert ["performed-at-most"] == [found["invariant"] for found in json.loads(done.out)["failures"]]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_several_scenarios_have_a_line_each_and_the_gravest_exit_code(command, workers: str) -> None:
    done = command.run("explore", WORKER, OFTEN, "explored_toys:Crashless", "-w", workers)
    lines = done.out.splitlines()
    assert (1, "") == (done.code, done.err)
    assert lines[0].startswith("worker: closed; ")
    assert lines[1].startswith("often_performed: FAIL performed-at-most; ")
    assert lines[2].startswith("crashless: VACUOUS, nothing crashes; ")
    assert "FAIL  1 of 3 closed" in done.out
    assert f"Repeat:  dst explore {WORKER} {OFTEN} explored_toys:Crashless" in done.out
    assert done.out.endswith(f"Reproduce:  dst replay {command.kept()[0]} --scenario {OFTEN}\n")


def test_several_scenarios_are_one_record_which_is_kept(command) -> None:
    done = command.call("explore", WORKER, OFTEN, "--json")
    path = next((command.home / "campaigns").glob("*explore*/explorations.json"))
    assert json.loads(done.out) == json.loads(path.read_text())
    record = parse_explorations(path.read_text(), "explorations")
    assert (1, "fail", ["worker", "often_performed"]) == (
        record.exit_code, record.verdict, [one.scenario for one in record.explorations],
    )  # fmt: skip
    alone = json.loads(command.call("explore", WORKER, "--json").out)
    assert alone.keys() == json.loads(done.out)["explorations"][0].keys()


def test_several_scenarios_share_the_time_and_are_written_down(command) -> None:
    words = ("explored_toys:Boundless", WORKER, "--max-time", "2s", "--write", "here")
    done = command.call("explore", *words)
    record = parse_explorations((command.folder / "here" / "exploration.json").read_text(), "exploration.json")
    first, second = record.explorations
    assert (6, 6) == (done.code, record.exit_code)
    assert ("1 s" in first.stopped, second.closed) == (True, True)
    page = (command.folder / "here" / "exploration.md").read_text()
    assert "| `worker` | closed |" in page
    assert "| `boundless` | bounded by 1 s; paths of the graph were not searched to the end for:" in page


def test_several_that_are_interrupted_say_what_is_known_of_each(command) -> None:
    done = command.run("explore", WORKER, "explored_toys:InterruptedSearch", OFTEN, "--json")
    fields = json.loads(done.out)
    assert (130, "", ["often_performed"]) == (done.code, done.err, fields["missing"])
    assert [(True, False), (False, True)] == [(o["closed"], o["interrupted"]) for o in fields["explorations"]]


def test_processes_that_are_interrupted_say_what_they_know(command) -> None:
    started = command.start("explore", "explored_toys:Boundless", "explored_toys:Boundless2", "-w", "2", "--json")
    time.sleep(6)
    started.send_signal(signal.SIGINT)
    out, _ = started.communicate(timeout=30)
    fields = json.loads(out)
    assert (130, True, []) == (started.returncode, fields["interrupted"], fields["missing"])
    assert [True, True] == [one["runs"] > 0 for one in fields["explorations"]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["order_sage"], "did you mean 'order_saga'"),
        (["--mutant", "emit-ordnal"], "did you mean 'emit-ordinal'"),
        (["order_saga", "--max-time", "soon"], "a time such as"),
        (["order_saga", "--cap", "0"], "--cap"),
        (["order_saga", "--others", "-1"], "--others"),
    ],
)
def test_wrong_usage_is_told(command, words: list[str], told: str) -> None:
    done = command.call("explore", *words)
    assert 2 == done.code
    assert told in done.err


def test_an_exploration_is_kept_and_comes_back_as_it_was(command) -> None:
    done = command.call("explore", OFTEN, "--json")
    path = next((command.home / "campaigns").glob("*explore*/exploration.json"))
    record = parse_exploration(path.read_text(), "exploration")
    assert json.loads(done.out) == json.loads(path.read_text())
    assert to_text(record) == path.read_text()
    with pytest.raises(BadRecords):
        parse_exploration(path.read_text().replace('"closed"', '"shut"'), "exploration")


def test_what_cannot_be_kept_is_still_printed(command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = command.call("explore", OFTEN, "--json", "--home", "file")
    fields = json.loads(done.out)
    assert (2, 2, "fail") == (done.code, fields["exit_code"], fields["verdict"])
    assert f"dst explore {OFTEN}" == fields["failures"][0]["replay"], "what is not kept has no id to be replayed by"
    assert "cannot write file" in done.err
