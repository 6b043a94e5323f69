"""Live query: the state of an execution now, and every newer one (K-LIVE, ADR 0040 with its amendment).

A read model over the log, and no part of the kernel.  A subscription holds a fold at the position it has read to, its
tip; a wake-up makes it read `read_from(tip + 1)` and fold that: N events cost N rows, however many wake-ups they come
in.  It is read when its holder asks for the next state, so there is never more than one read under way, a burst is one
read of the whole burst, and no state can overtake another.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio

from kernel.errors import LogTruncated, UnknownExecution
from kernel.events import Envelope
from kernel.fold import FoldPass
from kernel.lifecycle import load, read_log
from kernel.ports import Notifications, Stores, Wakeups
from kernel.state import FlowState


class LiveQuery:
    """Answers from the stores alone, in any process that can read them."""

    def __init__(self, stores: Stores, notifications: Notifications, *, fold: type[FoldPass] = FoldPass) -> None:
        self._stores = stores
        self._notifications = notifications
        self._fold = fold

    async def snapshot(self, execution_id: str) -> FlowState | None:
        """Return the execution's state as it is now, or None if there is no such execution."""
        try:
            return (await load(self._stores, execution_id, self._fold)).fold.release()
        except UnknownExecution:
            return None

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id: str) -> AsyncIterator[Subscription]:
        """Follow an execution for the length of the block: `async with live.subscribe(id) as states`.

        One that does not exist yet may be followed; its first state comes when it has one.
        """
        # Before the load.  Otherwise: 1. load, 2. an event is appended, 3. subscribe: nobody is woken for it.
        async with self._notifications.subscribe(execution_id) as wakeups:
            subscription = self.subscription(execution_id, wakeups)
            try:
                yield subscription
            finally:
                subscription.close()

    def subscription(self, execution_id: str, wakeups: Wakeups) -> Subscription:
        """Return a subscription that has read nothing yet."""
        return Subscription(self._stores, execution_id, wakeups, self._fold)


class Subscription:
    """The states of one execution: the current one at once, then ever newer ones, each the newest there is when asked.

    `async for state in states`; it goes on until it is closed, also after the execution's end, since only its holder
    knows what to wait for.  A state is to be read and not changed: later ones share what has not changed.  What the
    read path raises is raised here, and the next state may be asked for again.  Mutable: it has a tip.
    """

    def __init__(self, stores: Stores, execution_id: str, wakeups: Wakeups, fold: type[FoldPass]) -> None:
        self._stores = stores
        self._execution_id = execution_id
        self._wakeups = wakeups
        self._fold_type = fold
        self._fold = fold()  # at the tip
        self._loaded = False  # the one full load has been made
        self._dirty = True  # something may lie beyond the tip; stays so until a read has succeeded
        self._closed = False
        self._waiting: trio.CancelScope | None = None  # of the task that asks for the next state

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> FlowState:
        """Return the newest state when it is newer than the last one; ends when the subscription is closed."""
        if self._waiting is not None:
            raise trio.BusyResourceError(f"two tasks ask one subscription of {self._execution_id!r} for its next state")
        with trio.CancelScope() as self._waiting:
            try:
                while not self._closed:
                    if not self._dirty:
                        await self._wakeups.wait()
                        self._dirty = True
                    if await self._refresh() and not self._closed:
                        return self._fold.release()
            finally:
                self._waiting = None
        raise StopAsyncIteration

    def close(self) -> None:
        """Nothing is delivered from now on, to whoever is waiting for it either."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def _refresh(self) -> bool:
        """Read what lies beyond the tip; has the state become newer?"""
        tip = self._fold.state["lastSequence"]
        delta = await self._delta() if self._loaded else None
        if delta is None:
            await self._load()
        else:
            # Should an event not fold, the tip is past it and the state is not: nothing may go on from there.
            self._loaded = False
            for event in delta:
                self._fold.apply(event)
            self._loaded = True
        self._dirty = False
        return self._fold.state["lastSequence"] > tip

    async def _delta(self) -> list[Envelope] | None:
        """Return the events after the tip, or None if they do not join it: the log was cut, or is another one."""
        state = self._fold.state
        try:
            delta = await read_log(self._stores.events, self._execution_id, state["lastSequence"] + 1)
        except LogTruncated:
            return None
        at = (state["lastSequence"], state["lastHash"])
        for event in delta:
            if (event.sequence - 1, event.previous_hash) != at:
                return None
            at = (event.sequence, event.hash)
        return delta

    async def _load(self) -> None:
        """Read the whole state anew; one that is gone, or older than the one that was handed out, changes nothing."""
        try:
            loaded = await load(self._stores, self._execution_id, self._fold_type)
        except UnknownExecution:
            pass  # not there yet, or deleted: there is nothing to tell
        else:
            if loaded.fold.state["lastSequence"] > self._fold.state["lastSequence"]:
                self._fold = loaded.fold
        self._loaded = True
