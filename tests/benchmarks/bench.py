"""What the harness and the kernel cost, measured against each other and against stock trio in one run.

    .venv/bin/python tests/benchmarks/bench.py [--quick] [--json]

What is measured is in the modules beside this one, a family in each.  Every time is process CPU time.  A round measures
every variant once, one after the other, so that whatever else the machine does meets all of them alike; a time is the
median over rounds, and a ratio is the median of the rounds' ratios.  Ratios carry over to other machines; times do not.
The garbage collector is off while the kernel's parts are timed, since a collection inside one window and not in another
says nothing of either; whole runs are timed with it on, and the harness collects between simulations as it always does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
from collections.abc import Callable, Iterator

import emits
import folds
import live
import parts
import runs
import sessions
import trio
from measuring import FULL, QUICK, Sizes, Times

SECTIONS: tuple[Callable[[Sizes], Times], ...] = (
    runs.whole_runs,
    runs.scheduling,
    emits.digests,
    emits.emits,
    folds.folds,
    parts.parts,
    parts.snapshots,
    live.rows,
    live.subscribers,
    sessions.sessions,
)
FAMILIES = (runs, emits, folds, parts, live, sessions)


def measure(sizes: Sizes) -> dict[str, object]:
    """Return the report as plain values."""
    rounds: list[Times] = []
    for _ in range(sizes.rounds):
        times: Times = {}
        for section in SECTIONS:
            times |= section(sizes)
        rounds.append(times)
    medians = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
    return {
        "python": platform.python_version(),
        "trio": trio.__version__,
        "fast_digest": importlib.util.find_spec("fnv_c") is not None,
        "rounds": sizes.rounds,
        "ratios": [
            {
                "of": above,
                "to": below,
                "ratio": round(statistics.median(r[above] / max(r[below], 1e-9) for r in rounds), 4),
            }
            for family in FAMILIES
            for above, below in family.ratios(sizes)
        ],
        "counts": {name: round(medians.pop(name)) for name in live.COUNTED},
        "microseconds": {name: round(seconds * 1e6, 3) for name, seconds in medians.items()},
    }


def show(report: dict[str, object]) -> Iterator[str]:
    """Yield the report's lines: ratios first."""
    fast = "with fnv-c" if report["fast_digest"] else "without fnv-c"
    yield f"Python {report['python']}, trio {report['trio']}, {fast}; medians of {report['rounds']} rounds, CPU time"
    yield ""
    yield "ratio"
    for row in _rows(report["ratios"]):
        yield f"{row['ratio']:9.2f}  {row['of']}  /  {row['to']}"
    yield ""
    yield "count"
    counts = report["counts"]
    assert isinstance(counts, dict)
    for name, count in counts.items():
        yield f"{count:9,}  {name}"
    yield ""
    yield "microseconds       a second"
    times = report["microseconds"]
    assert isinstance(times, dict)
    for name, microseconds in times.items():
        yield f"{microseconds:12,.2f}  {1e6 / max(microseconds, 1e-3):13,.0f}  {name}"


def _rows(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the harness and the kernel; ratios first.")
    parser.add_argument("--quick", action="store_true", help="little of everything: a test of the benchmark itself")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    report = measure(QUICK if arguments.quick else FULL)
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(show(report)))


if __name__ == "__main__":
    main()
