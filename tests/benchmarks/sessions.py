"""A long session: a gate, some emits and a surface append in each turn; what it costs to go on with it."""

from __future__ import annotations

import itertools
import time

import trio
import trio.testing
from journals import new_journal
from measuring import Ratios, Sizes, Times, without_collector

from kernel import SURFACES, Context, Json, flow, open_runtime
from kernel.adapters.memory import MemoryStore
from kernel.emit_rule import EmitRule
from kernel.events import EXECUTION_RESUMED, EXECUTION_STARTED, EXECUTION_SUSPENDED, SURFACE_PATCH, quoted
from kernel.gates import payload_of
from kernel.journal import Journal
from kernel.jsonform import encode

EVENTS_IN_TURN = 5


@flow
async def session(ctx: Context, _input: Json) -> Json:
    """Answer whatever is said, for ever."""
    for turn in itertools.count():
        said = await ctx.suspend("turn")
        await ctx.emit("heard", {"turn": turn})
        await ctx.emit("answered", {"text": "of course", "turn": turn})
        await ctx.ui.append("chat", said)
    return None


def _patch(said: str) -> str:
    return f'{{"op":"append","surface":"chat","value":{said}}}'


async def _write(journal: Journal, turns: int) -> None:
    """Write the log of a session of so many turns, parked at the gate of the next.

    By hand: every turn re-runs the flow from the top, so a session is made in time that grows with its square.
    """
    rule = EmitRule(lambda _digest: 0)
    await journal.commit(EXECUTION_STARTED, '{"flowId":"session","flowVersion":null,"input":null}')
    for turn in range(turns):
        said = encode({"said": f"number {turn}"})
        await journal.commit(EXECUTION_SUSPENDED, _parked(turn))
        await journal.commit(EXECUTION_RESUMED, payload_of("turn", None, f"turn-{turn}", said))
        rule.gate_passed()
        for type, text in (
            ("heard", encode({"turn": turn})),
            ("answered", encode({"text": "of course", "turn": turn})),
            (SURFACE_PATCH, _patch(said)),
        ):
            await journal.commit(type, text, stamp=rule.identity(quoted(type), text))
    await journal.commit(EXECUTION_SUSPENDED, _parked(turns))


def _parked(turn: int) -> str:
    return f'{{"correlationKey":null,"due":null,"on":"turn","ordinal":{turn}}}'


def _written(turns: int) -> MemoryStore:
    """Return a store that holds the session."""
    store = MemoryStore()
    trio.run(_write, new_journal(store, "s-1"), turns)
    return store


async def _compact(store: MemoryStore) -> None:
    async with open_runtime(stores=store.stores, flows=[session], projections=[SURFACES]) as runtime:
        await runtime.compact("s-1")


async def _resume(store: MemoryStore) -> float:
    """Return the seconds in which a new process passes the gate, re-runs the flow and parks it at the next one."""
    async with open_runtime(
        stores=store.stores, flows=[session], projections=[SURFACES], incarnation="worker"
    ) as runtime:
        before = (await runtime.state("s-1"))["lastSequence"]
        began = time.process_time()
        await runtime.deliver("s-1", "turn", {"said": "one more"}, delivery_id=f"more-{before}")
        await trio.testing.wait_all_tasks_blocked()
        taken = time.process_time() - began
        state = await runtime.state("s-1")
    # Only if the log written above is the flow's own was every emit of it served.
    assert (state["status"], state["lastSequence"]) == ("suspended", before + EVENTS_IN_TURN), state["blocked"]
    return taken


def sessions(sizes: Sizes) -> Times:
    """The seconds of going on, for each turn that the session has: from the whole log, then from a snapshot."""
    times: Times = {}
    for turns in sizes.turns:
        store = _written(turns)
        for compacted in (False, True):
            if compacted:
                trio.run(_compact, store)
            with without_collector():
                resumed = [trio.run(_resume, store) for _ in range(sizes.resumes * sizes.turns[-1] // turns)]
            times[_name(turns, compacted)] = sum(resumed) / len(resumed) / turns
    return times


def _name(turns: int, compacted: bool) -> str:
    return f"session, going on {'from a snapshot' if compacted else 'from the log'}, a turn of {turns:,}"


def ratios(sizes: Sizes) -> Ratios:
    """A turn of a long session against one of a short session."""
    least, *more = sizes.turns
    return [(_name(turns, kept), _name(least, kept)) for kept in (False, True) for turns in more]
