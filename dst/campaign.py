"""Campaigns: many runs from seeds, what fired, what was judged, and the failures shrunk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import attrs

from dst import trace
from dst.choices import Random, Written
from dst.mutant import Mutant
from dst.prng import derive
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation, Schedule
from dst.shrink import BUDGET, shrink
from dst.signature import Signature, inconclusive, signature_of, violation_of
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import Transparency
from dst.verdict import Verdict, Violation

_SEED_BITS = 48  # a run's seed is short enough to be read out, and exact in JSON everywhere


def run_seed(campaign_seed: int, index: int) -> int:
    """Return the seed of a campaign's run `index`: it alone reproduces the run."""
    return derive(campaign_seed, index) >> (64 - _SEED_BITS)


@attrs.frozen(kw_only=True)
class Plan:
    """What a campaign is to do."""

    scenarios: tuple[type[Scenario], ...]
    schedules: int
    seed: int = 0
    seeds: range | None = None  # these run seeds, instead of ones derived from `seed`
    mutant: Mutant | None = None
    faults: frozenset[str] | None = None  # names; None: all that a scenario declares
    fault_rate: float | None = None
    failures_max: int = 1
    recheck_one_in: int = 50
    shrinking: bool = True
    seconds_max: float | None = None
    shard: tuple[int, int] = (0, 1)


@attrs.frozen(kw_only=True)
class Failure:
    """One failure, shrunk and replayed."""

    signature: Signature
    violation: Violation
    seed: int
    schedule: Schedule
    found_with: int  # deviations of the run that found it
    choices: int  # points that run passed
    minimal: bool
    digest: str
    replays: bool  # the shrunk schedule, run again, gave the same digest


@attrs.frozen(kw_only=True)
class Divergence:
    """Two runs of one seed that differ: something in them is not under control."""

    scenario: str
    seed: int
    record: int
    first: str
    second: str


@attrs.define(kw_only=True)
class Report:
    """What a campaign found.  Mutable while it goes on."""

    plan: Plan
    schedules: int = 0
    seconds: float = 0.0
    fired: dict[str, int] = attrs.field(factory=dict)
    judged: dict[str, int] = attrs.field(factory=dict)
    marks: dict[str, int] = attrs.field(factory=dict)
    failures: list[Failure] = attrs.field(factory=list)
    repeats: dict[str, int] = attrs.field(factory=dict)  # runs with a signature that was found before
    divergences: list[Divergence] = attrs.field(factory=list)
    inconclusive: list[tuple[str, int, str]] = attrs.field(factory=list)  # scenario, seed, why
    missing: list[str] = attrs.field(factory=list)  # what was asked for and never happened
    rechecked: int = 0
    digest: str = ""  # over the digests of all runs, in order
    interrupted: bool = False

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        if self.failures or self.divergences:
            return Verdict.FAIL
        return Verdict.UNKNOWN if self.inconclusive or self.missing or self.interrupted else Verdict.PASS


Progress = Callable[[Report], None]


class Campaign:
    """One campaign at work.  Mutable: its report grows."""

    def __init__(self, host: Host, plan: Plan, progress: Progress | None = None) -> None:
        self._host = host
        self._plan = plan
        self._progress = progress
        self._transparency = Transparency(host)
        self._digests: list[str] = []
        self.report = Report(plan=plan)

    async def run(self) -> Report:
        """Run the plan, or as much of it as there is time for."""
        report, began = self.report, time.monotonic()  # for the report only: no run sees it
        for index, scenario, seed in self._work():
            if self._plan.seconds_max is not None and time.monotonic() - began > self._plan.seconds_max:
                break
            result, violation = await run_one(self._host, self._transparency, scenario, self._choices(scenario, seed))
            self._account(scenario, seed, result)
            if index % self._plan.recheck_one_in == 0:
                await self._recheck(scenario, seed, result)
            report.seconds = time.monotonic() - began
            if violation is not None:
                await self._failed(scenario, seed, result, violation)
            if self._progress is not None:
                self._progress(report)
            if len(report.failures) >= self._plan.failures_max or report.divergences:
                break
        report.seconds = time.monotonic() - began
        report.digest = trace.digest([tuple(self._digests)])
        if not report.failures and self._plan.mutant is None:
            report.missing = self._find_missing()
        return report

    def _work(self) -> Iterator[tuple[int, type[Scenario], int]]:
        plan, (shard, shards) = self._plan, self._plan.shard
        seeds = plan.seeds if plan.seeds is not None else range(plan.schedules)
        for index, number in enumerate(seeds):
            if index % shards == shard:
                seed = number if plan.seeds is not None else run_seed(plan.seed, number)
                yield index, plan.scenarios[index % len(plan.scenarios)], seed

    def _choices(self, scenario: type[Scenario], seed: int) -> Random:
        return choices_of(scenario, seed, self._plan.faults, self._plan.fault_rate)

    def _account(self, scenario: type[Scenario], seed: int, result: RunResult) -> None:
        report = self.report
        report.schedules += 1
        self._digests.append(result.digest)
        for fault, count in result.fired.items():
            report.fired[fault] = report.fired.get(fault, 0) + count
        for name, count in result.judgement.judged:
            report.judged[name] = report.judged.get(name, 0) + count
        for mark, count in result.marks.items():
            report.marks[mark] = report.marks.get(mark, 0) + count
        if why := inconclusive(result):
            report.inconclusive.append((scenario.name, seed, why))

    async def _recheck(self, scenario: type[Scenario], seed: int, result: RunResult) -> None:
        again = await self._host.run(scenario, self._choices(scenario, seed))
        self.report.rechecked += 1
        if again.digest != result.digest:
            self.report.divergences.append(diverged(scenario.name, seed, result, again))

    async def _failed(self, scenario: type[Scenario], seed: int, result: RunResult, violation: Violation) -> None:
        mutant = self._plan.mutant.name if self._plan.mutant else None
        signature = signature_of(result, mutant, violation)
        if any(failure.signature == signature for failure in self.report.failures):
            self.report.repeats[signature.id] = self.report.repeats.get(signature.id, 0) + 1
            return
        self.report.failures.append(
            await investigate(
                self._host,
                self._transparency,
                scenario,
                result,
                violation,
                signature,
                seed=seed,
                mutant=mutant,
                budget=BUDGET if self._plan.shrinking else 0,
            )
        )

    def _find_missing(self) -> list[str]:
        """Return what was asked for and did not happen: a campaign in which it did not is no pass."""
        report, missing = self.report, []
        if not report.schedules:
            return ["no schedule was run"]
        for scenario in self._plan.scenarios:
            for fault in scenario.faults:
                if (self._plan.faults is None or fault.name in self._plan.faults) and not report.fired.get(fault.name):
                    missing.append(f"fault {fault.name} of {scenario.name} never fired")
            for invariant in scenario.invariants:
                if not report.judged.get(invariant.name):
                    missing.append(
                        f"invariant {invariant.name} of {scenario.name} was never judged where it could fail"
                    )
            if self._plan.faults is None:
                missing += [
                    f"mark {m!r} of {scenario.name} was never reached"
                    for m in scenario.marks
                    if not report.marks.get(m)
                ]
        return missing


def choices_of(
    scenario: type[Scenario], seed: int, faults: frozenset[str] | None = None, rate: float | None = None
) -> Random:
    """Return the choices a seed stands for."""
    return Random(seed, [f for f in scenario.faults if faults is None or f.name in faults], rate)


async def run_one(
    host: Host, transparency: Transparency, scenario: type[Scenario], choices: Random | Written
) -> tuple[RunResult, Violation | None]:
    """Run once and judge all there is to judge."""
    result = await host.run(scenario, choices)
    compared, violation = await transparency.check(scenario, result)
    judged = (*result.judgement.judged, (TRANSPARENT, int(compared)))
    result = attrs.evolve(result, judgement=attrs.evolve(result.judgement, judged=judged))
    return result, violation_of(result) or violation


def diverged(scenario: str, seed: int, one: RunResult, other: RunResult) -> Divergence:
    """Return where two runs of one seed part."""
    at = trace.first_difference(one.records, other.records)
    assert at is not None, "their digests differ"

    def shown(records: Sequence[trace.Record]) -> str:
        return trace.encode([records[at]]).decode() if at < len(records) else "(the trace has ended)"

    return Divergence(scenario=scenario, seed=seed, record=at, first=shown(one.records), second=shown(other.records))


async def investigate(
    host: Host,
    transparency: Transparency,
    scenario: type[Scenario],
    result: RunResult,
    violation: Violation,
    signature: Signature,
    *,
    seed: int,
    mutant: str | None,
    budget: int,
) -> Failure:
    """Shrink a failing run, and replay what is left."""

    async def fails(deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...] | None:
        again, wrong = await run_one(host, transparency, scenario, Written(deviations))
        if wrong is None or signature_of(again, mutant, wrong) != signature:
            return None
        return again.deviations

    shrunk = await shrink(result.deviations, fails, budget)
    final, wrong = await run_one(host, transparency, scenario, Written(shrunk.deviations))
    again = await host.run(scenario, Written(shrunk.deviations))
    return Failure(
        signature=signature,
        violation=wrong or violation,
        seed=seed,
        schedule=Schedule(
            scenario=scenario.name,
            mutant=mutant,
            seed=seed,
            deviations=shrunk.deviations,
            versions=(("scenario", scenario.version),),
        ),
        found_with=len(result.deviations),
        choices=result.operations,
        minimal=shrunk.minimal,
        digest=final.digest,
        replays=wrong is not None and final.digest == again.digest,
    )
