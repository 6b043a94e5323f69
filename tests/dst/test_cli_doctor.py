"""`dst doctor` finds what is not under control, and says what it has compared."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from dst import doctor

DICED, SCATTERED = "toy_scenarios:Diced", "toy_scenarios:Scattered"


def test_the_shipped_scenarios_are_deterministic_here(command) -> None:
    done = command.run("doctor", "-n", "2", "--json")
    found = json.loads(done.out)
    assert (0, "pass") == (done.code, found["verdict"])
    assert [] == found["asked"]
    assert 2 * len(found["scenario"]) == found["runs"]
    checked = [check for check in found["checks"] if check["checked"]]
    assert [{"0", "1", "2"}] == [{c["hash_seed"] for c in checked if c["path"] == sys.executable}]
    assert all(found["runs"] == check["runs"] == check["same_twice"] for check in checked)


def test_a_random_number_differs_within_one_process_and_its_place_is_told(command) -> None:
    done = command.run("doctor", DICED, "-n", "2", "--python", sys.executable)
    assert done.code == 4
    assert f"NONDETERMINISM  {DICED}: the calm run, made twice, parts at record" in done.out
    assert '"rolled/' in done.out
    assert re.search(r"chance: random\.random at .*toy_scenarios\.py:\d+ in Diced\.emit_all", done.out)


def test_the_order_of_a_set_differs_under_another_hash_seed(command) -> None:
    done = command.run("doctor", SCATTERED, "-n", "2", "--python", sys.executable)
    assert done.code == 4
    assert f"NONDETERMINISM  {SCATTERED}: the calm run, under another hash seed, parts at record" in done.out
    assert "hash seed 0: 2 of 2 the same twice" in done.out
    assert '"tagged/' in done.out
    assert "no clock, chance or thread was seen: hash order" in done.out


def test_state_that_is_left_to_the_next_run_is_what_remains(command) -> None:
    done = command.run("doctor", "toy_scenarios:Remembering", "-n", "1", "--python", sys.executable)
    assert done.code == 4
    assert "look for what one run leaves to the next" in done.out


def test_every_source_is_told_with_its_place(command) -> None:
    done = command.run("doctor", "toy_scenarios:Dated", "-n", "1", "--python", sys.executable, "--json")
    asked = json.loads(done.out)["asked"]
    assert 4 == done.code
    assert {"toy_scenarios.py"} == {Path(source["file"]).name for source in asked}
    assert {"Dated.emit_all"} == {source["function"] for source in asked}
    assert [
        ("time", "time.time"),
        ("time", "datetime.datetime.now"),
        ("chance", "uuid.uuid4"),
        ("chance", "os.urandom"),
        ("chance", "random.Random"),
        ("thread", "threading.Thread.start"),
    ] == [(source["kind"], source["called"]) for source in asked]


def test_a_clock_that_changes_no_run_is_a_doubt_and_a_seed_of_ones_own_is_none(command) -> None:
    done = command.run("doctor", "toy_scenarios:Careful", "-n", "1", "--python", sys.executable)
    assert done.code == 0
    assert "DOUBT  toy_scenarios:Careful asks for what is not under control, and no run shows it" in done.out
    assert "time: time.perf_counter at" in done.out
    assert "random" not in done.out


def test_a_python_that_cannot_be_used_is_not_called_equal(command, tmp_path: Path) -> None:
    fake = tmp_path / "python3.99"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    done = command.run("doctor", "toy_scenarios:Steady", "-n", "1", "--python", str(fake), "--json")
    found = json.loads(done.out)
    assert done.code == 0
    assert [{"python": str(fake), "why": "it does not start as a Python"}] == found["not_checked"]
    assert 3 == len(found["checks"])


def test_a_python_that_cannot_make_the_runs_is_not_called_equal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    path = doctor.python_path(["toy_scenarios"])
    found = doctor.diagnose(["toy_scenarios:Steady"], [None], [doctor.Python(str(bare), "3.99.0")], path)
    assert "No module named" in found.checks[-1].why
    assert 0 == found.checks[-1].runs


def test_pythons_that_are_found_start() -> None:
    for python in doctor.find_pythons():
        assert python == doctor.start(python.path)
