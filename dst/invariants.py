"""Invariants as keyed monitors: small automata fed with the records they subscribe to.

`key` picks the instance a record is about; `advance` gives its next state or the violation; `at_end` judges when all is
quiet.  States are immutable and hashable: a run is judged by a pure function of its trace, and an explorer can put
states of the system and of the monitors together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import attrs

from dst.trace import Record
from dst.verdict import Verdict, Violation

S = TypeVar("S", bound=Hashable)
Key = tuple[Hashable, Hashable | None] | None


class Broken(Exception):
    """Raised by `advance` and `at_end`: the invariant does not hold.

    One that judges at records of several kinds, whatever the cause, names them together as its `place`: two failures
    are not told apart by where it looked.
    """

    def __init__(self, seen: str, wanted: str, place: str = "") -> None:
        super().__init__(f"{seen}; wanted {wanted}")
        self.seen = seen
        self.wanted = wanted
        self.place = place


class Invariant(Generic[S]):
    """One invariant, over instances with states of type `S`: immutable and hashable.

    `name` is its id, `says` one sentence in positive form, `kinds` the record kinds it is fed.
    """

    name: ClassVar[str]
    says: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    initial: S
    composable: ClassVar[bool] = True
    """Do its states compose along paths of states that behave alike?  Not if it reads positions or attempt numbers."""

    def compose(self, state: S) -> S:
        """Return a state that stands for this one in exploration: counts capped where no verdict depends on more."""
        return state

    def key(self, record: Record) -> Key:
        """Return (group, instance) of a record: instance None is every instance of the group; None: not concerned."""
        raise NotImplementedError

    def advance(self, state: S, record: Record) -> S:
        """Return the next state.  Raises `Broken`."""
        raise NotImplementedError

    def at_end(self, state: S) -> None:
        """Judge the last state.  Raises `Broken`."""

    def could_fail(self, state: S) -> bool:
        """Was this instance, as it ended, one on which the invariant could have failed?"""
        return True


AnyInvariant = Invariant[Any]


@attrs.frozen(kw_only=True)
class Judgement:
    """What the invariants say of one run."""

    verdict: Verdict
    violations: tuple[Violation, ...]
    judged: tuple[tuple[str, int], ...]  # for each invariant, the instances on which it could have failed
    crashed: tuple[tuple[str, str], ...]  # checkers that broke themselves, and how: unknown, never a pass


class Judge:
    """A fixed set of invariants, ready to judge traces."""

    def __init__(self, invariants: Iterable[AnyInvariant]) -> None:
        self.invariants = tuple(invariants)
        self._rows = [_Row(invariant) for invariant in self.invariants]
        self._by_kind: dict[str, list[_Row]] = {}
        for row in self._rows:
            for kind in row.invariant.kinds:
                self._by_kind.setdefault(kind, []).append(row)

    def judge(self, records: Sequence[Record]) -> Judgement:
        """Return the judgement of a trace: a function of the trace alone."""
        for row in self._rows:
            row.begin()
        by_kind = self._by_kind
        for at, record in enumerate(records):
            for row in by_kind.get(record[0], ()):
                # This loop is where judging spends its time: one call for the key, one for the next state.
                instance: Hashable = None
                try:
                    keyed = row.key(record)
                    if keyed is None:
                        continue
                    group, instance = keyed
                    if instance is None:
                        row.feed_group(group, at, record)
                        continue
                    states = row.groups.get(group)
                    if states is None:
                        states = row.groups[group] = {}
                    states[instance] = row.advance(states.get(instance, row.initial), record)
                except Broken as broken:
                    row.violated(instance, broken, at)
                except Exception as error:  # a checker that crashes says UNKNOWN; the row tells how
                    row.crashed(error, f"at record {at}")
        return _sum_up(self._rows, len(records))


def _sum_up(rows: Sequence[_Row], length: int) -> Judgement:
    for row in rows:
        row.finish(length)
    violations = sorted((v for row in rows for v in row.violations), key=lambda v: v.at)
    crashed = tuple((row.invariant.name, row.crash) for row in rows if row.crash)
    return Judgement(
        verdict=Verdict.FAIL if violations else Verdict.UNKNOWN if crashed else Verdict.PASS,
        violations=tuple(violations),
        judged=tuple((row.invariant.name, row.judged) for row in rows),
        crashed=crashed,
    )


class _Row:
    """One invariant at work on one trace.  Mutable: the states of its instances so far."""

    def __init__(self, invariant: AnyInvariant) -> None:
        self.invariant = invariant
        self.initial = invariant.initial
        self.key = invariant.key
        self.advance = invariant.advance
        self.begin()

    def begin(self) -> None:
        """Forget the last trace."""
        self.violations: list[Violation] = []
        self.judged = 0
        self.crash = ""  # how the checker broke, if it did
        self.groups: dict[Hashable, dict[Hashable, Hashable]] = {}
        self._broken: set[Hashable] = set()  # instances that are broken already: one violation for each

    def feed_group(self, group: Hashable, at: int, record: Record) -> None:
        """Feed a record to every instance of a group."""
        states = self.groups.get(group)
        for instance, state in list(states.items()) if states else ():
            try:
                self.groups[group][instance] = self.advance(state, record)
            except Broken as broken:
                self.violated(instance, broken, at)

    def finish(self, length: int) -> None:
        """Judge what every instance has come to."""
        at_end, could_fail = self.invariant.at_end, self.invariant.could_fail
        self.judged = len(self._broken)
        for states in self.groups.values():
            for instance, state in states.items():
                try:
                    self.judged += instance not in self._broken and could_fail(state)
                    at_end(state)
                except Broken as broken:
                    self.violated(instance, broken, length)
                except Exception as error:
                    self.crashed(error, "at the end")

    def crashed(self, error: Exception, where: str) -> None:
        """The checker broke."""
        self.crash = self.crash or f"{type(error).__name__}: {error} {where}"

    def violated(self, instance: Hashable, broken: Broken, at: int) -> None:
        """The invariant does not hold; an instance is told of once."""
        if instance in self._broken:
            return
        self._broken.add(instance)
        key = "/".join(str(part) for part in instance) if isinstance(instance, tuple) else str(instance)
        self.violations.append(
            Violation(
                invariant=self.invariant.name,
                key=key,
                seen=broken.seen,
                wanted=broken.wanted,
                at=at,
                place=broken.place,
            )
        )
