"""`dst doctor`: is everything under control here?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from dst.cli.scope import everywhere, scope, warn
from dst.doctor import (
    HASH_SEED,
    TWICE,
    Check,
    Diagnosis,
    Difference,
    DoctorFailed,
    Python,
    diagnose,
    find_pythons,
    python_path,
    start,
)
from dst.errors import WrongUsage
from dst.executors.tally import ALL_HELD, BROKE, NONDETERMINISM
from dst.judging import run_seed
from dst.watching import Source
from reports.summary import Line, Style, line

_SEED = 0  # the doctor always looks at the same runs


@click.command(short_help="Check that runs are deterministic here.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("-n", "--runs", type=click.IntRange(1, 1000), default=8, show_default=True, help="Runs of each scenario.")
@click.option("--seed", "given", type=click.IntRange(min=0), multiple=True, metavar="N", help="A run seed to see too.")
@click.option("--python", "pythons", multiple=True, metavar="PATH", help="Another Python to check; default: all found.")
@everywhere
def doctor(
    scenarios: tuple[str, ...], runs: int, given: tuple[int, ...], pythons: tuple[str, ...], **values: Any
) -> int:
    """Check that runs are deterministic: the same seeds twice in one process, under other hash seeds, other Pythons.

    The first of the runs is calm, the others have faults. A Python that cannot make the runs is told as not checked.
    What the scenario's code asks of the clock, of chance, of threads or of the collector is told, with its place.
    Exit code 4 if any two runs differ.

    \b
    Examples:
      dst doctor
      dst doctor shop.scenarios:Checkout
      dst doctor order_saga --python /opt/python3.13/bin/python --json
    """
    around = scope(values)
    found = [around.known.find(name) for name in dict.fromkeys(scenarios or around.default_scenarios)]
    if not found:
        raise WrongUsage("there is no scenario: name one as package.module:Class")
    others, refused = _pythons(pythons)
    seeds = [None, *(run_seed(_SEED, index) for index in range(runs - 1)), *given]
    path = python_path([cls.__module__ for _, cls in found])
    try:
        diagnosis = diagnose([reference for reference, _ in found], seeds, others, path)
    except DoctorFailed as failed:
        click.echo(failed.details, err=True)
        warn(str(failed))
        return BROKE
    code = NONDETERMINISM if diagnosis.differences else ALL_HELD
    if around.json:
        around.answer(_as_json(diagnosis, refused, code))
    else:
        around.show(_lines(diagnosis, refused))
    return code


def _pythons(paths: tuple[str, ...]) -> tuple[list[Python], list[tuple[str, str]]]:
    """Return the other Pythons, and those of `paths` that cannot be used, with why."""
    if not paths:
        return find_pythons(), []
    started = [(path, start(path)) for path in dict.fromkeys(paths)]
    return [p for _, p in started if isinstance(p, Python)], [(path, p) for path, p in started if isinstance(p, str)]


def _as_json(diagnosis: Diagnosis, refused: list[tuple[str, str]], code: int) -> dict[str, object]:
    return {
        "scenario": list(diagnosis.scenarios),
        "runs": diagnosis.runs,
        "checks": [_check(check) for check in diagnosis.checks],
        "not_checked": [
            *({"python": path, "why": why} for path, why in refused),
            *({"python": c.place.python.path, "why": c.why} for c in diagnosis.checks if c.why),
        ],
        "differences": [attrs.asdict(difference) for difference in diagnosis.differences],
        "asked": [{"scenario": each.scenario, **attrs.asdict(each.source)} for each in diagnosis.asked],
        "verdict": "fail" if diagnosis.differences else "pass",
        "exit_code": code,
    }


def _check(check: Check) -> dict[str, object]:
    return {
        "python": check.place.python.version,
        "path": check.place.python.path,
        "hash_seed": check.place.hash_seed,
        "checked": not check.why,
        "runs": check.runs,
        "same_twice": check.twice,
        "equal_to_first": check.equal,
        "trio": check.trio,
        "fast_paths": list(check.fast),
    }


def _lines(diagnosis: Diagnosis, refused: list[tuple[str, str]]) -> Iterator[Line]:
    each = diagnosis.runs // len(diagnosis.scenarios)
    names = ", ".join(diagnosis.scenarios)
    yield line(f"{diagnosis.runs} runs: {each} of each of {names}; made twice in each place", Style.HEAD)
    for check in diagnosis.checks:
        yield _said(check)
    for path, why in refused:
        yield line(f"  {path}: NOT CHECKED: {why}", Style.DOUBT)
    for python in {check.place.python.version: check for check in diagnosis.checks if not check.why}.values():
        fast = f"fast paths: {', '.join(python.fast)}" if python.fast else "no fast paths: pure Python"
        yield line(f"  Python {python.place.python.version}: trio {python.trio}, {fast}", Style.FAINT)
    yield line("")
    for difference in diagnosis.differences:
        yield from _differing(difference)
        yield from _causes(difference, diagnosis.causes(difference.scenario))
        yield line("")
    differing = {difference.scenario for difference in diagnosis.differences}
    for name in diagnosis.scenarios:
        if name not in differing and (sources := diagnosis.causes(name)):
            yield line(f"DOUBT  {name} asks for what is not under control, and no run shows it", Style.DOUBT)
            yield from map(_asking, sources)
            yield line("")
    if diagnosis.differences:
        yield line(f"FAIL  {len(differing)} of {len(diagnosis.scenarios)} scenarios are not deterministic", Style.BAD)
    else:
        places = sum(not check.why for check in diagnosis.checks)
        yield line(
            f"PASS  {diagnosis.runs} runs, twice in each of {places} places: always the same digests", Style.GOOD
        )


def _said(check: Check) -> Line:
    if check.why:
        return line(f"  {check.place.said}: NOT CHECKED: {check.why}", Style.DOUBT)
    text = f"  {check.place.said}: {check.twice} of {check.runs} the same twice"
    if check.equal is not None:
        text += f", {check.equal} of {check.runs} equal to the first place"
    whole = check.twice == check.runs and check.equal in (None, check.runs)
    return line(text, Style.PLAIN if whole else Style.BAD)


def _differing(difference: Difference) -> Iterator[Line]:
    run = "the calm run" if difference.seed is None else f"the run from seed {difference.seed}"
    changed = "made twice" if difference.kind == TWICE else f"under another {difference.kind}"
    where = f"{run}, {changed}, parts at record {difference.record}"
    yield line(f"NONDETERMINISM  {difference.scenario}: {where}", Style.BAD)
    yield line(f"  {difference.one}:")
    yield line(f"    {_short(difference.first)}")
    yield line(f"  {difference.other}:")
    yield line(f"    {_short(difference.second)}")


def _causes(difference: Difference, sources: tuple[Source, ...]) -> Iterator[Line]:
    """Say what was seen of the cause, or what it is if nothing was seen."""
    if sources:
        yield line("  its code asks for what is not under control:")
        yield from map(_asking, sources)
    elif difference.kind == TWICE:
        yield line("  no clock, chance or thread was seen: look for what one run leaves to the next, and for `id()`")
    elif difference.kind == HASH_SEED:
        yield line(
            "  no clock, chance or thread was seen: hash order, which is the order of a set, or `hash()`, `id()`"
        )
    else:
        yield line("  no clock, chance or thread was seen: look for what is new in that Python or in its libraries")


def _asking(source: Source) -> Line:
    file = Path(source.file)
    where = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return line(f"    {source.kind}: {source.called} at {where}:{source.line} in {source.function}")


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"
