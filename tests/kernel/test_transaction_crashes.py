"""Transactional steps happen exactly once, wherever the process dies and whatever the store says (K-USER-2)."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from kernel import open_runtime
from kernel.errors import AppendUnknown, ExecutionFailed, ExecutionInterrupted, StoreUnavailable
from kernel.events import STEP_COMPLETED, parse
from kernel.ports import Stores
from kernel.verify import verify
from tests.kernel.transaction_places import Place, append_to, opened
from tests.kernel.transaction_worker import STEPS, adding

KILLS = int(os.environ.get("LOOM_STORE_KILLS", "20"))
"""How many workers are killed: 20 by default, more at night."""


async def set_up(store: Any) -> None:
    """Make the tables: a transaction that appends to a log of its own."""
    async with opened(store) as transaction:
        await transaction.sql.execute("CREATE TABLE total (n integer NOT NULL)")
        await transaction.sql.execute("CREATE TABLE added (step text NOT NULL)")
        await transaction.sql.execute("INSERT INTO total VALUES (0)")
        await append_to(transaction, "zz setting up")


async def check(store: Any) -> int:
    """Return how many steps have completed: each once, and the rows say the same."""
    completed: list[str] = []
    for entry in await store.entries():
        log = await store.read_from(entry.execution_id, 0)
        assert None is verify(entry.execution_id, log)
        ended = [event.payload for event in map(parse, log) if event.type == STEP_COMPLETED]
        completed += [f"{entry.execution_id}/{payload['step']}" for payload in ended]  # type: ignore[call-overload, index]
    async with opened(store) as looking:
        rows = [step for (step,) in (await looking.sql.execute("SELECT step FROM added")).rows]
        ((n,),) = (await looking.sql.execute("SELECT n FROM total")).rows
    assert sorted(completed) == sorted(rows)
    assert len(set(completed)) == len(completed) == n
    return n


# ---- every call of a store goes wrong once ---------------------------------------------------------------------------

DIES, SAYS_UNKNOWN, SAYS_NOTHING_WRITTEN = "dies", AppendUnknown, StoreUnavailable


@attrs.define(kw_only=True)
class Faulty:
    """A store one call of which goes wrong, before it is done or after.  Mutable: it counts the calls, and may die.

    A dead process asks nothing more, and its database rolls back what it had open.
    """

    store: Any
    at: int
    how: Any
    done: bool
    calls: Iterator[int] = attrs.field(factory=itertools.count)
    fired: trio.Event = attrs.field(factory=trio.Event)
    _inner: Any = None

    @property
    def stores(self) -> Stores:
        return attrs.evolve(self.store.stores, events=self, transactions=self)

    async def call(self, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if self.how is DIES and self.fired.is_set():
            await trio.sleep_forever()
        if next(self.calls) != self.at:
            return await method(*args, **more)
        if self.done:
            await method(*args, **more)
        self.fired.set()
        if self.how is DIES:
            await trio.sleep_forever()
        raise self.how("planned")

    async def append(self, *args: Any, **more: Any) -> None:
        await self.call(self.store.append, *args, **more)

    async def begin(self) -> Any:
        await self.call(trio.lowlevel.checkpoint)
        return Faulted(self, await self.store.begin())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Faulted:
    """A transaction of a faulty store, and its SQL."""

    def __init__(self, faulty: Faulty, inner: Any) -> None:
        self._faulty, self._inner, self.sql = faulty, inner, self
        self.rollback = inner.rollback

    async def execute(self, *args: Any) -> Any:
        if self._faulty.how is AppendUnknown:
            return await self._inner.sql.execute(*args)  # not a thing that a statement says
        return await self._faulty.call(self._inner.sql.execute, *args)

    async def append(self, *args: Any, **more: Any) -> None:
        await self._faulty.call(self._inner.append, *args, **more)


async def begin_with(faulty: Faulty) -> None:
    """Run in a process to which this happens, until it has ended, is dead or stops driving."""
    async with open_runtime(stores=faulty.stores, flows=[adding]) as runtime, trio.open_nursery() as nursery:

        async def drive() -> None:
            try:
                await (await runtime.start(adding, execution_id="x")).result()
            except (AppendUnknown, ExecutionFailed, ExecutionInterrupted, StoreUnavailable):
                assert faulty.fired.is_set()
            nursery.cancel_scope.cancel()

        nursery.start_soon(drive)
        if faulty.how is DIES:
            await faulty.fired.wait()
            nursery.cancel_scope.cancel()


FAULTS = [(DIES, False), (DIES, True), (SAYS_UNKNOWN, False), (SAYS_UNKNOWN, True), (SAYS_NOTHING_WRITTEN, False)]


@pytest.mark.parametrize("kind", ["memory", "sqlite-inline"])
@pytest.mark.parametrize(("how", "done"), FAULTS)
def test_each_step_happens_once_whichever_call_goes_wrong(
    places: Callable[[str], Place], kind: str, how: Any, done: bool
) -> None:
    async def run(at: int) -> bool:
        place = places(kind)
        async with place.open() as store:
            await set_up(store)
            faulty = Faulty(store=store, at=at, how=how, done=done)
            await begin_with(faulty)
            entry = await store.entry("x")
            failed = entry is not None and entry.status == "failed"
            if not failed:
                async with open_runtime(stores=store.stores, flows=[adding]) as runtime:
                    await runtime.recover_all()
                    assert [1, 2, 3, 4] == await (await runtime.start(adding, execution_id="x")).result()
            assert failed or STEPS == await check(store)
            assert not failed or await check(store) < STEPS, "a statement that fails is the effect's failure"
            return faulty.fired.is_set()

    async def sweep() -> int:
        at = 0
        while await run(at):
            at += 1
        return at

    calls_of_a_step = 3 if how is AppendUnknown else 5
    assert 2 + STEPS * calls_of_a_step == trio.run(sweep), "so many calls went wrong, each in a run of its own"


# ---- processes that are killed ---------------------------------------------------------------------------------------


@attrs.frozen
class Workers:
    """A program that forks a worker whenever it is told to, so that each is there at once."""

    process: subprocess.Popen[str]

    @classmethod
    def of(cls, place: Place) -> "Workers":
        program = str(Path(__file__).with_name("transaction_worker.py"))
        command = [sys.executable, program, place.kind, place.address, place.schema]
        root = str(Path(__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": root}
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=root))

    def start(self, upto: int) -> int:
        """Start a worker that finishes what there is, and goes on up to so many executions; return its process id."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{upto}\n")
        self.process.stdin.flush()
        opened, pid = next(self.lines())
        assert "opened" == opened
        return int(pid)

    def lines(self) -> Iterator[list[str]]:
        """Return what a worker says: the number of each execution that it has begun and ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "gone\n":
                return
            yield line.split()

    def close(self) -> None:
        """End the program."""
        with self.process:
            self.process.kill()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_each_step_of_killed_workers_happens_once(places: Callable[[str], Place], kind: str) -> None:
    async def visit(body: Callable[[Any], Any]) -> Any:
        async with place.open() as store:
            return await body(store)

    place, chance = places(kind), random.Random(11)
    trio.run(visit, set_up)
    acknowledged, cut = 0, 0
    with contextlib.closing(Workers.of(place)) as workers:
        for _ in range(KILLS):
            pid, lines = workers.start(10**6), workers.lines()
            said = [next(lines) for _ in range(chance.choice((0, 0, 1, 2)))]
            time.sleep(chance.uniform(0, 0.05))
            os.kill(pid, signal.SIGKILL)
            acknowledged += len(said) + len([*lines])
            found = trio.run(visit, check)
            assert found >= STEPS * acknowledged
            cut += found % STEPS > 0
        workers.start(upto := acknowledged + KILLS + 1)
        acknowledged += len([*workers.lines()])
    ended = trio.run(visit, check)
    assert ended % STEPS == 0
    assert ended >= STEPS * max(acknowledged, upto)
    assert cut > 0, "a loop in which every kill falls between executions shows nothing"
