"""Gates: where an execution parks until something is delivered (K-FLOW-6).

Gates match ordinally against the resumes in the log, and what they wait on must agree.  A gate has one member, or
several of which any or all open it.  Every delivery is one event: those that leave a gate of all closed are
`GATE_DELIVERED`, the one that opens a gate is `EXECUTION_RESUMED`, so that there is one resume for each gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import attrs

from kernel import events
from kernel.errors import GateTimeout, Suspended
from kernel.events import quoted
from kernel.ids import check_text
from kernel.jsonform import Json, encode, fresh
from kernel.state import Gate, GateMode, Resume

if TYPE_CHECKING:
    from kernel.context import Context

TIMER = "TIMER"
"""What a sleep waits on: nothing can be delivered to it, only time resumes it."""

KERNEL_GATES = frozenset({TIMER, events.TIMER_FIRED, events.CANCEL_REQUESTED})
"""What only the kernel waits on and delivers on: nobody could open a flow's gate of such a name."""

Member = tuple[str, str | None]
"""What is delivered on, and the correlation key."""


@attrs.frozen
class Wait:
    """What a gate waits on; several members have a mode, one has none."""

    members: tuple[Member, ...]
    mode: GateMode | None = None

    def __str__(self) -> str:
        """Say it as an error does."""
        return str(self.members[0]) if self.mode is None else f"{self.mode} of {list(self.members)}"


@attrs.frozen(kw_only=True)
class Delivered:
    """What has passed a gate of any of several."""

    on: str
    correlation_key: str | None
    payload: Json


def wait_on(gates: Sequence[str | Member], mode: GateMode) -> Wait:
    """Return a gate of several.  Raises `ValueError` for none at all, one twice, and one of the kernel's own."""
    members = tuple((gate, None) if isinstance(gate, str) else (gate[0], gate[1]) for gate in gates)
    if not members or len(set(members)) != len(members):
        raise ValueError(f"a gate of {list(members)}: wanted one or more, each of them once")
    for member in members:
        check_member(member)
    return Wait(members, mode)


def check_member(member: Member) -> None:
    """Raise `ValueError` for what nothing can be delivered to: a gate on it would never open."""
    on, key = member
    if on in KERNEL_GATES:
        raise ValueError(f"a gate on {on!r}: {sorted(KERNEL_GATES)} are the kernel's own; for time, use `sleep`")
    check_text(on, "what a gate waits on,")
    check_text(key or "", f"correlation key of a gate on {on!r}")


def wait_of(gate: Gate | Resume) -> Wait:
    """Return what an open or passed gate of the log waited on."""
    if "members" in gate:
        return Wait(tuple((m["on"], m["correlationKey"]) for m in gate["members"]), gate["mode"])
    return Wait(((gate["on"], gate["correlationKey"]),))


def outstanding(gate: Gate) -> set[Member]:
    """Return the members that have had no delivery."""
    return set(wait_of(gate).members) - {(a["on"], a["correlationKey"]) for a in gate.get("arrived", ())}


def opens(gate: Gate) -> bool:
    """Will the next delivery to an outstanding member open the gate?"""
    return gate.get("mode") != "all" or len(outstanding(gate)) == 1


def payload_of(on: str, correlation_key: str | None, delivery_id: str, payload_text: str) -> str:
    """Return the payload of the event that records a delivery to a gate."""
    key = "null" if correlation_key is None else quoted(correlation_key)
    return f'{{"correlationKey":{key},"deliveryId":{quoted(delivery_id)},"on":{quoted(on)},"payload":{payload_text}}}'


def describe_gate(wait: Wait) -> str:
    """Return what a timer or a cancellation delivers: the gate that is passed with it."""
    on, key = wait.members[0]
    if wait.mode is None:
        return encode({"correlationKey": key, "on": on})
    return encode({"correlationKey": key, "members": _members(wait), "mode": wait.mode, "on": on})


def _members(wait: Wait) -> Json:
    return [{"correlationKey": key, "on": on} for on, key in wait.members]


async def come_to(context: Context, wait: Wait, timeout: float | None) -> Resume:
    """Return what has passed this gate, or park the execution.

    Raises `Suspended`, `CancelRequested`, and `GateTimeout` for a gate that was opened by time and is no timer.
    """
    resumes = context.journal.state["resumes"]
    if context.rule.segment < len(resumes):
        return _pass(context, wait, resumes[context.rule.segment])
    await _park(context, wait, timeout)
    raise AssertionError("a parked run does not go on")


def _pass(context: Context, wait: Wait, resume: Resume) -> Resume:
    timed_out = resume["on"] == events.TIMER_FIRED
    passed = _passed(wait, resume)
    if passed != wait:
        raise context.diverged(
            f"gate {context.rule.segment} of {context.execution_id!r} was passed on {passed}, "
            f"the flow now waits on {wait}"
        )
    context.rule.gate_passed()
    if resume["on"] == events.CANCEL_REQUESTED:
        raise context.cancelling.signal(context.branch_path())
    if timed_out and wait.members[0][0] != TIMER:
        raise GateTimeout(
            f"gate {context.rule.segment - 1} of {context.execution_id!r} on {wait} ran out of time",
            results(wait, resume.get("arrived", ())),
        )
    return resume


def _passed(wait: Wait, resume: Resume) -> Wait:
    """Return what the gate that was passed waited on.

    A timer or a cancellation names it in its payload; of a legacy timer, which does not, nothing can be said: it is
    what is waited on now.
    """
    gate = resume["payload"]
    if resume["on"] not in (events.TIMER_FIRED, events.CANCEL_REQUESTED):
        return wait_of(resume)
    return wait_of(cast(Gate, gate)) if isinstance(gate, dict) else wait


def results(wait: Wait, arrived: Iterable[Resume]) -> dict[Member, Json]:
    """Return what has arrived, by member and in their order."""
    payloads = {(a["on"], a["correlationKey"]): a["payload"] for a in arrived}
    return {member: fresh(payloads[member]) for member in wait.members if member in payloads}


async def _park(context: Context, wait: Wait, timeout: float | None) -> None:
    gate = context.journal.state["gate"]
    if context.cancelling.is_due() and (gate is None or wait_of(gate) == wait):
        await _pass_cancelled(context, wait)
    if gate is None:
        context.check_live(f"gate on {wait}")
        await context.commit(events.EXECUTION_SUSPENDED, _suspension(context, wait, timeout))
    elif wait_of(gate) != wait:
        raise context.diverged(f"{context.execution_id!r} is parked on {wait_of(gate)}, the flow now waits on {wait}")
    parked = Suspended(wait.members[0][0])
    context.end("parked at a gate", parked)
    raise parked


async def _pass_cancelled(context: Context, wait: Wait) -> None:
    """Pass the gate with the cancellation, on record: gates of the flow's way out have the ordinals after this one."""
    await context.cancelling.record()
    await context.commit(
        events.EXECUTION_RESUMED,
        payload_of(events.CANCEL_REQUESTED, None, f"cancel:{context.rule.segment}", describe_gate(wait)),
    )
    context.rule.gate_passed()
    raise context.cancelling.signal(context.branch_path())


def _suspension(context: Context, wait: Wait, timeout: float | None) -> str:
    """Return the payload of the event; of several members the first one stands where the only one would."""
    on, correlation_key = wait.members[0]
    due = "null" if timeout is None else str(context.now_ms() + round(timeout * 1000))
    key = "null" if correlation_key is None else quoted(correlation_key)
    several = ""
    if wait.mode is not None:
        several = f'"members":{encode(_members(wait))},"mode":"{wait.mode}",'
    return f'{{"correlationKey":{key},"due":{due},{several}"on":{quoted(on)},"ordinal":{context.rule.segment}}}'
