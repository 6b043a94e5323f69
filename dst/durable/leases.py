"""The simulated `Leases` port.

Each acquisition and renewal is a point.  Whether an acquisition takes from a worker what it is still driving is noted
here, where both the leases and what the taker has seen of them are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from dst.durable.faults import LEASE_REFUSED
from dst.durable.stores import SimStore
from dst.durable.workers import living
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, HOLDING, STALL, STALLING, Options, menu
from dst.node import Node
from dst.scheduler import NODE
from kernel.errors import Fenced, StoreUnavailable, UnknownExecution
from kernel.events import EXECUTION_BLOCKED, EXECUTION_SUSPENDED, TERMINAL_TYPES
from kernel.ports import Lease

_LEASE: Options = (
    ("crash-before", CRASH_BEFORE),
    ("crash-after", CRASH_AFTER),
    (HOLD, HOLDING),
    (STALL, STALLING),
    ("refused", LEASE_REFUSED),
)
_NOBODYS = frozenset({EXECUTION_SUSPENDED, EXECUTION_BLOCKED, *TERMINAL_TYPES})
"""What an execution is nobody's after."""


class SimLeases:
    """The leases of one simulation, on its store.  Mutable: the newest lease of each execution."""

    def __init__(self, db: SimStore) -> None:
        self._db = db
        self._sim = db.sim
        self.held: dict[str, Lease] = {}
        self._menu = menu(db.sim.faults, _LEASE)

    async def lease(self, execution_id: str) -> Lease | None:
        """Return the newest lease; reads are no points."""
        return self.held.get(execution_id)

    async def acquire(self, execution_id: str, owner: str, *, until_ms: int, after: int) -> int:
        """Acquire, at a point `acquire:<execution>`."""
        point, act = await self._come_to(f"acquire:{execution_id}")
        row = self._db.rows.get(execution_id)
        if row is None:
            raise UnknownExecution(f"no execution {execution_id!r} in this store")
        if row.fence != after:
            raise Fenced(f"{execution_id!r}: asked after fence {after}, the newest is {row.fence}")
        fence = after + 1
        self._sim.note("claimed", execution_id, owner, fence, self._taken_from(execution_id, owner))
        self._db.rows[execution_id] = row._replace(fence=fence)
        self.held[execution_id] = Lease(owner=owner, until_ms=until_ms, fence=fence)
        await self._leave(point, act)
        return fence

    async def renew(self, execution_id: str, *, fence: int, until_ms: int) -> None:
        """Renew, at a point `renew:<execution>`."""
        point, act = await self._come_to(f"renew:{execution_id}")
        row, lease = self._db.rows.get(execution_id), self.held.get(execution_id)
        if row is None or lease is None or row.fence != fence or lease.fence != fence:
            raise Fenced(f"{execution_id!r}: fence {fence} is stale")
        self._sim.note("renewed", execution_id, fence, self._left_ms(lease) <= 0)
        self.held[execution_id] = Lease(owner=lease.owner, until_ms=until_ms, fence=fence)
        await self._leave(point, act)

    async def _come_to(self, site: str) -> tuple[str, str]:
        point, act = self._sim.enter(site, self._menu)
        if act or self._sim.crowded():
            act = await self._sim.approach(point, act)
            if act == "crash-before":
                await self._sim.crash(point)
            if act == "refused":
                self._sim.happened(point)
                raise StoreUnavailable(f"{point}: refused")
        return point, act

    async def _leave(self, point: str, act: str) -> None:
        self._sim.happened(point)
        if act == "crash-after":
            await self._sim.crash(point)

    def visible(self, nodes: Sequence[Node]) -> list[tuple[str, str, int]]:
        """Return who drives what runs, "" if they do not outlive a crash here, and how long their lease lasts."""
        alive = {name: incarnation.node.name for name, incarnation in living(nodes).items()}
        return [
            (execution_id, alive.get(lease.owner.rpartition("@")[2], ""), max(self._left_ms(lease), 0))
            for execution_id, lease in sorted(self.held.items())
            if (row := self._db.rows[execution_id]).status == "running" and row.fence == lease.fence
        ]

    # ---- who may take what -------------------------------------------------------------------------------------------

    def _taken_from(self, execution_id: str, owner: str) -> str:
        """Return whom an acquisition now takes a live execution from, as the taker must have known; "" for nobody.

        What a taker knows is what it saw when it last looked at the execution.  It may have been parked then, or the
        lease may have run out since, to be renewed late: then the two have only been fast after one another.  Where a
        clock is wrong, whatever it says of a lease is believed.
        """
        lease, row = self.held.get(execution_id), self._db.rows[execution_id]
        if lease is None or lease.fence != row.fence or row.status != "running" or self._left_ms(lease) <= 0:
            return ""
        if lease.owner == owner:  # its own, which it has lost sight of
            return ""
        position, status = self._db.looks.get((NODE.get(), execution_id), (0, "running"))
        if status != "running" or "clock-jump" in self._sim.fired:
            return ""
        for record in self._sim.records[position:]:
            if record[0] in _NOBODYS and record[1] == execution_id:
                return ""
            if record[0] in ("renewed", "claimed") and record[1] == execution_id and record[3] is True:
                return ""
        return lease.owner

    def _left_ms(self, lease: Lease) -> int:
        return lease.until_ms - self._db.now_ms()
