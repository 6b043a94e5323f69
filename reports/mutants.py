"""The kill matrix in lines of text and as a Markdown page, computed from its record alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from dst.records import KillRecord, MutantRecord, MutantsRecord
from reports.summary import Line, Style, line

_WANTED_RATIO = 3


def matrix(record: MutantsRecord) -> Iterator[Line]:
    """Yield the report: a line for each mutant, and what survived last."""
    width = max((len(mutant.name) for mutant in record.mutants), default=0)
    for mutant in record.mutants:
        for strategy in record.strategies:
            kills = of_strategy(mutant, strategy)
            name = mutant.name if strategy == record.strategies[0] else ""
            style = Style.PLAIN if mutant.equivalent or all(k.killed for k in kills) else Style.BAD
            yield line(f"{name:{width}}  {strategy:9}  {cell(kills)}", style)
        if mutant.equivalent:
            yield line(f"{'':{width}}  equivalent: {mutant.equivalent}", Style.FAINT)
    yield line("")
    for mutant in survivors(record):
        yield line(f"SURVIVED  {mutant.name} on {mutant.scenario}: {mutant.breaks}", Style.BAD)
    for mutant in record.mutants:
        yield from _doubts(mutant)
    killed = sum(mutant.killed for mutant in record.mutants)
    equivalent = sum(bool(mutant.equivalent) for mutant in record.mutants)
    said = f"{killed} of {len(record.mutants) - equivalent} mutants killed from each of {_seeds(record)}"
    said += f", {equivalent} equivalent" if equivalent else ""
    if record.interrupted:
        said = f"INTERRUPTED  {said} so far"
    yield line(said, Style.GOOD if record.verdict == "pass" else Style.BAD)
    yield line(f"Repeat:  {record.repeat}", Style.FAINT)


def _seeds(record: MutantsRecord) -> str:
    return f"{len(record.seeds)} seed{'' if len(record.seeds) == 1 else 's'}"


def survivors(record: MutantsRecord) -> list[MutantRecord]:
    """Return the mutants that must be killed and were not, from some seed."""
    return [m for m in record.mutants if not m.killed and not m.equivalent]


def _doubts(mutant: MutantRecord) -> Iterator[Line]:
    for kill in mutant.kills:
        if kill.true_kernel_holds is False:
            where = f"{mutant.name}, {kill.strategy}, seed {kill.seed}"
            yield line(f"{where}: its schedule breaks the true kernel too: replay {kill.token}", Style.BAD)


def of_strategy(mutant: MutantRecord, strategy: str) -> list[KillRecord]:
    """Return a mutant's tries by one strategy."""
    return [kill for kill in mutant.kills if kill.strategy == strategy]


def cell(kills: Sequence[KillRecord]) -> str:
    """Return one mutant under one strategy in words: median and worst, the rest only where something is to be said."""
    done = [kill for kill in kills if kill.killed]
    if not kills:
        return "not tried"
    tried = max(kill.schedules for kill in kills)
    if not done:
        return f"survived {len(kills)} of {len(kills)}, {tried:,} schedules"
    schedules = [kill.schedules for kill in done]
    seconds = [kill.seconds for kill in done]
    sizes = [kill.deviations or 0 for kill in done]
    said = f"{_number(statistics.median(schedules))} schedules (worst {max(schedules):,}), "
    said += f"{statistics.median(seconds):.1f} s (worst {max(seconds):.1f}), {_range(sizes)} deviations"
    said += f", {' or '.join(sorted({kill.invariant for kill in done}))}"
    return said if len(done) == len(kills) else f"SURVIVED {len(kills) - len(done)} of {len(kills)}; else {said}"


def _number(median: float) -> str:
    return f"{median:,.0f}" if median == int(median) else f"{median:,.1f}"


def _range(sizes: Sequence[int]) -> str:
    return str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"


# ---- a page ----------------------------------------------------------------------------------------------------------


def page(record: MutantsRecord) -> str:
    """Return the matrix as a Markdown page: for each mutant and strategy median and worst over all seeds."""
    lines = [
        "# Mutants and strategies",
        "",
        f"Schedules to the first kill by an expected invariant: median / worst of {_seeds(record)} "
        f"({', '.join(map(str, record.seeds))}); seconds below. A dash with a share: it survived from that many of the "
        f"seeds, after {record.schedules_max:,} schedules or {record.seconds_max:g} s.",
        "",
        f"| mutant | scenario | killed by | {' | '.join(record.strategies)} | deviations |",
        f"|---|---|---|{'---|' * len(record.strategies)}---|",
    ]
    lines += [_row(mutant, record.strategies) for mutant in record.mutants]
    lines += ["", *_ratios(record)]
    equivalent = [mutant for mutant in record.mutants if mutant.equivalent]
    if equivalent:
        lines += ["", "## Equivalent", "", *(f"- `{m.name}` ({m.breaks}): {m.equivalent}" for m in equivalent)]
    lines += ["", "## What is broken, and a schedule that shows it", ""]
    for mutant in record.mutants:
        lines += _story(mutant)
    lines += [f"Made by `{record.repeat}`.", ""]
    return "\n".join(lines)


def _row(mutant: MutantRecord, strategies: Sequence[str]) -> str:
    seen = sorted({kill.invariant for kill in mutant.kills if kill.killed}) or list(mutant.expected)
    sizes = [kill.deviations or 0 for kill in mutant.kills if kill.killed]
    cells = [_short_cell(of_strategy(mutant, strategy)) for strategy in strategies]
    size = _range(sizes) if sizes else "-"
    return f"| `{mutant.name}` | {mutant.scenario} | {', '.join(seen)} | {' | '.join(cells)} | {size} |"


def _short_cell(kills: Sequence[KillRecord]) -> str:
    done = [kill for kill in kills if kill.killed]
    if not done:
        return f"- ({len(kills)}/{len(kills)})" if kills else ""
    schedules, seconds = [kill.schedules for kill in done], [kill.seconds for kill in done]
    said = f"{_number(statistics.median(schedules))} / {max(schedules):,}"
    said += f"<br>{statistics.median(seconds):.1f} / {max(seconds):.1f} s"
    return said if len(done) == len(kills) else f"{said}<br>- ({len(kills) - len(done)}/{len(kills)})"


def _ratios(record: MutantsRecord) -> Iterator[str]:
    """Yield how the first strategy compares with the best other one, mutant by mutant: in two measures.

    The lowest of several medians of a few seeds is lower than any strategy deserves; schedules for each kill use all
    that was run.
    """
    if len(record.strategies) > 1:
        yield from _ratio(record, "median schedules", median_schedules)
        yield ""
        yield from _ratio(record, "schedules for each kill, over all seeds", _schedules_for_each_kill)
        yield ""
        yield (
            "The best of several strategies is chosen here by the seeds that it is then judged by, so that with few "
            "seeds some ratios are high by chance. `tests/benchmarks/portfolio.py` chooses it by other seeds."
        )


def _ratio(record: MutantsRecord, what: str, cost: Callable[[Sequence[KillRecord]], float | None]) -> Iterator[str]:
    first, *others = record.strategies
    ratios: list[tuple[float, str, str]] = []
    for mutant in record.mutants:
        own = cost(of_strategy(mutant, first))
        best = min(((m, s) for s in others if (m := cost(of_strategy(mutant, s))) is not None), default=None)
        if own is not None and best is not None:
            ratios.append((own / best[0], mutant.name, best[1]))
    if ratios:
        ratios.sort(reverse=True)
        median = statistics.median(ratio for ratio, *_ in ratios)
        above = [f"`{name}` {ratio:.1f} (`{best}` is best)" for ratio, name, best in ratios if ratio > _WANTED_RATIO]
        yield (
            f"`{first}` against the best of the others, mutant by mutant, in {what}: {median:.2f} in the median of "
            f"{len(ratios)} mutants, at worst {ratios[0][0]:.1f}; more than {_WANTED_RATIO} for {len(above)}"
            f"{': ' if above else ''}{', '.join(above)}."
        )


def _schedules_for_each_kill(kills: Sequence[KillRecord]) -> float | None:
    """Return how many schedules a kill takes, with those of tries that killed nothing; None if none did."""
    killed = sum(kill.killed for kill in kills)
    return sum(kill.schedules for kill in kills) / killed if killed else None


def median_schedules(kills: Sequence[KillRecord]) -> float | None:
    """Return the median schedules to the kill, None unless it was killed from every seed."""
    if not kills or not all(kill.killed for kill in kills):
        return None
    return float(statistics.median(kill.schedules for kill in kills))


def shortest(mutant: MutantRecord) -> KillRecord | None:
    """Return the kill with the shortest schedule, None if it survived."""
    return min((k for k in mutant.kills if k.killed), key=lambda k: (k.deviations or 0, k.schedules), default=None)


def _story(mutant: MutantRecord) -> Iterator[str]:
    yield f"### `{mutant.name}`"
    yield ""
    yield f"{mutant.breaks}. Expected: {' or '.join(mutant.expected)}."
    yield ""
    kill = shortest(mutant)
    if kill is not None:
        yield from (f"{n}. {sentence}" for n, sentence in enumerate(kill.sentences, 1))
        yield "" if kill.sentences else "The calm run shows it.\n"
