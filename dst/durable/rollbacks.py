"""Compensators: each once, in reverse order, and all that are owed before the end: ADR 0041."""

from __future__ import annotations

from collections.abc import Iterable

from dst.durable.event_records import ENDS, TERMINAL, payload_of, step_of
from dst.invariants import Broken, Invariant, Key
from dst.trace import Record
from kernel import events
from kernel.jsonform import Json, encode

_MARK = "#compensate:"


def _compensation(step: str) -> tuple[str, str, int] | None:
    """Return (compensator, saga's name, index) of a compensation's journal id, or None."""
    compensator, mark, rest = step.partition(_MARK)
    name, _, index = rest.rpartition(":")
    return (compensator, name, int(index)) if mark and index.isdigit() else None


Rollback = tuple[frozenset[str], tuple[str, ...], frozenset[str], frozenset[str]]


class CompensatorOnce(Invariant[Rollback]):
    """ADR 0041: reverse order, each once, given what is to be undone.

    `owed_by` says which forward step a compensator undoes, whatever its key: its input is an output of that step.
    """

    name = "compensator-once"
    says = "no compensator completes twice, runs unowed or out of order, or is left open under a terminal state"
    kinds = (events.STEP_STARTED, events.STEP_COMPLETED, events.STEP_FAILED, events.EXECUTION_CONTINUED, *TERMINAL)
    initial = (frozenset(), (), frozenset(), frozenset())  # compensators done, begun, ended; outputs that are owed for

    def __init__(self, owed_by: dict[str, str] | None = None) -> None:
        self._owed_by = owed_by or {}

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: Rollback, record: Record) -> Rollback:
        """Follow the rollback."""
        done, begun, ends, outputs = state
        if record[0] in ENDS:
            left = [step for step in begun if step not in ends]
            if left:
                raise Broken(f"{record[0]} with {', '.join(left)} left open", "every compensator that began has ended")
            return self.initial if record[0] == events.EXECUTION_CONTINUED else state
        step = step_of(record)
        if _compensation(step) is None:
            if record[0] != events.STEP_COMPLETED:
                return state
            return done, begun, ends, outputs | {_owed(step.partition("[")[0], payload_of(record).get("output"))}
        if record[0] == events.STEP_STARTED:
            return done, self._begin(begun, outputs, step, payload_of(record).get("input")), ends - {step}, outputs
        if record[0] == events.STEP_COMPLETED:
            if step in done:
                raise Broken(f"{step} completed twice", "once")
            done |= {step}
        return done, begun, ends | {step}, outputs

    def _begin(self, begun: tuple[str, ...], outputs: frozenset[str], step: str, input: Json) -> tuple[str, ...]:
        compensator, scope, index = _compensation(step) or ("", "", 0)
        owed = self._owed_by.get(compensator)
        if owed is not None and _owed(owed, input) not in outputs:
            raise Broken(
                f"{step} began, and was given {encode(input)}, which is no output of {owed}",
                "compensators of completed steps only, each given the step's output",
            )
        if step in begun:
            return begun
        same = [i for _, name, i in map(_compensation, begun) if name == scope]  # type: ignore[misc]  # none is None
        if same and index >= same[-1]:
            raise Broken(
                f"{step} began after number {same[-1]}", "the reverse of the order in which they were registered"
            )
        return (*begun, step)

    def could_fail(self, state: Rollback) -> bool:
        """A rollback has begun."""
        return bool(state[1])


def _owed(step: str, output: Json) -> str:
    return f"{step}: {encode(output)}"


class RollbackFinished(Invariant[tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]]]):
    """K-SAGA-4.  `scope` names the forward steps of the saga; without it every step of the execution counts as one."""

    name = "rollback-finished"
    says = "a rollback that has begun is finished: all below it is undone, and no step of its scope goes on"
    kinds = (events.STEP_STARTED, events.STEP_COMPLETED, events.STEP_FAILED, events.EXECUTION_CONTINUED, *TERMINAL)
    initial = (
        frozenset(),
        frozenset(),
        frozenset(),
    )  # unsettled forwards, begun, stopped at rollback

    def __init__(self, scope: Iterable[str] | None = None) -> None:
        self._scope = None if scope is None else frozenset(scope)

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(
        self, state: tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]], record: Record
    ) -> tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]]:
        """Remember what had not completed when the rollback began."""
        open_, begun, stopped = state
        if record[0] in ENDS:
            self._check_all(begun, record[0])
            return self.initial if record[0] == events.EXECUTION_CONTINUED else state
        step = step_of(record)
        found = _compensation(step)
        if found is not None:
            if record[0] == events.STEP_STARTED:
                return open_, begun | {(found[1], found[2])}, stopped | open_
            return state
        if self._scope is not None and step not in self._scope:
            return state
        if record[0] == events.STEP_COMPLETED:
            if step in stopped:
                raise Broken(
                    f"{step} had not completed when the rollback began, and completed after it", "it stays undone"
                )
            return open_ - {step}, begun, stopped
        if record[0] == events.STEP_FAILED and payload_of(record).get("reason") == "typed":
            return open_ - {step}, begun, stopped
        return open_ | {step}, begun, stopped

    def _check_all(self, begun: frozenset[tuple[str, int]], kind: str) -> None:
        for scope, index in sorted(begun):
            if index and (scope, index - 1) not in begun:
                raise Broken(
                    f"{kind} with compensation {index} begun and {index - 1} never", "all of them, to the first"
                )

    def could_fail(self, state: tuple[frozenset[str], frozenset[tuple[str, int]], frozenset[str]]) -> bool:
        """A rollback has begun."""
        return bool(state[1])
