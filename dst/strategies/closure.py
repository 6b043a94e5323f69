"""`closure`: the crash schedules of a scenario in the order of exploration, one run at a time.

It is `explore` without its proof: behaviours reached by a crash are run calmly once each, nearest first, and judged as
they are.  What one run of it stands for, a random search needs many for.
"""

from __future__ import annotations

from collections import deque

from dst.choices import Written
from dst.run import RunResult
from dst.strategies.strategy import Deviations, Proposal, Strategy, Terms
from dst.strategies.view import Bounds, View

NAME = "closure"


class Closure(Strategy):
    """Mutable: the behaviours seen, and the schedules to be run.  `exhausted` when there are no more."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._frontier: deque[Deviations] = deque([()])
        self._seen: set[str] = set()
        self._view: View | None = None

    @property
    def exhausted(self) -> bool:
        """Has every behaviour been run?"""
        return not self._frontier

    def propose(self, seed: int) -> Proposal:
        """Return the next schedule; the calm one when there is none left."""
        deviations = self._frontier.popleft() if self._frontier else ()
        view = self._view = View(deviations, Bounds())

        def choices() -> Written:
            written = view.choices = Written(deviations)
            return written

        return Proposal(strategy=NAME, choices=choices, seeded=False, spy=view.spy)

    def saw(self, proposal: Proposal, result: RunResult) -> bool:
        """Put the behaviours that a crash of this run leads to on the list."""
        assert self._view is not None
        for moment in self._view.departures:
            if moment.behaviour not in self._seen:
                self._seen.add(moment.behaviour)
                self._frontier.append((*self._view.deviations, moment.deviation))
        return False
