"""`live-query-fresh`: what subscribers see, and what it costs to show it to them (K-LIVE, ADR 0040's amendment)."""

from __future__ import annotations

from dst.invariants import Broken, Invariant, Key
from dst.trace import Record

ROWS_BEYOND = 4
"""How many rows a subscription may read beyond the events there are."""


class LiveQueryFresh(Invariant[int]):
    """K-LIVE-1 to 3.  The harness has folded the log for itself: see `dst.durable.subscribers`."""

    name = "live-query-fresh"
    says = (
        "what a subscriber sees is the fold of the log up to a position that only moves forward, and in the end all of "
        "it; a subscription reads each event once, whatever it is told how often"
    )
    composable = False  # positions
    kinds = ("seen", "followed")
    initial = -1  # the position that was seen last

    def key(self, record: Record) -> Key:
        """Keyed by execution and subscriber."""
        return record[1], (record[1], record[2])

    def advance(self, state: int, record: Record) -> int:
        """Compare positions; at the end, what was seen and what was read."""
        if record[0] == "seen":
            if record[3] <= state:
                raise Broken(f"it saw {record[3]} after {state}", "newer states only")
            return int(record[3])
        _, _, _, wrong, rows, events = record
        if wrong:
            raise Broken(wrong, "the fold of the log")
        if rows > events + ROWS_BEYOND:
            raise Broken(f"it read {rows} rows of a log of {events} events", f"{events + ROWS_BEYOND} at most")
        return state

    def could_fail(self, state: int) -> bool:
        """Something was seen."""
        return state >= 0
