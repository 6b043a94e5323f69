"""What a check in a test suite starts from: settings, the `.dst` folder, and how the command line finds a scenario."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from dst import ambient, command_line
from dst.ambient import Ambient
from dst.config import KEYS, Settings, settings, texts, variable
from dst.errors import WrongUsage
from dst.home import Home
from dst.lookup import shipped_scenarios
from dst.parameters import bare_name, declared, suffix
from dst.scenario import Scenario

SEED_BITS = 32
_REGRESSIONS = "tests/regressions"


@attrs.frozen(kw_only=True)
class Surroundings:
    """Where a check is made: in a test under the plugin, or anywhere else."""

    settings: Settings
    directory: Path  # of the project: what paths are relative to that no file says otherwise of
    home: Home
    test: Ambient | None

    def value(self, key: str, said: object = None) -> object | None:
        """Return a setting: as a person said for this session, else as the code says, else as the project is set up.

        `said` is what the code says.  Raises `WrongUsage`.
        """
        source = self.settings.source(key)
        if source.startswith("--") or source == variable(key):
            return self.settings.get(key)
        if said is None and self.test is not None:
            said = self.test.defaults.get(key.replace("-", "_"))
        if said is None:
            return self.settings.get(key)
        try:
            return KEYS[key](said)
        except ValueError as error:
            raise WrongUsage(f"{key.replace('-', '_')}={said!r}: wanted {error}") from None

    def seed(self) -> int:
        """Return the seed of a campaign that is given none: the test's own, what is set, or a new one."""
        if self.test is not None:
            return self.test.seed
        found = self.settings.get("seed")
        if found != "last":
            return secrets.randbits(SEED_BITS) if found is None else int(str(found))
        text = self.home.last_seed()
        if not text.isdecimal():
            raise WrongUsage(f"seed 'last': the last campaign had a range of seeds, {text}")
        return int(text)

    @property
    def regressions(self) -> Path:
        """The folder of schedules that are kept for good."""
        return folder(self.settings, "regressions", _REGRESSIONS, self.directory)

    # ---- lines that reproduce ----------------------------------------------------------------------------------------

    def reference(self, scenario: type[Scenario]) -> str | None:
        """Return what the command line finds a scenario by, None if it does not."""
        path = sys.path[1:] if self.test is None else self.test.path  # the first is the folder of what was started
        return reference_of(scenario, path)

    def replay(self, target: str, scenario: type[Scenario]) -> str:
        """Return the line that replays a kept failure or a file; "" if the command line cannot find the scenario."""
        reference = self.reference(scenario)
        if reference is None:
            return ""
        elsewhere = settings({}, os.environ, Path.cwd())  # what the command will start from
        bare = bare_name(reference)
        own = bare in map(bare_name, texts(elsewhere.get("scenarios")))
        named = own or shipped_scenarios().get(bare_name(scenario.name)) is declared(scenario)
        home = folder(elsewhere, "home", ".dst", Path.cwd())
        same = home.resolve() == self.home.path.resolve()
        return command_line.replay_id(
            target, None if named else bare, None if same else os.path.relpath(self.home.path)
        )

    def again(self) -> str:
        """Return the line that runs the test again from the same seed; "" outside a test."""
        return "" if self.test is None else self.test.command


def here() -> Surroundings:
    """Return the surroundings of whoever asks.  Raises `WrongUsage`."""
    test = None if ambient.current is None else ambient.current()
    flags: Mapping[str, str] = {} if test is None else test.flags
    directory = Path.cwd() if test is None else test.directory
    found = settings(flags, os.environ, directory, prefix="--dst-")
    return Surroundings(
        settings=found, directory=directory, home=Home(folder(found, "home", ".dst", directory)), test=test
    )


def folder(found: Settings, key: str, default: str, directory: Path) -> Path:
    """Return a folder that is set: relative to the file that says so, else to `directory`."""
    path = Path(str(found.get(key) or default)).expanduser()
    source = found.source(key)
    return (Path(source.partition(" [")[0]).parent if "pyproject.toml" in source else directory) / path


def reference_of(scenario: type[Scenario], path: Sequence[str]) -> str | None:
    """Return the `package.module:Class` by which another process finds the class, None if it would not.

    `path` is where that process looks besides the current directory.
    """
    scenario, size = declared(scenario), suffix(scenario.sizes)
    module = sys.modules.get(scenario.__module__)
    file = getattr(module, "__file__", None)
    if file is None or scenario.__module__ == "__main__" or getattr(module, scenario.__name__, None) is not scenario:
        return None
    parts = scenario.__module__.split(".")
    where = Path(file).resolve()
    where = where.parent if where.stem == "__init__" else where.with_suffix("")
    if where.parts[-len(parts) :] != tuple(parts):
        return None
    root = where.parents[len(parts) - 1]
    found = root in {Path(entry).resolve() for entry in (os.curdir, *path)}
    return f"{scenario.__module__}:{scenario.__name__}{size}" if found else None
