"""What a strategy is: it proposes the choices of one run after another, and sees what came of each.

A strategy is made anew for each piece of a campaign's work and each scenario, so that what it learns, and with it every
run, is a function of the piece alone: the number of worker processes changes nothing.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

import attrs

from dst.choices import Choices
from dst.faults import Fault
from dst.run import RunResult, Spy
from dst.scenario import Scenario
from dst.schedule import Deviation

Deviations = tuple[Deviation, ...]


@attrs.frozen(kw_only=True)
class Terms:
    """What holds for all runs of a scenario in one piece of a campaign's work."""

    scenario: type[Scenario]
    faults: Sequence[Fault]
    rate: float | None = None
    corpus: Sequence[Deviations] = ()  # schedules that reached something new in earlier campaigns
    opening: bool = False  # is this the first piece of the campaign?


@attrs.frozen(kw_only=True)
class Proposal:
    """One run that a strategy wants: `choices` makes the very same choices whenever it is called."""

    strategy: str
    choices: Callable[[], Choices]
    seeded: bool = True  # does the run's seed alone, with the strategy's name, make these choices?
    spy: Spy | None = None


class Strategy(abc.ABC):
    """A way to search.  Mutable: it may learn from what it sees."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @abc.abstractmethod
    def propose(self, seed: int) -> Proposal:
        """Return the next run; whatever is drawn for it is drawn from `seed`."""

    def saw(self, proposal: Proposal, result: RunResult) -> bool:
        """Look at what came of a proposal; True if its schedule is worth keeping for later campaigns."""
        return False


class Seeded(Strategy):
    """A strategy whose runs are functions of their seeds."""

    def __init__(self, terms: Terms, name: str, choices: Callable[[int, Terms], Choices]) -> None:
        super().__init__(terms)
        self._name = name
        self._choices = choices

    def propose(self, seed: int) -> Proposal:
        """Return the run that the seed stands for."""
        return Proposal(strategy=self._name, choices=lambda: self._choices(seed, self.terms))
