"""Broken steps: tried when they must not be, served what is not theirs, or not served at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import attrs
import trio

from dst.mutant import Mutant, exchange
from kernel import Context, Envelope, Json, Parts, RetryPolicy, Step
from kernel.effects import Attempt, EffectCalls
from kernel.errors import ControlSignal, KernelError, Suspended
from kernel.events import STEP_COMPLETED, STEP_FAILED, STEP_STARTED, quoted
from kernel.fold import FoldPass
from kernel.jsonform import decode_canonical, fresh
from kernel.state import StepEntry


class EffectFirst(Context):
    """The effect is begun, and that it was is recorded when it has ended."""

    async def commit(
        self, type: str, payload_text: str, *, stamp: str | None = None, provenance: dict[str, Json] | None = None
    ) -> None:
        """Keep the start of a step back."""
        if type == STEP_STARTED:
            started = cast("dict[str, Json]", decode_canonical(payload_text))
            self._kept_back = {**getattr(self, "_kept_back", {}), started["step"]: payload_text}
            return
        await super().commit(type, payload_text, stamp=stamp, provenance=provenance)

    async def perform(self, attempt: Attempt, effect_context: EffectCalls, input: Json) -> object:
        """Record the start now."""
        try:
            return await super().perform(attempt, effect_context, input)
        finally:
            with trio.CancelScope(shield=True):
                await super().commit(STEP_STARTED, self._kept_back[attempt.journal_id])


class RetriesInDoubt(Context):
    """An at-most-once step that a crash has cut off is tried again, like any other."""

    async def execute_as(self, journal_id: str, step: Step, input: Json = None, *, kind: str = "step") -> Json:
        """Forget that it may not be."""
        if journal_id in self.recorded_steps():
            step = attrs.evolve(step, at_most_once=False)
        return await super().execute_as(journal_id, step, input, kind=kind)


class RetriesTimeouts(Context):
    """An at-most-once step whose effect does not end in time, or fails, is tried once more in the same call."""

    async def execute_as(self, journal_id: str, step: Step, input: Json = None, *, kind: str = "step") -> Json:
        """Try it twice the first time; what a crash has cut off stays in doubt."""
        if step.at_most_once and journal_id not in self.recorded_steps():
            step = attrs.evolve(step, at_most_once=False, retry=RetryPolicy(attempts=2))
        return await super().execute_as(journal_id, step, input, kind=kind)


class ByPosition(Context):
    """The n-th step of a run is served the n-th result of the log, whatever it is the result of."""

    async def execute_as(self, journal_id: str, step: Step, input: Json = None, *, kind: str = "step") -> Json:
        """Count steps."""
        self._position = getattr(self, "_position", -1) + 1
        results = [entry["output"] for entry in self.journal.state["steps"].values() if entry["outcome"] == "completed"]
        if self._position < len(results):
            self._take_step_id(journal_id)
            return fresh(results[self._position])
        return await super().execute_as(journal_id, step, input, kind=kind)


class EmptyIsNone(FoldPass):
    """A result that counts as false is taken for none."""

    def apply(self, event: Envelope) -> None:
        """Forget that the step has ended."""
        super().apply(event)
        if event.type == STEP_COMPLETED:
            _reopen(self, event, lambda entry: not entry["output"])


class TypedIsUntyped(FoldPass):
    """A declared failure is recorded, and folded like any other: a re-run tries the step again."""

    def apply(self, event: Envelope) -> None:
        """Forget that the step has ended."""
        super().apply(event)
        if event.type == STEP_FAILED:
            _reopen(self, event, lambda entry: entry["outcome"] == "typed")


def _reopen(fold: FoldPass, event: Envelope, which: Callable[[StepEntry], bool]) -> None:
    step = cast("dict[str, str]", event.payload)["step"]
    entry = fold.own_steps()[step]
    if which(entry):
        fold.own_steps()[step] = {**entry, "outcome": "error"}


class RecordsZombies(Context):
    """What an effect comes to after its deadline is recorded as the step's result."""

    async def perform(self, attempt: Attempt, effect_context: EffectCalls, input: Json) -> object:
        """Look at the time when it has ended."""
        began, deadline_seconds = trio.current_time(), attempt.step.deadline_seconds
        raw = await super().perform(attempt, effect_context, input)
        if deadline_seconds is not None and trio.current_time() - began > deadline_seconds:
            text = self.journal.encode(raw)
            with trio.CancelScope(shield=True):
                end = f'{{"attempt":{attempt.number},"output":{text},"step":{quoted(attempt.journal_id)}}}'
                await self.commit(STEP_COMPLETED, end)
        return raw


class Parked(KernelError):
    """A suspension, as an ordinary exception."""


class SuspendsByError(Context):
    """Parking raises an error like any other, which nobody knows to be none."""

    def end(self, why: str, signal: ControlSignal | None = None) -> None:
        """Raise where the run would have ended."""
        if isinstance(signal, Suspended):
            raise Parked(str(signal))
        super().end(why, signal)


class Aliases(Context):
    """A re-run is handed the very value that the fold holds."""

    def _serve_step(self, journal_id: str, step: Step, entry: StepEntry, input_text: str) -> Json:
        return (
            entry["output"]
            if entry["outcome"] == "completed"
            else super()._serve_step(journal_id, step, entry, input_text)
        )


class GatesAnywhere(Context):
    """Any task of a flow may wait at a gate."""

    def check_gate_place(self, what: object) -> None:
        """Ask for nothing but a run that goes on."""
        self.check_syscall()


def _mutant(name: str, breaks: str, scenario: str, parts: Parts, *expected: str) -> Mutant:
    return Mutant(name=name, breaks=breaks, scenario=scenario, expected=expected, apply=exchange(parts=parts))


STEPS = (
    _mutant(
        "effect-before-started",
        "an effect runs before its start is recorded",
        "order_saga",
        Parts(context=EffectFirst),
        "effect-accounted",
    ),
    _mutant(
        "retry-in-doubt",
        "an at-most-once step in doubt is tried again",
        "payout",
        Parts(context=RetriesInDoubt),
        "paid-as-said",
    ),
    _mutant(
        "at-most-once-retried-after-timeout",
        "an at-most-once step that has timed out is tried again",
        "payout",
        Parts(context=RetriesTimeouts),
        "paid-as-said",
    ),
    _mutant(
        "step-by-position",
        "steps are served by position",
        "parallel_quotes",
        Parts(context=ByPosition),
        "value-stable",
    ),
    _mutant(
        "empty-result-is-no-result",
        "a step whose result counts as false is run again",
        "parallel_quotes",
        Parts(fold=EmptyIsNone),
        "step-completes-once",
    ),
    _mutant(
        "zombie-result-recorded",
        "what comes after the deadline is the step's result",
        "parallel_quotes",
        Parts(context=RecordsZombies),
        "step-completes-once",
    ),
    _mutant(
        "typed-failure-rerun",
        "a step that has failed as declared is run again",
        "order_saga",
        Parts(fold=TypedIsUntyped),
        "step-completes-once",
        "crash-transparent",  # where its rollback has begun, the re-run is refused
    ),
    _mutant(
        "suspend-is-failure",
        "a flow that parks has failed",
        "chat_session",
        Parts(context=SuspendsByError),
        "parked-rests",
    ),
    _mutant(
        "served-value-aliased",
        "a served value is not a copy",
        "chat_session",
        Parts(context=Aliases),
        "value-stable",
        "fold-consistent",  # the next snapshot holds what the flow made of it
    ),
    _mutant(
        "gate-in-branch-allowed",
        "a branch may wait at a gate",
        "parallel_quotes",
        Parts(context=GatesAnywhere),
        "segment-stable",
    ),
)
