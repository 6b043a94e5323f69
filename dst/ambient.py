"""The test that is running, as the pytest plugin tells it to `dst.testing`.

Only the standard library is imported here: a suite without scenarios pays for no more than this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Ambient(NamedTuple):
    """What a check takes from the test it is made in."""

    directory: Path  # pytest's rootdir
    flags: Mapping[str, str]  # settings given on pytest's command line, by key
    session_seed: int
    seed: int  # of this test: drawn from the session's and the test's name
    command: str  # the line that runs this test again, from the same seed
    path: tuple[str, ...]  # where modules are found without what pytest adds
    defaults: Mapping[str, object]  # what the test's marker says
    tell: Callable[[str, object], None]  # notes a property for reports


current: Callable[[], Ambient] | None = None
"""Tells it, since most tests never ask; None outside a test, and where the plugin is not in use.

Set by the plugin alone; tests run one after another.
"""
