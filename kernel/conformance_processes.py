"""Conformance where threads and processes race, and where a process dies: what a kit within one task cannot see.

Name a function of yours that opens the store at a place, as `package.module:name`, importable in another process:

    @contextlib.asynccontextmanager
    async def open_mine(place: str):
        async with my_store(place) as store:
            yield store.stores

    trio.run(run_each, PROCESS_CHECKS, Shared(opener="my.module:open_mine", make_place=fresh_place))

`make_place()` returns the name of a fresh, empty place for each check.  `LEASE_PROCESS_CHECKS` are for stores with
`leases`.  Processes are killed as often as `Shared.kills` says: a few times finds what is grossly wrong, some hundred
times in a nightly run finds the rest.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from typing import TypeVar

import attrs
import trio

from kernel.conformance import ConformanceFailure, _verdict, _want, chain
from kernel.conformance_writer import EXECUTION, OPENED, OVERTAKEN, READY, fill, find, lease_id, retry
from kernel.events import GENESIS_HASH, Envelope, parse
from kernel.ports import Stores

SECONDS_MAX = 120
"""How long a process may take before it is killed, and its check has failed."""

KILLS = 20

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Shared:
    """A store that several processes can open."""

    opener: str  # `package.module:name` of a function from a place to an open store
    make_place: Callable[[], str]
    kills: int = KILLS

    def open(self, place: str) -> AbstractAsyncContextManager[Stores]:
        """Open the store at a place in this process."""
        return find(self.opener)(place)


Body = Callable[[Shared, str], None]


@attrs.frozen(kw_only=True, slots=True)
class ProcessCheck:
    """One thing that a shared store must do.  `body` blocks: it waits for processes."""

    name: str
    rule: str
    body: Body

    async def run(self, shared: Shared) -> None:
        """Run at a fresh place.  Raises `ConformanceFailure`, for what the store raises unasked too."""
        try:
            await trio.to_thread.run_sync(self.body, shared, shared.make_place())
        except Exception as error:
            raise ConformanceFailure(f"{self.name} ({self.rule}): {_verdict(error)}") from error


# ---- other processes -------------------------------------------------------------------------------------------------


@attrs.frozen
class Writer:
    """A process that runs `kernel.conformance_writer`."""

    process: subprocess.Popen[str]
    _guard: threading.Timer

    @classmethod
    def spawn(cls, shared: Shared, place: str, role: str, count: int) -> Writer:
        """Start the process; it waits for `go` before it opens the store."""
        command = [sys.executable, "-m", "kernel.conformance_writer", shared.opener, place, role, str(count)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        guard = threading.Timer(SECONDS_MAX, process.kill)  # who reads its lines would wait for ever
        guard.daemon = True
        guard.start()
        return cls(process, guard)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill it, if it is still there, and close its pipes."""
        self._guard.cancel()
        with self.process:
            self.process.kill()

    def wait_ready(self) -> None:
        """Wait until it needs nothing but a word."""
        _want([READY], next(self.lines(), None), "the first line of a writer")

    def go(self) -> None:
        """Let it open the store, or go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def lines(self) -> Iterator[list[str]]:
        """Return what it says, in words; half a line is none."""
        assert self.process.stdout is not None
        return (line.split() for line in self.process.stdout if line.endswith("\n"))

    def wait_end(self) -> None:
        """Wait until it has ended by itself."""
        _want(0, self.process.wait(SECONDS_MAX), "the exit code of a writer")


def writers(stack: ExitStack, shared: Shared, place: str, role: str, count: int, number: int) -> list[Writer]:
    """Return some writers that are ready to go."""
    made = [stack.enter_context(Writer.spawn(shared, place, role, count)) for _ in range(number)]
    for writer in made:
        writer.wait_ready()
    return made


def ask(shared: Shared, place: str, body: Callable[[Stores], Awaitable[T]]) -> T:
    """Run `body` on a handle of this process's own."""

    async def use() -> T:
        async with shared.open(place) as stores:
            return await body(stores)

    return trio.run(use)


async def logged(stores: Stores) -> list[Envelope]:
    """Return the log that writers have filled: its chain is whole, so are its batches, and the catalogue agrees."""
    # First a claim, which waits for what a dead writer has under way, if the server does not know yet that it is dead.
    await stores.events.claim(EXECUTION, "reader")
    events = [parse(one) for one in await stores.events.read_from(EXECUTION, 0)]
    entry = await stores.events.entry(EXECUTION)
    assert entry is not None
    _want(list(range(len(events))), [one.sequence for one in events], "sequences")
    _want([GENESIS_HASH, *(one.hash for one in events)][:-1], [one.previous_hash for one in events], "previous hashes")
    _want((len(events) - 1, len(events) - 1), (entry.head, entry.due_ms), "head and due time, set by the last append")
    _want(True, isinstance(events[-1].payload, dict) and events[-1].payload["last"], "is the last event a batch's last")
    return events


def _want_won(events: list[Envelope], won: list[list[str]], length: int) -> None:
    """Fail unless these batches, each won by one writer, are the whole log."""
    batches = sorted((int(first), int(last), hash) for first, last, hash in won)
    positions = [position for first, last, _ in batches for position in range(first, last + 1)]
    _want(list(range(len(events))), positions, "positions that writers say they have won")
    _want([events[last].hash for _, last, _ in batches], [hash for _, _, hash in batches], "hashes of what they won")
    _want(True, len(events) >= length, f"is the log {length} long or longer")


# ---- races -----------------------------------------------------------------------------------------------------------

_LENGTH = 300


def one_process_wins_each_position(shared: Shared, place: str) -> None:
    with ExitStack() as stack:
        racers = writers(stack, shared, place, "share", _LENGTH, 3)
        for writer in racers:
            writer.go()  # all at once open a place where there is nothing yet
        for writer in racers:
            _want([[OPENED]], _next(writer.lines(), 1), "what a writer says")
        for writer in racers:
            writer.go()
        won = [batch for writer in racers for batch in writer.lines()]
        for writer in racers:
            writer.wait_end()
    _want_won(ask(shared, place, logged), won, _LENGTH)


def one_thread_wins_each_position(shared: Shared, place: str) -> None:
    won: list[list[str]] = []  # a list's `append` is one step among threads
    failed: list[BaseException] = []

    def race(name: str) -> None:
        try:
            ask(shared, place, partial(_fill_and_note, name=name, won=won))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=race, args=(f"thread {i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    _want_won(ask(shared, place, logged), won, _LENGTH)


async def _fill_and_note(stores: Stores, *, name: str, won: list[list[str]]) -> None:
    def note(first: int, last: int, hash: str) -> None:
        won.append([str(first), str(last), hash])

    await fill(stores, _LENGTH, writer=name, fence=0, won=note, refused=retry)


# ---- deaths ----------------------------------------------------------------------------------------------------------


def killed_writers_lose_nothing_they_acknowledged(shared: Shared, place: str) -> None:
    chance = random.Random(7)
    acknowledged = 0
    with ExitStack() as stack:
        after = stack.enter_context(Writer.spawn(shared, place, "own", 10**6))
        for _ in range(shared.kills):
            writer, after = after, stack.enter_context(Writer.spawn(shared, place, "own", 10**6))  # starts meanwhile
            said = _killed(writer, chance)
            events = ask(shared, place, logged)
            hashes = {one.sequence: one.hash for one in events}
            for _first, last, hash in said:
                _want(hash, hashes.get(int(last)), f"the hash of event {last}, which was acknowledged")
            acknowledged += len(said)
        after.wait_ready()
        after.go()
        _want([OPENED], next(after.lines(), None), "what the next owner says")
        [[first, _, _]] = _next(after.lines(), 1)
    _want(len(events), int(first), "where the next owner goes on")
    _want(True, acknowledged >= shared.kills, f"are {acknowledged} batches enough, of {shared.kills} that were killed")


def _next(lines: Iterator[list[str]], count: int) -> list[list[str]]:
    """Return what a writer that is at work says next."""
    said = list(itertools.islice(lines, count))
    _want(count, len(said), f"lines of a writer, which ended with {said[-1:]}")
    return said


def _killed(writer: Writer, chance: random.Random) -> list[list[str]]:
    """Let a writer go, kill it at some moment, and return the batches that it has acknowledged."""
    writer.wait_ready()
    writer.go()
    lines = writer.lines()
    _want([OPENED], next(lines, None), "what a writer says")
    said = _next(lines, 1 + chance.choice((0, 1, 3, 10, 30)))
    time.sleep(chance.uniform(0, 0.003))
    writer.process.kill()
    said += lines
    writer.close()
    return said


# ---- owners ----------------------------------------------------------------------------------------------------------


def overtaken_process_appends_nothing(shared: Shared, place: str) -> None:
    with ExitStack() as stack:
        [writer] = writers(stack, shared, place, "own", 10**6, 1)
        writer.go()
        lines = writer.lines()
        said = _next(lines, 6)[1:]  # it is at work
        at_claim = ask(shared, place, logged)  # with a claim of its own
        *rest, last = list(lines)
        _want([OVERTAKEN], last, "the last word of a writer that was overtaken")
        writer.wait_end()
        _want_won(ask(shared, place, logged), [*said, *rest], len(at_claim))
        _want(len(at_claim), len(ask(shared, place, logged)), "the length of the log since the claim")


def one_process_gets_each_lease(shared: Shared, place: str) -> None:
    count = 40
    ask(shared, place, partial(_make, count=count))
    with ExitStack() as stack:
        takers = writers(stack, shared, place, "lease", count, 3)
        for taker in takers:
            taker.go()
        said = [_upto(taker.lines(), ["all"])[1:] for taker in takers]
        taken = [int(i) for lines in said for _, i in lines]
        _want(list(range(count)), sorted(taken), "leases that 3 processes say they have taken")
        ask(shared, place, partial(_take_over, upto=count // 2))
        for taker in takers:
            taker.go()
        answers = sorted((int(i), word) for taker in takers for word, i in taker.lines())
    wanted = [(i, "fenced" if i < count // 2 else "renewed") for i in range(count)]
    _want(wanted, answers, f"answers to renewals, the first {count // 2} leases having been taken over")
    ask(shared, place, partial(_check_leases, count=count))


def _upto(lines: Iterator[list[str]], end: list[str]) -> list[list[str]]:
    return list(iter(lambda: next(lines), end))


async def _make(stores: Stores, *, count: int) -> None:
    for i in range(count):
        batch = chain(lease_id(i), 1)
        await stores.events.append(lease_id(i), 0, batch, fence=0, flow_id="f", status="running", due_ms=None)


async def _take_over(stores: Stores, *, upto: int) -> None:
    assert stores.leases is not None
    for i in range(upto):
        await stores.leases.acquire(lease_id(i), "the next", until_ms=3_000, after=1)


async def _check_leases(stores: Stores, *, count: int) -> None:
    assert stores.leases is not None
    for i in range(count):
        lease = await stores.leases.lease(lease_id(i))
        assert lease is not None
        taken_over = i < count // 2
        seen = lease.until_ms, lease.fence, lease.owner == "the next"
        _want((3_000, 2, True) if taken_over else (2_000, 1, False), seen, f"end, fence and owner of lease {i}")


PROCESS_CHECKS: tuple[ProcessCheck, ...] = tuple(
    ProcessCheck(name=body.__name__, rule=rule, body=body)
    for rule, body in (
        ("K-LOG-2", one_process_wins_each_position),
        ("K-LOG-2", one_thread_wins_each_position),
        ("K-LOG-2", killed_writers_lose_nothing_they_acknowledged),
        ("K-LOG-2", overtaken_process_appends_nothing),
    )
)
"""For every store that several processes may open."""

LEASE_PROCESS_CHECKS: tuple[ProcessCheck, ...] = (
    ProcessCheck(name="one_process_gets_each_lease", rule="K-RUN-3", body=one_process_gets_each_lease),
)
"""For those with `leases`."""
