"""Schedules: a run written down as its deviations from calm."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote

import attrs

FORMAT = 1
TOKEN = "dst:"
"""What the text of a token begins with."""

_DEVIATIONS_MAX = 10_000
_LABEL_MAX = 2_000
_FILE_MAX = 4_000_000
_UNESCAPED = " !#$&()*+,/:<>?@[]^{|}"  # in a token, beside letters, digits and _.-~
_OCCURRENCE = re.compile(r"^(.*)#(\d+)$", re.DOTALL)


class BadSchedule(ValueError):
    """A file is no schedule, or is one of another format."""


class PointNotFound(Exception):
    """A strict replay ended, and a deviation had not found its point."""


@attrs.frozen(kw_only=True, order=True)
class Deviation:
    """At the point `at`, do `do` instead of going on; a hold ends when `until` has happened."""

    at: str
    do: str
    until: str = ""

    @property
    def site(self) -> str:
        """The point without its occurrence."""
        found = _OCCURRENCE.match(self.at)
        return found[1] if found else self.at

    @property
    def occurrence(self) -> int:
        """Which time the site was passed, from 1."""
        found = _OCCURRENCE.match(self.at)
        return int(found[2]) if found else 1

    def sentence(self) -> str:
        """Say it in words."""
        if self.do == "hold":
            return f"hold {self.at} until {'nothing else can run' if self.until == 'idle' else self.until}"
        return f"{self.do} at {self.at}"


Versions = tuple[tuple[str, str], ...]
"""What a schedule was written for: (name, version)."""


@attrs.frozen(kw_only=True, repr=False)
class Schedule:
    """What is shrunk, filed and committed.  `seed` is the one that made it, if one did.

    Its repr is `token('dst:...')`, which can be pasted into a test: scenario, mutant and deviations, in one line.
    """

    scenario: str
    deviations: tuple[Deviation, ...] = ()
    mutant: str | None = None
    seed: int | None = None
    versions: Versions = ()

    def with_deviations(self, deviations: Sequence[Deviation]) -> Schedule:
        """Return this schedule with other deviations; no seed makes it any more."""
        return attrs.evolve(self, deviations=tuple(deviations), seed=None)

    def to_token(self) -> str:
        """Return scenario, mutant and deviations in one line: `dst:NAME[=MUTANT][;AT=DO[=UNTIL]]...`, escaped."""
        head = [self.scenario, *([] if self.mutant is None else [self.mutant])]
        rows = [head, *([d.at, d.do, *([d.until] if d.until else [])] for d in self.deviations)]
        return TOKEN + ";".join(
            "=".join(quote(part, safe=_UNESCAPED, errors="surrogatepass") for part in row) for row in rows
        )

    def __repr__(self) -> str:
        """Return what makes it again, but for its seed and versions."""
        return f"token({self.to_token()!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print it as its repr: what IPython and Hypothesis call."""
        printer.text(repr(self))

    def to_text(self) -> str:
        """Return the file's text: readable and diffable, one deviation a line."""
        head = {
            "format": FORMAT,
            "scenario": self.scenario,
            "mutant": self.mutant,
            "seed": self.seed,
            "versions": dict(self.versions),
        }
        lines = [json.dumps(_written(d), ensure_ascii=True) for d in self.deviations]
        body = ",\n    ".join(lines)
        text = json.dumps(head, indent=2, ensure_ascii=True)[:-2]
        return f'{text},\n  "deviations": [{chr(10) + "    " + body + chr(10) + "  " if lines else ""}]\n}}\n'


def _escaped(part: str) -> str:
    return quote(part, safe=_UNESCAPED, errors="surrogatepass")  # a label out of a file may hold anything


def _written(deviation: Deviation) -> dict[str, str]:
    fields = {"at": deviation.at, "do": deviation.do}
    return {**fields, "until": deviation.until} if deviation.until else fields


def parse(text: str, where: str) -> Schedule:
    """Return the schedule in `text`; `where` names it in errors.  Raises `BadSchedule`: the text is untrusted."""
    if len(text) > _FILE_MAX:
        raise BadSchedule(f"{where}: {len(text)} characters, wanted at most {_FILE_MAX}")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchedule(f"{where} is not JSON ({error}): wanted a schedule as `dst fuzz` writes it") from None
    if not isinstance(fields, dict) or "deviations" not in fields or "scenario" not in fields:
        raise BadSchedule(f"{where} is no schedule: wanted an object with `scenario` and `deviations`")
    if type(fields.get("format")) is not int or fields["format"] != FORMAT:  # true is no number
        raise BadSchedule(f"{where} has format {fields.get('format')!r}, this version reads {FORMAT}")
    unknown = set(fields) - {"format", "scenario", "mutant", "seed", "versions", "deviations"}
    if unknown:
        raise BadSchedule(f"{where} has unknown fields {sorted(unknown)}")
    deviations = fields["deviations"]
    if not isinstance(deviations, list) or len(deviations) > _DEVIATIONS_MAX:
        raise BadSchedule(f"{where}: `deviations` is no list of at most {_DEVIATIONS_MAX}")
    seed, versions = fields.get("seed"), fields.get("versions", {})
    if not isinstance(seed, int | None) or isinstance(seed, bool) or not isinstance(versions, dict):
        raise BadSchedule(f"{where}: `seed` must be an integer or null, `versions` an object")
    return Schedule(
        scenario=_label(fields["scenario"], f"{where}: scenario"),
        mutant=None if fields.get("mutant") is None else _label(fields["mutant"], f"{where}: mutant"),
        seed=seed,
        versions=tuple(
            (_label(name, f"{where}: versions"), _label(value, f"{where}: versions"))
            for name, value in versions.items()
        ),
        deviations=tuple(_deviation(entry, f"{where}: deviation {i + 1}") for i, entry in enumerate(deviations)),
    )


def token(text: str) -> Schedule:
    """Return the schedule that `Schedule.to_token` wrote.  Raises `BadSchedule`: the text is untrusted."""
    where = f"token {text[:40]!r}"
    if len(text) > _FILE_MAX or not text.startswith(TOKEN):
        raise BadSchedule(f"{where}: wanted a text of at most {_FILE_MAX} characters that begins with {TOKEN!r}")
    try:
        rows = [[unquote(part, errors="surrogatepass") for part in r.split("=")] for r in text[len(TOKEN) :].split(";")]
    except UnicodeDecodeError as error:
        raise BadSchedule(f"{where}: {error}") from None
    head, *deviations = rows
    if len(head) > 2 or not head[0]:
        raise BadSchedule(f"{where}: wanted {TOKEN}SCENARIO or {TOKEN}SCENARIO=MUTANT first")
    if len(deviations) > _DEVIATIONS_MAX or any(not 2 <= len(row) <= 3 for row in deviations):
        raise BadSchedule(f"{where}: wanted AT=DO or AT=DO=UNTIL, at most {_DEVIATIONS_MAX} of them, after each ';'")
    fields = [dict(zip(("at", "do", "until"), row, strict=False)) for row in deviations]
    return Schedule(
        scenario=_label(head[0], f"{where}: scenario"),
        mutant=_label(head[1], f"{where}: mutant") if len(head) == 2 else None,
        deviations=tuple(_deviation(entry, f"{where}: deviation {i + 1}") for i, entry in enumerate(fields)),
    )


def _deviation(entry: object, where: str) -> Deviation:
    if not isinstance(entry, dict) or not {"at", "do"} <= set(entry) <= {"at", "do", "until"}:
        raise BadSchedule(f"{where}: wanted an object with `at`, `do` and, for a hold, `until`")
    return Deviation(
        at=_label(entry["at"], where), do=_label(entry["do"], where), until=_label(entry.get("until", ""), where)
    )


def _label(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > _LABEL_MAX:
        raise BadSchedule(f"{where}: wanted a text of at most {_LABEL_MAX} characters, saw {str(value)[:60]!r}")
    return value
