"""The other side of `dst doctor`: runs what it is told, twice, and answers with digests and traces.

If it is told to watch, it watches the second time, and the import of the scenarios.

It imports the harness's core and scenarios only, so that it starts under a Python that has little else installed.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys

import attrs
import trio

from dst import trace
from dst.choices import Calm, Choices
from dst.judging import choices_of
from dst.lookup import find_scenario
from dst.run import Host, RunResult, host
from dst.scenario import Scenario
from dst.watching import Watcher


def main() -> None:
    """Read the order from stdin, write the answer to stdout."""
    order = json.load(sys.stdin)
    roots = {
        name: name.partition(":")[0].partition(".")[0] if ":" in name else "scenarios" for name in order["scenarios"]
    }
    imports = {root: Watcher([root]) for root in roots.values()}
    watchers = {name: Watcher([root]) for name, root in roots.items()}
    scenarios: dict[str, type[Scenario]] = {}
    for name, root in roots.items():
        with imports[root].on() if order["watching"] else contextlib.nullcontext():
            scenarios[name] = find_scenario(name)
    runs = host(lambda h: _run_all(h, scenarios, order["seeds"], watchers if order["watching"] else {}))
    fast = [name for name in ("orjson", "fnv_c") if name in sys.modules]
    seen = {name: (*imports[root].seen, *watchers[name].seen) for name, root in roots.items()}
    sources = {name: [attrs.asdict(source) for source in found] for name, found in seen.items()}
    answer = {"python": platform.python_version(), "trio": trio.__version__, "fast": fast, "runs": runs}
    sys.stdout.write(json.dumps({**answer, "sources": sources}))


async def _run_all(
    simulations: Host,
    scenarios: dict[str, type[Scenario]],
    seeds: list[int | None],
    watchers: dict[str, Watcher],
) -> list[object]:
    runs: list[object] = []
    for name, scenario in scenarios.items():
        for seed in seeds:
            first = await simulations.run(scenario, _choices(scenario, seed))
            with watchers[name].on() if watchers else contextlib.nullcontext():
                second = await simulations.run(scenario, _choices(scenario, seed))
            runs.append({"scenario": name, "seed": seed, "traces": [_trace(first), _trace(second)]})
    return runs


def _choices(scenario: type[Scenario], seed: int | None) -> Choices:
    return Calm() if seed is None else choices_of(scenario, seed)


def _trace(result: RunResult) -> dict[str, object]:
    return {"digest": result.digest, "records": [trace.encode([record]).decode()[1:-1] for record in result.records]}


if __name__ == "__main__":
    main()
