"""Scenarios and mutants by name: the shipped ones, a project's own, and any `package.module:Class`.

Each may be followed by a size, as in `chat_session@turns=1` (see `dst.parameters`).  Names are what travels: to worker
processes, to other Pythons, into stored records.  Only names that a person gave, on the command line or in the
project's configuration, are ever imported; what a schedule file says is looked up, no more.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import attrs

from dst.errors import WrongUsage, unknown
from dst.mutant import Mutant
from dst.parameters import bare_name, parameters_of, resized, sized, split_name, suffix
from dst.scenario import Scenario
from dst.signature import ALWAYS
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import SAYS as TRANSPARENT_SAYS

_ALWAYS = {**ALWAYS, TRANSPARENT: TRANSPARENT_SAYS}


def shipped_scenarios() -> dict[str, type[Scenario]]:
    """Return the scenarios that come with the harness; none if they are not installed."""
    found = _shipped("scenarios.catalogue", "SCENARIOS")
    return dict(cast("Mapping[str, type[Scenario]]", found))


def shipped_mutants() -> dict[str, Mutant]:
    """Return the broken kernels that come with the harness; none if they are not installed."""
    return dict(cast("Mapping[str, Mutant]", _shipped("scenarios.mutants", "MUTANTS")))


def _shipped(module: str, name: str) -> object:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "scenarios":
            raise
        return {}


def load(reference: str) -> type[Scenario]:
    """Return the class behind `package.module:Class`, in the size it says if it says one.  Raises `WrongUsage`."""
    bare, size = split_name(reference)
    module_name, _, class_name = bare.partition(":")
    if sys.path[:1] != [""] and "" not in sys.path:
        sys.path.append("")  # a project's own modules, as `python -m` finds them; last: they hide nothing
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise WrongUsage(
            f"cannot import {module_name!r} for {reference!r}: no module {error.name!r} here or on the Python path"
        ) from None
    except ValueError as error:
        raise WrongUsage(f"{reference!r} is no `package.module:Class`: {error}") from None
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Scenario)) or found is Scenario:
        classes = [
            n for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, Scenario) and c is not Scenario
        ]
        raise unknown(f"scenario class in {module_name}", class_name, classes)
    lacking = [name for name in ("name", "story", "faults", "invariants") if not hasattr(found, name)]
    lacking += sorted(getattr(found, "__abstractmethods__", ()))
    if lacking:
        raise WrongUsage(
            f"{reference!r} lacks {', '.join(f'`{name}`' for name in lacking)}: give the class what it lacks"
        )
    if split_name(found.name)[1]:
        raise WrongUsage(
            f"{reference!r} is called {found.name!r}: give it a name that does not end like a size, in @NAME=NUMBER"
        )
    return sized(found, **size)


@attrs.frozen(kw_only=True)
class Known:
    """The scenarios one can name: class by name, and for those that are not shipped how to import them."""

    scenarios: Mapping[str, type[Scenario]]
    references: Mapping[str, str] = attrs.field(factory=dict)  # name -> package.module:Class

    def find(self, name: str) -> tuple[str, type[Scenario]]:
        """Return (what a worker finds it by, the class) of a name or a reference.  Raises `WrongUsage`."""
        if ":" in name:
            return name, load(name)
        if name not in self:
            raise self.unknown(name, "a scenario of your own: package.module:Class")
        return self.reference(name), resized(self.scenarios[bare_name(name)], name)

    def __contains__(self, name: str) -> bool:
        """Is there a scenario of that name, whatever size it says?"""
        return bare_name(name) in self.scenarios

    def reference(self, name: str) -> str:
        """Return what a worker finds a scenario by."""
        bare, size = split_name(name)
        return self.references.get(bare, bare) + suffix(size)

    def unknown(self, name: str, more: str, what: str = "scenario") -> WrongUsage:
        """Return the error for a name that none of these has; `more` says what else it could have been."""
        bare, at, _ = name.partition("@")
        if not at or bare not in self.scenarios:
            return unknown(what, name, self.scenarios, more)
        sizes = [f"{n} ({p.range})" for n, p in parameters_of(self.scenarios[bare]).items()]
        has = f"{bare} has {', '.join(sizes) or 'no parameters'}"
        return WrongUsage(f"{name!r} names no size of {bare}: wanted {bare}@PARAMETER=NUMBER; {has}")


def known(references: Iterable[str] = ()) -> Known:
    """Return the shipped scenarios and those behind `references`, as they are declared; a project's own name wins."""
    bare = dict.fromkeys(bare_name(reference) for reference in references)
    own = {(scenario := load(reference)).name: (reference, scenario) for reference in bare}
    return Known(
        scenarios={**shipped_scenarios(), **{name: scenario for name, (_, scenario) in own.items()}},
        references={name: reference for name, (reference, _) in own.items()},
    )


Find = Callable[[str, str | None], type[Scenario]]
"""Returns the class for a name and a mutant: `find_scenario`, or one that has the class in hand."""


def find_scenario(reference: str, mutant: str | None = None) -> type[Scenario]:
    """Return what a worker is told to run: a shipped name or a reference, over a mutant's kernel if there is one."""
    scenario = known().find(reference)[1]
    return find_mutant(mutant).apply(scenario) if mutant else scenario


def find_mutant(name: str) -> Mutant:
    """Return the mutant of that name.  Raises `WrongUsage`."""
    mutants = shipped_mutants()
    if name not in mutants:
        raise unknown("mutant", name, mutants)
    return mutants[name]


def says(scenario: type[Scenario], invariant: str) -> str:
    """Return what an invariant says, in words; "" if it is none of the scenario's."""
    found = [i.says for i in scenario.invariants if i.name == invariant]
    return found[0] if found else _ALWAYS.get(invariant, "")


def all_invariants(scenario: type[Scenario]) -> list[tuple[str, str]]:
    """Return (name, what it says) of everything that is judged in a run of the scenario."""
    compared = [TRANSPARENT] if scenario.outcome is not Scenario.outcome else []
    return [*((i.name, i.says) for i in scenario.invariants), *((name, _ALWAYS[name]) for name in compared)]
