"""Scenarios over the kernel: flows on a worker that crashes, driven by a client that does not."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, cast

import attrs
import trio

from dst import trace
from dst.durable import faults
from dst.durable.behaviour import phase, visible
from dst.durable.observed import observed
from dst.durable.services import Service
from dst.durable.stores import ABOUT, SimStore
from dst.faults import Fault, Options, menu
from dst.node import Incarnation, Node
from dst.prng import SplitMix64, derive
from dst.scenario import Scenario
from dst.simulation import Simulation
from dst.trace import Record
from kernel.definitions import Effect, Flow
from kernel.errors import CorruptLog
from kernel.events import EXECUTION_RESUMED, EXECUTION_SUSPENDED, KERNEL_TYPES, Envelope
from kernel.fold import FoldPass
from kernel.journal import STATUS_AFTER
from kernel.jsonform import DEPTH_MAX_STORED, Json, encode
from kernel.lifecycle import decode_snapshot
from kernel.parts import Parts
from kernel.ports import StoredSnapshot
from kernel.projections import SURFACES, Projection
from kernel.runtime import Runtime
from kernel.saga import saga

EPOCH_MS = 1_700_000_000_000
"""The wall clock at the start of each simulation."""

_LATE_SECONDS = 7.0
_SWAP_SECONDS = 20.0  # a message kept back for the next one does not wait for ever


class SimClock:
    """The kernel's clock over virtual time."""

    def __init__(self, sim: Simulation) -> None:
        self._scheduler = sim.scheduler

    def now_ms(self) -> int:
        """Return virtual milliseconds since the epoch."""
        return EPOCH_MS + self._scheduler.now_ns // 1_000_000

    async def sleep_until(self, due_ms: int) -> None:
        """Sleep in virtual time."""
        await trio.sleep_until((due_ms - EPOCH_MS) / 1000)


class SimChance:
    """The kernel's chance: a stream of its own for each incarnation."""

    def __init__(self, incarnation: int) -> None:
        self._draws = SplitMix64(derive(incarnation, 3))

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return (self._draws.next64() >> 11) / (1 << 53)

    def uuid(self) -> str:
        """Return a UUID-shaped text."""
        digits = f"{self._draws.next64():016x}{self._draws.next64():016x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


class DurableScenario(Scenario):
    """A story about executions.  Subclasses give `flows`, `world` and `drive`."""

    faults: ClassVar[Sequence[Fault]] = faults.ALL
    parts: ClassVar[Parts] = Parts()
    store: ClassVar[type[SimStore]] = SimStore
    saga: ClassVar[type[saga]] = saga  # what flows roll back with: a mutant puts another in its place
    projections: ClassVar[Sequence[Projection]] = (SURFACES,)
    snapshot_every: ClassVar[int | None] = None

    def flows(self) -> Sequence[Flow]:
        """Return the flows the worker knows."""
        raise NotImplementedError

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """Make the services, and return the effects that reach them, by tool id."""
        return {}

    # ---- what the harness calls --------------------------------------------------------------------------------------

    def build(self, sim: Simulation) -> None:
        """Start the worker."""
        self.sim = sim
        self.db = self.store(sim)
        self.services: list[Service] = []
        self._visible: dict[str, tuple[tuple[int, int, int], str]] = {}
        self._effects = self.world(sim)
        self._parts = attrs.evolve(self.parts, context=observed(self.parts.context))
        self._deliver_menu = menu(sim.faults, _DELIVER)
        self._swapped: list[trio.Event] = []
        self.db_observers = (self._progressed,)
        self._incarnation: Incarnation | None = None
        self.worker: Node = sim.add_node("worker", self._work)

    async def _work(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        incarnation.recovering = incarnation.number > 1
        assert incarnation.nursery is not None
        runtime = Runtime(
            stores=self.db.stores,
            flows=self.flows(),
            workers=incarnation.nursery,
            effects=self._effects,
            clock=SimClock(self.sim),
            chance=SimChance(incarnation.number),
            incarnation=incarnation.name,
            parts=self._parts,
            projections=self.projections,
            observers=self.db_observers,
            snapshot_every=self.snapshot_every,
        )
        await runtime.recover_all()
        incarnation.serve(runtime)

    def _progressed(self, _event: Envelope) -> None:
        if self._incarnation is not None:
            self._incarnation.recovering = False

    def service(self, name: str) -> Service:
        """Return a new service of this world."""
        service = Service(self.sim, name)
        self.services.append(service)
        return service

    # ---- what a drive calls ------------------------------------------------------------------------------------------

    async def start(self, flow: Flow | str, input: Json = None, *, execution_id: str) -> None:
        """Start an execution, as a client that asks again until it is answered."""

        async def call(incarnation: Incarnation) -> None:
            await cast(Runtime, incarnation.service).start(flow, input, execution_id=execution_id)

        await self.sim.request(self.worker, call, f"start {execution_id}")

    async def deliver(
        self, execution_id: str, on: str, payload: Json = None, *, delivery_id: str, correlation_key: str | None = None
    ) -> None:
        """Send a delivery, at a point `deliver:<on>:<execution>:<id>`; the network may be unkind."""
        copies = 0

        async def send() -> None:
            async def call(incarnation: Incarnation) -> None:
                runtime = cast(Runtime, incarnation.service)
                await runtime.deliver(
                    execution_id, on, payload, correlation_key=correlation_key, delivery_id=delivery_id
                )

            nonlocal copies
            copies += 1
            await self.sim.request(self.worker, call, f"send {execution_id} {delivery_id} copy {copies}")

        point, act = self.sim.enter(f"deliver:{on}:{execution_id}:{delivery_id}", self._deliver_menu)
        await self._send(act, send, f"{execution_id} {delivery_id}")
        self.sim.happened(point)

    async def _send(self, act: str, send: Callable[[], Awaitable[None]], name: str) -> None:
        swapped, self._swapped = self._swapped, []
        if act == "swapped":
            event = trio.Event()
            self._swapped.append(event)
            self.sim.spawn(lambda: _after(event, send), f"swapped delivery {name}")
        elif act == "late":
            self.sim.spawn(send, f"late delivery {name}", after_seconds=_LATE_SECONDS)
        else:
            if act == "twice":
                self.sim.spawn(send, f"second delivery {name}")
            elif act == "again-later":
                self.sim.spawn(send, f"second delivery {name}", after_seconds=_LATE_SECONDS)
            await send()
        for event in swapped:
            event.set()

    async def compact(self, execution_id: str) -> None:
        """Have the worker compact an execution's log."""

        async def call(incarnation: Incarnation) -> None:
            await cast(Runtime, incarnation.service).compact(execution_id)

        await self.sim.request(self.worker, call, f"compact {execution_id}")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self, sim: Simulation) -> None:
        """Note how each execution stands, and whether every snapshot says what the log says."""
        for execution_id, sequence, fault in check_folds(self.db, FoldPass):
            sim.note("folded", execution_id, sequence, fault)
        for execution_id, entry in sorted(self.db.rows.items()):
            end = end_of(self.db.history[execution_id])
            deliverable = self._deliverable(execution_id, end)
            sim.note("final", execution_id, entry.status, end.status, end.gate, deliverable)

    def _deliverable(self, execution_id: str, end: End) -> str:
        """Return the id of an accepted delivery that would pass the open gate, "" if there is none."""
        if end.wanted is None:
            return ""
        for delivery in self.db.mail.get(execution_id, {}).values():
            if (delivery.on, delivery.correlation_key) == end.wanted and delivery.delivery_id not in end.passed:
                return delivery.delivery_id
        return "timer" if end.due_ms is not None and end.due_ms <= SimClock(self.sim).now_ms() else ""

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """Return the digest of all that can be seen of the durable world, each reader through its own view.

        The kernel sees a log through its fold.  Out are positions, times and hashes; attempt numbers count up to `cap`.
        """
        seen = [
            [(e, self._seen(e, SimClock(sim).now_ms(), cap), self._phase(e)) for e in sorted(self.db.rows)],
            [(e, list(box)) for e, box in sorted(self.db.mail.items()) if box],
            [(s.name, s.visible()) for s in self.services],
            sorted((name, -1 if due is None else due - sim.scheduler.now_ns) for name, due in sim.errands.items()),
            sim.answered,
        ]
        return trace.digest([("behaviour", json.dumps(seen))])

    def _seen(self, execution_id: str, now_ms: int, cap: int) -> str:
        """Return the visible part of an execution's fold; only a gate that is due once makes it depend on the time."""
        try:
            state = self.db.folded(execution_id)
        except CorruptLog:  # no reader gets further, and the run itself is judged for it
            return f"corrupt after {len(self.db.history[execution_id])} events"
        timed = state["gate"] is not None and state["gate"]["due"] is not None
        key = (state["lastSequence"], now_ms if timed else 0, cap)
        known = self._visible.get(execution_id)
        if known is None or known[0] != key:  # most moments come in pairs, after one write and before the next
            known = self._visible[execution_id] = (key, visible(state, now_ms, cap))
        return known[1]

    def _phase(self, execution_id: str) -> int:
        snapshot, row = self.db.snapshots.get(execution_id), self.db.rows[execution_id]
        position = -1 if snapshot is None else snapshot.sequence
        return phase(row.status, row.head - position, self.snapshot_every)

    @classmethod
    def landmark(cls, record: Record) -> Hashable | None:
        """Return an event's type and what it is about, or what went wrong and where."""
        kind = record[0]
        if kind == "clock":
            return None
        if kind in ("crash", "fault"):
            return kind, str(record[-1] if kind == "crash" else record[1]).rpartition("#")[0]
        payload = record[2].payload if kind in KERNEL_TYPES else None
        about = next((payload[f] for f in ABOUT if f in payload), None) if isinstance(payload, dict) else None
        return kind, *record[1:2], str(about)

    def outcome(self, sim: Simulation) -> Hashable | None:
        """Return status and output of each execution, and what the services have done for it."""
        ends = []
        for execution_id, entry in sorted(self.db.rows.items()):
            last = self.db.history[execution_id][-1].payload
            output = encode(last.get("output")) if entry.status == "completed" and isinstance(last, dict) else ""
            ends.append((execution_id, entry.status, output))
        performed = sorted({record[1:4] for record in sim.records if record[0] == "performed"})
        return (tuple(ends), tuple(performed))


_DELIVER: Options = (
    ("twice", faults.DELIVERY_DUPLICATED),
    ("again-later", faults.DELIVERY_DUPLICATED),
    ("swapped", faults.DELIVERY_REORDERED),
    ("late", faults.DELIVERY_DELAYED),
)


async def _after(event: trio.Event, send: Callable[[], Awaitable[None]]) -> None:
    with trio.move_on_after(_SWAP_SECONDS):
        await event.wait()
    await send()


@attrs.frozen(kw_only=True)
class End:
    """How a log ends, read from its events and not from anybody's fold of them."""

    status: str
    wanted: tuple[str, str | None] | None  # what the open gate waits on
    due_ms: int | None
    passed: frozenset[str]  # ids of the deliveries that have passed a gate

    @property
    def gate(self) -> str:
        """The open gate, "" if there is none."""
        return "" if self.wanted is None else f"{self.wanted[0]}/{self.wanted[1] or ''}"


def end_of(history: Sequence[Envelope]) -> End:
    """Return how a log ends."""
    status, wanted, due_ms, passed = "absent", None, None, set()
    for envelope in history:
        after = STATUS_AFTER.get(envelope.type)
        if after is None:
            continue
        status, payload = after, cast("dict[str, Any]", envelope.payload)
        if envelope.type == EXECUTION_SUSPENDED:
            wanted, due_ms = (payload["on"], payload["correlationKey"]), payload["due"]
        else:
            wanted, due_ms = None, None
        if envelope.type == EXECUTION_RESUMED:
            passed.add(payload["deliveryId"])
    return End(status=status, wanted=wanted, due_ms=due_ms, passed=frozenset(passed))


def _chained(history: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return the part of a history that is contiguous: a broken store may hold more, which `log-sound` tells."""
    return [envelope for position, envelope in enumerate(history) if envelope.sequence == position]


def _state_of(stored: StoredSnapshot) -> str:
    return encode(decode_snapshot(stored).state, depth_max=DEPTH_MAX_STORED)


def check_folds(db: SimStore, fold_type: type[FoldPass]) -> list[tuple[str, int, str]]:
    """Fold every log once, up to each snapshot that was saved: (execution, position, "" or how they differ)."""
    checks: list[tuple[str, int, str]] = []
    for execution_id in sorted({execution_id for execution_id, _ in db.saved}):
        saved = sorted((s for e, s in db.saved if e == execution_id), key=lambda s: s.sequence)
        log = iter(_chained(db.history[execution_id]))
        fold = fold_type()
        for stored in saved:
            while fold.state["lastSequence"] < stored.sequence and (envelope := next(log, None)) is not None:
                fold.apply(envelope)
            folded = encode(fold.state, depth_max=DEPTH_MAX_STORED)
            # The record is canonical text that ends with its state; decoding it would cost more than all the rest here.
            same = stored.text.endswith(f'"state":{folded}}}') or _state_of(stored) == folded
            checks.append((execution_id, stored.sequence, "" if same else "the snapshot is not the fold of the log"))
    return checks
