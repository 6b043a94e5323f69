"""A campaign in lines of text, computed from its stored record alone."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import attrs

from dst.records import CampaignRecord, DivergenceRecord, FailureRecord, ScenarioRecord, StrategyRecord, printable

_WIDTH = 90
_DOUBTFUL = 5  # a kind of which so many were sampled, and none changed anything, may do nothing at all
_COLUMNS_MAX = 4  # scenarios side by side; with more there is one column of totals


class Style(enum.Enum):
    """What a line is, for those who can show it."""

    PLAIN = ""
    GOOD = "bold green"
    BAD = "bold red"
    DOUBT = "bold yellow"
    HEAD = "bold"
    FAINT = "dim"


@attrs.frozen
class Line:
    """One line of a report, safe for a terminal."""

    text: str
    style: Style = Style.PLAIN


def line(text: str, style: Style = Style.PLAIN) -> Line:
    """Return a line; what came from files cannot move the cursor."""
    return Line(printable(text), style)


def campaign(record: CampaignRecord, *, quiet: bool = False, verbose: bool = False) -> list[Line]:
    """Return the whole report: failures first, then what was done, then the verdict."""
    lines: list[Line] = []
    for found in record.failures:
        lines += [*failure(found), line("")]
    for diverged in record.divergences:
        lines += [*divergence(diverged), line("")]
    if not quiet:
        lines += [*_coverage(record, verbose=verbose), line("")]
    return [*lines, *_verdict(record)]


# ---- failures --------------------------------------------------------------------------------------------------------


def failure(record: FailureRecord) -> Iterator[Line]:
    """Yield a failure: which, in words; where and when; seen and wanted; the schedule and its replay; the command."""
    name = f"{record.scenario} over {record.mutant}" if record.mutant else record.scenario
    yield line(_spread(f"FAIL {record.invariant}", f"{name}  id {record.id}"), Style.BAD)
    if record.says:
        yield line(f"  broken: {record.says}")
    yield line(f"  at {_place(record)}")
    yield line(f"  seen:   {record.seen}")
    yield line(f"  wanted: {record.wanted}")
    larger = f"; found in {record.found_in}" if record.found_in else ""
    yield line(f"  schedule: {_size(record)}{larger}")
    for number, sentence in enumerate(record.sentences, 1):
        yield line(f"    {number}. {sentence}")
    if record.cause:
        yield line(f"  cause:  {record.cause}")
    if record.repeats:
        yield line(f"  the same failure in {_count(record.repeats, 'further run')}")
    if record.replays:
        yield line(f"  replayed: same digest {record.digest[:8]}…")
    else:
        other = "" if record.seed is None else ", the seed does"
        yield line(f"  replayed: NOT the same: the schedule does not reproduce it{other}", Style.DOUBT)
    yield line(f"Reproduce:  {record.replay}", Style.HEAD)


def _place(record: FailureRecord) -> str:
    where = f", about {record.key}" if record.key else ""
    return f"{said_time(record.when_ns)}, record {record.record} ({record.during}){where}"


def _size(record: FailureRecord) -> str:
    found = f"{_count(len(record.deviations), 'deviation')} of {_count(record.choices, 'choice')}"
    if record.minimal:
        return f"{found}, 1-minimal"
    if record.shrunk:
        return f"{found}, shrinking was cut short"
    if record.shrunk is False:
        return f"{found}, not shrunk"
    return found if len(record.deviations) < 2 else f"{found}, not known to be minimal: see `dst shrink`"


def divergence(record: DivergenceRecord) -> Iterator[Line]:
    """Yield two runs of the same choices that differ."""
    yield line(_spread("NONDETERMINISM", record.scenario), Style.BAD)
    source = "one schedule" if record.seed is None else f"seed {record.seed}"
    yield line(f"  two runs from {source} part at record {record.record}:")
    yield line(f"    first:  {_short(record.first)}")
    yield line(f"    second: {_short(record.second)}")
    yield line("  look for time, randomness, set order or threads in the flow and its world; `dst doctor` tells more")
    if record.replay:
        yield line(f"Reproduce:  {record.replay}", Style.HEAD)


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"


# ---- what was done ---------------------------------------------------------------------------------------------------


def _coverage(record: CampaignRecord, *, verbose: bool) -> Iterator[Line]:
    width = max(len(s.name) for s in record.scenarios)
    for scenario in record.scenarios:
        rate = f"{scenario.schedules / scenario.run_seconds:,.0f}/s" if scenario.run_seconds else "-"
        yield line(f"{scenario.name:{width}}  {_count(scenario.schedules, 'schedule'):>16}  {rate:>8} a core")
    yield line("")
    yield from _table("fired", record.scenarios, [s.fired for s in record.scenarios])
    yield from _idle(record.scenarios)
    yield from _table("judged where it could fail", record.scenarios, [s.judged for s in record.scenarios])
    yield from _table("marks reached", record.scenarios, [s.marks for s in record.scenarios])
    if verbose:
        yield line("invariants", Style.HEAD)
        says = {name: text for scenario in record.scenarios for name, text in scenario.says.items()}
        for name, text in says.items():
            yield line(f"  {name}: {text}")
    if len(record.strategies) > 1:
        shares = (f"{share.name} {share.schedules:,}{_first(share)}" for share in record.strategies)
        yield line(f"schedules by strategy: {', '.join(shares)}")
    if record.rechecked and not record.divergences:
        yield line(f"run twice: {record.rechecked} of {_count(record.schedules, 'schedule')}, same digests")
    if record.between_hash_seeds and not record.divergences:
        yield line(f"under two hash seeds: {_count(record.between_hash_seeds, 'run')}, same digests")


def _first(share: StrategyRecord) -> str:
    return "" if share.first is None else f" (failed from its run {share.first:,} on, {share.failing:,} of them)"


def _idle(scenarios: Sequence[ScenarioRecord]) -> Iterator[Line]:
    """Yield the kinds of faults of which some that fired have changed nothing: doubtful if that is so of all."""
    for scenario in scenarios:
        for kind, unchanged in sorted(scenario.unchanged.items()):
            sampled = scenario.sampled[kind]
            fired = f"{kind} of {scenario.name} fired {_times(scenario.fired[kind])}"
            if unchanged == sampled >= _DOUBTFUL:
                yield line(f"  {fired}: none of the {sampled} sampled changed anything", Style.DOUBT)
            else:
                yield line(f"  {fired}: {sampled} sampled, {unchanged} changed nothing", Style.FAINT)


def _times(number: int) -> str:
    return _count(number, "time")


def _table(title: str, scenarios: Sequence[ScenarioRecord], counts: Sequence[dict[str, int]]) -> Iterator[Line]:
    """Yield a table: a row for each name, a column for each scenario, and a dash where the name is none of its own."""
    names = list(dict.fromkeys(name for column in counts for name in column))
    if not names:
        return
    columns = [(s.name, column) for s, column in zip(scenarios, counts, strict=True)]
    if len(columns) > _COLUMNS_MAX:
        columns = [("in all", {name: sum(column.get(name, 0) for column in counts) for name in names})]
    width = max(len(title) - 2, *(len(name) for name in names))
    widths = [max(len(head), 9) for head, _ in columns]
    heads = "  ".join(f"{head:>{w}}" for (head, _), w in zip(columns, widths, strict=True))
    yield line(f"{title:{width + 2}}  {heads}", Style.HEAD)
    for name in names:
        cells = [f"{column[name]:,}" if name in column else "-" for _, column in columns]
        row = "  ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        zero = any(column.get(name) == 0 for _, column in columns)
        yield line(f"  {name:{width}}  {row}", Style.DOUBT if zero else Style.PLAIN)


def _verdict(record: CampaignRecord) -> Iterator[Line]:
    seconds = max(record.seconds, 1e-9)
    work = f"{_count(record.schedules, 'schedule')} in {record.seconds:.1f} s ({record.schedules / seconds:,.0f}/s"
    work += f", {record.workers} workers)" if record.workers > 1 else ")"
    planned = "" if record.planned is None else f" of {record.planned:,}"
    yield from _doubts(record)
    if record.divergences:
        yield line(f"NONDETERMINISTIC  {work}", Style.BAD)
    elif record.failures:
        yield line(f"FAIL  {_count(len(record.failures), 'failure')}  {work}", Style.BAD)
    elif record.interrupted:
        yield line(f"INTERRUPTED  after {work}{planned}", Style.DOUBT)
    elif record.stopped:
        yield line(f"INCONCLUSIVE  {work}{planned}", Style.DOUBT)
    elif record.missing:
        yield line(f"VACUOUS  {work}: nothing failed, but not all that was asked for happened", Style.DOUBT)
    elif record.inconclusive_runs:
        yield line(f"INCONCLUSIVE  {work}: {_count(record.inconclusive_runs, 'run')} said nothing", Style.DOUBT)
    elif record.mutant:
        yield line(f"PASS  the mutant {record.mutant} survived  {work}", Style.DOUBT)
    else:
        yield line(f"PASS  {work}", Style.GOOD)
    seeds = record.seeds
    source = f"seed {seeds.campaign}" if seeds.campaign is not None else f"seeds {seeds.first} to {seeds.last}"
    shard = f"  shard {record.shard}" if record.shard else ""
    yield line(f"campaign digest {record.digest}  {source}{shard}")
    yield line(f"Repeat:  {record.repeat}", Style.FAINT)


def _doubts(record: CampaignRecord) -> Iterator[Line]:
    """Yield why this is no pass although nothing failed."""
    for missing in record.missing:
        yield line(f"missing: {missing}", Style.DOUBT)
    for run in record.inconclusive[:5]:
        source = f"replay {run.token}" if run.seed is None else f"from seed {run.seed}"
        yield line(f"inconclusive: {run.scenario} {source}: {run.why}", Style.DOUBT)
    more = record.inconclusive_runs - min(5, len(record.inconclusive))
    if more > 0:
        yield line(f"inconclusive: {_count(more, 'further run')}", Style.DOUBT)
    if record.stopped:
        yield line(f"stopped: {record.stopped}", Style.DOUBT)


# ---- words -----------------------------------------------------------------------------------------------------------


def said_time(now_ns: int) -> str:
    """Return virtual time in words."""
    seconds = now_ns / 1_000_000_000
    if seconds < 3600:
        return f"{seconds:.3f} s"
    return f"{seconds / 3600:.2f} h" if seconds < 86_400 else f"{seconds / 86_400:.2f} days"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _spread(left: str, right: str) -> str:
    return f"{left}{' ' * max(2, _WIDTH - len(left) - len(right))}{right}"
