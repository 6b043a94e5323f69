"""The pytest plugin: fixture `dst`, marker `@pytest.mark.dst`, options `--dst-seed`, ...

A session has one seed, drawn when it begins and shown in its header; each test's campaigns derive theirs from it and
from the test's name, so that workers, order and `-k` make no difference.  Simulation itself is imported by the first
test that uses it: a suite without scenarios pays for this module alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from dst import ambient
from dst.ambient import Ambient

if TYPE_CHECKING:
    from dst.records import CampaignRecord, ExplorationRecord
    from dst.scenario import Scenario
    from dst.schedule import Schedule
    from dst.testing import Run

_SEED_BYTES = 4
_LAST = "last-test-seed"
_OPTIONS = {
    "seed": ("N|last", "seed of the session; `last`: that of the last one that ran a scenario; default: a new one"),
    "schedules": ("N", "runs of each campaign, instead of what tests or the project say"),
    "max-time": ("TIME", "time for each campaign, such as 90s or 10m; without --dst-schedules: as many runs as fit"),
    "strategy": ("NAME", "how campaigns search; `explore`: every crash schedule"),
    "profile": ("NAME", "settings of [tool.dst.profiles.NAME] in pyproject.toml"),
}
_MARKER = (
    "dst(*scenarios, scenario=..., schedules=..., strategy=..., max_time=..., faults=..., ...): check these scenarios "
    "before the test's body runs; settings hold for `dst.testing.check` in the body too.  A class and nothing else has "
    "to be `scenario=...`: pytest would take it for what is decorated"
)
_PATH = tuple(sys.path)  # before pytest puts tests on it: where the command `dst` looks
_SESSION = pytest.StashKey["_Session"]()


class _Session:
    """What all tests of a session have in common.  Mutable: notes whether its seed was written down."""

    def __init__(self, config: pytest.Config, flags: Mapping[str, str], seed: int) -> None:
        self.directory = config.rootpath
        self.flags = flags
        self.seed = seed
        self._remembered = False

    def ambient(self, item: pytest.Item) -> Ambient:
        """Return what checks in this test take from it."""
        name = _name(item)
        marker = item.get_closest_marker("dst")
        return Ambient(
            directory=self.directory,
            flags=self.flags,
            session_seed=self.seed,
            seed=seed_of_test(self.seed, name),
            command=self._command(name),
            path=_PATH,
            defaults=dict(marker.kwargs) if marker is not None else {},
            tell=self._teller(item),
        )

    def _command(self, name: str) -> str:
        file, colons, rest = name.partition("::")
        words = ["pytest", os.path.relpath(self.directory / file) + colons + rest, "--dst-seed", str(self.seed)]
        for key, value in self.flags.items():
            words += [] if key == "seed" else [f"--dst-{key}", value]
        return shlex.join(words)

    def _teller(self, item: pytest.Item) -> Callable[[str, object], None]:
        def tell(name: str, value: object) -> None:
            self._remember()
            properties = {"seed": ("dst-session-seed", "dst-seed"), "id": ("dst-id",)}[name]
            for found in properties:
                said = self.seed if found == "dst-session-seed" else value
                if (found, said) not in item.user_properties:
                    item.user_properties.append((found, cast("str", said)))

        return tell

    def _remember(self) -> None:
        """Write down the seed for `--dst-seed last`, once a scenario is run and not before."""
        if self._remembered:
            return
        self._remembered = True
        from dst.home import HomeUnusable
        from dst.surroundings import here

        with contextlib.suppress(HomeUnusable):  # a convenience: the seed is in the header and in every failure too
            here().home.write_last_seed(str(self.seed), _LAST)


def seed_of_test(session_seed: int, name: str) -> int:
    """Return the seed of a test's campaigns: a function of the session's and of the test's name alone."""
    raw = hashlib.blake2b(f"{session_seed}/{name}".encode(), digest_size=_SEED_BYTES).digest()
    return int.from_bytes(raw, "big")


def _name(item: pytest.Item) -> str:
    """Return a test's node id without the group that xdist writes behind it."""
    group = item.get_closest_marker("xdist_group")
    return item.nodeid.rpartition("@")[0] if group is not None and "@" in item.nodeid else item.nodeid


# ---- the session -----------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("dst", "deterministic simulation (dst)")
    for key, (metavar, says) in _OPTIONS.items():
        group.addoption(f"--dst-{key}", metavar=metavar, default=None, help=says)


def pytest_configure(config: pytest.Config) -> None:
    """Draw the session's seed, or take the one that was asked for."""
    config.addinivalue_line("markers", _MARKER)
    flags = {key: value for key in _OPTIONS if (value := config.getoption(f"--dst-{key}")) is not None}
    given = getattr(config, "workerinput", {}).get("dst_seed")
    config.stash[_SESSION] = _Session(config, flags, _session_seed(config, flags) if given is None else given)


def _session_seed(config: pytest.Config, flags: Mapping[str, str]) -> int:
    """Return the seed as set by flag, environment or project, else a new one.  Checks all that is set."""
    if not (flags or any(name.startswith("DST_") for name in os.environ) or _is_set_up(config.rootpath)):
        return _new_seed()  # without importing what reads settings
    from dst.config import settings
    from dst.errors import WrongUsage
    from dst.home import Home
    from dst.surroundings import folder

    try:
        found = settings(flags, os.environ, config.rootpath, prefix="--dst-")
        seed = found.get("seed")
        if seed == "last":
            return int(Home(folder(found, "home", ".dst", config.rootpath)).last_seed(_LAST))
    except WrongUsage as error:
        raise pytest.UsageError(f"dst: {error}") from None
    return _new_seed() if seed is None else int(str(seed))


def _new_seed() -> int:
    return int.from_bytes(os.urandom(_SEED_BYTES), "big")


def _is_set_up(directory: Path) -> bool:
    """Has the project settings of ours?"""
    for folder in (directory, *directory.parents):
        with contextlib.suppress(OSError):
            return b"tool.dst" in (folder / "pyproject.toml").read_bytes()
    return False


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Give xdist's worker the seed."""
    node.workerinput["dst_seed"] = node.config.stash[_SESSION].seed  # type: ignore[attr-defined]


def pytest_report_header(config: pytest.Config) -> str:
    """Show the seed."""
    return f"dst: --dst-seed={config.stash[_SESSION].seed}"


# ---- tests -----------------------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Tell checks which test they are made in."""
    before, ambient.current = ambient.current, functools.partial(item.config.stash[_SESSION].ambient, item)
    try:
        return (yield)
    finally:
        ambient.current = before


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Check the scenarios of the test's marker, then run its body."""
    __tracebackhide__ = True
    marker = pyfuncitem.get_closest_marker("dst")
    if marker is not None:
        _check_marked(pyfuncitem, marker)
    return (yield)


def _check_marked(item: pytest.Function, marker: pytest.Mark) -> None:
    __tracebackhide__ = True
    from dst.config import known_among
    from dst.testing import check

    known_among("argument of @pytest.mark.dst", marker.kwargs, ["scenario", *(check.__kwdefaults__ or ())])
    asked = {name: value for name, value in marker.kwargs.items() if name != "scenario"}
    fixture = item.funcargs.get("dst")
    named = [marker.kwargs["scenario"]] if "scenario" in marker.kwargs else []
    for scenario in (*marker.args, *named):
        record = check(scenario, **asked)
        if isinstance(fixture, Dst):
            fixture.records.append(record)


class Dst:
    """The fixture `dst`.  Mutable: `records` has those of the marker's scenarios, and of what was checked here."""

    def __init__(self, test: Ambient) -> None:
        self.session_seed = test.session_seed
        self.seed = test.seed
        self.records: list[CampaignRecord | ExplorationRecord] = []

    def check(self, scenario: type[Scenario], **asked: object) -> CampaignRecord | ExplorationRecord:
        """Check a scenario, as `dst.testing.check` does."""
        __tracebackhide__ = True
        from dst.testing import check

        record = check(scenario, **asked)  # type: ignore[arg-type]
        self.records.append(record)
        return record

    def run(self, scenario: type[Scenario], schedule: Schedule | None = None, **asked: object) -> Run:
        """Run one schedule, as `dst.testing.run` does."""
        from dst.testing import run

        return run(scenario, schedule, **asked)  # type: ignore[arg-type]


@pytest.fixture
def dst() -> Dst:
    """Simulation: `dst.check(Scenario)`, `dst.run(Scenario, schedule).check()`, `dst.seed`."""
    assert ambient.current is not None, "a fixture is made in a test"
    return Dst(ambient.current())
