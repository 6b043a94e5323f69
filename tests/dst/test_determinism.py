"""One seed, one trace, for each shipped scenario.

In one process and in another, under any hash seed and Python, alone or after many, whatever is imported.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from dst import doctor
from dst.choices import Random
from dst.run import host
from scenarios.catalogue import SCENARIOS

ROOT = Path(__file__).parents[2]
SEEDS = (3, 1, 4)
RUN = """
    import json
    from dst.choices import Random
    from dst.run import host
    from scenarios.catalogue import SCENARIOS

    async def body(h):
        return [
            (await h.run(scenario, Random(seed, scenario.faults))).digest
            for _, scenario in sorted(SCENARIOS.items()) for seed in (3, 1, 4)
        ]

    print(json.dumps(host(body)))
"""


def digests() -> list[str]:
    async def body(h):
        return [
            (await h.run(scenario, Random(seed, scenario.faults))).digest
            for _, scenario in sorted(SCENARIOS.items())
            for seed in SEEDS
        ]

    return host(body)


def elsewhere(code: str, hash_seed: str = "random", *options: str, python: str = sys.executable) -> list[str]:
    """Run code in a process of its own; return the JSON it prints."""
    path = doctor.python_path(["scenarios"])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, *options, "-c", textwrap.dedent(code)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def test_the_same_twice_in_one_process():
    assert digests() == digests()


def test_alone_as_after_many():
    async def crowd(h):
        for seed in range(20):
            for scenario in SCENARIOS.values():
                await h.run(scenario, Random(seed, scenario.faults))
        return [
            (await h.run(scenario, Random(seed, scenario.faults))).digest
            for _, scenario in sorted(SCENARIOS.items())
            for seed in SEEDS
        ]

    assert digests() == host(crowd)


def test_each_alone_and_last_first_as_all_together():
    together = digests()
    runs = [(scenario, seed) for _, scenario in sorted(SCENARIOS.items()) for seed in SEEDS]

    def alone(scenario, seed):
        return host(lambda h: h.run(scenario, Random(seed, scenario.faults)), brief=True).digest

    assert together[::-1] == [alone(scenario, seed) for scenario, seed in runs[::-1]]


@pytest.mark.parametrize("hash_seed", ["0", "1", "2"])
def test_in_another_process_under_any_hash_seed(hash_seed):
    assert digests() == elsewhere(RUN, hash_seed)


def test_under_every_other_python_that_is_here():
    others = doctor.find_pythons()
    if not others:
        pytest.skip("there is no other Python on this machine")
    wanted = digests()
    for python in others:
        assert wanted == elsewhere(RUN, python=python.path), python.version


def test_whatever_hypothesis_does_to_trio():
    """Importing it, and having it register its generators, makes trio's own order of tasks seeded: ours is neither."""
    inside = textwrap.dedent(RUN).replace("print(json.dumps(host(body)))", "") + textwrap.dedent(
        """
        from hypothesis import given, settings, strategies as st
        found = []

        @settings(max_examples=3, database=None, deadline=None)
        @given(st.integers())
        def test(_):
            found.append(host(body))

        test()
        assert all(one == found[0] for one in found)
        print(json.dumps(found[0]))
        """
    )
    flagged = "import trio._core._run as r\nr._ALLOW_DETERMINISTIC_SCHEDULING = True\n" + textwrap.dedent(RUN)
    wanted = digests()
    assert wanted == elsewhere(inside)
    assert wanted == elsewhere(flagged)


@pytest.mark.parametrize("module", ["orjson", "fnv_c"])
def test_without_the_fast_paths(module):
    hidden = f"import sys\nsys.modules[{module!r}] = None\n" + textwrap.dedent(RUN)
    assert digests() == elsewhere(hidden)


def test_without_assertions():
    assert digests() == elsewhere(RUN, "random", "-O")


def test_whatever_the_global_generator_and_the_wall_clock_say(monkeypatch):
    before = digests()
    random.seed(12345)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert before == digests()


def test_a_run_asks_the_global_generator_nothing():
    digests()
    state = random.getstate()
    digests()
    assert state == random.getstate()
