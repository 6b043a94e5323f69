"""The runtime: starts, resumes and recovers executions in one process (K-RUN)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

import attrs
import trio

from kernel import events
from kernel.adapters.system import SystemChance, SystemClock
from kernel.context import TIMER
from kernel.definitions import Effect, Flow
from kernel.errors import (
    CorruptLog,
    ExecutionBlocked,
    ExecutionFailed,
    ExecutionInterrupted,
    ExecutionMismatch,
    Fenced,
    RunInterrupted,
    RunLost,
    UnknownExecution,
    UnknownFlow,
)
from kernel.events import quoted
from kernel.journal import AppendIds, Journal, Observer
from kernel.jsonform import Json, encode, fresh
from kernel.lifecycle import Loaded, compact, load
from kernel.parts import Parts
from kernel.ports import Chance, Clock, Delivery, Stores
from kernel.projections import Projection
from kernel.run import Surroundings, run_once
from kernel.state import TERMINAL, FlowState

logger = logging.getLogger("kernel")

_LOSSES_MAX = 16

_RESERVED_ON = frozenset({TIMER, events.TIMER_FIRED})
_RESERVED_DELIVERY = "timer:"


@attrs.define(kw_only=True)
class _Live:
    """An execution this process is driving.  Mutable: `poked` is set while its loop is to look at its mail again."""

    poked: bool = False
    lost: int = 0  # positions lost in a row without the log getting any longer
    lost_at: int = -1  # the position that was lost last


@attrs.frozen(kw_only=True)
class _Timer:
    """A gate's timer that this process watches."""

    due_ms: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


@attrs.frozen(kw_only=True)
class Handle:
    """An execution as a caller holds it."""

    execution_id: str
    runtime: Runtime

    async def result(self) -> Json:
        """Return the output when the execution has completed.

        Raises `ExecutionFailed` if it failed or was cancelled, `ExecutionBlocked`, `ExecutionInterrupted` if this
        process stopped driving.
        """
        return await self.runtime.wait_result(self.execution_id)


class Runtime:
    """Runs flows over stores.  Mutable: knows which executions this process drives.  Made by `open_runtime`."""

    def __init__(
        self,
        *,
        stores: Stores,
        flows: Iterable[Flow],
        workers: trio.Nursery,
        incarnation: str,
        effects: Mapping[str, Effect] | None = None,
        clock: Clock | None = None,
        chance: Chance | None = None,
        parts: Parts | None = None,
        projections: Sequence[Projection] = (),
        observers: Sequence[Observer] = (),
        snapshot_every: int | None = None,
    ) -> None:
        self._stores = stores
        self._flows = {flow.id: flow for flow in flows}
        self._workers = workers
        self._incarnation = incarnation
        self._clock = clock or SystemClock()
        self._parts = parts or Parts()
        self._projections = projections
        self._observers = observers
        self._snapshot_every = snapshot_every
        self._append_ids = AppendIds(incarnation)
        self._surroundings = Surroundings(
            parts=self._parts, registry=dict(effects or {}), chance=chance or SystemChance(), workers=workers
        )
        self._live: dict[str, _Live] = {}
        self._fences: dict[str, int] = {}  # of executions this process owns
        self._starting: dict[str, int] = {}  # first appends under way: no orphans for recovery to adopt
        self._timers: dict[str, _Timer] = {}  # one for each parked execution whose gate has a due time
        self._waiting: dict[str, trio.Event] = {}  # set when the execution ends or this process stops driving it
        self._interrupted: dict[str, BaseException] = {}

    # ---- starting ----------------------------------------------------------------------------------------------------

    async def start(self, flow: Flow | str, input: Json = None, *, execution_id: str) -> Handle:
        """Start an execution, once: the same id with the same flow and input again returns a handle to it (K-RUN-1).

        Returns when the start is durable.  Raises `UnknownFlow`, `ExecutionMismatch`, `NoJsonForm`, `StoreUnavailable`.
        """
        definition = self._flow(flow if isinstance(flow, str) else flow.id)
        input_text = encode(input, at="input")
        version = "null" if definition.version is None else quoted(definition.version)
        journal = self._new_journal(execution_id)
        self._starting[execution_id] = self._starting.get(execution_id, 0) + 1
        try:
            await journal.commit(
                events.EXECUTION_STARTED,
                f'{{"flowId":{quoted(definition.id)},"flowVersion":{version},"input":{input_text}}}',
            )
            self._fences.setdefault(execution_id, journal.fence)
            self._spawn(execution_id, journal)
        except (RunLost, Fenced):
            await self._check_same(execution_id, definition.id, input_text)
        finally:
            self._starting[execution_id] -= 1
            if not self._starting[execution_id]:
                del self._starting[execution_id]
        return Handle(execution_id=execution_id, runtime=self)

    def _flow(self, flow_id: str) -> Flow:
        try:
            return self._flows[flow_id]
        except KeyError:
            raise UnknownFlow(f"no flow {flow_id!r} here; registered are {sorted(self._flows)}") from None

    def _new_journal(self, execution_id: str) -> Journal:
        nothing = Loaded(
            execution_id=execution_id,
            fold=self._parts.fold(),
            projected={p.name: p.initial for p in self._projections},
            snapshot_sequence=-1,
        )
        return self._journal(nothing, fence=0)

    def _journal(self, loaded: Loaded, fence: int) -> Journal:
        return Journal.resume(
            loaded,
            stores=self._stores,
            clock=self._clock,
            append_ids=self._append_ids,
            fence=fence,
            projections=self._projections,
            observers=self._observers,
            snapshot_every=self._snapshot_every,
        )

    async def _check_same(self, execution_id: str, flow_id: str, input_text: str) -> None:
        state = (await self._load(execution_id)).fold.state
        if state["flowId"] != flow_id or encode(state["input"]) != input_text:
            raise ExecutionMismatch(
                f"execution {execution_id!r} exists, of flow {state['flowId']!r} with input {state['input']!r}; asked "
                f"for was flow {flow_id!r} with input {input_text}: use another id"
            )

    # ---- delivering --------------------------------------------------------------------------------------------------

    async def deliver(
        self,
        execution_id: str,
        on: str,
        payload: Json = None,
        *,
        correlation_key: str | None = None,
        delivery_id: str,
    ) -> None:
        """Accept a delivery; when this returns it is durable, and it will pass one gate that waits for it (K-RUN-2).

        The same `delivery_id` again changes nothing.  Raises `UnknownExecution`, `NoJsonForm`, `StoreUnavailable`.
        """
        if on in _RESERVED_ON or delivery_id.startswith(_RESERVED_DELIVERY):
            raise ValueError(
                f"delivery {delivery_id!r} on {on!r}: {sorted(_RESERVED_ON)} and ids that begin with "
                f"{_RESERVED_DELIVERY!r} are the kernel's own"
            )
        payload_text = encode(payload)
        if await self._stores.events.entry(execution_id) is None:
            raise UnknownExecution(f"no execution {execution_id!r} to deliver {delivery_id!r} to: start it first")
        await self._stores.mailbox.put(
            execution_id,
            Delivery(delivery_id=delivery_id, on=on, correlation_key=correlation_key, payload_text=payload_text),
        )
        await self._wake(execution_id)

    async def _wake(self, execution_id: str) -> None:
        """Have a parked execution look at its mail.  One that runs elsewhere looks when it parks."""
        live = self._live.get(execution_id)
        if live is not None:
            live.poked = True
            return
        entry = await self._stores.events.entry(execution_id)
        if entry is not None and entry.status == "suspended":
            self._spawn(execution_id, None)

    # ---- recovering --------------------------------------------------------------------------------------------------

    async def recover_all(self) -> list[str]:
        """Take up what a dead process left: unfinished runs, timers, deliveries accepted and not yet consumed.

        Returns the ids of executions now driven here.  What this process drives already is left alone (K-RUN-3).
        """
        with_mail = set(await self._stores.mailbox.executions())
        adopted: list[str] = []
        for entry in await self._stores.events.entries("running", "suspended"):
            execution_id = entry.execution_id
            if execution_id in self._live or execution_id in self._starting:
                continue
            if entry.status == "running" or execution_id in with_mail:
                self._spawn(execution_id, None)
                adopted.append(execution_id)
            elif entry.due_ms is not None:
                self._watch_timer(execution_id, entry.due_ms)
        return adopted

    def _watch_timer(self, execution_id: str, due_ms: int) -> None:
        watched = self._timers.get(execution_id)
        if watched is None or watched.due_ms != due_ms:
            self._drop_timer(execution_id)
            timer = self._timers[execution_id] = _Timer(due_ms=due_ms)
            self._workers.start_soon(self._fire_when_due, execution_id, timer, name=f"timer {execution_id}")

    def _drop_timer(self, execution_id: str) -> None:
        timer = self._timers.pop(execution_id, None)
        if timer is not None:
            timer.scope.cancel()

    async def _fire_when_due(self, execution_id: str, timer: _Timer) -> None:
        with timer.scope:
            await self._clock.sleep_until(timer.due_ms)
        if self._timers.get(execution_id) is timer:
            del self._timers[execution_id]
            await self._wake(execution_id)

    # ---- driving -----------------------------------------------------------------------------------------------------

    def _spawn(self, execution_id: str, journal: Journal | None) -> None:
        live = self._live.get(execution_id)
        if live is not None:  # begun by somebody else while this caller waited for a store
            live.poked = True
            return
        live = self._live[execution_id] = _Live()
        self._interrupted.pop(execution_id, None)
        self._workers.start_soon(self._drive, execution_id, live, journal, name=f"execution {execution_id}")

    async def _drive(self, execution_id: str, live: _Live, journal: Journal | None) -> None:
        """Drive an execution until it is parked with nothing to resume it, or has ended."""
        try:
            while True:
                try:
                    if journal is None:
                        journal = await self._open(execution_id)
                    if await self._advance(journal):
                        continue
                except RunLost as loss:
                    logger.info("execution %s: position lost, starting again from the tail", execution_id)
                    self._count_loss(live, journal, loss)
                    journal = None
                    continue
                if live.poked and journal.state["status"] == "suspended":
                    live.poked = False
                    continue
                self._finish(execution_id, journal.state)
                return
        except (Exception, RunInterrupted) as error:
            logger.error("execution %s: interrupted, recover it when the cause is mended: %s", execution_id, error)
            self._interrupted[execution_id] = error
            self._fences.pop(execution_id, None)
            self._announce(execution_id)
        finally:
            del self._live[execution_id]

    def _count_loss(self, live: _Live, journal: Journal | None, loss: RunLost) -> None:
        """Raise if one position is lost again and again: the log says it is taken, and reads do not show by what."""
        position = -1 if journal is None else journal.state["lastSequence"]
        live.lost = live.lost + 1 if position == live.lost_at else 1
        live.lost_at = position
        if live.lost >= _LOSSES_MAX:
            raise CorruptLog(
                f"position {position + 1} was lost {live.lost} times, and no event is read there: "
                "the snapshot is ahead of its log, or the store shows reads that are older than its writes"
            ) from loss

    async def _open(self, execution_id: str) -> Journal:
        fence = self._fences.get(execution_id)
        if fence is None:
            fence = self._fences[execution_id] = await self._stores.events.claim(execution_id, self._incarnation)
        return self._journal(await self._load(execution_id), fence)

    async def _load(self, execution_id: str) -> Loaded:
        return await load(self._stores, execution_id, self._parts.fold, self._projections)

    async def _advance(self, journal: Journal) -> bool:
        """Do the next thing for an execution; False when there is nothing to do now."""
        status = journal.state["status"]
        if status == "running":
            await run_once(journal, self._flow(journal.state["flowId"] or ""), self._surroundings)
            return True
        return status == "suspended" and await self._resume(journal)

    async def _resume(self, journal: Journal) -> bool:
        """Pass the open gate if something that opens it has come: a delivery first, then time (K-RUN-2)."""
        execution_id, gate, seen = journal.execution_id, journal.state["gate"], journal.state["deliveries"]
        assert gate is not None
        pending = await self._stores.mailbox.pending(execution_id)
        consumed = [d.delivery_id for d in pending if d.delivery_id in seen]
        if consumed:  # a duplicate, or a crash came between the resume and the removal
            await self._stores.mailbox.remove(execution_id, consumed)
        wanted = (gate["on"], gate["correlationKey"])
        for delivery in pending:
            if (delivery.on, delivery.correlation_key) == wanted and delivery.delivery_id not in seen:
                await self._pass(journal, delivery)
                await self._stores.mailbox.remove(execution_id, [delivery.delivery_id])
                return True
        due = gate["due"]
        if due is None:
            return False
        if self._clock.now_ms() < due:
            self._watch_timer(execution_id, due)
            return False
        timer = Delivery(
            delivery_id=f"{_RESERVED_DELIVERY}{gate['ordinal']}",
            on=events.TIMER_FIRED,
            correlation_key=None,
            payload_text=encode({"correlationKey": gate["correlationKey"], "on": gate["on"]}),
        )
        await self._pass(journal, timer)
        return True

    async def _pass(self, journal: Journal, delivery: Delivery) -> None:
        key = "null" if delivery.correlation_key is None else quoted(delivery.correlation_key)
        self._drop_timer(journal.execution_id)
        await journal.commit(
            events.EXECUTION_RESUMED,
            f'{{"correlationKey":{key},"deliveryId":{quoted(delivery.delivery_id)},"on":{quoted(delivery.on)},'
            f'"payload":{delivery.payload_text}}}',
        )

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _finish(self, execution_id: str, state: FlowState) -> None:
        if state["status"] in TERMINAL or state["status"] == "blocked":
            self._fences.pop(execution_id, None)
            self._announce(execution_id)

    def _announce(self, execution_id: str) -> None:
        waiting = self._waiting.pop(execution_id, None)
        if waiting is not None:
            waiting.set()

    async def wait_result(self, execution_id: str) -> Json:
        """Wait until the execution ends here or is found ended; see `Handle.result`."""
        while True:
            # Before the load.  Otherwise: 1. load, still running, 2. the execution ends and tells who waits, 3. wait.
            ended = self._waiting.setdefault(execution_id, trio.Event())
            state = (await self._load(execution_id)).fold.state
            if state["status"] in TERMINAL:
                self._announce(execution_id)
                break
            if state["status"] == "blocked":
                raise ExecutionBlocked(execution_id, state["blocked"])
            if execution_id in self._interrupted:
                cause = self._interrupted[execution_id]
                raise ExecutionInterrupted(
                    f"this process stopped driving {execution_id!r}: {cause}; nothing is lost, `recover_all` goes on"
                ) from cause
            await ended.wait()
        if state["status"] == "completed":
            return fresh(state["output"])
        raise ExecutionFailed(execution_id, state["error"])

    async def compact(self, execution_id: str) -> int:
        """Fold the execution's log into a snapshot and drop it; see `kernel.lifecycle.compact`."""
        return await compact(self._stores, execution_id, self._parts.fold, self._projections)

    async def state(self, execution_id: str) -> FlowState:
        """Return the execution's folded state.  Raises `UnknownExecution`."""
        return (await self._load(execution_id)).fold.release()


@contextlib.asynccontextmanager
async def open_runtime(
    *,
    stores: Stores,
    flows: Iterable[Flow],
    effects: Mapping[str, Effect] | None = None,
    clock: Clock | None = None,
    chance: Chance | None = None,
    incarnation: str | None = None,
    parts: Parts | None = None,
    projections: Sequence[Projection] = (),
    observers: Sequence[Observer] = (),
    snapshot_every: int | None = None,
) -> AsyncIterator[Runtime]:
    """Open a runtime; when the block ends, what it drives stops where it is.  A shutdown is a crash (K-RUN-3)."""
    chance = chance or SystemChance()
    failure: BaseException | None = None
    async with trio.open_nursery() as workers:
        try:
            yield Runtime(
                stores=stores,
                flows=flows,
                effects=effects,
                workers=workers,
                clock=clock,
                chance=chance,
                incarnation=incarnation or chance.uuid(),
                parts=parts,
                projections=projections,
                observers=observers,
                snapshot_every=snapshot_every,
            )
        except BaseException as raised:
            failure = raised
        workers.cancel_scope.cancel()
    if failure is not None:
        raise failure  # as it is: that there is a nursery is nobody's affair
