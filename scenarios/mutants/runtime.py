"""Broken stores and values."""

from __future__ import annotations

from typing import cast

from dst.durable.stores import SimStore
from dst.mutant import Mutant, exchange
from kernel import Context, Json, Parts
from kernel.driving import Driver, _Live
from kernel.errors import Fenced
from kernel.events import EXECUTION_CANCELLED
from kernel.journal import Journal
from kernel.jsonform import encode


class NoExpectation(SimStore):
    """Appends wherever the log ends, whatever position the writer expected."""

    def check(self, execution_id: str, expected: int, fence: int) -> None:
        """Look at the fence alone."""
        if fence < self._fence(execution_id):
            raise Fenced(f"{execution_id!r}: fence {fence} is stale")


class CancelsTheEnded(Driver):
    """A cancellation that comes too late is recorded over the end."""

    async def _advance(self, live: _Live, journal: Journal) -> bool:
        """Look at what was asked, not at how it stands."""
        if await super()._advance(live, journal):
            return True
        if journal.cancel is not None and journal.state["status"] == "completed":
            await journal.commit(EXECUTION_CANCELLED, encode({"error": {"message": journal.cancel, "type": "late"}}))
        return False


class NeverDead(Context):
    """A run that has ended goes on to append for whoever still holds its context."""

    def check_alive(self) -> None:
        """It is."""


class RawValues(Context):
    """A live call hands out what the effect returned, a re-run what was recorded."""

    def live_value(self, raw: object, text: str) -> Json:
        """The raw value."""
        return cast(Json, raw)


RUNTIME = (
    Mutant(
        name="append-without-expectation",
        breaks="the store appends without checking the position",
        scenario="order_saga",
        expected=("log-sound",),
        apply=exchange(store=NoExpectation),
    ),
    Mutant(
        name="live-value-not-decoded",
        breaks="a live step hands out its raw value",
        scenario="order_saga",
        expected=("value-stable",),
        apply=exchange(parts=Parts(context=RawValues)),
    ),
    Mutant(
        name="terminal-overwritten",
        breaks="an execution that has completed is cancelled all the same",
        scenario="reminders",
        expected=("terminal-once",),
        apply=exchange(parts=Parts(driver=CancelsTheEnded)),
    ),
    Mutant(
        name="dead-context-appends",
        breaks="a run that has ended appends what its zombies emit",
        scenario="reminders",
        expected=("terminal-once",),
        apply=exchange(parts=Parts(context=NeverDead)),
    ),
)
