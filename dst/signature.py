"""Signatures: what makes two failures the same one."""

from __future__ import annotations

import base64
import hashlib
import re

import attrs

from dst.parameters import bare_name
from dst.run import RunResult
from dst.trace import Record
from dst.verdict import Ending, Verdict, Violation

SIMULATED_WORLD, UNBROKEN = "simulated-world", "unbroken"
ALWAYS = {
    SIMULATED_WORLD: "nothing real is reached for in a run: no I/O, no thread",
    UNBROKEN: "nothing ends by an error that nobody injected",
}
"""What holds of every run, whatever its scenario: name and sentence."""

_NUMBER = re.compile(r"\d+")
_ID_CHARACTERS = 6


@attrs.frozen(kw_only=True)
class Signature:
    """Invariant, key pattern and place: stable while a schedule shrinks, and over unrelated edits."""

    scenario: str  # in whatever size
    mutant: str | None
    invariant: str
    key: str  # the instance, numbers left out
    place: str  # kind of the record at which it showed, or what its invariant says of where it looks

    @property
    def text(self) -> str:
        """One line, the same for the same failure."""
        return "|".join((self.scenario, self.mutant or "", self.invariant, self.key, self.place))

    def resembles(self, other: Signature) -> bool:
        """Is it the same but for the place at which it shows?"""
        return attrs.evolve(self, place="") == attrs.evolve(other, place="")

    @property
    def id(self) -> str:
        """Six base32 characters."""
        raw = hashlib.blake2b(self.text.encode(), digest_size=5).digest()
        return base64.b32encode(raw).decode()[:_ID_CHARACTERS]


def violation_of(result: RunResult) -> Violation | None:
    """Return the first thing that is wrong with a run, whatever found it; None if nothing is."""
    at = len(result.records)
    if result.refused:
        return Violation(
            invariant=SIMULATED_WORLD,
            key="",
            seen=result.refused[0],
            wanted="ports only: nothing real in a run",
            at=at,
        )
    broke = next((i for i, record in enumerate(result.records) if record[0] == "broke"), at)
    first = result.judgement.violations[0] if result.judgement.violations else None
    if first is not None and (first.at < broke or not result.failures):
        return first
    if result.failures:
        return Violation(
            invariant=UNBROKEN,
            key="",
            seen=result.failures[0],
            wanted=ALWAYS[UNBROKEN],
            at=at,
        )
    return None


def signature_of(result: RunResult, mutant: str | None, violation: Violation) -> Signature:
    """Return the signature of a run's violation."""
    return Signature(
        scenario=bare_name(result.scenario),
        mutant=mutant,
        invariant=violation.invariant,
        key=_NUMBER.sub("N", violation.key),
        place=violation.place or _place(result.records, violation.at),
    )


def _place(records: tuple[Record, ...], at: int) -> str:
    return str(records[at][0]) if at < len(records) else "end"


def inconclusive(result: RunResult) -> str:
    """Return why a run says nothing, "" if it does say something."""
    if result.verdict is not Verdict.UNKNOWN:
        return ""
    if result.ending is not Ending.QUIESCENT:
        return f"{result.ending.value} after {result.steps} steps"
    return "; ".join(f"checker {name} broke: {how}" for name, how in result.judgement.crashed)
