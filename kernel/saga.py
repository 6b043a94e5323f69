"""Sagas: reverse-order compensation as a library over ordinary steps (K-SAGA, ADR 0041).

Compensators are steps of their own, so a crash in the middle of a rollback recovers like any other: those that have
completed are served, the rest run.  Beyond ADR 0041, a rollback that has begun is finished (K-SAGA-4): once a
compensation of a saga is in the log, no forward step of its scope is made live again, or an untyped failure that
succeeds on the re-run would complete a flow whose work was undone.
"""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar

import attrs
import trio

from kernel.context import COMPENSATION, LIVE_CHECKS, Context
from kernel.definitions import Step
from kernel.errors import CancelRequested, KernelError
from kernel.jsonform import Json, decode_canonical, encode
from kernel.signals import verdict

_MARK = "#compensate:"


class SagaCompensationError(KernelError):
    """Some compensators failed; the rest were run.  `failures` has a pair of journal id and error for each."""

    def __init__(self, failures: list[tuple[str, Exception]]) -> None:
        listed = "; ".join(f"{journal_id}: {type(error).__name__}: {error}" for journal_id, error in failures)
        super().__init__(f"{len(failures)} compensators failed: {listed}")
        self.failures = failures


class RollbackInProgress(KernelError):
    """A forward syscall that the log does not serve was made in a saga whose rollback has begun (K-SAGA-4)."""


class SagaMisuse(KernelError):
    """A saga was used by two tasks at a time, or two compensations would share one journal id (K-SAGA-1, 2)."""


@attrs.frozen(kw_only=True)
class _Compensation:
    journal_id: str
    step: Step
    input_text: str  # a text, for the flow may go on to change the value it was given (K-LOG-4)


class Saga:
    """A stack of compensations, rebuilt by every re-run.  Mutable; used by one task at a time.

    A flow with several sagas that may roll back should name them.  A compensation frame in the log says by its journal
    id which name it belongs to, not which of several sagas without one; a saga takes those for its own that no other
    of its run has taken.  That errs on the side of rolling back.

    A flow that gets over a failure inside a saga should declare it.  An untyped one is not served, so a re-run that
    finds the rollback begun is refused there, and what was registered beyond it is not undone (K-SAGA-4).  What of that
    had been begun is named in the `SagaCompensationError`; of the rest the log knows the forward steps only.
    """

    def __init__(self, ctx: Context, name: str | None = None) -> None:
        self._ctx = ctx
        self._scope = _MARK if name is None else f"{_MARK}{name}:"
        self._stack: list[_Compensation] = []
        self._registered = 0
        self._user: trio.lowlevel.Task | None = None
        self._frames = [step for step in ctx.recorded_steps() if self._is_mine(step)]  # of a rollback in an earlier run
        self._taken: set[str] = set()  # journal ids of compensations of this very saga
        self._rolled_back = False  # a rollback has begun in this run
        self._refused = False  # a forward syscall of this run was
        self._told_before = len(ctx.cancelling.told)  # a saga of the way out of a cancellation is not rolled back by it

    def _is_mine(self, journal_id: str) -> bool:
        """Is this the journal id of a compensation of a saga with this name?"""
        _, mark, index = journal_id.rpartition(self._scope)
        return bool(mark) and index.isdigit()

    @property
    def _begun(self) -> bool:
        """Has a rollback of this saga begun, in an earlier run or in this?"""
        return self._rolled_back or any(
            frame in self._taken or not self._ctx.has_compensation(frame) for frame in self._frames
        )

    @property
    def owes_rollback(self) -> bool:
        """Is there a rollback to finish?

        One that has begun and is not through, one in whose favour a syscall of this run was refused, or one for a
        cancellation that the body has swallowed.  A body that has itself rolled back to the end owes nothing.
        """
        told = len(self._ctx.cancelling.told) > self._told_before
        return self._refused or ((self._begun or told) and bool(self._stack))

    async def run(
        self, step: Step, input: Json = None, *, key: str | None = None, compensate: Step | None = None
    ) -> Json:
        """Run a forward step; when it has completed, register `compensate`, which will be given its output."""
        self._enter()
        # Taken before the work is done: a collision must not leave work that nothing undoes.
        journal_id = None if compensate is None else self._take(compensate)
        completed = False
        try:
            with self.guard():
                output = await self._ctx.execute(step, input, key=key)
            completed = True
        finally:
            self._user = None
            if journal_id is not None and not completed:
                self._ctx.release_compensation(journal_id)
                self._taken.discard(journal_id)
        if compensate is not None and journal_id is not None:
            self._register(journal_id, compensate, encode(output))
        return output

    def compensate(self, step: Step, input: Json = None) -> None:
        """Register a compensation.  Raises `NoJsonForm`, `SagaMisuse`."""
        self._enter()
        self._user = None
        input_text = encode(input, at=f"input of compensation {step.id!r}")
        self._register(self._take(step), step, input_text)

    def _take(self, step: Step) -> str:
        journal_id = f"{step.id}{self._scope}{self._registered}"
        if not self._ctx.take_compensation(journal_id):
            self._user = None
            raise SagaMisuse(f"two sagas of one flow would both run {journal_id!r}: give each saga its own `name`")
        self._taken.add(journal_id)
        return journal_id

    def _register(self, journal_id: str, step: Step, input_text: str) -> None:
        self._registered += 1
        self._stack.append(_Compensation(journal_id=journal_id, step=step, input_text=input_text))

    async def rollback(self) -> None:
        """Run all that is registered, last first, then raise `SagaCompensationError` if any failed (K-SAGA-3)."""
        self._enter()
        failures: list[tuple[str, Exception]] = []
        try:
            while self._stack:
                compensation = self._stack.pop()
                self._rolled_back = True
                try:
                    await self._undo(compensation)
                except Exception as error:
                    failures.append((compensation.journal_id, error))
            failures += [(frame, _out_of_reach(frame)) for frame in self._left_begun()]
        finally:
            self._user = None
        if failures:
            raise SagaCompensationError(failures)

    def _left_begun(self) -> list[str]:
        """Return the compensations that an earlier run has begun and this one, refused on its way, has not come to."""
        if not self._refused:
            return []
        steps = self._ctx.journal.state["steps"]
        return [
            frame
            for frame in self._frames
            if steps[frame]["outcome"] != "completed" and not self._ctx.has_compensation(frame)
        ]

    async def _undo(self, compensation: _Compensation) -> None:
        """Run one compensation as a step of its own; it is no forward syscall of any saga around it."""
        token = LIVE_CHECKS.set(())
        try:
            await self._ctx.execute_as(
                compensation.journal_id,
                compensation.step,
                decode_canonical(compensation.input_text),
                kind=COMPENSATION,
            )
        finally:
            LIVE_CHECKS.reset(token)

    def guard(self) -> Guard:
        """While the returned block lasts, no syscall that the log does not serve is made once a rollback has begun."""
        return Guard(self)

    def refuse_live(self, what: str) -> None:
        """Raise `RollbackInProgress` if a rollback has begun."""
        if self._begun:
            self._refused = True
            raise RollbackInProgress(
                f"{what} of {self._ctx.execution_id!r} is not in the log, and the rollback of its saga has begun: "
                "the rollback is finished instead"
            )

    def _enter(self) -> None:
        task = trio.lowlevel.current_task()
        if self._user is not None:
            raise SagaMisuse("a saga was used by two tasks at a time: their compensations' indices would be swapped")
        self._user = task


def _out_of_reach(frame: str) -> RollbackInProgress:
    return RollbackInProgress(
        f"{frame!r} was begun before a crash and is not finished: this run was refused before it came to where that is "
        "registered; see to it by hand, and declare the failure that the flow got over"
    )


class Guard:
    """See `Saga.guard`."""

    def __init__(self, saga: Saga) -> None:
        self._saga = saga

    def __enter__(self) -> None:
        self._token = LIVE_CHECKS.set((*LIVE_CHECKS.get(), self._saga.refuse_live))

    def __exit__(self, *_: object) -> None:
        LIVE_CHECKS.reset(self._token)


class saga:  # lower case: it reads as a statement, `async with saga(ctx) as s`
    """A saga over a block: a real error or a cancellation rolls back and is raised again; a suspension passes untouched
    (ADR 0041, K-RUN-4)."""

    saga_type: ClassVar[type[Saga]] = Saga

    def __init__(self, ctx: Context, name: str | None = None) -> None:
        self._saga = self.saga_type(ctx, name)
        self._guard = self._saga.guard()

    async def __aenter__(self) -> Saga:
        self._guard.__enter__()
        return self._saga

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._guard.__exit__()
        cause = None if raised is None else verdict(raised)
        if not isinstance(cause, Exception | CancelRequested) and (cause is not None or not self._saga.owes_rollback):
            return False
        try:
            await self._saga.rollback()
        except SagaCompensationError as error:
            raise error from cause
        if raised is None:  # the body swallowed it
            raise RollbackInProgress("the body went on after its rollback had begun; the rollback has been finished")
        return False
