"""Broken emit rules: the original defect, and designs that ADR 0102 records as rejected."""

from __future__ import annotations

from dst.mutant import Mutant, exchange
from kernel import Parts
from kernel.digest import fnv1a64
from kernel.emit_rule import EmitRule, Ruling


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


def _mutant(name: str, breaks: str, scenario: str, rule: type[EmitRule], *expected: str) -> Mutant:
    return Mutant(
        name=name, breaks=breaks, scenario=scenario, expected=expected, apply=exchange(parts=Parts(emit_rule=rule))
    )


EMIT = (
    _mutant("emit-always-append", "a re-run appends every emit again", "chat_session", AlwaysAppend, "emit-once"),
    _mutant("emit-ordinal", "emits are matched by position", "order_saga", Ordinal, "no-emit-lost"),
    _mutant("emit-content-global", "emits are matched by content alone", "order_saga", ContentGlobal, "no-emit-lost"),
    _mutant(
        "emit-no-unsettled", "emits after an untyped failure are stamped", "order_saga", NoUnsettled, "no-emit-lost"
    ),
)
