"""Opening the store that a command names, which is there already: a typo makes none."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import attrs
import trio

from kernel.adapters.sqlite import open_sqlite
from kernel.cli.code import find
from kernel.cli.errors import WrongUsage, nearest
from kernel.codec import KEY as CODED
from kernel.codec import Codec, with_codec
from kernel.content import with_content
from kernel.errors import CorruptLog, KernelError, NotAStore, StoreUnavailable
from kernel.events import StoredEvent
from kernel.ports import CatalogueEntry, ContentStore, EventStore, Notifications, Stores

if TYPE_CHECKING:
    from kernel.adapters.postgres_pool import Place

_POSTGRES = re.compile(r"postgres(ql)?://")
_NOTHING_BY_REFERENCE = 2**62  # bytes: what is appended here is for workers that may keep no contents

_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*(?=@)|(?<=password=)[^&\\s]+")

T = TypeVar("T")
Rows = Callable[[str, int], list[StoredEvent]]
Layers = Callable[[EventStore], EventStore]


@attrs.frozen(kw_only=True)
class Where:
    """Which store a command is about."""

    store: str
    schema: str
    codec: str | None  # the name of its code


@attrs.frozen(kw_only=True)
class Opened:
    """An open store."""

    stores: Stores
    notifications: Notifications
    _layers: Layers  # what the texts of events have gone through
    _coded: bool  # through a codec, which was named
    _rows: Rows

    async def rows(self, execution_id: str, start: int = 0) -> list[StoredEvent]:
        """Return the stored events from `start` on as they are, gaps and all, which `read_from` would refuse."""
        return await trio.to_thread.run_sync(self._rows, execution_id, start)

    async def whole(self, execution_id: str, row: StoredEvent) -> StoredEvent:
        """Return an event as it was appended.  Raises `CorruptLog`, `ContentMissingError`; `WrongUsage` for a codec."""
        self._check_codec(row.text)
        try:
            return (await self._layers(cast("EventStore", _One(row))).read_from(execution_id, row.sequence))[0]
        except KernelError:
            raise
        except Exception as error:  # whatever a codec raises, for one
            raise CorruptLog(f"event {row.sequence} of {execution_id!r} cannot be read ({error!r})") from error

    def _check_codec(self, text: str) -> None:
        if not self._coded and text.startswith(f'{{"{CODED}"'):
            raise WrongUsage("what is stored here has gone through a codec: name it with --codec, before the store")

    async def entry(self, execution_id: str) -> CatalogueEntry:
        """Return the catalogue entry.  Raises `WrongUsage` with the id that may have been meant."""
        entry = await self.stores.events.entry(execution_id)
        if entry is not None:
            for row in await self.rows(execution_id, entry.head):
                self._check_codec(row.text)
            snapshot = await self.stores.snapshots.load(execution_id)
            self._check_codec("" if snapshot is None else snapshot.text)
            return entry
        known = [known.execution_id for known in await self.stores.events.entries()]
        near = nearest(execution_id, known)
        hint = f": did you mean {near!r}?" if near else f"; it has {len(known)}, see `list`"
        raise WrongUsage(f"no execution {execution_id!r} in this store{hint}")


@attrs.frozen
class _One:
    """One event, as if it were a log."""

    row: StoredEvent

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        return [self.row]


def _layered(stores: Stores, codec: Codec | None, contents: ContentStore) -> Stores:
    """Return the stores with what lies between them and the kernel: contents above a codec, as nothing else works."""
    if codec is not None:
        stores = with_codec(stores, codec)
    return with_content(stores, contents, inline_bytes_max=_NOTHING_BY_REFERENCE)


def _opened(store: _Store, codec: Codec | None, rows: Rows) -> Opened:
    stores = store.stores
    return Opened(
        stores=_layered(stores, codec, store),
        notifications=store,
        layers=lambda events: _layered(attrs.evolve(stores, events=events), codec, store).events,
        coded=codec is not None,
        rows=rows,
    )


class _Store(Notifications, ContentStore, Protocol):
    @property
    def stores(self) -> Stores: ...


def without_password(text: str) -> str:
    """Return a connection string that may be shown."""
    return _PASSWORD.sub(lambda found: "***" if found[1] is None else f"{found[1]}:***", text)


def run(where: Where, body: Callable[[Opened], Awaitable[T]], *, read_only: bool = False) -> T:
    """Open the store, run `body` on it, close it, and return what it returned.

    With `read_only` nothing at all is written: a store of an older kernel is not brought up to date either.
    """

    async def use() -> T:
        async with _open(where, read_only) as opened:
            return await body(opened)

    return trio.run(use)


@contextlib.asynccontextmanager
async def _open(where: Where, read_only: bool) -> AsyncIterator[Opened]:
    codec = None if where.codec is None else cast("Codec", find(where.codec))
    opening = _postgres if _POSTGRES.match(where.store) else _sqlite
    async with opening(where, codec, read_only) as opened:
        yield opened


# ---- SQLite ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _sqlite(where: Where, codec: Codec | None, read_only: bool) -> AsyncIterator[Opened]:
    _check_file(where.store)
    async with open_sqlite(where.store, read_only=read_only) as store:
        yield _opened(store, codec, lambda execution_id, start: _sqlite_rows(store.path, execution_id, start))


def _check_file(path: str) -> None:
    if not os.path.exists(path):
        raise WrongUsage(
            f"no store at {without_password(path)!r}: wanted is the file of a SQLite store, or "
            "postgresql://user@host/database"
        )
    if not os.path.isfile(path):
        raise WrongUsage(f"{path!r} is no file: wanted is the file of a SQLite store")
    if _is_empty(path):
        raise NotAStore(f"{path!r} is empty, and no store; it is left as it is")


def _is_empty(path: str) -> bool:
    """Is this a database that nobody has written to?  Opening it as a store would make it one."""
    try:
        with contextlib.closing(_read_only(path)) as connection:
            found = connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except sqlite3.Error:
        return False  # whatever it is: the store's own opening says it better
    return not found[0][0]


def _read_only(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro", uri=True)


def _sqlite_rows(path: str, execution_id: str, start: int) -> list[StoredEvent]:
    try:
        with contextlib.closing(_read_only(path)) as connection:
            connection.text_factory = lambda raw: raw.decode(errors="replace")  # damaged text fails its hash, by name
            found = connection.execute(
                "SELECT sequence, text, hash FROM events WHERE execution_id = ? AND sequence >= ? ORDER BY sequence",
                (execution_id, start),
            ).fetchall()
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise CorruptLog(f"{path} is damaged ({error}); restore it from a backup") from error
    return [StoredEvent(*row) for row in found]


# ---- PostgreSQL ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _postgres(where: Where, codec: Codec | None, read_only: bool) -> AsyncIterator[Opened]:
    try:
        from kernel.adapters.postgres import TIMEOUT_MS, open_postgres
        from kernel.adapters.postgres_pool import Place
    except ImportError as error:
        raise WrongUsage(str(error)) from error
    place = Place.of(where.store, where.schema, TIMEOUT_MS)
    if not await trio.to_thread.run_sync(_has_store, place):
        raise NotAStore(f"there is no store in {place}; nothing is made there; name another with --schema")
    async with open_postgres(where.store, schema=where.schema, read_only=read_only) as store:
        yield _opened(store, codec, lambda execution_id, start: _postgres_rows(place, execution_id, start))


def _has_store(place: Place) -> bool:
    from kernel.adapters.postgres_pool import connect, refusals

    with refusals(place), contextlib.closing(connect(place)) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = 'loom_store'",
            (place.schema,),
        ).fetchall()
    return bool(found[0][0])


def _postgres_rows(place: Place, execution_id: str, start: int) -> list[StoredEvent]:
    from kernel.adapters.postgres_pool import connect, refusals

    with refusals(place), contextlib.closing(connect(place)) as connection:
        found = connection.execute(
            "SELECT sequence, text, hash FROM events WHERE execution_id = %s AND sequence >= %s ORDER BY sequence",
            (execution_id, start),
        ).fetchall()
    return [StoredEvent(*row) for row in found]
