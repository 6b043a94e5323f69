"""Connections to a PostgreSQL server: a small pool for worker threads, and what is certain when one breaks (K-LOG-2).

psycopg's async side needs asyncio, so its sync connections are used, each by one thread at a time.  A transaction ends
in one of three ways: it is committed; it certainly is not, and `StoreUnavailable` says so (or `ConcurrencyConflict`);
or the connection broke when COMMIT was on its way, and only `AppendUnknown` is true.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
except ImportError as error:
    raise ImportError(
        'the PostgreSQL store needs psycopg: install it with `pip install "loom-dst[postgres]"`'
    ) from error

from kernel.errors import AppendUnknown, ConcurrencyConflict, CorruptLog, KernelError, NotAStore, StoreUnavailable

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

SERVER_VERSION_MIN = 12

# A peer that vanishes without a word is noticed in about 15 s; libpq's own defaults leave that to the system: 2 hours.
_CONNECTION_DEFAULTS = {
    "application_name": "loom",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
}

# One round trip for all.  `pg_temp` last: a temporary table of an effect's must not stand in for one of the store's.
# `synchronous_commit` off, as some servers have it, would acknowledge what a crash then loses.
_SESSION = """
    SELECT set_config('search_path', quote_ident(%(schema)s) || ', pg_temp', false),
        set_config('lock_timeout', %(timeout)s, false),
        set_config('statement_timeout', %(statement)s, false),
        set_config('idle_in_transaction_session_timeout', %(idle)s, false),
        set_config('default_transaction_isolation', 'read committed', false),
        set_config('default_transaction_read_only', CASE WHEN %(read_only)s THEN 'on'
            ELSE current_setting('default_transaction_read_only') END, false),
        set_config('synchronous_commit', CASE current_setting('synchronous_commit')
            WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
"""

_STUCK_AFTER = 4
"""After so many times the timeout, whoever waits for the server is told that the connection is lost.

COMMIT is under no timeout of the server's: it may wait for a standby for ever.
"""


@attrs.frozen(kw_only=True, slots=True)
class Place:
    """Where a store is; its text names the place without a password."""

    conninfo: str = attrs.field(repr=False)
    schema: str
    timeout_ms: int
    read_only: bool = False  # the server then refuses whatever writes

    @classmethod
    def of(cls, dsn: str, schema: str, timeout_ms: int, *, read_only: bool = False) -> Place:
        """Return the place, with the defaults that a store wants.  Raises `StoreUnavailable` if `dsn` is malformed."""
        try:
            given = {name: value for name, value in conninfo_to_dict(dsn).items() if value is not None}
            conninfo = make_conninfo("", **{**_CONNECTION_DEFAULTS, **given, "client_encoding": "utf8"})
        except psycopg.Error:
            raise StoreUnavailable(
                "the connection string is malformed (it may hold a password, so it is not shown); wanted is "
                "`postgresql://user@host/database` or `host=… dbname=…`"
            ) from None
        return cls(conninfo=conninfo, schema=schema, timeout_ms=timeout_ms, read_only=read_only)

    def __str__(self) -> str:
        known = conninfo_to_dict(self.conninfo)
        host = known.get("host") or known.get("hostaddr") or "the default host"
        return f"schema {self.schema!r} of database {known.get('dbname') or 'by default'!r} on {host}"


def connect(place: Place) -> Connection:
    """Return a connection on which each statement is its own transaction until a BEGIN."""
    connection = psycopg.connect(place.conninfo, autocommit=True)
    try:
        _settle(connection, place)
    except BaseException:
        connection.close()
        raise
    return connection


def _settle(connection: Connection, place: Place) -> None:
    """Have the settings of the session as the store needs them."""
    # A statement may work as long as it may wait: with one limit for both, nobody could tell which it was.
    times = {"timeout": 1, "statement": 2, "idle": _STUCK_AFTER}
    limits = {name: str(count * place.timeout_ms) for name, count in times.items()}
    connection.execute(_SESSION, {"schema": place.schema, "read_only": place.read_only, **limits})


@attrs.define(slots=True, eq=False, kw_only=True)
class Pool:
    """Connections of one store.  Mutable: they come and go.  All methods may be called from any thread."""

    place: Place
    closed: bool = attrs.field(default=False, init=False)
    _idle: list[Connection] = attrs.field(factory=list, init=False)  # in no transaction, used by nobody
    _busy: dict[Connection, float] = attrs.field(factory=dict, init=False)  # when each is given up for stuck
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)  # over the two above
    _stop: threading.Event = attrs.field(factory=threading.Event, init=False)

    def watch(self) -> None:
        """Have a thread break the connections on which a server that hangs is waited for; ends with `close`.

        The server's own timeouts do not help where the server is stopped, nor those of TCP, which its system answers.
        """
        threading.Thread(target=self._watch, name="loom: connections", daemon=True).start()

    def adopt(self, connection: Connection) -> None:
        """Take a connection in that was made elsewhere."""
        self._give_back(connection)

    def close(self) -> None:
        """Close all connections; nothing may be under way."""
        self.closed = True
        self._stop.set()
        while self._idle:
            self._idle.pop().close()

    # ---- one statement, one transaction ------------------------------------------------------------------------------

    def read(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return all rows of one statement, so one committed state."""
        with self._connection(lambda connection: connection.execute(sql, values)) as (_, cursor):
            return cursor.fetchall()

    def write(self, work: Callable[[Connection], T], *, conflicts: bool = False) -> T:
        """Do `work` in one durable transaction, whole or not at all.

        With `conflicts`, what the server says of rivals is a `ConcurrencyConflict`.
        """
        with self._connection(_begin, conflicts=conflicts) as (connection, _):
            result = work(connection)
            _commit(connection, self.place)
            return result

    @contextlib.contextmanager
    def _connection(
        self, opening: Callable[[Connection], T], *, conflicts: bool = False
    ) -> Iterator[tuple[Connection, T]]:
        """Give a connection on which `opening`, which writes nothing, has succeeded, and what it returned."""
        if self.closed:
            raise StoreUnavailable(f"the store in {self.place} is closed; open it again")
        with refusals(self.place, conflicts=conflicts):
            connection, fresh = self._take()
            try:
                try:
                    opened = opening(connection)
                except psycopg.Error as error:
                    if fresh or not _is_lost(connection, error):
                        raise
                    # It broke while it lay idle, the server was restarted for example: that is no error of this call.
                    connection.close()
                    self._give_back(connection)
                    connection, _ = self._take(fresh=True)
                    opened = opening(connection)
                yield connection, opened
            finally:
                self._give_back(connection)

    def _take(self, *, fresh: bool = False) -> tuple[Connection, bool]:
        """Return a connection and whether it is a fresh one."""
        connection = None
        with self._lock:
            if self._idle and not fresh:
                connection = self._idle.pop()
        taken = connection or connect(self.place)
        with self._lock:
            self._busy[taken] = time.monotonic() + self.place.timeout_ms * _STUCK_AFTER / 1000
        return taken, connection is None

    def _give_back(self, connection: Connection) -> None:
        """Keep the connection for others if it is whole; whatever it is in the middle of is rolled back."""
        if connection.info.transaction_status != TransactionStatus.IDLE and not connection.closed:
            with contextlib.suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        whole = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            self._busy.pop(connection, None)
            if whole:
                self._idle.append(connection)
        if not whole:
            connection.close()

    # ---- one transaction of several calls ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self, opening: Callable[[Connection], object]) -> Iterator[Connection]:
        """Give a connection, as `_connection` does, to somebody who may leave anything behind in its session.

        Only while it is `watched` is the server expected to answer.
        """
        with self._connection(opening) as (connection, _):
            with self._lock:
                self._busy.pop(connection, None)
            try:
                yield connection
            finally:
                with self.watched(connection):
                    self._cleanse(connection)

    @contextlib.contextmanager
    def watched(self, connection: Connection) -> Iterator[None]:
        """While the block lasts, the connection breaks when the server hangs."""
        with self._lock:
            self._busy[connection] = time.monotonic() + self.place.timeout_ms * _STUCK_AFTER / 1000
        try:
            yield
        finally:
            with self._lock:
                self._busy.pop(connection, None)

    def commit(self, connection: Connection, work: Callable[[Connection], object]) -> None:
        """Do `work` and commit, in an open transaction whose session somebody else has used.

        Raises what `write` does, but for an error at COMMIT itself that says that nothing was written.
        """
        with refusals(self.place, conflicts=True):
            _settle(connection, self.place)
            work(connection)
        # Not among the refusals: it is the transaction as a whole that cannot be, a serializable one for example.
        _commit(connection, self.place)

    def _cleanse(self, connection: Connection) -> None:
        """Roll back what is open, and forget settings, temporary tables, locks, and so on."""
        with contextlib.suppress(psycopg.Error):
            if connection.info.transaction_status != TransactionStatus.IDLE:
                connection.execute("ROLLBACK")
            connection.execute("DISCARD ALL")
            _settle(connection, self.place)
            return
        connection.close()

    # ---- a server that does not answer -------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stop.wait(self.place.timeout_ms / 2000):
            now = time.monotonic()
            with self._lock:  # so that no socket is closed, and its number another file's, before it is shut down
                for connection, stuck_at in self._busy.items():
                    if stuck_at <= now:
                        _shut_down(connection)


def _begin(connection: Connection) -> None:
    connection.execute("BEGIN")


def _commit(connection: Connection, place: Place) -> None:
    """Commit.  Raises `AppendUnknown` if nobody can say whether it happened, else the error itself."""
    try:
        done = connection.execute("COMMIT").statusmessage
    except psycopg.Error as error:
        if not _is_lost(connection, error) and error.sqlstate not in _UNKNOWN:
            raise  # the server has answered that it has rolled back
        raise AppendUnknown(
            f"{place}: the connection was lost at COMMIT ({_told(error)}); the transaction may or may not have "
            "happened: do the same again, what is stored decides"
        ) from error
    if done != "COMMIT":
        raise StoreUnavailable(f"{place}: the server answered COMMIT with {done}; nothing was written, try again")


def _is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Is this no answer to a statement, but the end of the connection?"""
    return connection.closed or error.sqlstate is None or error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def _shut_down(connection: Connection) -> None:
    """Wake who waits for this connection; to them it is lost."""
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)


# ---- refusals --------------------------------------------------------------------------------------------------------

_UNKNOWN = frozenset({"08007", "40003"})  # transaction resolution unknown, statement completion unknown
_RIVALS = frozenset({"40001", "40P01", "23505"})  # serialization failure, deadlock, unique violation
_CORRUPT = frozenset({"XX001", "XX002"})
_GONE = frozenset({"42P01", "42703", "3F000"})  # no such table, column, schema

_ADVICE = {
    "22P02": "nothing was written; this is no JSON that `jsonb` takes",
    "22P05": "nothing was written; this is no JSON that `jsonb` takes",
    "22003": "nothing was written; this is no JSON that `jsonb` takes",
    "25006": "nothing was written; connect to the primary, not to a standby",
    "3D000": "create the database first",
    "42501": "grant this role what it lacks: CREATE on the database to make the schema, CREATE on the schema to "
    "upgrade it, USAGE on it and SELECT, INSERT, UPDATE, DELETE on its tables after that",
    "53100": "nothing was written; make room on the server's disk and try again",
    "53300": "raise the server's max_connections, or open fewer stores and connections",
    "54000": "nothing was written; ids may have about 2600 bytes together, snapshots 256 MB",
    "57P03": "nothing was written; try again when the server is up",
}


@contextlib.contextmanager
def refusals(place: Place, *, conflicts: bool = False) -> Iterator[None]:
    """Turn what psycopg raises into the errors a store may raise."""
    try:
        yield
    except psycopg.Error as error:
        raise _refusal(error, place, conflicts) from error
    except UnicodeEncodeError as error:
        raise StoreUnavailable(f"{place}: {error.object!r:.200} holds a lone surrogate; nothing was written") from error


def _refusal(error: psycopg.Error, place: Place, conflicts: bool) -> KernelError:
    """Return the kernel's error for one that left nothing behind."""
    code = error.sqlstate or ""
    told = _told(error)
    if conflicts and code in _RIVALS:
        return ConcurrencyConflict(
            f"{place}: another writer was at work on this execution ({told}); nothing was written, end this run and "
            "start again from the tail"
        )
    if code in _CORRUPT:
        return CorruptLog(f"{place} is damaged ({told}); restore it from a backup")
    if code in _GONE and place.read_only:
        return StoreUnavailable(f"{place} is of an older version ({told}); open it to write, which upgrades it")
    if code in _GONE:
        return NotAStore(f"{place} is no store any more ({told}); nothing was written, restore it from a backup")
    if code == "55P03":
        return StoreUnavailable(
            f"{place} was locked by another transaction for more than {place.timeout_ms} ms; nothing was written, "
            "end that transaction or try again"
        )
    if code == "57014":
        return StoreUnavailable(
            f"{place} took more than {2 * place.timeout_ms} ms for a statement, or an operator cancelled it ({told}); "
            "nothing was written, look at the server's load and try again"
        )
    return StoreUnavailable(f"{place}: {told}; {_ADVICE.get(code, 'nothing was written')}")


def _told(error: psycopg.Error) -> str:
    """Return the server's words, or psycopg's, in one line."""
    return " ".join((error.diag.message_primary or str(error) or type(error).__name__).split())
