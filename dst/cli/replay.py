"""`dst replay`: a failure that was found, again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from dst import command_line
from dst.choices import Resumed, Written
from dst.cli.run import read_seed
from dst.cli.scope import Scope, everywhere, scope, setting
from dst.cli.single import (
    Story,
    as_json,
    build,
    chosen_faults,
    chosen_strategy,
    exit_code,
    failure_of,
    limits_of,
    lines,
    look_at,
)
from dst.config import texts
from dst.errors import WrongUsage
from dst.executors.tally import ALL_HELD, WRONG_USAGE
from dst.home import read_schedule
from dst.judging import choices_of
from dst.records import ID, FailureRecord
from dst.replaying import LENIENT, MODES, RESUME, STRICT, Looked, missed, settle, took_place
from dst.run import Limits, host
from dst.schedule import TOKEN, Deviation, Schedule, token
from dst.sentences import sentence
from dst.strategies.portfolio import DEFAULT
from dst.versions import changed, said
from reports.summary import Line, Style, line


@attrs.frozen(kw_only=True)
class Source:
    """A schedule and where it is from."""

    schedule: Schedule
    id: str = ""  # if it is kept in the .dst folder
    path: Path | None = None
    recorded: FailureRecord | None = None


@click.command(short_help="Run a failure that was found again.")
@click.argument("target", metavar="ID|FILE|TOKEN|SCENARIO")
@click.option("--seed", metavar="N", help="Run SCENARIO as this run seed draws it; with --mode resume: what goes on.")
@click.option("--scenario", metavar="PKG.MOD:CLASS", help="Your own scenario that the schedule is of.")
@click.option("--mutant", metavar="NAME", help="With --seed: over this broken kernel.")
@setting("faults", metavar="A,B", help="For what is drawn: only these kinds of faults.")
@setting("fault-rate", metavar="SHARE", help="For what is drawn: how often a site that is on fires.")
@setting("strategy", metavar="NAME", help=f"The strategy that draws. Default: {DEFAULT}.")
@setting("max-steps", metavar="N", help=f"Steps after which the run is inconclusive. Default: {Limits().steps}.")
@click.option("--mode", type=click.Choice(MODES), help=f"How a schedule is replayed; see above. Default: {STRICT}.")
@click.option("--lenient", is_flag=True, help="The same as --mode lenient.")
@everywhere
def replay(
    target: str,
    seed: str | None,
    scenario: str | None,
    mutant: str | None,
    mode: str | None,
    lenient: bool,
    **values: Any,
) -> int:
    """Replay a failure by its ID, a schedule FILE, a TOKEN (dst:...), or SCENARIO with --seed.

    Exit code 1 if the invariant fails, 0 if it holds now (a failure kept in .dst is then dropped), 2 if a deviation of
    the schedule does not find its point any more.

    With --mode strict that is all which is said then. With --mode lenient such a deviation is done at a point that is
    like it but for what is counted in its label, if there is one, else the run goes on calmly there. With --mode resume
    likewise, and after the last deviation a strategy draws what else happens, from --seed (0).

    \b
    Examples:
      dst replay K7Q2MD
      dst replay tests/regressions/lost-emit.json
      dst replay 'dst:parcel;deliver:signature:parcel-1:signature-1#1=late'
      dst replay order_saga --seed 224 --mutant emit-ordinal
      dst replay K7Q2MD --mode resume --seed 5
    """
    around = scope(values, scenarios=(scenario,) if scenario else ())
    chosen = _mode(mode, lenient)
    if seed is not None and chosen != RESUME:
        if mode is not None or lenient:
            raise WrongUsage(f"--mode {chosen} is for schedules: a run of a seed has no point to miss")
        return _replay_seed(around, target, seed, mutant)
    if mutant is not None:
        raise WrongUsage("--mutant goes with SCENARIO and --seed: a schedule names its mutant itself")
    return _Replay(around, find_source(around, target), target, scenario, chosen, read_seed(seed) or 0).run()


def _mode(mode: str | None, lenient: bool) -> str:
    if lenient and mode not in (None, LENIENT):
        raise WrongUsage(f"--lenient is --mode lenient: it does not go with --mode {mode}")
    return LENIENT if lenient else mode or STRICT


def find_source(around: Scope, target: str) -> Source:
    """Return the schedule that a person means.  Raises `WrongUsage`, `BadSchedule`."""
    if ID.fullmatch(target.upper()) and target.upper() in around.home.failures():
        id = target.upper()
        return Source(schedule=around.home.schedule(id), id=id, recorded=around.home.failure(id))
    if target.startswith(TOKEN):
        return Source(schedule=token(target))
    if _is_file(target):
        return Source(schedule=read_schedule(Path(target)), path=Path(target))
    if target in around.known or ":" in target:
        raise WrongUsage(f"{target} is a scenario: say which run of it with --seed N, or see `dst run {target}`")
    if ID.fullmatch(target.upper()):
        return Source(schedule=around.home.schedule(target.upper()))  # raises, and says which there are
    kept = around.home.failures()
    more = f"kept failures: {', '.join(kept)}" if kept else f"no failure is kept in {around.home.path}/failures"
    raise around.known.unknown(target, more, "id, file or scenario")


def _is_file(target: str) -> bool:
    try:
        return Path(target).is_file()
    except OSError:  # too long for a name, for one
        return False


def schedule_story(around: Scope, source: Source, command: str) -> Story:
    """Return what a schedule stands for.  Raises `WrongUsage`: what it names is looked up, never imported."""
    schedule = source.schedule
    if schedule.scenario not in around.known:
        own = "the schedule is of one of your own?  --scenario package.module:Class"
        raise around.known.unknown(schedule.scenario, own)
    cls = build(around, schedule.scenario, schedule.mutant)
    return Story(
        scenario=cls,
        mutant=schedule.mutant,
        seed=schedule.seed,
        choices=lambda: Written(schedule.deviations),
        command=command,
        recorded=source.recorded,
    )


def _replay_seed(around: Scope, name: str, seed: str, mutant: str | None) -> int:
    number = read_seed(seed)
    assert number is not None
    cls = build(around, name, mutant)
    faults, rate = chosen_faults(around, cls)
    words = ["dst", "replay", name, "--seed", str(number), *(["--mutant", mutant] if mutant else [])]
    words += ["--faults", ",".join(sorted(faults))] if faults else []
    words += ["--fault-rate", str(rate)] if rate is not None else []
    strategy = chosen_strategy(around)
    words += ["--strategy", strategy] if strategy != DEFAULT else []
    story = Story(
        scenario=cls,
        mutant=mutant,
        seed=number,
        choices=lambda: choices_of(cls, number, faults, rate, strategy),
        command=shlex.join(words),
    )
    looked = look_at(around, story)
    if around.json:
        around.answer({**as_json(story, looked), "replay": story.command})
    else:
        around.show(lines(story, looked))
    return exit_code(looked)


Moved = Mapping[Deviation, Deviation]
"""Where the deviations of a schedule have been moved to."""


def _place(deviation: Deviation, moved: Moved) -> dict[str, str] | None:
    """Return where a deviation has been moved to, None if it has not."""
    to = moved.get(deviation, deviation)
    return None if to == deviation else {"at": to.at, "until": to.until}


def _until(place: Mapping[str, str]) -> str:
    return f" until {place['until']}" if place["until"] else ""


class _Replay:
    """One replay of a schedule.  Mutable: `_beginning` is what is made of the schedule in a mode that goes on."""

    def __init__(self, around: Scope, source: Source, target: str, scenario: str | None, mode: str, seed: int) -> None:
        self._around = around
        self._source = source
        self._mode = mode
        self._seed = seed
        self._command = command_line.replay_id(target, scenario, around.home_flag)
        self._story = schedule_story(around, source, self._repeat())
        self._changed = changed(source.schedule.versions, self._story.scenario)
        self._beginning = source.schedule.deviations

    def _repeat(self) -> str:
        if self._mode == STRICT:
            return self._command
        if self._mode == LENIENT:
            return f"{self._command} --lenient"
        return shlex.join([*shlex.split(self._command), "--mode", RESUME, "--seed", str(self._seed), *self._drawn_by()])

    def _drawn_by(self) -> list[str]:
        faults = texts(self._around.settings.get("faults"))
        rate, strategy = self._around.settings.get("fault-rate"), chosen_strategy(self._around)
        return [
            *(["--faults", ",".join(sorted(faults))] if faults else []),
            *(["--fault-rate", str(rate)] if rate is not None else []),
            *(["--strategy", strategy] if strategy != DEFAULT else []),
        ]

    def _settled(self, looked: Looked) -> Looked:
        """Run it again, with deviations moved that can be."""
        wanted, scenario = self._source.schedule.deviations, self._story.scenario
        self._beginning = host(lambda h: settle(h, scenario, wanted), limits_of(self._around))
        if self._beginning == wanted:
            return looked
        return look_at(self._around, attrs.evolve(self._story, choices=lambda: Written(self._beginning)))

    def _resumed(self, looked: Looked) -> Looked:
        """Run it again, and have a strategy go on from the last deviation that took place in the run looked at."""
        scenario, strategy = self._story.scenario, chosen_strategy(self._around)
        faults, rate = chosen_faults(self._around, scenario)
        beginning = self._beginning = took_place(self._beginning, looked.result)

        def choices() -> Resumed:
            return Resumed(beginning, choices_of(scenario, self._seed, faults, rate, strategy))

        return look_at(self._around, attrs.evolve(self._story, seed=None, choices=choices))

    def run(self) -> int:
        """Run it, say what it came to, return the exit code."""
        looked = look_at(self._around, self._story)
        lost = missed(self._source.schedule.deviations, looked)
        moved: Moved = {}
        if self._mode != STRICT and lost:
            looked = self._settled(looked)
            moved = dict(zip(self._source.schedule.deviations, self._beginning, strict=True))
        if self._mode == RESUME:
            looked = self._resumed(looked)
        code = WRONG_USAGE if self._mode == STRICT and lost else exit_code(looked)
        healed = code == ALL_HELD and not lost and self._mode != RESUME
        if self._around.json:
            self._around.answer(self._answer(looked, lost, moved, code, healed))
        else:
            self._around.show(self._lines(looked, lost, moved, code, healed))
        if healed and self._source.id:
            self._around.home.heal(self._source.id)
        return code

    def _answer(
        self, looked: Looked, lost: list[tuple[Deviation, str]], moved: Moved, code: int, healed: bool
    ) -> dict[str, object]:
        return {
            **as_json(self._story, looked),
            "id": self._source.id or None,
            "missed": [
                {"at": d.at, "do": d.do, "until": d.until, "why": why, "moved_to": _place(d, moved)} for d, why in lost
            ],
            "mode": self._mode,
            "strict": self._mode == STRICT,
            "versions_changed": {name: {"written": was, "here": now} for name, was, now in self._changed},
            "healed": healed,
            "recorded_digest": self._source.recorded.digest if self._source.recorded else None,
            "replay": self._story.command,
            "exit_code": code,
        }

    def _lines(
        self, looked: Looked, lost: list[tuple[Deviation, str]], moved: Moved, code: int, healed: bool
    ) -> Iterator[Line]:
        schedule, name = self._source.schedule, self._source.id or str(self._source.path or "the token")
        if self._changed:
            yield line(said(self._changed), Style.DOUBT)
        if lost:
            count = f"{len(lost)} of {len(schedule.deviations)}"
            yield line(f"{count} deviations of the schedule did not take place:", Style.DOUBT)
            for deviation, why in lost:
                yield line(f"  - {sentence(deviation)}")
                yield line(f"    {deviation.do} at {deviation.at}: {why}")
                if place := _place(deviation, moved):
                    yield line(f"    done where it is alike: {place['at']}{_until(place)}")
        if code == WRONG_USAGE:
            yield line(f"STALE  {name}: the code has changed since it was written, so that it says nothing", Style.BAD)
            yield line(f"Go on calmly there:  {self._story.command} --lenient", Style.HEAD)
            return
        if self._mode == RESUME:
            drawn = len(looked.result.deviations) - len(self._beginning)
            who = f"{chosen_strategy(self._around)} went on, from seed {self._seed}"
            yield line(f"after the schedule's last deviation {who}: {drawn} more deviations")
        yield from lines(self._story, looked)
        yield from self._compared(looked)
        if healed:
            dropped = f"; {name} is dropped from {self._around.home.path}/failures" if self._source.id else ""
            yield line(f"{name} does not fail any more{dropped}", Style.GOOD)
        elif code == ALL_HELD and lost:
            yield line(f"{name} does not fail any more, without what did not take place", Style.DOUBT)
        elif code == ALL_HELD:
            yield line(f"{name} does not fail when it goes on like this", Style.DOUBT)

    def _compared(self, looked: Looked) -> Iterator[Line]:
        """Yield how this run differs from what was recorded, if it does."""
        recorded, found = self._source.recorded, failure_of(self._story, looked)
        if recorded is None or found is None:
            return
        if found.id != recorded.id:
            yield line(f"another failure than recorded: that was {recorded.invariant}, {recorded.seen}", Style.DOUBT)
        elif found.digest != recorded.digest:
            changed = f"the run differs from the recorded one, digest {recorded.digest[:8]}…: the code has changed"
            yield line(changed, Style.FAINT)
