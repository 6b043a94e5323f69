"""Is a scenario deterministic?  The same runs twice in one process, under other hash seeds, under other Pythons."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict, cast

import attrs

from dst.watching import Source

HASH_SEEDS = ("0", "1", "2")
TWICE, HASH_SEED, PYTHON = "nothing", "hash seed", "Python"
"""What was changed between two runs."""

OLDEST = (3, 11)
_MINORS = range(11, 16)
_AT_ONCE = 2
_START_SECONDS = 20
_RUN_SECONDS = 300
_ASK = "import json,platform,sys;print(json.dumps([list(sys.version_info[:2]),platform.python_version()]))"


class _Trace(TypedDict):
    digest: str
    records: list[str]


class _Run(TypedDict):
    scenario: str
    seed: int | None
    traces: list[_Trace]


class _Source(TypedDict):
    kind: str
    called: str
    file: str
    line: int
    function: str


class _Answer(TypedDict):
    python: str
    trio: str
    fast: list[str]
    runs: list[_Run]
    sources: dict[str, list[_Source]]


@attrs.frozen
class Python:
    """An interpreter that starts."""

    path: str
    version: str


@attrs.frozen(kw_only=True)
class Place:
    """Where runs are made: an interpreter and a hash seed."""

    python: Python
    hash_seed: str

    @property
    def said(self) -> str:
        """It in words."""
        return f"Python {self.python.version}, hash seed {self.hash_seed}"


@attrs.frozen(kw_only=True)
class Check:
    """What became of one place.  `why` it was not checked, "" if it was."""

    place: Place
    runs: int = 0
    twice: int = 0  # of them the same twice in one process
    equal: int | None = None  # of them equal to the first place's; None for the first place itself
    trio: str = ""
    fast: tuple[str, ...] = ()
    why: str = ""


@attrs.frozen(kw_only=True)
class Difference:
    """Two runs that ought to be one: where they were made, and the first record at which they part."""

    scenario: str
    seed: int | None
    kind: str  # what was changed between them
    one: str
    other: str
    record: int
    first: str
    second: str


@attrs.frozen(kw_only=True)
class Asked:
    """Code of a scenario that asked for something real, in a run or while it was imported."""

    scenario: str
    source: Source


@attrs.frozen(kw_only=True)
class Diagnosis:
    """All that was found."""

    scenarios: tuple[str, ...]
    runs: int  # in each place
    checks: tuple[Check, ...]
    differences: tuple[Difference, ...]  # the first of each scenario and kind
    asked: tuple[Asked, ...]  # in the first place

    def causes(self, scenario: str) -> tuple[Source, ...]:
        """Return what may be behind the differences of a scenario, as far as it was seen."""
        return tuple(asked.source for asked in self.asked if asked.scenario == scenario)


class DoctorFailed(Exception):
    """This very Python could not make the runs: `details` is what it said."""

    def __init__(self, details: str) -> None:
        super().__init__("the runs could not be made by this Python itself")
        self.details = details

    @property
    def last_line(self) -> str:
        """The end of it."""
        return _last_line(self.details)


def diagnose(scenarios: Sequence[str], seeds: Sequence[int | None], others: Sequence[Python], path: str) -> Diagnosis:
    """Make the runs in every place and compare.  `path` is the PYTHONPATH.  Raises `DoctorFailed`."""
    here = Python(sys.executable, sys.version.partition(" ")[0])
    places = [Place(python=here, hash_seed=seed) for seed in HASH_SEEDS]
    places += [Place(python=python, hash_seed=HASH_SEEDS[0]) for python in others]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(lambda place: _ask(place, scenarios, seeds, path, watching=place is places[0]), places))
    first = answers[0]
    if isinstance(first, str):
        raise DoctorFailed(first)
    checks, differences = [], []
    for place, answer in zip(places, answers, strict=True):
        if isinstance(answer, str):
            if place.python == here:
                raise DoctorFailed(answer)
            checks.append(Check(place=place, why=_last_line(answer)))
            continue
        found = list(_twice(place, answer))
        across = list(_across(places[0], place, first, answer)) if answer is not first else []
        differences += found + across
        checks.append(
            Check(
                place=place,
                runs=len(answer["runs"]),
                twice=len(answer["runs"]) - len(found),
                equal=None if answer is first else len(answer["runs"]) - len(across),
                trio=answer["trio"],
                fast=tuple(answer["fast"]),
            )
        )
    return Diagnosis(
        scenarios=tuple(scenarios),
        runs=len(first["runs"]),
        checks=tuple(checks),
        differences=tuple(_first_of_each(differences)),
        asked=tuple(
            Asked(scenario=name, source=Source(**source)) for name in scenarios for source in first["sources"][name]
        ),
    )


def between_hash_seeds(
    scenarios: Sequence[str], seeds: Sequence[int | None], path: str
) -> tuple[int, Difference | None]:
    """Make runs in two further processes, under two hash seeds; return how many, and the first that differs.

    It shows the order of sets and what is drawn while modules are imported, which no second run in one process does.
    Raises `DoctorFailed`.
    """
    here = Python(sys.executable, sys.version.partition(" ")[0])
    one, other = (Place(python=here, hash_seed=seed) for seed in HASH_SEEDS[:2])
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        first, second = pool.map(lambda place: _ask(place, scenarios, seeds, path, watching=False), (one, other))
    for answer in (first, second):
        if isinstance(answer, str):
            raise DoctorFailed(answer)
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    return len(first["runs"]), next(_across(one, other, first, second), None)


# ---- making runs -----------------------------------------------------------------------------------------------------


def _ask(
    place: Place, scenarios: Sequence[str], seeds: Sequence[int | None], path: str, *, watching: bool
) -> _Answer | str:
    """Return a child's answer, or what it said instead."""
    environ = {**os.environ, "PYTHONHASHSEED": place.hash_seed, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    order = json.dumps({"scenarios": list(scenarios), "seeds": list(seeds), "watching": watching})
    try:
        done = subprocess.run(
            [place.python.path, "-P", "-s", "-m", "dst.doctor_child"],
            input=order,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environ,
            timeout=_RUN_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            return done.stderr or f"exit code {done.returncode}"
        return cast(_Answer, json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return f"it took longer than {_RUN_SECONDS} s"
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def python_path(modules: Iterable[str]) -> str:
    """Return the PYTHONPATH for children: where our packages and `modules` are, and what this Python has installed.

    Another Python cannot load compiled packages from there; what can do without them does, and the rest says so.
    """
    folders = [str(_folder(name)) for name in ("dst", *modules)]
    folders += [f for f in os.environ.get("PYTHONPATH", "").split(os.pathsep) if f]
    folders += [str(_folder("trio")), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return os.pathsep.join(dict.fromkeys(str(Path(folder).absolute()) for folder in folders))


def _folder(module: str) -> Path:
    """Return the folder from which a top-level package is imported."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    assert spec is not None, module
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin or ".").parent


# ---- finding Pythons -------------------------------------------------------------------------------------------------


def find_pythons() -> list[Python]:
    """Return other Pythons on this machine that are new enough and really start, one of each version."""
    found: dict[str, Python] = {}
    for path in dict.fromkeys(_candidates()):
        python = start(path)
        if isinstance(python, Python) and python.version != sys.version.partition(" ")[0]:
            found.setdefault(python.version, python)
    return [found[version] for version in sorted(found)]


def start(path: str) -> Python | str:
    """Return the interpreter at `path`, or why it is none that can be used."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=_START_SECONDS, check=False
        )
        version, said = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return "it does not start as a Python"
    if tuple(version) < OLDEST:
        return f"Python {said}: needs {OLDEST[0]}.{OLDEST[1]} or newer"
    return Python(path, said)


def _candidates() -> Iterator[str]:
    for folder in os.get_exec_path():
        for minor in _MINORS:
            path = shutil.which(f"python3.{minor}", path=folder)
            if path is not None:
                yield path
    yield from sorted(str(path) for path in Path.home().glob(".pyenv/versions/*/bin/python"))


# ---- comparing -------------------------------------------------------------------------------------------------------


def _twice(place: Place, answer: _Answer) -> Iterator[Difference]:
    """Yield the runs of one process that differ when made again."""
    for run in answer["runs"]:
        one, other = run["traces"]
        if one["digest"] != other["digest"]:
            yield _difference(run, one, other, TWICE, f"{place.said}, first time", "the same process, second time")


def _across(here: Place, there: Place, one: _Answer, other: _Answer) -> Iterator[Difference]:
    """Yield the runs of two processes that differ."""
    kind = HASH_SEED if here.python == there.python else PYTHON
    for run, same in zip(one["runs"], other["runs"], strict=True):
        if run["traces"][0]["digest"] != same["traces"][0]["digest"]:
            yield _difference(run, run["traces"][0], same["traces"][0], kind, here.said, there.said)


def _difference(run: _Run, one: _Trace, other: _Trace, kind: str, here: str, there: str) -> Difference:
    first, second = one["records"], other["records"]
    ended = "(the trace has ended)"
    at = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        at = min(len(first), len(second))
    return Difference(
        scenario=run["scenario"],
        seed=run["seed"],
        kind=kind,
        one=here,
        other=there,
        record=at,
        first=first[at] if at < len(first) else ended,
        second=second[at] if at < len(second) else ended,
    )


def _first_of_each(differences: Iterable[Difference]) -> list[Difference]:
    """Return the first difference of each scenario and kind; what differs in one process differs anywhere."""
    found: dict[tuple[str, str], Difference] = {}
    for difference in differences:
        found.setdefault((difference.scenario, difference.kind), difference)
    unstable = {scenario for scenario, kind in found if kind == TWICE}
    return [d for d in found.values() if d.kind == TWICE or d.scenario not in unstable]
