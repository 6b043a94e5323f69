"""`portfolio`: a bit of everything, the default.  And all strategies by name.

Every sixteenth run of a campaign's first piece is one of `closure`, as long as there is something new in it.  Of all
others the seed says which strategy makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from dst.choices import Choices, Random
from dst.prng import derive
from dst.run import RunResult
from dst.scenario import Scenario
from dst.strategies import closure, guided
from dst.strategies.closure import Closure
from dst.strategies.guided import Guided
from dst.strategies.interleaving import pct, pos, walk
from dst.strategies.strategy import Proposal, Seeded, Strategy, Terms

DEFAULT = "portfolio"
_STREAM = 6


def _random(seed: int, terms: Terms) -> Choices:
    return Random(seed, terms.faults, terms.rate, subset=False)


def _swarm(seed: int, terms: Terms) -> Choices:
    return Random(seed, terms.faults, terms.rate)


_SEEDED: Mapping[str, Callable[[int, Terms], Choices]] = {
    "random": _random,
    "swarm": _swarm,
    "pct": pct,
    "pos": pos,
    "walk": walk,
}
_SHARES = (*["walk"] * 9, *["random"] * 6, *["swarm"] * 2, "pct", "pos", guided.NAME)
_CLOSURE_ONE_IN = 16


def _member(seed: int) -> str:
    """Return the strategy that makes a portfolio's run of this seed."""
    return _SHARES[derive(seed, _STREAM) % len(_SHARES)]


class Portfolio(Strategy):
    """Mutable: its members learn."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._proposed = 0
        self._closure = Closure(terms) if terms.opening and can_be_explored(terms.scenario) else None
        self._members: dict[str, Strategy] = {name: STRATEGIES[name](terms) for name in dict.fromkeys(_SHARES)}

    def propose(self, seed: int) -> Proposal:
        """Return now and then a run of the closure, while there is one; else one of whose turn it is."""
        self._proposed += 1
        if self._proposed % _CLOSURE_ONE_IN == 0 and self._closure is not None and not self._closure.exhausted:
            return self._closure.propose(seed)
        return self._members[_member(seed)].propose(seed)

    def saw(self, proposal: Proposal, result: RunResult) -> bool:
        """Tell who proposed it; what others found is news for `guided` too."""
        if proposal.strategy == closure.NAME:
            assert self._closure is not None
            self._closure.saw(proposal, result)
        return self._members[guided.NAME].saw(proposal, result)


def can_be_explored(scenario: type[Scenario]) -> bool:
    """Does the scenario say what of its world can be seen?"""
    return scenario.behaviour is not Scenario.behaviour


STRATEGIES: Mapping[str, Callable[[Terms], Strategy]] = {
    DEFAULT: Portfolio,
    **{name: functools.partial(Seeded, name=name, choices=choices) for name, choices in _SEEDED.items()},
    guided.NAME: Guided,
}
"""All strategies, by the name that `--strategy` takes."""


def of_seed(strategy: str, seed: int, terms: Terms) -> Choices:
    """Return the choices that a seed stands for under a strategy, with nothing learned."""
    name = _member(seed) if strategy == DEFAULT else strategy
    return _SEEDED.get(name, _swarm)(seed, terms)
