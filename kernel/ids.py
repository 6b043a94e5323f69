"""Ids that every store can keep, and that mean one thing: checked before anything is stored (K-RUN-1, K-RUN-2)."""

from __future__ import annotations

import re

from kernel.errors import InvalidId

ID_BYTES_MAX = 1_000
"""Of an execution's or a delivery's id, in UTF-8: PostgreSQL indexes both together in one row of at most 2704 bytes."""

TIMER_DELIVERY = "timer:"
CANCEL_DELIVERY = "cancel:"
KERNEL_DELIVERIES = (TIMER_DELIVERY, CANCEL_DELIVERY)
"""What the delivery ids of timers and of requests to cancel begin with."""

LIKE_A_BEGINNING = re.compile(r"~[0-9]+\Z")
"""How the number of a later beginning stands behind an id: of a child, and of what its effects are known by."""


def check_id(id: str, what: str) -> None:
    """Raise `InvalidId` for the id of an execution or a delivery that is none.

    An execution's id is the delivery id of its end, if it is a child (K-RUN-2): what is refused as one is refused as
    the other.
    """
    check_text(id, what)
    size = len(id.encode())
    if not 0 < size <= ID_BYTES_MAX:
        raise InvalidId(f"{what} {id[:40]!r} has {size} bytes, wanted are 1 to {ID_BYTES_MAX} of UTF-8: choose another")
    if id.startswith(KERNEL_DELIVERIES):
        raise InvalidId(f"{what} {id!r}: what begins with {' or '.join(KERNEL_DELIVERIES)} is the kernel's own")


def check_text(text: str, what: str) -> None:
    """Raise `InvalidId` for a text that some store cannot keep beside its events: one with NUL or a lone surrogate."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidId(f"{what} {text!r} holds a NUL or a lone surrogate, which is no text to some stores")
