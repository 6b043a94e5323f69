"""Replays of the logs that a run has left: do they still serve the flows that made them? (K-RUN-7)

A log is replayed as far as it alone decides: to the end of its execution and no further (what stands behind an end is
no part of what led to it), and to the first outcome that no re-run is served.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import attrs

from dst.durable.ends import chained
from dst.durable.observed import is_end
from dst.durable.stores import SimStore
from kernel.definitions import Flow
from kernel.events import (
    CANCEL_REQUESTED,
    EXECUTION_CONTINUED,
    KERNEL_TYPES,
    STEP_CANCELLED,
    STEP_FAILED,
    TERMINAL_TYPES,
    Envelope,
    stamp_of,
)
from kernel.jsonform import encode
from kernel.parts import Parts
from kernel.replay import Outcome, name_event, replay

_PREFIXES = 2  # of each log, besides all of it: each replay costs as much as a run of the flow that is only served


@attrs.frozen(kw_only=True)
class Replay:
    """One replay: of the whole log or of a prefix, up to which position, and what is wrong, "" if nothing is."""

    whole: bool
    upto: int
    fault: str


async def replays_of(db: SimStore, flow: Flow, parts: Parts, execution_id: str) -> list[Replay]:
    """Replay an execution's log, and a few of its prefixes: which ones depends on the log and on nothing else."""
    history = chained(db.history[execution_id])
    log = _decided(history)
    whole = len(log) == len(_causal(history))
    seed = zlib.crc32(log[-1].hash.encode())
    lengths = sorted(1 + (seed >> 8 * n) % len(log) for n in range(_PREFIXES))  # as many of each log: alike ends alike
    replays = [
        Replay(whole=False, upto=length - 1, fault=await _fault_of_prefix(flow, parts, log, length))
        for length in lengths
    ]
    if whole:
        replays.append(Replay(whole=True, upto=len(log) - 1, fault=await _fault_of_all(db, flow, parts, log)))
    return replays


async def _fault_of_prefix(flow: Flow, parts: Parts, log: Sequence[Envelope], length: int) -> str:
    """Does the flow ask for something that the log does hold next?

    Branches may come to theirs in another order, so that anything before the next gate is next.
    """
    replayed = await replay(flow, log[:length], parts=parts)
    if replayed.outcome is Outcome.DIVERGED:
        return replayed.detail
    if replayed.outcome is Outcome.UNDECIDED or replayed.asks_for is None:
        return ""
    rest = [event for event in log[length:] if event.type in KERNEL_TYPES]
    if not rest or any(event.type in (CANCEL_REQUESTED, EXECUTION_CONTINUED) for event in rest):
        return ""  # where it was stopped, or sent another way, from outside
    later = {name_event(event.type, event.payload) for event in rest}
    return "" if replayed.asks_for in later else f"it asks for {replayed.asks_for}, which the log does not hold"


async def _fault_of_all(db: SimStore, flow: Flow, parts: Parts, log: Sequence[Envelope]) -> str:
    """Does the flow come to where its log does, and is every emit served that can be?"""
    replayed = await replay(flow, log, parts=parts)
    if replayed.outcome is Outcome.DIVERGED:
        return replayed.detail
    if not replayed.new_emits or replayed.outcome is Outcome.UNDECIDED:
        return ""
    if any(stamp_of(event) is None and _was_emitted(db, event) for event in log):
        return ""  # a re-run makes it again, and may (ADR 0102 D2)
    type, payload = replayed.new_emits[0]
    return f"it would append {type} {encode(payload)}"


def _was_emitted(db: SimStore, event: Envelope) -> bool:
    return (event.execution_id, event.sequence) in db.emits


def _causal(history: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return a log to the end of its execution."""
    for at, event in enumerate(history):
        if event.type in TERMINAL_TYPES:
            return history[: at + 1]
    return history


def _decided(history: Sequence[Envelope]) -> Sequence[Envelope]:
    """Return of that what re-runs are served: an outcome that is not may send them another way."""
    log = _causal(history)
    for at, event in enumerate(log):
        if event.type == STEP_CANCELLED or (event.type == STEP_FAILED and is_end(encode(event.payload))):
            return log[:at]
    return log
