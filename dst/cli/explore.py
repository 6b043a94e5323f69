"""`dst explore`: every crash schedule of a scenario, with any number of crashes."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

import attrs
import click

from dst import command_line
from dst.cli.fuzz import _terminated_like_interrupted as terminated_like_interrupted
from dst.cli.scope import Scope, everywhere, scope, setting, switch, warn
from dst.cli.single import chosen_faults
from dst.errors import WrongUsage
from dst.executors.exploring import describe_found, exploration_record, repeat
from dst.executors.tally import WRONG_USAGE
from dst.findings import schedule_of
from dst.home import HomeUnusable, write
from dst.lookup import find_mutant
from dst.records import ExplorationRecord, FailureRecord, to_json, to_text
from dst.run import Host, Limits, host
from dst.scenario import Scenario
from dst.strategies.explore import Exploration, check_orders, explore
from dst.strategies.view import Bounds
from dst.versions import versions_of
from reports.exploration import exploration

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_EVERY_SECONDS = 0.1


@click.command("explore", short_help="Explore every crash schedule of a scenario.")
@click.argument("scenario", required=False)
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
@setting("max-time", metavar="TIME", help="Stop after this long, such as 90s, 10m or 1h30m.")
@setting("max-steps", metavar="N", help=f"Steps after which a run is inconclusive. Default: {Limits().steps}.")
@switch("shrink", "--no-shrink", value=False, help="Leave failing schedules as they were found.")
@click.option("-q", "--quiet", is_flag=True, help="Failures and the verdict only.")
@click.option("-v", "--verbose", is_flag=True, help="Also where settings come from, and how often was judged.")
@everywhere
def explore_(
    scenario: str | None,
    mutant: str | None,
    others: int,
    cap: int,
    max_states: int,
    orders: str,
    max_orders: int,
    **values: Any,
) -> int:
    """Explore every crash schedule of SCENARIO, with any number of crashes, until nothing new is found.

    With --mutant: the scenario the mutant names. A scenario of your own, package.module:Class, says in `behaviour` what
    can be seen of its world. Exit code 0 only if all was explored and held, 6 if a bound came first.

    \b
    Examples:
      dst explore order_saga
      dst explore order_saga --others 1 --max-time 10m
      dst explore parallel_quotes --orders all --max-time 10m
      dst explore --mutant emit-always-append --json
    """
    around = scope(values)
    name = scenario or (find_mutant(mutant).scenario if mutant else None)
    if name is None:
        raise WrongUsage("name the scenario to explore; see `dst list`")
    reference, cls = around.known.find(name)
    if mutant:
        cls = find_mutant(mutant).apply(cls)
    if cls.behaviour is Scenario.behaviour:
        raise WrongUsage(
            f"{cls.name} cannot be explored: it does not say what of its world can be seen after a crash\n"
            "give the class a method `behaviour(self, sim, cap)` that returns it as a text"
        )
    bounds = Bounds(
        all_orders=orders == "all",
        orders_max=max_orders,
        others=others,
        kinds=chosen_faults(around, cls)[0],
        cap=cap,
        states_max=max_states,
        seconds_max=cast("float | None", around.settings.get("max-time")),
    )
    check_orders(cls, bounds)
    return _Explore(around, reference, cls, mutant, bounds).run()


class _Explore:
    """One exploration of the command.  Mutable: what is known so far."""

    def __init__(
        self, around: Scope, reference: str, scenario: type[Scenario], mutant: str | None, bounds: Bounds
    ) -> None:
        self._around = around
        self._reference = reference
        self._scenario = scenario
        self._mutant = mutant
        self._bounds = bounds
        self._steps = cast("int | None", around.settings.get("max-steps")) or Limits().steps
        self._shrinking = around.settings.get("shrink") is not False
        self._report = Exploration()
        self._failures: list[FailureRecord] = []
        self._interrupted = False
        self._trouble = ""  # what could not be written

    def run(self) -> int:
        """Explore, report, return the exit code."""
        began = time.monotonic()
        with _progress_on(sys.stderr, self._around) as shown:

            def progress(report: Exploration) -> None:
                self._report = report
                shown.update(report)

            async def body(simulations: Host) -> None:
                self._report = await explore(simulations, self._scenario, self._bounds, progress)
                async for found in describe_found(
                    simulations, self._scenario, self._report, self._repeat(), self._mutant, shrinking=self._shrinking
                ):
                    self._failures.append(found)

            try:
                with terminated_like_interrupted():
                    host(body, Limits(steps=self._steps))
            except KeyboardInterrupt:
                self._interrupted = True
                # What was to begin in that very moment never will.
                warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
                self._report.count()
                if self._report.found and not self._failures:
                    broken = self._report.found[0].violation.invariant
                    self._report.cut_short.append(f"interrupted while a failure of {broken} was being shrunk")
        self._failures = [self._file(found) for found in self._failures]
        record = exploration_record(
            self._scenario,
            self._bounds,
            self._report,
            self._failures,
            mutant=self._mutant,
            seconds=time.monotonic() - began,
            interrupted=self._interrupted,
            repeat=self._repeat(),
        )
        self._keep(record)
        if self._trouble and not record.interrupted:
            record = attrs.evolve(record, exit_code=WRONG_USAGE)
        if self._around.json:
            self._around.answer(to_json(record))
        else:
            around = self._around
            around.show(exploration(record, quiet=around.quiet, verbose=around.verbose))
        if self._trouble:
            warn(f"{self._trouble}: these results are not kept (--home or DST_HOME: another folder)")
        return record.exit_code

    # ---- failures ----------------------------------------------------------------------------------------------------

    def _file(self, found: FailureRecord) -> FailureRecord:
        """Keep a failure that can be replayed; return it with the command that reproduces it."""
        if not found.replays or self._trouble:
            return found
        own = None if found.scenario in self._around.known.scenarios else self._reference
        kept = attrs.evolve(found, replay=command_line.replay_id(found.id, own, self._around.home_flag))
        try:
            self._around.home.file(kept, schedule_of(kept, versions_of(self._scenario)))
        except HomeUnusable as error:
            self._trouble = str(error)
            return found
        return kept

    # ---- the record --------------------------------------------------------------------------------------------------

    def _repeat(self) -> str:
        """Return the command that explores this again."""
        return repeat(self._reference, self._bounds, self._mutant, self._steps)

    def _keep(self, record: ExplorationRecord) -> None:
        if self._trouble:
            return
        try:
            folder = self._around.home.new_campaign(f"explore-{self._scenario.name}")
            write(folder.path / "exploration.json", to_text(record))
        except HomeUnusable as error:
            self._trouble = str(error)


# ---- progress --------------------------------------------------------------------------------------------------------


class _Progress:
    """Mutable: when it was last shown."""

    def __init__(self, bar: Bar | None, task: TaskID | None) -> None:
        self._bar = bar
        self._task = task
        self._shown = 0.0

    def update(self, report: Exploration) -> None:
        """Show how far it has come, not too often."""
        now = time.monotonic()
        if self._bar is None or self._task is None or now - self._shown < _EVERY_SECONDS:
            return
        self._shown = now
        rate = f"{report.runs / max(report.seconds, 1e-9):,.0f}/s"
        self._bar.update(self._task, states=report.states, frontier=report.frontier, runs=report.runs, rate=rate)
        self._bar.refresh()


@contextmanager
def _progress_on(stream: TextIO, around: Scope) -> Iterator[_Progress]:
    """Show progress while the block runs; nothing is left of it afterwards."""
    if around.quiet or not stream.isatty():
        yield _Progress(None, None)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    names = ("states", "frontier", "runs", "rate")
    text = "{} states, {} to run  {} runs  {}".format(*(f"{{task.fields[{name}]}}" for name in names))
    console = Console(file=stream, no_color=not around.color)
    with Bar(
        SpinnerColumn(), TextColumn(text), TimeElapsedColumn(), console=console, transient=True, auto_refresh=False
    ) as bar:  # no thread beside the runs
        yield _Progress(bar, bar.add_task("", total=None, states=0, frontier=0, runs=0, rate=""))
