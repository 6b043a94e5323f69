"""What one run of a campaign comes to: its seed, its choices, and all that is judged of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from dst import trace
from dst.choices import Choices
from dst.prng import derive
from dst.run import Host, RunResult, Spy
from dst.scenario import Scenario
from dst.signature import violation_of
from dst.strategies.portfolio import DEFAULT, of_seed
from dst.strategies.strategy import Terms
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import Transparency
from dst.verdict import Violation

_SEED_BITS = 48  # a run's seed is short enough to be read out, and exact in JSON everywhere


def run_seed(campaign_seed: int, index: int) -> int:
    """Return the seed of a campaign's run `index`: it alone reproduces the run."""
    return derive(campaign_seed, index) >> (64 - _SEED_BITS)


@attrs.frozen(kw_only=True)
class Divergence:
    """Two runs of the same choices that differ: something in them is not under control."""

    record: int
    first: str
    second: str


def terms_of(
    scenario: type[Scenario], faults: frozenset[str] | None = None, rate: float | None = None, **more: Any
) -> Terms:
    """Return what holds for runs of a scenario with these kinds of faults, all without."""
    chosen = tuple(f for f in scenario.faults if faults is None or f.name in faults)
    return Terms(scenario=scenario, faults=chosen, rate=rate, **more)


def choices_of(
    scenario: type[Scenario],
    seed: int,
    faults: frozenset[str] | None = None,
    rate: float | None = None,
    strategy: str = DEFAULT,
) -> Choices:
    """Return the choices a seed stands for under a strategy."""
    return of_seed(strategy, seed, terms_of(scenario, faults, rate))


async def run_one(
    host: Host, transparency: Transparency, scenario: type[Scenario], choices: Choices, spy: Spy | None = None
) -> tuple[RunResult, Violation | None]:
    """Run once and judge all there is to judge."""
    result = await host.run(scenario, choices, spy=spy)
    compared, violation = await transparency.check(scenario, result)
    judged = (*result.judgement.judged, (TRANSPARENT, int(compared)))
    result = attrs.evolve(result, judgement=attrs.evolve(result.judgement, judged=judged))
    return result, violation_of(result) or violation


def diverged(one: RunResult, other: RunResult) -> Divergence:
    """Return where two runs of the same choices part."""
    at = trace.first_difference(one.records, other.records)
    assert at is not None, "their digests differ"

    def shown(records: Sequence[trace.Record]) -> str:
        return trace.encode([records[at]]).decode() if at < len(records) else "(the trace has ended)"

    return Divergence(record=at, first=shown(one.records), second=shown(other.records))
