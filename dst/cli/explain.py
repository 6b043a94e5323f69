"""`dst explain`: why a failing schedule fails."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, cast

import click

from dst import command_line
from dst.choices import Written
from dst.cli.progress import counting_on
from dst.cli.replay import find_source, schedule_story
from dst.cli.scope import Scope, everywhere, scope, setting
from dst.cli.single import Story, chosen_faults, described
from dst.errors import WrongUsage
from dst.executors.tally import ALL_HELD, INTERRUPTED, NONDETERMINISM
from dst.explain import Effort, Explanation, OutOfTime
from dst.forks import failing_run
from dst.records import ExplanationRecord, FailureRecord, to_json
from dst.run import Host, Limits, host
from dst.schedule import Deviation
from dst.sentences import sentence
from dst.transparency import Transparency
from reports.explanation import explanation
from reports.summary import Line, Style, line

_EFFORT = Effort()


@click.command(short_help="Say why a failing schedule fails.")
@click.argument("target", metavar="ID|FILE|TOKEN")
@click.option(
    "--times", type=click.IntRange(min=2), default=_EFFORT.times, show_default=True, help="Continuations of a moment."
)
@click.option(
    "--moments",
    type=click.IntRange(min=0),
    default=_EFFORT.moments,
    show_default=True,
    help="Moments measured beside those after a deviation.",
)
@click.option(
    "--budget", type=click.IntRange(min=1), default=_EFFORT.budget, show_default=True, help="Runs to make at most."
)
@setting("max-time", metavar="TIME", help="Stop after this long, such as 30s, and say what is known by then.")
@setting("faults", metavar="A,B", help="Kinds of faults in continuations. Default: those in the schedule.")
@click.option("--scenario", metavar="PKG.MOD:CLASS", help="Your own scenario that the schedule is of.")
@setting("max-steps", metavar="N", help=f"Steps after which a run is inconclusive. Default: {Limits().steps}.")
@everywhere
def explain(target: str, times: int, moments: int, budget: int, scenario: str | None, **values: Any) -> int:
    """Explain a failing schedule, kept under an ID, in a FILE or as a TOKEN (dst:...).

    It is run up to a moment, and from there on with fresh choices, many times: the moment at which the share of such
    runs that fail goes up is where it was decided. And schedules that differ a little are run: where the nearest one
    that passes parts from it is told. The same schedule gives the same text, unless time is out first.

    Exit code 0 if it is explained, 2 if the schedule does not fail (any more), 130 if interrupted; what is known by
    then is shown.

    \b
    Examples:
      dst explain K7Q2MD
      dst explain tests/regressions/lost-emit.json --times 200 --budget 20000
      dst explain 'dst:parcel;deliver:signature:parcel-1:signature-1#1=late' --json
      dst explain K7Q2MD --faults crash-before,crash-after --max-time 30s
    """
    around = scope(values, scenarios=(scenario,) if scenario else ())
    source = find_source(around, target)
    story = schedule_story(around, source, command_line.replay_id(target, scenario, around.home_flag))
    faults, _ = chosen_faults(around, story.scenario)
    effort = Effort(times=times, moments=moments, budget=budget, faults=faults)
    wanted = source.schedule.deviations
    return _Explain(around, story, target, wanted, effort).run()


class _Explain:
    """One explanation of the command.  Mutable: what is known so far is there when it is interrupted."""

    def __init__(
        self,
        around: Scope,
        story: Story,
        target: str,
        wanted: tuple[Deviation, ...],
        effort: Effort,
    ) -> None:
        self._around = around
        self._story = story
        self._target = target
        self._wanted = wanted
        self._effort = effort
        self._found: Explanation | None = None
        self._same = True  # did the schedule, run twice, do the same?

    def run(self) -> int:
        """Find out, say it, return the exit code."""
        steps = cast("int | None", self._around.settings.get("max-steps")) or Limits().steps
        code = ALL_HELD
        with counting_on(sys.stderr, self._effort.budget, self._around) as shown:
            try:
                host(lambda h: self._find_out(h, self._clocked(shown)), Limits(steps=steps))
            except KeyboardInterrupt:
                if self._found is None:
                    raise
                self._found.stopped, code = "interrupted", INTERRUPTED
        assert self._found is not None
        record = self._found.record(self._failure(), code if self._same else NONDETERMINISM)
        self._show(record)
        return record.exit_code

    async def _find_out(self, simulations: Host, before_run: Callable[[int], None]) -> None:
        story, transparency = self._story, Transparency(simulations)
        failing = await failing_run(simulations, transparency, story.scenario, story.mutant, self._wanted)
        if failing is None:
            again = self._story.command
            raise WrongUsage(f"{self._target} does not fail any more: there is nothing to explain (see `{again}`)")
        again_run = await simulations.run(story.scenario, Written(self._wanted))
        self._same = again_run.digest == failing.result.digest
        self._found = Explanation(failing, self._effort, before_run)
        if self._same:
            await self._found.run(simulations, transparency)
        else:
            self._found.stopped = "the same schedule, run twice, does not do the same: see `dst doctor`"

    def _clocked(self, shown: Callable[[int], None]) -> Callable[[int], None]:
        """Return what is called before each run."""
        seconds_max = cast("float | None", self._around.settings.get("max-time"))
        began = time.monotonic()

        def before_run(runs: int) -> None:
            shown(runs)
            if seconds_max is not None and time.monotonic() - began > seconds_max:
                raise OutOfTime(f"time was out after {seconds_max:g} s")

        return before_run

    def _failure(self) -> FailureRecord:
        assert self._found is not None
        failing = self._found.failing
        return described(self._story, failing.result, failing.violation, failing.signature, same=self._same)

    def _show(self, record: ExplanationRecord) -> None:
        if self._around.json:
            self._around.answer(to_json(record))
            return
        self._around.show([*self._lost(), *explanation(record)])

    def _lost(self) -> list[Line]:
        """Return which of the schedule's deviations did not take place: what fails fails without them."""
        assert self._found is not None
        happened = {deviation.at for deviation in self._found.failing.result.deviations}
        lost = [deviation for deviation in self._wanted if deviation.at not in happened]
        return [line(f"did not take place: {sentence(deviation)}", Style.DOUBT) for deviation in lost]
