"""Mutants: a scenario over a kernel with one broken part."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dst.scenario import Scenario


@attrs.frozen(kw_only=True)
class Mutant:
    """A part exchanged for a broken one, and the invariant that must notice."""

    name: str
    breaks: str  # what is broken, one line
    scenario: str  # the scenario that shows it
    expected: tuple[str, ...]  # invariants that must catch it: any of them
    apply: Callable[[type[Scenario]], type[Scenario]]
    equivalent: str = ""  # why nothing can tell it from the true part, if so: nothing is expected to catch it then


def exchange(**attributes: object) -> Callable[[type[Scenario]], type[Scenario]]:
    """Return what makes a scenario over other parts: a subclass with these class attributes."""

    def apply(scenario: type[Scenario]) -> type[Scenario]:
        return type(scenario.__name__, (scenario,), dict(attributes))

    return apply
