"""Broken sagas."""

from __future__ import annotations

from dst.mutant import Mutant, exchange
from kernel.effects import Attempt, EffectCalls
from kernel.jsonform import decode
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


class _OutsideSteps(saga):
    saga_type = OutsideSteps


class _ResumesForward(saga):
    saga_type = ResumesForward


SAGA = (
    Mutant(
        name="saga-outside-steps",
        breaks="compensators run outside steps",
        scenario="order_saga",
        expected=("effect-accounted",),
        apply=exchange(saga=_OutsideSteps),
    ),
    Mutant(
        name="saga-resumes-forward",
        breaks="a re-run goes forward although a rollback has begun",
        scenario="order_saga",
        expected=("rollback-finished",),
        apply=exchange(saga=_ResumesForward),
    ),
)
