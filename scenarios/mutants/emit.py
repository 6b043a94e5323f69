"""Broken emit rules: the original defect, and designs that ADR 0102 records as rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import trio

from dst.mutant import Mutant, exchange
from kernel import Context, Json, Parts, Step
from kernel.digest import fnv1a64
from kernel.effects import Attempt, EffectCalls
from kernel.emit_rule import EmitRule, Ruling
from kernel.events import KERNEL_TYPES, quoted


class AlwaysAppend(EmitRule):
    """What ADR 0102 found: emits had no replay check at all."""

    def rule(self, digest: str | None) -> Ruling:
        """Never serve."""
        return Ruling.UNSTAMPED


class Ordinal(EmitRule):
    """Round 0: emit i is served while i is under the number of stamped emits; in-flight emits are not counted."""

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        """One identity for all: counting it is counting emits."""
        return "0" * 16

    def rule(self, digest: str | None) -> Ruling:
        """Serve by position."""
        assert digest is not None
        if self.executing:
            return Ruling.UNSTAMPED
        nth = self._taken.get(digest, 0)
        self._taken[digest] = nth + 1
        return Ruling.SERVED if nth < self._logged(digest) else Ruling.STAMPED


class ContentGlobal(EmitRule):
    """Round 1: pure content matching, over all segments and with no guard but the in-flight window."""

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        """Content without its segment."""
        return fnv1a64(f"[{event_type_json},{payload_json}]")

    def rule(self, digest: str | None) -> Ruling:
        """Serve whatever is equal."""
        assert digest is not None
        nth = self._taken.get(digest, 0)
        self._taken[digest] = nth + 1
        if nth < self._logged(digest):
            return Ruling.SERVED
        return Ruling.UNSTAMPED if self.executing else Ruling.STAMPED


class NoUnsettled(EmitRule):
    """The unsettled flag is never set: an emit after an untyped failure is stamped, and absorbs a later one."""

    def ended_unsettled(self) -> None:
        """Forget it."""


class RollingDigest(EmitRule):
    """D7: ordinals, and a rolling digest of the stamped prefix; nothing is served after the first divergence."""

    def __init__(self, logged: Callable[[str], int]) -> None:
        super().__init__(logged)
        self._prefix = ""
        self._diverged = False

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        """Digest the emit on top of all that went before; in-flight ones are left uncounted."""
        digest = fnv1a64(f"{self._prefix}|[{event_type_json},{payload_json}]")
        if not self.executing:
            self._prefix = digest
        return digest

    def rule(self, digest: str | None) -> Ruling:
        """Serve a prefix that the log holds."""
        assert digest is not None
        if self.executing:
            return Ruling.UNSTAMPED
        self._diverged = self._diverged or not self._logged(digest)
        return Ruling.STAMPED if self._diverged else Ruling.SERVED


class AnchoredRule(EmitRule):
    """D7: content is compared between two completed steps."""

    anchor = ""

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        """Digest the emit with the step that completed last, whichever branch it is of."""
        return fnv1a64(f"{self.segment}|{self.anchor}|[{event_type_json},{payload_json}]")


class Anchoring(Context):
    """Tells the rule which step completed last."""

    async def execute_as(self, journal_id: str, step: Step, input: Json = None, *, kind: str = "step") -> Json:
        """Note that the step is over."""
        output = await super().execute_as(journal_id, step, input, kind=kind)
        cast(AnchoredRule, self.rule).anchor = journal_id
        return output


class NoLiveGuard(EmitRule):
    """Whatever the log holds is served, also behind a step that the log knows nothing of."""

    def went_live(self) -> None:
        """Forget it."""


class NoSegment(EmitRule):
    """Content is compared over all segments."""

    def identity(self, event_type_json: str, payload_json: str) -> str | None:
        """Content without its segment."""
        return fnv1a64(f"[{event_type_json},{payload_json}]")


class NoInflight(EmitRule):
    """What is emitted from inside an effect is stamped, though a re-run that is served the step does not emit it."""

    def effect_began(self) -> None:
        """Forget it."""

    def effect_settled(self) -> None:
        """Forget it."""


class StampsBelowCount(EmitRule):
    """An emit that is appended once more, behind a live step, is stamped once more."""

    def rule(self, digest: str | None) -> Ruling:
        """Stamp without looking at the count."""
        ruling = super().rule(digest)
        settled = not (self.executing or self.unsettled)
        return Ruling.STAMPED if ruling is Ruling.UNSTAMPED and digest is not None and settled else ruling


class UntilDeadline(Context):
    """The in-flight window of an effect ends with its deadline, not with the effect: a zombie is outside of it."""

    async def perform(self, attempt: Attempt, effect_context: EffectCalls, input: Json) -> object:
        """Say at the deadline that the effect has settled, and take it back before the kernel says it."""
        deadline_seconds = attempt.step.deadline_seconds
        if deadline_seconds is None:
            return await super().perform(attempt, effect_context, input)
        said = False

        async def say() -> None:
            nonlocal said
            with scope:
                await trio.sleep(deadline_seconds)
                self.rule.effect_settled()
                said = True

        scope = trio.CancelScope()
        self.workers.start_soon(say, name=f"deadline {attempt.journal_id}")
        try:
            return await super().perform(attempt, effect_context, input)
        finally:
            scope.cancel()
            if said:
                self.rule.effect_began()


class CountsFacts(Context):
    """What the kernel records of itself is an emit like any other (against D1)."""

    async def commit(
        self, type: str, payload_text: str, *, stamp: str | None = None, provenance: dict[str, Json] | None = None
    ) -> None:
        """Count kernel facts, and stamp them."""
        if type in KERNEL_TYPES:
            digest = self.rule.identity(quoted(type), payload_text)
            stamp = digest if self.rule.rule(digest) is Ruling.STAMPED else None
        await super().commit(type, payload_text, stamp=stamp, provenance=provenance)


def _mutant(name: str, breaks: str, scenario: str, parts: Parts, *expected: str, equivalent: str = "") -> Mutant:
    return Mutant(
        name=name,
        breaks=breaks,
        scenario=scenario,
        expected=expected,
        apply=exchange(parts=parts),
        equivalent=equivalent,
    )


LOST, ONCE = "no-emit-lost", "emit-once"
EMIT = (
    _mutant(
        "emit-always-append", "a re-run appends every emit again", "chat_session", Parts(emit_rule=AlwaysAppend), ONCE
    ),
    _mutant("emit-ordinal", "emits are matched by position", "order_saga", Parts(emit_rule=Ordinal), LOST),
    _mutant(
        "emit-content-global", "emits are matched by content alone", "order_saga", Parts(emit_rule=ContentGlobal), LOST
    ),
    _mutant(
        "emit-rolling-digest",
        "nothing is served once the order of emits differs",
        "parallel_quotes",
        Parts(emit_rule=RollingDigest),
        ONCE,
        LOST,  # the digest knows content, and not whose it is
    ),
    _mutant(
        "emit-anchor-previous",
        "emits are matched by content and the step that completed last",
        "parallel_quotes",
        Parts(emit_rule=AnchoredRule, context=Anchoring),
        ONCE,
    ),
    _mutant(
        "emit-no-unsettled",
        "emits after an untyped failure are stamped",
        "order_saga",
        Parts(emit_rule=NoUnsettled),
        LOST,
    ),
    _mutant(
        "emit-no-live-guard",
        "emits behind a live step are served",
        "rolling_deploy",
        Parts(emit_rule=NoLiveGuard),
        LOST,
    ),
    _mutant(
        "emit-no-segment",
        "emits are matched over all segments",
        "rolling_deploy",
        Parts(emit_rule=NoSegment),
        LOST,
    ),
    _mutant(
        "emit-no-inflight",
        "emits from inside effects are stamped",
        "parallel_quotes",
        Parts(emit_rule=NoInflight),
        LOST,
    ),
    _mutant(
        "emit-inflight-until-deadline",
        "a zombie's emits are stamped",
        "parallel_quotes",
        Parts(context=UntilDeadline),
        LOST,
    ),
    _mutant(
        "emit-no-unsettled-until-deadline",
        "a zombie's emits are stamped, and those after an untyped failure too",
        "parallel_quotes",
        Parts(context=UntilDeadline, emit_rule=NoUnsettled),
        LOST,
    ),
    _mutant(
        "emit-counts-kernel-facts",
        "what the kernel records is counted and stamped",
        "order_saga",
        Parts(context=CountsFacts),
        "log-sound",
    ),
    _mutant(
        "emit-stamp-below-count",
        "an emit that is appended once more is stamped once more",
        "parallel_quotes",
        Parts(emit_rule=StampsBelowCount),
        LOST,
        equivalent=(
            "a stamp is made only where a re-run comes again, so that every run makes as many emits of that content "
            "in that segment as were ever stamped for a reason; an emit beyond them can be served by the surplus only "
            "where nothing was live before it, and there, without a deploy, no path is open that an earlier run did "
            "not take: equal content is interchangeable, and the count is right"
        ),
    ),
)
