"""What every command starts from: the configuration, the `.dst` folder, the scenarios one can name, the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from dst.config import KEYS, Settings, settings, texts
from dst.home import Home
from dst.lookup import Known, known
from dst.records import printable
from reports.summary import Line
from reports.terminal import show

F = TypeVar("F", bound=Callable[..., object])


@attrs.frozen(kw_only=True)
class Scope:
    """One command's surroundings."""

    settings: Settings
    home: Home
    known: Known
    json: bool
    color: bool
    quiet: bool = False
    verbose: bool = False

    def show(self, lines: Iterable[Line]) -> None:
        """Write lines for a person to stdout."""
        show(lines, sys.stdout, color=self.color)

    def answer(self, value: Mapping[str, object]) -> None:
        """Write the one JSON object to stdout."""
        click.echo(json.dumps(value, indent=2))

    @property
    def home_flag(self) -> str | None:
        """Where the folder is, if a flag said so: commands that are to find it again need the flag as well."""
        return str(self.settings.get("home")) if self.settings.source("home") == "--home" else None

    @property
    def default_scenarios(self) -> tuple[str, ...]:
        """What a command means that names no scenario: the project's own if it has any, else all that are known."""
        return texts(self.settings.get("scenarios")) or tuple(self.known.scenarios)


def scope(values: Mapping[str, Any], *, scenarios: tuple[str, ...] = ()) -> Scope:
    """Return the surroundings of a command from its click parameters; `scenarios` are further references to know."""
    flags = {key: values[name] for key in KEYS if (name := key.replace("-", "_")) in values}
    found = settings(flags, os.environ, Path.cwd())
    as_json = bool(values.get("as_json"))
    for note in found.notes:
        warn(note)
    if values.get("verbose") and not as_json:
        for key in sorted(found.values):
            warn(f"{key} = {found.get(key)}   ({found.source(key)})")
    colored = not values.get("no_color") and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Scope(
        settings=found,
        home=Home(_home(found)),
        known=known((*texts(found.get("scenarios")), *scenarios)),
        json=as_json,
        color=colored,
        quiet=bool(values.get("quiet")),
        verbose=bool(values.get("verbose")),
    )


def _home(found: Settings) -> Path:
    """Return the folder: as said, from the place where it was said; `.dst` here if nobody said anything."""
    path = Path(str(found.get("home") or ".dst")).expanduser()
    source = found.source("home")
    if not path.is_absolute() and "pyproject.toml" in source:
        return Path(source.partition(" [")[0]).parent / path
    return path


def warn(text: str) -> None:
    """Tell a person something that is no result."""
    click.echo(f"dst: {printable(text)}", err=True)


# ---- options ---------------------------------------------------------------------------------------------------------


def setting(key: str, *names: str, metavar: str, help: str) -> Callable[[F], F]:
    """Return an option for a setting: a text, read like the same setting anywhere else."""
    assert key in KEYS, key
    return click.option(*(names or (f"--{key}",)), key.replace("-", "_"), metavar=metavar, default=None, help=help)


def switch(key: str, *names: str, value: bool = True, help: str) -> Callable[[F], F]:
    """Return a flag for a setting."""
    assert key in KEYS, key
    flags = names or (f"--{key}",)
    return click.option(*flags, key.replace("-", "_"), flag_value=value, type=bool, default=None, help=help)


def everywhere(function: F) -> F:
    """Add the options that all commands have."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, and nothing else."),
        click.option("--no-color", is_flag=True, help="No colours; NO_COLOR does the same."),
        setting("profile", metavar="NAME", help="Settings of [tool.dst.profiles.NAME] in pyproject.toml."),
        setting("home", metavar="DIR", help="The .dst folder; default: .dst here."),
    ):
        function = option(function)
    return function
