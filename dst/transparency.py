"""`crash-transparent`: a faulty run ends like some calm run.

The calm runs it is compared with have the environment's own deviations, such as a declined card, and no others: no
crash, no duplicate, no hold.  A run that crashes asks a service more often than a calm one does, so that what the
environment did to it, passing by passing, is tried with passings left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence

from dst.choices import Written
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.verdict import Ending, Violation

NAME = "crash-transparent"
SAYS = "output and ledger of a faulty run equal those of some calm run"

_PASSINGS_MAX = 16
_REMEMBERED_MAX = 50_000  # calm outcomes, so that a campaign of days does not grow for ever
_CANDIDATES_MAX = 600  # a run that could be like more calm runs than this is not compared


Passing = tuple[str, ...]  # what the environment did, and what is alike; `("",)` for nothing
Row = tuple[str, ...]  # an act for each passing of a site
Environment = tuple[tuple[str, tuple[Passing, ...]], ...]


class TimeOut(Exception):
    """Time was out before a run was compared with all the calm runs it could be like: nothing is known of it."""


class Transparency:
    """Compares outcomes.  Mutable: remembers calm outcomes, which are functions of what the environment did.

    `in_time` is asked before each calm run.
    """

    def __init__(self, host: Host) -> None:
        self.in_time: Callable[[], bool] = lambda: True
        self._host = host
        self._calm: dict[tuple[type[Scenario], tuple[Deviation, ...]], Hashable | None] = {}
        self._passed: dict[tuple[type[Scenario], str, str], int] = {}
        self._matched: set[tuple[type[Scenario], Environment, Hashable]] = set()

    async def check(self, scenario: type[Scenario], result: RunResult) -> tuple[bool, Violation | None]:
        """Return whether the run could be compared, and the violation if no calm run ends like it.

        Raises `TimeOut`.
        """
        if result.outcome is None or result.ending is not Ending.QUIESCENT:
            return False, None
        environment = tuple(sorted(result.environment.items()))
        if (scenario, environment, result.outcome) in self._matched:
            return True, None
        candidates = _candidates({site: await self._rows(scenario, site, row) for site, row in environment})
        if candidates is None:
            return False, None
        for candidate in candidates:
            if await self._calm_outcome(scenario, candidate) == result.outcome:
                if len(self._matched) >= _REMEMBERED_MAX:
                    self._matched.clear()
                self._matched.add((scenario, environment, result.outcome))
                return True, None
        return True, Violation(
            invariant=NAME,
            key="",
            seen=f"it ended with {_said(result.outcome)}",
            wanted="an end that some run without crashes, duplicates and holds comes to",
            at=len(result.records),
        )

    async def _rows(self, scenario: type[Scenario], site: str, passings: tuple[Passing, ...]) -> list[Row]:
        """Return what a calm run may have seen at a site where the environment did this."""
        acts = dict.fromkeys(name for names in passings for name in names if name)
        most = max([await self._most(scenario, site, act) for act in acts])
        return _left_out(passings, most or len(passings))

    async def _most(self, scenario: type[Scenario], site: str, act: str) -> int:
        """Return how often a calm run passes a site at most: when the environment does it every time.

        0 if such a run does not come there, as to a refund that only a parcel that was not sent leads to.
        """
        key = (scenario, site, act)
        if key not in self._passed:
            always = [Deviation(at=f"{site}#{i}", do=act) for i in range(1, _PASSINGS_MAX + 1)]
            result = await self._run(scenario, always)
            self._passed[key] = len(result.environment.get(site, ()))
        return self._passed[key]

    async def _calm_outcome(self, scenario: type[Scenario], candidate: tuple[Deviation, ...]) -> Hashable | None:
        key = (scenario, candidate)
        if key not in self._calm:
            if len(self._calm) >= _REMEMBERED_MAX:
                self._calm.clear()
            result = await self._run(scenario, candidate)
            self._calm[key] = result.outcome
        return self._calm[key]

    async def _run(self, scenario: type[Scenario], deviations: Sequence[Deviation]) -> RunResult:
        if not self.in_time():
            raise TimeOut
        return await self._host.run(scenario, Written(deviations), judged=False)


def _candidates(rows: dict[str, list[Row]]) -> list[tuple[Deviation, ...]] | None:
    """Return the deviations of every calm run this run could be like, most alike first; None if they are too many.

    `rows` has, for each site, what may have happened there, most alike first.
    """
    if math.prod(map(len, rows.values())) > _CANDIDATES_MAX:
        return None
    ranked = [[(rank, _written(site, row)) for rank, row in enumerate(choices)] for site, choices in rows.items()]
    found = sorted(itertools.product(*ranked), key=lambda chosen: sum(rank for rank, _ in chosen))
    return list(dict.fromkeys(tuple(itertools.chain(*(written for _, written in chosen))) for chosen in found))


def _left_out(passings: tuple[Passing, ...], most: int) -> list[Row]:
    """Return the distinct rows of at most `most` acts that come of leaving out passings, and of taking what is alike.

    The last passings come first: what they came to is what the flow went on with.
    """
    rows: dict[Row, None] = {(): None}
    for names in reversed(passings):
        rows |= {(name, *later): None for later in rows if len(later) < most for name in names}
    return sorted(rows, key=len, reverse=True)


def _written(site: str, acts: Row) -> tuple[Deviation, ...]:
    return tuple(Deviation(at=f"{site}#{i}", do=act) for i, act in enumerate(acts, 1) if act)


def _said(outcome: Hashable) -> str:
    return str(outcome)
