"""A failure as it is stored: the core's own objects turned into a record, once, where the trace is at hand."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dst.lookup import says
from dst.reading import moment
from dst.records import DeviationRecord, FailureRecord
from dst.run import RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation, Schedule, Versions
from dst.sentences import sentences
from dst.signature import Signature
from dst.verdict import Violation


def describe(
    scenario: type[Scenario],
    result: RunResult,
    violation: Violation,
    signature: Signature,
    *,
    seed: int | None,
    deviations: Sequence[Deviation],
    found_with: int,
    minimal: bool,
    shrunk: bool | None,
    replays: bool,
    replay: str,
    cause: str = "",
    found_in: str = "",
) -> FailureRecord:
    """Return the record of a failure, in the words of the run that shows it.

    `found_in` is the name of the scenario of the run that found it, if that may be another.
    """
    seen_at = moment(result.records, violation.at)
    return FailureRecord(
        id=signature.id,
        signature=signature.text,
        invariant=violation.invariant,
        says=says(scenario, violation.invariant),
        scenario=scenario.name,
        mutant=signature.mutant,
        seed=seed,
        key=violation.key,
        record=violation.at,
        during=seen_at.says,
        when_ns=seen_at.when_ns,
        seen=violation.seen,
        wanted=violation.wanted,
        deviations=tuple(DeviationRecord(at=d.at, do=d.do, until=d.until) for d in deviations),
        sentences=sentences(deviations, result.records),
        found_with=found_with,
        choices=result.operations,
        minimal=minimal,
        shrunk=shrunk,
        digest=result.digest,
        replays=replays,
        replay=replay,
        cause=cause,
        found_in="" if found_in == scenario.name else found_in,
    )


def remembered(found: FailureRecord, known: FailureRecord | None) -> FailureRecord:
    """Return a failure with what was found out about the same run before, if anything was."""
    if known is None or (known.id, known.digest) != (found.id, found.digest):
        return found
    return attrs.evolve(
        found,
        found_with=known.found_with,
        minimal=known.minimal,
        shrunk=known.shrunk,
        cause=known.cause,
        found_in=known.found_in,
    )


def schedule_of(failure: FailureRecord, versions: Versions = ()) -> Schedule:
    """Return the schedule file's content for a recorded failure."""
    return Schedule(
        scenario=failure.scenario,
        mutant=failure.mutant,
        seed=None if failure.found_in else failure.seed,  # which makes a run of another scenario
        deviations=tuple(Deviation(at=d.at, do=d.do, until=d.until) for d in failure.deviations),
        versions=versions,
    )
