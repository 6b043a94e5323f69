"""A step's transaction in SQLite: what its effect may execute, and what not (K-USER-2).

SQLite asks an authorizer when it compiles a statement, so what would end the transaction, outlive it, or write to the
store's own tables is refused before it does anything.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable

import attrs

from kernel.adapters.sql_transactions import Work
from kernel.errors import TransactionMisuse, TransactionRefused
from kernel.ports import Parameters, SqlResult

OWN_TABLES = frozenset({"contents", "deliveries", "events", "executions", "leases", "snapshots"})
"""The store's, which effects may read."""

_PRAGMAS = frozenset({"defer_foreign_keys", "foreign_key_check", "foreign_key_list", "index_list", "table_info"})
_ON_FIRST = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_DROP_TABLE})
_ON_SECOND = frozenset(
    {
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_DROP_INDEX,
    }
)


def constraint_broken(error: sqlite3.IntegrityError) -> TransactionRefused:
    """Return what to raise when a deferred constraint, of a table of the user's, does not hold at COMMIT."""
    return TransactionRefused(f"nothing was written, a constraint does not hold at the end: {error}")


@attrs.define(eq=False, kw_only=True)
class SqliteSession:
    """A connection in a transaction, of which `finish` does the store's work and commits.  Mutable: it is refused."""

    connection: sqlite3.Connection
    finish: Callable[[sqlite3.Connection, Work[sqlite3.Connection]], None]
    keep: bool = False  # the connection is used for more than this transaction
    _refused: str | None = attrs.field(default=None, init=False)

    def begin(self) -> None:
        """Open the transaction, as the only writer."""
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.set_authorizer(self._authorize)

    def execute(self, statement: str, parameters: Parameters) -> SqlResult:
        """Execute one statement.  Raises `sqlite3.Error`, `TransactionMisuse`, `TransactionRefused`."""
        self._check_open()
        self._refused = None
        try:
            cursor = self.connection.execute(statement, parameters)
            return SqlResult(rows=cursor.fetchall(), rowcount=cursor.rowcount)
        except sqlite3.DatabaseError as error:
            if self._refused is None:
                raise
            raise TransactionMisuse(f"{statement!r:.200} was not executed: {self._refused}") from error

    def join(self, work: Work[sqlite3.Connection]) -> None:
        """Do something of the store's own, to be durable with the rest."""
        self._check_open()
        self.connection.set_authorizer(None)
        try:
            work(self.connection)
        finally:
            self.connection.set_authorizer(self._authorize)

    def commit(self, work: Work[sqlite3.Connection]) -> None:
        """Do `work` and commit."""
        self._check_open()
        self.connection.set_authorizer(None)
        self.finish(self.connection, work)

    def rollback(self) -> None:
        """Roll back; that ends the transaction even where it reports an error."""
        self.connection.set_authorizer(None)
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def interrupt(self) -> None:
        """Have SQLite stop what it is at."""
        self.connection.interrupt()

    def close(self) -> None:
        """Close the connection, if it was for this transaction."""
        if not self.keep:
            self.connection.close()

    def _check_open(self) -> None:
        """Raise if SQLite has rolled back by itself: whatever came next would be committed at once, alone."""
        if not self.connection.in_transaction:
            raise TransactionRefused(
                "nothing was written: a statement that failed has rolled the whole transaction back (`OR ROLLBACK`, "
                "`RAISE(ROLLBACK, ...)`, a full disk); have it abort, or let the effect fail"
            )

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, by: str | None
    ) -> int:
        self._refused = _why_not(action, first, second) or self._refused
        return sqlite3.SQLITE_DENY if self._refused else sqlite3.SQLITE_OK


def _why_not(action: int, first: str | None, second: str | None) -> str | None:
    """Say why an effect may not do something, or return None if it may."""
    if action == sqlite3.SQLITE_TRANSACTION:
        return f"{first} is the kernel's to say: return to commit, raise to roll back, or use savepoints"
    if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
        return "a transaction is of one file"
    if action == sqlite3.SQLITE_PRAGMA and first not in _PRAGMAS:
        return f"PRAGMA {first} may outlive the transaction"
    table = first if action in _ON_FIRST else second if action in _ON_SECOND else None
    if table is not None and table.lower() in OWN_TABLES:
        return f"the table {table} is the store's own"
    return None
