"""Folding a long log from its start: flat if an event costs the same wherever it stands."""

from __future__ import annotations

import time

from measuring import Ratios, Sizes, Times, without_collector

from kernel import Envelope
from kernel.digest import fnv1a64
from kernel.events import (
    DECISION_RECORDED,
    EXECUTION_RESUMED,
    EXECUTION_STARTED,
    EXECUTION_SUSPENDED,
    GENESIS_HASH,
    STEP_COMPLETED,
    STEP_STARTED,
    seal,
)
from kernel.fold import FoldPass
from kernel.gates import payload_of


def _log(events: int) -> list[Envelope]:
    """Return a log in which steps, decisions, stamped emits and gates take turns: all that a state grows by."""
    records: list[tuple[str, str]] = [(EXECUTION_STARTED, '{"flowId":"f","flowVersion":null,"input":null}')]
    for number in range(events // 6 + 1):
        records += [
            (STEP_STARTED, f'{{"attempt":1,"inputDigest":"0123456789abcdef","kind":"step","step":"s[{number}]"}}'),
            (STEP_COMPLETED, f'{{"attempt":1,"output":{{"receipt":{number}}},"step":"s[{number}]"}}'),
            (DECISION_RECORDED, f'{{"choice":{number},"decisionId":"d{number}"}}'),
            ("noted", f'{{"n":{number}}}'),
            (EXECUTION_SUSPENDED, f'{{"correlationKey":null,"due":null,"on":"go","ordinal":{number}}}'),
            (EXECUTION_RESUMED, payload_of("go", None, f"d-{number}", str(number))),
        ]
    return [
        seal(
            execution_id="e-1",
            sequence=sequence,
            type=type,
            payload_text=payload,
            timestamp_ms=1_700_000_000_000,
            append_id=f"worker/{sequence}",
            previous_hash=GENESIS_HASH,
            stamp=fnv1a64(payload) if type == "noted" else None,
        )
        for sequence, (type, payload) in enumerate(records[:events])
    ]


def folds(sizes: Sizes) -> Times:
    """The seconds of folding one event, in a log of so many."""
    log = _log(sizes.folded[-1])
    times: Times = {}
    for events in sizes.folded:
        with without_collector():
            began = time.process_time()
            state = FoldPass.of(log[:events])
            times[_name(events)] = (time.process_time() - began) / events
        assert state["lastSequence"] == events - 1
    return times


def _name(events: int) -> str:
    return f"fold, an event of {events:,}"


def ratios(sizes: Sizes) -> Ratios:
    """An event of a long log against one of a short log: flat is 1."""
    least, *more = sizes.folded
    return [(_name(events), _name(least)) for events in more]
