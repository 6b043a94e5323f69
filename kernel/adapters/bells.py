"""Wake-ups inside one process: a store rings, its subscribers wake (K-LOG-5)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import attrs
import trio


class Bell:
    """One subscriber's bell.  Mutable: once rung it stays so until a wait returns: nothing comes too early."""

    def __init__(self) -> None:
        self._rung = trio.Event()

    def ring(self) -> None:
        """Have the next wait, or the one under way, return."""
        self._rung.set()

    async def wait(self) -> None:
        """Return when the bell has been rung since the last return."""
        await self._rung.wait()
        self._rung = trio.Event()


@attrs.define(slots=True, eq=False)
class Bells:
    """The bells of a store.  Mutable: subscribers come and go; an execution that nobody follows has no key."""

    _hung: dict[str, dict[Bell, None]] = attrs.field(factory=dict, init=False)

    def ring(self, execution_id: str) -> None:
        """Ring for everybody who follows the execution."""
        for bell in self._hung.get(execution_id, ()):
            bell.ring()

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id: str) -> AsyncIterator[Bell]:
        """Hang up a bell for the length of the block."""
        bell = Bell()
        self._hung.setdefault(execution_id, {})[bell] = None
        try:
            yield bell
        finally:
            del self._hung[execution_id][bell]
            if not self._hung[execution_id]:
                del self._hung[execution_id]
