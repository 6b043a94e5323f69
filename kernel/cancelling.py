"""Cancellation: a durable request that the owner turns into one signal (K-RUN-4).

The request waits in the mailbox, outside the log, so it never races with the owner for a position.  The owner records
it, `CANCEL_REQUESTED`, when the flow next makes a syscall that is not served, and raises `CancelRequested` there: once
in the flow, and once in each open branch.  What the flow does on its way out, rollbacks first, runs like anything else;
and a re-run comes to the same place, since the request is in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from kernel import events
from kernel.errors import CancelRequested
from kernel.ids import CANCEL_DELIVERY
from kernel.jsonform import Json, encode
from kernel.ports import Delivery

if TYPE_CHECKING:
    from kernel.context import Context

DELIVERY_ID = CANCEL_DELIVERY
"""Of the one request an execution can have pending."""

DEADLINE_PASSED = "its deadline has passed"


def request(reason: str) -> Delivery:
    """Return what waits in the mailbox."""
    return Delivery(
        delivery_id=DELIVERY_ID, on=events.CANCEL_REQUESTED, correlation_key=None, payload_text=encode(reason)
    )


class Cancelling:
    """The cancellation of one run.  Mutable: `told` are the paths of the branches that have had their signal."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._recording: trio.Event | None = None
        self.told: set[str] = set()

    @property
    def reason(self) -> Json:
        """Why the execution is cancelled."""
        return self._context.journal.cancel

    async def give_way(self, at: str, *, again: bool = False) -> None:
        """Raise `CancelRequested` at a syscall, unless the calling branch, or the one that opened it, has had it.

        `again` is for what an earlier run has been past: the flow goes on to where that run was, for the rollback must
        know of all that was done (a place it has given way at before is such a place, whatever the log holds since).
        """
        path = self._context.branch_path()
        if self._is_told(path) or (again and not self._gave_way_at(at) and self._context.is_replaying()):
            return
        await self.record(at)
        raise self.signal(path)

    def _gave_way_at(self, at: str) -> bool:
        request = self._context.journal.state["cancelRequest"]
        return isinstance(request, dict) and request.get("at") == at

    def signal(self, path: str) -> CancelRequested:
        """Return the signal to raise in a branch, which has had it then."""
        self.told.add(path)
        return CancelRequested(f"execution {self._context.execution_id!r} is to be cancelled: {self.reason}")

    @property
    def has_begun(self) -> bool:
        """Has the flow given way, in this run or an earlier one?  Then it comes to no other end."""
        return self._context.journal.state["cancelRequest"] is not None

    def is_due(self) -> bool:
        """Has the calling branch a signal to come?"""
        return self._context.journal.cancel is not None and not self._is_told(self._context.branch_path())

    def _is_told(self, path: str) -> bool:
        return any(path == told or path.startswith(told + "/") for told in self.told)

    async def record(self, at: str | None = None) -> None:
        """Have the request in the log, and where the flow gave way first; several branches may come here at once."""
        while self._recording is not None:
            await self._recording.wait()
        if self._context.journal.state["cancelRequest"] is not None:
            return
        done = self._recording = trio.Event()
        try:
            await self._context.commit(events.CANCEL_REQUESTED, encode({"at": at, "reason": self.reason}))
        finally:
            self._recording = None
            done.set()
