"""Conformance of `Disposal`, a port of its own: a store need not delete to carry the kernel (K-USER-1).

trio.run(run_each, DISPOSAL_CHECKS, make_store, make_second)
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import attrs
import trio

from kernel.conformance import (
    Check,
    ConformanceFailure,
    _append,
    _delivery,
    _entry,
    _log,
    _refused,
    _snapshot,
    _stored,
    _want,
    chain,
)
from kernel.errors import ConcurrencyConflict, Fenced, UnknownExecution
from kernel.events import Envelope
from kernel.ports import Disposal, Stores

Body = Callable[[Stores, Stores, Disposal], Awaitable[None]]
_checks: list[Check] = []


def _check(body: Body) -> Body:
    async def with_disposal(stores: Stores, second: Stores) -> None:
        if stores.disposal is None:
            raise ConformanceFailure("the store has no `disposal`")
        await body(stores, second, stores.disposal)

    _checks.append(Check(name=body.__name__, rule="K-USER-1", handles=2, body=with_disposal))
    return body


async def _make(stores: Stores, execution_id: str) -> None:
    """Make an execution of which there is something everywhere."""
    await _append(stores, chain(execution_id, 5), status="completed", due_ms=7)
    await stores.snapshots.save(execution_id, _snapshot(3))
    await stores.events.truncate_prefix(execution_id, 2)
    await stores.mailbox.put(execution_id, _delivery("d"))
    if stores.leases is not None:
        await stores.leases.acquire(execution_id, "a", until_ms=5_000, after=0)


async def _kept(stores: Stores, execution_id: str) -> list[object]:
    """Return all that a store says of an execution, the log from 3 on."""
    return [
        await _log(stores, execution_id, 3),
        await stores.events.entry(execution_id),
        await stores.snapshots.load(execution_id),
        list(await stores.mailbox.pending(execution_id)),
        None if stores.leases is None else await stores.leases.lease(execution_id),
    ]


_NOTHING: list[object] = [[], None, None, [], None]


@_check
async def deleted_execution_is_forgotten_whole(stores: Stores, second: Stores, disposal: Disposal) -> None:
    names = ["", "e", "e::child", "E"]
    for name in names:
        await _make(stores, name)
    kept = {name: await _kept(stores, name) for name in names}
    await disposal.delete("e")
    kept["e"] = _NOTHING
    for handle in (stores, second):
        for name in names:
            _want(kept[name], await _kept(handle, name), f"what there is of {name!r} after 'e' was deleted")
        _want(["", "E", "e::child"], [e.execution_id for e in await handle.events.entries()], "the catalogue")
        _want(["", "E", "e::child"], list(await handle.mailbox.executions()), "executions with mail")


@_check
async def deletion_of_what_is_not_there_is_no_error(stores: Stores, second: Stores, disposal: Disposal) -> None:
    await disposal.delete("e")
    await stores.mailbox.put("e", _delivery("early"))
    await disposal.delete("e")
    _want(_NOTHING, await _kept(second, "e"), "what there is of an execution that had mail only")
    await _make(stores, "e")
    for _ in range(2):
        await disposal.delete("e")
    _want(_NOTHING, await _kept(second, "e"), "what there is after a second deletion")


@_check
async def who_worked_on_a_deleted_execution_is_refused(stores: Stores, second: Stores, disposal: Disposal) -> None:
    await _make(stores, "e")
    fence = (await _entry(stores, "e")).fence
    await disposal.delete("e")
    async with _refused(ConcurrencyConflict, "an append to a deleted execution, at its old position"):
        await _append(second, chain("e", 6)[5:], fence=fence)
    async with _refused(UnknownExecution, "a claim of a deleted execution"):
        await second.events.claim("e", "b")
    if second.leases is not None:
        async with _refused(UnknownExecution, "a lease on a deleted execution"):
            await second.leases.acquire("e", "b", until_ms=9_000, after=fence)
        async with _refused(Fenced, "the renewal of a lease on a deleted execution"):
            await second.leases.renew("e", fence=fence, until_ms=9_000)
    _want(_NOTHING, await _kept(stores, "e"), "what there is after all that")


@_check
async def id_of_a_deleted_execution_begins_anew(stores: Stores, second: Stores, disposal: Disposal) -> None:
    await _make(stores, "e")
    await disposal.delete("e")
    events = chain("e", 2, note="anew")
    await _append(second, events)
    _want(_stored(events), await _log(stores, "e"), "the new log, from its start")
    wanted = attrs.evolve(await _entry(stores, "e"), flow_id="flow", status="running", head=1, due_ms=None, fence=0)
    _want(wanted, await _entry(stores, "e"), "the new entry")
    _want(_NOTHING[2:], (await _kept(stores, "e"))[2:], "snapshot, mail and lease of the new execution")
    await second.snapshots.save("e", _snapshot(1))
    _want(1, getattr(await stores.snapshots.load("e"), "sequence", None), "a snapshot older than the deleted one")
    _want(True, await second.mailbox.put("e", _delivery("d")), "put of a delivery id that was deleted")


@_check
async def deletion_and_append_at_once_leave_nothing(stores: Stores, second: Stores, disposal: Disposal) -> None:
    for i in range(12):
        name = f"race {i}"
        events = chain(name, 4)
        await _append(stores, events[:2])
        async with trio.open_nursery() as nursery:
            if i % 2:
                nursery.start_soon(_append_if_it_is_there, second, events[2:])
            nursery.start_soon(disposal.delete, name)
            if not i % 2:
                nursery.start_soon(_append_if_it_is_there, second, events[2:])
        _want(_NOTHING, await _kept(stores, name), f"what there is of {name!r}")
        await _append(stores, events)
        _want(_stored(events), await _log(second, name), f"the log of {name!r}, begun anew")


async def _append_if_it_is_there(stores: Stores, events: Sequence[Envelope]) -> None:
    with contextlib.suppress(ConcurrencyConflict):
        await _append(stores, events)


DISPOSAL_CHECKS: tuple[Check, ...] = tuple(_checks)
"""All checks, in the order they are read."""
