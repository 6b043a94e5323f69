"""The real clock and the real chance."""

from __future__ import annotations

import random
import time
import uuid

import trio


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    async def sleep_until(self, due_ms: int) -> None:
        """Return when the wall clock says so, in steps, since it may be set meanwhile."""
        while (left_ms := due_ms - self.now_ms()) > 0:  # noqa: ASYNC110  # the wall clock has no event to wait for
            await trio.sleep(min(left_ms / 1000, 60.0))


class SystemChance:
    """The operating system's randomness."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return random.SystemRandom().random()

    def uuid(self) -> str:
        """Return a random UUID."""
        return str(uuid.uuid4())
