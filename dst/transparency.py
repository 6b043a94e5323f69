"""`crash-transparent`: a faulty run ends like some calm run.

The calm runs it is compared with have the environment's own deviations, such as a declined card, and no others: no
crash, no duplicate, no hold.  A run that crashes asks a service more often than a calm one does, so that what the environment
did to it, passing by passing, is tried with passings left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable

from dst.choices import Written
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.verdict import Ending, Violation

NAME = "crash-transparent"
SAYS = "output and ledger of a faulty run equal those of some calm run"

_CANDIDATES_MAX = 600  # a run that could be like more calm runs than this is not compared


Environment = tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]


class Transparency:
    """Compares outcomes.  Mutable: remembers calm outcomes, which are functions of what the environment did."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._calm: dict[tuple[type[Scenario], tuple[Deviation, ...]], Hashable | None] = {}
        self._matched: set[tuple[type[Scenario], Environment, Hashable]] = set()

    async def check(self, scenario: type[Scenario], result: RunResult) -> tuple[bool, Violation | None]:
        """Return whether the run could be compared, and the violation if no calm run ends like it."""
        if result.outcome is None or result.ending is not Ending.QUIESCENT:
            return False, None
        environment = tuple(sorted(result.environment.items()))
        if (scenario, environment, result.outcome) in self._matched:
            return True, None
        candidates = _candidates(result.environment)
        if candidates is None:
            return False, None
        for candidate in candidates:
            if await self._calm_outcome(scenario, candidate) == result.outcome:
                self._matched.add((scenario, environment, result.outcome))
                return True, None
        return True, Violation(
            invariant=NAME,
            key="",
            seen=f"it ended with {_said(result.outcome)}",
            wanted="an end that some run without crashes, duplicates and holds comes to",
            at=len(result.records),
        )

    async def _calm_outcome(self, scenario: type[Scenario], candidate: tuple[Deviation, ...]) -> Hashable | None:
        key = (scenario, candidate)
        if key not in self._calm:
            result = await self._host.run(scenario, Written(candidate), judged=False)
            self._calm[key] = result.outcome
        return self._calm[key]


def _candidates(environment: dict[str, tuple[tuple[str, ...], ...]]) -> list[tuple[Deviation, ...]] | None:
    """Return the deviations of every calm run this run could be like, most alike first; None if they are too many."""
    choices = [[_written(site, acts) for acts in _left_out(row)] for site, row in environment.items()]
    if math.prod(map(len, choices)) > _CANDIDATES_MAX:
        return None
    found = [tuple(itertools.chain(*chosen)) for chosen in itertools.product(*choices)]
    return sorted(dict.fromkeys(found), key=len, reverse=True)


def _left_out(row: tuple[tuple[str, ...], ...]) -> list[tuple[str, ...]]:
    """Return the distinct rows of acts that come of leaving out passings, and of taking what is alike."""
    rows: dict[tuple[str, ...], None] = {(): None}
    for names in row:
        rows |= {(*shorter, name): None for shorter in rows for name in names}
    return list(rows)


def _written(site: str, acts: tuple[str, ...]) -> tuple[Deviation, ...]:
    return tuple(Deviation(at=f"{site}#{i}", do=act) for i, act in enumerate(acts, 1) if act)


def _said(outcome: Hashable) -> str:
    return str(outcome)
