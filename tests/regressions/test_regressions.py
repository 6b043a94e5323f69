"""Schedules that once found something, kept for good: all pass on the true kernel, and those of a mutant fail on it.

One without a mutant once failed on the true kernel, or the harness took it for a failure.

A schedule that no longer finds its points has to be found again, not deleted: labels are meant to outlive edits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dst.choices import Written
from dst.judging import run_one
from dst.run import Host, host
from dst.schedule import Schedule, parse
from dst.transparency import Transparency
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS

FILES = sorted(Path(__file__).parent.glob("*.json"))


def read(file: Path) -> Schedule:
    return parse(file.read_text(encoding="utf-8"), file.name)


def of_mutants() -> list[Path]:
    return [file for file in FILES if read(file).mutant is not None]


@pytest.mark.parametrize("file", of_mutants(), ids=lambda file: file.stem)
def test_a_schedule_still_finds_what_it_found(file):
    schedule = read(file)
    mutant = MUTANTS[schedule.mutant]
    choices = Written(schedule.deviations)

    async def body(h: Host):
        broken = mutant.apply(SCENARIOS[schedule.scenario])
        return (await run_one(h, Transparency(h), broken, choices))[1]

    violation = host(body)
    assert () == choices.missed
    assert violation.invariant in mutant.expected


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_true_kernel_passes_it(file):
    schedule = read(file)

    choices = Written(schedule.deviations)

    async def body(h: Host):
        return await run_one(h, Transparency(h), SCENARIOS[schedule.scenario], choices)

    result, violation = host(body)
    assert () == (choices.missed if schedule.mutant is None else ()), "a schedule whose points are gone says nothing"
    assert violation is None
    assert 0 == result.verdict


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_file_is_as_it_would_be_written(file):
    assert file.read_text(encoding="utf-8") == read(file).to_text()


def test_there_are_some():
    assert {"emit-no-unsettled", "saga-resumes-forward"} <= {read(file).mutant for file in FILES}
