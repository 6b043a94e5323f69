"""Broken sagas."""

from __future__ import annotations

from types import TracebackType

import attrs

from dst.mutant import Mutant, exchange
from kernel import Context, Json, Parts, Step
from kernel.effects import Attempt, EffectCalls
from kernel.errors import ControlSignal, Suspended
from kernel.jsonform import decode, encode
from kernel.saga import Saga, _Compensation, saga


class OutsideSteps(Saga):
    """Compensators are called, not run as steps: nothing remembers that they ran."""

    async def _undo(self, compensation: _Compensation) -> None:
        effect = self._ctx._find_effect(compensation.step)
        attempt = Attempt(
            journal_id=compensation.journal_id,
            step=compensation.step,
            kind="compensation",
            effect=effect,
            input_text=compensation.input_text,
            number=1,
        )
        await effect(EffectCalls(self._ctx, attempt), decode(compensation.input_text))


class ResumesForward(Saga):
    """ADR 0041 as written, without the end of K-SAGA-4: a rollback that has begun may be forgotten by a re-run."""

    def refuse_live(self, what: str) -> None:
        """Let it go on."""

    @property
    def owes_rollback(self) -> bool:
        """Never."""
        return False


class UnstableIds(Saga):
    """Compensations are counted on from those that the log holds: a re-run in a rollback names them otherwise."""

    def _take(self, step: Step) -> str:
        registered, self._registered = self._registered, self._registered + len(self._frames)
        try:
            return super()._take(step)
        finally:
            self._registered = registered


class AbortsOnFirst(Saga):
    """The first compensator that fails ends the rollback (ADR 0041 before its amendment)."""

    async def rollback(self) -> None:
        """Run compensators until one fails."""
        while self._stack:
            compensation = self._stack.pop()
            self._rolled_back = True
            await self._undo(compensation)


class Forwards(Saga):
    """What was done first is undone first."""

    async def rollback(self) -> None:
        """Turn the stack over."""
        self._stack.reverse()
        await super().rollback()


class ByDefinition(Saga):
    """One compensation for each compensator: a second use of it takes the place of the first."""

    def _register(self, journal_id: str, step: Step, input_text: str) -> None:
        self._stack = [compensation for compensation in self._stack if compensation.step != step]
        super()._register(journal_id, step, input_text)


class MissingOutput(Saga):
    """A compensator is given what its step was given, not what came of it."""

    async def run(
        self, step: Step, input: Json = None, *, key: str | None = None, compensate: Step | None = None
    ) -> Json:
        """Put the input in the place of the output."""
        output = await super().run(step, input, key=key, compensate=compensate)
        if compensate is not None:
            self._stack[-1] = attrs.evolve(self._stack[-1], input_text=encode(input))
        return output


class GoesOnWhenParked(Context):
    """A run that parks is not over: whoever sees its suspension may go on."""

    def end(self, why: str, signal: ControlSignal | None = None) -> None:
        """Note the signal, and no end."""
        if isinstance(signal, Suspended):
            self.signal = signal
        else:
            super().end(why, signal)


class _RollsBackOnSuspend(saga):
    """A suspension is a failure of the block."""

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(raised, Suspended):
            await self._saga.rollback()
        return await super().__aexit__(kind, raised, trace)


def _over(kind: type[Saga]) -> type[saga]:
    return type("saga", (saga,), {"saga_type": kind})


def _mutant(name: str, breaks: str, kind: type[Saga], expected: str, scenario: str = "order_saga") -> Mutant:
    return Mutant(name=name, breaks=breaks, scenario=scenario, expected=(expected,), apply=exchange(saga=_over(kind)))


SAGA = (
    _mutant("saga-outside-steps", "compensators run outside steps", OutsideSteps, "effect-accounted"),
    _mutant(
        "saga-resumes-forward",
        "a re-run goes forward although a rollback has begun",
        ResumesForward,
        "rollback-finished",
    ),
    _mutant("saga-unstable-ids", "compensations change their names in a re-run", UnstableIds, "compensator-once"),
    _mutant("saga-abort-on-first", "a compensator that fails ends the rollback", AbortsOnFirst, "rollback-finished"),
    _mutant("saga-forward-order", "compensators run in forward order", Forwards, "compensator-once"),
    _mutant(
        "saga-by-definition-not-instance",
        "of two uses of a compensator one is undone",
        ByDefinition,
        "rollback-finished",
        "payout",
    ),
    _mutant("saga-missing-output", "compensators are given their step's input", MissingOutput, "compensator-once"),
    Mutant(
        name="saga-rollback-on-suspend",
        breaks="a suspension rolls back",
        scenario="payout",
        expected=("parked-rests",),
        apply=exchange(parts=Parts(context=GoesOnWhenParked), saga=_RollsBackOnSuspend),
    ),
)
