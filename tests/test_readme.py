"""What README.md shows is what happens: its examples are taken from it and run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dst.config import KEYS, variable
from dst.durable import faults
from dst.lookup import all_invariants, shipped_scenarios

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    """Return the file that the README shows under this name."""
    found = re.search(rf"<!-- file {re.escape(name)} -->\n```python\n(.*?)```\n", README, re.DOTALL)
    assert found, f"README.md shows no {name}"
    return found[1]


def table(heading: str) -> list[tuple[str, str]]:
    """Return the rows of the README's table with this heading."""
    _, _, below = README.partition(f"| {heading} |")
    rows = [line.strip("| ").split(" | ") for line in below.partition("\n\n")[0].splitlines()[2:]]
    return [(first.strip("`"), second) for first, second in rows]


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python on `words` in a directory, with the checkout's packages."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in [name for name in environ if name.startswith("DST_")]:
        del environ[name]
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)


def untimed(text: str) -> str:
    """Return what a campaign printed without how fast it was."""
    return re.sub(r" in [\d.]+ s \([\d.]+/s\)", "", text)


# ---- the commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["campaign", "test"])
def test_each_set_up_command_is_one_line_between_its_marks(name: str) -> None:
    found = re.search(rf"<!-- {name} begin -->\n```sh\n([^\n]+)\n```\n<!-- {name} end -->", README)
    assert found
    assert found[1].startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_a_mutant_fails_is_replayed_and_explained_as_shown(tmp_path: Path) -> None:
    shown = re.search(r"^\$ dst (fuzz --seed \d+ --mutant \S+ --quiet)\n(.*?)^\$ ", README, re.MULTILINE | re.DOTALL)
    assert shown

    failed = run(tmp_path, "-m", "dst", *shown[1].split())

    assert failed.returncode == 1, failed.stderr
    assert untimed(failed.stdout) == untimed(shown[2])
    again = re.search(r"^Reproduce:  dst (replay \w{6})$", failed.stdout, re.MULTILINE)
    assert again
    assert run(tmp_path, "-m", "dst", *again[1].split()).returncode == 1

    told = re.search(r"^\$ dst (explain \w{6})\n…\n(.*?)…$", README, re.MULTILINE | re.DOTALL)
    assert told
    explained = run(tmp_path, "-m", "dst", *told[1].split())
    assert explained.returncode == 0, explained.stderr
    assert told[2] in explained.stdout


# ---- the examples ----------------------------------------------------------------------------------------------------

FUZZ_PARCEL = ("-m", "dst", "fuzz", "parcel:Parcel", "--seed", "1", "-n", "500")


def test_the_scenario_shown_passes(tmp_path: Path) -> None:
    (tmp_path / "parcel.py").write_text(example("parcel.py"), encoding="utf-8")

    done = run(tmp_path, *FUZZ_PARCEL)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scenario_shown_fails_once_it_pays_before_the_gate(tmp_path: Path) -> None:
    pay = "    await ctx.run(pay, label)\n"
    without = example("parcel.py").replace(pay, "")
    (tmp_path / "parcel.py").write_text(without.replace("    try:\n", pay + "    try:\n", 1), encoding="utf-8")

    done = run(tmp_path, *FUZZ_PARCEL, "--json")

    assert done.returncode == 1, done.stdout + done.stderr
    assert ["paid-or-returned"] == [failure["invariant"] for failure in json.loads(done.stdout)["failures"]]


def test_the_tests_shown_pass(tmp_path: Path) -> None:
    for name in ("parcel.py", "test_parcel.py"):
        (tmp_path / name).write_text(example(name), encoding="utf-8")

    done = run(tmp_path, "-m", "pytest", *plugin())

    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def plugin() -> tuple[str, ...]:
    """Return what loads the plugin where the package is not installed."""
    installed = any(found.name == "dst" for found in importlib.metadata.entry_points(group="pytest11"))
    return () if installed else ("-p", "dst.pytest_plugin")


def test_the_file_shown_for_continuous_integration_uses_what_is_there() -> None:
    found = re.search(r"<!-- file ci.yml -->\n```yaml\n(.*?)```\n", README, re.DOTALL)
    assert found
    assert set(re.findall(r"\b(DST_[A-Z_]+):", found[1])) <= {variable(key) for key in KEYS}
    plugin_text = (ROOT / "dst" / "pytest_plugin.py").read_text(encoding="utf-8")
    assert all(f'"{name}"' in plugin_text for name in re.findall(r"dst-[a-z-]+", found[1]))


CHARGING = "charging 4200, idempotency key order-17/charge\n"


def order(directory: Path, *commands: str) -> list[tuple[int, str]]:
    """Run the README's order.py with each of these commands; return exit codes and outputs."""
    done: Sequence[subprocess.CompletedProcess[str]] = [run(directory, "order.py", command) for command in commands]
    return [(process.returncode, process.stdout) for process in done]


def test_the_flow_shown_goes_on_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "order.py").write_text(example("order.py"), encoding="utf-8")

    assert [(0, CHARGING), (0, "r-1 approved by ada\n")] == order(tmp_path, "start", "approve")


def test_the_flow_shown_charges_again_under_the_same_key_if_it_dies_while_charging(tmp_path: Path) -> None:
    dies = example("order.py").replace(
        '    return {"receipt"', '    sys.stdout.flush(), os._exit(9)\n    return {"receipt"'
    )
    (tmp_path / "order.py").write_text("import os\n" + dies, encoding="utf-8")
    assert [(9, CHARGING)] == order(tmp_path, "start")

    (tmp_path / "order.py").write_text(example("order.py"), encoding="utf-8")
    assert [(0, CHARGING + "r-1 approved by ada\n")] == order(tmp_path, "approve")


def test_the_log_shown_is_what_the_flow_shown_logs(tmp_path: Path) -> None:
    (tmp_path / "logged.py").write_text(example("logged.py"), encoding="utf-8")

    done = run(tmp_path, "logged.py")

    _, _, shown = README.partition(example("logged.py"))
    assert shown.split("```")[2].strip() == done.stderr.strip()
    assert done.returncode == 0


def test_the_transfer_shown_takes_once_if_it_dies_before_it_commits(tmp_path: Path) -> None:
    dies = example("transfer.py").replace("    return found.rows", "    os._exit(9)\n    return found.rows")
    (tmp_path / "transfer.py").write_text("import os\n" + dies, encoding="utf-8")
    assert 9 == run(tmp_path, "transfer.py").returncode

    (tmp_path / "transfer.py").write_text(example("transfer.py"), encoding="utf-8")
    for done in (run(tmp_path, "transfer.py"), run(tmp_path, "transfer.py")):
        assert (0, "90\n") == (done.returncode, done.stdout), done.stderr


# ---- the tables ------------------------------------------------------------------------------------------------------


def test_the_table_of_invariants_is_that_of_the_shipped_scenarios() -> None:
    shipped = {name: says for scenario in shipped_scenarios().values() for name, says in all_invariants(scenario)}
    assert shipped == dict(table("name | what it says"))


def test_the_table_of_faults_is_that_of_the_durable_world() -> None:
    assert [fault.name for fault in faults.KINDS] == [name for name, _ in table("kind | what happens")]


def test_the_table_of_exit_codes_is_the_command_line_s_own() -> None:
    said = run(ROOT, "-m", "dst", "--help").stdout
    rows = table("exit code | meaning")
    assert ["0", "1", "2", "3", "4", "5", "6", "130"] == [code for code, _ in rows]
    assert all(
        re.search(rf"\b{code}  {re.escape(meaning.split(':')[0].split(';')[0])}", said) for code, meaning in rows
    )


def test_every_command_named_is_there() -> None:
    named = set(re.findall(r"`dst ([a-z]+)", README))
    said = run(ROOT, "-m", "dst", "--help").stdout
    assert named <= set(re.findall(r"^  ([a-z]+)  ", said, re.MULTILINE))
