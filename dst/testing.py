"""Simulation in a test suite: `check` a scenario by a campaign or by exploration, `run` one schedule of it.

    from dst.testing import check, run, token

    def test_the_saga_survives_every_crash():
        check(OrderSaga, strategy="explore")

    def test_a_late_signature():
        run(Parcel, token("dst:parcel;deliver:signature:parcel-1:signature-1#1=late")).check()

What is no pass is an error with the text of the command line, which ends with the line that reproduces it: an invariant
that fails, a schedule that is stale, runs that differ, a campaign that is vacuous or inconclusive.  Failures are filed
under `.dst/failures` as the command `dst` files them.  Under the pytest plugin seeds and settings are the session's.
Everything runs in this process, in an event loop of its own: not to be called from async code.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import attrs

from dst import command_line
from dst.choices import Choices, Resumed, Written
from dst.config import known_among, texts
from dst.errors import (
    CheckFailed,
    HarnessBroke,
    Inconclusive,
    InvariantFailed,
    Nondeterminism,
    Stale,
    Vacuous,
    WrongUsage,
)
from dst.executors.assignment import OPEN_END, Assignment
from dst.executors.exploring import describe_found, exploration_record, repeat
from dst.executors.inline import run_inline
from dst.executors.tally import FAILED, NONDETERMINISM, VACUOUS, Tally
from dst.findings import describe, remembered, schedule_of
from dst.home import HomeUnusable, read_schedule
from dst.judging import choices_of, run_one
from dst.lookup import find_mutant
from dst.parameters import bare_name, resized, sized
from dst.records import CampaignRecord, DivergenceRecord, ExplorationRecord, FailureRecord, printable
from dst.replaying import MODES, RESUME, STRICT, Looked, look, missed, settle, took_place
from dst.run import Host, Limits, RunResult, host
from dst.scenario import Scenario
from dst.schedule import Deviation, Schedule, token
from dst.sentences import sentence
from dst.signature import inconclusive, signature_of
from dst.strategies.explore import Exploration, check_orders, explore
from dst.strategies.portfolio import DEFAULT, STRATEGIES
from dst.strategies.view import Bounds
from dst.surroundings import Surroundings, here
from dst.transparency import Transparency
from dst.verdict import Violation
from dst.versions import changed, said, versions_of
from reports.exploration import exploration
from reports.summary import Line, campaign, divergence, failure

__all__ = [
    "CheckFailed",
    "HarnessBroke",
    "Inconclusive",
    "InvariantFailed",
    "Nondeterminism",
    "Run",
    "Schedule",
    "Stale",
    "Vacuous",
    "WrongUsage",
    "check",
    "run",
    "sized",
    "token",
]

EXPLORE = "explore"
SCHEDULES = 300
"""Runs of a campaign in a test, if nobody says otherwise."""


def check(
    scenario: type[Scenario],
    *,
    strategy: str | None = None,
    schedules: int | None = None,
    seed: int | None = None,
    max_time: float | str | None = None,
    max_steps: int | None = None,
    faults: Iterable[str] | None = None,
    fault_rate: float | None = None,
    others: int = Bounds().others,
    all_orders: bool = False,
    mutant: str | None = None,
    mode: str = STRICT,
) -> CampaignRecord | ExplorationRecord:
    """Run a campaign over `scenario`, or with `strategy="explore"` explore every crash schedule of it.

    First the schedules that are kept in `tests/regressions` are replayed, those that are of this scenario, in this
    `mode` (see `run`).  `seed` is the campaign's: the same as that of `dst fuzz`.  `others` is how many faults besides
    crashes one explored schedule may have, `all_orders` has it go on from each state in every order.  What is not given
    is as the session, the test's marker or the project says; `max_time` is in seconds or such as "10m".

    Returns the record.  Raises `InvariantFailed`, `Stale`, `Nondeterminism`, `Vacuous`, `Inconclusive`; `WrongUsage`
    for what cannot be asked for; `HarnessBroke` if the scenario or the harness itself is at fault.
    """
    __tracebackhide__ = True
    around = here()
    tested = find_mutant(mutant).apply(scenario) if mutant else scenario
    known = (*STRATEGIES, EXPLORE)
    how = str(around.value("strategy", strategy) or next(iter(STRATEGIES)))
    known_among("strategy", [how], known)
    known_among("mode", [mode], MODES)
    limits = Limits(steps=cast("int | None", around.value("max-steps", max_steps)) or Limits().steps)
    seconds = cast("float | None", around.value("max-time", max_time))
    asked = _Asked(around=around, scenario=scenario, tested=tested, mutant=mutant, limits=limits)
    _replay_kept(asked, mode, seed or 0)
    if how == EXPLORE:
        bounds = Bounds(others=others, all_orders=all_orders, seconds_max=seconds)
        check_orders(asked.tested, bounds)
        return _explore(asked, bounds)
    chosen = texts(around.value("faults", None if faults is None else list(faults)))
    known_among("fault", chosen, [fault.name for fault in scenario.faults])
    count = cast("int | None", around.value("schedules", schedules))
    return _campaign(
        asked,
        Assignment(
            scenarios=(around.reference(scenario) or scenario.name,),
            mutant=mutant,
            strategy=how,
            seed=around.seed() if seed is None else seed,
            schedules=count or (SCHEDULES if seconds is None else OPEN_END),
            faults=frozenset(chosen) or None,
            fault_rate=cast("float | None", around.value("fault-rate", fault_rate)),
            steps_max=limits.steps,
        ),
        seconds,
    )


def run(
    scenario: type[Scenario],
    schedule: Schedule | None = None,
    *,
    max_steps: int | None = None,
    mode: str = STRICT,
    seed: int = 0,
    strategy: str | None = None,
) -> Run:
    """Run one schedule of `scenario`, by default the calm one.  Raises `WrongUsage` if it is of another scenario.

    In the mode "strict" a deviation that does not find its point is an error of `check`.  In the mode "lenient" it is
    done at a point that is like it, if there is one, else the run goes on calmly there.  In the mode "resume" likewise,
    and from the last deviation that took place on `strategy` goes on, from `seed`; what `check` then files is the
    schedule of all that took place.
    """
    wanted = schedule or Schedule(scenario=scenario.name)
    if bare_name(wanted.scenario) != bare_name(scenario.name):
        raise WrongUsage(f"a schedule of {wanted.scenario!r} cannot be run on {scenario.name!r}: give it its own")
    scenario = resized(scenario, wanted.scenario)
    around = here()
    known_among("mode", [mode], MODES)
    how = str(around.value("strategy", strategy) or DEFAULT)
    if mode == RESUME:
        known_among("strategy", [how], STRATEGIES)
    tested = find_mutant(wanted.mutant).apply(scenario) if wanted.mutant else scenario
    limits = Limits(steps=cast("int | None", around.value("max-steps", max_steps)) or Limits().steps)
    asked = _Asked(around=around, scenario=scenario, tested=tested, mutant=wanted.mutant, limits=limits)

    async def body(simulations: Host) -> tuple[RunResult, Violation | None]:
        deviations = wanted.deviations
        if mode != STRICT:
            deviations = await settle(simulations, tested, deviations)
        choices: Choices = Written(deviations)
        if mode == RESUME:
            first = await simulations.run(tested, choices, judged=False)
            choices = Resumed(took_place(deviations, first), choices_of(tested, seed, strategy=how))
        return await run_one(simulations, Transparency(simulations), tested, choices)

    result, violation = host(body, limits, brief=True)
    ran = wanted if mode == STRICT else wanted.with_deviations(result.deviations)
    return Run(asked=asked, schedule=wanted, ran=ran, result=result, violation=violation)


@attrs.frozen(kw_only=True)
class _Asked:
    """What is tested, and where."""

    around: Surroundings
    scenario: type[Scenario]
    tested: type[Scenario]  # over the mutant's kernel, if there is one
    mutant: str | None
    limits: Limits

    def keep(self, found: FailureRecord) -> FailureRecord:
        """File a failure that can be replayed; return it with the line that reproduces it."""
        if not found.replays:
            return found
        line = self.around.replay(found.id, self.scenario)
        kept = attrs.evolve(found, replay=line or self.again(_schedule(found)))
        try:
            self.around.home.file(kept, schedule_of(kept, versions_of(self.tested)))
        except HomeUnusable:
            return attrs.evolve(found, replay=self.again(_schedule(found)))
        return kept

    @property
    def expression(self) -> str:
        """The scenario as code says it."""
        sizes = "".join(f", {name}={value}" for name, value in self.scenario.sizes.items())
        return f"sized({self.scenario.__name__}{sizes})" if sizes else self.scenario.__name__

    def again(self, schedule: Schedule) -> str:
        """Return the line that does this again where nothing is kept, or the command line cannot find the scenario."""
        line = self.around.replay(schedule.to_token(), self.scenario)
        return line or self.around.again() or f"run({self.scenario.__name__}, {schedule!r}).check()"

    def failed(
        self, failures: Sequence[FailureRecord], record: CampaignRecord | ExplorationRecord | None, how: str = ""
    ) -> InvariantFailed:
        """Return the error for these failures; `how` says by what they were found."""
        blocks = [_texts(failure(found)) for found in failures]
        if how:
            blocks[-1].insert(-1, f"  found:  {how}")
        for found in failures:
            self.tell("id", found.id)
        kind = failed_as(failures[0].signature)
        return kind("\n\n".join("\n".join(block) for block in blocks), tuple(failures), record)

    def tell(self, name: str, value: object) -> None:
        """Note a property of the running test, for reports."""
        if self.around.test is not None:
            self.around.test.tell(name, value)


@functools.cache
def failed_as(signature: str) -> type[InvariantFailed]:
    """Return the class of errors with this signature."""
    return type(
        "InvariantFailed", (InvariantFailed,), {"__module__": InvariantFailed.__module__, "signature": signature}
    )


# ---- one schedule ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Run:
    """One run of a schedule, and what is wrong with it.  `schedule` is what was asked for, `ran` what is judged."""

    _asked: _Asked
    schedule: Schedule
    ran: Schedule  # in a mode that goes on, all that took place
    result: RunResult
    violation: Violation | None

    def check(self) -> RunResult:
        """Return the result of a run that holds.

        Raises `InvariantFailed`, `Stale` if a deviation of the schedule did not take place, `Nondeterminism`,
        `Inconclusive`.
        """
        __tracebackhide__ = True
        _judge(self._asked, self.ran, self.result, self.violation)
        return self.result

    @property
    def lost(self) -> tuple[str, ...]:
        """The deviations of the schedule that did not take place as written, each as a sentence with the reason."""
        if set(self.schedule.deviations) <= set(self.result.deviations):
            return ()
        lost = missed(self.schedule.deviations, _look(self._asked, self.schedule))
        return tuple(f"{sentence(deviation)}: {why}" for deviation, why in lost)


def _judge(
    asked: _Asked, schedule: Schedule, result: RunResult, violation: Violation | None, file: Path | None = None
) -> None:
    """Raise what is wrong with the run of a schedule, if anything is; `file` is where it is kept already."""
    __tracebackhide__ = True
    if violation is None and set(schedule.deviations) <= set(result.deviations):
        _conclusive(asked, schedule, result, file)
        return
    looked = _look(asked, schedule)
    if lost := missed(schedule.deviations, looked):
        raise Stale("\n".join([*_stale(asked, schedule, lost, file), f"Reproduce:  {_line(asked, schedule, file)}"]))
    if not looked.same or looked.result.digest != result.digest:
        raise Nondeterminism(
            f"NONDETERMINISM  {result.scenario}: the same schedule, run again, gives another trace; see `dst doctor`\n"
            f"Reproduce:  {_line(asked, schedule, file)}"
        )
    if looked.violation is not None:
        found = _described(asked, schedule, looked.result, looked.violation)
        found = remembered(found, asked.around.home.failure(found.id))
        kept = attrs.evolve(found, replay=_line(asked, schedule, file)) if file is not None else asked.keep(found)
        raise asked.failed([kept], None)
    _conclusive(asked, schedule, looked.result, file)


def _conclusive(asked: _Asked, schedule: Schedule, result: RunResult, file: Path | None) -> None:
    __tracebackhide__ = True
    if why := inconclusive(result):
        raise Inconclusive(f"UNKNOWN  {result.scenario}: {why}\nReproduce:  {_line(asked, schedule, file)}")


def _look(asked: _Asked, schedule: Schedule) -> Looked:
    return host(
        lambda h: look(h, asked.tested, Written(schedule.deviations), Written(schedule.deviations)),
        asked.limits,
        brief=True,
    )


def _line(asked: _Asked, schedule: Schedule, file: Path | None) -> str:
    line = "" if file is None else asked.around.replay(str(file), asked.scenario)
    return line or asked.again(schedule)


def _stale(asked: _Asked, schedule: Schedule, lost: Sequence[tuple[Deviation, str]], file: Path | None) -> list[str]:
    what = repr(schedule) if file is None else str(file)
    head = f"STALE  {what}: the code has changed since it was written, so that it says nothing"
    versions = printable(said(changed(schedule.versions, asked.scenario)))
    rows = [f"  - {sentence(deviation)}: {why}" for deviation, why in lost]
    return [head, *([f"  {versions}"] if versions else []), *rows]


def _described(asked: _Asked, schedule: Schedule, result: RunResult, violation: Violation) -> FailureRecord:
    return describe(
        asked.tested,
        result,
        violation,
        signature_of(result, asked.mutant, violation),
        seed=schedule.seed,
        deviations=result.deviations,
        found_with=len(result.deviations),
        minimal=False,
        shrunk=None,
        replays=True,
        replay="",  # said by who keeps it
    )


def _schedule(found: FailureRecord) -> Schedule:
    return attrs.evolve(schedule_of(found), seed=None)


# ---- schedules that are kept -----------------------------------------------------------------------------------------


def _replay_kept(asked: _Asked, mode: str, seed: int) -> None:
    """Replay the schedules of this scenario that are kept for good.  Raises as `check`, and `BadSchedule`."""
    __tracebackhide__ = True
    for file in sorted(asked.around.regressions.glob("*.json")):
        schedule = read_schedule(file)
        if (bare_name(schedule.scenario), schedule.mutant) == (bare_name(asked.scenario.name), asked.mutant):
            done = run(asked.scenario, schedule, max_steps=asked.limits.steps, mode=mode, seed=seed)
            _judge(done._asked, done.ran, done.result, done.violation, _relative(file) if mode == STRICT else None)


def _relative(file: Path) -> Path:
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


# ---- campaigns -------------------------------------------------------------------------------------------------------


def _campaign(asked: _Asked, plan: Assignment, seconds_max: float | None) -> CampaignRecord:
    __tracebackhide__ = True
    around, began = asked.around, time.monotonic()
    asked.tell("seed", plan.seed)
    _remember(around, plan.seed)
    reference = around.reference(asked.scenario)

    def by_seed(seed: int) -> str:
        line = command_line.replay_seed(plan, reference, seed) if reference else around.again()
        return line or f"check({asked.expression}, seed={plan.seed}, schedules={plan.schedules})"

    def keep(found: FailureRecord) -> FailureRecord:
        kept = asked.keep(found)
        return kept if kept.replay else attrs.evolve(kept, replay=by_run(found.seed, _schedule(found)))

    def diverged(found: DivergenceRecord) -> DivergenceRecord:
        schedule = token(found.token) if found.token else Schedule(scenario=found.scenario)
        return attrs.evolve(found, replay=by_run(found.seed, schedule))

    def by_run(seed: int | None, schedule: Schedule) -> str:
        return asked.again(schedule) if seed is None else by_seed(seed)

    def find(_name: str, _mutant: str | None) -> type[Scenario]:
        return asked.tested

    tally = Tally(plan, keep, diverged, find=find)
    try:
        in_time = run_inline(plan, tally, seconds_max, lambda: None, find)
    except HarnessBroke as broke:
        broke.add_note(f"Reproduce:  {by_seed(broke.seed)}")
        raise
    open_end = plan.schedules == OPEN_END
    if not in_time and not open_end:
        tally.stopped = f"time was out after {seconds_max:g} s"
    known = command_line.repeat(plan, [reference], tally.schedules if open_end else None) if reference else ""
    record = tally.record(
        seconds=time.monotonic() - began,
        workers=1,
        planned=None if open_end else plan.runs,
        repeat=around.again() or known or by_seed(plan.seed),
    )
    _raise_campaign(asked, record)
    return record


def _raise_campaign(asked: _Asked, record: CampaignRecord) -> None:
    """Raise what the exit code of `dst fuzz` would say."""
    __tracebackhide__ = True
    planned = "" if record.planned is None else f" of {record.planned:,}"
    how = f"in {record.schedules:,}{planned} schedules, seed {record.seeds.campaign}"
    if record.exit_code == FAILED:
        again = asked.around.again()
        raise asked.failed(record.failures, record, f"{how}; again: {again}" if again else how)
    if record.exit_code == NONDETERMINISM:
        raise Nondeterminism("\n".join(_texts(line for d in record.divergences for line in divergence(d))), record)
    if record.exit_code:
        kind = Vacuous if record.exit_code == VACUOUS else Inconclusive
        raise kind("\n".join(_texts(campaign(record, quiet=True))), record)


def _remember(around: Surroundings, seed: int) -> None:
    """Remember the seed for `last`, where it can be written; under the plugin it is the session's that is."""
    if around.test is None:
        try:
            around.home.write_last_seed(str(seed))
        except HomeUnusable:
            return  # a convenience: the seed is in every failure too


def _texts(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


# ---- exploration -----------------------------------------------------------------------------------------------------


def _explore(asked: _Asked, bounds: Bounds) -> ExplorationRecord:
    __tracebackhide__ = True
    began, failures = time.monotonic(), list[FailureRecord]()
    reference = asked.around.reference(asked.scenario)
    command = repeat([reference], bounds, asked.mutant, asked.limits.steps) if reference else asked.around.again()
    command = command or f"check({asked.expression}, strategy='explore')"

    async def body(simulations: Host) -> Exploration:
        report = await explore(simulations, asked.tested, bounds)
        async for found in describe_found(simulations, asked.tested, report, command, asked.mutant):
            failures.append(asked.keep(found))
        return report

    report = host(body, asked.limits)
    record = exploration_record(
        asked.tested,
        bounds,
        report,
        failures,
        mutant=asked.mutant,
        seconds=time.monotonic() - began,
        interrupted=False,
        repeat=command,
    )
    _raise_exploration(asked, record)
    return record


def _raise_exploration(asked: _Asked, record: ExplorationRecord) -> None:
    """Raise what the exit code of `dst explore` would say."""
    __tracebackhide__ = True
    if record.exit_code == FAILED:
        again = asked.around.again()
        how = f"by exploring {record.states:,} states"
        raise asked.failed(record.failures, record, f"{how}; again: {again}" if again else how)
    if record.exit_code:
        text = "\n".join(_texts(exploration(record, quiet=True)))
        kinds = {NONDETERMINISM: Nondeterminism, VACUOUS: Vacuous}
        raise kinds.get(record.exit_code, Inconclusive)(text, record)
