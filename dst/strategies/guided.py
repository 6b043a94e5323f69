"""`guided`: keeps schedules that reached something new, and goes on from them.

New is a pair of landmarks that follow each other in a trace and have not done so before; a scenario says what its
records are landmarks of.  The state lives as long as a piece of work; what was worth keeping is kept on disk between
campaigns.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from dst.choices import Choices, Random, Resumed
from dst.prng import SplitMix64, derive
from dst.run import RunResult
from dst.strategies.strategy import Deviations, Proposal, Strategy, Terms

NAME = "guided"
_STREAM = 5
_FRESH_ONE_IN = 4  # runs that start from nothing
_RECENT = 16  # schedules among which the next one is drawn half of the time: the frontier


class Guided(Strategy):
    """Mutable: the pairs seen, and the schedules kept."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._seen: set[tuple[Hashable, Hashable]] = set()
        self._kept: list[Deviations] = list(terms.corpus)

    def propose(self, seed: int) -> Proposal:
        """Return a schedule that is kept, changed a little, or one from nothing."""
        draws = SplitMix64(derive(seed, _STREAM))
        if not self._kept or draws.chance(_FRESH_ONE_IN):
            return Proposal(strategy=NAME, choices=lambda: self._drawn(seed))
        pool = self._kept[-_RECENT:] if draws.chance(2) else self._kept
        beginning = _changed(pool[draws.below(len(pool))], draws)
        return Proposal(strategy=NAME, choices=lambda: Resumed(beginning, self._drawn(seed)), seeded=False)

    def _drawn(self, seed: int) -> Choices:
        return Random(seed, self.terms.faults, self.terms.rate)

    def saw(self, proposal: Proposal, result: RunResult) -> bool:
        """Keep what reached a new pair."""
        landmark = self.terms.scenario.landmark
        landmarks = [mark for record in result.records if (mark := landmark(record)) is not None]
        new = {*pairwise(landmarks)} - self._seen
        if not new:
            return False
        self._seen |= new
        self._kept.append(result.deviations)
        return bool(result.deviations)


def _changed(schedule: Deviations, draws: SplitMix64) -> Deviations:
    """Return a beginning of the schedule, sometimes with one deviation left out."""
    beginning = schedule[: 1 + draws.below(len(schedule))] if schedule else ()
    if len(beginning) > 1 and draws.chance(4):
        out = draws.below(len(beginning))
        return beginning[:out] + beginning[out + 1 :]
    return beginning
