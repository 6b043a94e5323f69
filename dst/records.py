"""Stored records: what a campaign leaves behind, and all that reports ever read.

Plain values only, as JSON on disk: nothing here knows a kernel, a scenario or a scheduler, and a campaign can be
rendered where none of them is installed.  Files are untrusted: they are parsed against these shapes, with limits.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from types import UnionType
from typing import TypeVar, cast

import attrs

FORMAT = 1
ID = re.compile(r"[A-Z2-7]{6}")
"""Six base32 characters: nothing else ever becomes part of a path."""

_FILE_MAX = 64_000_000
_TEXT_MAX = 100_000
_LIST_MAX = 200_000
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

R = TypeVar("R")


class BadRecords(ValueError):
    """A file holds no records, or records of another format."""


def printable(text: str) -> str:
    """Return `text` safe for a terminal: control characters and direction marks are written out."""
    return _UNPRINTABLE.sub(lambda found: _written_out(ord(found[0])), text)


def _written_out(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


@attrs.frozen(kw_only=True)
class DeviationRecord:
    """One deviation from calm, as a schedule has it."""

    at: str
    do: str
    until: str = ""


@attrs.frozen(kw_only=True)
class FailureRecord:
    """One failure, shrunk and replayed."""

    id: str
    signature: str
    invariant: str
    says: str  # the invariant in words
    scenario: str  # which the schedule is of
    mutant: str | None
    seed: int | None
    key: str  # which instance: an execution and step, an emit identity
    record: int  # index of the record at which it showed
    during: str  # that record, in words
    when_ns: int  # virtual time
    seen: str
    wanted: str
    deviations: tuple[DeviationRecord, ...]
    sentences: tuple[str, ...]  # the deviations in words
    found_with: int  # deviations of the run that found it
    choices: int  # points that run passed
    minimal: bool
    shrunk: bool | None  # was shrinking asked for?  None: not known
    digest: str
    replays: bool
    replay: str  # the command that reproduces it
    repeats: int = 0  # further runs with the same signature
    cause: str = ""  # which moment decided it, in words; "" if that was not asked
    found_in: str = ""  # the scenario of the run that found it, which `seed` makes, if that is another: a larger one


@attrs.frozen(kw_only=True)
class DivergenceRecord:
    """Two runs of the same choices that differ.

    A seed makes them, or `token`, which is their schedule; if there is neither, they are calm.
    """

    scenario: str
    seed: int | None
    record: int
    first: str
    second: str
    replay: str = ""
    token: str = ""


@attrs.frozen(kw_only=True)
class InconclusiveRecord:
    """A run that says nothing."""

    scenario: str
    seed: int | None
    why: str
    token: str = ""  # its schedule, if no seed makes it


@attrs.frozen(kw_only=True)
class ScenarioRecord:
    """One scenario's share of a campaign."""

    name: str
    schedules: int
    run_seconds: float  # spent in its runs, over all workers
    fired: dict[str, int]
    judged: dict[str, int]
    marks: dict[str, int]
    says: dict[str, str]  # its invariants in words
    sampled: dict[str, int] = attrs.field(factory=dict)  # faults whose run was made once more without them, by kind
    unchanged: dict[str, int] = attrs.field(factory=dict)  # of these, those without which the trace is the same


@attrs.frozen(kw_only=True)
class StrategyRecord:
    """One strategy's share of a campaign."""

    name: str
    schedules: int
    failing: int
    first: int | None  # which of its own runs was the first to fail, from 1


@attrs.frozen(kw_only=True)
class SeedsRecord:
    """Where the runs came from: a campaign's seed, or a range of run seeds."""

    campaign: int | None
    first: int | None
    last: int | None  # included


@attrs.frozen(kw_only=True)
class CampaignRecord:
    """One campaign: what `dst fuzz --json` prints and `stats.json` keeps."""

    scenario: tuple[str, ...]
    strategy: str
    mutant: str | None
    seeds: SeedsRecord
    schedules: int
    planned: int | None  # None: as many as there is time for
    seconds: float
    workers: int
    shard: str | None
    verdict: str  # "pass", "unknown" or "fail"
    failures: tuple[FailureRecord, ...]
    divergences: tuple[DivergenceRecord, ...]
    inconclusive: tuple[InconclusiveRecord, ...]  # the first few
    inconclusive_runs: int
    fired: dict[str, int]
    judged: dict[str, int]
    marks: dict[str, int]
    missing: tuple[str, ...]
    scenarios: tuple[ScenarioRecord, ...]
    rechecked: int
    stopped: str  # why before its end, "" if it ended by itself
    interrupted: bool
    digest: str
    repeat: str  # the command that runs it again
    exit_code: int
    strategies: tuple[StrategyRecord, ...] = ()  # in the order in which they first ran
    between_hash_seeds: int = 0  # runs that were made again in two other processes
    format: int = FORMAT


@attrs.frozen(kw_only=True)
class ExplorationRecord:
    """One exploration: what `dst explore --json` prints and `exploration.json` keeps."""

    scenario: str
    strategy: str  # "explore"
    mutant: str | None
    others: int  # faults besides crashes that one schedule could have
    cap: int  # growing counts were told apart so far, and to be sure twice as far
    closed: bool
    runs: int
    states: int
    unvisited: int  # states that are known and were not run
    transitions: int
    pairs: int  # (state of the system, state of an invariant's instance)
    schedules_covered: dict[str, int]  # schedules of up to so many crashes, by what was run
    bounded_by: tuple[str, ...]
    stopped: tuple[str, ...]  # of these, why it is not closed; the rest holds of every exploration of the scenario
    judged_raw_only: tuple[str, ...]  # invariants that were judged on each state's own run, not on every path
    judged: dict[str, int]
    seconds: float
    verdict: str  # "pass", "unknown" or "fail"
    failures: tuple[FailureRecord, ...]
    spurious: int  # paths that break an invariant by the graph and not when they are run: the digest is wrong
    suspects: tuple[str, ...]  # the first few of these, in words
    inconclusive: tuple[str, ...]  # the first few runs that said nothing, and why
    inconclusive_runs: int
    diverged: str  # what a schedule did not do again, "" if all did
    interrupted: bool
    repeat: str  # the command that runs it again
    exit_code: int
    orders: str = "calm"  # from each state, of the operations in it: "calm" or "all"
    orders_run: int = 0  # of all states
    orders_pruned: int = 0  # of these, those that came to where all that was left had been run in another order
    format: int = FORMAT


@attrs.frozen(kw_only=True)
class ExplorationsRecord:
    """Several explorations: what `dst explore --json` prints for more than one scenario."""

    strategy: str  # "explore"
    explorations: tuple[ExplorationRecord, ...]
    missing: tuple[str, ...]  # scenarios that were to be explored and had not begun when it was interrupted
    seconds_max: float | None  # that they shared
    workers: int
    seconds: float
    verdict: str  # the worst of theirs
    interrupted: bool
    repeat: str
    exit_code: int  # the gravest of theirs
    format: int = FORMAT


@attrs.frozen(kw_only=True)
class ShareRecord:
    """A moment of a failing run, and how many of the runs that leave it there fail alike."""

    followed: int  # points passed until then; 0 is before anything
    point: str  # the last of them
    says: str  # in words
    deviation: int | None  # which of the schedule's it is, from 1
    record: int  # records made before it
    when_ns: int  # virtual time
    failing: int
    of: int


@attrs.frozen(kw_only=True)
class TurnRecord:
    """The moment that decided a failure: the last at which the share of failing continuations rises much."""

    at: ShareRecord
    before: ShareRecord | None  # the moment measured before it
    certain: bool  # do nearly all continuations fail from there on?
    exact: bool  # is there no other moment between these two?


@attrs.frozen(kw_only=True)
class NearestRecord:
    """The passing run that is most like a failing one, and where they part."""

    change: str  # what makes it of the failing one's schedule, in words
    deviations: tuple[DeviationRecord, ...]
    record: int  # the first at which they part
    when_ns: int
    failing: str  # that record of the failing run, in words
    passing: str
    common_lines: tuple[str, ...]  # some records before it
    failing_lines: tuple[str, ...]  # and from it on
    passing_lines: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ExplanationRecord:
    """One failure explained: what `dst explain --json` prints."""

    failure: FailureRecord
    faults: tuple[str, ...]  # kinds that continuations were drawn with
    turn: TurnRecord | None  # None if too little was measured
    curve: tuple[ShareRecord, ...]
    nearest: NearestRecord | None  # None if no changed schedule passes
    tried: int  # changed schedules that were run
    passing: int  # of these
    runs: int
    stopped: str  # why before its end, "" if it ended by itself
    exit_code: int
    format: int = FORMAT


@attrs.frozen(kw_only=True)
class KillRecord:
    """One try of one strategy at one mutant, from one seed."""

    mutant: str
    strategy: str
    seed: int
    killed: bool
    invariant: str  # that killed it, "" if none did
    others: tuple[str, ...]  # invariants that broke before it and are not expected to see this mutant
    schedules: int  # run up to the kill, or in all
    seconds: float
    deviations: int | None  # of the shrunk schedule
    minimal: bool
    sentences: tuple[str, ...]
    token: str  # the shrunk schedule in one line
    true_kernel_holds: bool | None  # does the shrunk schedule break nothing on the true kernel?


@attrs.frozen(kw_only=True)
class MutantRecord:
    """One mutant: what must see it, and how soon it did.

    `killed` to `deviations` are of the first strategy asked for: median schedules and seconds, most deviations.
    """

    name: str
    breaks: str
    scenario: str
    expected: tuple[str, ...]
    equivalent: str  # why nothing can tell it from the true kernel, "" if something must
    killed: bool  # from every seed, and its schedules break nothing on the true kernel
    invariant: str
    schedules: int | None
    seconds: float | None
    deviations: int | None
    kills: tuple[KillRecord, ...]


@attrs.frozen(kw_only=True)
class MutantsRecord:
    """What `dst mutants` came to."""

    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    schedules_max: int
    seconds_max: float
    mutants: tuple[MutantRecord, ...]
    verdict: str  # "pass" if every mutant is killed or equivalent, else "fail"
    interrupted: bool
    repeat: str
    exit_code: int
    format: int = FORMAT


def to_json(record: object) -> dict[str, object]:
    """Return a record as plain JSON values."""
    return cast("dict[str, object]", _plain(record))


def _plain(value: object) -> object:
    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(cast(type, type(value)))}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items(), key=_by_name_or_number)}
    return round(value, 6) if isinstance(value, float) else value


def _by_name_or_number(item: tuple[str, object]) -> tuple[int, str]:
    return (len(item[0]) if item[0].isdecimal() else 0), item[0]  # "2" comes before "10"


def to_text(record: object) -> str:
    """Return a record as a JSON text that one can read."""
    return json.dumps(to_json(record), indent=2, ensure_ascii=True) + "\n"


def to_line(kind: str, record: object) -> str:
    """Return a record as one line of an ndjson file."""
    return json.dumps({"kind": kind, **to_json(record)}, ensure_ascii=True, separators=(",", ":")) + "\n"


def parse_campaign(text: str, where: str) -> CampaignRecord:
    """Return the campaign in the text of a `stats.json`; `where` names it in errors.  Raises `BadRecords`."""
    return _parse(CampaignRecord, text, where)


def parse_exploration(text: str, where: str) -> ExplorationRecord:
    """Return the exploration in the text of an `exploration.json`.  Raises `BadRecords`."""
    return _parse(ExplorationRecord, text, where)


def parse_explorations(text: str, where: str) -> ExplorationsRecord:
    """Return the explorations in the text of an `explorations.json`.  Raises `BadRecords`."""
    return _parse(ExplorationsRecord, text, where)


def parse_mutants(text: str, where: str) -> MutantsRecord:
    """Return the kill matrix in the text of a `mutants.json`; `where` names it in errors.  Raises `BadRecords`."""
    return _parse(MutantsRecord, text, where)


def parse_failure(text: str, where: str) -> FailureRecord:
    """Return the failure in the text of a `failure.json`.  Raises `BadRecords`."""
    failure = _parse(FailureRecord, text, where)
    if not ID.fullmatch(failure.id):
        raise BadRecords(f"{where}: {printable(failure.id)[:40]!r} is no id: wanted six base32 characters")
    return failure


def _parse(record: type[R], text: str, where: str) -> R:
    if len(text) > _FILE_MAX:
        raise BadRecords(f"{where}: {len(text)} characters, wanted at most {_FILE_MAX}")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRecords(f"{where} is not JSON ({error})") from None
    if isinstance(value, dict) and "format" in value and value["format"] != FORMAT:
        raise BadRecords(f"{where} has format {printable(str(value['format']))[:40]}, this version reads {FORMAT}")
    return cast(R, _shaped(record, value, where))


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no number")


def _shaped(wanted: object, value: object, where: str) -> object:
    """Return `value` in the wanted shape.  Raises `BadRecords`."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is tuple:
        if not isinstance(value, list) or len(value) > _LIST_MAX:
            raise BadRecords(f"{where}: wanted a list of at most {_LIST_MAX}")
        return tuple(_shaped(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict) or len(value) > _LIST_MAX:
            raise BadRecords(f"{where}: wanted an object")
        return {
            _shaped(str, key, where): _shaped(arguments[1], item, f"{where}.{key[:40]}") for key, item in value.items()
        }
    if origin is UnionType:
        return None if value is None else _shaped(arguments[0], value, where)
    assert isinstance(wanted, type)
    if attrs.has(wanted):
        return _object(wanted, value, where)
    return _scalar(wanted, value, where)


def _object(wanted: type, value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise BadRecords(f"{where} is no {wanted.__name__}: wanted an object")
    shapes = cast("Mapping[str, object]", typing.get_type_hints(wanted))
    fields = attrs.fields(wanted)
    missing = [field.name for field in fields if field.name not in value and field.default is attrs.NOTHING]
    unknown = sorted(set(value) - {field.name for field in fields})
    if missing or unknown:
        what = (
            f"without {', '.join(missing)}" if missing else f"with unknown fields {printable(', '.join(unknown))[:200]}"
        )
        raise BadRecords(f"{where} is no {wanted.__name__}: {what}")
    return wanted(**{name: _shaped(shapes[name], item, f"{where}.{name}") for name, item in value.items()})


def _scalar(wanted: type, value: object, where: str) -> object:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise BadRecords(f"{where}: wanted {wanted.__name__}, saw {printable(str(value))[:60]!r}")
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        raise BadRecords(f"{where}: a text of {len(value)} characters, wanted at most {_TEXT_MAX}")
    return value
