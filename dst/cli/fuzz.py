"""`dst fuzz`: a campaign from one seed."""

from __future__ import annotations

import secrets
import shlex
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import attrs
import click

from dst import command_line
from dst.cli.progress import Progress, progress_on
from dst.cli.recorder import Recorder
from dst.cli.scope import Scope, everywhere, scope, setting, switch, warn
from dst.config import known_among, texts
from dst.corpus import read_corpus
from dst.doctor import DoctorFailed, between_hash_seeds, python_path
from dst.errors import HarnessBroke, WorkersLost, WrongUsage
from dst.executors.assignment import OPEN_END, Assignment
from dst.executors.inline import run_inline
from dst.executors.processes import count_workers, run_processes
from dst.executors.tally import Tally
from dst.findings import schedule_of
from dst.lookup import find_mutant
from dst.parameters import bare_name, split_name, suffix
from dst.records import CampaignRecord, DivergenceRecord, FailureRecord, to_json
from dst.run import Limits
from dst.strategies import guided
from dst.strategies.portfolio import DEFAULT, STRATEGIES
from dst.versions import versions_of
from reports.summary import campaign

_SCHEDULES = 2_000
_REPORTS = ("ndjson",)
_SEED_BITS = 32
_ELSEWHERE = 50  # seeds, at most, that are compared between hash seeds


@click.command(short_help="Run scenarios under faults, shrink what fails.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@setting("seed", metavar="N|last", help="Start of all chance; `last`: that of the last campaign. Default: a new one.")
@setting("seeds", metavar="A:B", help="The run seeds from A up to and without B, on each scenario.")
@setting("schedules", "-n", "--schedules", metavar="N", help=f"Runs in all. Default: {_SCHEDULES}.")
@setting("max-time", metavar="TIME", help="Go on for this long, such as 90s, 10m or 1h30m; with -n: at most.")
@setting("max-steps", metavar="N", help=f"Steps after which a run is inconclusive. Default: {Limits().steps}.")
@setting("max-failures", metavar="N", help="Stop after N different failures. Default: 1.")
@switch("continue-on-failure", help="Go on to the end whatever fails.")
@setting("workers", "-w", "--workers", metavar="N|auto", help="Processes, with the same report. Default: 1.")
@setting("shard", metavar="I/N", help="Only this part of the runs, from 1/N to N/N.")
@setting("faults", metavar="A,B", help="Only these kinds of faults; see `dst list`.")
@setting("fault-rate", metavar="SHARE", help="How often faults fire, from 0 to 1. Default: drawn for each run.")
@setting("strategy", metavar="NAME", help=f"How to search: {', '.join(STRATEGIES)}. Default: {DEFAULT}.")
@click.option("--mutant", metavar="NAME", help="Run over this broken kernel; see `dst list`.")
@switch("shrink", "--no-shrink", value=False, help="Leave failing schedules as they were found.")
@setting("recheck", metavar="SHARE", help="Run this share twice and compare digests; 0: none. Default: 2%.")
@setting("report", metavar="KINDS", help="Further reports beside the campaign's records: ndjson (a line for each run).")
@click.option("-q", "--quiet", is_flag=True, help="Failures and the verdict only.")
@click.option("-v", "--verbose", is_flag=True, help="Also where settings come from, and what invariants say.")
@everywhere
def fuzz(scenarios: tuple[str, ...], mutant: str | None, **values: Any) -> int:
    """Run SCENARIOs under faults drawn from a seed, and shrink what fails.

    Without a SCENARIO: all of them; with --mutant: the one the mutant names. A scenario of your own is
    package.module:Class. Either may say a size, as `dst list` shows it: chat_session@turns=6.

    \b
    Examples:
      dst fuzz
      dst fuzz order_saga --seed 7 -n 10000 -w auto
      dst fuzz chat_session@turns=6 -n 1000
      dst fuzz --mutant emit-ordinal --json
      dst fuzz shop.scenarios:Checkout --max-time 10m --continue-on-failure
    """
    around = scope(values)
    plan = _assignment(around, scenarios, mutant)
    return _Fuzz(around, plan, scenarios).run()


def _assignment(around: Scope, scenarios: tuple[str, ...], mutant: str | None) -> Assignment:
    """Return what is to be done.  Raises `WrongUsage`."""
    chosen = find_mutant(mutant) if mutant else None
    names = scenarios or ((chosen.scenario,) if chosen else around.default_scenarios)
    found = [around.known.find(name) for name in dict.fromkeys(names)]
    if not found:
        raise WrongUsage("there is no scenario: name one as package.module:Class")
    twice = [name for name, count in Counter(cls.name for _, cls in found).items() if count > 1]
    if twice:
        raise WrongUsage(f"two scenarios are called {twice[0]!r}: run them one after another")
    get = around.settings.get
    faults = texts(get("faults")) or None
    known_among("fault", faults or (), [fault.name for _, scenario in found for fault in scenario.faults])
    strategy = str(get("strategy") or DEFAULT)
    known_among("strategy", [strategy], STRATEGIES)
    known_among("report", texts(get("report")), _REPORTS)
    seed, seeds = _seeds(around)
    recheck = cast("float | None", get("recheck"))
    schedules = cast("int | None", get("schedules"))
    return Assignment(
        scenarios=tuple(reference for reference, _ in found),
        mutant=mutant,
        strategy=strategy,
        seed=seed,
        seeds=seeds,
        schedules=schedules or (OPEN_END if get("max-time") else _SCHEDULES),
        faults=None if faults is None else frozenset(faults),
        fault_rate=cast("float | None", get("fault-rate")),
        failures_max=_failures_max(around),
        recheck_one_in=50 if recheck is None else round(1 / recheck) if recheck else 0,
        shrinking=get("shrink") is not False,
        steps_max=cast("int | None", get("max-steps")) or Limits().steps,
        shard=cast("tuple[int, int] | None", get("shard")) or (0, 1),
        corpus=tuple(read_corpus(around.home, cls.name) for _, cls in found) if strategy == guided.NAME else (),
    )


def _seeds(around: Scope) -> tuple[int, tuple[int, int] | None]:
    """Return (campaign seed, None) or (0, a range of run seeds)."""
    get, source = around.settings.get, around.settings.source
    seed, seeds = get("seed"), cast("tuple[int, int] | None", get("seeds"))
    if source("seed") == "--seed" and source("seeds") == "--seeds":
        raise WrongUsage("--seed and --seeds: give one of them")
    if seeds is not None and source("seed") != "--seed":
        return 0, seeds
    if seed == "last":
        first, colon, second = around.home.last_seed().partition(":")
        return (0, (int(first), int(second))) if colon else (int(first), None)
    return (secrets.randbits(_SEED_BITS) if seed is None else cast(int, seed)), None


def _failures_max(around: Scope) -> int | None:
    get, source = around.settings.get, around.settings.source
    if source("continue-on-failure").startswith("--") and source("max-failures").startswith("--"):
        raise WrongUsage("--continue-on-failure and --max-failures: give one of them")
    if get("continue-on-failure") and not source("max-failures").startswith("--"):
        return None
    return cast("int | None", get("max-failures")) or 1


class _Fuzz:
    """One campaign of the command.  Mutable: the tally grows."""

    def __init__(self, around: Scope, plan: Assignment, named: tuple[str, ...]) -> None:
        self._around = around
        self._plan = plan
        self._named = named
        self._open_end = plan.seeds is None and plan.schedules == OPEN_END
        scenarios = [around.known.find(reference)[1] for reference in plan.scenarios]
        self._references = {bare_name(s.name): bare_name(r) for s, r in zip(scenarios, plan.scenarios, strict=True)}
        self._recorder = Recorder(
            around.home,
            name="-".join(s.name for s in scenarios),
            last_seed=str(plan.seed) if plan.seeds is None else f"{plan.seeds[0]}:{plan.seeds[1]}",
            runs="ndjson" in texts(around.settings.get("report")),
            versions={bare_name(s.name): versions_of(s) for s in scenarios},
            by_run=self._by_run,
            by_id=self._by_id,
        )
        self._tally = Tally(plan, self._recorder.failure, self._diverged, self._recorder.row)

    def _diverged(self, found: DivergenceRecord) -> DivergenceRecord:
        return attrs.evolve(found, replay=self._again(found.scenario, found.seed, found.token))

    def _by_run(self, failure: FailureRecord) -> str:
        found_in = failure.found_in or failure.scenario
        return self._again(found_in, failure.seed, schedule_of(failure).to_token())

    def _again(self, scenario: str, seed: int | None, token: str) -> str:
        """Return the command for one run, by its seed or, if none makes it, by its schedule."""
        if seed is not None:
            bare, size = split_name(scenario)
            return command_line.replay_seed(self._plan, self._references[bare] + suffix(size), seed)
        return command_line.replay_token(token, self._needed(scenario))

    def _by_id(self, failure: FailureRecord) -> str:
        return command_line.replay_id(failure.id, self._needed(failure.scenario), self._around.home_flag)

    def _needed(self, scenario: str) -> str | None:
        """Return the reference that a command needs for a scenario that is not known by its name alone."""
        return None if scenario in self._around.known else self._references[bare_name(scenario)]

    def run(self) -> int:
        """Run it, report it, return the exit code."""
        workers = count_workers(str(self._around.settings.get("workers") or "1"))
        broke: HarnessBroke | None = None
        with progress_on(sys.stderr, self._plan, self._around) as shown:
            try:
                with _terminated_like_interrupted():
                    self._run(workers, lambda: self._progress(shown))
            except KeyboardInterrupt:
                self._tally.interrupted = True
                # What was to begin in that very moment never will.
                warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
            except WorkersLost as lost:
                self._tally.stopped = str(lost)
            except HarnessBroke as error:
                broke = error
                self._tally.broke = True
                self._tally.stopped = str(error)
            seconds = shown.seconds
        record = self._tally.record(
            seconds=seconds,
            workers=workers,
            planned=None if self._open_end else self._plan.runs,
            repeat=command_line.repeat(self._plan, self._named, self._far() if self._open_end else None),
        )
        return self._report(record, broke)

    def _run(self, workers: int, progress: Callable[[], None]) -> None:
        seconds_max = cast("float | None", self._around.settings.get("max-time"))
        if workers == 1:
            in_time = run_inline(self._plan, self._tally, seconds_max, progress)
        else:
            in_time = run_processes(self._plan, self._tally, seconds_max, progress, workers)
        if not in_time and not self._open_end:
            self._tally.stopped = f"time was out after {seconds_max:g} s"
        if self._tally.all_held and self._plan.mutant is None and self._plan.recheck_one_in:
            self._compare_hash_seeds()

    def _compare_hash_seeds(self) -> None:
        """Before it passes: are runs the same in other processes?  Second runs in this one cannot show set order.

        On each scenario: the calm run, and the seeds of second runs as the doctor would make them.
        """
        plan, width = self._plan, len(self._plan.scenarios)
        rounds = (plan.run(index) for index in range(0, self._tally.schedules, width))
        seeds = [seed for _, seed, twice in rounds if twice][:_ELSEWHERE]
        modules = [self._around.known.find(reference)[1].__module__ for reference in plan.scenarios]
        try:
            compared, found = between_hash_seeds(plan.scenarios, [None, *seeds], python_path(modules))
        except DoctorFailed as failed:
            warn(f"nothing was compared between hash seeds: {failed.last_line}")
            return
        self._tally.between_hash_seeds = compared
        if found is not None:
            words = ["dst", "doctor", found.scenario, *([] if found.seed is None else ["--seed", str(found.seed)])]
            self._tally.differs(
                DivergenceRecord(
                    scenario=self._around.known.find(found.scenario)[1].name,
                    seed=found.seed,
                    record=found.record,
                    first=found.first,
                    second=found.second,
                    replay=shlex.join(words),
                )
            )

    def _far(self) -> int:
        return self._tally.schedules * self._plan.shard[1]

    def _progress(self, shown: Progress) -> None:
        shown.update(self._tally)
        self._recorder.progress(self._tally)

    def _report(self, record: CampaignRecord, broke: HarnessBroke | None) -> int:
        """Store and print the record; what cannot be stored is still printed."""
        around, recorder = self._around, self._recorder
        for scenario, kept in zip(record.scenario, self._tally.kept, strict=False):
            recorder.keep(scenario, kept)
        recorder.finish(record)
        if recorder.trouble and not record.interrupted:
            record = attrs.evolve(record, exit_code=2)
        if around.json:
            around.answer(to_json(record))
        else:
            around.show(campaign(record, quiet=around.quiet, verbose=around.verbose))
        if broke is not None:
            command = command_line.replay_seed(self._plan, broke.scenario, broke.seed)
            click.echo(broke.details, err=True)
            warn(f"{broke}: this is no verdict on what is tested")
            click.echo(f"Reproduce:  {command}", err=True)
        if recorder.trouble:
            warn(f"{recorder.trouble}: these results are not kept (--home or DST_HOME: another folder)")
        elif around.verbose and recorder.folder is not None:
            warn(f"records in {recorder.folder.path}")
        return record.exit_code


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Have a polite request to end (a CI that runs out of time) do what Ctrl-C does: a partial report is written."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As for what a shell runs in the background.  Otherwise: 1. SIGTERM, 2. raised as SIGINT, 3. ignored, for ever.
        yield
        return
    try:
        before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
