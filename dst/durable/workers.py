"""What workers that share a store do beside running flows, and what is left of them when one of them dies."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import cast

import trio

from dst.durable.clock import SimClock
from dst.durable.stores import SimStore
from dst.node import Incarnation, Node
from dst.scheduler import NODE
from dst.simulation import Simulation
from kernel.errors import StoreUnavailable
from kernel.events import CANCEL_REQUESTED
from kernel.gates import outstanding
from kernel.runtime import Runtime

LOOKS_MAX = 40
"""How often a sweeping worker looks at a timer that is due and does not fire: it is watched by somebody, or broken."""

Looked = Counter[tuple[str, int]]
"""How often a worker has looked at a timer that is due: by execution and due time."""


async def sweep(db: SimStore, runtime: Runtime, clock: SimClock, every_seconds: float) -> None:
    """Take up what others have left, now and then, as every worker with leases must.

    A program does so for ever.  Here it waits while there is nothing to take up, so that a run comes to rest.
    """
    looked: Looked = Counter()
    while True:
        await wait_for_work(db, clock, looked)
        clock.sleeping["sweep"] = trio.current_time() + every_seconds
        await trio.sleep(every_seconds)
        del clock.sleeping["sweep"]
        with contextlib.suppress(StoreUnavailable):  # it is asked again next time
            await runtime.recover_all()


async def wait_for_work(db: SimStore, clock: SimClock, looked: Looked) -> None:
    """Return when there is something that a sweep could take up: what runs, and what a delivery or time resumes.

    Whether time has come is for the sweeper's own `clock` to say.
    """
    while not any(_is_work(db, execution_id, clock.now_ms(), looked) for execution_id in db.rows):
        if db.changed is None:
            db.changed = trio.Event()
        dues = [row.due_ms for row in db.rows.values() if row.due_ms is not None]
        to_come = [due_ms for due_ms in dues if due_ms > clock.now_ms()]
        with trio.CancelScope(deadline=clock.seconds(min(to_come)) if to_come else math.inf):
            await db.changed.wait()


def _is_work(db: SimStore, execution_id: str, now_ms: int, looked: Looked) -> bool:
    row = db.rows[execution_id]
    if row.status != "suspended":
        return row.status == "running"
    gate = db.folded(execution_id)["gate"]
    wanted = {(CANCEL_REQUESTED, None)} | (set() if gate is None else outstanding(gate))
    if any((d.on, d.correlation_key) in wanted for d in db.mail.get(execution_id, {}).values()):
        return True
    if row.due_ms is None or row.due_ms > now_ms:
        return False
    looked[execution_id, row.due_ms] += 1
    return looked[execution_id, row.due_ms] <= LOOKS_MAX


def survivors(sim: Simulation, nodes: Sequence[Node], clocks: Mapping[str, SimClock]) -> list[object]:
    """Return what is left in the memory of workers if the one that is running dies here, and how wrong clocks are.

    An idle worker is its timers and its next sweep.  What one that drives an execution has in mind nobody can see: its
    way here stands for it, so that no two such states are taken for one.
    """
    seen: list[object] = [(name, clock.off_ms) for name, clock in sorted(clocks.items())]
    now = sim.scheduler.now_ns / 1e9
    for name, incarnation in sorted(living(nodes).items()):
        worker = incarnation.node.name
        timers = sorted((task, round((due - now) * 1000)) for task, due in clocks[worker].sleeping.items())
        runtime = cast("Runtime | None", incarnation.service)
        if runtime is None or runtime.driving:
            seen.append((name, len(sim.records), [(d.at, d.do, d.until) for d in sim.deviations]))
        else:
            seen.append((worker, timers))
    return seen


def living(nodes: Sequence[Node]) -> dict[str, Incarnation]:
    """Return the incarnations that live on, by name."""
    living = [node.current for node in nodes if node.current is not None and node.current.name != NODE.get()]
    return {incarnation.name: incarnation for incarnation in living}
