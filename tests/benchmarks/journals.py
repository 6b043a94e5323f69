"""A journal without a runtime: what writes logs here, and is measured by itself."""

from __future__ import annotations

from kernel.adapters.memory import MemoryStore
from kernel.adapters.system import SystemClock
from kernel.fold import FoldPass
from kernel.journal import AppendIds, Journal
from kernel.lifecycle import Loaded


def new_journal(store: MemoryStore, execution_id: str) -> Journal:
    """Return the journal of an execution that is not in the store yet."""
    return Journal.resume(
        Loaded(execution_id=execution_id, fold=FoldPass(), projected={}, snapshot_sequence=-1),
        stores=store.stores,
        clock=SystemClock(),
        append_ids=AppendIds("worker"),
        fence=0,
        projections=(),
        observers=(),
        snapshot_every=None,
    )
