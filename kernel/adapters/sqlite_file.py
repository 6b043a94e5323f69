"""A file that is a store: its schema, its versions, and how it is opened.

Files are told apart by what their header says, before anything is written to them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time

from kernel.adapters.sqlite_errors import primary_code, refusals
from kernel.errors import NotAStore, StoreUnavailable, StoreVersion

APPLICATION_ID = 0x4C4F4F4D
"""What says in a file's header that it is a store of this kernel: "LOOM"."""

SCHEMA_VERSION = 2
"""The file's `user_version`; a file with a higher one is refused."""

_SQLITE_MIN = (3, 37, 0)  # STRICT tables
_RETRY_SECONDS = 0.01

# Files of version 1 have all but this.
_SINCE_2 = (
    """CREATE TABLE leases (
        execution_id TEXT PRIMARY KEY, owner TEXT NOT NULL, until_ms INTEGER NOT NULL, fence INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    "CREATE TABLE contents (hash TEXT PRIMARY KEY, text TEXT NOT NULL) STRICT",
)

# Clustered by key: one page less to write for each append, and a read is one descent and a walk.
_SCHEMA = (
    """CREATE TABLE executions (
        execution_id TEXT PRIMARY KEY, flow_id TEXT NOT NULL, status TEXT NOT NULL, head INTEGER NOT NULL,
        due_ms INTEGER, fence INTEGER NOT NULL DEFAULT 0, owner TEXT
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX executions_by_status ON executions (status)",
    """CREATE TABLE events (
        execution_id TEXT NOT NULL, sequence INTEGER NOT NULL, text TEXT NOT NULL, hash TEXT NOT NULL,
        PRIMARY KEY (execution_id, sequence)
    ) STRICT, WITHOUT ROWID""",
    "CREATE TABLE snapshots (execution_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL, text TEXT NOT NULL) STRICT",
    # `arrival` is one more than the greatest that is pending, so it orders what is pending.
    """CREATE TABLE deliveries (
        arrival INTEGER PRIMARY KEY, execution_id TEXT NOT NULL, delivery_id TEXT NOT NULL, "on" TEXT NOT NULL,
        correlation_key TEXT, payload_text TEXT NOT NULL, UNIQUE (execution_id, delivery_id)
    ) STRICT""",
    *_SINCE_2,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the path so that no name means a database in memory, and none depends on the current directory."""
    return os.path.abspath(os.fspath(path))


def open_connections(path: str, busy_ms: int, read_only: bool) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """Return a writer and a reader on the store at `path`.  Raises as `SqliteStore.open`."""
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise StoreUnavailable(f"this Python has SQLite {sqlite3.sqlite_version}, the store needs 3.37 or newer")
    if not os.path.isdir(os.path.dirname(path)):
        raise StoreUnavailable(f"no directory {os.path.dirname(path)} to keep the store {path} in; create it first")
    if os.path.isdir(path):
        raise StoreUnavailable(f"{path} is a directory, a store is a file; name a file in it")
    if read_only and not os.path.exists(path):
        raise NotAStore(f"there is no file {path} to read; open it to write, and it is made")
    with refusals(path, busy_ms), contextlib.ExitStack() as on_error:
        writer = on_error.enter_context(contextlib.closing(connect(path, busy_ms)))
        if read_only:
            writer.execute("PRAGMA query_only = ON")
        _recognise(writer, path, read_only)
        if not read_only:
            _switch_to_wal(writer, path, busy_ms)
        reader = on_error.enter_context(contextlib.closing(connect(path, busy_ms)))
        reader.execute("PRAGMA query_only = ON")
        on_error.pop_all()
    return writer, reader


def connect(path: str, busy_ms: int) -> sqlite3.Connection:
    """Return a connection that leaves transactions to us and syncs at each commit."""
    connection = sqlite3.connect(path, timeout=busy_ms / 1000, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: without it a sync stops at the disk's own cache
    return connection


def _recognise(connection: sqlite3.Connection, path: str, read_only: bool) -> None:
    """Return if this is a store, or has just become one.  Raises `NotAStore`, `StoreVersion`; changes no other file.

    To be read, a store of any older version is as good: it lacks tables that nothing in it refers to.
    """
    if _is_empty(connection):
        if read_only:
            raise NotAStore(f"{path} is empty; open it to write, and it becomes a store")
        connection.execute("BEGIN IMMEDIATE")
        if _is_empty(connection):  # still: another process may have made it meanwhile
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")
    application, version, tables = _header(connection)
    if application != APPLICATION_ID:
        raise NotAStore(
            f"{path} is a SQLite database of another program (application id {application:#x}, {tables} tables), "
            f"a store has {APPLICATION_ID:#x}; choose another file"
        )
    if version > SCHEMA_VERSION:
        raise StoreVersion(
            f"{path} has schema version {version}, this kernel reads up to {SCHEMA_VERSION}; upgrade the kernel"
        )
    if version < SCHEMA_VERSION and not read_only:
        _upgrade(connection)


def _upgrade(connection: sqlite3.Connection) -> None:
    """Bring a file of version 1 up to date; another process may be at it too."""
    connection.execute("BEGIN IMMEDIATE")
    if _header(connection)[1] < SCHEMA_VERSION:
        for statement in (*_SINCE_2, f"PRAGMA user_version = {SCHEMA_VERSION}"):
            connection.execute(statement)
    connection.execute("COMMIT")


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Has nobody written to this database yet?"""
    return _header(connection) == (0, 0, 0)


def _header(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return application id, schema version and number of tables, read in one statement."""
    row: tuple[int, int, int] = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchall()[0]
    return row


def _switch_to_wal(connection: sqlite3.Connection, path: str, busy_ms: int) -> None:
    """Have the file in WAL mode, which it keeps.

    Tries again by itself: two processes that open a new file at once both hold a read lock here, and SQLite then tells
    one of them "locked" without waiting.
    """
    give_up = time.monotonic() + busy_ms / 1000
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up:
                raise
            time.sleep(_RETRY_SECONDS)
            continue
        if mode != "wal":
            raise StoreUnavailable(f"{path} cannot be used in WAL mode (it stays {mode!r}); keep it on a local disk")
        return
