"""A step's transaction in PostgreSQL: what its effect may execute, and what not (K-USER-2).

The effect sees the search path that the connection string, its role or its database give, not the store's own.
Statements go to the server one by one, as prepared ones, so that a COMMIT can hide in none of them; the server itself
refuses one in a procedure.
"""

from __future__ import annotations

import contextlib
import re

import attrs
import psycopg
from psycopg.pq import TransactionStatus

from kernel.adapters.postgres_pool import Connection, Pool
from kernel.adapters.sql_transactions import Work
from kernel.errors import TransactionMisuse, TransactionRefused
from kernel.ports import Parameters, SqlResult

_INTERRUPT_SECONDS = 5.0

# Before the first word: spaces, comments, and statements with nothing in them.
_NOTHING = re.compile(r"(?:[\s;]|--[^\n]*(?:\n|\Z))+")
_FIRST_WORDS = re.compile(r"(\w+)(?:\s+(\w+))?(?:\s+(\w+))?")
_ENDS = frozenset({"abort", "begin", "commit", "end", "rollback", "start"})


@attrs.define(eq=False, kw_only=True)
class PostgresSession:
    """A connection of the pool in a transaction.  Mutable: it is given back."""

    pool: Pool
    _holding: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False)
    _connection: Connection = attrs.field(init=False)

    def begin(self) -> None:
        """Open the transaction.  Raises `StoreUnavailable`."""
        self._connection = self._holding.enter_context(self.pool.held(_begin))

    def execute(self, statement: str, parameters: Parameters) -> SqlResult:
        """Execute one statement.  Raises `psycopg.Error`, `TransactionMisuse`."""
        _check_statement(statement)
        with self.pool.watched(self._connection):
            cursor = self._connection.execute(statement, parameters or None, prepare=True)
            rows = cursor.fetchall() if cursor.description is not None else ()
            return SqlResult(rows=rows, rowcount=cursor.rowcount)

    def commit(self, work: Work[Connection]) -> None:
        """See that the effect's part can be committed, then do the store's part as in any append, and commit."""
        if self._connection.info.transaction_status != TransactionStatus.INTRANS:
            raise TransactionRefused(
                "nothing was written: a statement failed, or the connection was lost, and the effect went on; let it "
                "fail, or set a savepoint before what may fail and go back to it"
            )
        with self.pool.watched(self._connection):
            try:
                self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
                self.pool.commit(self._connection, work)
            except psycopg.Error as error:
                raise TransactionRefused(f"nothing was written, the server does not commit it: {error}") from error

    def rollback(self) -> None:
        """Leave it to `close`: a connection that is given back is rolled back."""

    def interrupt(self) -> None:
        """Have the server cancel what it is at."""
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_INTERRUPT_SECONDS)

    def close(self) -> None:
        """Give the connection back."""
        self._holding.close()


def _begin(connection: Connection) -> None:
    connection.execute("BEGIN; SET LOCAL search_path TO DEFAULT")


def _check_statement(statement: str) -> None:
    """Raise for a statement that would end the transaction.  Savepoints are the effect's own."""
    words = [word.lower() if word else "" for word in _first_words(statement)]
    savepoint = words[0] == "rollback" and "to" in words[1:]
    if (words[0] in _ENDS and not savepoint) or words[:2] == ["prepare", "transaction"]:
        raise TransactionMisuse(
            f"{statement!r:.200} was not executed: to begin, commit or roll back is the kernel's to do; return to "
            "commit, raise to roll back, or use savepoints"
        )


def _first_words(statement: str) -> tuple[str | None, ...]:
    """Return three words, as far as there are any before something else."""
    at = 0
    while True:
        nothing = _NOTHING.match(statement, at)
        if nothing is not None:
            at = nothing.end()
        elif statement.startswith("/*", at):
            at = _after_comment(statement, at)
        else:
            break
    found = _FIRST_WORDS.match(statement, at)
    return ("", None, None) if found is None else found.groups()


def _after_comment(statement: str, at: int) -> int:
    """Return where a comment ends: there may be others in it."""
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(statement, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return len(statement)
