"""The supervisor: starts children, and delivers their ends to whoever waits (K-CHILD-2, ADR 0040).

It correlates from the events it observes, without reading a store: a decision tells a child's spec, the parent's
suspension has it started, its terminal event is delivered.  What it knows is a bounded memory of this process, which
may lack things: after a restart, for a fork, of what another worker drives.  So what it does not know proves nothing:
it is repaired from the stores, one execution at a time, and a sweep repairs all that is suspended.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Protocol, cast

import attrs
import trio

from kernel import events
from kernel.adapters.system import SystemClock
from kernel.errors import ExecutionMismatch, NoJsonForm, UnknownExecution, describe_error
from kernel.events import Envelope
from kernel.jsonform import Json, encode
from kernel.orchestration import (
    CHILD_DONE,
    ChildSpec,
    awaited_children,
    failure_payload,
    output_payload,
    outstanding,
    parent_and_key,
    read_spec,
)
from kernel.ports import CatalogueEntry, Clock, Status
from kernel.state import TERMINAL, FlowState

logger = logging.getLogger("kernel")

SWEEP_SECONDS = 30.0
"""How long a parent may stay parked after its child's end if every other way of telling it has failed."""


class Executions(Protocol):
    """What a supervisor needs of a runtime."""

    async def start(self, flow: str, input: Json = None, *, execution_id: str) -> object:
        """Start an execution, once."""

    async def deliver(
        self,
        execution_id: str,
        on: str,
        payload: Json = None,
        *,
        correlation_key: str | None = None,
        delivery_id: str,
    ) -> None:
        """Accept a delivery."""

    async def state(self, execution_id: str) -> FlowState:
        """Return the folded state.  Raises `UnknownExecution`."""

    async def executions(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """Return the catalogue's entries with one of these statuses."""


# ---- what is to be done ----------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Start:
    """Start a child that `waiter` is parked for."""

    spec: ChildSpec
    waiter: str

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two actions the same one."""
        return ("start", self.spec.child_id, self.waiter)


@attrs.frozen(kw_only=True)
class Tell:
    """Deliver a child's end to `waiter`."""

    child_id: str
    waiter: str
    payload: Json

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two actions the same one."""
        return ("tell", self.child_id, self.waiter)


@attrs.frozen(kw_only=True)
class Repair:
    """Look at an execution's stored state, and do what is missing."""

    execution_id: str

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two actions the same one."""
        return ("repair", self.execution_id)


Action = Start | Tell | Repair


# ---- observing -------------------------------------------------------------------------------------------------------


class Supervisor:
    """Observes every append of a runtime: `open_runtime(observers=[supervisor.observe])`.

    Mutable, and bounded: it knows of at most `known_max` parents and children and queues at most `queued_max` actions.
    What does not fit is not lost: it is repaired when it matters, or swept.
    """

    def __init__(self, *, known_max: int = 65_536, queued_max: int = 65_536) -> None:
        self._known_max = known_max
        self._queued_max = queued_max
        self._specs: dict[str, dict[str, ChildSpec]] = {}  # by parent, until it parks; then by child id
        self._waiters: dict[str, dict[str, None]] = {}  # child id -> executions that wait for its end
        self._awaited: dict[str, dict[str, None]] = {}  # the same, by waiter
        self._born: dict[str, bool] = {}  # children being started: has their first event been seen?
        self._queue: dict[tuple[str, ...], Action] = {}
        self._queued = trio.Event()  # set while the queue may hold something
        self.sweep_due = trio.Event()

    def observe(self, event: Envelope) -> None:
        """Note one appended event.  Never waits and does nothing else: the journal is in the middle of a commit."""
        if event.type == events.DECISION_RECORDED:
            self._learn(event)
        elif event.type == events.EXECUTION_SUSPENDED:
            self._parked(event)
        elif event.type == events.EXECUTION_CONTINUED:
            self._specs.pop(event.execution_id, None)  # what it has decided on before is forgotten
        elif event.type == events.EXECUTION_STARTED:
            if event.execution_id in self._born:
                self._born[event.execution_id] = True
        elif event.type in events.TERMINAL_TYPES:
            self._ended(event)

    def at_work_on(self, runtime: Executions) -> Supervision:
        """Return what does for this supervisor what the events ask for."""
        return Supervision(supervisor=self, runtime=runtime)

    def _learn(self, event: Envelope) -> None:
        payload = cast("dict[str, Json]", event.payload)
        spec = read_spec(str(payload.get("decisionId")), payload.get("choice"))
        if spec is not None:
            self._specs.setdefault(event.execution_id, {})[spec.child_id] = spec
            if len(self._specs) > self._known_max:
                del self._specs[next(iter(self._specs))]

    def _parked(self, event: Envelope) -> None:
        """Have all children started that the parent has decided on: those of a fan-out run at the same time."""
        wanted = awaited_children(cast("dict[str, Json]", event.payload))
        if not wanted:
            return
        parent_id = event.execution_id
        for spec in self._specs.pop(parent_id, {}).values():
            self.expect(spec.child_id, parent_id)
            self.enqueue(Start(spec=spec, waiter=parent_id))
        if any(child_id not in self._awaited.get(parent_id, ()) for child_id in wanted):
            self.enqueue(Repair(execution_id=parent_id))

    def _ended(self, event: Envelope) -> None:
        """Have the end delivered to all who are known to wait, and to the parent in any case."""
        child_id = event.execution_id
        self._specs.pop(child_id, None)
        for other in [*self._awaited.get(child_id, ())]:
            self.forget(other, child_id)
        waiters = [*self._waiters.get(child_id, ())]
        for waiter in waiters:
            self.forget(child_id, waiter)
            self.enqueue(Tell(child_id=child_id, waiter=waiter, payload=_payload_of_event(event)))
        made_of = parent_and_key(child_id)
        if made_of is not None and made_of[0] not in waiters:
            self.enqueue(Repair(execution_id=made_of[0]))

    # ---- memory ------------------------------------------------------------------------------------------------------

    def expect(self, child_id: str, waiter: str) -> None:
        """Note that `waiter` is to be told of the child's end."""
        self._waiters.setdefault(child_id, {})[waiter] = None
        self._awaited.setdefault(waiter, {})[child_id] = None
        if len(self._waiters) > self._known_max:
            oldest = next(iter(self._waiters))
            for other in [*self._waiters[oldest]]:
                self.forget(oldest, other)

    def forget(self, child_id: str, waiter: str) -> None:
        """Note that `waiter` is not to be told."""
        _discard(self._waiters, child_id, waiter)
        _discard(self._awaited, waiter, child_id)

    def size(self) -> int:
        """Return how many entries are held in all."""
        return len(self._specs) + len(self._waiters) + len(self._awaited) + len(self._born) + len(self._queue)

    def watch_birth(self, child_id: str) -> None:
        """Note from now on whether the child's first event is appended here."""
        self._born[child_id] = False

    def was_born(self, child_id: str) -> bool:
        """Return whether it was, and watch no longer."""
        return self._born.pop(child_id, False)

    # ---- the queue ---------------------------------------------------------------------------------------------------

    def enqueue(self, action: Action) -> None:
        """Have an action done, once.  If there are too many, a sweep will find what it was about."""
        if len(self._queue) >= self._queued_max and action.key not in self._queue:
            self.sweep_due.set()
            return
        self._queue[action.key] = action
        self._queued.set()

    async def next_action(self) -> Action:
        """Return the oldest action when there is one."""
        while not self._queue:
            self._queued = trio.Event()
            await self._queued.wait()
        return self._queue.pop(next(iter(self._queue)))


def _discard(sets: dict[str, dict[str, None]], key: str, item: str) -> None:
    """Take an item out of one of several sets, and the set with its last item."""
    kept = sets.get(key)
    if kept is not None:
        kept.pop(item, None)
        if not kept:
            del sets[key]


def _payload_of_event(event: Envelope) -> Json:
    """Return what a terminal event delivers to the parent."""
    payload = cast("dict[str, Json]", event.payload)
    if event.type == events.EXECUTION_COMPLETED:
        return output_payload(payload.get("output"))
    status = "failed" if event.type == events.EXECUTION_FAILED else "cancelled"
    return failure_payload(event.execution_id, status, payload.get("error"))


# ---- acting ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def supervise_children(
    supervisor: Supervisor,
    runtime: Executions,
    *,
    clock: Clock | None = None,
    sweep_seconds: float | None = SWEEP_SECONDS,
) -> AsyncIterator[Supervision]:
    """Have `supervisor` act on `runtime` for the length of the block, and sweep at once, then every `sweep_seconds`.

    `sweep_seconds=None`: at the start only, and when `Supervision.sweep` is called.  Any number of supervisors may
    work on one store: what two of them do is done once.
    """
    supervision = supervisor.at_work_on(runtime)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervision.act)
        nursery.start_soon(supervision.sweep_when_due)
        if sweep_seconds is not None:
            nursery.start_soon(supervision.remind, clock or SystemClock(), round(sweep_seconds * 1000))
        try:
            yield supervision
        except BaseException as raised:
            failure = raised
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure  # as it is: that there is a nursery is nobody's affair


@attrs.frozen(kw_only=True)
class Supervision:
    """A supervisor at work on one runtime.  Every action may be done twice, by two supervisors, or after a crash."""

    supervisor: Supervisor
    runtime: Executions
    _childless: dict[str, int] = attrs.field(factory=dict, init=False)
    """Suspended executions that wait for no child, by the last event they were seen with: the newest sweep's only."""

    async def sweep(self) -> None:
        """Repair every suspended execution: no parent stays parked whose child has ended (K-CHILD-2).

        One that cannot be read is passed over, and said in the log.  One that waits for something else is not read
        again until its log has grown.  Raises `StoreUnavailable`.
        """
        suspended = await self.runtime.executions("suspended")
        before = self._childless.copy()
        self._childless.clear()
        for entry in suspended:
            if before.get(entry.execution_id) == entry.head:
                self._childless[entry.execution_id] = entry.head
            else:
                await self._guarded(Repair(execution_id=entry.execution_id))

    # ---- the tasks ---------------------------------------------------------------------------------------------------

    async def act(self) -> None:
        """Do what the observed events ask for, for ever."""
        while True:
            await self._guarded(await self.supervisor.next_action())

    async def sweep_when_due(self) -> None:
        """Sweep now, and whenever one is due, for ever."""
        while True:
            self.supervisor.sweep_due = trio.Event()
            try:
                await self.sweep()
            except Exception as error:
                logger.warning("children: a sweep failed, the next one makes up for it: %s", error)
            await self.supervisor.sweep_due.wait()

    async def remind(self, clock: Clock, every_ms: int) -> None:
        """Have a sweep due every so often, for ever."""
        while True:
            await clock.sleep_until(clock.now_ms() + every_ms)
            self.supervisor.sweep_due.set()

    async def _guarded(self, action: Action) -> None:
        """Do one action; its failure is nobody else's, and a later sweep makes up for it."""
        try:
            await self._do(action)
        except Exception as error:
            logger.warning("children: %s failed, a later sweep tries again: %s", action.key, error)

    async def _do(self, action: Action) -> None:
        match action:
            case Start(spec=spec, waiter=waiter):
                await self._start(spec, waiter)
            case Tell(child_id=child_id, waiter=waiter, payload=payload):
                await self._tell(child_id, waiter, payload)
            case Repair(execution_id=execution_id):
                await self._repair(execution_id)

    # ---- the actions -------------------------------------------------------------------------------------------------

    async def _start(self, spec: ChildSpec, waiter: str) -> None:
        """Start the child.  One that was there before may have ended unexpected, or be no child at all: look again."""
        self.supervisor.watch_birth(spec.child_id)
        try:
            with contextlib.suppress(ExecutionMismatch):
                await self.runtime.start(spec.flow_id, spec.input, execution_id=spec.child_id)
        finally:
            born = self.supervisor.was_born(spec.child_id)
        if not born:
            self.supervisor.enqueue(Repair(execution_id=waiter))

    async def _tell(self, child_id: str, waiter: str, payload: Json) -> None:
        try:
            await self._deliver(child_id, waiter, payload)
        except NoJsonForm as error:  # an error that nests as deeply as a log may, for one
            await self._deliver(child_id, waiter, _refusal(child_id, error))

    async def _deliver(self, child_id: str, waiter: str, payload: Json) -> None:
        with contextlib.suppress(UnknownExecution):  # deleted meanwhile
            await self.runtime.deliver(waiter, CHILD_DONE, payload, correlation_key=child_id, delivery_id=child_id)

    async def _repair(self, execution_id: str) -> None:
        """Start or tell of each child that the execution, if it is parked for children, has not heard of."""
        try:
            state = await self.runtime.state(execution_id)
        except UnknownExecution:
            return
        gate = state["gate"]
        if state["status"] != "suspended" or gate is None:
            return
        wanted = awaited_children(cast("dict[str, Json]", gate))
        if not wanted:
            self._childless[execution_id] = state["lastSequence"]
            return
        for spec in outstanding(state):
            await self._catch_up(spec, execution_id, wanted=spec.child_id in wanted)

    async def _catch_up(self, spec: ChildSpec, waiter: str, *, wanted: bool) -> None:
        # Before the look.  Otherwise: 1. look, it runs, 2. it ends, nobody is known to wait, 3. expect its end.
        self.supervisor.expect(spec.child_id, waiter)
        try:
            child = await self.runtime.state(spec.child_id)
        except UnknownExecution:
            await self._start(spec, waiter)
            return
        payload = _payload_of_state(spec, child)
        if payload is not None:
            self.supervisor.forget(spec.child_id, waiter)
            if wanted:
                await self._tell(spec.child_id, waiter, payload[0])


def _payload_of_state(spec: ChildSpec, child: FlowState) -> tuple[Json] | None:
    """Return what the execution under the child's id delivers, or None if that is yet to come."""
    started_with = child.get("firstInput", child["input"])  # one that has begun anew has another input since
    if child["flowId"] != spec.flow_id or encode(started_with) != encode(spec.input):
        other = ExecutionMismatch(f"{spec.child_id!r} is an execution of flow {child['flowId']!r} with another input")
        return (_refusal(spec.child_id, other),)
    if child["status"] not in TERMINAL:
        return None
    if child["status"] == "completed":
        return (output_payload(child["output"]),)
    return (failure_payload(spec.child_id, child["status"], child["error"]),)


def _refusal(child_id: str, error: Exception) -> Json:
    """Return what is delivered in the place of an end that cannot be: the parent must not wait for ever."""
    return failure_payload(child_id, "failed", describe_error(error))
