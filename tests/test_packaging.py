"""The wheel holds what it should, and works where nothing but its dependencies is installed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("dst", "kernel", "reports", "scenarios")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = directory.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel: Path) -> frozenset[str]:
    """The names of the files in the wheel."""
    return frozenset(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_four_packages_and_nothing_else(names: frozenset[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {*PACKAGES, *(top for top in tops if top.endswith(".dist-info"))} == tops


def test_the_wheel_holds_every_module_of_the_checkout(names: frozenset[str]) -> None:
    modules = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}


def test_the_wheel_holds_type_markers_and_data(names: frozenset[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "kernel/vectors/fold_vectors.json" in names


def test_the_wheel_holds_no_tests_and_no_leavings(names: frozenset[str]) -> None:
    tests = re.compile(r"(^|/)(tests?/|test_|conftest\.py)", re.IGNORECASE)
    assert [] == [name for name in names if tests.search(name) or name.endswith(".pyc") or "/." in name]


def test_the_unpacked_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    script = """if True:
        import pathlib, dst.run, kernel, reports
        from dst.lookup import shipped_mutants, shipped_scenarios
        from kernel.vectors import load_fold_vectors
        assert shipped_mutants() and shipped_scenarios() and load_fold_vectors()
        print({pathlib.Path(package.__file__).parent.parent.name for package in (dst, kernel, reports)})
    """
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'site'}"


def test_the_command_and_the_plugin_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"dst": "dst.cli:main"}
    assert project["entry-points"] == {"pytest11": {"dst": "dst.pytest_plugin"}}


OPTIONAL = {"hypothesis", "opentelemetry", "psycopg", "pytest"}
"""What modules import that only those use who have these installed."""


def test_every_library_that_the_packages_import_is_a_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^A-Za-z0-9_.-]", requirement)[0] for requirement in project["dependencies"]}
    imported = {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in _tops(node)
    }
    assert imported - sys.stdlib_module_names - set(PACKAGES) - OPTIONAL <= declared
    assert declared <= imported


def _tops(node: ast.AST) -> set[str]:
    """Return the packages that a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {node.module.partition(".")[0]} if isinstance(node, ast.ImportFrom) and node.module else set()
