"""Retries of a step's attempts (K-FLOW-11): pure.

How long to wait is a function of execution, step and attempt, so no decision is recorded for it: every re-run comes to
the same.  What the log keeps of a failed attempt is when the next one is due; a crash in between waits for the rest.
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, le

from kernel.digest import fnv1a64
from kernel.state import StepEntry


@attrs.frozen(kw_only=True)
class RetryPolicy:
    """How often one call of a step is tried, and how long it waits in between.

    Declared failures are never retried, nor what cannot be recorded.  The wait after the first failure is
    `backoff_seconds`, then `factor` times the last one, up to `backoff_seconds_max`; `jitter` takes up to that fraction
    off.
    """

    attempts: int = attrs.field(default=3, validator=ge(1))  # of one call, the first one among them
    backoff_seconds: float = attrs.field(default=1.0, validator=ge(0))
    factor: float = attrs.field(default=2.0, validator=ge(1))
    backoff_seconds_max: float = attrs.field(default=60.0, validator=ge(0))
    jitter: float = attrs.field(default=0.0, validator=[ge(0), le(1)])

    def wait_seconds(self, execution_id: str, journal_id: str, attempt: int, tries: int) -> float:
        """Return how long to wait after attempt number `attempt`, which was try number `tries` of its call."""
        try:
            full = min(self.backoff_seconds * self.factor ** (tries - 1), self.backoff_seconds_max)
        except OverflowError:
            full = self.backoff_seconds_max
        # The attempt stands first: the last bytes of what is digested hardly reach the high digits.
        draw = int(fnv1a64(f"{attempt}|{execution_id}|{journal_id}")[:8], 16) / 2**32
        return full * (1 - self.jitter * draw)


def tries_made(entry: StepEntry | None) -> int:
    """Return how many tries the call has behind it that the log tells of: a step that has ended begins a new one."""
    if entry is None or not (entry["outcome"] is None or "retryDue" in entry):
        return 0
    return entry.get("tries", 0)


def next_try(policy: RetryPolicy, entry: StepEntry | None) -> int:
    """Return the number of the next try.  One that a crash has cut off counts, but for the last: that is made again."""
    return min(tries_made(entry) + 1, policy.attempts)
