"""Subscribers of live queries, outside of every worker: what they see is kept, what they read is counted (K-LIVE)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import attrs
import trio

from dst.durable.notifications import SimNotifications
from dst.durable.operations import ASK_AGAIN_SECONDS
from dst.durable.stores import SimStore
from kernel.errors import ContentMissingError, CorruptLog, SnapshotUnreadable
from kernel.events import StoredEvent
from kernel.fold import FoldPass
from kernel.live_query import LiveQuery
from kernel.ports import EventStore, Stores
from kernel.state import FlowState

_TROUBLES = (ContentMissingError, SnapshotUnreadable, CorruptLog)  # what a subscription may raise when a read is bad

MakeLiveQuery = Callable[[Stores, SimNotifications], LiveQuery]


@attrs.define(kw_only=True)
class Reads:
    """The part of an event store that a subscriber reads.  Mutable: counts the rows of reads that succeed.

    One who has read from a replica that lags looks again after a while, whatever it has heard: see `SimNotifications`.
    """

    inner: EventStore
    db: SimStore
    notifications: SimNotifications
    rows: int = 0

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Read."""
        row = self.db.rows.get(execution_id)
        rows = await self.inner.read_from(execution_id, sequence)
        self.rows += len(rows)
        last = rows[-1].sequence if rows else sequence - 1
        if row is not None and last < row.head:
            self.notifications.remind(execution_id)
        return rows


class Subscriber:
    """One who follows an execution for good, and asks again when told that a read was bad.

    Mutable: `seen` is what it was given, `drawn_at` when it has drawn the last of that, in virtual seconds, and
    `errors` how often it was told that a read was bad.
    """

    def __init__(
        self,
        name: str,
        execution_id: str,
        *,
        db: SimStore,
        stores: Stores,
        notifications: SimNotifications,
        make: MakeLiveQuery,
        draws_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.execution_id = execution_id
        self.seen: list[FlowState] = []
        self.drawn_at = 0.0
        self.errors = 0
        self._db = db
        self._draws_seconds = draws_seconds
        self._reads = Reads(inner=stores.events, db=db, notifications=notifications)
        self._live = make(attrs.evolve(stores, events=cast(EventStore, self._reads)), notifications)
        db.sim.spawn(self._follow, f"subscriber {name}")

    async def _follow(self) -> None:
        async with self._live.subscribe(self.execution_id) as states:
            while True:
                troubles = self._db.troubles
                try:
                    async for state in states:
                        await self._draw(state)
                        troubles = self._db.troubles
                except _TROUBLES:
                    if self._db.troubles == troubles:
                        raise  # nobody has made trouble meanwhile
                    self.errors += 1
                    await trio.sleep(ASK_AGAIN_SECONDS)

    async def _draw(self, state: FlowState) -> None:
        self.seen.append(state)
        self._db.sim.note("seen", self.execution_id, self.name, state["lastSequence"])
        if self._draws_seconds:
            self.drawn_at = trio.current_time() + self._draws_seconds
            await trio.sleep_until(self.drawn_at)

    @property
    def tip(self) -> int:
        """The position of what was seen last, -1 before there was anything."""
        return self.seen[-1]["lastSequence"] if self.seen else -1

    def visible(self) -> tuple[str, bool, bool, float]:
        """Return whether it has something to read, whether that is compacted, and for how long it will not look.

        How far it is behind is out: whatever there is it reads at once.
        """
        row = self._db.rows.get(self.execution_id)
        behind = row is not None and row.head > self.tip
        wait = max(self.drawn_at - trio.current_time(), 0.0) if self._draws_seconds else 0.0
        return self.name, behind, behind and self.tip + 1 < self._db.cuts.get(self.execution_id, 0), wait

    def finish(self) -> None:
        """Note what this subscriber has come to: ("followed", execution, name, "" or what is wrong, rows, events)."""
        history = self._db.history.get(self.execution_id, ())
        self._db.sim.note("followed", self.execution_id, self.name, self._wrong(), self._reads.rows, len(history))

    def _wrong(self) -> str:
        """Compare each state that was seen with what the log says up to its position, and the last with all of it."""
        history = self._db.history.get(self.execution_id, ())
        fold = FoldPass()
        for state in sorted(self.seen, key=lambda state: state["lastSequence"]):
            for envelope in history[fold.state["lastSequence"] + 1 : state["lastSequence"] + 1]:
                fold.apply(envelope)
            if fold.state != state:
                return f"what it saw at {state['lastSequence']} is not the fold of the log up to there"
        return "" if self.tip == len(history) - 1 else f"it saw {self.tip} last, and the log ends at {len(history) - 1}"
