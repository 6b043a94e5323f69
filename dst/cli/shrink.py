"""`dst shrink`: make a failing schedule as small as it gets."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs
import click

from dst import command_line
from dst.choices import Written
from dst.cli.progress import counting_on
from dst.cli.replay import find_source, schedule_story
from dst.cli.scope import everywhere, scope, setting
from dst.cli.single import Story
from dst.errors import WrongUsage
from dst.executors.tally import ALL_HELD, INTERRUPTED
from dst.explain import cause_of
from dst.findings import describe, schedule_of
from dst.home import write
from dst.investigating import Failure, investigate
from dst.judging import run_one
from dst.records import FailureRecord, to_json
from dst.run import Host, Limits, host
from dst.shrink import BUDGET
from dst.signature import signature_of
from dst.transparency import Transparency
from dst.versions import versions_of
from reports.summary import failure, line


@click.command(short_help="Make a failing schedule as small as it gets.")
@click.argument("target", metavar="ID|FILE")
@click.option("-o", "--output", metavar="FILE", help="Also write the shrunk schedule to this file.")
@click.option("--budget", type=click.IntRange(min=1), default=BUDGET, show_default=True, help="Runs to try at most.")
@click.option("--scenario", metavar="PKG.MOD:CLASS", help="Your own scenario that the schedule is of.")
@setting("max-steps", metavar="N", help=f"Steps after which a run is inconclusive. Default: {Limits().steps}.")
@everywhere
def shrink(target: str, output: str | None, budget: int, scenario: str | None, **values: Any) -> int:
    """Shrink a failing schedule, kept under an ID or in a FILE, while it fails alike.

    The result is kept in .dst under its ID; after Ctrl-C it is the best so far. Exit code 0 if it is as small as it
    gets, 2 if the schedule does not fail.

    \b
    Examples:
      dst fuzz order_saga --mutant emit-ordinal --no-shrink
      dst shrink K7Q2MD
      dst shrink failing.json -o tests/regressions/lost-emit.json
    """
    around = scope(values, scenarios=(scenario,) if scenario else ())
    source = find_source(around, target)
    again = command_line.replay_id(target, scenario, around.home_flag)
    story = schedule_story(around, source, again)
    steps = cast("int | None", around.settings.get("max-steps")) or Limits().steps
    before = len(source.schedule.deviations)

    asked: list[int] = []

    def stop(number: int, _: object) -> None:
        asked.append(number)
        signal.signal(signal.SIGINT, earlier)  # once more means now

    earlier = signal.signal(signal.SIGINT, stop)
    try:
        with counting_on(sys.stderr, budget, around) as told:
            found = host(lambda h: _shrink(h, story, budget, told, lambda: bool(asked)), Limits(steps=steps))
    finally:
        signal.signal(signal.SIGINT, earlier)
    code = INTERRUPTED if asked else ALL_HELD
    if found is None:
        raise WrongUsage(f"{target} does not fail: there is nothing to shrink (see `{again}`)")
    kept = attrs.evolve(found, replay=command_line.replay_id(found.id, scenario, around.home_flag))
    schedule = schedule_of(kept, versions_of(story.scenario))
    around.home.file(kept, schedule)
    if output is not None:
        write(Path(output), schedule.to_text())
    if around.json:
        around.answer({**to_json(kept), "deviations_before": before, "output": output, "exit_code": code})
        return code
    written = f", written to {output}" if output else ""
    around.show([line(f"from {before} to {len(kept.deviations)} deviations{written}"), line(""), *failure(kept)])
    return code


async def _shrink(
    simulations: Host, story: Story, budget: int, told: Callable[[int], None], stopped: Callable[[], bool]
) -> FailureRecord | None:
    """Return the shrunk failure, None if the schedule does not fail."""
    transparency = Transparency(simulations)
    result, violation = await run_one(simulations, transparency, story.scenario, cast(Written, story.choices()))
    if violation is None:
        return None
    signature = signature_of(result, story.mutant, violation)
    found: Failure = await investigate(
        simulations,
        transparency,
        story.scenario,
        result,
        violation,
        signature,
        seed=story.seed or 0,
        mutant=story.mutant,
        budget=budget,
        progress=lambda runs, _: told(runs),
        stopped=stopped,
    )
    final = await simulations.run(found.scenario, Written(found.schedule.deviations))
    return describe(
        found.scenario,
        final,
        found.violation,
        signature,
        seed=story.seed,
        deviations=found.schedule.deviations,
        found_with=found.found_with,
        minimal=found.minimal,
        shrunk=True,
        replays=found.replays,
        replay="",
        cause=await cause_of(simulations, transparency, found.scenario, story.mutant, found.schedule.deviations),
        found_in=found.found_in,
    )
