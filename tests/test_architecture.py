"""The dependency rules hold, and each contract that checks them can fail."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("kernel", "dst", "scenarios", "reports")

VIOLATIONS = {
    "kernel-alone": ("kernel/branches.py", "import dst.trace"),
    "kernel-pure-core": ("kernel/fold.py", "import kernel.adapters.memory"),
    "kernel-takes-ports": ("kernel/runtime.py", "from kernel.adapters.sqlite import open_sqlite"),
    "untraced": ("kernel/journal.py", "from opentelemetry import trace"),
    "kernel-seen-by-durable": ("dst/node.py", "from kernel import Context"),
    "durable-seen-by-scenarios": ("dst/simulation.py", "from dst.durable import faults"),
    "scenarios-by-name": ("dst/lookup.py", "from scenarios.catalogue import SCENARIOS"),
    "dst-layers": ("dst/simulation.py", "import dst.judging"),
    "records-alone": ("dst/records.py", "from dst.schedule import Deviation"),
    "reports-read-records": ("reports/summary.py", "from dst.judging import Report"),
    "scenarios-use-public-names": ("scenarios/order_saga.py", "from kernel.runtime import Runtime"),
}
"""For each contract an import that breaks it."""


def lint(tree: Path) -> tuple[int, str]:
    """Return the exit code of lint-imports in a tree, and what it said, on one line."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    environ = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def contracts() -> dict[str, str]:
    """Return the name of each contract, by id."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["id"]: contract["name"] for contract in config["tool"]["importlinter"]["contracts"]}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages and of the contracts."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_contract_is_kept() -> None:
    code, said = lint(ROOT)
    assert code == 0, said
    assert f"{len(contracts())} kept, 0 broken" in said


def test_every_contract_has_a_planted_violation() -> None:
    assert set(contracts()) == set(VIOLATIONS)


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_contract_fails_on_a_planted_import(contract: str, tree: Path) -> None:
    path, violation = VIOLATIONS[contract]
    with (tree / path).open("a", encoding="utf-8") as module:
        module.write(f"\n\nif True:\n    {violation}\n")

    code, said = lint(tree)

    assert code == 1, said
    assert f"{contracts()[contract]} BROKEN" in said


def _imports(path: Path) -> set[str]:
    """Return the names of all modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_only_the_scheduler_touches_the_internals_of_trio() -> None:
    touching = {
        str(path.parent.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if any(name.startswith("trio._") for name in _imports(path))
    }
    assert touching == {"dst/scheduler"}


def test_only_mutants_use_private_names_of_other_packages() -> None:
    for path in (ROOT / "scenarios").rglob("*.py"):
        if "mutants" not in path.parts:
            private = {name for name in _imports(path) if any(part.startswith("_") for part in name.split("."))}
            assert private <= {"__future__", "__future__.annotations"}, path


def test_reports_are_rendered_where_nothing_but_records_is_installed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "reports", tmp_path / "reports")
    (tmp_path / "dst").mkdir()
    for name in ("__init__.py", "records.py"):
        shutil.copy(ROOT / "dst" / name, tmp_path / "dst")
    modules = sorted(f"reports.{path.stem}" for path in (ROOT / "reports").glob("*.py") if path.stem != "__init__")

    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {', '.join(modules)}"
    script += "; print(sorted(m for m in sys.modules if m.partition('.')[0] in ('kernel', 'dst', 'scenarios')))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "['dst', 'dst.records']"
