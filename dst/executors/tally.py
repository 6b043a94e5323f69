"""What a campaign comes to: rows counted up in the order of their index, into one record.

Because rows come in order and stop at the same one, the record is the same for any number of workers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable

import attrs

from dst.executors.assignment import Assignment
from dst.executors.chunk import Row
from dst.lookup import Find, all_invariants, find_scenario
from dst.records import (
    CampaignRecord,
    DivergenceRecord,
    FailureRecord,
    InconclusiveRecord,
    ScenarioRecord,
    SeedsRecord,
    StrategyRecord,
)
from dst.scenario import Scenario
from dst.strategies.strategy import Deviations

_INCONCLUSIVE_KEPT = 20

ALL_HELD, FAILED, WRONG_USAGE, BROKE, NONDETERMINISM, VACUOUS, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130
"""Exit codes."""


@attrs.define(kw_only=True)
class _Share:
    """One scenario's share.  Mutable: counts."""

    scenario: type[Scenario]
    schedules: int = 0
    seconds: float = 0.0
    fired: Counter[str] = attrs.field(factory=Counter)
    judged: Counter[str] = attrs.field(factory=Counter)
    marks: Counter[str] = attrs.field(factory=Counter)
    sampled: Counter[str] = attrs.field(factory=Counter)
    unchanged: Counter[str] = attrs.field(factory=Counter)


@attrs.define(kw_only=True)
class _Strategy:
    """One strategy's share.  Mutable: counts."""

    schedules: int = 0
    failing: int = 0
    first: int | None = None

    def add(self, failed: bool) -> None:
        """Count a run."""
        self.schedules += 1
        self.failing += failed
        if failed and self.first is None:
            self.first = self.schedules


class Tally:
    """The count so far.  Mutable: rows are added to it.

    `file` is told each new failure and returns it with the command that reproduces it, which depends on where it is
    kept; so is `diverged`; `told` is told each row that counts.
    """

    def __init__(
        self,
        assignment: Assignment,
        file: Callable[[FailureRecord], FailureRecord],
        diverged: Callable[[DivergenceRecord], DivergenceRecord] = lambda found: found,
        told: Callable[[Row], None] = lambda _: None,
        find: Find = find_scenario,
    ) -> None:
        self.assignment = assignment
        self.failures: list[FailureRecord] = []
        self.schedules = 0
        self.interrupted = False
        self.stopped = ""  # why the work ended before its end
        self.broke = False  # the harness itself did
        self.between_hash_seeds = 0  # runs that were compared
        self._file = file
        self._diverged = diverged
        self._told = told
        self._shares = [_Share(scenario=find(name, assignment.mutant)) for name in assignment.scenarios]
        self.kept: list[list[Deviations]] = [[*corpus] for corpus in assignment.corpus]  # for each scenario
        self._strategies: dict[str, _Strategy] = {}
        self._digest = hashlib.blake2b(b"[[", digest_size=16)  # as `trace.digest` of one tuple of all digests
        self._signatures: Counter[str] = Counter()
        self._divergences: list[DivergenceRecord] = []
        self._inconclusive: list[InconclusiveRecord] = []
        self._inconclusive_runs = 0
        self._rechecked = 0
        self._done = False

    @property
    def known(self) -> frozenset[str]:
        """Signatures of the failures so far."""
        return frozenset(self._signatures)

    @property
    def done(self) -> bool:
        """Is there enough: as many failures as were wanted, or a run that cannot be trusted?"""
        return self._done

    def add(self, row: Row) -> bool:
        """Count a row; False if no more are wanted."""
        if self._done:
            return False
        self._told(row)
        share = self._shares[row.scenario]
        self.schedules += 1
        self._digest.update(f'{"," if self.schedules > 1 else ""}"{row.digest}"'.encode())
        share.schedules += 1
        share.seconds += row.seconds
        share.fired.update(dict(row.fired))
        share.judged.update(dict(row.judged))
        share.marks.update(dict(row.marks))
        self._strategies.setdefault(row.strategy, _Strategy()).add(bool(row.signature))
        if row.kept is not None and self.kept:
            self.kept[row.scenario].append(row.kept)
        share.sampled.update(kind for kind, _ in row.sampled)
        share.unchanged.update(kind for kind, changed in row.sampled if not changed)
        self._rechecked += row.rechecked
        name = share.scenario.name
        if row.why:
            self._inconclusive_runs += 1
            if len(self._inconclusive) < _INCONCLUSIVE_KEPT:
                seed = None if row.token else row.seed
                self._inconclusive.append(InconclusiveRecord(scenario=name, seed=seed, why=row.why, token=row.token))
        if row.divergence is not None:
            self._divergences.append(self._diverged(row.divergence))
        if row.signature:
            self._failed(row)
        wanted = self.assignment.failures_max
        self._done = bool(self._divergences) or (wanted is not None and len(self.failures) >= wanted)
        return not self._done

    def differs(self, found: DivergenceRecord) -> None:
        """Count a run that was made in two other processes, and was not the same."""
        self._divergences.append(found)

    @property
    def all_held(self) -> bool:
        """Would the campaign pass as it is?"""
        return self._exit_code(self._missing()) == ALL_HELD

    def _failed(self, row: Row) -> None:
        if row.signature not in self._signatures:
            assert row.failure is not None, "the first row of a signature tells its failure"
            self.failures.append(self._file(row.failure))
        self._signatures[row.signature] += 1

    # ---- the record --------------------------------------------------------------------------------------------------

    def record(self, *, seconds: float, workers: int, planned: int | None, repeat: str) -> CampaignRecord:
        """Return the record of the campaign."""
        assignment = self.assignment
        missing = self._missing()
        return CampaignRecord(
            scenario=tuple(share.scenario.name for share in self._shares),
            strategy=assignment.strategy,
            mutant=assignment.mutant,
            seeds=self._seeds(),
            schedules=self.schedules,
            planned=planned,
            seconds=seconds,
            workers=workers,
            shard=None if assignment.shard[1] == 1 else f"{assignment.shard[0] + 1}/{assignment.shard[1]}",
            verdict=self._verdict(missing),
            failures=tuple(attrs.evolve(f, repeats=self._signatures[f.signature] - 1) for f in self.failures),
            divergences=tuple(self._divergences),
            inconclusive=tuple(self._inconclusive),
            inconclusive_runs=self._inconclusive_runs,
            fired=dict(_sum(share.fired for share in self._shares)),
            judged=dict(_sum(share.judged for share in self._shares)),
            marks=dict(_sum(share.marks for share in self._shares)),
            missing=tuple(missing),
            scenarios=tuple(self._scenario(share) for share in self._shares),
            rechecked=self._rechecked,
            between_hash_seeds=self.between_hash_seeds,
            stopped=self.stopped,
            interrupted=self.interrupted,
            digest=self._campaign_digest(),
            repeat=repeat,
            exit_code=self._exit_code(missing),
            strategies=tuple(
                StrategyRecord(name=name, schedules=share.schedules, failing=share.failing, first=share.first)
                for name, share in self._strategies.items()
            ),
        )

    def _campaign_digest(self) -> str:
        whole = self._digest.copy()
        whole.update(b"]]")
        return whole.hexdigest()

    def _seeds(self) -> SeedsRecord:
        if self.assignment.seeds is not None:
            return SeedsRecord(campaign=None, first=self.assignment.seeds[0], last=self.assignment.seeds[1] - 1)
        first, last = (self.assignment.run(i)[1] if self.schedules else None for i in (0, self.schedules - 1))
        return SeedsRecord(campaign=self.assignment.seed, first=first, last=last)

    def _scenario(self, share: _Share) -> ScenarioRecord:
        def counts(counted: Counter[str], names: list[str]) -> dict[str, int]:
            return {name: counted[name] for name in dict.fromkeys([*names, *counted])}

        scenario = share.scenario
        says = dict(all_invariants(scenario))
        chosen = [f.name for f in scenario.faults if self.assignment.faults is None or f.name in self.assignment.faults]
        return ScenarioRecord(
            name=scenario.name,
            schedules=share.schedules,
            run_seconds=share.seconds,
            fired=counts(share.fired, chosen),
            judged=counts(share.judged, list(says)),
            marks=counts(share.marks, list(scenario.marks)),
            says=says,
            sampled=dict(share.sampled),
            unchanged=dict(share.unchanged),
        )

    def _missing(self) -> list[str]:
        """Return what was asked for and did not happen.

        A campaign that failed, was cut short or tries a mutant is not asked: it had no chance, or another purpose.
        """
        if self.failures or self._divergences or self.interrupted or self.broke or self.stopped:
            return []
        if not self.schedules:
            return ["no schedule was run"]
        if self.assignment.mutant is not None:
            return []
        chosen = self.assignment.faults
        missing = []
        for share in self._shares:
            scenario, name = share.scenario, share.scenario.name
            for fault in scenario.faults:
                if (chosen is None or fault.name in chosen) and not share.fired[fault.name]:
                    missing.append(f"fault {fault.name} of {name} never fired")
            for invariant, _ in all_invariants(scenario):
                if not share.judged[invariant]:
                    missing.append(f"invariant {invariant} of {name} was never judged where it could fail")
            marks = scenario.marks if chosen is None else ()
            missing += [f"mark {mark!r} of {name} was never reached" for mark in marks if not share.marks[mark]]
        return missing

    def _verdict(self, missing: list[str]) -> str:
        if self.failures or self._divergences:
            return "fail"
        return "unknown" if self._inconclusive_runs or missing or self.interrupted or self.stopped else "pass"

    def _exit_code(self, missing: list[str]) -> int:
        """Return the gravest thing that is the matter: an interruption, then what makes the rest worthless."""
        if self.interrupted:
            return INTERRUPTED
        if self.broke:
            return BROKE
        if self._divergences:
            return NONDETERMINISM
        if self.failures:
            return FAILED
        if self.stopped:
            return INCONCLUSIVE
        if missing:
            return VACUOUS
        return INCONCLUSIVE if self._inconclusive_runs else ALL_HELD


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total.update(counter)
    return total
