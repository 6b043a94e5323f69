"""Broken stores and values."""

from __future__ import annotations

from typing import cast

from dst.durable.stores import SimStore
from dst.mutant import Mutant, exchange
from kernel import Context, Json, Parts
from kernel.errors import Fenced


class NoExpectation(SimStore):
    """Appends wherever the log ends, whatever position the writer expected."""

    def check(self, execution_id: str, expected: int, fence: int) -> None:
        """Look at the fence alone."""
        if fence < self._fence(execution_id):
            raise Fenced(f"{execution_id!r}: fence {fence} is stale")


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
)
