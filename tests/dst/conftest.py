"""The command line as a newcomer meets it: an empty folder, a clean environment, a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from dst.cli import cli

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TOYS = "toy_scenarios"


def clean_environ() -> dict[str, str]:
    """Return the environment without what steers the command, and with the toys on the path."""
    steering = ("DST_", "NO_COLOR", "CI", "PYTHONPATH")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return {**environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(HERE))), "COLUMNS": "100"}


@attrs.frozen
class CommandLine:
    """The command, in a folder of its own."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    started: list[subprocess.Popen[str]] = attrs.field(factory=list)

    @property
    def home(self) -> Path:
        """Where it keeps things."""
        return self.folder / ".dst"

    def start(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start it as a process in a group of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "dst", *words],
            cwd=self.folder,
            env={**clean_environ(), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def kill(self) -> None:
        """Leave nothing behind of what was started, workers of a command that is gone among it."""
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=30)

    def run(self, *words: str, **environ: str) -> Done:
        """Run it as a process."""
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err)

    def call(self, *words: str, **environ: str) -> Done:
        """Run it in this process, which is faster."""
        result = CliRunner().invoke(cli, list(words), env=environ, catch_exceptions=False)
        return Done(result.exit_code, result.stdout, result.stderr)

    def kept(self) -> Sequence[str]:
        """Return the ids of the failures that are kept."""
        failures = self.home / "failures"
        return sorted(path.name for path in failures.iterdir()) if failures.is_dir() else []


@attrs.frozen
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as Python has it, here and in processes that are started: a test run in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctrl_c: None) -> Iterator[CommandLine]:
    """The command line in an empty folder."""
    for name in [name for name in os.environ if name.startswith(("DST_", "NO_COLOR", "CI"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(HERE)
    here = CommandLine(tmp_path, monkeypatch)
    try:
        yield here
    finally:
        here.kill()
