"""Garbage is under control: what is dropped in a run says its last word when the run is over, and changes no other."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import trio

from dst import trace
from dst.choices import Calm, Random
from dst.run import Host, RunResult, host
from dst.scenario import Scenario
from dst.verdict import Verdict
from tests.dst.conftest import CommandLine
from tests.dst.toy_scenarios import Abandoning, Collecting, Dropping, Steady

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # trio's own, for each generator that is dropped
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # a last word that nobody hears
]
MANY = 70  # more than are run between two collections
TOYS = pytest.mark.parametrize("scenario", [Dropping, Collecting, Abandoning])


def results(scenario: type[Scenario], runs: int) -> list[RunResult]:
    async def body(h: Host) -> list[RunResult]:
        return [await h.run(scenario, Random(7, scenario.faults)) for _ in range(runs)]

    return host(body)


@pytest.fixture
def restored() -> Iterator[None]:
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()


@TOYS
def test_a_run_is_the_same_whatever_garbage_there_was_before(scenario: type[Scenario]) -> None:
    alone = [results(scenario, 1)[0].digest for _ in range(2)]
    assert {*alone} == {result.digest for result in results(scenario, MANY)}


@pytest.mark.parametrize("threshold", [1, 100, 0])
def test_a_run_is_the_same_however_eager_the_collector_is(threshold: int, restored: None) -> None:
    wanted = results(Dropping, 1)[0].digest
    gc.enable()
    gc.set_threshold(threshold, 1, 1)
    assert {wanted} == {result.digest for result in results(Dropping, 3)}
    assert gc.isenabled(), "it is put back after the run"


def test_nothing_of_a_generator_that_was_dropped_is_in_the_trace() -> None:
    (result,) = results(Dropping, 1)
    kinds = {record[0] for record in result.records}
    assert "turned" in kinds
    assert not {"finally", "collected"} & kinds
    assert b"FINALLY" not in trace.encode(list(result.records))


def test_nothing_of_a_generator_that_a_flow_left_midway_is_in_its_log() -> None:
    (result,) = results(Abandoning, 1)
    emitted = [record[3].partition("/")[0] for record in result.records if record[0] == "emit"]
    assert ["read", "went on"] == emitted
    assert Verdict.PASS is result.verdict


@TOYS
def test_it_is_the_same_in_other_processes(scenario: type[Scenario], command: CommandLine) -> None:
    done = command.run("doctor", f"toy_scenarios:{scenario.__name__}", "-n", "2", "--python", sys.executable)
    assert 0 == done.code, done.out


class Reaching(Steady):
    """A generator in a ring, which reaches for real I/O when it is finalised: at the end of some later run."""

    name = "reaching"

    async def drive(self, sim):
        async def numbers():
            try:
                yield 1
            finally:
                await trio.lowlevel.wait_readable(0)

        ring = [numbers()]
        await anext(ring[0])
        ring.append(ring)


def test_what_is_finalised_later_is_put_down_to_no_run() -> None:
    async def body(h: Host) -> list[tuple[Verdict, tuple[str, ...]]]:
        found = [await h.run(Reaching, Calm()) for _ in range(MANY)]
        return [(result.verdict, result.refused) for result in found]

    assert {(Verdict.PASS, ())} == {*host(body)}
