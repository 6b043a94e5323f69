"""The PostgreSQL store on a real server: the kit, and what the kit cannot see (K-LOG-2, K-LOG-5, K-RUN-6)."""

import contextlib
import json
import os
import random
import signal
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import attrs
import psycopg
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from kernel import Context, Json, flow, open_runtime, step, with_content
from kernel.adapters.jsonb import from_jsonb, to_jsonb
from kernel.adapters.memory import MemoryStore
from kernel.adapters.postgres import PostgresStore, open_postgres
from kernel.adapters.postgres_schema import SCHEMA_VERSION
from kernel.adapters.postgres_wakeups import PAYLOAD_BYTES_MAX
from kernel.conformance import CHECKS, NOTIFICATION_CHECKS, ODD_JSON, Check, NotificationCheck, chain
from kernel.conformance_processes import Shared, Writer, logged
from kernel.conformance_writer import fill, retry
from kernel.errors import (
    AppendUnknown,
    ConcurrencyConflict,
    ContentMissingError,
    CorruptLog,
    ExecutionInterrupted,
    Fenced,
    LogTruncated,
    NotAStore,
    StoreUnavailable,
    StoreVersion,
    UnknownExecution,
)
from kernel.events import GENESIS_HASH, Envelope, seal
from kernel.jsonform import decode, encode
from kernel.ports import Delivery, Notifications, StoredSnapshot, Stores, Wakeups
from tests.kernel.postgres_server import NoServer, Server

Use = Callable[..., Any]


@pytest.fixture
def use(server: Server, schema: str) -> Use:
    """Return what opens the store, runs a body on it and closes it."""

    def use(body: Callable[[PostgresStore], Awaitable[Any]], **options: Any) -> Any:
        async def run() -> Any:
            with trio.fail_after(60):
                async with open_postgres(options.pop("dsn", server.dsn), schema=schema, **options) as store:
                    return await body(store)

        return trio.run(run)

    return use


@pytest.fixture
def operator(server: Server, schema: str) -> Iterator[Any]:
    """A connection beside the store's, with its schema on the path."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', quote_ident(%s), false)", (schema,))
        yield connection


@pytest.fixture
def hold(server: Server, schema: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return what holds the rows of all executions for the length of a block."""

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        with psycopg.connect(server.dsn) as connection:  # apart: in a transaction, an operator sees no news
            connection.execute("SELECT set_config('search_path', quote_ident(%s), false)", (schema,))
            connection.execute("SELECT 1 FROM executions FOR UPDATE")
            yield

    return hold


def event(sequence: int, text: str = '"text"', previous: str = GENESIS_HASH, name: str = "e") -> Envelope:
    """Return an event of the execution `name`."""
    return seal(
        execution_id=name,
        sequence=sequence,
        type="TRIED",
        payload_text=text,
        timestamp_ms=1,
        append_id=f"test/{sequence}",
        previous_hash=previous,
    )


async def nothing(store: PostgresStore) -> None:
    """Only open and close."""


async def append(store: PostgresStore, *batch: Envelope, fence: int = 0) -> None:
    first = batch[0]
    await store.append(
        first.execution_id, first.sequence, batch, fence=fence, flow_id="f", status="running", due_ms=None
    )


async def positions(store: PostgresStore) -> list[int]:
    return [stored.sequence for stored in await store.read_from("e", 0)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until another process has come to something, of which it does not tell."""
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.002)


# ---- the conformance kit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_store_conforms(server: Server, schema: str, check: Check) -> None:
    @contextlib.asynccontextmanager
    async def handle(_: object = None) -> AsyncIterator[Stores]:
        async with open_postgres(server.dsn, schema=schema) as store:
            yield store.stores

    trio.run(check.run, handle, handle)


# ---- snapshots as jsonb (K-RUN-6) ------------------------------------------------------------------------------------

ESCAPES = (
    "\0",
    "\x1b",
    "\x1b0000",
    "\x1bd800",
    "\ud800",
    "\udfff",
    "\ud83d\ud83d\ude00",
    "\\",
    "\\u0000",
    '"',
    "é😀",
    "u",
)
texts = st.lists(st.one_of(st.sampled_from(ESCAPES), st.text(max_size=3))).map("".join)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53) + 1, 2**53 - 1), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=12,
)


@given(json_values)
def test_escape_is_reversible(value: Any) -> None:
    with contextlib.suppress(ValueError):  # two keys that read alike
        text = encode(value)
        assert text == from_jsonb(to_jsonb(text))


def test_escape_leaves_the_rest_alone() -> None:
    text = r'{"plain":"\\u0000 \n é \u2028 \ud83d\ude00"}'
    assert text == to_jsonb(text)
    assert r'"\u001b0000\u001bd800\u001b001b\\\u001b0000"' == to_jsonb(r'"\u0000\ud800\u001b\\\u0000"')


def test_jsonb_gives_equal_values_of_equal_types(use: Use) -> None:
    chance = random.Random(3)
    doubles = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(3000)]
    doubles += [float(f"{chance.random()}e{e}") for e in range(-323, 309)]
    edges = [-0.0, 0.0, 1.0, 1e21, -1e21, 1e-7, 5e-324, 1.7976931348623157e308, 2.0**53, -(2.0**53), 0.1, 1e16, 1e300]
    strings = ["".join(chance.choices(ESCAPES, k=5)) for _ in range(300)]
    written = [
        encode({"doubles": doubles, "edges": edges, "integers": [2**53 - 1, -(2**53) + 1, 0, 7]}),
        encode({"texts": strings, "keys": {key: i for i, key in enumerate(ESCAPES)}}),
        '[1.0,1.50,-0,-0.0,0e5,1E+21,1e5,100e-2,12345678901234567890,0.1e1,1e-400,{"b":1,"a":2,"aa":3}]',
        ODD_JSON,
    ]

    async def round_trip(store: PostgresStore) -> list[str]:
        read = []
        for i, text in enumerate(written):
            await store.save("e", StoredSnapshot(sequence=i, text=text))
            snapshot = await store.load("e")
            assert snapshot is not None
            read.append(snapshot.text)
        return read

    for before, after in zip(written, use(round_trip), strict=True):
        assert repr(decode(before)) == repr(decode(after)), "repr shows types and order as well"


def test_what_jsonb_refuses_in_spite_of_all_is_told(use: Use) -> None:
    async def body(store: PostgresStore) -> None:
        for text in ("[1e-20000]", "{not json", ""):
            with pytest.raises(StoreUnavailable, match="nothing was written; this is no JSON that `jsonb` takes"):
                await store.save("e", StoredSnapshot(sequence=0, text=text))
        await store.save("e", StoredSnapshot(sequence=0, text="{}"))

    use(body)


decided = ("route-b", "route-a", "10", "2")


@flow
async def deciding(ctx: Context, input: Json) -> Json:
    """Decide in an order that no sorting gives, wait, and tell what was decided."""
    choices = [await ctx.decide(name, partial(dict, z=name, aa=1)) for name in decided]
    await ctx.emit("DECIDED", {"b": 1, "aa": 2})
    told = await ctx.suspend("GO")
    await ctx.emit("DECIDED", {"b": 1, "aa": 2})
    return [choices, told]


async def suspended(stores: Stores, execution_id: str) -> None:
    """Wait until the execution is parked."""
    while (entry := await stores.events.entry(execution_id)) is None or entry.status != "suspended":  # noqa: ASYNC110
        await trio.sleep(0.002)


async def run_compacted(stores: Stores) -> tuple[Any, Any, Any]:
    """Run `deciding` to its gate, compact it, and resume it in another runtime; return two states and the result."""
    async with open_runtime(stores=stores, flows=[deciding], incarnation="one") as runtime:
        await runtime.start(deciding, {"z": 1, "b": 2, "aa": 3}, execution_id="x")
        await suspended(stores, "x")
    async with open_runtime(stores=stores, flows=[deciding], incarnation="two") as runtime:
        await runtime.compact("x")
        parked = await runtime.state("x")
        await runtime.recover_all()
        await runtime.deliver("x", "GO", {"y": 1, "é": 2, "b": [3]}, delivery_id="d")
        result = await runtime.start(deciding, {"z": 1, "b": 2, "aa": 3}, execution_id="x")
        output = await result.result()
        await runtime.compact("x")
        return parked, await runtime.state("x"), output


def without_hash(state: Any) -> str:
    """What the state says, in its order, apart from when it happened."""
    return repr({key: value for key, value in state.items() if key != "lastHash"})


def test_reordered_keys_change_nothing(use: Use, operator: Any) -> None:
    parked, ended, output = use(lambda store: run_compacted(store.stores))
    kept = operator.execute("SELECT snapshot::text FROM snapshots").fetchone()[0]
    assert kept.index('"2": {') < kept.index('"10": {') < kept.index('"route-a": {'), "jsonb has reordered them"
    assert [{"z": name, "aa": 1} for name in decided] == output[0]

    in_memory = trio.run(run_compacted, MemoryStore().stores)
    assert without_hash(in_memory[0]) == without_hash(parked)
    assert without_hash(in_memory[1]) == without_hash(ended)
    assert in_memory[2] == output
    by_seq = sorted(ended["variables"]["_decisions"].items(), key=lambda item: item[1]["seq"])
    assert list(decided) == [name for name, _ in by_seq]


# ---- content by reference (K-LOG-6) ----------------------------------------------------------------------------------


def test_content_that_the_server_has_lost_or_changed_is_told(use: Use, operator: Any) -> None:
    @flow
    async def large(ctx: Context, input: Json) -> Json:
        return await ctx.decide("once", lambda: ["é" * 40_000, input])

    async def body(store: PostgresStore) -> None:
        stores = with_content(store.stores, store)
        async with open_runtime(stores=stores, flows=[large]) as runtime:
            handle = await runtime.start(large, "x" * 70_000, execution_id="x")
            assert ["é" * 40_000, "x" * 70_000] == await handle.result()
            operator.execute("UPDATE contents SET text = '1'")
            with pytest.raises(CorruptLog, match="its content is not what was appended"):
                await runtime.state("x")
            operator.execute("DELETE FROM contents")
            with pytest.raises(ContentMissingError, match=r"event 0 of 'x' refers to content .* restore it"):
                await runtime.state("x")

    use(body)


# ---- flows -----------------------------------------------------------------------------------------------------------


def test_flow_goes_on_where_the_server_was_restarted(use: Use, server: Server) -> None:
    ran: list[str] = []

    async def work(ctx: Any, input: Json) -> Json:
        ran.append(ctx.idempotency_key)
        if input == 1:
            await trio.to_thread.run_sync(server.restart)  # the store's connections are dead when this returns
        return input

    steps = [step(f"s{i}", work) for i in range(3)]

    @flow
    async def stepping(ctx: Context, input: Json) -> Json:
        return [await ctx.execute(one, i) for i, one in enumerate(steps)]

    async def body(store: PostgresStore) -> Any:
        async with open_runtime(stores=store.stores, flows=[stepping]) as runtime:
            handle = await runtime.start(stepping, None, execution_id="x")
            await until(lambda: len(ran) == 3)  # who asks for the result while there is no server is told so
            return await handle.result()

    assert [0, 1, 2] == use(body)
    assert 3 == len(ran)


def test_flow_is_interrupted_while_there_is_no_server_and_recovers(use: Use, server: Server) -> None:
    stopped = trio.Event()

    @step("s")
    async def stop_once(ctx: Any, input: Json) -> Json:
        if not stopped.is_set():
            await trio.to_thread.run_sync(server.stop)
            stopped.set()
        return "done"

    @flow
    async def stopping(ctx: Context, input: Json) -> Json:
        return await ctx.execute(stop_once, None)

    async def body(store: PostgresStore) -> Any:
        async with open_runtime(stores=store.stores, flows=[stopping]) as runtime:
            handle = await runtime.start(stopping, None, execution_id="x")
            with pytest.raises((ExecutionInterrupted, StoreUnavailable)):  # who waits for the result asks the store too
                await handle.result()
            await stopped.wait()  # it may be going down still: a start in the middle of a stop would not last
            with pytest.raises(StoreUnavailable, match="nothing was written"):
                await append(store, event(0))
            await trio.to_thread.run_sync(server.start)
            # Until its own driver has noticed too, the execution is alive here.
            while not (adopted := await runtime.recover_all()):  # noqa: ASYNC110  # it has no event to wait for
                await trio.sleep(0.01)
            assert ["x"] == adopted
            return await handle.result()

    try:
        assert "done" == use(body)
    finally:
        with contextlib.suppress(NoServer):  # it runs already, unless the test has failed
            server.start()


# ---- places ----------------------------------------------------------------------------------------------------------


def test_everything_is_there_after_reopening(use: Use) -> None:
    delivery = Delivery(delivery_id="d", on="PAID", correlation_key=None, payload_text="[1]")

    async def write(store: PostgresStore) -> None:
        await append(store, *chain("e", 3))
        assert 1 == await store.claim("e", "owner")
        await store.save("e", StoredSnapshot(sequence=2, text="{}"))
        await store.put("e", delivery)
        await store.truncate_prefix("e", 2)

    async def read(store: PostgresStore) -> None:
        entry = await store.entry("e")
        assert entry is not None
        assert (2, 1, "f", "running") == (entry.head, entry.fence, entry.flow_id, entry.status)
        assert StoredSnapshot(sequence=2, text="{}") == await store.load("e")
        assert [delivery] == await store.pending("e")
        assert () == await store.read_from("e", 3)
        with pytest.raises(LogTruncated, match="below 3"):  # though no event is left to tell by
            await store.read_from("e", 2)

    use(write)
    use(read)


@pytest.mark.parametrize("odd", ['we"ird; DROP SCHEMA public; --', "Übung 😀", "UPPER", "a.b", "%s"])
def test_schema_may_have_any_name(server: Server, odd: str) -> None:
    async def body() -> None:
        for _ in range(2):
            async with open_postgres(server.dsn, schema=odd) as store:
                await append(store, event(len(await positions(store))))
        async with open_postgres(server.dsn, schema=odd) as store:
            assert [0, 1] == await positions(store)

    trio.run(body)


def test_stores_in_two_schemas_do_not_mix(server: Server) -> None:
    async def body() -> None:
        async with open_postgres(server.dsn, schema="one") as one, open_postgres(server.dsn, schema="two") as two:
            await append(one, event(0))
            assert [] == await positions(two)

    trio.run(body)


def test_new_place_may_be_opened_by_many_at_once(server: Server, schema: str) -> None:
    async def open_one() -> None:
        async with open_postgres(server.dsn, schema=schema, timeout_ms=30_000) as store:
            await store.put(schema, Delivery(delivery_id="d", on="", correlation_key=None, payload_text="1"))

    async def body() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(open_one)

    trio.run(body)


def test_empty_schema_becomes_a_store(use: Use, operator: Any, schema: str) -> None:
    operator.execute(f'CREATE SCHEMA "{schema}"')
    use(lambda store: append(store, event(0)))
    assert [0] == use(positions)


@pytest.mark.parametrize(
    "table", ["events (a int)", "loom_store (a int)", "loom_store (application text, version int)"]
)
def test_schema_of_another_program_is_refused_and_left_alone(use: Use, operator: Any, schema: str, table: str) -> None:
    operator.execute(f'CREATE SCHEMA "{schema}"')
    operator.execute(f"CREATE TABLE {table}")
    with pytest.raises(NotAStore, match=f"schema '{schema}' of database 'tests'"):
        use(nothing)
    count = "SELECT count(*) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s"
    assert (1,) == operator.execute(count, (schema,)).fetchone()


def test_store_of_a_newer_kernel_is_refused(use: Use, operator: Any) -> None:
    use(nothing)
    operator.execute("UPDATE loom_store SET version = version + 1")
    with pytest.raises(
        StoreVersion, match=f"schema version {SCHEMA_VERSION + 1}, this kernel reads up to {SCHEMA_VERSION}; upgrade"
    ):
        use(nothing)


def make_old(operator: Any) -> None:
    """Have the store be one of version 1."""
    operator.execute("DROP TABLE leases, contents")
    operator.execute("UPDATE loom_store SET version = 1")


def test_store_of_version_1_is_upgraded_by_one_of_many_who_open_it(server: Server, schema: str, operator: Any) -> None:
    async def body() -> None:
        async with open_postgres(server.dsn, schema=schema) as store:
            await append(store, event(0))
        make_old(operator)
        async with trio.open_nursery() as nursery:
            for i in range(6):
                nursery.start_soon(open_one, i)

    async def open_one(i: int) -> None:
        async with open_postgres(server.dsn, schema=schema, timeout_ms=30_000) as store:
            await store.put_content(str(i), "1")
            assert ([0], None) == (await positions(store), await store.lease("e"))

    trio.run(body)
    assert (SCHEMA_VERSION,) == operator.execute("SELECT version FROM loom_store").fetchone()
    assert (6,) == operator.execute("SELECT count(*) FROM contents").fetchone()


def test_role_that_may_not_upgrade_is_told(use: Use, server: Server, operator: Any, schema: str) -> None:
    use(nothing)
    make_old(operator)
    operator.execute("DROP ROLE IF EXISTS reader")
    operator.execute("CREATE ROLE reader LOGIN")
    operator.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO reader')
    operator.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO reader')
    reader = f"host={server.directory} user=reader dbname=tests"
    try:
        with pytest.raises(StoreUnavailable, match=r"permission denied for .*CREATE on the schema to upgrade it"):
            use(nothing, dsn=reader)
        assert [] == use(positions, dsn=reader, read_only=True)
    finally:
        operator.execute("DROP OWNED BY reader")
        operator.execute("DROP ROLE reader")


def test_database_that_cannot_keep_our_texts_is_refused(use: Use, server: Server, operator: Any) -> None:
    operator.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    with pytest.raises(StoreUnavailable, match="has encoding LATIN1; create the database with ENCODING 'UTF8'"):
        use(nothing, dsn=f"host={server.directory} user=loom dbname=latin")


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("host={directory} user=loom dbname=absent", 'database "absent" does not exist; '),
        ("host=/nowhere user=loom dbname=tests password=secret", "database 'tests' on /nowhere: .*nothing was written"),
        ("postgresql://loom:secret@localhost:1/tests", "database 'tests' on localhost: .*nothing was written"),
        ("postgresql://loom:secret@[localhost/tests", "the connection string is malformed .*wanted is"),
    ],
)
def test_unusable_place_is_told_without_the_password(use: Use, server: Server, dsn: str, told: str) -> None:
    with pytest.raises(StoreUnavailable, match=told) as refusal:
        use(nothing, dsn=dsn.format(directory=server.directory))
    assert "secret" not in str(refusal.value)


def test_role_without_rights_is_told(use: Use, server: Server, operator: Any) -> None:
    operator.execute("CREATE ROLE guest LOGIN")
    guest = f"host={server.directory} user=guest dbname=tests"
    with pytest.raises(StoreUnavailable, match="permission denied for database tests; grant this role"):
        use(nothing, dsn=guest)


def test_role_of_a_worker_needs_rights_on_the_tables_only(use: Use, server: Server, operator: Any, schema: str) -> None:
    use(nothing)  # by who owns the schema
    operator.execute("DROP ROLE IF EXISTS worker")
    operator.execute("CREATE ROLE worker LOGIN")
    operator.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO worker')
    operator.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO worker')

    async def body(store: PostgresStore) -> None:
        async with store.subscribe("e") as wakeups:
            await append(store, event(0))
            await wakeups.wait()
        fence = await store.acquire("e", "w", until_ms=5, after=0)
        await store.renew("e", fence=fence, until_ms=6)
        await store.put("e", Delivery(delivery_id="d", on="", correlation_key=None, payload_text="1"))
        await store.remove("e", ["d"])
        await store.save("e", StoredSnapshot(sequence=0, text="{}"))
        await store.truncate_prefix("e", 0)
        await store.put_content("h", "1")
        await store.delete("e")

    try:
        use(body, dsn=f"host={server.directory} user=worker dbname=tests")
    finally:
        operator.execute("DROP OWNED BY worker")
        operator.execute("DROP ROLE worker")


def test_server_that_would_not_sync_is_made_to(use: Use, server: Server) -> None:
    lazy = f"{server.dsn} options='-c synchronous_commit=off -c default_transaction_isolation=serializable'"

    async def settings(store: PostgresStore) -> list[Any]:
        names = ("synchronous_commit", "default_transaction_isolation")
        return [(await store._read(f"SHOW {name}", "", ()))[0][0] for name in names]

    assert ["on", "read committed"] == use(settings, dsn=lazy)


def test_deleted_event_is_no_silent_gap(use: Use, operator: Any) -> None:
    use(lambda store: append(store, *chain("e", 5)))
    operator.execute("DELETE FROM events WHERE sequence = 2")
    with pytest.raises(CorruptLog, match="has 4 events from 0 on, its head is 4"):
        use(positions)


def test_event_beyond_the_head_is_not_overwritten(use: Use, operator: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        operator.execute("INSERT INTO events VALUES ('e', 1, 'theirs', '')")
        with pytest.raises(ConcurrencyConflict, match=r"duplicate key .*nothing was written"):
            await append(store, event(1))

    use(body)
    assert (0,) == operator.execute("SELECT head FROM executions").fetchone()


def test_long_batches_land_whole(use: Use) -> None:
    events = chain("e", 2001)

    async def body(store: PostgresStore) -> None:
        await append(store, *events[:1000])
        await append(store, *events[1000:])
        assert [*range(2001)] == await positions(store)
        rival = [event(i, name="f") for i in range(2001)]
        theirs = "INSERT INTO events VALUES ('f', 2000, 'theirs', '')"
        await store._write(lambda transaction: transaction.execute(theirs))
        with pytest.raises(ConcurrencyConflict):
            await append(store, *rival)
        assert None is await store.entry("f")

    use(body)


# ---- refusals --------------------------------------------------------------------------------------------------------


async def refused_append(store: PostgresStore, error: type[Exception], match: str, *batch: Envelope) -> None:
    """Expect `error`, and that it left no event."""
    before = await positions(store), await store.entry("e")
    with pytest.raises(error, match=match):
        await append(store, *batch)
    assert before == (await positions(store), await store.entry("e"))


def test_refused_appends_leave_no_transaction_open(use: Use, operator: Any) -> None:
    async def body(store: PostgresStore) -> None:
        with pytest.raises(ConcurrencyConflict):
            await append(store, event(7, name="never started"))
        await append(store, *chain("e", 3))
        await refused_append(store, ConcurrencyConflict, "position 1, the log is at 3", event(1))
        with pytest.raises(UnknownExecution, match=r"'unknown', which is not in schema"):
            await store.claim("unknown", "me")
        await store.claim("e", "me")
        await refused_append(store, Fenced, "fence 0, the newest claim is 1 by 'me'", event(3))
        assert (0,) == operator.execute(f"SELECT count(*) {BACKENDS} AND state <> 'idle'").fetchone()
        await append(store, event(3), fence=1)

    use(body)


@pytest.mark.parametrize(("odd", "what"), [("\ud800", "a lone surrogate"), ("a\0b", "a NUL")])
def test_id_that_is_no_text_is_refused(use: Use, odd: str, what: str) -> None:
    async def body(store: PostgresStore) -> None:
        delivery = Delivery(delivery_id="d", on="", correlation_key=None, payload_text="1")
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: append(store, event(0, name=odd)),
            lambda: store.entry(odd),
            lambda: store.read_from(odd, 0),
            lambda: store.claim("e", odd),
            lambda: store.load(odd),
            lambda: store.put(odd, delivery),
            lambda: store.put("e", attrs.evolve(delivery, delivery_id=odd)),
            lambda: store.put("e", attrs.evolve(delivery, correlation_key=odd)),
            lambda: store.remove("e", [odd]),
        ]
        for call in refused:
            with pytest.raises(StoreUnavailable, match=f"holds {what}.*choose another id or key"):
                await call()

    use(body)


def test_id_that_is_too_long_is_told(use: Use) -> None:
    name = random.Random(1).randbytes(3000).hex()  # a regular one is compressed, and may be longer

    async def body(store: PostgresStore) -> None:
        with pytest.raises(StoreUnavailable, match="nothing was written; ids may have about 2600 bytes"):
            await append(store, event(0, name=name))
        assert [] == await store.entries()

    use(body)


def test_locked_too_long_is_told_and_passes(use: Use, hold: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        with hold():
            locked = "locked by another transaction for more than 40 ms; nothing was written"
            await refused_append(store, StoreUnavailable, locked, event(1))
        await append(store, event(1))

    use(body, timeout_ms=40)


def test_statement_that_takes_too_long_is_told(use: Use) -> None:
    async def body(store: PostgresStore) -> None:
        with pytest.raises(StoreUnavailable, match=r"took more than 80 ms for a statement.*nothing was written"):
            await store._read("SELECT pg_sleep(30)", "", ())

    use(body, timeout_ms=40)


def test_waiting_for_a_lock_stops_neither_the_loop_nor_reads(use: Use, operator: Any, hold: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        async with trio.open_nursery() as nursery:
            with hold():
                nursery.start_soon(append, store, event(1))
                await until(lambda: waiting(operator, "Lock") == 1)
                assert [0] == await positions(store)
        assert [0, 1] == await positions(store)

    use(body)


CLAIMS: dict[str, Callable[[PostgresStore], Awaitable[object]]] = {
    "claim": lambda store: store.claim("e", "next owner"),
    "lease": lambda store: store.acquire("e", "next owner", until_ms=1, after=0),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_append_that_was_admitted_lands_before_the_next_claim(
    use: Use, server: Server, operator: Any, kind: str
) -> None:
    # Otherwise a stale owner would write after the new one has read the log.
    at_claim: list[list[int]] = []

    async def claim(store: PostgresStore) -> None:
        await CLAIMS[kind](store)
        at_claim.append(await positions(store))

    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        async with trio.open_nursery() as nursery:
            with psycopg.connect(server.dsn) as blocker:
                blocker.execute("SELECT set_config('search_path', quote_ident(%s), false)", (store.place.schema,))
                blocker.execute("LOCK TABLE events IN SHARE MODE")  # keeps the admitted append from its insert
                nursery.start_soon(append, store, event(1))
                await until(lambda: waiting(operator, "Lock") == 1)
                nursery.start_soon(claim, store)
                await until(lambda: waiting(operator, "Lock") == 2 or bool(at_claim))
        assert [[0, 1]] == at_claim

    use(body)


def test_append_that_waits_for_a_claim_is_fenced_by_it(use: Use, operator: Any, hold: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        async with trio.open_nursery() as nursery:

            async def late() -> None:
                with pytest.raises(Fenced, match="fence 0, the newest claim is 1 by 'next owner'"):
                    await append(store, event(1))

            with hold():
                nursery.start_soon(CLAIMS["lease"], store)
                await until(lambda: waiting(operator, "Lock") == 1)
                nursery.start_soon(late)
                await until(lambda: waiting(operator, "Lock") == 2)
        assert [0] == await positions(store)

    use(body)


def test_append_that_waits_for_a_deletion_leaves_nothing(use: Use, operator: Any, hold: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        async with trio.open_nursery() as nursery:

            async def late() -> None:
                with pytest.raises(ConcurrencyConflict, match="expects position 1, the log is at 0"):
                    await append(store, event(1))

            with hold():
                nursery.start_soon(store.delete, "e")
                await until(lambda: waiting(operator, "Lock") == 1)
                nursery.start_soon(late)
                await until(lambda: waiting(operator, "Lock") == 2)
        assert [] == await store.entries()
        assert [(0,)] == await store._read("SELECT count(*) FROM events", "", ())

    use(body)


def test_standby_is_told(use: Use, server: Server) -> None:
    use(nothing)
    with pytest.raises(StoreUnavailable, match="read-only transaction; nothing was written; connect to the primary"):
        use(lambda store: append(store, event(0)), dsn=f"{server.dsn} options='-c default_transaction_read_only=on'")


def test_dropped_store_is_told(use: Use, operator: Any, schema: str) -> None:
    async def body(store: PostgresStore) -> None:
        operator.execute(f'DROP SCHEMA "{schema}" CASCADE')
        with pytest.raises(NotAStore, match="is no store any more"):
            await append(store, event(0))
        with pytest.raises(NotAStore, match="is no store any more"):
            await store.entries()

    use(body)


def test_closed_store_says_so(server: Server, schema: str) -> None:
    async def body() -> None:
        async with open_postgres(server.dsn, schema=schema) as store:
            await append(store, event(0))
        await store.aclose()  # closing twice is no error
        for refused in (append(store, event(1)), store.entry("e"), store.read_from("e", 0)):
            with pytest.raises(StoreUnavailable, match="is closed; open it again"):
                await refused

    trio.run(body)


def test_closing_waits_for_the_write_under_way(use: Use, operator: Any, hold: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        async with trio.open_nursery() as nursery:
            with hold():
                nursery.start_soon(append, store, event(1))
                await until(lambda: waiting(operator, "Lock") == 1)
                nursery.start_soon(store.aclose)
                await trio.testing.wait_all_tasks_blocked()

    use(body)
    assert [0, 1] == use(positions)


# ---- broken connections ----------------------------------------------------------------------------------------------

BACKENDS = "FROM pg_stat_activity WHERE application_name = 'loom' AND datname = 'tests'"


def waiting(operator: Any, on: str) -> int:
    """Count the store's connections that wait for something: a lock, a timer, a standby."""
    count: int = operator.execute(
        f"SELECT count(*) {BACKENDS} AND state = 'active' AND %s IN (wait_event_type, wait_event)", (on,)
    ).fetchone()[0]
    return count


def terminate(operator: Any) -> None:
    operator.execute(f"SELECT pg_terminate_backend(pid) {BACKENDS}")


def test_idle_connections_that_died_are_no_error(use: Use, operator: Any) -> None:
    async def body(store: PostgresStore) -> None:
        async with trio.open_nursery() as nursery:
            for i in range(4):  # as many connections
                nursery.start_soon(append, store, event(0, name=f"e{i}"))
        for call in (partial(append, store, event(0)), partial(positions, store), partial(store.claim, "e", "me")):
            terminate(operator)
            await call()
        assert [0] == await positions(store)

    use(body)


def test_connection_lost_before_commit_says_that_nothing_was_written(use: Use, operator: Any, hold: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        with hold():

            async def kill_when_it_waits() -> None:
                await until(lambda: waiting(operator, "Lock") == 1)
                terminate(operator)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_when_it_waits)
                with pytest.raises(StoreUnavailable, match=r"terminating connection .*nothing was written"):
                    await append(store, event(1))
        assert [0] == await positions(store)
        await append(store, event(1))

    use(body)


AT_COMMIT = """
    CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.sequence = 1) EXECUTE FUNCTION at_commit();
"""


def test_connection_lost_at_commit_is_unknown_and_may_not_have_landed(use: Use, operator: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        operator.execute(AT_COMMIT.format(body="PERFORM pg_sleep(30)"))

        async def kill_at_commit() -> None:
            await until(lambda: waiting(operator, "PgSleep") == 1)
            terminate(operator)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_at_commit)
            await refused_append(store, AppendUnknown, "lost at COMMIT .*what is stored decides", event(1))

    use(body, timeout_ms=40_000)


def test_connection_lost_at_commit_is_unknown_and_may_have_landed(use: Use, operator: Any) -> None:
    # A server that waits for a standby has committed by itself already.
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        set_standby(operator, "nobody")
        try:
            async with trio.open_nursery() as nursery:

                async def kill_at_commit() -> None:
                    await until(lambda: waiting(operator, "SyncRep") == 1)
                    terminate(operator)

                nursery.start_soon(kill_at_commit)
                with pytest.raises(AppendUnknown, match="lost at COMMIT"):
                    await append(store, event(1))
        finally:
            set_standby(operator, "")
        assert [0, 1] == await positions(store)
        with pytest.raises(ConcurrencyConflict):  # by which the caller learns it
            await append(store, event(1))

    use(body)


def set_standby(operator: Any, name: str) -> None:
    operator.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    operator.execute("SELECT pg_reload_conf()")
    with psycopg.connect(operator.info.dsn, autocommit=True) as fresh:  # sees it once the server has read it
        while fresh.execute("SHOW synchronous_standby_names").fetchone() != (name,):
            time.sleep(0.002)


@pytest.mark.parametrize(
    ("body", "error", "told"),
    [
        ("RAISE SQLSTATE '57014'", StoreUnavailable, "or an operator cancelled it .*nothing was written"),
        ("RAISE SQLSTATE '40001'", ConcurrencyConflict, "another writer was at work .*nothing was written"),
        ("RAISE SQLSTATE '40P01'", ConcurrencyConflict, "another writer was at work .*nothing was written"),
        ("RAISE SQLSTATE '53100'", StoreUnavailable, "nothing was written; make room on the server's disk"),
        ("RAISE SQLSTATE '40003'", AppendUnknown, "may or may not have happened"),
    ],
)
def test_refusal_at_commit_is_no_unknown(use: Use, operator: Any, body: str, error: type[Exception], told: str) -> None:
    async def run(store: PostgresStore) -> None:
        await append(store, event(0))
        operator.execute(AT_COMMIT.format(body=body))
        await refused_append(store, error, told, event(1))
        operator.execute("DROP TRIGGER at_commit ON events")
        await append(store, event(1))

    use(run)


def test_server_that_hangs_is_given_up(use: Use) -> None:
    stopped: list[int] = []

    def hang(transaction: Any) -> None:
        stopped.append(transaction.info.backend_pid)
        os.kill(stopped[-1], signal.SIGSTOP)  # so that it cannot look at its own timeouts
        transaction.execute("SELECT 1")

    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        try:
            with pytest.raises(StoreUnavailable, match="nothing was written"), trio.fail_after(20):
                await store._write(hang)
            await append(store, event(1))
            ((pid,),) = await store._read("SELECT pg_backend_pid()", "", ())
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
            await append(store, event(2))  # on another connection: on this one nothing has begun
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert [0, 1, 2] == await positions(store)

    use(body, timeout_ms=100)


def test_commit_that_does_not_end_is_given_up_as_unknown(use: Use, operator: Any) -> None:
    async def body(store: PostgresStore) -> None:
        await append(store, event(0))
        operator.execute(AT_COMMIT.format(body="PERFORM pg_sleep(30)"))
        await refused_append(store, AppendUnknown, "lost at COMMIT", event(1))
        terminate(operator)

    use(body, timeout_ms=100)


# ---- notifications ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", NOTIFICATION_CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("handles", [1, 2])
def test_store_notifies(server: Server, schema: str, check: NotificationCheck, handles: int) -> None:
    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[tuple[Stores, Notifications]]:
        async with open_postgres(server.dsn, schema=schema) as store, open_postgres(server.dsn, schema=schema) as other:
            yield store.stores, (store if handles == 1 else other)

    trio.run(check.run, make)


async def is_woken(wakeups: Wakeups) -> bool:
    """Is there a wake-up, or does none come for a while?"""
    with trio.move_on_after(0.05) as scope:
        await wakeups.wait()
    return not scope.cancelled_caught


def test_only_what_happened_to_the_execution_wakes(server: Server, schema: str) -> None:
    async def body() -> None:
        async with (
            open_postgres(server.dsn, schema=schema) as writer,
            open_postgres(server.dsn, schema=schema) as reader,
            open_postgres(server.dsn, schema=f"{schema} other") as other,
            open_postgres(server.dsn, schema=schema, notify=False) as quiet,
            reader.subscribe("e") as wakeups,
        ):
            await append(other, event(0))
            await append(writer, event(0, name="f"))
            with pytest.raises(ConcurrencyConflict):
                await append(writer, event(1))
            await append(quiet, event(0))
            assert not await is_woken(wakeups)
            await append(writer, event(1))
            with trio.fail_after(20):
                await wakeups.wait()
            await append(writer, event(0, name="x" * (PAYLOAD_BYTES_MAX + 1)))  # too long to be told: it may be any
            with trio.fail_after(20):
                await wakeups.wait()

    trio.run(body)


def test_one_of_many_who_wait_reads_for_all(use: Use, operator: Any) -> None:
    woken: list[int] = []

    async def follow(store: PostgresStore, i: int) -> None:
        async with store.subscribe(f"e{i % 3}") as wakeups:
            for _ in range(2):
                await wakeups.wait()
                woken.append(i)

    async def body(store: PostgresStore) -> None:
        async with trio.open_nursery() as nursery:
            leaver = trio.CancelScope()
            with leaver:
                async with store.subscribe("e0") as left, trio.open_nursery() as leaving:
                    leaving.start_soon(left.wait)  # it reads, and is cancelled
                    for i in range(9):
                        nursery.start_soon(follow, store, i)
                    await settled()
                    assert (2,) == operator.execute(f"SELECT count(*) {BACKENDS}").fetchone(), "one to listen"
                    leaver.cancel()
            for count in range(1, 3):
                for name in ("e2", "e0", "e1"):
                    await append(store, event(count - 1, name=name))
                await until(partial(lambda wanted: len(woken) == wanted, 9 * count))
        assert sorted([*range(9)] * 2) == sorted(woken)

    use(body)


async def settled() -> None:
    """Let tasks and threads come to rest."""
    await trio.sleep(0.1)
    await trio.testing.wait_all_tasks_blocked()


def test_connection_that_listens_is_made_again(use: Use, operator: Any) -> None:
    async def body(store: PostgresStore) -> None:
        async with store.subscribe("e") as one, store.subscribe("e") as other:
            for i in range(3):
                terminate(operator)
                with trio.fail_after(20):
                    await one.wait()  # something may have been missed
                    await other.wait()
                    await append(store, event(i))
                    await one.wait()
                    await other.wait()

    use(body)


def test_subscribers_are_told_while_there_is_no_server(use: Use, server: Server) -> None:
    async def body(store: PostgresStore) -> None:
        async with store.subscribe("e") as wakeups:
            await trio.to_thread.run_sync(server.stop)
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    await wakeups.wait()
            with pytest.raises(StoreUnavailable):
                async with store.subscribe("e"):
                    pass
            await trio.to_thread.run_sync(server.start)
            await append(store, event(0))
            await wakeups.wait()

    try:
        use(body)
    finally:
        with contextlib.suppress(NoServer):  # it runs already, unless the test has failed
            server.start()


def test_closed_store_tells_its_subscribers(use: Use) -> None:
    async def body(store: PostgresStore) -> None:
        async with store.subscribe("e") as wakeups, trio.open_nursery() as nursery:
            nursery.start_soon(store.aclose)
            for _ in range(2):  # while it waits, and later
                with pytest.raises(StoreUnavailable, match="is closed; open it again"):
                    await wakeups.wait()

    use(body)


# ---- crashes of the server -------------------------------------------------------------------------------------------


def test_server_that_crashes_keeps_what_it_acknowledged(use: Use, server: Server, schema: str) -> None:
    place = json.dumps([server.dsn, schema])
    shared = Shared(opener="tests.kernel.openers:postgresql", make_place=lambda: place)
    acknowledged: list[tuple[int, str]] = []
    errors: list[Exception] = []

    async def refused(error: Exception) -> None:
        errors.append(error)
        await retry(error)

    async def body(store: PostgresStore) -> None:
        other.wait_ready()
        for _ in range(2):  # to open the store, and to begin
            other.go()
        with trio.CancelScope() as scope:

            async def crash() -> None:
                await until(lambda: len(acknowledged) >= 15)
                await trio.to_thread.run_sync(server.restart)
                await until(lambda: len(acknowledged) >= 30)
                scope.cancel()

            def won(_first: int, last: int, hash: str) -> None:
                acknowledged.append((last, hash))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(crash)
                nursery.start_soon(partial(fill, store.stores, 10**6, writer="here", fence=0, won=won, refused=refused))
        other.process.kill()
        said = [(int(last), hash) for _, last, hash in (line for line in other.lines() if len(line) == 3)]
        events = await logged(store.stores)
        for last, hash in acknowledged + said:
            assert hash == events[last].hash, f"event {last} was acknowledged"
        assert {type(error) for error in errors} <= {StoreUnavailable, AppendUnknown}
        assert errors, "a crash that nobody has noticed shows nothing"

    with Writer.spawn(shared, place, "share", 10**6) as other:
        use(body)
