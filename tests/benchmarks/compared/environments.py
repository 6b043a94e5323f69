"""The tools with their versions, and an environment for each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
TRIO = "trio==0.35.0"  # the same for us and for itself


@dataclass(frozen=True)
class Peer:
    """A tool: what is installed, and the program that tries it."""

    program: str
    requirement: str  # "" for this project, of which only what it depends on is installed
    python_least: tuple[int, int] = (3, 11)

    @property
    def is_this_project(self) -> bool:
        """Does it run from this checkout?"""
        return not self.requirement

    def requirements(self) -> list[str]:
        """Return what is to be installed."""
        if not self.is_this_project:
            return [self.requirement]
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return [*project["dependencies"], TRIO]


PEERS: Mapping[str, Peer] = {
    "dst": Peer("by_dst.py", ""),
    "hypothesis": Peer("by_hypothesis.py", "hypothesis==6.170.17"),
    "frontrun": Peer("by_frontrun.py", "frontrun==0.7.0"),
    "detangle": Peer("by_detangle.py", "detangle==0.1.0"),
    "simloom": Peer("by_simloom.py", "simloom==0.5.0", (3, 12)),
    "simloop": Peer("by_simloop.py", "simloop==0.2.2", (3, 12)),
    "trio": Peer("by_trio.py", TRIO),
}


class NotInstalled(Exception):
    """A tool cannot be run here; says why."""


Version = tuple[int, int]


def interpreters(named: Sequence[str]) -> dict[Version, str]:
    """Return the interpreters to be had: this one first, those that are named, those on the path."""
    found: dict[Version, str] = {sys.version_info[:2]: sys.executable}
    for file in (*named, *filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 20)))):
        version = _version(file)
        if version is None and file in named:
            raise SystemExit(f"--python {file}: it does not run, or is no Python")
        if version is not None:
            found.setdefault(version, file)
    return found


def _version(file: str) -> Version | None:
    """Return the version of an interpreter; None if it is none: the path may hold stand-ins that start nothing."""
    try:
        asked = [file, "-c", "import json, sys; print(json.dumps(sys.version_info[:2]))"]
        done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30)
        major, minor = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return major, minor


def prepare(name: str, folder: Path, known: Mapping[Version, str], tell: Callable[[str], None]) -> Path:
    """Return the interpreter of a tool's environment, which is made if it is not there.  Raises `NotInstalled`."""
    peer, place = PEERS[name], folder / name
    wanted = peer.requirements()
    version = next((each for each in known if each >= peer.python_least), None)
    if version is None:
        least = ".".join(map(str, peer.python_least))
        raise NotInstalled(f"needs Python {least}: there is none on the path (--python FILE names one)")
    said, made = place / "installed.json", json.dumps([list(version), wanted])
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if said.exists() and said.read_text(encoding="utf-8") == made:
        return python
    tell(f"{name}: installing {' '.join(wanted)} under Python {'.'.join(map(str, version))}")
    for command in (
        [known[version], "-m", "venv", "--clear", str(place)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = ((done.stderr or done.stdout).strip().splitlines() or ["no word"])[-1]
            raise NotInstalled(f"cannot be installed: {last}")
    said.write_text(made, encoding="utf-8")
    return python
