"""Who follows an execution misses nothing, and sees nothing older than what was seen."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kernel import LiveQuery, fold_events
from kernel.adapters.memory import MemoryStore
from kernel.errors import ConcurrencyConflict
from kernel.events import GENESIS_HASH, seal
from kernel.jsonform import encode


def _log(count):
    """A start, then decisions: the state shows which of them it has."""
    log = []
    for n in range(count):
        payload = {"decisionId": f"d{n}", "choice": n} if n else {"flowId": "f", "flowVersion": None, "input": None}
        log.append(
            seal(
                execution_id="x",
                sequence=n,
                type="DECISION_RECORDED" if n else "EXECUTION_STARTED",
                payload_text=encode(payload),
                timestamp_ms=1,
                append_id=f"w/{n}",
                previous_hash=log[-1].hash if log else GENESIS_HASH,
            )
        )
    return log


async def _append(store, event):
    await store.append("x", event.sequence, [event], fence=0, flow_id="f", status="running", due_ms=None)


def test_b79_no_position_is_passed_over_while_its_event_is_on_its_way():
    """A number is reserved and not visible yet, and whoever follows goes past it for good."""
    # K-LOG-1, K-LOG-2 decide: a position is given at the commit; one beyond a gap is refused.
    log, seen = _log(5), []

    async def follow(states):
        async for state in states:
            seen.append(state)

    async def story():
        store = MemoryStore()
        await _append(store, log[0])
        async with LiveQuery(store.stores, store).subscribe("x") as states, trio.open_nursery() as nursery:
            nursery.start_soon(follow, states)
            await trio.testing.wait_all_tasks_blocked()
            for event in log[2:]:  # 1 is held
                with pytest.raises(ConcurrencyConflict):
                    await _append(store, event)
            await trio.testing.wait_all_tasks_blocked()
            assert [0] == [state["lastSequence"] for state in seen]
            for event in log[1:]:
                await _append(store, event)
            await trio.testing.wait_all_tasks_blocked()
            states.close()

    trio.run(story)
    assert fold_events(log) == seen[-1]
    assert ["d1", "d2", "d3", "d4"] == list(seen[-1]["variables"]["_decisions"])


def test_b81_a_reader_that_is_killed_after_each_state_misses_nothing():
    """The cursor that a reader was given is ahead of what it has received."""
    # K-LIVE-1 decides: there is no cursor to keep; a subscription begins with the whole state as it is.
    log, seen = _log(8), []

    async def story():
        store = MemoryStore()
        query = LiveQuery(store.stores, store)
        for event in log:
            await _append(store, event)
            async with query.subscribe("x") as states:
                seen.append(await anext(states))

    trio.run(story)
    assert [fold_events(log[: n + 1]) for n in range(8)] == seen
    assert list(range(8)) == [state["lastSequence"] for state in seen]


def test_b83_a_reader_that_is_dropped_before_its_first_state_has_lost_nothing():
    """A connection that carried nothing makes its client forget where it was."""
    # K-LIVE-1, K-LIVE-2 decide: each subscription begins with the newest state, and none goes back.
    log, seen = _log(6), []

    async def story():
        store = MemoryStore()
        query = LiveQuery(store.stores, store)
        for event in log[:3]:
            await _append(store, event)
        async with query.subscribe("x") as states:
            seen.append(await anext(states))
        for event in log[3:5]:
            await _append(store, event)
        async with query.subscribe("x"):
            pass  # dropped before anything
        async with query.subscribe("x") as states:
            seen.append(await anext(states))
            await _append(store, log[5])
            seen.append(await anext(states))

    trio.run(story)
    assert [fold_events(log[:n]) for n in (3, 5, 6)] == seen
