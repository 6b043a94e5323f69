"""`dst/CONTRACT.md` is true: its names are there, and its examples do what it says."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dst.conftest import ROOT, CommandLine, clean_environ

CONTRACT = (ROOT / "dst" / "CONTRACT.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    """Return the file that the contract shows under this name."""
    found = re.search(rf"<!-- file {re.escape(name)} -->\n```python\n(.*?)```\n", CONTRACT, re.DOTALL)
    assert found, name
    return found[1]


def rows() -> list[tuple[str, list[str]]]:
    """Return (where, names) of each row of the table of public names."""
    _, _, below = CONTRACT.partition("| where | names |\n|---|---|\n")
    cells = [line.strip("| ").split(" | ", 1) for line in below.partition("\n\n")[0].splitlines()]
    return [(where.strip("`"), re.findall(r"`(\w+)`", names)) for where, names in cells]


@pytest.mark.parametrize(("where", "names"), rows(), ids=[where for where, _ in rows()])
def test_the_names_of_a_row_are_there(where: str, names: list[str]) -> None:
    found: object = pkgutil.resolve_name(where)
    source = inspect.getsource(found)  # type: ignore[arg-type]
    missing = [name for name in names if not hasattr(found, name)]
    assert [] == [name for name in missing if not re.search(rf"^ +(self\.)?{name}(: | = )", source, re.MULTILINE)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("counter.py", ("fuzz", "counter:Counter", "--seed", "1", "-n", "200")),
        ("counter.py", ("explore", "counter:Counter")),
        ("shift.py", ("fuzz", "shift:Shift@jobs=20", "--seed", "1", "-n", "200")),
        ("shift.py", ("explore", "shift:Shift@jobs=2")),
        ("declined.py", ("fuzz", "declined:Order", "--seed", "1", "-n", "200")),
        ("declined.py", ("explore", "declined:Order", "--others", "1")),
        ("declined.py", ("run", "declined:Order")),
    ],
)
def test_a_scenario_shown_holds(name: str, words: tuple[str, ...], command: CommandLine) -> None:
    (command.folder / name).write_text(example(name), encoding="utf-8")
    done = command.run(*words)
    assert 0 == done.code, done.out + done.err


def test_the_counter_shown_fails_when_it_reads_its_cell_too_early(command: CommandLine) -> None:
    once = "        while self.cell < 3:\n            wanted = self.cell + 1\n"
    early = "        wanted = 0\n        while self.cell < 3:\n            wanted += 1\n"
    assert once in example("counter.py")
    (command.folder / "counter.py").write_text(example("counter.py").replace(once, early), encoding="utf-8")
    done = command.run("explore", "counter:Counter")
    assert 1 == done.code
    assert "FAIL counts-up" in done.out


def test_the_store_kit_shown_passes(tmp_path: Path) -> None:
    (tmp_path / "store_kit.py").write_text(example("store_kit.py"), encoding="utf-8")
    command = [sys.executable, "store_kit.py"]
    done = subprocess.run(command, cwd=tmp_path, env=clean_environ(), capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    assert re.match(r"[3-9]\d checks passed", done.stdout)
