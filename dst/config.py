"""Configuration: flag > environment > profile > `[tool.dst]` of the nearest pyproject.toml > default.

Every setting is one `Key`, which reads what a person wrote, wherever they wrote it, and says what is wrong with it.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

import attrs

from dst.errors import WrongUsage, unknown

Read = Callable[[object], object]
"""Reads one value, a text or what TOML made of it.  Raises `ValueError` with what was wanted."""

SEED_MAX = 2**64 - 1


# ---- reading values --------------------------------------------------------------------------------------------------


def whole(least: int, most: int = 10**9) -> Read:
    """Read a whole number."""

    def read(value: object) -> int:
        number = _integer(value)
        if number is None or not least <= number <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return number

    return read


def _integer(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value.replace("_", "").strip() if isinstance(value, str) else ""
    return int(text) if re.fullmatch(r"\d{1,20}", text) else None


def seed(value: object) -> int | str:
    """Read a campaign's seed, or "last"."""
    if value == "last":
        return "last"
    number = _integer(value)
    if number is None or number > SEED_MAX:
        raise ValueError(f"a whole number up to {SEED_MAX}, or 'last'")
    return number


def seed_range(value: object) -> tuple[int, int]:
    """Read A:B."""
    found = re.fullmatch(r"(\d{1,20}):(\d{1,20})", value) if isinstance(value, str) else None
    if found is None or not int(found[1]) < int(found[2]) <= SEED_MAX + 1:
        raise ValueError("A:B with A < B: the run seeds from A up to and without B")
    return int(found[1]), int(found[2])


def duration(value: object) -> float:
    """Read a time in seconds: 90, 90s, 10m, 1h30m."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    found = (
        re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", value.strip()) if isinstance(value, str) else None
    )
    total = (
        sum(float(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0.0
    )
    if total <= 0:
        raise ValueError("a time such as 90s, 10m or 1h30m")
    return total


def share(value: object) -> float:
    """Read a share from 0 to 1: 0.02, 2%, 1/50."""
    text = str(value).strip() if not isinstance(value, bool) else ""
    try:
        if text.endswith("%"):
            number = float(text[:-1]) / 100
        else:
            above, slash, below = text.partition("/")
            number = float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError("a share from 0 to 1, such as 0.02, 2% or 1/50")
    return number


def names(value: object) -> tuple[str, ...]:
    """Read names: a list, or a text with commas."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError("names, with commas between them")
    return tuple(dict.fromkeys(value))


def shard(value: object) -> tuple[int, int]:
    """Read I/N, from 1/N to N/N; the first shard is number 0 inside."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value) if isinstance(value, str) else None
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError("I/N, from 1/N to N/N")
    return int(found[1]) - 1, int(found[2])


def workers(value: object) -> str:
    """Read a number of processes, or "auto"."""
    number = _integer(value)
    if value != "auto" and (number is None or not 1 <= number <= 1024):
        raise ValueError("a number of processes from 1 to 1024, or 'auto'")
    return str(value).strip()


def yes_or_no(value: object) -> bool:
    """Read a truth value."""
    if isinstance(value, bool):
        return value
    answer = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if not isinstance(value, str) or value.lower() not in answer:
        raise ValueError("true or false")
    return answer[value.lower()]


def text(value: object) -> str:
    """Read a text."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("a text")
    return value


# ---- settings --------------------------------------------------------------------------------------------------------

KEYS: Mapping[str, Read] = {
    "seed": seed,
    "seeds": seed_range,
    "schedules": whole(1),
    "max-time": duration,
    "max-steps": whole(1),
    "max-failures": whole(1),
    "continue-on-failure": yes_or_no,
    "workers": workers,
    "shard": shard,
    "faults": names,
    "fault-rate": share,
    "strategy": text,
    "shrink": yes_or_no,
    "recheck": share,
    "report": names,
    "scenarios": names,
    "home": text,
    "regressions": text,
    "profile": text,
}
"""All settings, by the name they have in `[tool.dst]`; `DST_MAX_TIME` is `max-time` in the environment."""


@attrs.frozen(kw_only=True)
class Value:
    """A setting's value and where it was said."""

    value: object
    source: str


@attrs.frozen
class Settings:
    """What was configured, by key: only what somebody said is in here."""

    values: Mapping[str, Value]
    notes: tuple[str, ...] = ()  # what a person should be told

    def get(self, key: str) -> object | None:
        """Return a setting, None if nobody said anything."""
        assert key in KEYS, key
        found = self.values.get(key)
        return None if found is None else found.value

    def source(self, key: str) -> str:
        """Return where a setting was said, "" if nowhere."""
        found = self.values.get(key)
        return "" if found is None else found.source


def settings(
    flags: Mapping[str, object | None], environ: Mapping[str, str], directory: Path, *, prefix: str = "--"
) -> Settings:
    """Return what holds for a command with these flags in that directory.  Raises `WrongUsage`.

    `prefix` is what flags begin with: another command may have given them names of its own.
    """
    where, table = project(directory)
    from_project = _read_table(table, where, top=True)
    from_environ, notes = _read_environ(environ)
    from_flags = {key: _read(key, value, f"{prefix}{key}") for key, value in flags.items() if value is not None}
    profile = _profile(from_flags, from_environ, from_project, environ, table)
    layers = (from_project, profile, from_environ, from_flags)
    return Settings({key: value for layer in layers for key, value in layer.items()}, tuple(notes))


def project(directory: Path) -> tuple[str, Mapping[str, object]]:
    """Return (path, `[tool.dst]`) of the nearest pyproject.toml, empty if there is none.  Raises `WrongUsage`."""
    for folder in (directory, *directory.parents):
        path = folder / "pyproject.toml"
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError) as error:
            raise WrongUsage(f"cannot read {path}: {error}") from None
        tool = content.get("tool", {})
        table = tool.get("dst", {}) if isinstance(tool, dict) else {}
        if not isinstance(table, dict):
            raise WrongUsage(f"{path}: [tool.dst] is no table")
        return str(path), table
    return "", {}


def _profile(
    flags: Mapping[str, Value],
    environ_values: Mapping[str, Value],
    project_values: Mapping[str, Value],
    environ: Mapping[str, str],
    table: Mapping[str, object],
) -> dict[str, Value]:
    """Return the settings of the profile that was chosen: by name, or `ci` where CI is noticed and it is defined."""
    profiles = table.get("profiles", {})
    if not isinstance(profiles, dict):
        raise WrongUsage("[tool.dst.profiles] is no table")
    tables = {name: _read_table(inner, f"[tool.dst.profiles.{name}]", top=False) for name, inner in profiles.items()}
    chosen = flags.get("profile") or environ_values.get("profile") or project_values.get("profile")
    if chosen is None:
        return tables.get("ci", {}) if environ.get("CI", "").lower() not in ("", "0", "false") else {}
    name = str(chosen.value)
    if name not in tables:
        raise unknown(f"profile (from {chosen.source})", name, tables, "a profile is a table [tool.dst.profiles.NAME]")
    return tables[name]


def _read_table(table: object, where: str, *, top: bool) -> dict[str, Value]:
    if not isinstance(table, dict):
        raise WrongUsage(f"{where} is no table")
    source = f"{where} [tool.dst]" if top else where
    values = {}
    for key, value in table.items():
        if top and key == "profiles":
            continue
        if key not in KEYS or (key == "profile" and not top):
            raise unknown(f"setting (in {source})", key, [*KEYS, *(["profiles"] if top else [])])
        values[key] = _read(key, value, source, f"{key} in {source}")
    return values


def _read_environ(environ: Mapping[str, str]) -> tuple[dict[str, Value], list[str]]:
    by_name = {variable(key): key for key in KEYS}
    values, notes = {}, []
    for name in sorted(name for name in environ if name.startswith("DST_")):
        if name in by_name:
            if environ[name]:
                values[by_name[name]] = _read(by_name[name], environ[name], name)
        elif near := difflib.get_close_matches(name, by_name, n=1, cutoff=0.8):
            notes.append(f"{name} in the environment is not known: did you mean {near[0]}?")
    return values, notes


def variable(key: str) -> str:
    """Return the environment variable of a setting."""
    return f"DST_{key.upper().replace('-', '_')}"


def _read(key: str, value: object, source: str, what: str = "") -> Value:
    try:
        return Value(value=KEYS[key](value), source=source)
    except ValueError as error:
        raise WrongUsage(f"{what or source}: wanted {error}, saw {str(value)[:80]!r}") from None


def known_among(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """Check names against those that are known.  Raises `WrongUsage`."""
    names_known = sorted(set(known))
    for name in asked:
        if name not in names_known:
            raise unknown(what, name, names_known)


def texts(value: object | None) -> tuple[str, ...]:
    """Return a setting made of names, none if nobody gave any."""
    return cast("tuple[str, ...]", value or ())
