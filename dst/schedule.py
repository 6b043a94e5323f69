"""Schedules: a run written down as its deviations from calm."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Sequence

import attrs

FORMAT = 1
_DEVIATIONS_MAX = 10_000
_LABEL_MAX = 2_000
_FILE_MAX = 4_000_000
_TOKEN_MAX = 400_000
TOKEN_START = "s1."
"""What the one-line form of a schedule begins with."""

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


@attrs.frozen(kw_only=True)
class Schedule:
    """What is shrunk, filed and committed.  `seed` is the one that made it, if one did."""

    scenario: str
    deviations: tuple[Deviation, ...] = ()
    mutant: str | None = None
    seed: int | None = None
    versions: tuple[tuple[str, str], ...] = ()

    def with_deviations(self, deviations: Sequence[Deviation]) -> Schedule:
        """Return this schedule with other deviations; no seed makes it any more."""
        return attrs.evolve(self, deviations=tuple(deviations), seed=None)

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

    def token(self) -> str:
        """Return the same in one line, to be pasted: into a command, or into a test."""
        plain = json.dumps(json.loads(self.to_text()), separators=(",", ":"), sort_keys=True)
        return TOKEN_START + base64.urlsafe_b64encode(zlib.compress(plain.encode(), 9)).decode().rstrip("=")


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


def from_token(token: str) -> Schedule:
    """Return the schedule that `Schedule.token` gave.  Raises `BadSchedule`: the text is untrusted."""
    shown = f"token {token[:20]}…"
    if not token.startswith(TOKEN_START) or len(token) > _TOKEN_MAX:
        raise BadSchedule(f"{shown}: wanted {TOKEN_START}… of at most {_TOKEN_MAX} characters")
    packed = token.removeprefix(TOKEN_START)
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True), _FILE_MAX)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("cut off, or too long")
        text = raw.decode("utf-8")
    except (ValueError, binascii.Error, zlib.error) as error:
        raise BadSchedule(f"{shown} is damaged ({error}): copy the whole of it") from None
    return parse(text, shown)


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
