"""What the cases share: the bench of the kernel's own tests, and steps whose effects are booked in a ledger.

A ledger is a plain list that stands for the outside world.  It is kept apart from the log, since some of these faults
leave a log that looks right.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
import trio

from kernel import Supervisor, step, supervise_children
from kernel.adapters.memory import MemoryStore
from kernel.ports import Stores

_PATH = Path(__file__).parents[1] / "kernel" / "conftest.py"
_spec = importlib.util.spec_from_file_location("cases_bench", _PATH)
_bench = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _bench
_spec.loader.exec_module(_bench)

bench = _bench.bench
make_bench = _bench.make_bench


_run = trio.run


@pytest.fixture(autouse=True)
def _fails_rather_than_hangs(monkeypatch):
    """Many of these faults, were they here, would show as a wait for ever."""

    def run(story, *args):
        async def in_time():
            with trio.fail_after(60):
                return await story(*args)

        return _run(in_time)

    monkeypatch.setattr(trio, "run", run)


def _booked(ledger, id, then=None, **declared):
    async def effect(ectx, input):
        ledger.append(ectx.idempotency_key.partition("/")[2])
        value = then(ectx, input) if callable(then) else then
        return await value if inspect.isawaitable(value) else value

    return step(id, effect, **declared)


@pytest.fixture
def booked():
    """`booked(ledger, id, then)`: a step that enters its id in the ledger, then returns or does `then`."""
    return _booked


class Watched(MemoryStore):
    """A store that calls `before` with each event just before it is appended: to hold it, or to do something else."""

    def __init__(self, before):
        super().__init__()
        self._before = before

    async def append(self, execution_id, expected, batch, **more):
        await self._before(batch[0])
        await super().append(execution_id, expected, batch, **more)


@pytest.fixture
def watched():
    return Watched


class _View:
    """Another process's view of a store, with some methods exchanged."""

    def __init__(self, store, **exchanged):
        self._store = store
        self.__dict__.update(exchanged)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.fixture
def view():
    """`view(store, append=f)`: the store as one process sees it."""

    def make(store, **exchanged):
        seen = _View(store, **exchanged)
        return Stores(events=seen, snapshots=seen, mailbox=seen, leases=seen, disposal=seen)

    return make


@contextlib.asynccontextmanager
async def _family(bench, *flows, supervisor=None, **more):
    supervisor = supervisor or Supervisor()
    async with (
        bench.process(*flows, observers=[supervisor.observe], **more) as runtime,
        supervise_children(supervisor, runtime, clock=bench.clock) as supervision,
    ):
        yield runtime, supervision


@pytest.fixture
def family():
    """`family(bench, *flows)`: a process that supervises children."""
    return _family
