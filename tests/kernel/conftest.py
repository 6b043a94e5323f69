"""What the kernel's tests share: a bench that runs flows over one durable store, through crashes."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kernel import SURFACES, ExecutionFailed, Flow, Handle, Json, Parts, Runtime, events, open_runtime
from kernel.adapters.memory import MemoryStore
from kernel.adapters.postgres import open_postgres
from kernel.adapters.sqlite import open_sqlite
from kernel.events import Envelope, parse
from kernel.lifecycle import load
from kernel.ports import Stores
from tests.kernel.postgres_server import NoServer, Server, running_server


class SteppedClock:
    """Time that stands still until a test moves it: no test sleeps.  A real timeout in trio is untouched by it."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self._sleepers: list[tuple[int, trio.Event]] = []

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until(self, due_ms: int) -> None:
        if due_ms > self.ms:
            wake = trio.Event()
            self._sleepers.append((due_ms, wake))
            try:
                await wake.wait()
            finally:
                self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[1] is not wake]

    def due(self) -> list[int]:
        """What is slept until, in seconds from now."""
        return sorted((due_ms - self.ms) // 1000 for due_ms, _wake in self._sleepers)

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)
        due = [wake for due_ms, wake in self._sleepers if due_ms <= self.ms]
        self._sleepers = [(due_ms, wake) for due_ms, wake in self._sleepers if due_ms > self.ms]
        for wake in due:
            wake.set()


class CountedChance:
    """Randomness that can be told in advance."""

    def __init__(self) -> None:
        self._count = 0

    def random(self) -> float:
        self._count += 1
        return self._count / 1024

    def uuid(self) -> str:
        self._count += 1
        return f"uuid-{self._count}"


class Crashing:
    """A store of one process that dies at its nth append: before the append lands, or after it and before its answer.

    `writes` names other methods that count, too.

    From then on it never answers: whoever asks waits for ever, as the tasks of a dead process do.
    """

    def __init__(
        self, store: Any, *, at: int | None = None, landed: bool = False, writes: Sequence[str] = ("append",)
    ) -> None:
        self._store = store
        self._at = at
        self._landed = landed
        self._writes = writes
        self.appends = 0
        self.dead = trio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.dead.is_set():
                await trio.sleep_forever()
            if name not in self._writes:
                return await method(*args, **kwargs)
            self.appends += 1
            if self.appends - 1 != self._at:
                return await method(*args, **kwargs)
            if self._landed:
                await method(*args, **kwargs)
            self.dead.set()
            return await trio.sleep_forever()

        return call

    @property
    def stores(self) -> Stores:
        return Stores(events=self, snapshots=self, mailbox=self)  # type: ignore[arg-type]


class Failing:
    """A store whose nth call of a method raises, before or after it has done its work."""

    def __init__(self, store: Any, plan: dict[tuple[str, int], tuple[type[Exception], bool]]) -> None:
        self._store = store
        self._plan = plan  # (method, nth call) -> (error, done all the same?)
        self._calls: dict[str, int] = {}
        self.fired = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            nth = self._calls[name] = self._calls.get(name, -1) + 1
            if (name, nth) not in self._plan:
                return await method(*args, **kwargs)
            self.fired += 1
            error, done = self._plan[name, nth]
            if done:
                await method(*args, **kwargs)
            raise error(f"planned for call {nth} of {name}")

        return call

    @property
    def stores(self) -> Stores:
        return Stores(events=self, snapshots=self, mailbox=self)  # type: ignore[arg-type]


Drive = Callable[[Runtime], Awaitable[None]]


async def settle(*turns: trio.CapacityLimiter) -> None:
    """Let every task go on until all wait for something that will not happen by itself.

    A store that works in threads does: `turns` are what its calls take, and give back when their task has the answer.
    """
    await trio.testing.wait_all_tasks_blocked()
    while any(turn.borrowed_tokens for turn in turns):
        await trio.sleep(0.001)  # a thread tells nobody but its own task
        await trio.testing.wait_all_tasks_blocked()


@attrs.define(kw_only=True)
class Bench:
    """One durable store, and as many processes over it, one after the other, as a test wants."""

    store: Any = attrs.field(factory=MemoryStore)
    clock: SteppedClock = attrs.field(factory=SteppedClock)
    chance: CountedChance = attrs.field(factory=CountedChance)
    projections: tuple[Any, ...] = (SURFACES,)
    snapshot_every: int | None = None
    turns: Sequence[trio.CapacityLimiter] = ()  # of stores that work in threads
    _incarnations: Any = attrs.field(factory=lambda: itertools.count(1))

    @contextlib.asynccontextmanager
    async def process(
        self,
        *flows: Flow,
        parts: Parts | None = None,
        effects: dict[str, Any] | None = None,
        stores: Stores | None = None,
        **more: Any,
    ) -> AsyncIterator[Runtime]:
        """A process with its runtime; when the block ends, it stops where it is."""
        async with open_runtime(
            stores=stores or self.store.stores,
            flows=flows,
            effects=effects,
            clock=self.clock,
            chance=self.chance,
            incarnation=f"w{next(self._incarnations)}",
            parts=parts,
            projections=self.projections,
            snapshot_every=self.snapshot_every,
            **more,
        ) as runtime:
            yield runtime

    async def run(self, flow: Flow, input: Json = None, **more: Any) -> None:
        """Start `x` (or find it started) in a process of its own, and let it go as far as it goes by itself."""
        async with self.process(flow, **more) as runtime:
            await runtime.start(flow, input, execution_id="x")
            await runtime.recover_all()
            await self.settle()

    async def recover(self, *flows: Flow, **more: Any) -> None:
        """Take up what is left in a process of its own, and let it go as far as it goes by itself."""
        async with self.process(*flows, **more) as runtime:
            await runtime.recover_all()
            await self.settle()

    async def deliver(self, *flows: Flow, on: str, payload: Json = None, id: str, **more: Any) -> None:
        """Deliver in a process of its own."""
        async with self.process(*flows, **more) as runtime:
            await runtime.deliver("x", on, payload, delivery_id=id)
            await self.settle()

    async def crash(
        self,
        drive: Drive,
        *flows: Flow,
        at: int,
        landed: bool = False,
        wait: Any = settle,
        writes: Sequence[str] = ("append",),
        **more: Any,
    ) -> bool:
        """Run `drive` in a process that dies at append `at`; False if it has not come to that when `wait` returns."""
        crashing = Crashing(self.store, at=at, landed=landed, writes=writes)
        async with self.process(*flows, stores=crashing.stores, **more) as runtime, trio.open_nursery() as nursery:

            async def drive_and_stop() -> None:
                await drive(runtime)
                await wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(drive_and_stop)
            await crashing.dead.wait()
            nursery.cancel_scope.cancel()
        return crashing.dead.is_set()

    async def envelopes(self, execution_id: str = "x") -> list[Envelope]:
        return [parse(stored) for stored in await self.store.read_from(execution_id, 0)]

    async def log(self, execution_id: str = "x") -> list[tuple[str, ...]]:
        """The log, one short tuple an event."""
        return [brief(envelope) for envelope in await self.envelopes(execution_id)]

    async def emits(self) -> list[str]:
        """What flows and effects have emitted, with a star on what is stamped."""
        return [
            name(envelope) + ("*" if "flowEmit" in envelope.metadata else "")
            for envelope in await self.envelopes()
            if envelope.type not in events.KERNEL_TYPES
        ]

    def failing(self, **plan: tuple[int, type[Exception]]) -> Failing:
        """This bench's store, failing once: `append=(2, StoreUnavailable)` for the third append; `landed_append` if it
        is done all the same and only its answer is lost."""
        entries = {
            (key.removeprefix("landed_"), nth): (error, key.startswith("landed_")) for key, (nth, error) in plan.items()
        }
        return Failing(self.store, entries)

    async def settle(self) -> None:
        """Let every task go on until all wait for something that will not happen by itself."""
        await settle(*self.turns)

    outcome = staticmethod(lambda handle: outcome(handle))

    async def state(self, *flows: Flow) -> Any:
        async with self.process(*flows) as runtime:
            return await runtime.state("x")

    async def surfaces(self) -> Json:
        return (await load(self.store.stores, "x", projections=self.projections)).projected["surfaces"]


def name(envelope: Envelope) -> str:
    """A readable name of an emit: type and payload, or the patch of a surface."""
    payload = envelope.payload
    if envelope.type == events.SURFACE_PATCH and isinstance(payload, dict):
        return f"{payload['op']} {payload['surface']} {payload['value']}"
    return envelope.type if payload is None else f"{envelope.type} {payload}"


def brief(envelope: Envelope) -> tuple[str, ...]:
    """One event as a short tuple: ("STEP_COMPLETED", "charge"), ("emit", "x", "stamped")."""
    payload: Any = envelope.payload
    kind = envelope.type
    if kind == "STEP_FAILED":
        return (kind, payload["step"], payload["reason"])
    if kind.startswith("STEP_"):
        return (kind, payload["step"])
    if kind in ("EXECUTION_SUSPENDED", "EXECUTION_RESUMED"):
        return (kind, payload["on"])
    if kind == "DECISION_RECORDED":
        return (kind, payload["decisionId"])
    if kind in events.KERNEL_TYPES:
        return (kind,)
    return ("emit", name(envelope), "stamped" if "flowEmit" in envelope.metadata else "unstamped")


async def outcome(handle: Handle) -> Any:
    """The result, or the error as the log has it."""
    try:
        return await handle.result()
    except ExecutionFailed as failed:
        return failed.error


async def sweep(
    make_flow: Callable[[], Flow | Sequence[Flow]],
    drive: Drive,
    check: Callable[[Bench], Awaitable[None]],
    *,
    input: Json = None,
    **more: Any,
) -> int:
    """Crash at every append, before it and after it, recover calmly, and check; return how many crashes fired."""
    fired = 0
    for at in itertools.count():
        before = fired
        for landed in (False, True):
            made = make_flow()
            flows = [made] if isinstance(made, Flow) else list(made)
            bench = Bench()
            fired += await bench.crash(drive, *flows, at=at, landed=landed, **more)
            async with bench.process(*flows, **more) as runtime:
                if await bench.store.entry("x") is None:
                    await drive(runtime)
                await runtime.recover_all()
                await settle()
            await check(bench)
        if fired == before:
            return fired
    raise AssertionError


_places = itertools.count()


@pytest.fixture
def places(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Return what makes a place for transactional steps: memory, sqlite, sqlite-inline, postgres."""
    from tests.kernel.transaction_places import Place

    def make(kind: str) -> Any:
        if kind != "postgres":
            return Place(kind=kind, address=str(tmp_path / f"{next(_places)}.db"))
        import psycopg

        dsn, number = request.getfixturevalue("server").dsn, next(_places)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA rows_{number}")
        return Place(kind=kind, address=f"{dsn} options='-csearch_path=rows_{number}'", schema=f"transactions {number}")

    return make


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def make_bench() -> type[Bench]:
    return Bench


@pytest.fixture(name="sweep")
def sweep_fixture() -> Any:
    return sweep


# ---- stores ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server for all tests; where none can be started they fail under CI, and are skipped elsewhere."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(running_server())
        except NoServer as missing:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"NOTHING IS TESTED ON POSTGRESQL: {missing}")
        yield running


_schemas = itertools.count()


@pytest.fixture
def schema() -> str:
    """A place of the test's own: a schema that does not exist yet."""
    return f"store {next(_schemas)}"


@pytest.fixture
def opener(request: pytest.FixtureRequest, tmp_path: Path, schema: str) -> Callable[[str], Any]:
    """Return what opens the test's own store of a kind, again and again: `async with opener("sqlite")() as store`."""

    def of_kind(kind: str) -> Callable[[], Any]:
        if kind == "postgresql":
            return partial(open_postgres, request.getfixturevalue("server").dsn, schema=schema)
        if kind == "sqlite":
            return partial(open_sqlite, tmp_path / "store.db", inline=True)
        assert kind == "memory"
        store = MemoryStore()
        return lambda: contextlib.nullcontext(store)

    return of_kind


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def open_store(request: pytest.FixtureRequest, opener: Callable[[str], Any]) -> Any:
    """What opens the test's own store, of each kind."""
    return opener(request.param)
