"""The simulated stores: they keep text like real ones, and each durable write is a point where faults happen.

The same object also keeps what no store tells: the whole history, truncated or not, as the ground truth of invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import trio

from dst.durable.clock import EPOCH_MS
from dst.durable.faults import (
    APPEND_ANSWER_LOST,
    APPEND_REFUSED,
    READ_BY_PAGES,
    SNAPSHOT_LATE,
    SNAPSHOT_LOST,
    SNAPSHOT_REFUSED,
    SNAPSHOT_REORDERED,
    SNAPSHOT_UNREADABLE,
    STALE_READ,
    STORE_REFUSED,
)
from dst.durable.snapshots import garbled, reordered
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD, HOLDING, STALL, STALLING, Fault, Menu, Options, menu
from dst.footprints import ADD, EVERYTHING, READ, WRITE
from dst.scheduler import NODE
from dst.simulation import Simulation
from kernel.errors import (
    AppendUnknown,
    ConcurrencyConflict,
    Fenced,
    LogTruncated,
    StoreUnavailable,
    UnknownExecution,
)
from kernel.events import (
    DECISION_RECORDED,
    EXECUTION_CONTINUED,
    KERNEL_TYPES,
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_STARTED,
    Envelope,
    StoredEvent,
    stamp_of,
)
from kernel.fold import FoldPass
from kernel.jsonform import Json
from kernel.ports import CatalogueEntry, Delivery, Status, StoredSnapshot, Stores
from kernel.state import FlowState

POINT: Options = (
    ("crash-before", CRASH_BEFORE),
    ("crash-after", CRASH_AFTER),
    (HOLD, HOLDING),
    (STALL, STALLING),
)
_WRITE: Options = (*POINT, ("refused", STORE_REFUSED))
_APPEND: Options = (*POINT, ("answer-lost", APPEND_ANSWER_LOST), ("refused", APPEND_REFUSED))
_SAVE: Options = (*POINT, ("refused", SNAPSHOT_REFUSED))
_READ: Options = (
    ("hide-1", STALE_READ),
    ("hide-2", STALE_READ),
    ("hide-3", STALE_READ),
    ("by-pages", READ_BY_PAGES),
    ("by-slow-pages", READ_BY_PAGES),
)
_LOOK: Options = (("stale", STALE_READ),)
_LOAD: Options = (
    ("lost", SNAPSHOT_LOST),
    ("late", SNAPSHOT_LATE),
    ("unreadable", SNAPSHOT_UNREADABLE),
    ("reordered", SNAPSHOT_REORDERED),
)
_PAGE_SECONDS = 0.25  # from one page of a slow read to the next

LIVE, EXECUTING, UNSETTLED, REPEATED, LEGACY, INHERITED = "L", "E", "U", "R", "O", "I"
"""Facts of a run at an emit: why ADR 0102 may allow its event, or a later one, to be a duplicate."""

LEGACY_SCHEMA = "1.18.0"
"""Of the logs from before stamps that a simulation may begin with."""

STEP_TYPES = frozenset({STEP_STARTED, STEP_COMPLETED, STEP_FAILED, STEP_CANCELLED})
"""Facts that the fold keeps step by step, so that those of two steps can change places."""

CALLED = (*sorted(STEP_TYPES), DECISION_RECORDED)
"""Facts that are appended for a call of a flow, or for the end of an effect: both are points of their own."""

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
        self.begun: dict[str, StoredSnapshot] = {}  # what older kernels had absorbed before the simulation began
        self.mail: dict[str, dict[str, Delivery]] = {}
        self.outputs: dict[tuple[str, str], Json] = {}  # recorded step outputs, failures and choices, as decoded
        self.calls: dict[trio.lowlevel.Task, EmitCall] = {}
        self.emits: dict[tuple[str, int], EmitCall] = {}  # which call made an event
        self.made: dict[tuple[str, int, str], int] = {}  # emits in a log: by execution, segment and identity
        self.unserved: dict[tuple[str, int, str], int] = {}  # of these, those that serve no re-run: they have no stamp
        self.runs: dict[str, int] = {}
        self.changed: trio.Event | None = None  # set, once, at the next change that a sweep may have waited for
        self.looks: dict[tuple[str | None, str], tuple[int, Status]] = {}  # a node's newest look at an execution
        self._folds: dict[str, FoldPass] = {}
        self.counts_appends = False  # do others count how many there are, as who takes snapshots does?
        self.troubles = 0  # what has fired that can leave an execution idle, or a client with an error
        self.on_trouble: Callable[[], None] | None = None
        self.on_change: Callable[[str], None] | None = None  # told of each execution whose log has changed
        self._older: dict[str, _Row | None] = {}  # the catalogue before the newest append to each execution
        self._newest = ""  # to which execution the newest append was
        self._superseded: dict[str, StoredSnapshot | None] = {}  # the snapshot before the newest one
        self._acts: Mapping[str, Callable[[], None]] = {}  # what others may do at an append
        self._append_menu = menu(sim.faults, _APPEND)
        self._write_menu = menu(sim.faults, _WRITE)
        self._save_menu = menu(sim.faults, _SAVE)
        self._read_menu = _if_any(menu(sim.faults, _READ))  # reads are points only where something can be done there
        self._look_menu = _if_any(menu(sim.faults, _LOOK))
        self._load_menu = _if_any(menu(sim.faults, _LOAD))

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

    def offer(self, acts: Mapping[str, tuple[Fault, Callable[[], None]]]) -> None:
        """Let others act at any append, by the name of the option: each act begins just before the append lands."""
        self._acts = {name: act for name, (_, act) in acts.items()}
        options = tuple((name, fault) for name, (fault, _) in acts.items())
        self._append_menu = menu(self.sim.faults, (*_APPEND, *options))

    def trouble(self) -> None:
        """Something has fired after which somebody has to look again."""
        self.troubles += 1
        if self.on_trouble is not None:
            self.on_trouble()

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
            if act in self._acts:
                self._acts[act]()
            act = await sim.approach(point, act)
            if act == "crash-before":
                await sim.crash(point)
            elif act == "refused":
                self._refuse(point)
        self.check(execution_id, expected, fence)
        for envelope in batch:
            self.store(execution_id, envelope, call if expected else _inherited(self, envelope))
        if self._look_menu is not None:
            self._older[execution_id], self._newest = self.rows.get(execution_id), execution_id
        self.rows[execution_id] = _Row(
            flow_id, status, batch[-1].sequence, due_ms, max(fence, self._fence(execution_id))
        )
        self._tell()
        sim.happened(point)
        if self.on_change is not None:
            self.on_change(execution_id)
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
        if self.sim.footprint is not None:
            self._touch_event(execution_id, envelope, call)
        if call is None:
            kind = envelope.type if envelope.type in KERNEL_TYPES else "other"  # an effect's own emit
            if kind == EXECUTION_CONTINUED:
                self.made = {key: count for key, count in self.made.items() if key[0] != execution_id}
                self.unserved = {key: count for key, count in self.unserved.items() if key[0] != execution_id}
            self.sim.records.append((kind, execution_id, envelope))
        else:
            self.emits[execution_id, envelope.sequence] = call
            made = (execution_id, call.segment, call.identity)
            self.made[made] = self.made.get(made, 0) + 1
            if stamp_of(envelope) is None:
                self.unserved[made] = self.unserved.get(made, 0) + 1
            self.sim.records.append(
                ("emitted", execution_id, call.segment, call.identity, call.logical, call.facts, envelope)
            )

    def _touch_event(self, execution_id: str, envelope: Envelope, call: EmitCall | None) -> None:
        """Say what an append changes: what the fold makes of it, never "the log", or nothing could change places."""
        if self.counts_appends:
            self.touch_all(execution_id)
            return
        payload = envelope.payload
        if call is not None:
            self.sim.touch(count_of(execution_id, call.segment, call.identity), ADD)
        elif envelope.type in STEP_TYPES and isinstance(payload, dict):
            self.sim.touch(f"fold:{execution_id}:{payload.get('step')}", WRITE)
        elif envelope.type in KERNEL_TYPES:
            self.touch_all(execution_id)
            return
        else:
            self.sim.touch(f"told:{execution_id}:{envelope.type}", ADD)  # an effect's own emit: nothing counts it
        self.sim.touch(f"order:{execution_id}", READ)

    def touch_all(self, execution_id: str) -> None:
        """Say that an operation can change places with none of this execution: it decides, ends, or reads positions."""
        if self.sim.footprint is not None:
            self.sim.touch(f"order:{execution_id}", WRITE)

    def park(self, execution_id: str, flow_id: str, *, head: int) -> None:
        """Say in the catalogue that an execution is parked, and nobody's."""
        self.rows[execution_id] = _Row(flow_id, "suspended", head, None, 0)

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Return the tail, at a point `read:<execution>` if a fault of reads is declared."""
        self.touch_all(execution_id)
        if self._read_menu is not None:
            return await self._read_unkindly(execution_id, sequence, self._read_menu)
        if self.sim.crowded():
            await self.sim.approach("read", "")
        return self._tail(execution_id, sequence)

    def _tail(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        log = self.logs.get(execution_id)
        if log is None:
            return []
        cut = self.cuts.get(execution_id, 0)
        if sequence < cut:
            raise LogTruncated(f"{execution_id!r}: asked from {sequence}, the log begins at {cut}")
        return log[sequence - cut :]

    async def _read_unkindly(self, execution_id: str, sequence: int, choices: Menu) -> Sequence[StoredEvent]:
        """Read as from a replica that lags, or page by page while others go on."""
        point, act = self.sim.enter(f"read:{execution_id}", choices)
        if act or self.sim.crowded():
            await self.sim.approach(point, act)
        if act in ("by-pages", "by-slow-pages"):
            rows = await self._read_pages(execution_id, sequence, _PAGE_SECONDS if act == "by-slow-pages" else 0.0)
        else:
            rows = self._tail(execution_id, sequence)
            if act:
                rows = rows[: -int(act.removeprefix("hide-"))]
                self.trouble()
        self.sim.happened(point)
        return rows

    async def _read_pages(self, execution_id: str, sequence: int, pause: float) -> Sequence[StoredEvent]:
        rows: list[StoredEvent] = []
        try:
            while page := self._tail(execution_id, sequence + len(rows))[:1]:
                rows += page
                if pause:
                    await trio.sleep(pause)
                else:
                    await self.sim.approach("page", "")
        except LogTruncated:
            self.trouble()  # a client may be told of it
            raise
        return rows

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """Drop a prefix, at a point `truncate:<execution>`."""
        point, act = await self.come_to(f"truncate:{execution_id}")
        self.touch_all(execution_id)
        cut = self.cuts.get(execution_id, 0)
        if through >= cut:
            log = self.logs[execution_id]
            del log[: through + 1 - cut]
            self.cuts[execution_id] = through + 1
        held = self._position(execution_id)
        lost = "" if through <= held else f"events up to {through} are dropped, the snapshot holds those up to {held}"
        self.sim.note("truncated", execution_id, through, lost)
        if self.on_change is not None:
            self.on_change(execution_id)
        await self.leave(point, act)

    async def claim(self, execution_id: str, owner: str) -> int:
        """Claim, at a point `claim:<execution>`."""
        point, act = await self.come_to(f"claim:{execution_id}")
        self.touch_all(execution_id)
        row = self.rows.get(execution_id)
        if row is None:
            raise UnknownExecution(f"no execution {execution_id!r} in this store")
        fence = row.fence + 1
        self.rows[execution_id] = row._replace(fence=fence)
        self.sim.note("claimed", execution_id, owner, fence, "")
        await self.leave(point, act)
        return fence

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        """Return the catalogue entry, at a point `entry:<execution>` if stale reads are declared."""
        self.touch_all(execution_id)
        row = self.rows.get(execution_id)
        if row is not None:
            self.looks[NODE.get(), execution_id] = len(self.sim.records), row.status
        if self._look_menu is not None and await self._look(f"entry:{execution_id}", self._look_menu):
            row = self._older.get(execution_id)
        return None if row is None else row.entry(execution_id)

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """Return entries in order of id, at a point `entries` if stale reads are declared."""
        rows: dict[str, _Row | None] = {**self.rows}
        self.sim.touch(EVERYTHING, WRITE)
        if self._look_menu is not None and await self._look("entries", self._look_menu) and self._newest:
            rows[self._newest] = self._older.get(self._newest)
        shown = [(i, row) for i, row in sorted(rows.items()) if row is not None]
        return [row.entry(i) for i, row in shown if not statuses or row.status in statuses]

    async def _look(self, site: str, choices: Menu) -> bool:
        """Come to a look into the catalogue; is it to be a stale one?"""
        point, act = self.sim.enter(site, choices)
        if act or self.sim.crowded():
            await self.sim.approach(point, act)
        if act:
            self.trouble()
        self.sim.happened(point)
        return bool(act)

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Save, at a point `snapshot:<execution>`."""
        point, act = await self.come_to(f"snapshot:{execution_id}", self._save_menu)
        self.touch_all(execution_id)
        before = self._position(execution_id)
        self.keep(execution_id, snapshot)
        self.saved.append((execution_id, snapshot))
        after = self._position(execution_id)
        lower = "" if after >= before else f"the stored snapshot was at {before}, and is at {after} now"
        self.sim.note("snapshot", execution_id, snapshot.sequence, lower)
        await self.leave(point, act)

    def keep(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Put a snapshot in the place of an older one."""
        stored = self.snapshots.get(execution_id)
        if stored is None or stored.sequence <= snapshot.sequence:
            if self._load_menu is not None:
                self._superseded[execution_id] = stored
            self.snapshots[execution_id] = snapshot

    def _position(self, execution_id: str) -> int:
        """Return the position of the stored snapshot, -1 if there is none."""
        stored = self.snapshots.get(execution_id)
        return -1 if stored is None else stored.sequence

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Return the newest snapshot, at a point `load:<execution>` if a fault of loading is declared."""
        self.touch_all(execution_id)
        if self._load_menu is None:
            return self.snapshots.get(execution_id)
        point, act = self.sim.enter(f"load:{execution_id}", self._load_menu)
        if act or self.sim.crowded():
            await self.sim.approach(point, act)
        stored = self.snapshots.get(execution_id)
        self.sim.happened(point)
        if not act or stored is None:
            return stored
        if act == "reordered":
            return StoredSnapshot(sequence=stored.sequence, text=reordered(stored.text))
        self.trouble()
        if act == "lost":
            return None
        if act == "late":
            return self._superseded.get(execution_id)
        return StoredSnapshot(sequence=stored.sequence, text=garbled(stored.text))

    # ---- mailbox -----------------------------------------------------------------------------------------------------

    async def put(self, execution_id: str, delivery: Delivery) -> bool:
        """Accept, at a point `put:<execution>:<delivery>`."""
        point, act = await self.come_to(f"put:{execution_id}:{delivery.delivery_id}")
        self.touch_all(execution_id)
        box = self.mail.setdefault(execution_id, {})
        fresh = delivery.delivery_id not in box
        if fresh:
            box[delivery.delivery_id] = delivery
            self._tell()
        self.sim.note("accepted", execution_id, delivery.delivery_id, delivery.on, delivery.correlation_key, fresh)
        await self.leave(point, act)
        return fresh

    def accept(self, execution_id: str, delivery: Delivery) -> None:
        """Accept a delivery as by another process, which tells nobody here."""
        fresh = delivery.delivery_id not in self.mail.setdefault(execution_id, {})
        self.mail[execution_id].setdefault(delivery.delivery_id, delivery)
        self.sim.note("accepted", execution_id, delivery.delivery_id, delivery.on, delivery.correlation_key, fresh)
        self.trouble()

    async def pending(self, execution_id: str) -> Sequence[Delivery]:
        """Return what is pending."""
        self.touch_all(execution_id)
        return list(self.mail.get(execution_id, {}).values())

    async def remove(self, execution_id: str, delivery_ids: Sequence[str]) -> None:
        """Forget, at a point `remove:<execution>:<delivery>`."""
        point, act = await self.come_to(f"remove:{execution_id}:{delivery_ids[0] if delivery_ids else ''}")
        self.touch_all(execution_id)
        box = self.mail.get(execution_id, {})
        for delivery_id in delivery_ids:
            box.pop(delivery_id, None)
        await self.leave(point, act)

    async def executions(self) -> Sequence[str]:
        """Return who has something pending."""
        self.sim.touch(EVERYTHING, WRITE)
        return sorted(execution_id for execution_id, box in self.mail.items() if box)

    # ---- several workers ---------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the true time, which no worker need have."""
        return EPOCH_MS + self.sim.scheduler.now_ns // 1_000_000

    def _tell(self) -> None:
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    # ---- points ------------------------------------------------------------------------------------------------------

    async def come_to(self, site: str, choices: Menu | None = None) -> tuple[str, str]:
        """Come to the point of a write: return its label and what is left to be done there, with `leave`."""
        point, act = self.sim.enter(site, choices or self._write_menu)
        if act or self.sim.crowded():
            act = await self.sim.approach(point, act)
            if act == "crash-before":
                await self.sim.crash(point)
            elif act == "refused":
                self._refuse(point)
        return point, act

    def _refuse(self, point: str) -> None:
        self.sim.happened(point)
        self.trouble()
        raise StoreUnavailable(f"{point}: refused, nothing was written")

    async def leave(self, point: str, act: str) -> None:
        """The write is done."""
        self.sim.happened(point)
        if act == "crash-after":
            await self.sim.crash(point)


def count_of(execution_id: str, segment: int, identity: str) -> str:
    """Return the resource that emits of one identity count up, for footprints."""
    return f"count:{execution_id}:{segment}/{identity}"


def origin_of(envelope: Envelope) -> tuple[str, int] | None:
    """Return execution and position of what a fork has copied, None for an event of its own."""
    origin = envelope.metadata.get("forkedFrom")
    if not isinstance(origin, dict):
        return None
    return cast(str, origin["executionId"]), cast(int, origin["sequence"])


def _inherited(store: SimStore, envelope: Envelope) -> EmitCall | None:
    """Return the call that made an event a fork has copied, as the fork has it: no run of its own has made that call.

    Its facts say so, and whether a re-run may be served the event.  A legacy event stays one.
    """
    origin = origin_of(envelope)
    made = None if origin is None else store.emits.get(origin)
    if made is None or made.facts == LEGACY:
        return made
    return EmitCall(made.segment, made.identity, "", INHERITED + made.facts.replace(LIVE, ""), made.site)


def _if_any(choices: Menu) -> Menu | None:
    return choices if len(choices.options) > 1 else None
