"""Errors of the person at the keyboard, of the harness itself, and of checks in a test suite."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from dst.records import CampaignRecord, ExplorationRecord, FailureRecord, printable


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


# ---- checks in a test suite ------------------------------------------------------------------------------------------


class CheckFailed(AssertionError):
    """A check is no pass.  `exit_code` is what the command line would have ended with, `record` all that was done."""

    exit_code: ClassVar[int]

    def __init__(self, text: str, record: CampaignRecord | ExplorationRecord | None = None) -> None:
        super().__init__(text)
        self.record = record


class InvariantFailed(CheckFailed):
    """An invariant does not hold; the text ends with the line that reproduces it.

    What is raised is of a subclass for each signature.  Hypothesis takes two errors for the same bug by their class and
    place: while it shrinks one failure it does not slip into another.
    """

    exit_code = 1

    def __init__(
        self,
        text: str,
        failures: tuple[FailureRecord, ...],
        record: CampaignRecord | ExplorationRecord | None = None,
    ) -> None:
        super().__init__(text, record)
        self.failures = failures


class Stale(CheckFailed):
    """A deviation of a schedule does not find its point any more: the schedule says nothing."""

    exit_code = 2


class Nondeterminism(CheckFailed):
    """Two runs of the same choices differ."""

    exit_code = 4


class Vacuous(CheckFailed):
    """Something that was asked for never happened: a fault, a mark, a judgement on what could fail."""

    exit_code = 5


class Inconclusive(CheckFailed):
    """Out of steps, of virtual time, of real time or of states; or a checker broke itself."""

    exit_code = 6


# ---- names -----------------------------------------------------------------------------------------------------------


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
