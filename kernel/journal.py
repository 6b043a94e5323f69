"""The journal: this process's one writer of an execution's log.

It holds the folded state, forms envelopes, appends them one at a time and folds what has landed.  It outlives the runs
of the flow: a resume goes on with the same journal, a lost position with a new one (K-LOG-2).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import attrs
import trio

from kernel.errors import AppendUnknown, ConcurrencyConflict, LogTruncated, RunLost, TooLarge
from kernel.events import EXECUTION_SUSPENDED, Envelope, seal
from kernel.fold import FoldPass
from kernel.jsonform import Json, encode
from kernel.lifecycle import Loaded, decode_snapshot, save_snapshot
from kernel.log_ids import Place
from kernel.ports import Clock, Status, Stores, Transaction
from kernel.projections import Projection, ProjectionPass
from kernel.state import FlowState

logger = logging.getLogger("kernel")

SETTLE_ATTEMPTS = 16
"""How often an append whose answer is lost is sent before the run gives up."""

SETTLE_PAUSE_MS = 10
SETTLE_PAUSE_MS_MAX = 5_000
"""The wait after the second answer that is lost, doubled after each, and the longest."""

Observer = Callable[[Envelope], None]
"""Called with each event that is durable, in order; it must not wait.  What it raises is logged, and stops nothing."""


class AppendIds:
    """Append ids of one process: its incarnation and a counter (K-LOG-2)."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self._prefix = incarnation + "/"
        self._count = 0

    def next(self) -> str:
        """Return an id that no other append has."""
        self._count += 1
        return self._prefix + str(self._count)


@attrs.define(kw_only=True)
class Journal:
    """Mutable: `fold.state` is always the state after the last event known to be durable."""

    execution_id: str
    stores: Stores
    clock: Clock
    append_ids: AppendIds
    fold: FoldPass
    projecting: ProjectionPass  # its values are at `fold.state`
    fence: int
    observers: Sequence[Observer] = ()
    snapshot_every: int | None = None
    payload_bytes_max: int | None = None
    cancel: Json = None  # why the execution is to be cancelled, from when this process knows; None: it is not
    naps: set[trio.CancelScope] = attrs.field(factory=set)  # waits that a cancellation ends
    _since_snapshot: int = 0
    _busy: bool = False
    _queue: deque[trio.Event] = attrs.field(factory=deque)

    @classmethod
    def resume(
        cls,
        loaded: Loaded,
        *,
        stores: Stores,
        clock: Clock,
        append_ids: AppendIds,
        fence: int,
        projections: Sequence[Projection],
        observers: Sequence[Observer],
        snapshot_every: int | None,
        payload_bytes_max: int | None = None,
    ) -> Journal:
        """Return a journal that goes on from a loaded log."""
        return cls(
            execution_id=loaded.execution_id,
            stores=stores,
            clock=clock,
            append_ids=append_ids,
            fold=loaded.fold,
            projecting=ProjectionPass(projections, loaded.projected),
            fence=fence,
            observers=observers,
            snapshot_every=snapshot_every,
            payload_bytes_max=payload_bytes_max,
            cancel=_reason(loaded.fold.state),
            since_snapshot=loaded.fold.state["lastSequence"] - loaded.snapshot_sequence,
        )

    @property
    def state(self) -> FlowState:
        """The state after the last durable event: to be read, not kept."""
        return self.fold.state

    def place(self, step_id: str | None = None, attempt: int | None = None) -> Place:
        """Return where code is that works on this execution, or inside an effect of it (K-USER-4)."""
        return Place(self.execution_id, self.fold.state["flowId"], self.append_ids.incarnation, step_id, attempt)

    def encode(self, value: object, at: str = "payload") -> str:
        """Return the canonical text of a value that is to be recorded.  Raises `NoJsonForm`, `TooLarge` (K-LOG-6)."""
        text = encode(value, at=at)
        if self.payload_bytes_max is not None:
            check_size(text, at, self.payload_bytes_max)
        return text

    def ask_cancel(self, reason: Json) -> None:
        """The execution is to be cancelled: its flow will see it at its next syscall that is not served (K-RUN-4)."""
        if self.cancel is None:
            self.cancel = reason
            for nap in self.naps:
                nap.cancel()

    async def commit(
        self,
        type: str,
        payload_text: str,
        *,
        stamp: str | None = None,
        provenance: dict[str, Json] | None = None,
        admit: Callable[[], None] | None = None,
    ) -> None:
        """Append one event and fold it; returns when it is durable.

        Waits its turn, then asks `admit` (which raises if the run has ended meanwhile).  Raises `RunLost` if another
        writer took the position: what was computed for this one is never moved to another (K-LOG-2).
        """
        await self._take_turn()
        try:
            if admit is not None:
                admit()
            envelope = self._seal(type, payload_text, stamp, provenance)
            await self._land(envelope)
            self._absorb(envelope)
            await self._snapshot_if_due()
        finally:
            self._pass_turn()

    # ---- transactions ------------------------------------------------------------------------------------------------

    async def begin(self, admit: Callable[[], None]) -> Transaction:
        """Open a transaction of the store, and append nothing else until `leave` (K-USER-2).

        The turn comes first, as for every append.  Otherwise: 1. the transaction has the store's only writer, 2. a
        sibling has the turn and waits for the writer, 3. the transaction's own append waits for the turn.
        """
        assert self.stores.transactions is not None
        await self._take_turn()
        try:
            admit()
            return await self.stores.transactions.begin()
        except BaseException:
            self._pass_turn()
            raise

    async def commit_in(self, transaction: Transaction, type: str, payload_text: str) -> None:
        """Append one event with all that the transaction has done, and fold it; the turn is still held.

        Raises `TransactionRefused`; `RunLost` if another writer took the position, or if the answer was lost and the
        log does not show the event yet: the next append at this position, by whom it may be, decides.
        """
        envelope = self._seal(type, payload_text, None, None)
        flow_id, status, due_ms = self._summary(envelope)
        try:
            await transaction.append(
                self.execution_id,
                envelope.sequence,
                (envelope,),
                fence=self.fence,
                flow_id=flow_id,
                status=status,
                due_ms=due_ms,
            )
        except (AppendUnknown, ConcurrencyConflict) as lost:
            # Not sent again: that would append the completion without the SQL.
            if not await self._holds(envelope):
                raise RunLost(f"{self.execution_id!r}: a transaction at {envelope.sequence} has no answer") from lost
        self._absorb(envelope)
        await self._snapshot_if_due()

    async def leave(self, transaction: Transaction) -> None:
        """Roll the transaction back, unless it has been committed, and pass the turn on."""
        try:
            with trio.CancelScope(shield=True):
                await transaction.rollback()
        finally:
            self._pass_turn()

    # ---- turns -------------------------------------------------------------------------------------------------------

    async def _take_turn(self) -> None:
        # A store need not look at cancellation.  Otherwise: 1. shutdown, 2. an effect makes an error of its
        # cancellation, 3. it is appended as the step's failure, and the execution fails.  A shutdown is a crash.
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._busy:
            turn = trio.Event()
            self._queue.append(turn)
            await self._wait_turn(turn)
        self._busy = True

    async def _wait_turn(self, turn: trio.Event) -> None:
        """Wait to be handed the turn; one who is cancelled while waiting hands it on."""
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_turn()
            else:
                self._queue.remove(turn)
            raise

    def _pass_turn(self) -> None:
        if self._queue:
            self._queue.popleft().set()  # still busy: the turn is handed over, nobody can push in
        else:
            self._busy = False

    def _seal(self, type: str, payload_text: str, stamp: str | None, provenance: dict[str, Json] | None) -> Envelope:
        state = self.fold.state
        return seal(
            execution_id=self.execution_id,
            sequence=state["lastSequence"] + 1,
            type=type,
            payload_text=payload_text,
            timestamp_ms=self.clock.now_ms(),
            append_id=self.append_ids.next(),
            previous_hash=state["lastHash"],
            stamp=stamp,
            provenance=provenance,
        )

    async def _land(self, envelope: Envelope) -> None:
        """Append until the answer is known.  Raises `AppendUnknown` if it does not come to be.

        A lost answer is settled by sending the same append again: if the first had landed, the position is taken, and
        the append id at it says by whom.  The first repeat is made at once: what lost one answer mostly gives the next.
        """
        flow_id, status, due_ms = self._summary(envelope)
        for attempt in range(SETTLE_ATTEMPTS):
            if attempt > 1:
                pause_ms = min(SETTLE_PAUSE_MS * 2 ** (attempt - 2), SETTLE_PAUSE_MS_MAX)
                await self.clock.sleep_until(self.clock.now_ms() + pause_ms)
            try:
                await self.stores.events.append(
                    self.execution_id,
                    envelope.sequence,
                    (envelope,),
                    fence=self.fence,
                    flow_id=flow_id,
                    status=status,
                    due_ms=due_ms,
                )
            except AppendUnknown:
                continue
            except ConcurrencyConflict as conflict:
                if await self._holds(envelope):
                    return
                raise RunLost(f"{self.execution_id!r}: position {envelope.sequence} went to another") from conflict
            return
        raise AppendUnknown(
            f"{self.execution_id!r}: {SETTLE_ATTEMPTS} appends at position {envelope.sequence} were not answered, so "
            "it may or may not have landed; start or recover the execution when the store answers again"
        )

    async def _holds(self, envelope: Envelope) -> bool:
        """Is what the log has at this position this very append?"""
        try:
            tail = await self.stores.events.read_from(self.execution_id, envelope.sequence)
        except LogTruncated:
            return await self._is_absorbed(envelope)
        return bool(tail) and tail[0].hash == envelope.hash and tail[0].text == envelope.text

    async def _is_absorbed(self, envelope: Envelope) -> bool:
        """The log was compacted meanwhile: does its snapshot end with this very append?

        A snapshot of a later position is of a log that somebody has gone on with, under this journal's fence, or the
        append would have been refused for that.  Whoever did has won the position; starting again from there is right
        in any case, since what has landed is in the snapshot.
        """
        stored = await self.stores.snapshots.load(self.execution_id)
        if stored is None or stored.sequence != envelope.sequence:
            return False
        return decode_snapshot(stored).state["lastHash"] == envelope.hash

    def _summary(self, envelope: Envelope) -> tuple[str, Status, int | None]:
        """What the catalogue is to say once the envelope has landed."""
        state = self.fold.state
        status = STATUS_AFTER.get(envelope.type) or cast("Status", state["status"])
        flow_id = state["flowId"] or cast(str, cast("dict[str, Json]", envelope.payload)["flowId"])
        # Only a gate's payload has a due time.  Otherwise: 1. parked, 2. asked to cancel, 3. the way out emits a text.
        gate = cast("dict[str, Json]", envelope.payload) if envelope.type == EXECUTION_SUSPENDED else {}
        return flow_id, status, next_due(state, status, gate_due=cast("int | None", gate.get("due")))

    def _absorb(self, envelope: Envelope) -> None:
        self.fold.apply(envelope)
        self._since_snapshot += 1
        self.projecting.apply(envelope)
        for observer in self.observers:
            try:
                observer(envelope)
            except Exception:  # its own affair: the event is durable, and the execution goes on
                logger.exception(
                    "execution %s: an observer failed at event %s (%s), and goes without it",
                    self.execution_id,
                    envelope.sequence,
                    envelope.type,
                )

    async def _snapshot_if_due(self) -> None:
        if self.snapshot_every is None or self._since_snapshot < self.snapshot_every:
            return
        await save_snapshot(self.stores.snapshots, self.execution_id, self.fold.release(), self.projecting.values)
        self._since_snapshot = 0


def check_size(text: str, at: str, bytes_max: int) -> None:
    """Raise `TooLarge` if a text is larger than a payload may be."""
    size = len(text) if text.isascii() else len(text.encode())
    if size > bytes_max:
        what = f"its JSON has {size} bytes, {bytes_max} is the most that is recorded"
        raise TooLarge(at, what, "keep it elsewhere, and name the place")


def next_due(state: FlowState, status: str | None, *, gate_due: int | None = None) -> int | None:
    """Return what the catalogue says is due of an execution of this status.

    Of a parked one that is when time will do something: its gate's timer, or its deadline.  Of a blocked one it is the
    deadline, for an operator to see: nothing will happen then (K-USER-1).  `gate_due` is for a gate that is about to be
    appended.
    """
    gate = state["gate"]
    deadline = None if state["cancelRequest"] is not None else state.get("deadline")
    if status == "blocked":
        return deadline
    if status != "suspended":
        return None
    due = gate_due if gate is None else gate["due"]
    if deadline is None:
        return due
    return deadline if due is None else min(due, deadline)


def _reason(state: FlowState) -> Json:
    request = state["cancelRequest"]
    return request["reason"] if isinstance(request, dict) else None


STATUS_AFTER: dict[str, Status] = {
    "EXECUTION_STARTED": "running",
    "EXECUTION_SUSPENDED": "suspended",
    "EXECUTION_RESUMED": "running",
    "EXECUTION_CONTINUED": "running",
    "EXECUTION_BLOCKED": "blocked",
    "EXECUTION_UNBLOCKED": "running",
    "CANCEL_REQUESTED": "running",
    "EXECUTION_COMPLETED": "completed",
    "EXECUTION_FAILED": "failed",
    "EXECUTION_CANCELLED": "cancelled",
}
"""The status an event type leads to; any other leaves it as it was."""
