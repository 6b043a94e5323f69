"""What SQLite raises, in the words of the port: what was left behind, and what to do next."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from kernel.errors import AppendUnknown, CorruptLog, KernelError, NotAStore, StoreUnavailable

# After these a COMMIT has not happened and cannot come to pass later.  BUSY leaves the transaction open, to be rolled
# back, and so does CONSTRAINT: a deferred one, of a user's table.  FULL means that a page did not get into the log, and
# the page with the commit mark is the last one.  Everything else may come after the mark: when a sync fails, for
# example, this process goes on without the transaction, but if it dies before it has written over the mark, the next
# one to open the file finds it and takes the transaction for good.
_NOT_COMMITTED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_FULL})

_LACKED_BY_1 = ("no such table: leases", "no such table: contents")

_ADVICE = {
    sqlite3.SQLITE_FULL: "nothing was written; make room on the disk and try again",
    sqlite3.SQLITE_READONLY: "nothing was written; make the file and its directory writable for this user",
    sqlite3.SQLITE_CANTOPEN: "make the file and its directory readable and writable for this user",
    sqlite3.SQLITE_PERM: "make the file and its directory readable and writable for this user",
    sqlite3.SQLITE_IOERR: "nothing was written; look for disk errors in the system's log",
}


def commit(connection: sqlite3.Connection, path: str) -> None:
    """Commit.  Raises `AppendUnknown` if the error leaves open whether it happened, else the error itself."""
    try:
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if primary_code(error) in _NOT_COMMITTED:
            raise
        raise AppendUnknown(
            f"{path}: the commit failed with {error}; the transaction may or may not be there when the file is next "
            "opened: do the same again, what is stored decides"
        ) from error


@contextlib.contextmanager
def refusals(path: str, busy_ms: int) -> Iterator[None]:
    """Turn what SQLite raises into the errors a store may raise."""
    try:
        yield
    except sqlite3.Error as error:
        raise _refusal(error, path, busy_ms) from error
    except UnicodeEncodeError as error:
        raise StoreUnavailable(
            f"{path}: {error.object!r} holds a lone surrogate, which is no text to SQLite; nothing was written, "
            "choose another id or key"
        ) from error


def _refusal(error: sqlite3.Error, path: str, busy_ms: int) -> KernelError:
    """Return the kernel's error for one of SQLite's that left nothing behind."""
    code = primary_code(error)
    if str(error) in _LACKED_BY_1:
        return StoreUnavailable(f"{path} is of an older version ({error}); open it to write, which upgrades it")
    if code == sqlite3.SQLITE_NOTADB:
        return NotAStore(f"{path} is not a SQLite database ({error}); choose another file, or restore it from a backup")
    if code == sqlite3.SQLITE_CORRUPT:
        return CorruptLog(f"{path} is damaged ({error}); restore it from a backup")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(
            f"{path} was locked by another process for more than {busy_ms} ms ({error}); nothing was written, "
            "end the long transaction of that process or try again"
        )
    return StoreUnavailable(f"{path}: {error}; {_ADVICE.get(code, 'nothing was written')}")


def primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; -1 for an error of the Python module itself."""
    code: int = getattr(error, "sqlite_errorcode", -1)
    return code if code < 0 else code & 0xFF
