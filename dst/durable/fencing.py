"""The invariants of several workers on one store (K-RUN-1, K-RUN-3).

Record kinds they read beside events: `claimed` and `told`.
"""

from __future__ import annotations

from dst.invariants import AnyInvariant, Broken, Invariant, Key
from dst.trace import Record
from kernel import events
from kernel.events import Envelope
from kernel.jsonform import encode

_EVENTS = (*sorted(events.KERNEL_TYPES), "emitted", "other")


def author_of(envelope: Envelope) -> str:
    """Return the incarnation that made an append."""
    return str(envelope.metadata.get("appendId", "")).rpartition("/")[0]


class OneAuthor(Invariant[str]):
    """K-LOG-2: the fence, and not the time of a lease, keeps two workers apart.

    A step starts with an append, so no effect begins after its worker was overtaken but the one that was under way.
    """

    name = "one-author"
    says = "once an execution is claimed, nobody but the newest claimant appends to it"
    kinds = ("claimed", *_EVENTS)
    initial = ""

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: str, record: Record) -> str:
        """Compare the author with the newest claimant."""
        if record[0] == "claimed":
            return str(record[2]).rpartition("@")[2]
        author = author_of(record[-1])
        if state and author != state:
            raise Broken(f"{author} appended {record[-1].type} after {state} had claimed the execution", "a refusal")
        return state

    def could_fail(self, state: str) -> bool:
        """It was claimed."""
        return bool(state)


class LeaseRespected(Invariant[bool]):
    """K-RUN-3: what a live worker drives is left alone."""

    name = "lease-respected"
    says = "a worker takes up only what is parked, and what runs under a lease that has run out"
    kinds = ("claimed",)
    initial = False

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: bool, record: Record) -> bool:
        """The harness knows what the taker had seen."""
        if record[4]:
            raise Broken(f"{record[2]} took it from {record[4]}, whose lease had not run out", "it is left alone")
        return True


class StartOnce(Invariant[tuple[str | None, frozenset[str]]]):
    """K-RUN-1."""

    name = "start-once"
    says = "an execution starts once, and whoever is told that it has started gave the input that it runs with"
    kinds = (events.EXECUTION_STARTED, "told")
    initial = (None, frozenset())  # the input in the log, inputs of those who were told

    def key(self, record: Record) -> Key:
        """Keyed by execution."""
        return record[1], (record[1],)

    def advance(self, state: tuple[str | None, frozenset[str]], record: Record) -> tuple[str | None, frozenset[str]]:
        """One start, before anybody is told of it."""
        logged, told = state
        if record[0] == "told":
            if record[2] != logged:
                raise Broken(f"a client was told that it runs with {record[2]}, the log has {logged}", "the same")
            return logged, told | {record[2]}
        if logged is not None:
            raise Broken("EXECUTION_STARTED again", "one start")
        return encode(record[2].payload["input"]), told


ALL: tuple[AnyInvariant, ...] = (OneAuthor(), LeaseRespected(), StartOnce())
"""What holds of every scenario with several workers."""
