"""Scenarios over the kernel: flows on a worker that crashes, driven by a client that does not."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import ClassVar, cast

import attrs
import trio

from dst import trace
from dst.durable import faults
from dst.durable.behaviour import phase, visible
from dst.durable.clock import SimClock
from dst.durable.contents import SimContents
from dst.durable.ends import End, check_folds, check_forks, end_of
from dst.durable.leases import SimLeases
from dst.durable.notifications import SimNotifications
from dst.durable.observed import observed
from dst.durable.operations import Operations
from dst.durable.replays import Replay, replays_of
from dst.durable.services import Service, execution_of
from dst.durable.stores import ABOUT, CALLED, SimStore, origin_of
from dst.durable.workers import survivors, sweep
from dst.faults import Fault, Options, menu
from dst.node import Incarnation, Node
from dst.prng import SplitMix64, derive
from dst.scenario import Scenario
from dst.scheduler import NODE
from dst.simulation import Simulation
from dst.trace import Record
from kernel.content import with_content
from kernel.definitions import Effect, Flow
from kernel.errors import CorruptLog
from kernel.events import CANCEL_REQUESTED, EVENT_SCHEMA_VERSION, KERNEL_ABI_VERSION, KERNEL_TYPES, Envelope
from kernel.fold import FoldPass
from kernel.journal import Observer
from kernel.jsonform import Json, encode
from kernel.live_query import LiveQuery
from kernel.orchestration import SEPARATOR
from kernel.parts import Parts
from kernel.ports import Delivery
from kernel.projections import SURFACES, Projection
from kernel.runtime import Runtime
from kernel.saga import saga

_LATE_SECONDS = 7.0
_SWAP_SECONDS = 20.0  # a message kept back for the next one does not wait for ever
_SWEEP_SECONDS = 15.0
"""From trouble to when a worker looks for what it stopped driving, or was not told of.

A real program looks every so often; what it does while there is nothing to find is left out.
"""


class _OutsideSimulations(logging.Filter):
    """What the kernel logs in a simulated worker is no news of this process: thousands of runs would tell of trouble
    that was made on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Is this no simulated worker?"""
        return NODE.get() is None


logging.getLogger("kernel").addFilter(_OutsideSimulations())


class SimChance:
    """The kernel's chance: a stream of its own for each incarnation of each worker."""

    def __init__(self, incarnation: int, worker: int = 0) -> None:
        self._draws = SplitMix64(derive(incarnation, 3 + worker))

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return (self._draws.next64() >> 11) / (1 << 53)

    def uuid(self) -> str:
        """Return a UUID-shaped text."""
        digits = f"{self._draws.next64():016x}{self._draws.next64():016x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


class DurableScenario(Operations, Scenario):
    """A story about executions.  Subclasses give `flows`, `world` and `drive`.

    Several `workers` share the store and need `lease_seconds`; each looks for what others have left in a third of that.
    """

    faults: ClassVar[Sequence[Fault]] = faults.ALL
    parts: ClassVar[Parts] = Parts()
    store: ClassVar[type[SimStore]] = SimStore
    runtime: ClassVar[type[Runtime]] = Runtime
    saga: ClassVar[type[saga]] = saga  # what flows roll back with: a mutant puts another in its place
    projections: ClassVar[Sequence[Projection]] = (SURFACES,)
    snapshot_every: ClassVar[int | None] = None
    inline_bytes_max: ClassVar[int | None] = (
        None  # above this, payloads are kept apart from the log; None: all are in it
    )
    versions: ClassVar[int] = 1  # of the flows; `deployed` is the one that workers have, from 1 on
    workers: ClassVar[Sequence[str]] = ("worker",)
    lease_seconds: ClassVar[float | None] = None

    def flows(self) -> Sequence[Flow]:
        """Return the flows the worker knows, of version `deployed`."""
        raise NotImplementedError

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """Make the services, and return the effects that reach them, by tool id."""
        return {}

    # ---- what the harness calls --------------------------------------------------------------------------------------

    def build(self, sim: Simulation) -> None:
        """Start the worker."""
        self.sim = sim
        self.db = self.store(sim)
        self.db.counts_appends = self.snapshot_every is not None
        self.contents = SimContents(self.db)
        self.stores = self.db.stores
        if self.inline_bytes_max is not None:
            self.stores = with_content(self.stores, self.contents, inline_bytes_max=self.inline_bytes_max)
        self.services: list[Service] = []
        self._visible: dict[str, tuple[tuple[int, int, int], str]] = {}
        self._effects = self.world(sim)
        self._parts = attrs.evolve(self.parts, context=observed(self.parts.context))
        self._deliver_menu = menu(sim.faults, _DELIVER)
        self._swapped: list[trio.Event] = []
        self.db_observers: tuple[Observer, ...] = ()  # of every worker, beside the harness's own
        self.deployed = 1
        self._forks = 0
        self._replays: dict[str, list[Replay]] = {}
        self._offer()
        self.db.on_trouble = self._sweep_later
        self._sweeping: set[Incarnation] = set()  # those that have a sweep to come
        self.leases = None if self.lease_seconds is None else SimLeases(self.db)
        self.clocks = {name: SimClock(sim, name) for name in self.workers}
        self.nodes: list[Node] = [sim.add_node(name, self._work) for name in self.workers]
        self.worker = self.nodes[0]

    async def _work(self, incarnation: Incarnation) -> None:
        incarnation.recovering = incarnation.number > 1
        if incarnation.recovering:
            self._maybe_deploy()

        def progressed(_event: Envelope) -> None:
            incarnation.recovering = False

        name = incarnation.node.name
        self.clocks[name].sleeping = {}
        assert incarnation.nursery is not None
        runtime = self.runtime(
            stores=attrs.evolve(self.stores, leases=self.leases),
            flows=self.flows(),
            workers=incarnation.nursery,
            effects=self._effects,
            clock=self.clocks[name],
            chance=SimChance(incarnation.number, self.workers.index(name)),
            incarnation=incarnation.name,
            parts=self._parts,
            projections=self.projections,
            observers=(progressed, *self.db_observers),
            snapshot_every=self.snapshot_every,
            lease_seconds=self.lease_seconds,
        )
        await self.look_now(runtime)
        incarnation.serve(runtime)
        if self.lease_seconds is not None:
            await sweep(self.db, runtime, self.clocks[name], self.lease_seconds / 3)

    def _sweep_later(self) -> None:
        """Have the worker that met trouble look for orphans in a while; one that is down does so when it comes up."""
        name = self.sim.current_node()
        node = next((node for node in self.nodes if node.current and node.current.name == name), self.worker)
        incarnation = node.current
        if incarnation is None or incarnation.nursery is None or incarnation in self._sweeping:
            return  # it has not begun, and looks when it does
        self._sweeping.add(incarnation)

        async def look() -> None:
            await trio.sleep(_SWEEP_SECONDS)
            self._sweeping.discard(incarnation)
            await self.look_now(cast(Runtime, incarnation.service))

        incarnation.spawn(look)

    async def look_again(self, runtime: Runtime) -> None:
        """Have a worker look for what it stopped driving, as a program does every so often."""
        await runtime.recover_all()

    def heal(self, sim: Simulation) -> None:
        """Have the worker take up what it stopped driving, if there was reason to stop."""
        if self.db.troubles:
            sim.spawn(self.recover, "heal")

    def look_back(self, sim: Simulation) -> None:
        """Replay the logs, if an invariant asks for that."""
        if any("replayed" in invariant.kinds for invariant in self.invariants):
            sim.spawn(self._replay_all, "replays")

    async def _replay_all(self) -> None:
        flows = {flow.id: flow for flow in self.flows()}
        for execution_id, row in sorted(self.db.rows.items()):
            self._replays[execution_id] = await replays_of(self.db, flows[row.flow_id], self.parts, execution_id)

    def live_query(self) -> LiveQuery:
        """Return the read side of this world, for subscribers outside of the worker.

        Made when a world is; its wake-ups are as unkind as the scenario's faults.
        """
        notifications = SimNotifications(self.sim)
        self.db.on_change = notifications.changed
        return LiveQuery(self.stores, notifications)

    def service(self, name: str) -> Service:
        """Return a new service of this world."""
        service = Service(self.sim, name)
        self.services.append(service)
        return service

    # ---- what a drive calls ------------------------------------------------------------------------------------------

    async def start(
        self, flow: Flow | str, input: Json = None, *, execution_id: str, worker: str | None = None
    ) -> None:
        """Start an execution, as a client that asks again until it is answered."""

        async def call(runtime: Runtime) -> None:
            await runtime.start(flow, input, execution_id=execution_id)

        await self.ask(call, f"start {execution_id}", worker)
        self.sim.note("told", execution_id, encode(input))

    async def deliver(
        self,
        execution_id: str,
        on: str,
        payload: Json = None,
        *,
        delivery_id: str,
        correlation_key: str | None = None,
        worker: str | None = None,
    ) -> None:
        """Send a delivery, at a point `deliver:<on>:<execution>:<id>`; the network may be unkind."""
        copies = 0

        async def send() -> None:
            async def call(runtime: Runtime) -> None:
                await runtime.deliver(
                    execution_id, on, payload, correlation_key=correlation_key, delivery_id=delivery_id
                )

            nonlocal copies
            copies += 1
            await self.ask(call, f"send {execution_id} {delivery_id} copy {copies}", worker)
            self.sim.note("acknowledged", execution_id, delivery_id, on, correlation_key)

        point, act = self.sim.enter(f"deliver:{on}:{execution_id}:{delivery_id}", self._deliver_menu)
        if act == "unannounced" and execution_id in self.db.rows:
            delivery = Delivery(
                delivery_id=delivery_id, on=on, correlation_key=correlation_key, payload_text=encode(payload)
            )
            self.db.accept(execution_id, delivery)
            self.sim.happened(point)
            return
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
        elif act == "lost":
            await self._send_again_later(send, name)
        else:
            if act == "twice":
                self.sim.spawn(send, f"second delivery {name}")
            elif act == "again-later":
                self.sim.spawn(send, f"second delivery {name}", after_seconds=_LATE_SECONDS)
            await send()
        for event in swapped:
            event.set()

    async def _send_again_later(self, send: Callable[[], Awaitable[None]], name: str) -> None:
        """Nothing has arrived: the client has waited for an answer, and asks again."""
        sent = trio.Event()

        async def again() -> None:
            await send()
            sent.set()

        self.sim.spawn(again, f"delivery again {name}", after_seconds=_LATE_SECONDS)
        await sent.wait()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self, sim: Simulation) -> None:
        """Note how each execution stands, and whether every snapshot says what the log says."""
        checks = check_folds(self.db, FoldPass, self.projections) + check_forks(self.db, FoldPass)
        for execution_id, sequence, fault in checks:
            sim.note("folded", execution_id, sequence, fault)
        for execution_id, entry in sorted(self.db.rows.items()):
            end = end_of(self.db.history[execution_id])
            deliverable = self._deliverable(execution_id, end)
            sim.note("final", execution_id, entry.status, end.status, end.gate, deliverable)
        for execution_id, replays in self._replays.items():  # last: a log that is wrong has been told of before
            for done in replays:
                sim.note("replayed", execution_id, "all" if done.whole else "prefix", done.upto, done.fault)

    def _deliverable(self, execution_id: str, end: End) -> str:
        """Return the id of a delivery that would pass the open gate, "" if there is none.

        One that somebody was told is accepted counts, wherever it is now; a request to cancel passes any gate.
        """
        if not end.wanted:
            return ""
        for record in self.sim.records:
            if record[0] in ("accepted", "acknowledged") and record[1] == execution_id:
                delivery_id, on, correlation_key = record[2:5]
                if on == CANCEL_REQUESTED or ((on, correlation_key) in end.wanted and delivery_id not in end.passed):
                    return str(delivery_id)
        return "timer" if end.due_ms is not None and end.due_ms <= self.db.now_ms() else ""

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """Return the digest of all that can be seen of the durable world, each reader through its own view.

        The kernel sees a log through its fold.  Out are positions, times and hashes; attempt numbers count up to `cap`,
        and so do emits that serve no re-run: the harness notes at an emit whether the log has more of it.
        """
        seen = [
            [(e, self._seen(e, self.db.now_ms(), cap), self._phase(e)) for e in sorted(self.db.rows)],
            sorted((emit, min(count, cap)) for emit, count in self.db.unserved.items()),
            [(e, list(box)) for e, box in sorted(self.db.mail.items()) if box],
            [(s.name, s.visible()) for s in self.services],
            sorted((name, -1 if due is None else due - sim.scheduler.now_ns) for name, due in sim.errands.items()),
            sim.answered,
            self.deployed,
        ]
        if self.leases is not None:
            seen += [self.leases.visible(self.nodes), survivors(sim, self.nodes, self.clocks)]
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
    def built_on(cls) -> Mapping[str, str]:
        """The kernel, and the schema of its events."""
        return {"kernel": KERNEL_ABI_VERSION, "schema": EVENT_SCHEMA_VERSION}

    @classmethod
    def has_orders(cls, site: str) -> bool:
        """Everywhere but at the appends of flows and effects, for which an execution has one turn.

        What is held there keeps all others from theirs.  They are held before: at their calls.
        """
        return not site.startswith("emit:") and not any(f":{kind}" in site for kind in CALLED)

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
        """Return status and output of each execution, and what the services have done for it.

        Forks are left out, and what they have for children.

        None if an execution gave way to a request to cancel, or the flows were exchanged, as a fault: where that hits a
        run with crashes no calm run need be hit.
        """
        if {faults.CANCEL.name, faults.DEPLOY.name} & sim.fired.keys() and self._was_changed():
            return None
        ends, forks = [], set()
        for execution_id, entry in sorted(self.db.rows.items()):
            history = self.db.history[execution_id]
            if origin_of(history[0]) is not None or execution_id.partition(SEPARATOR)[0] in forks:
                forks.add(execution_id)
                continue
            last = history[-1].payload
            output = encode(last.get("output")) if entry.status == "completed" and isinstance(last, dict) else ""
            ends.append((execution_id, entry.status, output))
        performed = {record[1:4] for record in sim.records if record[0] == "performed"}
        if forks:
            performed = {done for done in performed if execution_of(done[2]) not in forks}
        return (tuple(ends), tuple(sorted(performed)))

    def _was_changed(self) -> bool:
        """Did an execution give way to a request to cancel, or were the flows exchanged?"""
        cancelled = any(e.type == CANCEL_REQUESTED for history in self.db.history.values() for e in history)
        return cancelled or faults.DEPLOY.name in self.sim.fired


_DELIVER: Options = (
    ("twice", faults.DELIVERY_DUPLICATED),
    ("again-later", faults.DELIVERY_DUPLICATED),
    ("swapped", faults.DELIVERY_REORDERED),
    ("late", faults.DELIVERY_DELAYED),
    ("lost", faults.DELIVERY_LOST),
    ("unannounced", faults.WAKEUP_DROPPED),
)


async def _after(event: trio.Event, send: Callable[[], Awaitable[None]]) -> None:
    with trio.move_on_after(_SWAP_SECONDS):
        await event.wait()
    await send()
