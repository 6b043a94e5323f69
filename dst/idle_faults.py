"""Did a fault that fired change anything?  The same schedule is run without it, and the traces are compared.

A fault that never changes a trace shows nothing, however often it fires: it is injected where nobody looks, or the
system bears it without a trace, as two recoveries at once.  Only a person can say which.
"""

from __future__ import annotations

from dst import trace
from dst.choices import Written
from dst.run import Host, RunResult
from dst.scenario import Scenario

SAMPLED_MAX = 3  # faults of one run that are left out in turn


async def sample(host: Host, scenario: type[Scenario], result: RunResult, first: int) -> tuple[tuple[str, bool], ...]:
    """Return (kind, has it changed the trace) for some of the run's faults, from number `first` on, round about."""
    count = len(result.deviations)
    chosen = [(first + i) % count for i in range(min(SAMPLED_MAX, count))]
    return tuple([(result.kinds[i], await _changes(host, scenario, result, i)) for i in chosen])


async def _changes(host: Host, scenario: type[Scenario], result: RunResult, number: int) -> bool:
    left_out = result.deviations[number]
    rest = (*result.deviations[:number], *result.deviations[number + 1 :])
    without = await host.run(scenario, Written(rest))
    own = ("fault", left_out.at, left_out.do)
    return trace.digest([record for record in result.records if record != own]) != without.digest
