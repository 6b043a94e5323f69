"""What a record of a kernel event holds: `(type, execution, envelope)`."""

from __future__ import annotations

from typing import Any

from dst.trace import Record
from kernel import events

TERMINAL = tuple(sorted(events.TERMINAL_TYPES))
ENDS = (*TERMINAL, events.EXECUTION_CONTINUED)
"""Of what one beginning of a flow does."""

KERNEL = tuple(sorted(events.KERNEL_TYPES))


def payload_of(record: Record) -> dict[str, Any]:
    """Return the event's payload."""
    payload: dict[str, Any] = record[2].payload
    return payload


def step_of(record: Record) -> str:
    """Return the journal id of the step it is about."""
    step: str = record[2].payload["step"]
    return step
