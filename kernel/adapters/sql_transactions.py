"""A step's transaction on a database: what the stores that speak SQL share (K-USER-2).

The driver's part, a `Session`, blocks, so it works in threads, one at a time, as the store's own writes do.  Whoever
ends the transaction says so first and waits for the session second: what an effect sends after that, a zombie's for
example, finds the end, and is not executed.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio

from kernel.errors import TransactionEnded, TransactionRefused
from kernel.events import Envelope
from kernel.ports import Parameters, SqlResult, Status

INTERRUPT_SECONDS = 0.05
"""How often a statement that is at work when its transaction is rolled back is asked to stop."""

T = TypeVar("T")
C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)
C_co = TypeVar("C_co", covariant=True)


class Work(Protocol[C_contra]):
    """Writes of the store's own."""

    def __call__(self, connection: C_contra, /) -> object:
        """Do them."""


class Appending(Protocol[C_contra]):
    """Makes the work of an append."""

    def __call__(
        self,
        execution_id: str,
        expected: int,
        batch: Sequence[Envelope],
        *,
        fence: int,
        flow_id: str,
        status: Status,
        due_ms: int | None,
    ) -> Work[C_contra]:
        """Return it, to be done in a transaction."""


class Session(Protocol[C_co]):
    """A connection in an open transaction.  Called by one thread at a time, but for `interrupt`."""

    def execute(self, statement: str, parameters: Parameters) -> SqlResult:
        """Execute a statement of the effect's."""

    def commit(self, work: Work[C_co]) -> None:
        """Do `work` and commit.  Raises as `Transaction.append`; the transaction may be open after that."""

    def rollback(self) -> None:
        """End the transaction, whatever state it is in; raises nothing."""

    def interrupt(self) -> None:
        """Have the statement that is at work stop soon, if there is one."""

    def close(self) -> None:
        """Give up the connection; called once, after commit or rollback."""


class _Handle:
    """The `Sql` that an effect is handed: it can execute, and end nothing."""

    def __init__(self, execute: Callable[[str, Parameters], Awaitable[SqlResult]]) -> None:
        self._execute = execute

    async def execute(self, statement: str, parameters: Parameters = ()) -> SqlResult:
        """As the port says."""
        return await self._execute(statement, parameters)


class SqlTransaction(Generic[C]):
    """The `Transaction`.  Mutable: it ends, and then executes nothing."""

    def __init__(
        self,
        session: Session[C],
        appending: Appending[C],
        *,
        inline: bool,
        on_append: Callable[[str], None] | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self.sql = _Handle(self._execute)
        self._session = session
        self._appending = appending
        self._inline = inline
        self._on_append = on_append
        self._on_end = on_end
        self._statements = trio.CapacityLimiter(1)
        self._at_work = threading.Lock()  # over the session
        self._over = False  # the effect's part is: set before `_at_work` is waited for
        self._spoiled: str | None = None  # why it cannot be committed
        self.ended = False

    # ---- the effect's part -------------------------------------------------------------------------------------------

    async def _execute(self, statement: str, parameters: Parameters) -> SqlResult:
        if self._inline:
            await trio.lowlevel.checkpoint()
            return self._execute_now(statement, parameters)
        try:
            return await trio.to_thread.run_sync(
                self._execute_now, statement, parameters, limiter=self._statements, abandon_on_cancel=True
            )
        except trio.Cancelled:
            self._spoiled = "the effect gave up waiting for a statement, and nobody knows whether it was executed"
            raise

    def _execute_now(self, statement: str, parameters: Parameters) -> SqlResult:
        with self._at_work:
            if self._over:
                raise TransactionEnded(
                    f"{statement!r:.200} came after the end of its transaction and was not executed: its attempt has "
                    "passed its deadline, or its effect has returned; await all SQL in the effect itself"
                )
            return self._session.execute(statement, parameters)

    # ---- the kernel's part -------------------------------------------------------------------------------------------

    async def between(self, call: Callable[[], None]) -> None:
        """Call while no statement is at work, where they are executed."""
        await self._in_thread(self._between, call)

    def _between(self, call: Callable[[], None]) -> None:
        with self._at_work:
            call()

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
        """Append and commit, as the port says."""
        work = self._appending(
            execution_id, expected, batch, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms
        )
        self._over = True
        if self._spoiled is not None:
            raise TransactionRefused(f"nothing was written: {self._spoiled}")
        try:
            await self._in_thread(self._commit, work)
            self._end()
        finally:
            if self._on_append is not None:
                self._on_append(execution_id)  # whatever was raised: if the answer is lost it may have landed

    def _commit(self, work: Work[C]) -> None:
        with self._at_work:
            self._session.commit(work)
            self._session.close()

    async def rollback(self) -> None:
        """Roll back, as the port says."""
        self._over = True
        if not self.ended:
            try:
                await self._in_thread(self._roll_back)
            finally:
                self._end()

    def _roll_back(self) -> None:
        waited = 0.0
        while not self._at_work.acquire(timeout=waited):
            self._session.interrupt()
            waited = INTERRUPT_SECONDS
        try:
            self._session.rollback()
            self._session.close()
        finally:
            self._at_work.release()

    def _end(self) -> None:
        self.ended = True
        if self._on_end is not None:
            self._on_end()

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        """Call in a thread, which no cancellation parts from; not behind a statement that was given up."""
        if self._inline:
            return call(*arguments)
        return await trio.to_thread.run_sync(call, *arguments, limiter=trio.CapacityLimiter(1))
