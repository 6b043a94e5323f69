"""What a flow does, noted as it does it: the ground truth of emits and values.

`observed(context)` is that very context class with notes around its syscalls.  What it knows of a run (gates passed,
live syscalls, effects at work, unsettled outcomes) it sees for itself; it never asks the kernel's emit rule, which may
be the broken part.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import trio

from dst.durable.stores import EXECUTING, LIVE, REPEATED, UNSETTLED, EmitCall, SimStore, count_of
from dst.footprints import ADD, READ, SET, WRITE
from kernel.content import ContentEvents
from kernel.context import Context
from kernel.definitions import Step
from kernel.effects import Attempt, EffectCalls
from kernel.errors import CancelRequested, GateTimeout, TypedFailure
from kernel.events import (
    DECISION_RECORDED,
    EFFECT_RESOLVED,
    EXECUTION_CONTINUED,
    EXECUTION_RESUMED,
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_STARTED,
    Envelope,
)
from kernel.gates import Delivered, Member
from kernel.jsonform import Json, decode, encode

if TYPE_CHECKING:
    from kernel.journal import Journal
    from kernel.parts import Parts

T = TypeVar("T")

_FACTS = ("live", "executing", "unsettled", "order")
"""What the emit rule may ask of a run at the moment of an emit: whether decisions and gates came first, too."""


def identity_of(type: str, payload_text: str) -> str:
    """Return what invariants know an emit's content by."""
    return f"{type}/{zlib.crc32(payload_text.encode()):08x}"


class Observing(Context):
    """The notes.  Mutable like the context it is mixed into."""

    def __init__(self, journal: Journal, parts: Parts, **surroundings: Any) -> None:
        super().__init__(journal, parts, **surroundings)
        events = journal.stores.events
        self._store = cast(SimStore, events.inner if isinstance(events, ContentEvents) else events)
        run = self._store.runs[self.execution_id] = self._store.runs.get(self.execution_id, 0) + 1
        self._records = self._store.sim.records
        self._records.append(("run", self.execution_id, run))
        self._passed = 0  # gates passed in this run
        self._live = False
        self._executing = 0
        self._unsettled = False
        self._emitted: dict[str, int] = {}  # emits of one content in this segment, by whichever site
        self._passes: dict[tuple[str, str], int] = {}  # how often a site made an emit of one content, in this segment

    # ---- emits -------------------------------------------------------------------------------------------------------

    async def emit_text(self, type: str, text: str) -> None:
        """Note the call with its logical identity, and that it was acknowledged."""
        identity = identity_of(type, text)
        sim = self._store.sim
        if sim.at_calls:
            await sim.call(f"emit:{self.execution_id}:{self._whose()}:{type}")
        if sim.footprint is not None:
            for fact in _FACTS:
                self._touch(fact, READ)
            sim.touch(count_of(self.execution_id, self._passed, identity), ADD)
        place = f"{self.branch_path()}@{_call_site()}"
        nth = self._passes[place, identity] = self._passes.get((place, identity), 0) + 1
        facts = (
            (LIVE if self._live else "")
            + (EXECUTING if self._executing else "")
            + (UNSETTLED if self._unsettled else "")
            + (REPEATED if self._live and self._repeats(identity) else "")
        )
        self._emitted[identity] = self._emitted.get(identity, 0) + 1
        call = EmitCall(
            self._passed,
            identity,
            f"{place}#{nth}",
            facts,
            f"emit:{self.execution_id}:{self._passed}/{identity}",
        )
        self._records.append(("emit", self.execution_id, call.segment, identity, call.logical))
        task = trio.lowlevel.current_task()
        self._store.calls[task] = call
        try:
            await super().emit_text(type, text)
        finally:
            del self._store.calls[task]
        self._records.append(("acked", self.execution_id, call.segment, identity, call.logical, facts))

    def _repeats(self, identity: str) -> bool:
        """Does the log hold more emits of this content than the run has made?

        Behind a live syscall such a one is appended all the same, and serves no re-run: it is not beyond the count.
        """
        nth = self._emitted.get(identity, 0)
        return self._store.made.get((self.execution_id, self._passed, identity), 0) > nth

    # ---- what a run is at --------------------------------------------------------------------------------------------

    async def commit(
        self, type: str, payload_text: str, *, stamp: str | None = None, provenance: dict[str, Json] | None = None
    ) -> None:
        """See what the run is about to record of itself."""
        if provenance is not None and self._store.sim.at_calls:  # an effect speaks
            await self._store.sim.call(f"told:{self.execution_id}:{provenance['effect']}:{type}")
        if type == STEP_STARTED:
            self._turn_live()
            self._touch("executing", ADD)
            await super().commit(type, payload_text, stamp=stamp, provenance=provenance)
            self._executing += 1  # until `perform` has ended
            return
        if type == STEP_CANCELLED or (type == STEP_FAILED and is_end(payload_text)):
            self._turn_unsettled()
        await super().commit(type, payload_text, stamp=stamp, provenance=provenance)

    async def perform(self, attempt: Attempt, effect_context: EffectCalls, input: Json) -> object:
        """See when the effect itself has ended, and whether a re-run would be served that end."""
        try:
            value = await super().perform(attempt, effect_context, input)
            if self._store.sim.at_calls:  # it may take its time to return
                await self._store.sim.call(f"end:{effect_context.idempotency_key}")
            return value
        except Exception as error:
            if attempt.is_last and not isinstance(error, attempt.step.failures):
                self._turn_unsettled()  # known from here on, whenever the flow is awake to record it (K-EMIT-5)
            raise
        finally:
            self._executing -= 1
            self._touch("executing", ADD)

    async def call_decider(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> object:
        """See a decider at work."""
        self._turn_live()
        self._store.touch_all(self.execution_id)
        self._executing += 1
        try:
            return await super().call_decider(decision_id, decider)
        except BaseException:
            self._turn_unsettled()
            raise
        finally:
            self._executing -= 1

    def leave_branch(self) -> None:
        """The last of a group's branches lets who opened them go on: which one is last must be tried."""
        group = self.branch_path().rpartition(".")[0]
        super().leave_branch()
        self._touch(f"join {group}", WRITE)

    # ---- what code is handed -----------------------------------------------------------------------------------------

    async def execute_as(self, journal_id: str, step: Step, input: Json = None, *, kind: str = "step") -> Json:
        """Compare what the flow gets with the record."""
        if self._store.sim.at_calls:
            await self._store.sim.call(f"step:{self.execution_id}:{self._whose()}:{journal_id}")
        self._touch(f"step {journal_id}", WRITE)
        self._touch("order", READ)
        if not self._end(journal_id):
            self._turn_live()  # from the call on: it may wait for its next try before it starts
        try:
            value = await super().execute_as(journal_id, step, input, kind=kind)
        except TypedFailure as failure:
            recorded = self._end(journal_id).get("failure")
            data = recorded.get("data") if isinstance(recorded, dict) else None
            self._hand("failure", journal_id, failure.data, data)
            raise
        self._hand("step", journal_id, value, self._end(journal_id).get("output"))
        return value

    async def decide(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> Json:
        """Compare what the flow gets with the record."""
        if self._store.sim.at_calls:
            await self._store.sim.call(f"decide:{self.execution_id}:{self._whose()}:{decision_id}")
        self._store.touch_all(self.execution_id)
        value = await super().decide(decision_id, decider)
        self._hand("decision", decision_id, value, self._choice(decision_id))
        return value

    async def suspend(self, on: str, correlation_key: str | None = None, *, timeout: float | None = None) -> Json:
        """Note that a gate was passed."""
        return await self._through(super().suspend(on, correlation_key, timeout=timeout))

    async def suspend_any(self, gates: Sequence[str | Member], *, timeout: float | None = None) -> Delivered:
        """Note that a gate was passed."""
        return await self._through(super().suspend_any(gates, timeout=timeout))

    async def suspend_all(self, gates: Sequence[str | Member], *, timeout: float | None = None) -> dict[Member, Json]:
        """Note that a gate was passed."""
        if not gates:
            return await super().suspend_all(gates, timeout=timeout)
        return await self._through(super().suspend_all(gates, timeout=timeout))

    async def sleep(self, seconds: float) -> None:
        """Note that a timer was passed."""
        await self._through(super().sleep(seconds))

    async def _through(self, gate: Awaitable[T]) -> T:
        """Note that a gate is passed with a delivery, out of time, or with a cancellation that is on record."""
        if self._store.sim.at_calls:
            await self._store.sim.call(f"gate:{self.execution_id}:{self._whose()}")
        if self.branch_path() == "":  # in branches they are refused
            self._store.touch_all(self.execution_id)
        try:
            value = await gate
        except GateTimeout:
            self._pass()
            raise
        except CancelRequested:
            if self._resumes() > self._passed:
                self._pass()
            raise
        self._pass()
        return value

    # ---- footprints --------------------------------------------------------------------------------------------------

    def _touch(self, what: str, mode: str) -> None:
        """Say that this run's operation touches something that other runs have of their own."""
        if self._store.sim.footprint is not None:
            self._store.sim.touch(f"{what}:{self.execution_id}", mode)

    def _turn_live(self) -> None:
        self._live = True
        self._touch("live", SET)

    def _turn_unsettled(self) -> None:
        self._unsettled = True
        self._touch("unsettled", SET)

    def _whose(self) -> str:
        """Return who makes a syscall, as calls are told apart: the flow itself, or which of its branches."""
        return self.branch_path() or "flow"

    def _beginning(self) -> Sequence[Envelope]:
        """Return the events since the execution began, or began anew."""
        history = self._store.history.get(self.execution_id, ())
        for at in range(len(history) - 1, -1, -1):
            if history[at].type == EXECUTION_CONTINUED:
                return history[at:]
        return history

    def _resumes(self) -> int:
        return sum(envelope.type == EXECUTION_RESUMED for envelope in self._beginning())

    def _pass(self) -> None:
        self._passed += 1
        self._live = False
        self._passes.clear()
        self._emitted.clear()

    def _end(self, journal_id: str) -> dict[str, Json]:
        """Return the payload of the record that ends a step for good in this beginning; empty if there is none."""
        for envelope in reversed(self._beginning()):
            payload = envelope.payload
            if isinstance(payload, dict) and payload.get("step") == journal_id and is_served(envelope.type, payload):
                return payload
        return {}

    def _choice(self, decision_id: str) -> Json:
        """Return the first record of a decision: it is the one that counts."""
        for envelope in self._beginning():
            if envelope.type == DECISION_RECORDED:
                payload = cast("dict[str, Json]", envelope.payload)
                if payload["decisionId"] == decision_id:
                    return payload["choice"]
        return None

    def _hand(self, what: str, about: str, handed: object, recorded: Json) -> None:
        form = "" if same(handed, recorded) else f"{describe(handed)} for {describe(recorded)}"
        self._records.append(("handed", self.execution_id, what, about, form))


def is_end(payload_text: str) -> bool:
    """Is a STEP_FAILED the end of its step, and one that a re-run does not serve?  A failed attempt that is retried is
    no end, a typed failure is served."""
    payload = decode(payload_text)
    return isinstance(payload, dict) and payload.get("reason") != "typed" and "retryDue" not in payload


def is_served(type: str, payload: dict[str, Json]) -> bool:
    """Is this record of a step an end that re-runs are served: a completion, a typed failure, or an operator's word?"""
    if type == EFFECT_RESOLVED:
        return payload.get("resolution") in ("completed", "failed")
    return type == STEP_COMPLETED or (type == STEP_FAILED and payload.get("reason") == "typed")


_observed: dict[type[Context], type[Context]] = {Context: Observing}


def observed(context: type[Context]) -> type[Context]:
    """Return `context` with the notes taken."""
    if context not in _observed:
        _observed[context] = type(f"Observing{context.__name__}", (Observing, context), {})
    return _observed[context]


def same(one: object, other: object) -> bool:
    """Are two values equal, types and all?"""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def describe(value: object) -> str:
    """Say a value with its types, the same under every Python: no repr, no address."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {describe(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(describe, value))})"
    if value is None or isinstance(value, bool | int | str):
        return f"{type(value).__name__} {value}"
    if isinstance(value, float):
        return f"float {encode(value)}"
    return type(value).__name__


_OURS = ("kernel.", "dst.")


def _call_site() -> str:
    """Return module, function and line of the flow code that emits: the first frame outside the kernel and harness."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    code = frame.f_code
    return f"{code.co_name}:{frame.f_lineno - code.co_firstlineno}"
