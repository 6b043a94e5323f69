"""Live queries: how many rows they read, and what an event costs its subscribers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import trio
from journals import new_journal
from measuring import Ratios, Sizes, Times, without_collector

from kernel import LiveQuery, StoredEvent
from kernel.adapters.memory import MemoryStore
from kernel.events import EXECUTION_STARTED
from kernel.journal import Journal

EVENTS, ROWS = "live query, events", "live query, rows read for them"
COUNTED = (EVENTS, ROWS)
"""What is counted and not timed."""


class _Counting(MemoryStore):
    """Counts the rows that are read."""

    rows = 0

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Read, and count."""
        read = await super().read_from(execution_id, sequence)
        self.rows += len(read)
        return read


async def _begun(store: MemoryStore) -> Journal:
    """Return the journal of an execution that has begun."""
    journal = new_journal(store, "e-1")
    await journal.commit(EXECUTION_STARTED, '{"flowId":"f","flowVersion":null,"input":null}')
    return journal


def _live(store: MemoryStore) -> LiveQuery:
    return LiveQuery(store.stores, store)


def rows(sizes: Sizes) -> Times:
    """Rows read by one who follows an execution from its first event on and is woken for each."""
    store = _Counting()

    async def main() -> None:
        journal = await _begun(store)
        async with _live(store).subscribe("e-1") as states:
            await anext(states)
            for number in range(1, sizes.followed):
                await journal.commit("noted", str(number))
                assert number == (await anext(states))["lastSequence"]

    trio.run(main)
    return {EVENTS: sizes.followed, ROWS: store.rows}


def subscribers(sizes: Sizes) -> Times:
    """The seconds of an event for each who follows the execution."""
    times: Times = {}
    for count in sizes.subscribers:
        with without_collector():
            times[_name(count)] = trio.run(_followed, count, sizes.followed_by_all)
    return times


async def _followed(count: int, events: int) -> float:
    store = MemoryStore()
    journal = await _begun(store)
    async with contextlib.AsyncExitStack() as stack:
        all_states = [await stack.enter_async_context(_live(store).subscribe("e-1")) for _ in range(count)]
        for states in all_states:
            await anext(states)
        began = time.process_time()
        for number in range(events):
            await journal.commit("noted", str(number))
            for states in all_states:
                await anext(states)
        return (time.process_time() - began) / (events * count)


def _name(count: int) -> str:
    return f"live query, an event for one of {count:,} subscribers"


def ratios(sizes: Sizes) -> Ratios:
    """Rows against events, and many subscribers against few: linear is 1."""
    least, *more = sizes.subscribers
    return [(ROWS, EVENTS), *((_name(count), _name(least)) for count in more)]
