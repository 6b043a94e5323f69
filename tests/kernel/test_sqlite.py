"""The SQLite store where the conformance kit cannot look: files, locks, full disks."""

import os
import resource
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from kernel.adapters.sqlite import SqliteStore, open_sqlite
from kernel.adapters.sqlite_file import APPLICATION_ID, SCHEMA_VERSION
from kernel.conformance import chain
from kernel.errors import (
    AppendUnknown,
    ConcurrencyConflict,
    CorruptLog,
    Fenced,
    LogTruncated,
    NotAStore,
    StoreUnavailable,
    StoreVersion,
    UnknownExecution,
)
from kernel.events import GENESIS_HASH, Envelope, seal
from kernel.ports import Delivery, StoredSnapshot

BIG = 300_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def use(path: Path, body: Callable[[SqliteStore], Awaitable[Any]], **options: Any) -> Any:
    """Open the store, run `body` on it and close it."""

    async def run() -> Any:
        async with open_sqlite(path, **options) as store:
            return await body(store)

    return trio.run(run)


async def nothing(store: SqliteStore) -> None:
    """Only open and close."""


def event(sequence: int, text: str = '"text"', previous: str = GENESIS_HASH) -> Envelope:
    return seal(
        execution_id="e",
        sequence=sequence,
        type="TRIED",
        payload_text=text,
        timestamp_ms=1,
        append_id=f"test/{sequence}",
        previous_hash=previous,
    )


async def append(store: SqliteStore, *batch: Envelope, fence: int = 0) -> None:
    await store.append("e", batch[0].sequence, batch, fence=fence, flow_id="f", status="running", due_ms=None)


async def positions(store: SqliteStore) -> list[int]:
    return [stored.sequence for stored in await store.read_from("e", 0)]


# ---- files -----------------------------------------------------------------------------------------------------------


def test_everything_is_there_after_reopening(path: Path) -> None:
    delivery = Delivery(delivery_id="d", on="PAID", correlation_key=None, payload_text="[1]")

    async def write(store: SqliteStore) -> None:
        await append(store, *chain("e", 3))
        assert 1 == await store.claim("e", "owner")
        await store.save("e", StoredSnapshot(sequence=2, text="{}"))
        await store.put("e", delivery)
        await store.truncate_prefix("e", 2)

    async def read(store: SqliteStore) -> None:
        entry = await store.entry("e")
        assert entry is not None
        assert (2, 1, "f", "running") == (entry.head, entry.fence, entry.flow_id, entry.status)
        assert StoredSnapshot(sequence=2, text="{}") == await store.load("e")
        assert [delivery] == await store.pending("e")
        assert () == await store.read_from("e", 3)
        with pytest.raises(LogTruncated, match="below 3"):  # though no event is left to tell by
            await store.read_from("e", 2)

    use(path, write)
    use(path, read)
    assert [path.name] == os.listdir(path.parent), "a closed store is one file"


def test_store_is_a_durable_wal_file_with_our_id(path: Path) -> None:
    async def pragmas(store: SqliteStore) -> list[Any]:
        names = ("journal_mode", "synchronous", "application_id", "user_version")
        return [store._writer.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert ["wal", 2, APPLICATION_ID, SCHEMA_VERSION] == use(path, pragmas)


def test_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    use(path, lambda store: append(store, event(0)))
    assert [0] == use(path, positions)


@pytest.mark.parametrize(
    "content", [b"hello", b"name,amount\n" * 1000, b"SQLite format 3\0" + b"?" * 5000, b"\0" * 8192]
)
def test_file_of_another_kind_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(NotAStore, match=r"store\.db is not a SQLite database .* choose another file"):
        use(path, nothing)
    assert content == path.read_bytes()


@pytest.mark.parametrize("pragma", ["application_id = 0", "application_id = 1234", "user_version = 7"])
def test_database_of_another_program_is_refused_and_left_alone(path: Path, pragma: str) -> None:
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE events (sequence INTEGER)")
    foreign.execute(f"PRAGMA {pragma}")
    foreign.close()
    content = path.read_bytes()
    with pytest.raises(NotAStore, match=r"of another program .* 1 tables.* choose another file"):
        use(path, nothing)
    assert content == path.read_bytes()


def test_store_of_a_newer_kernel_is_refused_and_left_alone(path: Path) -> None:
    use(path, nothing)
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    content = path.read_bytes()
    told = rf"schema version {SCHEMA_VERSION + 1}, this kernel reads up to {SCHEMA_VERSION}; upgrade"
    with pytest.raises(StoreVersion, match=told):
        use(path, nothing)
    assert content == path.read_bytes()


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"no directory .*/absent .* create it first"):
        use(tmp_path / "absent" / "store.db", nothing)


def test_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a directory, a store is a file"):
        use(tmp_path, nothing)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory in which nobody can write")
def test_unwritable_directory_is_told() -> None:
    with pytest.raises(StoreUnavailable, match=r"/proc/store\.db: unable to open .* writable for this user"):
        use(Path("/proc/store.db"), nothing)


def test_path_is_never_a_database_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use(Path(":memory:"), lambda store: append(store, event(0)))
    assert [0] == use(tmp_path / ":memory:", positions)


def test_deleted_event_is_no_silent_gap(path: Path) -> None:
    use(path, lambda store: append(store, *chain("e", 5)))
    editor = sqlite3.connect(path, isolation_level=None)
    editor.execute("DELETE FROM events WHERE sequence = 2")
    editor.close()
    with pytest.raises(CorruptLog, match="has 4 events from 0 on, its head is 4"):
        use(path, positions)


# ---- refusals --------------------------------------------------------------------------------------------------------


async def refused_append(store: SqliteStore, error: type[Exception], match: str, *batch: Envelope) -> None:
    """Expect `error`, and that it left neither an event nor an open transaction."""
    before = await positions(store), await store.entry("e")
    with pytest.raises(error, match=match):
        await append(store, *batch)
    assert not store._writer.in_transaction
    assert before == (await positions(store), await store.entry("e"))


def test_full_disk_refuses_whole_and_is_usable_when_there_is_room(path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        await append(store, event(0))
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {pages + 4}")
        full = r"store\.db: database or disk is full; nothing was written; make room"
        await refused_append(store, StoreUnavailable, full, event(1), event(2, f'"{"x" * BIG}"'))
        with pytest.raises(StoreUnavailable, match="full"):
            await store.put("e", Delivery(delivery_id="d", on="", correlation_key=None, payload_text="x" * BIG))
        await append(store, event(1))  # a small one still fits
        store._writer.execute("PRAGMA max_page_count = 1000000")
        await append(store, event(2, f'"{"x" * BIG}"'))
        assert [0, 1, 2] == await positions(store)

    use(path, body)


def test_failed_write_at_commit_leaves_the_store_usable(path: Path) -> None:
    # A real one, from the operating system: no file may grow beyond a limit.
    async def body(store: SqliteStore) -> None:
        await append(store, event(0))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (BIG // 2, hard))
        try:
            await refused_append(store, AppendUnknown, "disk I/O error.*may or may not", event(1, f'"{"x" * BIG}"'))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await append(store, event(1))
        assert [0, 1] == await positions(store)

    use(path, body)


@attrs.frozen
class FailingCommit:
    """A connection whose COMMIT reports an error, after it has happened or instead of it."""

    connection: sqlite3.Connection
    code: int
    happens: bool

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return self.connection.execute(sql, *values)
        if self.happens:
            self.connection.execute(sql)
        error = sqlite3.OperationalError("as the test wants it")
        error.sqlite_errorcode = self.code
        raise error


@pytest.mark.parametrize(
    ("code", "happens", "wanted"),
    [
        (sqlite3.SQLITE_BUSY, False, StoreUnavailable),
        (sqlite3.SQLITE_FULL, False, StoreUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, False, AppendUnknown),
        (sqlite3.SQLITE_IOERR_FSYNC, True, AppendUnknown),
        (sqlite3.SQLITE_NOMEM, True, AppendUnknown),
    ],
)
def test_error_at_commit_says_nothing_written_only_if_that_is_sure(
    path: Path, code: int, happens: bool, wanted: type[Exception]
) -> None:
    async def body(store: SqliteStore) -> None:
        await append(store, event(0))
        writer = store._writer
        store._writer = FailingCommit(writer, code, happens)  # type: ignore[assignment]
        with pytest.raises(wanted):
            await append(store, event(1))
        store._writer = writer
        assert not writer.in_transaction
        assert ([0, 1] if happens else [0]) == await positions(store)
        await append(store, event(2 if happens else 1))

    use(path, body)


def test_refused_appends_leave_no_transaction_open(path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        await append(store, *chain("e", 3))
        await refused_append(store, ConcurrencyConflict, "position 1, the log is at 3", event(1))
        with pytest.raises(UnknownExecution, match=r"'unknown', which is not in .*store\.db"):
            await store.claim("unknown", "me")
        await store.claim("e", "me")
        await refused_append(store, Fenced, "fence 0, the newest claim is 1 by 'me'", event(3))
        await append(store, event(3), fence=1)

    use(path, body)


def test_id_that_is_no_text_is_refused(path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        with pytest.raises(StoreUnavailable, match=r"lone surrogate.*choose another id"):
            await store.put("\ud800", Delivery(delivery_id="d", on="", correlation_key=None, payload_text="1"))
        assert not store._writer.in_transaction
        with pytest.raises(StoreUnavailable, match="lone surrogate"):
            await store.entry("\ud800")

    use(path, body)


@pytest.mark.parametrize("inline", [False, True])
def test_locked_too_long_is_told_and_passes(path: Path, inline: bool) -> None:
    async def body(store: SqliteStore) -> None:
        await append(store, event(0))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        locked = "locked by another process for more than 40 ms .*nothing was written"
        await refused_append(store, StoreUnavailable, locked, event(1))
        other.execute("ROLLBACK")
        other.close()
        await append(store, event(1))

    use(path, body, inline=inline, busy_ms=40)


def test_waiting_for_a_lock_does_not_stop_the_loop(path: Path) -> None:
    async def body(store: SqliteStore) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, store, event(0))
            for _ in range(20):
                await trio.sleep(0.001)  # the loop turns while the append waits
            assert [] == await positions(store), "and reads go on"
            other.execute("ROLLBACK")
        other.close()
        assert [0] == await positions(store)

    use(path, body)


def test_locked_file_cannot_be_opened(path: Path) -> None:
    use(path, nothing)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match="locked by another process for more than 40 ms"):
        use(path, nothing, busy_ms=40)
    other.close()
    use(path, nothing, busy_ms=40)


def test_closed_store_says_so(path: Path) -> None:
    async def body() -> None:
        async with open_sqlite(path) as store:
            await append(store, event(0))
        await store.aclose()  # closing twice is no error
        for refused in (append(store, event(1)), store.entry("e"), store.read_from("e", 0)):
            with pytest.raises(StoreUnavailable, match=r"store\.db is closed; open it again"):
                await refused

    trio.run(body)


def test_closing_waits_for_the_write_under_way(path: Path) -> None:
    async def body() -> None:
        store = await SqliteStore.open(path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, store, *chain("e", 50))
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            await store.aclose()

    trio.run(body)
    assert [*range(50)] == use(path, positions)
