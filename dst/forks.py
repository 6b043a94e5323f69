"""A failing run taken apart: the points it passed, and runs that leave it at one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs

from dst.choices import Calm, Choices, Random, Written
from dst.faults import GO, Fault, Menu
from dst.judging import run_one
from dst.mutant import exchange
from dst.prng import derive
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.signature import Signature, signature_of, violation_of
from dst.simulation import Simulation
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import Transparency
from dst.verdict import Violation

_STREAM = 8  # continuations are drawn from


@attrs.frozen(kw_only=True)
class Passed:
    """A point that a run passed: what could be done there, what was, and how many records there were before."""

    label: str
    menu: Menu
    did: str
    record: int

    @property
    def deviates(self) -> bool:
        """Was something done that a calm run does not do?"""
        return self.did != GO


@attrs.frozen(kw_only=True)
class Failing:
    """A schedule that fails, run."""

    scenario: type[Scenario]
    result: RunResult
    violation: Violation
    signature: Signature
    passed: tuple[Passed, ...]  # in the order in which the choices were made

    @property
    def last(self) -> int:
        """How many of the points were passed before it failed."""
        return sum(point.record <= self.violation.at for point in self.passed)

    @property
    def deviations(self) -> tuple[int, ...]:
        """For each deviation before it failed, how many points had been passed when it was chosen, itself included."""
        return tuple(i for i, point in enumerate(self.passed[: self.last], 1) if point.deviates)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The kinds of faults in the schedule; all of the scenario's if there is none in it."""
        used = set(self.result.kinds)
        return tuple(fault for fault in self.scenario.faults if not used or fault.name in used)

    def moments(self, faults: Sequence[Fault]) -> tuple[int, ...]:
        """Return the moments before it failed: 0, and how many points had been passed at each that matters.

        A point at which none of the faults can be is none: the continuations before it and after it are the same.
        """
        passed = enumerate(self.passed[: self.last], 1)
        return (0, *(i for i, p in passed if p.deviates or any(option.fault in faults for option in p.menu.options)))


class _Watching:
    """Choices that note where they were asked.  Mutable: the points so far."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.sim: Simulation | None = None
        self.passed: list[Passed] = []

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Pass it on."""
        assert self.sim is not None, "the world is built before the first choice"
        index = self._choices.choose(site, point, menu)
        did = menu.options[index].name
        self.passed.append(Passed(label=point, menu=menu, did=did, record=len(self.sim.records)))
        return index

    def hold_until(self, point: str) -> str | int:
        """Pass it on."""
        return self._choices.hold_until(point)

    def __getattr__(self, name: str) -> Any:
        """Pass on whatever else these choices have to say, of orders for one; what they do not have, this has not."""
        return getattr(self._choices, name)


async def watched(host: Host, scenario: type[Scenario], choices: Choices) -> tuple[RunResult, tuple[Passed, ...]]:
    """Run once, and return the points that were passed as well."""
    watching = _Watching(choices)

    def build(self: Scenario, sim: Simulation) -> None:
        watching.sim = sim
        scenario.build(self, sim)

    result = await host.run(exchange(build=build)(scenario), watching)
    return result, tuple(watching.passed)


async def failing_run(
    host: Host,
    transparency: Transparency,
    scenario: type[Scenario],
    mutant: str | None,
    deviations: Sequence[Deviation],
) -> Failing | None:
    """Run a schedule; None if it does not fail."""
    result, passed = await watched(host, scenario, Written(deviations))
    violation = violation_of(result) or (await transparency.check(scenario, result))[1]
    if violation is None:
        return None
    signature = signature_of(result, mutant, violation)
    return Failing(scenario=scenario, result=result, violation=violation, signature=signature, passed=passed)


class Forked:
    """Choices that follow a schedule for so many points, and others from there on.  Mutable: counts the points."""

    def __init__(self, beginning: Sequence[Deviation], followed: int, end: Choices) -> None:
        self._written = Written(beginning)
        self.at_calls = self._written.at_calls
        self._left = followed
        self._end = end
        self._held: set[str] = set()

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return what is written, or, past the fork, what the others say."""
        if not self._left:
            return self._end.choose(site, point, menu)
        self._left -= 1
        self._held.add(point)
        return self._written.choose(site, point, menu)

    def hold_until(self, point: str) -> str | int:
        """Return what ends a hold."""
        return self._written.hold_until(point) if point in self._held else self._end.hold_until(point)

    def after_hold(self, point: str, menu: Menu) -> int:
        """Return what is written to be done where a hold has ended."""
        return self._written.after_hold(point, menu) if point in self._held else 0


def forks(
    host: Host, transparency: Transparency, failing: Failing, faults: Sequence[Fault]
) -> Callable[[int, int], Awaitable[bool]]:
    """Return what runs continuations of the failing run: the calm one, and such as these faults make by chance.

    They fail alike if they break the same invariant for the same kind of instance, wherever that shows.
    Continuation `number` is drawn from the same seed at every moment.
    """
    scenario, signature = failing.scenario, failing.signature

    async def fork(followed: int, number: int) -> bool:
        end = Random(derive(number, _STREAM), faults) if number else Calm()
        choices = Forked(failing.result.deviations, followed, end)
        if signature.invariant == TRANSPARENT:
            result, wrong = await run_one(host, transparency, scenario, choices)
        else:  # nothing that comparing with calm runs could find would be this failure
            result = await host.run(scenario, choices)
            wrong = violation_of(result)
        return wrong is not None and signature_of(result, signature.mutant, wrong).resembles(signature)

    return fork
