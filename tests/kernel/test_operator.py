"""The operator's command line, on real stores (K-USER, K-LOG-3, K-FLOW-4, K-RUN)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import types
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs
import click
import psycopg
import pytest
import trio
from click.testing import CliRunner

from kernel import LiveQuery, Projection, TypedFailure, flow, open_runtime, saga, step
from kernel.adapters.postgres import PostgresStore, open_postgres
from kernel.adapters.sqlite import SqliteStore, open_sqlite
from kernel.cli import cli
from kernel.cli.output import printable
from kernel.cli.stores import Opened
from kernel.codec import with_codec
from kernel.content import with_content
from kernel.errors import ExecutionBlocked, StoreUnavailable
from kernel.lifecycle import compact, load
from tests.kernel.postgres_server import Server

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(cli.commands)


class Declined(TypedFailure):
    wire_name = "declined"


class Code(types.ModuleType):
    """A module of flows, as an operator names it.  Mutable: it counts, and can be broken."""

    def __init__(self) -> None:
        super().__init__("operated_flows")
        self.charged: list[int] = []
        self.undone: list[str] = []

        async def charge_once(ectx: Any, input: Any) -> Any:
            self.charged.append(ectx.attempt)
            click.echo("charging")  # which is no part of any answer
            if ectx.attempt == 1:
                raise OSError("no answer")
            return {"id": "ch_2"}

        async def undo(ectx: Any, input: Any) -> None:
            self.undone.append("ship")

        async def ship_it(ectx: Any, input: Any) -> str:
            return "shipped"

        charge = step("charge", charge_once, at_most_once=True, failures=(Declined,))
        ship, unship = step("ship", ship_it), step("unship", undo)

        @flow
        async def buy(ctx: Any, _: Any) -> Any:
            try:
                return await ctx.execute(charge)
            except Declined as failure:
                return f"declined {failure.data}"

        @flow
        async def order(ctx: Any, _: Any) -> Any:
            async with saga(ctx) as steps:
                await steps.run(ship, compensate=unship)
                return await ctx.suspend("paid", "k-1", timeout=3600)

        @flow
        async def greet(ctx: Any, name: Any) -> Any:
            await ctx.emit("GREETED", name)
            return f"hello {name}"

        @flow
        async def changed(ctx: Any, _: Any) -> Any:
            return await ctx.execute(ship, "other" if self.broken else "same")

        self.broken = False
        self.CODEC = Reversed
        self.FLOWS = [buy, order, greet, changed]
        self.GREET = greet
        self.COUNT = Projection(name="count", initial=0, apply=lambda n, _: n + 1)  # type: ignore[operator]


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Code:
    made = Code()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


class LongAgo:
    """A worker's clock that stands still, long before that of the operator."""

    def now_ms(self) -> int:
        return 1_000

    async def sleep_until(self, due_ms: int) -> None:
        await trio.sleep_forever()


class Reversed:
    """A codec."""

    @staticmethod
    def encode(text: str) -> str:
        return text[::-1]

    decode = encode


WITH_FLOWS = ("--flows", "operated_flows:FLOWS")


@attrs.frozen(kw_only=True)
class Shop:
    """A store, and a worker that fills it."""

    where: tuple[str, ...]  # what names the store on the command line
    open: Callable[[], AbstractAsyncContextManager[Any]]
    connect: Callable[[], Any]  # beside the kernel
    code: Code

    def fill(self, *started: tuple[str, str], **more: Any) -> None:
        """Start executions, (flow, id), and let each go as far as it goes."""

        async def body() -> None:
            async with (
                self.open() as store,
                open_runtime(stores=store.stores, flows=self.code.FLOWS, **more) as runtime,
            ):
                for flow_id, execution_id in started:
                    handle = await runtime.start(flow_id, "you", execution_id=execution_id)
                    with contextlib.suppress(ExecutionBlocked), trio.fail_after(60):
                        await (self.parked(store, execution_id) if flow_id == "order" else handle.result())

        trio.run(body)

    @staticmethod
    async def parked(store: Any, execution_id: str) -> None:
        """Wait until it is."""
        async with LiveQuery(store.stores, store).subscribe(execution_id) as states:
            async for state in states:
                if state["status"] == "suspended":
                    return

    def sql(self, statement: str, *values: Any) -> list[Any]:
        with contextlib.closing(self.connect()) as connection, connection:
            if isinstance(connection, psycopg.Connection):
                statement = statement.replace("?", "%s")
            cursor = connection.execute(statement, values)
            return [] if cursor.description is None else cursor.fetchall()

    def snapshots(self) -> list[str]:
        """The texts of all snapshots."""
        return [str(row[-1]) for row in self.sql("SELECT * FROM snapshots")]

    def interrupt(self, execution_id: str, last: int = 0) -> None:
        """Put an execution back to where a worker that died would have left it, after event `last`."""
        self.sql("DELETE FROM events WHERE execution_id = ? AND sequence > ?", execution_id, last)
        catalogue = "UPDATE executions SET head = ?, status = 'running' WHERE execution_id = ?"
        self.sql(catalogue, last, execution_id)

    @property
    def version(self) -> int:
        """The version of the store's schema."""
        [(version,)] = self.sql("PRAGMA user_version" if self.is_file else "SELECT version FROM loom_store")
        return int(version)

    def set_version(self, version: int) -> None:
        self.sql(f"PRAGMA user_version = {version}" if self.is_file else f"UPDATE loom_store SET version = {version}")

    @property
    def is_file(self) -> bool:
        return len(self.where) == 1

    def __call__(self, *args: str, code: int = 0) -> str:
        return str(operate(*self.where, *args, code=code).stdout)

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code))

    def err(self, *args: str, code: int) -> str:
        return str(operate(*self.where, *args, code=code).stderr)

    def state(self, execution_id: str) -> Any:
        return self.json("state", execution_id)["state"]

    def types(self, execution_id: str) -> list[str]:
        return [event["type"] for event in self.json("log", execution_id)["events"]]


def operate(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr, result.exception)
    return result


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def in_file(path: Path, code: Code) -> Shop:
    return Shop(where=(str(path),), open=lambda: open_sqlite(path), connect=lambda: sqlite3.connect(path), code=code)


def in_database(server: Server, schema: str, code: Code) -> Shop:
    def connect() -> Any:
        connection = psycopg.connect(server.dsn)
        connection.execute("SELECT set_config('search_path', quote_ident(%s), false)", (schema,))
        return connection

    return Shop(
        where=("--schema", schema, url(server)),
        open=lambda: open_postgres(server.dsn, schema=schema),
        connect=connect,
        code=code,
    )


def url(server: Server, user: str = "loom") -> str:
    return f"postgresql://{user}@/tests?host={server.directory}"


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, place: Path, schema: str, code: Code) -> Shop:
    """A store of each kind, with two executions that have ended."""
    made = in_file(place, code)
    if request.param == "postgresql":
        made = in_database(request.getfixturevalue("server"), schema, code)
    made.fill(("greet", "greet-1"), ("greet", "greet-2"))
    return made


@pytest.fixture
def stuck(shop: Shop) -> Shop:
    """With an execution that is blocked, its step in doubt."""
    shop.fill(("buy", "buy-1"))
    return shop


@pytest.fixture
def waiting(shop: Shop) -> Shop:
    """With an execution that is parked at a gate."""
    shop.fill(("order", "order-1"))
    return shop


# ---- the store -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["list", "log x", "verify --all", "cancel x", "compact x", "recover"])
def test_a_typo_in_the_store_is_an_error_and_makes_no_file(tmp_path, command):
    typo = tmp_path / "typo.db"
    assert "no store at" in operate(str(typo), *command.split(), code=2).stderr
    assert [] == list(tmp_path.iterdir())


def test_what_is_no_store_is_told_and_left_as_it_is(tmp_path):
    empty, text, other = tmp_path / "empty", tmp_path / "text", tmp_path / "other.db"
    empty.touch()
    text.write_text("not a database, but long enough to be one" * 100)
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.execute("DROP TABLE theirs")
    before = {path: path.read_bytes() for path in (empty, text, other)}
    for path in before:
        assert "store" in operate(str(path), "list", code=2).stderr or path == text
    assert 2 == operate(str(tmp_path), "list", code=2).exit_code
    assert before == {path: path.read_bytes() for path in (empty, text, other)}


def test_a_newer_store_is_refused(shop):
    shop.set_version(99)
    assert "upgrade the kernel" in shop.err("list", code=2)


def test_without_psycopg_the_error_names_the_extra(monkeypatch):
    for name in [*sys.modules]:
        if name.startswith(("psycopg", "kernel.adapters.postgres")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "loom-dst[postgres]" in operate("postgresql://someone@nowhere/db", "list", code=2).stderr


def test_a_password_is_never_shown():
    result = operate("postgresql://me:secret@127.0.0.1:1/db?connect_timeout=2", "list", "--json", code=3)
    assert "secret" not in result.output
    assert 3 == json.loads(result.stdout)["exit_code"]


# ---- list, log, state ------------------------------------------------------------------------------------------------


def test_list_shows_and_filters(stuck):
    assert ["buy-1", "greet-1", "greet-2"] == [e["id"] for e in stuck.json("list")["executions"]]
    assert ["buy-1"] == [e["id"] for e in stuck.json("list", "--status", "blocked")["executions"]]
    assert ["greet-1", "greet-2"] == [e["id"] for e in stuck.json("list", "--flow", "greet")["executions"]]
    assert ["greet-2"] == [e["id"] for e in stuck.json("list", "--prefix", "greet-2")["executions"]]
    lines = stuck("list").splitlines()
    assert ["ID", "FLOW", "STATUS", "HEAD", "DUE"] == lines[0].split()
    assert ["greet-1", "greet", "completed", "2", "-"] == lines[2].split()
    assert "" == stuck("list", "--prefix", "nothing")


def test_list_shows_when_a_timer_is_due(waiting):
    due = waiting.json("list", "--prefix", "order")["executions"][0]["due"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", due)
    assert due in waiting("list")


def test_log_is_readable_and_may_begin_later(shop):
    lines = shop("log", "greet-1").splitlines()
    assert ["0", "1", "2"] == [line.split()[0] for line in lines]
    assert ["EXECUTION_STARTED", "GREETED", "EXECUTION_COMPLETED"] == [line.split()[2] for line in lines]
    assert "flowId=greet input=you" in lines[0]
    assert lines[1:] == shop("log", "greet-1", "--from", "1").splitlines()
    events = shop.json("log", "greet-1")["events"]
    assert {"output": "hello you"} == events[2]["payload"]
    assert "" == shop("log", "greet-1", "--from", "9")


def test_state_is_the_fold_also_after_compaction(shop):
    before = shop.state("greet-1")
    assert ("completed", "hello you") == (before["status"], before["output"])
    shop("compact", "greet-1")
    assert before == shop.state("greet-1") == json.loads(shop("state", "greet-1"))


def test_an_unknown_id_is_answered_with_the_nearest(shop):
    for command in ("log", "state", "verify", "cancel", "resume", "compact", "watch", "recover"):
        assert "did you mean 'greet-1'?" in shop.err(command, "gret-1", code=2)
    answer = shop.json("log", "gret-1", code=2)
    assert (2, True) == (answer["exit_code"], "did you mean" in answer["error"])


def test_an_unknown_command_is_answered_with_the_nearest(shop):
    assert "did you mean 'verify'?" in shop.err("verfy", code=2)
    assert "the store comes first" in operate("list", "shop.db", code=2).stderr


def test_control_characters_are_written_out(shop):
    shop.fill(("greet", "evil-\x1b[2J\u202e"))
    shown = shop("list") + shop("log", "evil-\x1b[2J\u202e") + shop("state", "evil-\x1b[2J\u202e")
    shown += shop("verify", "evil-\x1b[2J\u202e") + shop.err("log", "evil-\x1b[2J", code=2)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "evil-\\u001b[2J\\u202e" in shown
    assert "a\\n\\u007f\\ud800é" == printable("a\n\x7f\ud800é")


# ---- verify ----------------------------------------------------------------------------------------------------------


def fault_of(shop: Shop) -> Any:
    found = shop.json("verify", "--all", code=1)
    assert (2, False) == (found["checked"], found["ok"])
    [fault] = found["faults"]
    assert f"{fault['execution']}: event {fault['sequence']}: " in shop("verify", fault["execution"], code=1)
    return fault["execution"], fault["sequence"]


def test_verify_finds_nothing_in_what_was_appended(stuck):
    assert {"checked": 3, "faults": [], "ok": True} == stuck.json("verify", "--all")
    assert "1 verified, no fault" in stuck("verify", "buy-1")
    stuck("verify", code=2)
    stuck("verify", "buy-1", "--all", code=2)


@pytest.mark.parametrize(
    ("harm", "sequence"),
    [
        ("UPDATE events SET text = replace(text, 'you', 'me') WHERE execution_id = 'greet-2' AND sequence = 1", 1),
        ("DELETE FROM events WHERE execution_id = 'greet-2' AND sequence = 1", 1),
        ("DELETE FROM events WHERE execution_id = 'greet-2' AND sequence = 0", 0),
        ("DELETE FROM events WHERE execution_id = 'greet-2' AND sequence = 2", 2),
        ("DELETE FROM events WHERE execution_id = 'greet-2'", 0),
        ("UPDATE executions SET status = 'running' WHERE execution_id = 'greet-2'", 2),
        ("UPDATE events SET (text, hash) = (SELECT text, hash FROM events o WHERE o.execution_id = 'greet-1' AND "
         "o.sequence = 1) WHERE execution_id = 'greet-2' AND sequence = 1", 1),
    ],
)  # fmt: skip
def test_verify_names_the_first_bad_event(shop, harm, sequence):
    shop.sql(harm)
    assert ("greet-2", sequence) == fault_of(shop)


def test_verify_names_an_event_that_is_no_text_any_more(place, code):
    shop = in_file(place, code)  # PostgreSQL would not take it
    shop.fill(("greet", "greet-1"), ("greet", "greet-2"))
    shop.sql("UPDATE events SET text = CAST(x'ff' AS TEXT) WHERE execution_id = 'greet-2' AND sequence = 1")
    assert ("greet-2", 1) == fault_of(shop)


def test_verify_checks_what_a_compaction_has_left(shop):
    shop("compact", "greet-2")
    assert shop.json("verify", "--all")["ok"]
    shop.sql("DELETE FROM snapshots")
    assert ("greet-2", 0) == fault_of(shop)


def test_verify_is_not_misled_by_a_worker_that_compacts_between_its_reads(shop, monkeypatch):
    rows, harmed = Opened.rows, []

    async def rows_and_then(opened: Opened, execution_id: str, start: int = 0) -> Any:
        found = await rows(opened, execution_id, start)
        if not harmed:  # as if one more event had been appended after this, and the whole compacted
            harmed.append(found.pop())
            async with shop.open() as worker:
                await compact(worker.stores, execution_id)
        return found

    monkeypatch.setattr(Opened, "rows", rows_and_then)
    assert shop.json("verify", "--all")["ok"]
    assert [2] == [event.sequence for event in harmed]


def test_log_shows_what_can_be_read_of_a_damaged_one(shop):
    shop.sql("UPDATE events SET text = '{' WHERE execution_id = 'greet-2' AND sequence = 1")
    lines = shop("log", "greet-2").splitlines()
    assert (3, True, True) == (len(lines), "UNREADABLE" in lines[1], "EXECUTION_COMPLETED" in lines[2])


def test_what_is_kept_by_reference_is_read_and_verified(shop):
    async def body() -> None:
        async with shop.open() as store:
            stores = with_content(store.stores, store, inline_bytes_max=300)
            async with open_runtime(stores=stores, flows=shop.code.FLOWS) as runtime:
                await (await runtime.start("greet", "y" * 500, execution_id="large")).result()

    trio.run(body)
    assert shop.sql("SELECT count(*) FROM contents") != [(0,)]
    assert "y" * 500 == shop.state("large")["input"]
    assert shop.json("verify", "--all")["ok"]
    shop.sql("UPDATE contents SET text = '\"other\"'")
    assert ["large", 0] == [shop.json("verify", "large", code=1)["faults"][0][k] for k in ("execution", "sequence")]
    shop.sql("DELETE FROM contents")
    assert "which is not stored" in shop("verify", "large", code=1)


def test_what_has_gone_through_a_codec_is_read_with_it_and_refused_without(shop):
    async def body() -> None:
        async with shop.open() as store:
            stores = with_codec(store.stores, Reversed())
            async with open_runtime(stores=stores, flows=shop.code.FLOWS) as runtime:
                await (await runtime.start("greet", "you", execution_id="secret")).result()

    trio.run(body)
    for command in ("log", "state", "verify", "compact", "cancel", "watch"):
        assert "--codec" in shop.err(command, "secret", code=2)
    shop("verify", "--all", code=2)

    def coded(*args: str) -> Any:
        return json.loads(operate("--codec", "operated_flows:CODEC", *shop.where, *args, "--json").stdout)

    assert 3 == len(coded("log", "secret")["events"])
    assert {"checked": 3, "faults": [], "ok": True} == coded("verify", "--all")
    before = coded("state", "secret")
    coded("compact", "secret")
    assert before == coded("state", "secret")
    assert "hello" not in shop.snapshots()[0]


# ---- after a block ---------------------------------------------------------------------------------------------------


def test_resolve_without_flows_records_the_word_and_the_next_worker_goes_on(stuck):
    answer = stuck.json("resolve", "buy-1", "charge", "--completed", '{"id": "ch_1"}')
    assert ("running", []) == (answer["status"], answer["in_doubt"])
    assert "the next worker" in answer["done"]
    assert ["EFFECT_RESOLVED", "EXECUTION_UNBLOCKED"] == stuck.types("buy-1")[-2:]

    async def body() -> Any:
        async with (
            stuck.open() as store,
            # Which need not wait for a lease of the operator's.
            open_runtime(stores=store.stores, flows=stuck.code.FLOWS, lease_seconds=30) as runtime,
        ):
            assert ["buy-1"] == await runtime.recover_all()
            return await runtime.wait_result("buy-1")

    assert {"id": "ch_1"} == trio.run(body)
    assert [1] == stuck.code.charged


@pytest.mark.parametrize(
    ("said", "output", "charged"),
    [
        (("--completed", "7"), 7, [1]),
        (("--failed", "declined", "--data", '{"code": 51}'), "declined {'code': 51}", [1]),
        (("--retry", "--attempt", "1"), {"id": "ch_2"}, [1, 2]),
    ],
)
def test_resolve_with_flows_goes_on_here(stuck, said, output, charged):
    answer = stuck.json("resolve", "buy-1", "charge", *said, *WITH_FLOWS)
    assert ("completed", output) == (answer["status"], answer["output"])
    assert charged == stuck.code.charged


@pytest.mark.parametrize(
    ("said", "exit_code"),
    [
        ((), 2),
        (("--retry", "--completed", "1"), 2),
        (("--completed", "{no json"), 2),
        (("--retry", "--data", "1"), 2),
        (("--retry", "--attempt", "7"), 1),
        (("--retry", "--flows", "operated_flows:GREET"), 2),
    ],
)
def test_resolve_refuses_what_makes_no_sense_and_changes_nothing(stuck, said, exit_code):
    before = stuck.types("buy-1")
    stuck("resolve", "buy-1", "charge", *said, code=exit_code)
    assert before == stuck.types("buy-1")


def test_resolve_of_what_is_not_in_doubt_is_told(stuck):
    assert "in doubt are ['charge']" in stuck.err("resolve", "buy-1", "chrge", "--retry", code=1)
    assert "the log has no step 'charge'" in stuck.err("resolve", "greet-1", "charge", "--retry", code=1)


def test_resume_of_what_is_in_doubt_asks_for_a_word_instead(stuck):
    assert "say what has come of each" in stuck.err("resume", "buy-1", code=1)
    assert "blocked" == stuck.state("buy-1")["status"]
    assert "blocked" == stuck.json("resume", "buy-1", *WITH_FLOWS, code=1)["status"]
    assert [1] == stuck.code.charged


def test_resume_records_that_it_goes_on_or_goes_on_here(shop):
    shop.fill(("changed", "c-1"))
    assert "not blocked" in shop.err("resume", "c-1", code=1)

    def block() -> None:
        shop.interrupt("c-1", 2)
        shop.code.broken = True
        assert "blocked" in shop("recover", "c-1", *WITH_FLOWS, code=1)

    block()
    assert "blocked" in shop("resume", "c-1", *WITH_FLOWS, code=1)
    assert "the next worker" in shop("resume", "c-1")
    assert "running" == shop.state("c-1")["status"]
    shop.code.broken = False
    assert "completed" in shop("recover", *WITH_FLOWS)


# ---- cancel, recover -------------------------------------------------------------------------------------------------


def test_cancel_without_flows_is_a_durable_request_that_a_worker_carries_out(waiting):
    assert "the next worker" in waiting("cancel", "order-1", "--reason", "changed my mind")
    assert "asked for before" in waiting("cancel", "order-1", "--reason", "again")
    assert "suspended" == waiting.state("order-1")["status"]
    assert ["order-1"] == [e["execution"] for e in waiting.json("recover")["executions"]]
    assert "1 taken up" in waiting("recover", *WITH_FLOWS)
    state = waiting.state("order-1")
    assert ("cancelled", "changed my mind") == (state["status"], state["error"]["message"])
    assert ["ship"] == waiting.code.undone
    assert "cancelled before" in waiting("cancel", "order-1")


def test_cancel_with_flows_rolls_back_here(waiting):
    assert "cancelled" == waiting.json("cancel", "order-1", *WITH_FLOWS)["status"]
    assert ["ship"] == waiting.code.undone
    assert "nothing to cancel" in waiting.err("cancel", "greet-1", code=1)


def test_recover_takes_up_a_dead_workers_run_of_the_named_flows_only(shop):
    for name in ("greet-1", "greet-2"):
        shop.interrupt(name)
    assert 2 == len(shop.json("recover")["executions"])
    assert [0] == [e["sequence"] for e in shop.json("log", "greet-1")["events"]]
    assert ["greet-2"] == [e["execution"] for e in shop.json("recover", "greet-2", *WITH_FLOWS)["executions"]]
    assert "running" == shop.state("greet-1")["status"]
    assert "hello you" == shop.json("recover", "--flows", "operated_flows:GREET")["executions"][0]["output"]


def test_recover_leaves_alone_what_another_worker_holds(shop):
    shop.interrupt("greet-1")
    shop.sql("UPDATE executions SET fence = 9 WHERE execution_id = 'greet-1'")
    shop.sql("INSERT INTO leases VALUES ('greet-1', 'another', 99999999999999, 9)")
    assert [] == shop.json("recover", *WITH_FLOWS)["executions"]
    assert "running" == shop.state("greet-1")["status"]


def test_recover_takes_up_what_has_become_due(shop):
    shop.fill(("order", "order-1"), ("order", "order-2"), clock=LongAgo())
    assert ["order-1", "order-2"] == [e["execution"] for e in shop.json("recover")["executions"]]
    [record] = shop.json("recover", "order-1", *WITH_FLOWS)["executions"]
    assert ("failed", "GateTimeout") == (record["status"], record["error"]["type"])
    assert (["ship"], "suspended") == (shop.code.undone, shop.state("order-2")["status"])


def test_an_execution_that_cannot_be_driven_is_told(shop, monkeypatch):
    monkeypatch.setattr(SqliteStore if shop.is_file else PostgresStore, "append", full)
    shop.interrupt("greet-1")
    assert "the disk is full" in shop.json("recover", *WITH_FLOWS, code=1)["executions"][0]["interrupted"]


async def full(*_: Any, **__: Any) -> None:
    raise StoreUnavailable("the disk is full")


@pytest.mark.parametrize(
    ("flows", "says"),
    [
        ("operated_flows", "wanted is package.module:attribute"),
        ("no_such_module:FLOWS", "ModuleNotFoundError"),
        ("operated_flows:NOTHING", "has no 'NOTHING'"),
        ("operated_flows:COUNT", "wanted is a Flow"),
    ],
)
def test_code_that_is_not_there_is_told(shop, flows, says):
    assert says in shop.err("recover", "--flows", flows, code=2)
    shop("recover", "--effects", "operated_flows:FLOWS", code=2)


# ---- compact, fork ---------------------------------------------------------------------------------------------------


def test_compact_keeps_what_the_workers_keep(shop):
    answer = shop.json("compact", "greet-1")
    assert (2, ["surfaces"]) == (answer["compacted_through"], answer["projections"])
    assert [(0,)] == shop.sql("SELECT count(*) FROM events WHERE execution_id = 'greet-1'")
    assert "" == shop("log", "greet-1")
    counting = [shop.code.COUNT]
    shop.fill(("greet", "counted"), projections=counting, snapshot_every=1)
    before = shop.snapshots()
    assert "['count']" in shop.err("compact", "counted", code=1)
    assert before == shop.snapshots()
    assert ["surfaces", "count"] == shop.json("compact", "counted", "--projections", "operated_flows:COUNT")[
        "projections"
    ]

    async def projected() -> Any:
        async with shop.open() as store:
            return (await load(store.stores, "counted", projections=counting)).projected["count"]

    assert 3 == trio.run(projected)


def test_fork_makes_another_execution_and_leaves_the_first(waiting):
    before = waiting.json("log", "order-1")
    answer = waiting.json("fork", "order-1", "--upto", "1", "--as", "again")
    assert ("running", 1) == (answer["status"], answer["sequence"])
    assert answer == waiting.json("fork", "order-1", "--upto", "1", "--as", "again")
    assert waiting.json("verify", "--all")["ok"]
    assert "suspended" in waiting("recover", "again", *WITH_FLOWS)
    assert "suspended" == waiting.json("fork", "order-1", "--as", "third", *WITH_FLOWS)["status"]
    assert before == waiting.json("log", "order-1")


def test_fork_refuses_what_it_cannot_do(shop):
    assert "up to 2" in shop.err("fork", "greet-1", "--upto", "9", "--as", "new", code=2)
    assert "use another id" in shop.err("fork", "greet-1", "--as", "greet-2", code=2)
    shop("compact", "greet-1")
    assert "truncated" in shop.err("fork", "greet-1", "--as", "new", code=1)
    assert 2 == len(shop.json("list")["executions"])


def test_what_was_changed_is_told_in_words_too(stuck):
    assert "what has come of 'charge' is recorded" in stuck("resolve", "buy-1", "charge", "--completed", "7")
    assert "completed  output=7" in stuck("recover", "buy-1", *WITH_FLOWS)
    assert "events 0 to 2 are in the snapshot now, with surfaces" in stuck("compact", "greet-1")
    assert ["'twin' is there", 'twin  2  completed  output="hello you"'] == stuck(
        "fork", "greet-2", "--as", "twin"
    ).splitlines()


# ---- as a program ----------------------------------------------------------------------------------------------------


def program(*args: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kernel", *args]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more
    )


def test_watch_has_a_line_for_each_newer_state_until_the_end(waiting):
    with program(*waiting.where, "watch", "order-1", "--json") as watching:
        first = json.loads(watching.stdout.readline())
        assert ("suspended", [{"key": "k-1", "on": "paid"}]) == (first["status"], first["waits_for"])
        waiting("cancel", "order-1", *WITH_FLOWS)
        out, err = watching.communicate(timeout=60)
    last = json.loads(out.splitlines()[-1])
    assert (0, "", "cancelled") == (watching.returncode, err, last["status"])


def test_watch_ends_at_ctrl_c(waiting):
    with program(*waiting.where, "watch", "order-1") as watching:
        assert "order-1  3  suspended  waits_for=" in watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        assert (0, ("", "")) == (watching.wait(60), watching.communicate())


def test_watch_of_what_has_ended_is_one_line(shop):
    assert ['greet-1  2  completed  output="hello you"'] == shop("watch", "greet-1").splitlines()


def test_the_program_has_the_exit_codes_and_no_traceback(shop):
    for args, exit_code in ((("list",), 0), (("resume", "greet-1"), 1), (("log", "no"), 2), ((), 2)):
        with program(*shop.where, *args) as running:
            _, err = running.communicate(timeout=60)
        assert (exit_code, False) == (running.returncode, "Traceback" in err)


SLOW = """
import trio
from kernel import flow, step

async def wait(ectx, input):
    print("waiting", flush=True)
    await trio.sleep_forever()

SLOW = step("slow", wait)

@flow
async def greet(ctx, _):
    return await ctx.execute(SLOW)
"""


def test_ctrl_c_in_a_recovery_is_a_crash_that_loses_nothing(shop, tmp_path):
    (tmp_path / "slow_flows.py").write_text(SLOW)
    shop.interrupt("greet-1")
    # The module is found in the current directory.
    with program(*shop.where, "recover", "--flows", "slow_flows:greet", "--json", cwd=tmp_path) as running:
        assert "waiting" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (130, 130, False) == (running.returncode, json.loads(out)["exit_code"], "Traceback" in err)
    assert ["EXECUTION_STARTED", "STEP_STARTED"] == shop.types("greet-1")
    assert shop.json("verify", "--all")["ok"]


def test_a_reader_that_leaves_is_no_error(shop):
    with program(*shop.where, "list") as running:
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_is_complete_and_needs_no_store(command):
    text = operate("no-such.db", command, "--help").stdout
    assert text.splitlines()[2:] == operate(command, "--help").stdout.splitlines()[2:]  # the store left out
    assert "Example" in text
    assert f"python -m kernel orders.db {command}" in text
    assert "--json" in text


# ---- looking is not writing ------------------------------------------------------------------------------------------

LOOKING = ("list", "log greet-1", "state greet-1", "verify --all", "watch greet-1", "recover")


def test_looking_at_a_store_of_an_older_kernel_does_not_upgrade_it_and_changing_does(shop):
    newest = shop.version
    for table in ("leases", "contents"):
        shop.sql(f"DROP TABLE {table}")
    shop.set_version(1)
    for command in LOOKING:
        for form in ((), ("--json",)):
            assert "" != shop(*command.split(), *form)
    assert (1, 2) == (shop.version, newest)
    shop("fork", "greet-1", "--as", "new")
    assert newest == shop.version


def test_looking_writes_nothing_to_the_file(place, code):
    shop = in_file(place, code)
    shop.fill(("greet", "greet-1"))
    before = place.read_bytes()
    for command in LOOKING:
        shop(*command.split())
    assert (before, [place]) == (place.read_bytes(), [*place.parent.iterdir()])


def test_looking_needs_no_right_to_write(server, schema, code):
    in_database(server, schema, code).fill(("greet", "greet-1"))
    with psycopg.connect(server.dsn) as connection:
        connection.execute("DROP ROLE IF EXISTS looker")
        connection.execute("CREATE ROLE looker LOGIN")
        connection.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO looker')
        connection.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO looker')
    try:
        looker = ("--schema", schema, url(server, "looker"))
        for command in LOOKING:
            operate(*looker, *command.split())
        assert "permission denied" in operate(*looker, "compact", "greet-1", code=3).stderr
    finally:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("DROP OWNED BY looker")
            connection.execute("DROP ROLE looker")


@pytest.mark.parametrize("command", ["list", "verify --all", "cancel x", "recover --flows operated_flows:FLOWS"])
def test_a_typo_in_the_schema_is_an_error_and_makes_none(server, code, command):
    for _ in range(2):  # the first one has made none
        said = operate("--schema", "typo", url(server), *command.split(), "--json", code=2)
        assert "no store in schema 'typo'" in json.loads(said.stdout)["error"]
