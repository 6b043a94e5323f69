"""How a process that the conformance kit starts opens the stores that ship with the kernel, and broken ones."""

# The broken stores below override one method each, with the port's signature:
# mypy: allow-untyped-defs

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import attrs

from kernel.adapters.postgres import open_postgres
from kernel.adapters.sqlite import SqliteStore, open_sqlite
from kernel.errors import ConcurrencyConflict
from kernel.events import StoredEvent
from kernel.ports import Stores


@contextlib.asynccontextmanager
async def sqlite(place: str) -> AsyncIterator[Stores]:
    """Open a file; with checkpoints at nearly every append, so that they are killed as well."""
    async with open_sqlite(place, busy_ms=20_000) as store:
        store._writer.execute("PRAGMA wal_autocheckpoint = 8")
        yield store.stores


@contextlib.asynccontextmanager
async def postgresql(place: str) -> AsyncIterator[Stores]:
    """Open a schema: `place` is a JSON list of connection string and name."""
    dsn, schema = json.loads(place)
    async with open_postgres(dsn, schema=schema, timeout_ms=20_000) as store:
        yield store.stores


# ---- broken ones -----------------------------------------------------------------------------------------------------


@attrs.define
class Wrapped:
    """A store in a file, of which a subclass breaks something."""

    store: SqliteStore

    def __getattr__(self, name):
        return getattr(self.store, name)


def breaking(broken):
    """Return what opens a store that is broken like this."""

    @contextlib.asynccontextmanager
    async def opened(place: str) -> AsyncIterator[Stores]:
        async with open_sqlite(place, busy_ms=20_000) as store:
            wrapped = broken(store)
            yield attrs.evolve(store.stores, events=wrapped, leases=wrapped)

    return opened


@breaking
class unchecked(Wrapped):
    """Says of every append that is refused that it has landed."""

    async def append(self, *args, **kwargs):
        with contextlib.suppress(ConcurrencyConflict):
            await self.store.append(*args, **kwargs)


@breaking
@attrs.define
class write_behind(Wrapped):
    """Acknowledges what it will write with the next append."""

    late: tuple = ()

    async def append(self, execution_id, expected, batch, **more):
        if self.late:
            await self.store.append(*self.late[:3], **self.late[3])
        self.late = (execution_id, expected, batch, more)

    async def read_from(self, execution_id, sequence):
        stored = await self.store.read_from(execution_id, sequence)
        late = self.late[2] if self.late else ()
        return [*stored, *(StoredEvent(event.sequence, event.text, event.hash) for event in late)]


@breaking
class unfenced(Wrapped):
    """Takes every owner for the newest."""

    async def append(self, *args, fence, **more):
        await self.store.append(*args, fence=2**31, **more)


@breaking
class leases_for_all(Wrapped):
    """Gives every lease to whoever asks."""

    async def acquire(self, execution_id, owner, *, until_ms, after):
        newest = (await self.store.entry(execution_id)).fence
        return await self.store.acquire(execution_id, owner, until_ms=until_ms, after=newest)
