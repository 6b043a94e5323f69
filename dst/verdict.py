"""Verdicts: pass < unknown < fail."""

from __future__ import annotations

import enum

import attrs


class Verdict(enum.IntEnum):
    """What a run, or a campaign, comes to: the worst of its parts."""

    PASS = 0
    UNKNOWN = 1
    FAIL = 2


class Ending(enum.Enum):
    """How a simulation ended."""

    QUIESCENT = "quiescent"
    OUT_OF_STEPS = "out of steps"
    OUT_OF_TIME = "out of virtual time"
    LIVELOCK = "livelock"
    STUCK = "stuck"


@attrs.frozen(kw_only=True)
class Violation:
    """An invariant did not hold: what was seen, what was wanted, and at which record."""

    invariant: str
    key: str  # which instance: an execution and step, an emit identity
    seen: str
    wanted: str
    at: int  # index of the record, the trace's length if it shows only at the end
    place: str = ""  # what it is found at, if that is more than one kind of record; "" for the kind at `at`
