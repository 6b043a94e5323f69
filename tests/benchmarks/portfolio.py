"""How many schedules the portfolio takes to kill a mutant, and how many the best single strategy: with seeds enough.

    .venv/bin/python tests/benchmarks/portfolio.py [MUTANT ...] [--strategy NAME] [--seeds A:B] [--cap N] [--enough N]
                                                   [--results FILE] [--draw-nothing] [--json]

Schedules are counted, nothing is timed and nothing is shrunk: whoever runs it gets the same numbers.  The least of
several averages of a few seeds is lower than any strategy deserves.  So the best single strategy is chosen on one half
of the seeds and judged on the other, and the other way round; limits are those of a bootstrap over seeds, in which it
is chosen anew each time.

Each campaign is a line of JSON in FILE, and what is there is not run again: a search that was stopped goes on, and
files of other seeds may be put one after the other.  A file belongs to one state of the code.

Example:

    .venv/bin/python tests/benchmarks/portfolio.py saga-unstable-ids --seeds 101:141 --results draws.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from dst.executors.assignment import CHUNK
from dst.judging import run_one, run_seed, terms_of
from dst.lookup import find_scenario, shipped_mutants
from dst.mutant import Mutant
from dst.run import Host, host
from dst.strategies.portfolio import DEFAULT, STRATEGIES
from dst.transparency import Transparency

_SINGLE = tuple(name for name in STRATEGIES if name != DEFAULT)
_SAMPLES = 400  # of a bootstrap
_LOW, _HIGH = 9, 390  # where the limits of 95 % of them stand
_WANTED = 3.0


@attrs.frozen
class Draw:
    """One campaign: how many schedules it took to the kill, or all that it was given."""

    mutant: str
    strategy: str
    seed: int
    schedules: int
    by: str  # the strategy that made the last of them; "" if it killed nothing


@attrs.frozen(kw_only=True)
class Standing:
    """The portfolio beside the best single strategy, on one mutant."""

    mutant: str
    means: Mapping[str, float]
    medians: Mapping[str, float]
    seeds: Mapping[str, int]
    best: tuple[str, ...]  # on one half of the seeds, and on the other if that is another
    ratio: float  # of schedules for each kill
    limits: tuple[float, float]
    ratio_of_medians: float


# ---- what is drawn ---------------------------------------------------------------------------------------------------


def draw(
    mutant: Mutant, strategies: Sequence[str], seeds: range, cap: int, enough: int, done: list[Draw]
) -> list[Draw]:
    """Return what is not yet done: of each strategy seed after seed, until `enough` schedules have run."""

    async def campaigns(simulations: Host) -> list[Draw]:
        scenario, drawn = mutant.apply(find_scenario(mutant.scenario)), list[Draw]()
        transparency = Transparency(simulations)

        async def campaign(strategy: str, seed: int) -> Draw:
            for start in range(0, cap, CHUNK):
                search = STRATEGIES[strategy](terms_of(scenario, opening=start == 0))
                for index in range(start, min(start + CHUNK, cap)):
                    proposal = search.propose(run_seed(seed, index))
                    result, violation = await run_one(
                        simulations, transparency, scenario, proposal.choices(), proposal.spy
                    )
                    if violation is not None and violation.invariant in mutant.expected:
                        return Draw(mutant.name, strategy, seed, index + 1, proposal.strategy)
                    search.saw(proposal, result)
            return Draw(mutant.name, strategy, seed, cap, "")

        for strategy in strategies:
            mine = {d.seed: d for d in done if (d.mutant, d.strategy) == (mutant.name, strategy)}
            spent = sum(d.schedules for d in mine.values())
            for seed in seeds:
                if seed not in mine and spent < enough:
                    drawn.append(await campaign(strategy, seed))
                    spent += drawn[-1].schedules
        return drawn

    return host(campaigns)


def read(file: Path) -> list[Draw]:
    """Return the draws in a file, none if there is no file."""
    draws = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines() if file.exists() else (), 1):
        try:
            draws.append(Draw(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise SystemExit(
                f"portfolio.py: line {number} of {file} is no draw: {line[:60]!r} ({error}); take the line out"
            ) from error
    return draws


# ---- what it comes to ------------------------------------------------------------------------------------------------


def each_kill(draws: Sequence[Draw]) -> float:
    """Return schedules for each kill, with those of campaigns that killed nothing."""
    kills = sum(d.by != "" for d in draws)
    return sum(d.schedules for d in draws) / kills if kills else math.inf


def median(draws: Sequence[Draw]) -> float:
    """Return the median; a campaign that killed nothing has no end."""
    return statistics.median(d.schedules if d.by else math.inf for d in draws)


def judged(single: Mapping[str, Sequence[Draw]]) -> tuple[list[Draw], tuple[str, ...]]:
    """Return draws of the best strategy and its name: for each half of the seeds, of the best on the other half."""
    halves = [{name: [d for d in draws if d.seed % 2 == half] for name, draws in single.items()} for half in (0, 1)]
    best = [min(half, key=lambda name: each_kill(half[name])) for half in halves]
    return [*halves[1][best[0]], *halves[0][best[1]]], tuple(dict.fromkeys(best))


def standing(mutant: str, draws: Sequence[Draw]) -> Standing | None:
    """Return how the portfolio stands; None if too little has been drawn to say it."""
    by_name = {name: [d for d in draws if (d.mutant, d.strategy) == (mutant, name)] for name in STRATEGIES}
    known = {name: each for name, each in by_name.items() if {d.seed % 2 for d in each} == {0, 1}}
    single = {name: each for name, each in known.items() if name != DEFAULT}
    if DEFAULT not in known or not single:
        return None
    best, names = judged(single)
    if median(best) == math.inf:
        return None
    chance, ratios = random.Random(mutant), list[float]()
    for _ in range(_SAMPLES):
        again = {name: _resampled(each, chance) for name, each in known.items()}
        own = again.pop(DEFAULT)
        ratios.append(each_kill(own) / each_kill(judged(again)[0]))
    ratios.sort()
    return Standing(
        mutant=mutant,
        means={name: each_kill(each) for name, each in known.items()},
        medians={name: median(each) for name, each in known.items()},
        seeds={name: len(each) for name, each in known.items()},
        best=names,
        ratio=each_kill(known[DEFAULT]) / each_kill(best),
        limits=(ratios[_LOW], ratios[_HIGH]),
        ratio_of_medians=median(known[DEFAULT]) / median(best),
    )


def _resampled(draws: Sequence[Draw], chance: random.Random) -> list[Draw]:
    """Return as many draws, any of them any number of times; each half of the seeds by itself."""
    halves = [[d for d in draws if d.seed % 2 == half] for half in (0, 1)]
    return [d for half in halves for d in chance.choices(half, k=len(half))]


# ---- how it is shown -------------------------------------------------------------------------------------------------


def show(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield the table's lines, the worst ratio first, and what they come to."""
    yield "The portfolio against the best single strategy; below, schedules for each kill / median (seeds) of each."
    yield ""
    for each in sorted(standings, key=lambda s: -s.ratio):
        low, high = each.limits
        yield (
            f"{each.mutant}: {each.ratio:.2f} ({low:.2f} to {high:.2f}), in medians {each.ratio_of_medians:.2f}; "
            f"best: {', '.join(each.best)}"
        )
        cells = [f"{n} {each.means[n]:.1f} / {each.medians[n]:g} ({each.seeds[n]})" for n in each.means]
        yield f"    {'  '.join(cells)}"
    if standings:
        yield ""
        yield from _summary(standings)


def _summary(standings: Sequence[Standing]) -> Iterator[str]:
    of_means = [each.ratio for each in standings]
    for what, ratios in (("schedules for each kill", of_means), ("medians", [s.ratio_of_medians for s in standings])):
        above = sum(ratio > _WANTED for ratio in ratios)
        yield (
            f"In {what}: {statistics.geometric_mean(ratios):.2f} times the best single one (geometric mean of "
            f"{len(ratios)} mutants), at worst {max(ratios):.2f}; more than {_WANTED:g} for {above}."
        )
    sure = [each.mutant for each in standings if each.limits[0] > _WANTED]
    yield f"More than {_WANTED:g} beyond chance: {', '.join(sure) or 'none'}."
    for name in STRATEGIES:
        means = [each.means[name] for each in standings if name in each.means]
        if len(means) == len(standings):
            yield f"{name}: {statistics.geometric_mean(means):.2f} schedules for each kill (geometric mean)"


def main() -> None:
    """Draw and print."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("mutants", nargs="*", metavar="MUTANT", help="all without, but those that are equivalent")
    words.add_argument(
        "--strategy", action="append", choices=[*STRATEGIES], metavar="NAME", help=f"of {', '.join(STRATEGIES)}; all"
    )
    words.add_argument(
        "--seeds", type=_range, default=range(101, 121), metavar="A:B", help="from A, without B (101:121)"
    )
    words.add_argument("--cap", type=int, default=3_000, metavar="N", help="give a campaign up after N (3000)")
    words.add_argument("--enough", type=int, default=10_000, metavar="N", help="draw no more once N have run (10000)")
    words.add_argument("--results", type=Path, metavar="FILE", help="keep the draws there, and use what is there")
    words.add_argument("--draw-nothing", action="store_true", help="show what is in FILE")
    words.add_argument("--json", action="store_true", help="one JSON list on stdout")
    asked = words.parse_args()
    mutants = {name: mutant for name, mutant in shipped_mutants().items() if not mutant.equivalent}
    for name in asked.mutants:
        if name not in mutants:
            words.error(f"no mutant {name!r} that can be killed; there are {', '.join(mutants)}")
    names, draws = asked.mutants or [*mutants], [] if asked.results is None else read(asked.results)
    for name in () if asked.draw_nothing else names:
        drawn = draw(mutants[name], asked.strategy or [*STRATEGIES], asked.seeds, asked.cap, asked.enough, draws)
        draws += drawn
        if asked.results is not None:
            with asked.results.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(attrs.asdict(each)) + "\n" for each in drawn)
    standings = [each for name in names if (each := standing(name, draws)) is not None]
    sys.stdout.write(_json(standings) if asked.json else "".join(f"{line}\n" for line in show(standings)))


def _json(standings: Sequence[Standing]) -> str:
    rows: list[dict[str, Any]] = [attrs.asdict(each) for each in standings]
    return json.dumps(rows, indent=2) + "\n"


def _range(text: str) -> range:
    first, _, end = text.partition(":")
    try:
        return range(int(first), int(end))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers with a colon, such as 101:121") from None


if __name__ == "__main__":
    main()
