"""The simulated stores: they keep text like real ones, and each durable write is a point where faults happen.

The same object also keeps what no store tells: the whole history, truncated or not, as the ground truth of invariants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import trio

from dst.durable.faults import APPEND_ANSWER_LOST
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Options, menu
from dst.simulation import Simulation
from kernel.errors import AppendUnknown, ConcurrencyConflict, Fenced, LogTruncated, UnknownExecution
from kernel.events import KERNEL_TYPES, Envelope, StoredEvent
from kernel.fold import FoldPass
from kernel.jsonform import Json
from kernel.ports import CatalogueEntry, Delivery, Status, StoredSnapshot, Stores
from kernel.state import FlowState

_WRITE: Options = (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER), ("hold", HOLDING))
_APPEND: Options = (*_WRITE, ("answer-lost", APPEND_ANSWER_LOST))
ABOUT = ("step", "decisionId", "on")
"""Which payload field says what a kernel fact is about."""


class _Row(NamedTuple):
    """A catalogue entry, as cheap as can be: one is made for each append."""

    flow_id: str
    status: Status
    head: int
    due_ms: int | None
    fence: int

    def entry(self, execution_id: str) -> CatalogueEntry:
        """Return it as the port has it."""
        return CatalogueEntry(
            execution_id=execution_id,
            flow_id=self.flow_id,
            status=self.status,
            head=self.head,
            due_ms=self.due_ms,
            fence=self.fence,
        )


class EmitCall:
    """One call of `ctx.emit` at work, as the store sees it when an append comes from it."""

    __slots__ = ("facts", "identity", "logical", "segment", "site")

    def __init__(self, segment: int, identity: str, logical: str, facts: str, site: str) -> None:
        self.segment = segment
        self.identity = identity
        self.logical = logical
        self.facts = facts
        self.site = site


class SimStore:
    """Event store, snapshot store and mailbox of one simulation.  Mutable: the durable world."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.logs: dict[str, list[StoredEvent]] = {}
        self.cuts: dict[str, int] = {}  # first sequence still stored
        self.history: dict[str, list[Envelope]] = {}  # everything that was ever appended, in the order it landed
        self.rows: dict[str, _Row] = {}  # the catalogue
        self.snapshots: dict[str, StoredSnapshot] = {}
        self.saved: list[tuple[str, StoredSnapshot]] = []
        self.mail: dict[str, dict[str, Delivery]] = {}
        self.outputs: dict[tuple[str, str], Json] = {}  # recorded step outputs, failures and choices, as decoded
        self.calls: dict[trio.lowlevel.Task, EmitCall] = {}
        self.runs: dict[str, int] = {}
        self._folds: dict[str, FoldPass] = {}
        self._append_menu = menu(sim.faults, _APPEND)
        self._write_menu = menu(sim.faults, _WRITE)

    @property
    def stores(self) -> Stores:
        """This object in all its parts."""
        return Stores(events=self, snapshots=self, mailbox=self)

    def folded(self, execution_id: str) -> FlowState:
        """Return the fold of an execution's whole history; to be read, not kept."""
        fold = self._folds.setdefault(execution_id, FoldPass())
        for envelope in self.history[execution_id][fold.state["lastSequence"] + 1 :]:
            fold.apply(envelope)
        return fold.state

    # ---- events ------------------------------------------------------------------------------------------------------

    async def append(
        self,
        execution_id: str,
        expected: int,
        batch: Sequence[Envelope],
        *,
        fence: int,
        flow_id: str,
        status: Status,
        due_ms: int | None,
    ) -> None:
        """Append at a point `append:<execution>:<type>:<about>`, or `emit:…` for what a flow emits."""
        sim = self.sim
        call = self.calls.get(trio.lowlevel.current_task())
        point, act = sim.enter(self._site(execution_id, batch[0], call), self._append_menu)
        if act or sim.crowded():
            await sim.approach(point, act)
            if act == "crash-before":
                await sim.crash(point)
        self.check(execution_id, expected, fence)
        for envelope in batch:
            self.store(execution_id, envelope, call)
        self.rows[execution_id] = _Row(
            flow_id, status, batch[-1].sequence, due_ms, max(fence, self._fence(execution_id))
        )
        sim.happened(point)
        if act == "crash-after":
            await sim.crash(point)
        elif act == "answer-lost":
            raise AppendUnknown(f"{point}: the answer was lost")

    def _site(self, execution_id: str, envelope: Envelope, call: EmitCall | None) -> str:
        if call is not None:
            return call.site
        payload = envelope.payload
        if isinstance(payload, dict):
            for field in ABOUT:
                if field in payload:
                    return f"append:{execution_id}:{envelope.type}:{payload[field]}"
        return f"append:{execution_id}:{envelope.type}"

    def check(self, execution_id: str, expected: int, fence: int) -> None:
        """Refuse a stale fence or position."""
        if fence < self._fence(execution_id):
            raise Fenced(f"{execution_id!r}: fence {fence} is stale")
        head = self.cuts.get(execution_id, 0) + len(self.logs.get(execution_id, ()))
        if expected != head:
            raise ConcurrencyConflict(f"{execution_id!r}: expected position {expected}, the next is {head}")

    def _fence(self, execution_id: str) -> int:
        row = self.rows.get(execution_id)
        return 0 if row is None else row.fence

    def store(self, execution_id: str, envelope: Envelope, call: EmitCall | None) -> None:
        """Make one event durable, and note it."""
        self.logs.setdefault(execution_id, []).append(StoredEvent(envelope.sequence, envelope.text, envelope.hash))
        self.history.setdefault(execution_id, []).append(envelope)
        if call is None:
            kind = envelope.type if envelope.type in KERNEL_TYPES else "other"  # an effect's own emit
            self.sim.records.append((kind, execution_id, envelope))
        else:
            self.sim.records.append(
                ("emitted", execution_id, call.segment, call.identity, call.logical, call.facts, envelope)
            )

    def park(self, execution_id: str, flow_id: str, *, head: int) -> None:
        """Say in the catalogue that an execution is parked, and nobody's."""
        self.rows[execution_id] = _Row(flow_id, "suspended", head, None, 0)

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Return the tail; reads are no points."""
        if self.sim.crowded():
            await self.sim.approach("read", "")
        log = self.logs.get(execution_id)
        if log is None:
            return []
        cut = self.cuts.get(execution_id, 0)
        if sequence < cut:
            raise LogTruncated(f"{execution_id!r}: asked from {sequence}, the log begins at {cut}")
        return log[sequence - cut :]

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """Drop a prefix, at a point `truncate:<execution>`."""
        point, act = await self._come_to(f"truncate:{execution_id}")
        cut = self.cuts.get(execution_id, 0)
        if through >= cut:
            log = self.logs[execution_id]
            del log[: through + 1 - cut]
            self.cuts[execution_id] = through + 1
        self.sim.note("truncated", execution_id, through)
        await self._leave(point, act)

    async def claim(self, execution_id: str, owner: str) -> int:
        """Claim, at a point `claim:<execution>`."""
        point, act = await self._come_to(f"claim:{execution_id}")
        row = self.rows.get(execution_id)
        if row is None:
            raise UnknownExecution(f"no execution {execution_id!r} in this store")
        fence = row.fence + 1
        self.rows[execution_id] = row._replace(fence=fence)
        self.sim.note("claimed", execution_id, owner, fence)
        await self._leave(point, act)
        return fence

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        """Return the catalogue entry."""
        row = self.rows.get(execution_id)
        return None if row is None else row.entry(execution_id)

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """Return entries in order of id."""
        return [row.entry(i) for i, row in sorted(self.rows.items()) if not statuses or row.status in statuses]

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Save, at a point `snapshot:<execution>`."""
        point, act = await self._come_to(f"snapshot:{execution_id}")
        stored = self.snapshots.get(execution_id)
        if stored is None or stored.sequence <= snapshot.sequence:
            self.snapshots[execution_id] = snapshot
        self.saved.append((execution_id, snapshot))
        self.sim.note("snapshot", execution_id, snapshot.sequence)
        await self._leave(point, act)

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Return the newest snapshot."""
        return self.snapshots.get(execution_id)

    # ---- mailbox -----------------------------------------------------------------------------------------------------

    async def put(self, execution_id: str, delivery: Delivery) -> bool:
        """Accept, at a point `put:<execution>:<delivery>`."""
        point, act = await self._come_to(f"put:{execution_id}:{delivery.delivery_id}")
        box = self.mail.setdefault(execution_id, {})
        fresh = delivery.delivery_id not in box
        if fresh:
            box[delivery.delivery_id] = delivery
        self.sim.note("accepted", execution_id, delivery.delivery_id, delivery.on, delivery.correlation_key, fresh)
        await self._leave(point, act)
        return fresh

    async def pending(self, execution_id: str) -> Sequence[Delivery]:
        """Return what is pending."""
        return list(self.mail.get(execution_id, {}).values())

    async def remove(self, execution_id: str, delivery_ids: Sequence[str]) -> None:
        """Forget, at a point `remove:<execution>:<delivery>`."""
        point, act = await self._come_to(f"remove:{execution_id}:{delivery_ids[0] if delivery_ids else ''}")
        box = self.mail.get(execution_id, {})
        for delivery_id in delivery_ids:
            box.pop(delivery_id, None)
        await self._leave(point, act)

    async def executions(self) -> Sequence[str]:
        """Return who has something pending."""
        return sorted(execution_id for execution_id, box in self.mail.items() if box)

    # ---- points ------------------------------------------------------------------------------------------------------

    async def _come_to(self, site: str) -> tuple[str, str]:
        point, act = self.sim.enter(site, self._write_menu)
        if act or self.sim.crowded():
            await self.sim.approach(point, act)
            if act == "crash-before":
                await self.sim.crash(point)
        return point, act

    async def _leave(self, point: str, act: str) -> None:
        self.sim.happened(point)
        if act == "crash-after":
            await self.sim.crash(point)
