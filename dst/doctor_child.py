"""The other side of `dst doctor`: runs what it is told, twice, and answers with digests and traces.

It imports the harness's core and scenarios only, so that it starts under a Python that has little else installed.
"""

from __future__ import annotations

import json
import platform
import sys

import trio

from dst import trace
from dst.choices import Calm, Choices
from dst.judging import choices_of
from dst.lookup import find_scenario
from dst.run import Host, RunResult, host
from dst.scenario import Scenario


def main() -> None:
    """Read the order from stdin, write the answer to stdout."""
    order = json.load(sys.stdin)
    scenarios = {name: find_scenario(name) for name in order["scenarios"]}
    runs = host(lambda h: _run_all(h, scenarios, order["seeds"]))
    fast = [name for name in ("orjson", "fnv_c") if name in sys.modules]
    answer = {"python": platform.python_version(), "trio": trio.__version__, "fast": fast, "runs": runs}
    sys.stdout.write(json.dumps(answer))


async def _run_all(simulations: Host, scenarios: dict[str, type[Scenario]], seeds: list[int | None]) -> list[object]:
    runs: list[object] = []
    for name, scenario in scenarios.items():
        for seed in seeds:
            pair = [await simulations.run(scenario, _choices(scenario, seed)) for _ in range(2)]
            runs.append({"scenario": name, "seed": seed, "traces": [_trace(result) for result in pair]})
    return runs


def _choices(scenario: type[Scenario], seed: int | None) -> Choices:
    return Calm() if seed is None else choices_of(scenario, seed)


def _trace(result: RunResult) -> dict[str, object]:
    return {"digest": result.digest, "records": [trace.encode([record]).decode()[1:-1] for record in result.records]}


if __name__ == "__main__":
    main()
