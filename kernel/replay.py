"""Replaying a log against a flow's code, offline: is it still the flow of its log? (K-RUN-7)

Nothing is appended, no effect and no decider runs.  The flow goes as far as its log serves it.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

import attrs
import trio

from kernel import events
from kernel.adapters.system import SystemChance, SystemClock
from kernel.context import Context
from kernel.definitions import Flow
from kernel.errors import BlockingSignal, ControlSignal, NonDeterministicFlow, Suspended
from kernel.events import Envelope
from kernel.fold import FoldPass
from kernel.journal import AppendIds, Journal
from kernel.jsonform import Json, decode_canonical, encode, fresh
from kernel.lifecycle import Loaded
from kernel.parts import Parts
from kernel.ports import Stores
from kernel.run import describe
from kernel.signals import verdict
from kernel.state import EMPTY, TERMINAL, FlowState


class Outcome(enum.Enum):
    """What a replay came to."""

    SAME = "same"  # the flow has come to where its log ends: its end, its gate, or a step that is yet to be run
    DIVERGED = "diverged"  # it asks for something else than its log records, or comes to another end
    UNDECIDED = "undecided"  # something would run again whose end the log cannot serve: anything may come of it


@attrs.frozen(kw_only=True)
class Replayed:
    """The outcome, what it was seen by, and the emits that this code would append, in order.

    `asks_for` is the first syscall that the log does not serve, as `name_event` says it; None if there is none.
    """

    outcome: Outcome
    detail: str
    new_emits: tuple[tuple[str, Json], ...]
    asks_for: str | None


class _Live(ControlSignal):
    """The flow has come to something that its log does not serve."""


async def replay(
    flow: Flow, log: Iterable[Envelope], *, initial: FlowState = EMPTY, parts: Parts | None = None
) -> Replayed:
    """Run `flow` over `log` (from `initial`, the state of a snapshot, if the log is truncated), and compare.

    An emit is no divergence: content that has changed is appended beside the old (ADR 0102 D2).  They are listed.
    """
    parts = parts or Parts()
    entries = list(log)
    fold = parts.fold(initial)
    for event in entries:
        fold.apply(event)
    journal = _journal(entries[-1].execution_id if entries else flow.id, fold)
    kind = type("Rehearsing", (_Rehearsing, parts.context), {})
    async with trio.open_nursery() as workers:
        context: _Rehearsing = kind(journal, parts, registry={}, chance=SystemChance(), workers=workers)
        outcome, detail = await _compare(flow, context, journal.state)
        workers.cancel_scope.cancel()
    return Replayed(outcome=outcome, detail=detail, new_emits=tuple(context.new_emits), asks_for=context.reached)


def _journal(execution_id: str, fold: FoldPass) -> Journal:
    return Journal.resume(
        Loaded(execution_id=execution_id, fold=fold, projected={}, snapshot_sequence=-1),
        stores=cast(Stores, None),  # never asked: whatever would be appended stops at the context
        clock=SystemClock(),
        append_ids=AppendIds("replay"),
        fence=0,
        projections=(),
        observers=(),
        snapshot_every=None,
    )


class _Rehearsing(Context):
    """A context that stops where its log does."""

    new_emits: list[tuple[str, Json]]
    reached: str | None = None

    async def commit(
        self, type: str, payload_text: str, *, stamp: str | None = None, provenance: dict[str, Json] | None = None
    ) -> None:
        """Note an emit; end the run at anything else."""
        self.check_alive()
        payload = decode_canonical(payload_text)
        if type not in events.KERNEL_TYPES:
            self.new_emits.append((type, payload))
            return
        raise self._reach(name_event(type, payload))

    async def call_decider(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> object:
        """End the run: what a decider would say is not for a rehearsal to know."""
        raise self._reach(f"decision {decision_id!r}")

    def is_repeating(self) -> bool:
        """A rehearsal logs nothing: it is no run."""
        return True

    def _find_effect(self, step: object) -> object:  # type: ignore[override]  # it is never called
        return None

    def _reach(self, what: str) -> ControlSignal:
        if self.reached is None:
            self.reached = what
        signal = _Live(what)
        self.end(what, signal)
        return signal


def name_event(type: str, payload: Json) -> str:
    """Say what a kernel event records: the step, decision or gate it is about."""
    about = payload if isinstance(payload, dict) else {}
    for field, noun in (("step", "step"), ("decisionId", "decision"), ("on", "gate on")):
        if field in about:
            return f"{noun} {about[field]!r}"
    return type


async def _compare(flow: Flow, context: _Rehearsing, state: FlowState) -> tuple[Outcome, str]:
    context.new_emits = []
    try:
        ended: object = await flow.function(context, fresh(state["input"]))
    except BaseException as raised:
        ended = verdict(raised)
        if not isinstance(ended, Exception | ControlSignal):
            raise
    if isinstance(context.blocker, NonDeterministicFlow):
        return Outcome.DIVERGED, str(context.blocker)
    if isinstance(context.blocker, BlockingSignal):
        return Outcome.SAME, str(context.blocker)
    if context.reached is not None:
        return _at_live(context, state)
    left = context.unvisited()
    if left:
        return Outcome.DIVERGED, f"the flow comes to an end, or to its gate, and has not asked for {left[0]}"
    if isinstance(context.signal, Suspended):
        return Outcome.SAME, "the flow is parked where its log says"
    return _at_end(context, state, ended)


def _at_live(context: _Rehearsing, state: FlowState) -> tuple[Outcome, str]:
    if context.reexecuted is not None:
        return Outcome.UNDECIDED, f"step {context.reexecuted!r} has no end that could be served: it would run again"
    if state["status"] in TERMINAL:
        return Outcome.DIVERGED, f"the flow asks for {context.reached}, and its log has ended without it"
    left = context.unvisited()
    if left:
        return Outcome.DIVERGED, f"the flow asks for {context.reached}, where its log records {left[0]}"
    return Outcome.SAME, f"the flow would go on with {context.reached}"


def _at_end(context: _Rehearsing, state: FlowState, ended: object) -> tuple[Outcome, str]:
    if context.cancelling.has_begun:
        seen, error = "cancelled", state["error"]
    elif isinstance(ended, Exception):
        seen, error = "failed", describe(ended)
    else:
        seen, error = "completed", None
    if state["status"] not in TERMINAL:
        return Outcome.SAME, f"the flow would end as {seen}"
    if state["status"] != seen or encode(state["error"]) != encode(error):
        return Outcome.DIVERGED, f"the flow ends as {seen} ({error}), its log as {state['status']} ({state['error']})"
    if seen == "completed" and encode(state["output"]) != encode(ended):
        return Outcome.DIVERGED, f"the flow returns {ended!r}, its log has {state['output']!r}"
    return Outcome.SAME, f"the flow ends as {seen}"
