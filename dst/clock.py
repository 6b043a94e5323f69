"""Virtual time: an integer number of nanoseconds that moves only when told to.

Trio sees it as float seconds, and counts in them; ours is the nearest nanosecond.  Deadlines that differ by less than
one (0.3 and 0.1 + 0.2) are due together: which of them goes first is then a choice and not a rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

NS_PER_SECOND = 1_000_000_000
LAST_NS = 2**63 - 1
"""The last moment there is (292 years): what a 64-bit record can hold."""


def due_ns(deadline: float) -> int:
    """Return the nanosecond nearest to `deadline` (float seconds), or LAST_NS + 1 if it is after the last moment."""
    return round(deadline * NS_PER_SECOND) if deadline < LAST_NS / NS_PER_SECOND else LAST_NS + 1


class VirtualClock(trio.abc.Clock):
    """Time stands still until `move_to`; with nobody to run, trio asks `when_idle` what to do.

    Mutable, because it is the one place where a simulation's time is kept.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self.now = 0.0  # what trio sees; always due_ns(now) == now_ns
        self.when_idle: Callable[[float], float] | None = None  # gets the next deadline; returns trio's sleep time

    def move_to(self, at_ns: int, deadline: float = 0.0) -> None:
        """Set the time to `at_ns`, and what trio sees to no less than `deadline`, which is due then.

        Otherwise: 1. a sleep of 0.1 s and one of 0.2 s end a hair after 300 000 000 ns, 2. at that time trio finds the
        second not yet due, 3. the same jump again, for ever.  Going back is for the start of a simulation only.
        """
        self.now_ns = at_ns
        self.now = max(at_ns / NS_PER_SECOND, deadline)

    def start_clock(self) -> None:
        """Nothing to start: virtual time begins where it stands."""

    def current_time(self) -> float:
        """Return now, in seconds."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Tell trio how long to wait; it asks only when its run queue is empty."""
        if self.when_idle is not None:
            return self.when_idle(deadline)
        # Not simulated (trio's own start and shutdown): wait for real events, but not for a time that never moves.
        return 0.0 if deadline <= self.now else math.inf
