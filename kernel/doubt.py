"""At-most-once steps in doubt, and how an operator resolves them (K-FLOW-4).

What is neither a completion nor a typed failure leaves such a step in doubt: its effect may have happened.  It does not
run again; the log says `EFFECT_INDOUBT`, once for each attempt, and the execution blocks.  An operator's word is one
event, `EFFECT_RESOLVED`, of which the fold makes the step's end, or the permission for one more attempt.  When nothing
is in doubt any more, `EXECUTION_UNBLOCKED` lets the execution go on.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs
import trio

from kernel import events
from kernel.errors import BlockingSignal, ControlSignal, NothingToResolve, StepInDoubt, TypedFailure
from kernel.events import quoted
from kernel.jsonform import Json, encode
from kernel.state import FlowState, StepEntry

if TYPE_CHECKING:
    from kernel.context import Context


@attrs.frozen(kw_only=True)
class Completed:
    """The effect has happened, and this is its output."""

    output: Json


@attrs.frozen(kw_only=True)
class Failed:
    """The effect has not happened and will not: the step fails as if it had raised this."""

    failure: TypedFailure


@attrs.frozen(kw_only=True)
class Retry:
    """The effect has not happened: try once more."""


Resolution = Completed | Failed | Retry


class Unsaid(enum.Enum):
    """No output was named; None is one."""

    UNSAID = 0


UNSAID = Unsaid.UNSAID


def resolution_of(completed: Json | Unsaid, failed: TypedFailure | None, retry: bool) -> Resolution:
    """Return the one thing that was said.  Raises `ValueError` if it was none or more."""
    said: list[Resolution] = [Retry()] if retry else []
    if failed is not None:
        said.append(Failed(failure=failed))
    if not isinstance(completed, Unsaid):
        said.append(Completed(output=completed))
    if len(said) != 1:
        raise ValueError(f"{len(said)} resolutions were given, wanted one of `completed`, `failed` and `retry`")
    return said[0]


def may_try_again(entry: StepEntry) -> bool:
    """Has an operator allowed another attempt after the newest one?"""
    return entry["outcome"] == "indoubt" and entry["resolution"] == {
        "attempt": entry["attempts"],
        "resolution": "retry",
    }


def resolution_payload(state: FlowState, step: str, said: Resolution, attempt: int | None) -> str | None:
    """Return the payload of the event that records an operator's word; None if the log has that very word already.

    Raises `NothingToResolve`, `NoJsonForm`.
    """
    entry = state["steps"].get(step)
    if entry is None:
        raise NothingToResolve(f"the log has no step {step!r}; in doubt are {in_doubt(state)}")
    kind = type(said).__name__.lower()
    number = entry["attempts"] if attempt is None else attempt
    if entry["resolution"] == {"attempt": number, "resolution": kind}:
        return None  # asked again, because an answer was lost
    if step not in in_doubt(state) or number != entry["attempts"]:
        raise NothingToResolve(
            f"attempt {number} of step {step!r} is not in doubt: attempt {entry['attempts']} is the newest, with "
            f"outcome {entry['outcome']!r} and resolution {entry['resolution']!r}; in doubt are {in_doubt(state)}"
        )
    more = ""
    match said:
        case Completed(output=output):
            more = f'"output":{encode(output, at=f"output of step {step!r}")},'
        case Failed(failure=failure):
            data = encode(failure.data, at=f"data of {failure.wire_name}")
            more = f'"failure":{{"data":{data},"name":{quoted(failure.wire_name)}}},'
    return f'{{"attempt":{number},{more}"resolution":"{kind}","step":{quoted(step)}}}'


def in_doubt(state: FlowState) -> list[str]:
    """Return the steps of which an operator has to say what happened."""
    return sorted(
        step for step, entry in state["steps"].items() if entry["outcome"] == "indoubt" and not may_try_again(entry)
    )


async def find_in_doubt(context: Context, journal_id: str, entry: StepEntry) -> BlockingSignal:
    """A step was started and its end is not in the log: say so once, and return the signal to raise."""
    if entry["outcome"] == "indoubt":
        return _doubt(context, journal_id)
    reason = "lost" if entry["outcome"] is None else entry["outcome"]
    return await leave_in_doubt(context, journal_id, entry["attempts"], reason, entry["failure"])


async def leave_in_doubt(context: Context, journal_id: str, attempt: int, reason: str, failure: Json) -> BlockingSignal:
    """Record that an attempt has come to no end a re-run could be served, and return the signal to raise."""
    context.rule.ended_unsettled()
    signal = _doubt(context, journal_id)  # before the append: siblings begin nothing from now on
    await append_by_worker(
        context,
        events.EFFECT_INDOUBT,
        f'{{"attempt":{attempt},"failure":{encode(failure)},"reason":{quoted(reason)},"step":{quoted(journal_id)}}}',
    )
    return signal


def _doubt(context: Context, journal_id: str) -> BlockingSignal:
    context.rule.ended_unsettled()
    context.doubts.append(journal_id)
    return context.block(
        StepInDoubt(
            f"step {journal_id!r} of {context.execution_id!r} runs at most once, and an attempt of it has no end in "
            "the log: find out whether its effect has happened, and say so with `resolve`"
        )
    )


async def append_by_worker(context: Context, type: str, payload_text: str) -> None:
    """Append from the worker's nursery, and wait: the flow's own cancellation does not reach it, a shutdown does."""
    landed = _Landing()
    context.workers.start_soon(_append, context, type, payload_text, landed, name=f"append {type}")
    with trio.CancelScope(shield=True):
        await landed.known.wait()
    if landed.signal is not None:
        raise landed.signal
    if not landed.done:
        await trio.sleep_forever()  # the worker is shut down, and so is this task


@attrs.define
class _Landing:
    """What came of an append in another task.  Mutable: filled in when it is known."""

    known: trio.Event = attrs.field(factory=trio.Event)
    done: bool = False
    signal: ControlSignal | None = None


async def _append(context: Context, type: str, payload_text: str, landed: _Landing) -> None:
    try:
        await context.commit(type, payload_text)
        landed.done = True
    except ControlSignal as signal:
        landed.signal = signal
    finally:
        landed.known.set()
