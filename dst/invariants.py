"""Invariants as keyed monitors: small automata fed with the records they subscribe to.

`key` picks the instance a record is about; `advance` gives its next state or the violation; `at_end` judges when all is
quiet.  States are immutable and hashable: a run is judged by a pure function of its trace, and an explorer can put
states of the system and of the monitors together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import ClassVar

import attrs

from dst.trace import Record
from dst.verdict import Verdict, Violation


class Broken(Exception):
    """Raised by `advance` and `at_end`: the invariant does not hold."""

    def __init__(self, seen: str, wanted: str) -> None:
        super().__init__(f"{seen}; wanted {wanted}")
        self.seen = seen
        self.wanted = wanted


class Invariant:
    """One invariant.  `name` is its id, `says` one sentence in positive form, `kinds` the record kinds it is fed."""

    name: ClassVar[str]
    says: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    initial: ClassVar[Hashable] = None

    def key(self, record: Record) -> tuple[Hashable, Hashable | None] | None:
        """Return (group, instance) of a record: instance None is every instance of the group; None: not concerned."""
        raise NotImplementedError

    def advance(self, state: Hashable, record: Record) -> Hashable:
        """Return the next state.  Raises `Broken`."""
        raise NotImplementedError

    def at_end(self, state: Hashable) -> None:
        """Judge the last state.  Raises `Broken`."""

    def could_fail(self, state: Hashable) -> bool:
        """Was this instance, as it ended, one on which the invariant could have failed?"""
        return True


@attrs.frozen(kw_only=True)
class Judgement:
    """What the invariants say of one run."""

    verdict: Verdict
    violations: tuple[Violation, ...]
    judged: tuple[tuple[str, int], ...]  # for each invariant, the instances on which it could have failed
    crashed: tuple[tuple[str, str], ...]  # checkers that broke themselves, and how: unknown, never a pass


class Judge:
    """A fixed set of invariants, ready to judge traces."""

    def __init__(self, invariants: Iterable[Invariant]) -> None:
        self.invariants = tuple(invariants)
        self._by_kind: dict[str, list[int]] = {}
        for index, invariant in enumerate(self.invariants):
            for kind in invariant.kinds:
                self._by_kind.setdefault(kind, []).append(index)

    def judge(self, records: Sequence[Record]) -> Judgement:
        """Return the judgement of a trace.  Pure."""
        rows = [_Row(invariant) for invariant in self.invariants]
        by_kind = self._by_kind
        for at, record in enumerate(records):
            for index in by_kind.get(record[0], ()):  # type: ignore[call-overload]  # a record begins with its kind
                rows[index].feed(at, record)
        for row in rows:
            row.finish(len(records))
        violations = sorted((v for row in rows for v in row.violations), key=lambda v: v.at)
        crashed = tuple((row.invariant.name, row.crash) for row in rows if row.crash)
        verdict = Verdict.FAIL if violations else Verdict.UNKNOWN if crashed else Verdict.PASS
        return Judgement(
            verdict=verdict,
            violations=tuple(violations),
            judged=tuple((row.invariant.name, row.judged) for row in rows),
            crashed=crashed,
        )


class _Row:
    """One invariant at work on one trace.  Mutable: the states of its instances so far."""

    def __init__(self, invariant: Invariant) -> None:
        self.invariant = invariant
        self.violations: list[Violation] = []
        self.judged = 0
        self.crash = ""
        self._groups: dict[Hashable, dict[Hashable, Hashable]] = {}
        self._key = invariant.key
        self._advance = invariant.advance

    def feed(self, at: int, record: Record) -> None:
        if self.crash:
            return
        instance: Hashable = None
        try:
            keyed = self._key(record)
            if keyed is None:
                return
            group, wanted = keyed
            states = self._groups.get(group)
            if wanted is None:
                for instance, state in (states or {}).items():
                    states[instance] = self._advance(state, record)  # type: ignore[index]  # there is one, it was iterated
                return
            instance = wanted
            if states is None:
                states = self._groups[group] = {}
            states[instance] = self._advance(states.get(instance, self.invariant.initial), record)
        except Broken as broken:
            self._violated(instance, broken, at)
        except Exception as error:  # a checker that crashes says UNKNOWN; the row tells how
            self.crash = f"{type(error).__name__}: {error} at record {at}"

    def finish(self, length: int) -> None:
        if self.crash:
            return
        for states in self._groups.values():
            for instance, state in states.items():
                try:
                    self.judged += self.invariant.could_fail(state)
                    self.invariant.at_end(state)
                except Broken as broken:
                    self._violated(instance, broken, length)
                except Exception as error:
                    self.crash = f"{type(error).__name__}: {error} at the end"
                    return

    def _violated(self, instance: Hashable, broken: Broken, at: int) -> None:
        key = "/".join(str(part) for part in instance) if isinstance(instance, tuple) else str(instance)
        self.violations.append(
            Violation(invariant=self.invariant.name, key=key, seen=broken.seen, wanted=broken.wanted, at=at)
        )
