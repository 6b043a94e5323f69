"""Running one piece of work: each run gives a row, and what a campaign reports is computed from rows alone."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import AsyncIterator

import attrs

from dst.choices import Written
from dst.errors import HarnessBroke
from dst.executors.assignment import Assignment, Chunk
from dst.explain import cause_of
from dst.findings import describe
from dst.idle_faults import sample
from dst.investigating import investigate
from dst.judging import diverged, run_one, terms_of
from dst.lookup import Find, find_scenario
from dst.records import DivergenceRecord, FailureRecord
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Schedule
from dst.shrink import BUDGET
from dst.signature import Signature, inconclusive, signature_of
from dst.strategies.portfolio import STRATEGIES
from dst.strategies.strategy import Deviations, Strategy
from dst.transparency import TimeOut, Transparency
from dst.verdict import Violation


@attrs.frozen(kw_only=True)
class Row:
    """What a campaign keeps of one run."""

    index: int
    scenario: int
    seed: int
    digest: str
    seconds: float
    strategy: str  # the one that proposed it
    fired: tuple[tuple[str, int], ...]
    judged: tuple[tuple[str, int], ...]
    marks: tuple[tuple[str, int], ...]
    why: str = ""  # it says nothing
    rechecked: bool = False
    sampled: tuple[tuple[str, bool], ...] = ()  # kinds of faults that were left out for once, and did that matter?
    divergence: DivergenceRecord | None = None
    signature: str = ""  # of its failure
    failure: FailureRecord | None = None  # None if this signature was seen before
    kept: Deviations | None = None  # its schedule, if later campaigns are to know it
    token: str = ""  # its schedule, if no seed makes it and somebody may want to see it again


class ChunkRunner:
    """Runs pieces of work on one host.  Mutable: it has looked up the scenarios."""

    def __init__(self, host: Host, assignment: Assignment, find: Find = find_scenario) -> None:
        self._host = host
        self._assignment = assignment
        self._transparency = Transparency(host)  # for all pieces: how a calm run ends depends on no other run
        self._scenarios = [find(name, assignment.mutant) for name in assignment.scenarios]

    async def rows(self, chunk: Chunk) -> AsyncIterator[Row]:
        """Yield a row for each run, up to the deadline, a run that diverged or as many failures as are wanted.

        A run that was not compared to the end when time was out has no row, as if it had not begun: rows up to there
        are what they would have been with more time.
        """
        known, wanted = set(chunk.known), self._assignment.failures_max
        ends_at = math.inf if chunk.seconds_left is None else time.monotonic() + chunk.seconds_left
        strategies = [self._strategy(i, opening=chunk.start == 0) for i in range(len(self._scenarios))]
        for index in range(chunk.start, chunk.stop):
            if time.monotonic() > ends_at:
                return
            scenario, seed, twice = self._assignment.run(index)
            try:
                row = await self._row(strategies[scenario], index, scenario, seed, twice, known, ends_at)
            except TimeOut:
                return
            except Exception as error:
                raise HarnessBroke(self._assignment.scenarios[scenario], seed, traceback.format_exc()) from error
            known |= {row.signature} - {""}
            yield row
            if row.divergence is not None or (wanted is not None and len(known - chunk.known) >= wanted):
                return

    def _strategy(self, scenario: int, *, opening: bool) -> Strategy:
        plan = self._assignment
        corpus = plan.corpus[scenario] if plan.corpus else ()
        terms = terms_of(self._scenarios[scenario], plan.faults, plan.fault_rate, corpus=corpus, opening=opening)
        return STRATEGIES[plan.strategy](terms)

    async def _row(
        self,
        strategy: Strategy,
        index: int,
        scenario: int,
        seed: int,
        twice: bool,
        known: set[str],
        ends_at: float,
    ) -> Row:
        cls, began = self._scenarios[scenario], time.perf_counter()
        proposal = strategy.propose(seed)
        self._transparency.in_time = lambda: time.monotonic() <= ends_at
        result, violation = await run_one(self._host, self._transparency, cls, proposal.choices(), proposal.spy)
        self._transparency.in_time = lambda: True  # what has failed is looked into, however late it is
        kept, why = strategy.saw(proposal, result), inconclusive(result)
        row = Row(
            index=index,
            scenario=scenario,
            seed=seed,
            digest=result.digest,
            seconds=time.perf_counter() - began,
            strategy=proposal.strategy,
            fired=tuple(sorted(result.fired.items())),
            judged=tuple(result.judgement.judged),
            marks=tuple(sorted(result.marks.items())),
            why=why,
            rechecked=twice,
            kept=result.deviations if kept else None,
            token="" if proposal.seeded or not why else self._token(cls, result.deviations),
        )
        made_by = seed if proposal.seeded else None
        if twice or violation is not None:
            again = await self._host.run(cls, proposal.choices())
            if again.digest != result.digest:
                return attrs.evolve(row, divergence=self._diverged(cls, made_by, result, again))
        if violation is None:
            sampled = await sample(self._host, cls, result, seed) if twice else ()
            return attrs.evolve(row, sampled=sampled)
        signature = signature_of(result, self._assignment.mutant, violation)
        if signature.text in known:
            return attrs.evolve(row, signature=signature.text)
        failure = await self._failure(cls, result, violation, signature, made_by)
        return attrs.evolve(row, signature=signature.text, failure=failure)

    def _token(self, scenario: type[Scenario], deviations: Deviations) -> str:
        return Schedule(
            scenario=scenario.name,
            mutant=self._assignment.mutant,
            deviations=deviations,
        ).to_token()

    def _diverged(
        self, scenario: type[Scenario], seed: int | None, one: RunResult, other: RunResult
    ) -> DivergenceRecord:
        found = diverged(one, other)
        return DivergenceRecord(
            scenario=scenario.name,
            seed=seed,
            token="" if seed is not None else self._token(scenario, one.deviations),
            record=found.record,
            first=_bare(found.first),
            second=_bare(found.second),
        )

    async def _failure(
        self,
        scenario: type[Scenario],
        result: RunResult,
        violation: Violation,
        signature: Signature,
        seed: int | None,
    ) -> FailureRecord:
        found = await investigate(
            self._host,
            self._transparency,
            scenario,
            result,
            violation,
            signature,
            seed=seed,
            mutant=self._assignment.mutant,
            budget=BUDGET if self._assignment.shrinking else 0,
        )
        scenario, deviations, plan = found.scenario, found.schedule.deviations, self._assignment
        final = await self._host.run(scenario, Written(deviations))
        explained = plan.shrinking and plan.explaining
        cause = await cause_of(self._host, self._transparency, scenario, plan.mutant, deviations) if explained else ""
        return describe(
            scenario,
            final,
            found.violation,
            signature,
            seed=seed,
            deviations=deviations,
            found_with=found.found_with,
            minimal=found.minimal,
            shrunk=self._assignment.shrinking,
            replays=found.replays and final.digest == found.digest,
            replay="",  # said by who files it
            cause=cause,
            found_in=found.found_in,
        )


def _bare(records: str) -> str:
    """Return a list of one record without the list."""
    return records[1:-1] if records.startswith("[[") else records
