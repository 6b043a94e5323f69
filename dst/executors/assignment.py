"""What a campaign is to do, in names and numbers only: it travels to other processes as it is."""

from __future__ import annotations

import attrs

from dst.judging import run_seed
from dst.run import Limits
from dst.strategies.portfolio import DEFAULT
from dst.strategies.strategy import Deviations

CHUNK = 100
"""Runs in one piece of work.  Fixed, so that where pieces begin does not depend on how many workers there are."""

OPEN_END = 10**9
"""As many runs as there is time for."""


@attrs.frozen(kw_only=True)
class Assignment:
    """One campaign's work: a list of runs, which run `i` is a pure function of this object and `i`."""

    scenarios: tuple[str, ...]  # as `dst.lookup.find_scenario` takes them
    mutant: str | None = None
    strategy: str = DEFAULT
    seed: int = 0
    seeds: tuple[int, int] | None = None  # run seeds from the first up to the second, instead of derived ones
    schedules: int = 2_000  # in all shards together
    faults: frozenset[str] | None = None
    fault_rate: float | None = None
    failures_max: int | None = 1  # None: go on to the end
    recheck_one_in: int = 50  # 0: never
    shrinking: bool = True
    explaining: bool = True  # what was shrunk is told the cause of
    steps_max: int = Limits().steps
    shard: tuple[int, int] = (0, 1)
    corpus: tuple[tuple[Deviations, ...], ...] = ()  # for each scenario what earlier campaigns have kept

    @property
    def total(self) -> int:
        """Runs in all shards together."""
        return self.schedules if self.seeds is None else (self.seeds[1] - self.seeds[0]) * len(self.scenarios)

    @property
    def runs(self) -> int:
        """Runs in this shard."""
        width, (shard, shards) = len(self.scenarios), self.shard
        rounds = -(-self.total // width)
        mine = len(range(shard, rounds, shards))
        cut = rounds * width - self.total if mine and (rounds - 1) % shards == shard else 0
        return mine * width - cut

    def run(self, index: int) -> tuple[int, int, bool]:
        """Return (which scenario, seed, is it run twice) of this shard's run `index`.

        A round is one run of each scenario; shards and rechecks take whole rounds: all scenarios get their share.
        """
        width, (shard, shards) = len(self.scenarios), self.shard
        round_, scenario = shard + index // width * shards, index % width
        seed = run_seed(self.seed, round_ * width + scenario) if self.seeds is None else self.seeds[0] + round_
        return scenario, seed, bool(self.recheck_one_in) and index // width % self.recheck_one_in == 0

    def chunks(self) -> range:
        """Return the first index of each piece of work."""
        return range(0, self.runs, CHUNK)


@attrs.frozen(kw_only=True)
class Chunk:
    """One piece of work."""

    start: int
    stop: int
    seconds_left: float | None = None
    known: frozenset[str] = frozenset()  # signatures of failures that need no second look
