"""Errors of the person at the keyboard, and of the harness itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from dst.records import printable


class WrongUsage(Exception):
    """What was asked for is not there or cannot be: exit 2.  The text says what was seen, what is known, what to do."""


class HarnessBroke(Exception):
    """An unexpected error in one run: not a verdict on what is tested.  The error itself is in `details`."""

    def __init__(self, scenario: str, seed: int, details: str) -> None:
        super().__init__(f"the run of {scenario} from seed {seed} broke the harness")
        self.scenario = scenario
        self.seed = seed
        self.details = details


class WorkersLost(Exception):
    """Worker processes died again and again over the same piece of work."""


def unknown(what: str, name: str, known: Iterable[str], more: str = "") -> WrongUsage:
    """Return the error for a name that nobody knows: the nearest one, and all that are known."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    text = f"no {what} '{printable(name)[:100]}'"
    if near:
        text += f": did you mean '{printable(near[0])}'?"
    if names:
        text += f"\nknown: {printable(', '.join(names))}"
    return WrongUsage(f"{text}\n{more}" if more else text)
