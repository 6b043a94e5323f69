"""Running one piece of work: each run gives a row, and what a campaign reports is computed from rows alone."""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping

import attrs

from dst.choices import Random, Written
from dst.errors import HarnessBroke
from dst.executors.assignment import Assignment, Chunk
from dst.findings import describe
from dst.judging import choices_of, diverged, investigate, run_one
from dst.lookup import find_scenario
from dst.records import DivergenceRecord, FailureRecord
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.shrink import BUDGET
from dst.signature import Signature, inconclusive, signature_of
from dst.transparency import Transparency
from dst.verdict import Violation

Strategy = Callable[[type[Scenario], int, "frozenset[str] | None", "float | None"], Random]

STRATEGIES: Mapping[str, Strategy] = {"random": choices_of}
"""Ways to make a run's choices from its seed."""


@attrs.frozen(kw_only=True)
class Row:
    """What a campaign keeps of one run."""

    index: int
    scenario: int
    seed: int
    digest: str
    seconds: float
    fired: tuple[tuple[str, int], ...]
    judged: tuple[tuple[str, int], ...]
    marks: tuple[tuple[str, int], ...]
    why: str = ""  # it says nothing
    rechecked: bool = False
    divergence: DivergenceRecord | None = None
    signature: str = ""  # of its failure
    failure: FailureRecord | None = None  # None if this signature was seen before


class ChunkRunner:
    """Runs pieces of work on one host.  Mutable: it has looked up the scenarios."""

    def __init__(self, host: Host, assignment: Assignment) -> None:
        self._host = host
        self._assignment = assignment
        self._scenarios = [find_scenario(name, assignment.mutant) for name in assignment.scenarios]
        self._strategy = STRATEGIES[assignment.strategy]

    async def rows(self, chunk: Chunk) -> AsyncIterator[Row]:
        """Yield a row for each run, up to the deadline, a run that diverged or as many failures as are wanted."""
        began, known, wanted = time.monotonic(), set(chunk.known), self._assignment.failures_max
        # Anew for each piece: what one process has seen before must not show in its verdicts.
        transparency = Transparency(self._host)
        for index in range(chunk.start, chunk.stop):
            if chunk.seconds_left is not None and time.monotonic() - began > chunk.seconds_left:
                return
            scenario, seed, twice = self._assignment.run(index)
            try:
                row = await self._row(transparency, index, scenario, seed, twice, known)
            except Exception as error:
                raise HarnessBroke(self._assignment.scenarios[scenario], seed, traceback.format_exc()) from error
            known |= {row.signature} - {""}
            yield row
            if row.divergence is not None or (wanted is not None and len(known - chunk.known) >= wanted):
                return

    async def _row(
        self, transparency: Transparency, index: int, scenario: int, seed: int, twice: bool, known: set[str]
    ) -> Row:
        cls, began = self._scenarios[scenario], time.perf_counter()
        result, violation = await run_one(self._host, transparency, cls, self._choices(cls, seed))
        row = Row(
            index=index,
            scenario=scenario,
            seed=seed,
            digest=result.digest,
            seconds=time.perf_counter() - began,
            fired=tuple(sorted(result.fired.items())),
            judged=tuple(result.judgement.judged),
            marks=tuple(sorted(result.marks.items())),
            why=inconclusive(result),
            rechecked=twice,
        )
        if twice or violation is not None:
            again = await self._host.run(cls, self._choices(cls, seed))
            if again.digest != result.digest:
                return attrs.evolve(row, divergence=self._diverged(cls, seed, result, again))
        if violation is None:
            return row
        signature = signature_of(result, self._assignment.mutant, violation)
        if signature.text in known:
            return attrs.evolve(row, signature=signature.text)
        failure = await self._failure(transparency, cls, result, violation, signature, seed)
        return attrs.evolve(row, signature=signature.text, failure=failure)

    def _choices(self, scenario: type[Scenario], seed: int) -> Random:
        return self._strategy(scenario, seed, self._assignment.faults, self._assignment.fault_rate)

    def _diverged(self, scenario: type[Scenario], seed: int, one: RunResult, other: RunResult) -> DivergenceRecord:
        found = diverged(scenario.name, seed, one, other)
        first, second = _bare(found.first), _bare(found.second)
        return DivergenceRecord(scenario=scenario.name, seed=seed, record=found.record, first=first, second=second)

    async def _failure(
        self,
        transparency: Transparency,
        scenario: type[Scenario],
        result: RunResult,
        violation: Violation,
        signature: Signature,
        seed: int,
    ) -> FailureRecord:
        found = await investigate(
            self._host,
            transparency,
            scenario,
            result,
            violation,
            signature,
            seed=seed,
            mutant=self._assignment.mutant,
            budget=BUDGET if self._assignment.shrinking else 0,
        )
        final = await self._host.run(scenario, Written(found.schedule.deviations))
        return describe(
            scenario,
            final,
            found.violation,
            signature,
            seed=seed,
            deviations=found.schedule.deviations,
            found_with=found.found_with,
            minimal=found.minimal,
            shrunk=self._assignment.shrinking,
            replays=found.replays and final.digest == found.digest,
            replay="",  # said by who files it
        )


def _bare(records: str) -> str:
    """Return a list of one record without the list."""
    return records[1:-1] if records.startswith("[[") else records
