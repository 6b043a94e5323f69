"""Broken live queries."""

from __future__ import annotations

from dst.mutant import Mutant, exchange
from kernel.errors import LogTruncated
from kernel.events import Envelope
from kernel.lifecycle import decode_snapshot, read_log
from kernel.live_query import LiveQuery, Subscription
from kernel.ports import Wakeups


class FoldsDelivered(Subscription):
    """A wake-up is taken for one event: it folds one, and waits for the next.

    A wake-up of this kernel carries no event that could be folded; this is what it comes to if it did.
    """

    async def _delta(self) -> list[Envelope] | None:
        delta = await super()._delta()
        return None if delta is None else delta[:1]


class Refolds(Subscription):
    """Every wake-up loads the whole state (ADR 0040 before its amendment)."""

    async def _delta(self) -> list[Envelope] | None:
        return None


class LosesDirty(Subscription):
    """What a wake-up was about is taken for read before it has been: a read that fails has lost it."""

    async def _refresh(self) -> bool:
        self._dirty = False
        return await super()._refresh()


class PrefersSnapshots(Subscription):
    """One that is behind by more than an event goes on from the snapshot, which may be older than what was shown."""

    _catches_up = False  # has just taken a snapshot: the events after it come next

    async def _delta(self) -> list[Envelope] | None:
        delta = await super()._delta()
        self._catches_up = not self._catches_up and delta is not None and len(delta) > 1
        return None if self._catches_up else delta

    async def _load(self) -> None:
        stored = await self._stores.snapshots.load(self._execution_id)
        if stored is None or not self._catches_up:
            await super()._load()
            return
        self._fold = self._fold_type(decode_snapshot(stored).state)
        self._loaded = True

    async def _refresh(self) -> bool:
        tip = self._fold.state["lastSequence"]
        await super()._refresh()
        self._dirty = self._catches_up
        return self._fold.state["lastSequence"] != tip


class SkipsGaps(Subscription):
    """Where the log was cut above the tip, it goes on with what is left."""

    async def _delta(self) -> list[Envelope] | None:
        state = self._fold.state
        at = state["lastSequence"] + 1
        while True:
            try:
                delta = await read_log(self._stores.events, self._execution_id, at)
                break
            except LogTruncated:
                at += 1
        if delta:
            state["lastSequence"] = delta[0].sequence - 1
        return delta


def _over(kind: type[Subscription]) -> type[LiveQuery]:
    class Broken(LiveQuery):
        def subscription(self, execution_id: str, wakeups: Wakeups) -> Subscription:
            return kind(self._stores, execution_id, wakeups, self._fold)

    return Broken


def _mutant(name: str, breaks: str, kind: type[Subscription]) -> Mutant:
    return Mutant(
        name=name,
        breaks=breaks,
        scenario="dashboard",
        expected=("live-query-fresh",),
        apply=exchange(live=_over(kind)),
    )


LIVE = (
    _mutant("live-folds-delivered", "each wake-up is taken for one event", FoldsDelivered),
    _mutant("live-full-refold", "each wake-up loads the whole state", Refolds),
    _mutant("live-lost-dirty", "a read that fails is not made up for", LosesDirty),
    _mutant("live-older-after-newer", "one that is behind may be shown an older state", PrefersSnapshots),
    _mutant("live-gap-skipped", "what was cut off above the tip is skipped", SkipsGaps),
)
