"""Driving executions in one process: from whatever is open to whatever ends or parks them (K-RUN).

One task drives one execution at a time.  It opens the journal, runs the flow, passes gates whose deliveries or timers
have come, and starts again from the tail when a position was lost.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence

import attrs
import trio

from kernel import cancelling, events
from kernel.definitions import Flow
from kernel.errors import (
    AppendUnknown,
    CorruptLog,
    Fenced,
    LeaseHeld,
    RunInterrupted,
    RunLost,
    StoreUnavailable,
    UnknownExecution,
    UnknownFlow,
)
from kernel.gates import describe_gate, opens, outstanding, payload_of, wait_of
from kernel.ids import TIMER_DELIVERY
from kernel.journal import AppendIds, Journal, Observer, next_due
from kernel.jsonform import decode_canonical
from kernel.leases import Ownership
from kernel.lifecycle import Loaded, load
from kernel.log_ids import PLACE, Place
from kernel.ports import Clock, Delivery, Stores
from kernel.projections import Projection
from kernel.run import Surroundings, run_once
from kernel.state import TERMINAL, FlowState

logger = logging.getLogger("kernel")

LOSSES_MAX = 16
"""How often in a row a position may be lost."""


@attrs.define(kw_only=True)
class _Live:
    """An execution this process is driving.  Mutable: `poked` is set while its loop is to look at its mail again."""

    poked: bool = False
    journal: Journal | None = None  # the newest
    has_mail: bool = False  # the mailbox is to be looked into before the next run, for a request to cancel
    renewal: trio.CancelScope | None = None  # of the lease, if there are leases
    tried_to_cancel: bool = False  # a blocked execution was run, to be cancelled
    overtaken: bool = False  # another worker has claimed it, and nothing has come since that it might not know of
    deadline: trio.CancelScope | None = None  # of the wait for the execution's deadline
    lost: int = 0  # positions lost in a row without the log getting any longer
    lost_at: int = -1  # the position that was lost last


@attrs.frozen(kw_only=True)
class _Timer:
    """A gate's timer that this process watches."""

    due_ms: int
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)


class Driver:
    """Drives executions.  Mutable: knows which ones this process has in hand, and what it waits for."""

    def __init__(
        self,
        *,
        stores: Stores,
        flows: Iterable[Flow],
        workers: trio.Nursery,
        clock: Clock,
        ownership: Ownership,
        surroundings: Surroundings,
        append_ids: AppendIds,
        projections: Sequence[Projection],
        observers: Sequence[Observer],
        snapshot_every: int | None,
        payload_bytes_max: int | None,
    ) -> None:
        self._stores = stores
        self._flows = {flow.id: flow for flow in flows}
        self._workers = workers
        self._clock = clock
        self.ownership = ownership
        self._surroundings = surroundings
        self._parts = surroundings.parts
        self._append_ids = append_ids
        self._projections = projections
        self._observers = observers
        self._snapshot_every = snapshot_every
        self._payload_bytes_max = payload_bytes_max
        self.live: dict[str, _Live] = {}
        self.fences: dict[str, int] = {}  # of executions this process owns
        self._timers: dict[str, _Timer] = {}  # one for each parked execution whose gate has a due time
        self.waiting: dict[str, trio.Event] = {}  # set when the execution ends or this process stops driving it
        self.interrupted: dict[str, BaseException] = {}
        self._idle = trio.lowlevel.ParkingLot()  # who waits until nothing is live

    # ---- flows and journals ------------------------------------------------------------------------------------------

    def flow(self, flow_id: str) -> Flow:
        """Return the flow of that id.  Raises `UnknownFlow`."""
        try:
            return self._flows[flow_id]
        except KeyError:
            raise UnknownFlow(f"no flow {flow_id!r} here; registered are {sorted(self._flows)}") from None

    async def open(self, execution_id: str, *, overtaken: bool = False) -> Journal:
        """Return a journal that goes on from the log, as its owner.  Raises as `Ownership.claim` and `load`."""
        fence = self.fences.get(execution_id)
        if fence is None:
            fence = self.fences[execution_id] = await self.ownership.claim(execution_id, overtaken=overtaken)
        return self._journal(await self.load(execution_id), fence)

    async def load(self, execution_id: str) -> Loaded:
        """Return the execution's state as stored, whoever owns it.  Raises as `kernel.lifecycle.load`."""
        return await load(self._stores, execution_id, self._parts.fold, self._projections)

    def new_journal(self, execution_id: str) -> Journal:
        """Return the journal of an execution that is not in the store yet."""
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
            payload_bytes_max=self._payload_bytes_max,
        )

    def _place(self, execution_id: str) -> Place:
        return Place(execution_id, None, self.ownership.owner.incarnation)

    # ---- waking ------------------------------------------------------------------------------------------------------

    async def wake(self, execution_id: str) -> None:
        """Have a parked execution look at its mail.  One that runs elsewhere looks when it parks."""
        live = self.live.get(execution_id)
        if live is not None:
            live.poked = True
            return
        entry = await self._stores.events.entry(execution_id)
        if entry is None or entry.status in TERMINAL:
            await self.drop_mail(execution_id)
        elif entry.status == "suspended":
            self.spawn(execution_id, None)

    async def drop_mail(self, execution_id: str) -> None:
        """Forget what has come for an execution, if it has ended or is gone: no gate will ever take it.

        A store that is silent keeps it until somebody recovers.
        """
        try:
            await self._drop_mail(execution_id)
        except (AppendUnknown, StoreUnavailable) as error:
            logger.warning("execution %s: what came for it and is not needed stays for now: %s", execution_id, error)

    async def _drop_mail(self, execution_id: str) -> None:
        left = await self._stores.mailbox.pending(execution_id)
        if left:
            # Asked after the look.  Otherwise: 1. it has ended, 2. it is deleted, and its id used again, 3. mail for
            # the new one comes, 4. is seen, and dropped.
            entry = await self._stores.events.entry(execution_id)
            if await self._is_gone(execution_id) if entry is None else entry.status in TERMINAL:
                await self._stores.mailbox.remove(execution_id, [delivery.delivery_id for delivery in left])

    async def _is_gone(self, execution_id: str) -> bool:
        """Is there no such execution?  It is asked with a write.

        Otherwise: 1. it has just begun, 2. a delivery is accepted, 3. two looks at a replica that lags show no such
        execution, 4. the delivery is dropped.  Whoever drives it goes on under a new fence.
        """
        try:
            await self._stores.events.claim(execution_id, self.ownership.owner.incarnation)
        except UnknownExecution:
            return True
        self.fences.pop(execution_id, None)
        return False

    def watch_timer(self, execution_id: str, due_ms: int) -> None:
        """Wake the execution when its gate's timer, or its deadline, is due."""
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
        PLACE.set(self._place(execution_id))
        with timer.scope:
            await self._clock.sleep_until(timer.due_ms)
        if self._timers.get(execution_id) is timer:
            del self._timers[execution_id]
            await self.wake(execution_id)

    # ---- driving -----------------------------------------------------------------------------------------------------

    def spawn(self, execution_id: str, journal: Journal | None, *, has_mail: bool = False) -> None:
        """Drive the execution in a task of its own; one that is driven here already looks again before it stops."""
        live = self.live.get(execution_id)
        if live is not None:  # begun by somebody else while this caller waited for a store
            live.poked = True
            live.has_mail = live.has_mail or has_mail
            return
        live = self.live[execution_id] = _Live(has_mail=has_mail)
        self.interrupted.pop(execution_id, None)
        self._workers.start_soon(self._drive, execution_id, live, journal, name=f"execution {execution_id}")
        if self.ownership.lease_ms is not None:
            live.renewal = trio.CancelScope()
            self._workers.start_soon(self._keep_lease, execution_id, live, live.renewal, name=f"lease {execution_id}")

    async def wait_idle(self) -> dict[str, BaseException]:
        """Wait until nothing is live, and return what has been interrupted."""
        while self.live:
            await self._idle.park()
        return dict(self.interrupted)

    async def _drive(self, execution_id: str, live: _Live, journal: Journal | None) -> None:
        """Drive an execution until it is parked with nothing to resume it, or has ended."""
        PLACE.set(self._place(execution_id))
        try:
            while True:
                try:
                    if journal is None:
                        journal = await self.open(execution_id, overtaken=live.overtaken)
                    live.journal = journal
                    PLACE.set(journal.place())
                    if live.has_mail or "deadline" in journal.state:
                        await self._look_for_cancel(live, journal)
                    if await self._advance(live, journal):
                        continue
                except (Fenced, RunInterrupted) as stopped:
                    if self.ownership.lease_ms is None or not _is_fenced(stopped):
                        raise
                    self.fences.pop(execution_id, None)
                    live.overtaken, live.poked = not live.poked, False
                    live.has_mail, journal = True, None
                    continue
                except RunLost as loss:
                    logger.info("execution %s: position lost, starting again from the tail", execution_id)
                    self._count_loss(live, journal, loss)
                    live.has_mail = True
                    journal = None
                    continue
                if live.poked and journal.state["status"] not in TERMINAL:
                    live.poked = False
                    continue
                self._finish(execution_id, journal.state)
                if journal.state["status"] in TERMINAL:
                    await self._drop_all_mail(execution_id, live)
                return
        except LeaseHeld:
            logger.info("execution %s: another worker drives it", execution_id)
            self.announce(execution_id)
        except (Exception, RunInterrupted) as error:
            logger.error("execution %s: interrupted, recover it when the cause is mended: %s", execution_id, error)
            self.interrupted[execution_id] = error
            self.fences.pop(execution_id, None)
            self.announce(execution_id)
        finally:
            del self.live[execution_id]
            if not self.live:
                self._idle.unpark_all()
            if live.renewal is not None:
                live.renewal.cancel()
                self.fences.pop(execution_id, None)  # what is parked is nobody's
            if live.deadline is not None:
                live.deadline.cancel()

    async def _drop_all_mail(self, execution_id: str, live: _Live) -> None:
        """Drop the mail of an execution that has ended, also what comes while it is dropped."""
        live.poked = True
        while live.poked:
            live.poked = False
            await self.drop_mail(execution_id)

    def _count_loss(self, live: _Live, journal: Journal | None, loss: RunLost) -> None:
        """Raise if one position is lost again and again: the log says it is taken, and reads do not show by what."""
        position = -1 if journal is None else journal.state["lastSequence"]
        live.lost = live.lost + 1 if position == live.lost_at else 1
        live.lost_at = position
        if live.lost >= LOSSES_MAX:
            raise CorruptLog(
                f"position {position + 1} was lost {live.lost} times, and no event is read there: "
                "the snapshot is ahead of its log, or the store shows reads that are older than its writes"
            ) from loss

    async def _keep_lease(self, execution_id: str, live: _Live, scope: trio.CancelScope) -> None:
        """Renew the lease for as long as the execution is driven, and look for a request that came by another worker.

        When the lease is lost the flow is not torn away: its next append is refused, before another effect begins.
        """
        PLACE.set(self._place(execution_id))
        with scope:
            while True:
                await self._clock.sleep_until(self._clock.now_ms() + self.ownership.renewal_ms)
                fence = self.fences.get(execution_id)
                if fence is None or not await self.ownership.renew(execution_id, fence):
                    continue  # not claimed yet, or lost: the drive will see to it, or has ended
                if live.journal is not None:
                    with contextlib.suppress(StoreUnavailable):
                        live.has_mail = True
                        await self._look_for_cancel(live, live.journal)

    # ---- cancelling --------------------------------------------------------------------------------------------------

    async def _look_for_cancel(self, live: _Live, journal: Journal) -> None:
        """Have the journal know of a request to cancel that waits in the mailbox, and of a deadline."""
        if live.has_mail:
            live.has_mail = False
            for delivery in await self._stores.mailbox.pending(journal.execution_id):
                if delivery.on == events.CANCEL_REQUESTED:
                    journal.ask_cancel(decode_canonical(delivery.payload_text))
        deadline = journal.state.get("deadline")
        if deadline is None or live.deadline is not None:
            return
        if self._clock.now_ms() >= deadline:
            journal.ask_cancel(cancelling.DEADLINE_PASSED)
        else:
            live.deadline = trio.CancelScope()
            self._workers.start_soon(self._await_deadline, live, live.deadline, deadline, name="deadline")

    async def _await_deadline(self, live: _Live, scope: trio.CancelScope, due_ms: int) -> None:
        with scope:
            while self._clock.now_ms() < due_ms:  # more than once, if it was set back meanwhile
                await self._clock.sleep_until(due_ms)
            live.deadline = None
            live.poked = True
            if live.journal is not None:
                live.journal.ask_cancel(cancelling.DEADLINE_PASSED)

    # ---- the next thing to do ----------------------------------------------------------------------------------------

    async def _advance(self, live: _Live, journal: Journal) -> bool:
        """Do the next thing for an execution; False when there is nothing to do now."""
        status = journal.state["status"]
        to_cancel = journal.cancel is not None and journal.state["cancelRequest"] is None
        if status == "running" or (to_cancel and status == "suspended"):
            await self._run(journal)
            return True
        if to_cancel and status == "blocked" and not live.tried_to_cancel:
            live.tried_to_cancel = True
            await self._run(journal)
            return True
        return status == "suspended" and await self._resume(journal)

    async def _run(self, journal: Journal) -> None:
        await run_once(journal, self.flow(journal.state["flowId"] or ""), self._surroundings)

    async def _resume(self, journal: Journal) -> bool:
        """Pass the open gate if something that opens it has come: a delivery first, then time (K-RUN-2)."""
        execution_id, gate, seen = journal.execution_id, journal.state["gate"], journal.state["deliveries"]
        assert gate is not None
        pending = await self._stores.mailbox.pending(execution_id)
        known = journal.cancel is not None
        for delivery in pending:
            if delivery.on == events.CANCEL_REQUESTED and not known:
                journal.ask_cancel(decode_canonical(delivery.payload_text))
                return True
        consumed = [
            d.delivery_id for d in pending if d.delivery_id in seen or (known and d.on == events.CANCEL_REQUESTED)
        ]
        if consumed:  # a duplicate, or a crash came between the resume and the removal
            await self._stores.mailbox.remove(execution_id, consumed)
        for delivery in pending:
            if self.is_for_gate(journal, delivery):
                opened = opens(gate)
                await self.take(journal, delivery, events.EXECUTION_RESUMED if opened else events.GATE_DELIVERED)
                gate = journal.state["gate"]
                if opened or gate is None:
                    return True
        due = self.due_of(journal)
        if due is None or self._clock.now_ms() < due:
            if (soonest := next_due(journal.state, "suspended")) is not None:
                self.watch_timer(execution_id, soonest)
            return False
        timer = Delivery(
            delivery_id=f"{TIMER_DELIVERY}{_place_of(journal.state)}{gate['ordinal']}",
            on=events.TIMER_FIRED,
            correlation_key=None,
            payload_text=describe_gate(wait_of(gate)),
        )
        await self._pass(journal, timer, events.EXECUTION_RESUMED)
        return True

    def is_for_gate(self, journal: Journal, delivery: Delivery) -> bool:
        """Is the delivery one that the open gate waits for, and that has passed none?"""
        gate, seen = journal.state["gate"], journal.state["deliveries"]
        assert gate is not None
        return (delivery.on, delivery.correlation_key) in outstanding(gate) and delivery.delivery_id not in seen

    async def take(self, journal: Journal, delivery: Delivery, type: str) -> None:
        """Have a delivery in the log, and only then out of the mailbox."""
        await self._pass(journal, delivery, type)
        await self._stores.mailbox.remove(journal.execution_id, [delivery.delivery_id])

    def due_of(self, journal: Journal) -> int | None:
        """Return when time opens the gate: as it was fixed when the flow first came there (K-FLOW-6)."""
        gate = journal.state["gate"]
        assert gate is not None
        return gate["due"]

    async def _pass(self, journal: Journal, delivery: Delivery, type: str) -> None:
        if type == events.EXECUTION_RESUMED:
            self._drop_timer(journal.execution_id)
        await journal.commit(
            type, payload_of(delivery.on, delivery.correlation_key, delivery.delivery_id, delivery.payload_text)
        )

    # ---- ends --------------------------------------------------------------------------------------------------------

    def _finish(self, execution_id: str, state: FlowState) -> None:
        if state["status"] in TERMINAL or state["status"] == "blocked":
            self.fences.pop(execution_id, None)
            self._drop_timer(execution_id)
            self.announce(execution_id)

    def announce(self, execution_id: str) -> None:
        """Tell who waits for the execution that it has ended, or is not driven here any more."""
        waiting = self.waiting.pop(execution_id, None)
        if waiting is not None:
            waiting.set()


def _place_of(state: FlowState) -> str:
    """Return what gate ordinals are unique in: nothing more in an execution that has begun once."""
    beginning = state.get("continued", 0)
    return f"{beginning}." if beginning else ""


def _is_fenced(error: BaseException) -> bool:
    return isinstance(error, Fenced) or isinstance(error.__cause__, Fenced)
