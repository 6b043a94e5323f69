"""One run of a flow, from the top to a gate or an end (K-FLOW, K-RUN)."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from kernel import events
from kernel.context import Context
from kernel.definitions import Effect, Flow
from kernel.errors import (
    BlockingSignal,
    ContinuedAsNew,
    ControlSignal,
    NoJsonForm,
    RunInterrupted,
    StepInDoubt,
    Suspended,
    TypedFailure,
    UnknownEffect,
    describe_error,
)
from kernel.journal import Journal
from kernel.jsonform import DEPTH_MAX_STORED, Json, encode, fresh
from kernel.parts import Parts
from kernel.ports import Chance
from kernel.signals import leaves, verdict


@attrs.frozen(kw_only=True)
class Surroundings:
    """What a run needs beside its journal."""

    parts: Parts
    registry: Mapping[str, Effect]
    chance: Chance
    workers: trio.Nursery


async def run_once(journal: Journal, flow: Flow, surroundings: Surroundings) -> None:
    """Run the flow from the top; when this returns, the log says that it is parked or how it ended.

    Raises `RunLost` if another writer won a position, `RunInterrupted` if the store failed.
    """
    context = surroundings.parts.context(
        journal,
        surroundings.parts,
        registry=surroundings.registry,
        chance=surroundings.chance,
        workers=surroundings.workers,
    )
    try:
        output = await flow.function(context, fresh(journal.state["input"]))
    except BaseException as raised:
        ending = verdict(raised)
        if context.blocker is not None and isinstance(ending, Exception | ControlSignal):
            await _block(journal, context)
            return
        if not isinstance(ending, Exception | ControlSignal):
            context.end(f"it was stopped by {type(ending).__name__}")
            if all(isinstance(leaf, Exception | ControlSignal | trio.Cancelled) for leaf in leaves(raised)):
                await trio.lowlevel.checkpoint_if_cancelled()  # a shutdown, whatever errors it has caused in the flow
            raise
        if _is_over(context, raised):
            return
        if context.cancelling.has_begun:
            await _cancel(journal, context, ending)
            return
        context.end(f"it ended with {type(ending).__name__}")
        if isinstance(ending, ControlSignal):
            raise RunInterrupted(
                f"the flow of {context.execution_id!r} raised a signal that is not of this run: {ending!r}"
            ) from raised
        await _fail(journal, ending)
        return
    if context.blocker is not None:
        await _block(journal, context)
    elif _is_over(context, None):
        return
    elif context.cancelling.has_begun:
        await _cancel(journal, context, None)
    else:
        try:
            context.check_gates_passed()
        except BlockingSignal:
            await _block(journal, context)
            return
        context.end("the flow has returned")
        await _complete(journal, output)


async def _cancel(journal: Journal, context: Context, ending: BaseException | None) -> None:
    """The flow was told, and is through with its way out: whatever it makes of it, it has come to no other end."""
    context.end("the execution is cancelled")
    payload: dict[str, Json] = {"error": {"message": context.cancelling.reason, "type": "CancelRequested"}}
    if isinstance(ending, Exception):
        payload["failure"] = describe(ending)
    await journal.commit(events.EXECUTION_CANCELLED, encode(payload, depth_max=DEPTH_MAX_STORED))


async def _block(journal: Journal, context: Context) -> None:
    """The flow is not the one its log tells of, a step is in doubt, or its effect is missing here: stop, whatever the
    flow made of it, and undo nothing (K-FLOW-1, K-FLOW-4, K-FLOW-9)."""
    context.end("the execution is blocked")
    if context.signal is not None:
        raise context.signal  # lost or interrupted before: the owner starts again, and comes here again
    if journal.state["status"] == "blocked":
        return  # it was run to be cancelled, and did not come so far
    reason: dict[str, Json] = {"detail": str(context.blocker), "reason": "nondeterministic"}
    if isinstance(context.blocker, StepInDoubt):
        reason |= {"reason": "indoubt", "steps": [*sorted(context.doubts)]}
    elif isinstance(context.blocker, UnknownEffect):
        reason |= {"reason": "unregistered"}
    await journal.commit(events.EXECUTION_BLOCKED, encode(reason))


def _is_over(context: Context, raised: BaseException | None) -> bool:
    """Has a signal ended the run before its flow came to an end, whatever the flow made of it?

    A flow that swallows the signal, or raises something else in its place, changes nothing: its log says it is parked
    or begins anew,
    and a lost or interrupted run is its owner's affair.  Only a real error *beside* a suspension, in a group, is that
    error (K-FLOW-8).
    """
    signal = context.signal
    if signal is None:
        return False
    if isinstance(signal, ContinuedAsNew):
        return True
    if not isinstance(signal, Suspended):
        raise signal
    if raised is None or not isinstance(verdict(raised), Exception):
        return True
    return all(leaf is not signal for leaf in leaves(raised))


async def _complete(journal: Journal, output: object) -> None:
    try:
        text = journal.encode(output, "output")
    except NoJsonForm as error:
        await _fail(journal, error)
        return
    await journal.commit(events.EXECUTION_COMPLETED, f'{{"output":{text}}}')


async def _fail(journal: Journal, error: Exception) -> None:
    await journal.commit(events.EXECUTION_FAILED, encode({"error": describe(error)}, depth_max=DEPTH_MAX_STORED))


def describe(error: Exception) -> Json:
    """Return what the log keeps of an error: bit-stable, so no trace and no address (K-RUN)."""
    if isinstance(error, TypedFailure):
        try:
            encode(error.data)
        except NoJsonForm:
            return {"name": error.wire_name, **describe_error(error)}
        return {"data": error.data, "name": error.wire_name, "type": type(error).__name__}
    return describe_error(error)
