"""A user's project, with a bug in it, meets the installed package and nothing else of this checkout.

The bug is found three ways: by the command, by pytest with the plugin, by a Hypothesis property.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parent.parent
PROJECT = ROOT / "tests" / "user_project"

WAYS = {
    "command": ("dst", "fuzz", "--seed", "1", "-n", "300"),
    "plugin": ("python", "-m", "pytest", "-k", "campaign", "--dst-seed", "1"),
    "property": ("python", "-m", "pytest", "-k", "property", "--hypothesis-seed", "1"),
}


@attrs.frozen
class Installed:
    """The project's folder, and a virtual environment with our wheel and the project's."""

    folder: Path
    environment: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in the project's folder."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DST_", "PYTEST", "PYTHON", "CI"))}
        environ = {**kept, "PATH": f"{self.environment / 'bin'}{os.pathsep}{kept['PATH']}", "COLUMNS": "200"}
        command = [str(self.environment / "bin" / words[0]), *words[1:]]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)

    def install(self, source: Path, wheels: Path) -> None:
        """Build a wheel and install it; nothing is fetched."""
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(wheels)]
        subprocess.run(build, cwd=source, capture_output=True, check=True)
        (wheel,) = wheels.glob("*.whl")
        python = str(self.environment / "bin" / "python")
        options = ("--no-deps", "--no-index", "--force-reinstall", "--disable-pip-version-check")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *options, str(wheel)]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with our wheel; third-party libraries are those of this Python."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    Installed(folder, folder).install(ROOT, tmp_path_factory.mktemp("ours"))
    return folder


def project(environment: Path, folder: Path, *, mended: bool) -> Installed:
    """Return a copy of the project, installed, with its bug or without."""
    shutil.copytree(PROJECT, folder / "project", ignore=shutil.ignore_patterns(".dst", "__pycache__", ".*"))
    flow = folder / "project" / "src" / "box_office" / "booking.py"
    held = "            seat = await ctx.run(hold_seat, order)\n"
    promised = "            s.compensate(release_seat, order)\n"
    text = flow.read_text(encoding="utf-8")
    assert held + promised in text
    flow.write_text(text.replace(held + promised, promised + held) if mended else text, encoding="utf-8")
    installed = Installed(folder / "project", environment)
    installed.install(folder / "project", folder)
    return installed


@pytest.fixture(scope="module")
def broken(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The project as it is."""
    return project(environment, tmp_path_factory.mktemp("broken"), mended=False)


@pytest.mark.slow
def test_only_installed_packages_are_used(broken: Installed) -> None:
    done = broken.run("python", "-c", "import dst, kernel, box_office; print(dst, kernel, box_office)")
    assert 3 == done.stdout.count(str(broken.environment)), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_bug_is_found_shrunk_and_reproduced(broken: Installed, way: str) -> None:
    found = broken.run(*WAYS[way])

    assert 1 == found.returncode, found.stdout + found.stderr
    assert "FAIL no-seat-is-lost" in found.stdout
    assert "broken: a seat that was held is sold or released in the end" in found.stdout
    assert "1. do hold-seat of order-1, but lose the answer" in found.stdout
    lines = re.findall(r"Reproduce:  (dst replay \w{6})$", found.stdout, re.MULTILINE)
    assert 1 == len(lines)
    again = broken.run(*lines[0].split())
    assert 1 == again.returncode, again.stdout + again.stderr
    assert "FAIL no-seat-is-lost" in again.stdout


@pytest.mark.slow
def test_what_a_property_prints_can_be_replayed_as_it_is(broken: Installed) -> None:
    printed = re.search(r"schedule=token\('([^']+)'\)", broken.run(*WAYS["property"]).stdout)
    assert printed
    assert 1 == broken.run("dst", "replay", printed[1]).returncode


@pytest.mark.slow
def test_the_mended_project_passes_all_of_its_tests_and_a_campaign(environment: Path, tmp_path: Path) -> None:
    mended = project(environment, tmp_path, mended=True)

    for words in (WAYS["command"], ("python", "-m", "pytest")):
        done = mended.run(*words)
        assert 0 == done.returncode, done.stdout + done.stderr
