"""One attempt of a step: its effect, its deadline, and how it ended (K-FLOW-1 to 3, K-USER-2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import trio

from kernel import events
from kernel.digest import fnv1a64
from kernel.doubt import append_by_worker, leave_in_doubt
from kernel.errors import (
    ControlSignal,
    NoJsonForm,
    ReservedEventType,
    StepTimeout,
    TransactionMisuse,
    TypedFailure,
    describe_error,
)
from kernel.events import quoted
from kernel.jsonform import Json, decode_canonical, encode
from kernel.log_ids import PLACE
from kernel.signals import verdict

if TYPE_CHECKING:
    from kernel.context import Context
    from kernel.definitions import Effect, Step
    from kernel.ports import Sql, Transaction


@attrs.frozen(kw_only=True)
class Attempt:
    """What is about to be tried."""

    journal_id: str
    step: Step
    kind: str
    effect: Effect
    input_text: str
    number: int
    tries: int = 0  # which try of its call this is; 0 of a step without retries

    @property
    def is_last(self) -> bool:
        """Is its failure the step's?"""
        return self.step.retry is None or self.tries >= self.step.retry.attempts


class EffectCalls:
    """The `EffectContext` of one attempt."""

    def __init__(self, context: Context, attempt: Attempt, sql: Sql | None = None) -> None:
        self._context = context
        self._sql = sql
        self.step_id = attempt.journal_id
        self.attempt = attempt.number
        self.idempotency_key = f"{context.effect_scope()}/{attempt.journal_id}"
        self.deadline_seconds = attempt.step.deadline_seconds

    @property
    def sql(self) -> Sql:
        """The SQL of the attempt's transaction.  Raises `TransactionMisuse` if the step is none."""
        if self._sql is None:
            raise TransactionMisuse(f"step {self.step_id!r} is no transaction: declare it with `transaction`")
        return self._sql

    async def emit(self, type: str, payload: Json = None) -> None:
        """Append an event, never stamped and never counted (K-EMIT-1); refused once the run has ended (K-FLOW-10)."""
        self._context.check_alive()
        if self._sql is not None:
            raise TransactionMisuse(
                f"step {self.step_id!r} is a transaction, which may be rolled back, and emits {type!r}: return what is "
                "to be told, and let the flow emit it"
            )
        if type in events.KERNEL_TYPES:
            raise ReservedEventType(f"{type!r} is the kernel's own event type: emit under a name of your own")
        tag: dict[str, Json] = {"effect": self.step_id, "attempt": self.attempt}
        text = self._context.journal.encode(payload)
        await self._context.commit(type, text, provenance=tag)


class _TryAgain(Exception):
    """The attempt has failed, and the call goes on."""

    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms


async def run_attempts(context: Context, attempt: Attempt, due_ms: int | None) -> Json:
    """Run the attempts of one call of a step with retries, the first one when it is due (K-FLOW-11).

    An attempt that is retried is no outcome: nothing is unsettled by it.  The call is live all the same.
    """
    while True:
        if due_ms is not None:
            await _wait_until_due(context, attempt, due_ms)
        try:
            return await run_attempt(context, attempt)
        except _TryAgain as again:
            due_ms = again.due_ms
            attempt = attrs.evolve(attempt, number=attempt.number + 1, tries=attempt.tries + 1)


async def _wait_until_due(context: Context, attempt: Attempt, due_ms: int) -> None:
    try:
        await context.wait_until(due_ms, attempt.journal_id, attempt.kind)
    except trio.Cancelled:
        context.rule.ended_unsettled()
        await _record_cancelled(context, attempt)
        raise


async def run_attempt(context: Context, attempt: Attempt) -> Json:
    """Run the effect and record its end; return the output as the log holds it.

    Raises what the effect raised: a declared failure as it was recorded, anything else as it is, and `StepTimeout`.
    """
    step = quoted(attempt.journal_id)
    await context.commit(
        events.STEP_STARTED,
        f'{{"attempt":{attempt.number},"input":{attempt.input_text},"inputDigest":"{fnv1a64(attempt.input_text)}",'
        f'"kind":{quoted(attempt.kind)},"step":{step},"toolId":{quoted(attempt.step.tool)}'
        + (f',"tries":{attempt.tries}}}' if attempt.tries else "}"),
    )
    try:
        if attempt.step.transactional:
            raw, text = await _run_in_transaction(context, attempt)
        else:
            raw = await _run_effect(context, attempt, EffectCalls(context, attempt), attempt.step.deadline_seconds)
            text = context.journal.encode(raw, f"output of step {attempt.journal_id!r}")
    except attempt.step.failures as failure:
        raise await _record_typed(context, attempt, failure) from failure
    except Exception as error:
        if not attempt.is_last and not isinstance(error, NoJsonForm):
            raise await _record_retry(context, attempt, error) from error
        context.rule.ended_unsettled()
        ending = await _record_untyped(context, attempt, error)
        if ending is error:
            raise
        raise ending from error
    except trio.Cancelled:
        context.rule.ended_unsettled()
        await _record_cancelled(context, attempt)
        raise
    # A flow that gives a step up may do so while its end is appended.  A re-run then runs the step again; one that
    # runs at most once would be in doubt without need, so its end is appended by the worker, whom that does not reach.
    if attempt.step.at_most_once:
        await append_by_worker(context, events.STEP_COMPLETED, _completion(attempt, text))
    elif not attempt.step.transactional:
        await context.commit(events.STEP_COMPLETED, _completion(attempt, text))
    return context.live_value(raw, text)


async def _perform(context: Context, attempt: Attempt, calls: EffectCalls) -> object:
    """Call the effect, in whatever task this is."""
    outside = PLACE.set(context.journal.place(attempt.journal_id, attempt.number))
    try:
        with context.acting_as_effect(in_transaction=attempt.step.transactional):
            return await context.perform(attempt, calls, decode_canonical(attempt.input_text))
    finally:
        PLACE.reset(outside)


def _completion(attempt: Attempt, text: str) -> str:
    return f'{{"attempt":{attempt.number},"output":{text},"step":{quoted(attempt.journal_id)}}}'


async def _run_in_transaction(context: Context, attempt: Attempt) -> tuple[object, str]:
    """Run the effect and append its completion in one transaction, and return the output and its text (K-USER-2).

    Whatever is raised, nothing of the effect's SQL is there when it is.  The deadline is for the wait for the
    transaction as well.  It ends where the effect does: only this task commits, so no zombie can.
    """
    seconds = attempt.step.deadline_seconds
    expiry = math.inf if seconds is None else trio.current_time() + seconds
    transaction: Transaction | None = None
    with trio.move_on_at(expiry):
        transaction = await context.begin()
    if transaction is None:
        raise _timed_out(context, attempt)
    try:
        left = None if seconds is None else expiry - trio.current_time()
        if left is not None and left <= 0:
            raise _timed_out(context, attempt)
        raw = await _run_effect(context, attempt, EffectCalls(context, attempt, transaction.sql), left)
        text = context.journal.encode(raw, f"output of step {attempt.journal_id!r}")
        await context.commit_in(transaction, events.STEP_COMPLETED, _completion(attempt, text))
        return raw, text
    except BaseException as error:
        if not _is_served_or_retried(attempt, error):
            context.rule.ended_unsettled()  # known from now on, and the rollback takes its time (K-EMIT-5)
        raise
    finally:
        await context.journal.leave(transaction)


def _is_served_or_retried(attempt: Attempt, error: BaseException) -> bool:
    if isinstance(error, attempt.step.failures):
        return True
    return not attempt.is_last and isinstance(error, Exception) and not isinstance(error, NoJsonForm)


async def _run_effect(context: Context, attempt: Attempt, calls: EffectCalls, seconds: float | None) -> object:
    if seconds is not None:
        return await _run_with_deadline(context, attempt, calls, seconds)
    # Without a deadline nobody goes on before the effect has ended: it needs no task of its own.
    context.rule.effect_began()
    try:
        return await _perform(context, attempt, calls)
    finally:
        context.rule.effect_settled()


@attrs.define
class _Box:
    """What an effect in a task of its own came to.  Mutable: filled in when it settles."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    settled: trio.Event = attrs.field(factory=trio.Event)
    value: object = None
    error: BaseException | None = None


async def _run_with_deadline(context: Context, attempt: Attempt, calls: EffectCalls, seconds: float) -> object:
    """Run the effect in the worker's nursery and wait for it, but no longer than its deadline (K-FLOW-3)."""
    box = _Box()
    context.rule.effect_began()
    context.workers.start_soon(_settle, context, attempt, calls, box, name=f"effect {attempt.journal_id}")
    try:
        with trio.move_on_after(seconds):
            await box.settled.wait()
    except trio.Cancelled:
        box.scope.cancel()
        raise
    if not box.settled.is_set():
        box.scope.cancel()  # asked to stop; one that does not goes on as a zombie, and its result is dropped
        raise _timed_out(context, attempt)
    if box.error is not None:
        raise box.error
    return box.value


def _timed_out(context: Context, attempt: Attempt) -> StepTimeout:
    if attempt.is_last:
        context.rule.ended_unsettled()
    seconds = attempt.step.deadline_seconds
    return StepTimeout(f"step {attempt.journal_id!r} of {context.execution_id!r}: no end after {seconds} s")


async def _settle(context: Context, attempt: Attempt, calls: EffectCalls, box: _Box) -> None:
    try:
        with box.scope:
            box.value = await _perform(context, attempt, calls)
    except BaseException as raised:
        error = verdict(raised)
        if not isinstance(error, Exception | ControlSignal):
            raise
        if attempt.is_last and not isinstance(error, attempt.step.failures):
            context.rule.ended_unsettled()  # known from now on, before the flow is awake (K-EMIT-5)
        box.error = error  # raised to the flow if it still waits, otherwise the zombie's own affair
    finally:
        context.rule.effect_settled()
        box.settled.set()


async def _record_typed(context: Context, attempt: Attempt, failure: TypedFailure) -> BaseException:
    """Record a declared failure, and return it as a re-run will see it."""
    fitting = [d for d in attempt.step.failures if isinstance(failure, d)]
    declared = type(failure) if type(failure) in fitting else fitting[0]
    try:
        data = context.journal.encode(failure.data, f"data of {declared.wire_name} of step {attempt.journal_id!r}")
    except NoJsonForm as error:
        context.rule.ended_unsettled()
        return await _record_untyped(context, attempt, error)
    record = f'{{"data":{data},"name":{quoted(declared.wire_name)}}}'
    end = f'{{"attempt":{attempt.number},"failure":{record},"reason":"typed","step":{quoted(attempt.journal_id)}}}'
    if attempt.step.at_most_once:
        await append_by_worker(context, events.STEP_FAILED, end)
    else:
        await context.commit(events.STEP_FAILED, end)
    return context.rebuild_failure(attempt.journal_id, attempt.step, decode_canonical(record))


async def _record_retry(context: Context, attempt: Attempt, error: Exception) -> _TryAgain:
    assert attempt.step.retry is not None
    seconds = attempt.step.retry.wait_seconds(context.execution_id, attempt.journal_id, attempt.number, attempt.tries)
    due_ms = context.now_ms() + round(seconds * 1000)
    await _append_failure(context, attempt, error, more=f'"retryDue":{due_ms},')
    return _TryAgain(due_ms)


async def _append_failure(context: Context, attempt: Attempt, error: Exception, more: str = "") -> None:
    record = encode(describe_error(error))
    await context.commit(
        events.STEP_FAILED,
        f'{{"attempt":{attempt.number},"failure":{record},"reason":"{_reason(error)}",{more}'
        f'"step":{quoted(attempt.journal_id)}}}',
    )


def _reason(error: Exception) -> str:
    return "timeout" if isinstance(error, StepTimeout) else "error"


async def _record_untyped(context: Context, attempt: Attempt, error: Exception) -> BaseException:
    """Record any other error, and return what to raise: the error itself, or that the step is in doubt."""
    if attempt.step.at_most_once:
        return await leave_in_doubt(context, attempt.journal_id, attempt.number, _reason(error), describe_error(error))
    await _append_failure(context, attempt, error)
    return error


async def _record_cancelled(context: Context, attempt: Attempt) -> None:
    """Record that the flow gave the step up; a shutdown records nothing (K-RUN-3)."""
    if context.ending is not None:
        return
    if attempt.step.at_most_once:
        await leave_in_doubt(context, attempt.journal_id, attempt.number, "cancelled", None)
        return
    await append_by_worker(
        context, events.STEP_CANCELLED, f'{{"attempt":{attempt.number},"step":{quoted(attempt.journal_id)}}}'
    )
