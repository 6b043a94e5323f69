"""`dst explore`: every crash schedule of a scenario, with any number of crashes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import attrs
import click

from dst import command_line
from dst.cli.fuzz import _terminated_like_interrupted as terminated_like_interrupted
from dst.cli.scope import Scope, everywhere, scope, setting, switch, warn
from dst.config import known_among, texts
from dst.errors import WrongUsage
from dst.executors.explorations import explore_all
from dst.executors.exploring import Wanted, explorations_record, made, repeat
from dst.executors.processes import count_workers
from dst.executors.tally import WRONG_USAGE
from dst.findings import schedule_of
from dst.home import HomeUnusable, write
from dst.lookup import find_mutant
from dst.parameters import bare_name
from dst.records import ExplorationRecord, FailureRecord, to_json, to_text
from dst.run import Limits
from dst.scenario import Scenario
from dst.strategies.explore import Exploration, check_orders
from dst.strategies.view import Bounds
from dst.versions import versions_of
from reports.exploration import exploration, explorations, page, row

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_EVERY_SECONDS = 0.1


@click.command("explore", short_help="Explore every crash schedule of a scenario.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--mutant", metavar="NAME", help="Explore over this broken kernel; see `dst list`.")
@click.option(
    "--others",
    type=click.IntRange(min=0),
    default=Bounds().others,
    show_default=True,
    metavar="N",
    help="Faults besides crashes that one schedule may have.",
)
@click.option(
    "--cap",
    type=click.IntRange(min=1),
    default=Bounds().cap,
    show_default=True,
    metavar="N",
    help="Tell growing counts apart so far; it is checked that twice as far says the same.",
)
@click.option(
    "--max-states",
    type=click.IntRange(min=1),
    default=Bounds().states_max,
    show_default=True,
    metavar="N",
    help="Stop at this many states.",
)
@click.option(
    "--orders",
    type=click.Choice(["calm", "all"]),
    default="calm",
    show_default=True,
    help="Go on from each state in the calm order of operations, or in all orders.",
)
@click.option(
    "--max-orders",
    type=click.IntRange(min=1),
    default=Bounds().orders_max,
    show_default=True,
    metavar="N",
    help="With --orders all: stop at this many orders of one state.",
)
@setting("faults", metavar="A,B", help="With --others: only these kinds of faults.")
@setting("max-time", metavar="TIME", help="Stop after this long, such as 90s, 10m or 1h30m; scenarios share it.")
@setting("max-steps", metavar="N", help=f"Steps after which a run is inconclusive. Default: {Limits().steps}.")
@switch("shrink", "--no-shrink", value=False, help="Leave failing schedules as they were found.")
@setting("workers", "-w", "--workers", metavar="N|auto", help="Processes for several scenarios. Default: 1.")
@click.option("--write", "folder", metavar="DIR", help="Write exploration.json and exploration.md there.")
@click.option("-q", "--quiet", is_flag=True, help="Failures and the verdict only.")
@click.option("-v", "--verbose", is_flag=True, help="Also where settings come from, and how often was judged.")
@everywhere
def explore_(
    scenarios: tuple[str, ...],
    mutant: str | None,
    others: int,
    cap: int,
    max_states: int,
    orders: str,
    max_orders: int,
    folder: str | None,
    **values: Any,
) -> int:
    """Explore every crash schedule of SCENARIO, with any number of crashes, until nothing new is found.

    Without a SCENARIO: all of them, a line each; with --mutant: the one the mutant names. A scenario of your own,
    package.module:Class, says in `behaviour` what can be seen of its world. Either may say a size, as in
    research_swarm@sources=1. Several scenarios share --max-time: one that begins gets an equal part of what is
    left. Exit code 0 only if all was explored and held, 6 if a bound came first; of several the gravest.

    \b
    Examples:
      dst explore order_saga
      dst explore order_saga --others 1 --max-time 10m
      dst explore parallel_quotes --orders all --max-time 10m
      dst explore --mutant emit-always-append --json
      dst explore --max-time 10m -w auto
    """
    around = scope(values)
    names = scenarios or ((find_mutant(mutant).scenario,) if mutant else around.default_scenarios)
    found = [around.known.find(name) for name in dict.fromkeys(names)]
    if not found:
        raise WrongUsage("there is no scenario: name one as package.module:Class")
    kinds = texts(around.settings.get("faults"))
    known_among("fault", kinds, [fault.name for _, cls in found for fault in cls.faults])
    bounds = Bounds(
        all_orders=orders == "all",
        orders_max=max_orders,
        others=others,
        kinds=frozenset(kinds) or None,
        cap=cap,
        states_max=max_states,
        seconds_max=cast("float | None", around.settings.get("max-time")),
    )
    wanted = [
        Wanted(
            scenario=reference,
            mutant=mutant,
            bounds=bounds,
            steps_max=cast("int | None", around.settings.get("max-steps")) or Limits().steps,
            shrinking=around.settings.get("shrink") is not False,
        )
        for reference, _ in found
    ]
    for one in wanted:
        check_orders(one.find(), bounds)
    if len(wanted) == 1 and folder is None:
        return _Explore(around, wanted[0], wanted[0].find()).run()
    workers = str(around.settings.get("workers") or "1")
    further = (["-w", workers] if workers != "1" else []) + (["--write", folder] if folder else [])
    again = repeat(scenarios, bounds, mutant, wanted[0].steps_max, further)
    return _ExploreAll(around, wanted, bounds, count_workers(workers), again).run(folder)


class _Explore:
    """One exploration of the command.  Mutable: what could not be kept."""

    def __init__(self, around: Scope, wanted: Wanted, scenario: type[Scenario]) -> None:
        self._around = around
        self._wanted = wanted
        self._scenario = scenario
        self._keeper = _Keeper(around)

    def run(self) -> int:
        """Explore, report, return the exit code."""
        around, keeper = self._around, self._keeper
        with _progress_on(sys.stderr, around) as shown, terminated_like_interrupted():
            record = made(self._wanted, lambda report: shown.update(self._scenario.name, report))
        record = keeper.filed(record, self._wanted.scenario, self._scenario)
        keeper.keep(f"explore-{record.scenario}", "exploration.json", to_text(record))
        if keeper.trouble and not record.interrupted:
            record = attrs.evolve(record, exit_code=WRONG_USAGE)
        if around.json:
            around.answer(to_json(record))
        else:
            around.show(exploration(record, quiet=around.quiet, verbose=around.verbose))
        keeper.warn()
        return record.exit_code


class _ExploreAll:
    """Several explorations, each with a line of its own.  Mutable: those that are done."""

    def __init__(self, around: Scope, wanted: Sequence[Wanted], bounds: Bounds, workers: int, again: str) -> None:
        self._around = around
        self._wanted = wanted
        self._bounds = bounds
        self._workers = workers
        self._again = again
        self._keeper = _Keeper(around)

    def run(self, folder: str | None) -> int:
        """Explore each, report, return the exit code."""
        around, keeper, began = self._around, self._keeper, time.monotonic()
        with _progress_on(sys.stderr, around) as shown, terminated_like_interrupted():
            done = explore_all(self._wanted, self._bounds.seconds_max, self._workers, shown.update, shown.done)
        filed = [
            keeper.filed(record, one.scenario, one.find())
            for one, record in zip(self._wanted, done, strict=True)
            if record is not None
        ]
        record = explorations_record(
            filed,
            missing=[one.find().name for one, record in zip(self._wanted, done, strict=True) if record is None],
            seconds_max=self._bounds.seconds_max,
            workers=self._workers,
            seconds=time.monotonic() - began,
            repeat=self._again,
        )
        keeper.keep("explore", "explorations.json", to_text(record))
        if keeper.trouble and not record.interrupted:
            record = attrs.evolve(record, exit_code=WRONG_USAGE)
        if folder is not None and not record.interrupted:
            Path(folder).mkdir(parents=True, exist_ok=True)
            write(Path(folder) / "exploration.json", to_text(record))
            write(Path(folder) / "exploration.md", page(record))
        if around.json:
            around.answer(to_json(record))
        else:
            around.show(explorations(record, quiet=around.quiet))
        keeper.warn()
        return record.exit_code


class _Keeper:
    """Keeps records and failures in `.dst`.  Mutable: `trouble` is what could not be written."""

    def __init__(self, around: Scope) -> None:
        self._around = around
        self.trouble = ""

    def filed(self, record: ExplorationRecord, reference: str, scenario: type[Scenario]) -> ExplorationRecord:
        """Keep the failures that can be replayed; return the record with the commands that reproduce them."""
        return attrs.evolve(record, failures=tuple(self._file(f, reference, scenario) for f in record.failures))

    def _file(self, found: FailureRecord, reference: str, scenario: type[Scenario]) -> FailureRecord:
        if not found.replays or self.trouble:
            return found
        own = None if found.scenario in self._around.known else bare_name(reference)
        kept = attrs.evolve(found, replay=command_line.replay_id(found.id, own, self._around.home_flag))
        try:
            self._around.home.file(kept, schedule_of(kept, versions_of(scenario)))
        except HomeUnusable as error:
            self.trouble = str(error)
            return found
        return kept

    def keep(self, name: str, file: str, text: str) -> None:
        """Keep a record in a folder of its own."""
        if self.trouble:
            return
        try:
            write(self._around.home.new_campaign(name).path / file, text)
        except HomeUnusable as error:
            self.trouble = str(error)

    def warn(self) -> None:
        """Tell a person that nothing was kept, if so."""
        if self.trouble:
            warn(f"{self.trouble}: these results are not kept (--home or DST_HOME: another folder)")


# ---- progress --------------------------------------------------------------------------------------------------------


class _Progress:
    """Mutable: when it was last shown."""

    def __init__(self, bar: Bar | None, task: TaskID | None) -> None:
        self._bar = bar
        self._task = task
        self._shown = 0.0

    def update(self, name: str, report: Exploration) -> None:
        """Show how far it has come, not too often."""
        now = time.monotonic()
        if self._bar is None or self._task is None or now - self._shown < _EVERY_SECONDS:
            return
        self._shown = now
        rate = f"{report.runs / max(report.seconds, 1e-9):,.0f}/s"
        self._bar.update(
            self._task,
            name=name,
            states=report.states,
            frontier=report.frontier,
            runs=report.runs,
            pairs=report.pairs,
            rate=rate,
        )
        self._bar.refresh()

    def done(self, record: ExplorationRecord) -> None:
        """Show that one of several has ended."""
        if self._bar is not None:
            self._bar.console.print(row(record), highlight=False)


@contextmanager
def _progress_on(stream: TextIO, around: Scope) -> Iterator[_Progress]:
    """Show progress while the block runs; nothing is left of it afterwards."""
    if around.quiet or not stream.isatty():
        yield _Progress(None, None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    names = ("name", "states", "frontier", "pairs", "runs", "rate")
    text = "{}  {} states, {} to run  {} pairs  {} runs  {}".format(*(f"{{task.fields[{name}]}}" for name in names))
    console = Console(file=stream, no_color=not around.color)
    with Bar(
        SpinnerColumn(), TextColumn(text), TimeElapsedColumn(), console=console, transient=True, auto_refresh=False
    ) as bar:  # no thread beside the runs
        yield _Progress(bar, bar.add_task("", total=None, name="", states=0, frontier=0, pairs=0, runs=0, rate=""))
