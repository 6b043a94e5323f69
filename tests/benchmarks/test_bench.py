"""The benchmark runs and says what it should.  What it times is no test; what it counts is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_quick_benchmark_prints_ratios_and_times_as_json() -> None:
    command = [sys.executable, str(Path(__file__).with_name("bench.py")), "--quick", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)

    report = json.loads(done.stdout)

    assert set(report) == {"python", "trio", "fast_digest", "rounds", "ratios", "counts", "microseconds"}
    names = set(report["microseconds"]) | set(report["counts"])
    assert all(row["ratio"] > 0 and {row["of"], row["to"]} <= names for row in report["ratios"])
    assert len(report["ratios"]) >= 28
    rows, events = (report["counts"][f"live query, {what}"] for what in ("rows read for them", "events"))
    assert 0 < events <= rows <= events + 10
