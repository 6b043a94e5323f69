"""The runtime: what callers, clients and operators ask of executions (K-RUN, K-USER)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import cast

import attrs
import trio

from kernel import cancelling, events
from kernel.adapters.system import SystemChance, SystemClock
from kernel.definitions import Effect, Flow
from kernel.doubt import UNSAID, Unsaid, in_doubt, resolution_of, resolution_payload
from kernel.driving import LOSSES_MAX
from kernel.errors import (
    AppendUnknown,
    ConcurrencyConflict,
    ExecutionBlocked,
    ExecutionCancelled,
    ExecutionFailed,
    ExecutionInterrupted,
    ExecutionMismatch,
    Fenced,
    InvalidId,
    LeaseHeld,
    LogTruncated,
    NotEnded,
    NothingToResolve,
    RunLost,
    TypedFailure,
    UnknownExecution,
)
from kernel.events import Envelope, quoted
from kernel.forks import forked
from kernel.gates import KERNEL_GATES
from kernel.ids import check_id, check_text
from kernel.journal import AppendIds, Journal, Observer, check_size, next_due
from kernel.jsonform import Json, encode, fresh
from kernel.leases import Owner
from kernel.lifecycle import compact, read_log
from kernel.log_ids import placed
from kernel.parts import Parts
from kernel.ports import CatalogueEntry, Chance, Clock, Delivery, Status, Stores
from kernel.projections import Projection
from kernel.run import Surroundings
from kernel.state import TERMINAL, FlowState


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
    """Runs flows over stores.  Mutable: knows which executions are being started.  Made by `open_runtime`."""

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
        worker: str | None = None,
        lease_seconds: float | None = None,
        payload_bytes_max: int | None = None,
    ) -> None:
        self._stores = stores
        self._clock = clock or SystemClock()
        self._parts = parts or Parts()
        self._projections = projections
        self._payload_bytes_max = payload_bytes_max
        self._ownership = self._parts.ownership(
            stores=stores,
            clock=self._clock,
            owner=Owner(incarnation=incarnation, worker=worker),
            lease_ms=None if lease_seconds is None else round(lease_seconds * 1000),
        )
        self._driver = self._parts.driver(
            stores=stores,
            flows=flows,
            workers=workers,
            clock=self._clock,
            ownership=self._ownership,
            surroundings=Surroundings(
                parts=self._parts, registry=dict(effects or {}), chance=chance or SystemChance(), workers=workers
            ),
            append_ids=AppendIds(incarnation),
            projections=projections,
            observers=observers,
            snapshot_every=snapshot_every,
            payload_bytes_max=payload_bytes_max,
        )
        self._starting: dict[str, int] = {}  # first appends under way: no orphans for recovery to adopt
        self._unanswered: set[str] = set()  # starts of which nobody knows whether they have landed

    # ---- starting ----------------------------------------------------------------------------------------------------

    async def start(
        self, flow: Flow | str, input: Json = None, *, execution_id: str, deadline_seconds: float | None = None
    ) -> Handle:
        """Start an execution, once: the same id with the same flow and input again returns a handle to it (K-RUN-1).

        When `deadline_seconds` have passed and it has not ended, it is cancelled; one that is blocked waits for an
        operator's word all the same, and is cancelled when it goes on.
        Returns when the start is durable.  Raises `InvalidId`, `UnknownFlow`, `ExecutionMismatch`, `NoJsonForm`,
        `StoreUnavailable`; `AppendUnknown`: start it again, what is stored decides.
        """
        check_id(execution_id, "execution")
        definition = self._driver.flow(flow if isinstance(flow, str) else flow.id)
        input_text = self._encode(input, "input")
        version = "null" if definition.version is None else quoted(definition.version)
        deadline = ""
        if deadline_seconds is not None:
            deadline = f'"deadline":{self._clock.now_ms() + round(deadline_seconds * 1000)},'
        journal = self._driver.new_journal(execution_id)
        self._starting[execution_id] = self._starting.get(execution_id, 0) + 1
        try:
            await journal.commit(
                events.EXECUTION_STARTED,
                f'{{{deadline}"flowId":{quoted(definition.id)},"flowVersion":{version},"input":{input_text}}}',
            )
            if self._ownership.lease_ms is None:
                self._driver.fences.setdefault(execution_id, journal.fence)
                self._driver.spawn(execution_id, journal)
            else:
                self._driver.spawn(execution_id, None)  # which takes the lease; another worker may have been faster
            self._unanswered.discard(execution_id)
        except (RunLost, Fenced):
            await self._check_same(execution_id, definition.id, input_text)
            # Otherwise: 1. no answer comes, 2. the caller starts it again, 3. it is there, and nobody drives it.
            if execution_id in self._unanswered:
                self._unanswered.remove(execution_id)
                self._driver.spawn(execution_id, None)
        except AppendUnknown:
            self._unanswered.add(execution_id)
            raise
        finally:
            self._starting[execution_id] -= 1
            if not self._starting[execution_id]:
                del self._starting[execution_id]
        return Handle(execution_id=execution_id, runtime=self)

    def _encode(self, value: Json, at: str) -> str:
        text = encode(value, at=at)
        if self._payload_bytes_max is not None:
            check_size(text, at, self._payload_bytes_max)
        return text

    async def _check_same(self, execution_id: str, flow_id: str, input_text: str) -> None:
        state = (await self._driver.load(execution_id)).fold.state
        first_input = state.get("firstInput", state["input"])
        if state["flowId"] != flow_id or encode(first_input) != input_text:
            raise ExecutionMismatch(
                f"execution {execution_id!r} exists, of flow {state['flowId']!r} with input {first_input!r}; asked "
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

        The same `delivery_id` again changes nothing, nor does a delivery to an execution that has ended: it is accepted
        and not kept.  Raises `InvalidId`, `UnknownExecution`, `NoJsonForm`, `StoreUnavailable`.
        """
        check_id(delivery_id, "delivery")
        check_text(on, f"what delivery {delivery_id!r} is on,")
        check_text(correlation_key or "", f"correlation key of delivery {delivery_id!r}")
        if on in KERNEL_GATES:
            raise InvalidId(f"delivery {delivery_id!r} on {on!r}: {sorted(KERNEL_GATES)} are the kernel's own")
        payload_text = self._encode(payload, f"payload of delivery {delivery_id!r}")
        entry = await self._stores.events.entry(execution_id)
        if entry is None:
            raise UnknownExecution(f"no execution {execution_id!r} to deliver {delivery_id!r} to: start it first")
        if entry.status in TERMINAL:
            return
        await self._stores.mailbox.put(
            execution_id,
            Delivery(delivery_id=delivery_id, on=on, correlation_key=correlation_key, payload_text=payload_text),
        )
        await self._driver.wake(execution_id)

    async def cancel(self, execution_id: str, reason: str = "cancelled") -> None:
        """Ask for an execution to be cancelled; when this returns, the request is durable (K-RUN-4).

        The flow sees `CancelRequested` at its next syscall that is not served, parked or not; its sagas roll back; then
        it has ended as cancelled.  One that has ended stays as it is.  Raises `UnknownExecution`, `StoreUnavailable`.
        """
        entry = await self._stores.events.entry(execution_id)
        if entry is None:
            raise UnknownExecution(f"no execution {execution_id!r} to cancel")
        if entry.status in TERMINAL:
            return
        await self._stores.mailbox.put(execution_id, cancelling.request(reason))
        live = self._driver.live.get(execution_id)
        if live is None:
            entry = await self._stores.events.entry(execution_id)
            if entry is not None and entry.status in ("suspended", "blocked"):
                self._driver.spawn(execution_id, None, has_mail=True)
            return
        live.poked = live.has_mail = True
        if live.journal is not None:
            live.journal.ask_cancel(reason)

    # ---- recovering --------------------------------------------------------------------------------------------------

    async def recover_all(self) -> list[str]:
        """Take up what a dead process left: unfinished runs, timers, deliveries accepted and not yet consumed.

        With leases, what another worker drives is left alone until its lease runs out: call this now and then.  Returns
        the ids of executions now driven here.  What this process drives already is left alone (K-RUN-3).
        """
        with_mail = set(await self._stores.mailbox.executions())
        adopted: list[str] = []
        for entry in await self._stores.events.entries("running", "suspended", "blocked"):
            execution_id = entry.execution_id
            if execution_id in self._driver.live or execution_id in self._starting:
                continue
            if await self._ownership.is_held(entry):
                continue
            if entry.status == "running" or execution_id in with_mail:
                self._driver.spawn(execution_id, None, has_mail=execution_id in with_mail)
                adopted.append(execution_id)
            elif entry.status == "suspended" and entry.due_ms is not None:
                self._driver.watch_timer(execution_id, entry.due_ms)
        for execution_id in sorted(with_mail - set(self._driver.live)):
            await self._driver.drop_mail(execution_id)
        return adopted

    # ---- forking -----------------------------------------------------------------------------------------------------

    async def fork(self, execution_id: str, *, upto: int | None = None, new_id: str) -> Handle:
        """Make a new execution of the first events of another, up to and including `upto`, and let it go on (K-RUN-5).

        The same fork again returns a handle to it; name `upto` to ask again, since the log may have grown.  Raises
        `InvalidId`, `UnknownExecution`, `LogTruncated` if the log's beginning is gone, `ValueError` for a position it
        has not, `ExecutionMismatch` if there is another execution of that id, `AppendUnknown`: fork again, it is known
        then.
        """
        check_id(new_id, "fork")
        try:
            log = await read_log(self._stores.events, execution_id, 0)
        except LogTruncated:
            if await self._is_fork(new_id, execution_id, upto):
                return Handle(execution_id=new_id, runtime=self)
            raise
        if not log:
            raise UnknownExecution(f"no execution {execution_id!r} in this store")
        last = log[-1].sequence if upto is None else upto
        if not 0 <= last <= log[-1].sequence:
            raise ValueError(f"{execution_id!r} has events 0 to {log[-1].sequence}, wanted is a fork at {last}")
        copies = self.copy_prefix(log[: last + 1], new_id)
        state = self._parts.fold.of(copies)
        try:
            await self._stores.events.append(
                new_id,
                0,
                copies,
                fence=0,
                flow_id=state["flowId"] or "",
                status=cast("Status", state["status"]),
                due_ms=next_due(state, state["status"]),
            )
        except (ConcurrencyConflict, Fenced):
            there = await self.state(new_id)
            if there["provenance"] != state["provenance"]:
                raise ExecutionMismatch(f"execution {new_id!r} exists, and is another: use another id") from None
        if state["status"] in ("running", "suspended"):
            self._driver.spawn(new_id, None)
        return Handle(execution_id=new_id, runtime=self)

    def copy_prefix(self, prefix: Sequence[Envelope], new_id: str) -> list[Envelope]:
        """Return the events that a fork begins with."""
        return forked(prefix, new_id)

    async def _is_fork(self, new_id: str, parent_id: str, upto: int | None) -> bool:
        """Has this very fork been made already, before the beginning of the parent's log was dropped?"""
        if await self._stores.events.entry(new_id) is None:
            return False
        origin = (await self.state(new_id))["provenance"]
        return isinstance(origin, dict) and origin["executionId"] == parent_id and upto in (None, origin["sequence"])

    # ---- going on after a block --------------------------------------------------------------------------------------

    async def executions(
        self, *statuses: Status, flow_id: str | None = None, id_prefix: str = ""
    ) -> Sequence[CatalogueEntry]:
        """Return what the catalogue says of the executions with one of `statuses` (all without), in order of id.

        Those of one flow only, or whose ids begin alike, if asked.  `executions("blocked")` is what waits for an
        operator; `state` says why, under `blocked`.
        """
        return [
            entry
            for entry in await self._stores.events.entries(*statuses)
            if flow_id in (None, entry.flow_id) and entry.execution_id.startswith(id_prefix)
        ]

    async def delete(self, execution_id: str) -> None:
        """Forget an execution that has ended, and all that is stored of it; an unknown one is no error (K-USER-1).

        Its id may be used again once no process can be left that has driven it: its fence is forgotten too, and what a
        late one appends at just the expected position would be taken for the new execution's.  Payloads kept by
        reference stay in the content store: forks may share them, of which nothing keeps count.  Raises `NotEnded`,
        `StoreUnavailable`.
        """
        if self._stores.disposal is None:
            raise ValueError("nothing can be deleted: the stores have no `disposal`")
        entry = await self._stores.events.entry(execution_id)
        if entry is not None and entry.status not in TERMINAL:
            raise NotEnded(f"execution {execution_id!r} is {entry.status}: cancel it first, then delete it")
        await self._stores.disposal.delete(execution_id)

    async def resolve(
        self,
        execution_id: str,
        step: str,
        *,
        completed: Json | Unsaid = UNSAID,
        failed: TypedFailure | None = None,
        retry: bool = False,
        attempt: int | None = None,
    ) -> None:
        """Say what has come of an at-most-once step in doubt, by its id in the log; exactly one of three (K-FLOW-4).

        It has `completed` with this output, it has `failed` as one of the step's declared failures, or it has not
        happened and is to `retry`.  When no step is in doubt any more, the execution goes on.  Saying the same again
        changes nothing; name the `attempt`, or a second `retry` might be for a later one.

        Raises `NothingToResolve`, `UnknownExecution`, `NoJsonForm`, `StoreUnavailable`.
        """
        said = resolution_of(completed, failed, retry)

        async def say(journal: Journal) -> None:
            payload = resolution_payload(journal.state, step, said, attempt)
            if payload is not None:
                await journal.commit(events.EFFECT_RESOLVED, payload)
            if not in_doubt(journal.state):
                await journal.commit(events.EXECUTION_UNBLOCKED, "{}")

        state = await self.state(execution_id)
        if state["status"] != "blocked":
            if resolution_payload(state, step, said, attempt) is None:
                return
            raise NothingToResolve(f"execution {execution_id!r} is {state['status']}: it takes no word until it blocks")
        await self._intervene(execution_id, say)

    async def resume_blocked(self, execution_id: str) -> None:
        """Run a blocked execution again, from its log: after a fix of its code, for example (K-FLOW-9).

        What blocked it may block it again.  Raises `NothingToResolve`, `UnknownExecution`, `StoreUnavailable`.
        """

        async def unblock(journal: Journal) -> None:
            await journal.commit(events.EXECUTION_UNBLOCKED, "{}")

        await self._intervene(execution_id, unblock)

    async def _intervene(self, execution_id: str, act: Callable[[Journal], Awaitable[None]]) -> None:
        """Have `act` append to a blocked execution, as its owner, and drive it if it is not blocked any more."""
        for _ in range(LOSSES_MAX):
            entry = await self._stores.events.entry(execution_id)
            if entry is None:
                raise UnknownExecution(f"no execution {execution_id!r} in this store")
            if entry.status != "blocked" or execution_id in self._driver.live:
                raise NothingToResolve(f"execution {execution_id!r} is {entry.status}, it is not blocked")
            try:
                journal = await self._driver.open(execution_id)
                if journal.state["status"] == "blocked":
                    with placed(journal.place()):
                        await act(journal)
            except (RunLost, Fenced, LeaseHeld):
                self._driver.fences.pop(execution_id, None)  # another operator was faster
                continue
            if journal.state["status"] == "running":
                self._driver.spawn(execution_id, journal, has_mail=True)
            else:
                self._driver.fences.pop(execution_id, None)
            return
        raise ConcurrencyConflict(f"{execution_id!r} was taken by others {LOSSES_MAX} times in a row: ask again")

    @property
    def driving(self) -> tuple[str, ...]:
        """The ids of the executions that this process is driving now, in the order in which it began."""
        return (*self._starting, *self._driver.live)

    async def wake(self, execution_id: str) -> None:
        """Have a parked execution see now whether its gate can be passed: by time, or a delivery of another process.

        One that is driven here sees when it parks; any other stays as it is.
        """
        await self._driver.wake(execution_id)

    async def wait_idle(self) -> Mapping[str, BaseException]:
        """Wait until nothing is driven here; return why this process gave up what it could not bring to rest, by id.

        What is parked may go on later: by a timer, a delivery, or because another execution has ended.
        """
        return await self._driver.wait_idle()

    # ---- ends --------------------------------------------------------------------------------------------------------

    async def wait_result(self, execution_id: str) -> Json:
        """Wait until the execution ends, here or in another process; see `Handle.result`."""
        while True:
            # Before the load.  Otherwise: 1. load, still running, 2. the execution ends and tells who waits, 3. wait.
            ended = self._driver.waiting.setdefault(execution_id, trio.Event())
            state = (await self._driver.load(execution_id)).fold.state
            if state["status"] in TERMINAL:
                self._driver.announce(execution_id)
                break
            if state["status"] == "blocked" and execution_id not in self._driver.live:
                raise ExecutionBlocked(execution_id, state["blocked"])
            if execution_id in self._driver.interrupted:
                cause = self._driver.interrupted[execution_id]
                raise ExecutionInterrupted(
                    f"this process stopped driving {execution_id!r}: {cause}; nothing is lost, `recover_all` goes on"
                ) from cause
            await self._ownership.wait_for_end(execution_id, ended)
        if state["status"] == "completed":
            return fresh(state["output"])
        if state["status"] == "cancelled":
            raise ExecutionCancelled(execution_id, state["error"])
        raise ExecutionFailed(execution_id, state["error"])

    async def compact(self, execution_id: str) -> int:
        """Fold the execution's log into a snapshot and drop it; see `kernel.lifecycle.compact`."""
        return await compact(self._stores, execution_id, self._parts.fold, self._projections)

    async def state(self, execution_id: str) -> FlowState:
        """Return the execution's folded state.  Raises `UnknownExecution`."""
        return (await self._driver.load(execution_id)).fold.release()


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
    worker: str | None = None,
    lease_seconds: float | None = None,
    payload_bytes_max: int | None = None,
) -> AsyncIterator[Runtime]:
    """Open a runtime; when the block ends, what it drives stops where it is.  A shutdown is a crash (K-RUN-3).

    Several runtimes may share a store if all of them have `lease_seconds`.  `worker` is a name that comes back when the
    process is started again, and that no other has: what its former self was driving is taken up without waiting.
    """
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
                worker=worker,
                lease_seconds=lease_seconds,
                payload_bytes_max=payload_bytes_max,
            )
        except BaseException as raised:
            failure = raised
        workers.cancel_scope.cancel()
    if failure is not None:
        raise failure  # as it is: that there is a nursery is nobody's affair
