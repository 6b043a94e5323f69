"""A failure explained: where a passing run parts from it, and which moment decided it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dst import reading
from dst.cause import Fork, Search, Share, Turn
from dst.choices import Written
from dst.faults import Fault
from dst.forks import Failing, failing_run, forks
from dst.judging import run_one
from dst.nearest import Nearby, Nearest
from dst.records import DeviationRecord, ExplanationRecord, FailureRecord, NearestRecord, ShareRecord, TurnRecord
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.sentences import act, crashes, said_crash, sentence
from dst.transparency import Transparency
from dst.verdict import Verdict

_BEFORE, _AFTER = 3, 5  # records shown before and after two runs part
_BRIEF_RUNS, _BRIEF_TIMES, _BRIEF_STEPS = 112, 16, 60_000
_CHANGES_MAX = 300


# ---- the cause alone -------------------------------------------------------------------------------------------------


async def cause_of(
    host: Host,
    transparency: Transparency,
    scenario: type[Scenario],
    mutant: str | None,
    deviations: Sequence[Deviation],
) -> str:
    """Return in one sentence which moment of a failing schedule decided it, "" if too little is known.

    It takes about a hundred runs, fewer if they are long: a function of the schedule, never of the time there is.
    """
    failing = await failing_run(host, transparency, scenario, mutant, deviations)
    if failing is None:
        return ""
    search = _search(
        failing,
        forks(host, transparency, failing, failing.faults),
        failing.faults,
        times=_BRIEF_TIMES,
        budget=min(_BRIEF_RUNS, _BRIEF_STEPS // max(1, failing.result.steps)),
    )
    await search.run()
    turn = _turn(failing, search, search.turn)
    return "" if turn is None else said_turn(failing, turn)


def _search(failing: Failing, fork: Fork, faults: Sequence[Fault], *, times: int, budget: int) -> Search:
    return Search(
        fork,
        moments=failing.moments(faults),
        deviations=failing.deviations,
        times=times,
        budget=budget,
    )


# ---- the whole -------------------------------------------------------------------------------------------------------


class OutOfTime(Exception):
    """There is no more time for another run."""


@attrs.frozen(kw_only=True)
class Effort:
    """How much is done to explain: `times` continuations at each of `moments`, and more to narrow down."""

    times: int = 40
    moments: int = 12
    budget: int = 2_000  # runs in all
    faults: frozenset[str] | None = None  # None: the kinds that are in the schedule


class Explanation:
    """One failing run being explained.  Mutable: what is known so far, also if it is cut short.

    `before_run(runs)` is called before each run, and may raise `OutOfTime`.
    """

    def __init__(self, failing: Failing, effort: Effort, before_run: Callable[[int], None]) -> None:
        self.stopped = ""
        self.failing = failing
        self.faults = failing.faults if effort.faults is None else _named(failing, effort.faults)
        self._effort = effort
        self._before_run = before_run
        self._nearby: Nearby | None = None
        self._search: Search | None = None

    @property
    def runs(self) -> int:
        """Runs so far."""
        return (self._nearby.tried if self._nearby else 0) + (self._search.runs if self._search else 0)

    async def run(self, host: Host, transparency: Transparency) -> None:
        """Find out all there is to find out within the effort."""
        failing, effort = self.failing, self._effort

        async def passes(deviations: tuple[Deviation, ...]) -> RunResult | None:
            self._before_run(self.runs)
            result, wrong = await run_one(host, transparency, failing.scenario, Written(deviations))
            return result if wrong is None and result.verdict is Verdict.PASS else None

        fork = forks(host, transparency, failing, self.faults)

        async def counted(followed: int, number: int) -> bool:
            self._before_run(self.runs)
            return await fork(followed, number)

        points = {point.label: point.menu for point in failing.passed[: failing.last]}
        half = effort.budget // 2
        self._nearby = Nearby(failing.result, points, passes, min(_CHANGES_MAX, half))
        try:
            whole = await self._nearby.run() or half >= _CHANGES_MAX
            left = effort.budget - self._nearby.tried
            self._search = _search(failing, counted, self.faults, times=effort.times, budget=left)
            whole = await self._search.run(spread=effort.moments) and whole
        except OutOfTime as error:
            self.stopped = str(error)
        else:
            self.stopped = "" if whole else f"the budget of {effort.budget:,} runs is used up"

    def record(self, failure: FailureRecord, exit_code: int) -> ExplanationRecord:
        """Return the record of what is known by now; `failure` is that of the run."""
        failing, search = self.failing, self._search
        turn = None if search is None else _turn(failing, search, search.turn)
        return ExplanationRecord(
            failure=attrs.evolve(failure, cause="" if turn is None else said_turn(failing, turn)),
            faults=tuple(fault.name for fault in self.faults),
            turn=turn,
            curve=() if search is None else tuple(_share(failing, share) for share in search.curve),
            nearest=self._nearest(),
            tried=self._nearby.tried if self._nearby else 0,
            passing=self._nearby.passing if self._nearby else 0,
            runs=self.runs,
            stopped=self.stopped,
            exit_code=exit_code,
        )

    def _nearest(self) -> NearestRecord | None:
        found = None if self._nearby is None else self._nearby.nearest
        if found is None:
            return None
        one, other = self.failing.result.records, found.result.records
        return NearestRecord(
            change=_said_change(found),
            deviations=tuple(DeviationRecord(at=d.at, do=d.do, until=d.until) for d in found.change.deviations),
            record=found.at,
            when_ns=reading.moment(one, found.at).when_ns,
            failing=reading.moment(one, found.at).says,
            passing=reading.moment(other, found.at).says,
            common_lines=tuple(reading.lines(one, max(0, found.at - _BEFORE), found.at)),
            failing_lines=tuple(reading.lines(one, found.at, found.at + _AFTER)),
            passing_lines=tuple(reading.lines(other, found.at, found.at + _AFTER)),
        )


def _named(failing: Failing, names: frozenset[str]) -> tuple[Fault, ...]:
    return tuple(fault for fault in failing.scenario.faults if fault.name in names)


# ---- words -----------------------------------------------------------------------------------------------------------


def said_turn(failing: Failing, turn: TurnRecord) -> str:
    """Return the moment named, in one sentence with its denominators."""
    at, before = turn.at, turn.before
    if not failing.deviations:  # the first of the runs is the calm one
        others = f"{at.failing - 1} of {at.of - 1} runs with faults by chance fail alike"
        return f"nothing has to go wrong: the calm run fails, and {others}"
    does = "decides it" if turn.certain else "matters most"
    said = f"{at.says} {does}: {at.failing} of {at.of} runs that go on from there with fresh choices fail alike"
    if before is None:
        return said
    others = ": other faults of the kind do it too" if 2 * before.failing >= before.of else ""
    return f"{said}, {before.failing} of {before.of} from {'just before it' if turn.exact else before.says}{others}"


def _turn(failing: Failing, search: Search, turn: Turn | None) -> TurnRecord | None:
    if turn is None:
        return None
    return TurnRecord(
        at=_share(failing, turn.at),
        before=None if turn.before is None else _share(failing, turn.before),
        certain=turn.certain,
        exact=search.exact(turn),
    )


def _share(failing: Failing, share: Share) -> ShareRecord:
    point = failing.passed[share.followed - 1] if share.followed else None
    record = point.record if point is not None else 0
    number, says = (None, "the start") if point is None else _said_point(failing, point.label, point.deviates)
    return ShareRecord(
        followed=share.followed,
        point="" if point is None else point.label,
        says=says,
        deviation=number,
        record=record,
        when_ns=reading.moment(failing.result.records, record - 1).when_ns if record else 0,
        failing=share.failing,
        of=share.of,
    )


def _said_point(failing: Failing, label: str, deviates: bool) -> tuple[int | None, str]:
    """Return (which deviation it is, the moment as a noun)."""
    if not deviates:
        return None, act(label)
    deviations = failing.result.deviations
    index = next(i for i, deviation in enumerate(deviations) if deviation.at == label)
    node = crashes(failing.result.records).get(label, "")
    said = said_crash(deviations[index], node)
    return index + 1, said or f"deviation {index + 1} ({sentence(deviations[index], node)})"


def _said_change(found: Nearest) -> str:
    change = found.change
    if change.to is None:
        return "with no deviation at all" if change.index is None else f"without deviation {change.index + 1}"
    said = sentence(change.to, crashes(found.result.records).get(change.to.at, ""))
    return f"with {'one deviation' if change.index is None else f'another deviation {change.index + 1}'}: {said}"
