"""The emit rule of ADR 0102, on one screen (K-EMIT).

A re-run makes its emits again.  This object says of each whether the log proves that it was already made (*served*:
nothing is appended), and if not, whether a later re-run may be served by it (*stamped*).  A duplicate is acceptable, a
lost emit is not: whatever is not proven is appended.

It is pure: it knows nothing of logs, tasks or time but what it is told, and it never waits.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from kernel.digest import fnv1a64


class Ruling(enum.Enum):
    """What is to be done with one emit."""

    SERVED = "served"
    STAMPED = "stamped"
    UNSTAMPED = "unstamped"


class EmitRule:
    """The rule for one run of a flow.  `logged` tells how many stamped emits of an identity the log holds.

    Mutable, because a run goes on: `segment`, `live`, `unsettled` and `executing` always describe the run so far.
    """

    def __init__(self, logged: Callable[[str], int]) -> None:
        self._logged = logged
        self._taken: dict[str, int] = {}  # identity -> emits of it made in this run
        self.segment = 0  # gates passed in this run
        self.live = False  # a step or decider of this segment was not served
        self.unsettled = False  # something in this run ended in a way that a re-run does not serve
        self.executing = 0  # effects and deciders at work, zombies too

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        """Return the emit's digest, from the canonical JSON of its type and payload (D3)."""
        return fnv1a64(f"{self.segment}|[{event_type_json},{payload_json}]")

    def rule(self, digest: str | None) -> Ruling:
        """Decide one emit, and count it.  `None` is an emit with no JSON form: it has no identity (D3)."""
        if digest is None:
            return Ruling.UNSTAMPED
        nth = self._taken.get(digest, 0)
        self._taken[digest] = nth + 1
        logged = self._logged(digest)
        if logged > nth:
            # Proven (D2): the log holds this one, and nothing of this segment has left what the log proves.
            return Ruling.UNSTAMPED if self.live else Ruling.SERVED
        return Ruling.UNSTAMPED if self.executing or self.unsettled else Ruling.STAMPED

    def gate_passed(self) -> None:
        """The run has passed a gate: a new segment, for which the log may prove everything again (D4)."""
        self.segment += 1
        self.live = False

    def went_live(self) -> None:
        """A step was not served, or a decider is invoked (D4)."""
        self.live = True

    def ended_unsettled(self) -> None:
        """An outcome is known that a re-run does not serve; sticky, for later segments may depend on it (D4)."""
        self.unsettled = True

    def effect_began(self) -> None:
        """An effect or decider is at work from now on (D4)."""
        self.executing += 1

    def effect_settled(self) -> None:
        """That effect or decider has ended itself, whatever its deadline said (D4)."""
        self.executing -= 1
