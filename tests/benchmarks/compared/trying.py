"""One tool, tried: what a program for a tool does, and the JSON that it prints.

Each tool is a `Tool` in a file of its own, run by the interpreter of its own environment, so this knows the standard
library alone.  It prints one JSON object a line: first what it is, then one for each row.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import bodies

MISSED_MAX = 2
"""After so many tries of one way that found nothing it is not tried again."""


@dataclass
class Limits:
    """When one try is given up."""

    runs: int
    seconds: float


@dataclass
class Try:
    """One search for a bug: from one seed, by one way."""

    seed: int
    found: bool
    runs: int
    seconds: float  # to the bug, without shrinking
    size: int | None = None  # of what was shrunk
    replayed: bool | None = None  # did the reproduction that the tool gives fail alike?  None: it gives none


@dataclass
class Way:
    """One way to search for a bug, and what came of it."""

    name: str
    size_of: str  # what a shrunk failure is counted in, "" if nothing is shrunk
    draws: bool  # False: it searches in one order whatever the seed
    tries: list[Try] = field(default_factory=list)
    rate_runs: int = 0  # for how fast it runs: so many of the mended body
    rate_seconds: float = 0.0


@dataclass
class Exhausted:
    """What the tool says of all there is, on the mended body."""

    way: str
    runs: int
    seconds: float
    ended: bool  # did it come to an end by itself?
    says: str  # what it then says of the space, "" if nothing
    whole: bool  # is that all there is: every order, or any number of crashes?


class Stopwatch:
    """Counts runs and seconds of one try.  Mutable."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._began = time.perf_counter()
        self.runs = 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @property
    def over(self) -> bool:
        """Is it time to give up?"""
        return self.runs >= self._limits.runs or self.seconds >= self._limits.seconds


class Tool:
    """What every tool has."""

    name: str
    version: str

    def ways(self, row: str) -> Mapping[str, str]:
        """Return the ways to search for a bug of this row, and what a shrunk failure of each is counted in."""
        raise NotImplementedError

    def draws(self, way: str) -> bool:
        """Is a way another from another seed?"""
        return True

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        """Search for the bug, shrink what is found, reproduce it."""
        raise NotImplementedError

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        """Return (runs, seconds) of a search of the mended body."""
        raise NotImplementedError

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        """Search the mended body for as long as there is more, by each way that may come to an end."""
        raise NotImplementedError


def try_row(tool: Tool, row: str, seeds: Sequence[int], limits: Limits, rate_seconds: float) -> dict[str, Any]:
    """Return what a row of the tool comes to."""
    ways = []
    for name, size_of in tool.ways(row).items():
        way = Way(name=name, size_of=size_of, draws=tool.draws(name))
        if row in bodies.HAS_BUG:
            # What draws nothing does the same again, but for a bug that is drawn itself.
            for seed in seeds if way.draws or bodies.ROWS[row].drawn else seeds[:1]:
                way.tries.append(tool.find(row, name, seed, limits))
                if sum(not tried.found for tried in way.tries) >= MISSED_MAX:
                    break
        way.rate_runs, way.rate_seconds = tool.rate(row, name, Limits(runs=10**9, seconds=rate_seconds))
        ways.append(way)
    exhausted = tool.exhaust(row, Limits(runs=limits.runs, seconds=limits.seconds / 2))
    return {"row": row, "ways": [asdict(way) for way in ways], "exhausted": [asdict(each) for each in exhausted]}


def run_for(limits: Limits, once: Callable[[int], None]) -> tuple[int, float]:
    """Run `once(i)` until it is time; return (runs, seconds)."""
    watch = Stopwatch(limits)
    while not watch.over:
        once(watch.runs)
        watch.runs += 1
    return watch.runs, watch.seconds


def furthest(told: Sequence[Exhausted]) -> Sequence[Exhausted]:
    """Return, of searches with ever wider bounds, the last that came to an end and the one that did not."""
    return [*[each for each in told if each.ended][-1:], *[each for each in told if not each.ended]]


def main(tool: Tool) -> None:
    """Be the program of a tool."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", default=",".join(bodies.ROWS))
    parser.add_argument("--runs-max", type=int, default=20_000)
    parser.add_argument("--seconds-max", type=float, default=10.0)
    parser.add_argument("--rate-seconds", type=float, default=0.5)
    asked = parser.parse_args()
    gc.collect()
    gc.freeze()  # some tools collect garbage with every run: what is there before need not be looked at each time
    _say({"tool": tool.name, "version": tool.version, "python": platform.python_version()})
    limits = Limits(runs=asked.runs_max, seconds=asked.seconds_max)
    for row in asked.rows.split(","):
        _say(try_row(tool, row, range(1, asked.seeds + 1), limits, asked.rate_seconds))


def _say(row: object) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()
