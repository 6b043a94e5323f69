"""The process that `kernel.conformance_processes` races and kills: `python -m kernel.conformance_writer`.

It says on standard output what it knows to be durable, a line each, and does nothing before it is told to: so several
can begin at once.  A line is written by one system call, which a kill comes before or after.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import cast

import trio

from kernel.errors import AppendUnknown, ConcurrencyConflict, Fenced, StoreUnavailable
from kernel.events import GENESIS_HASH, Envelope, seal
from kernel.jsonform import Json, encode
from kernel.ports import Leases, Stores

Open = Callable[[str], AbstractAsyncContextManager[Stores]]
Say = Callable[[str], None]

EXECUTION = "e"

# What it says.
READY = "ready"
OPENED = "opened"
OVERTAKEN = "overtaken"


def find(opener: str) -> Open:
    """Return the function that `package.module:name` names."""
    module, _, name = opener.partition(":")
    return cast("Open", getattr(importlib.import_module(module), name))


def event(sequence: int, previous: str, payload: Json) -> Envelope:
    """Return an event of the execution that is raced for."""
    return seal(
        execution_id=EXECUTION,
        sequence=sequence,
        type="CHECKED",
        payload_text=encode(payload),
        timestamp_ms=1,
        append_id=f"conformance/{sequence}",
        previous_hash=previous,
    )


async def fill(
    stores: Stores,
    upto: int,
    *,
    writer: str,
    fence: int,
    won: Callable[[int, int, str], None],
    refused: Callable[[Exception], Awaitable[None]] | None = None,
) -> None:
    """Append batches of one to three events until the log is `upto` long; tell of each: first, last, hash of the last.

    What a store refuses for now is raised, or handed to `refused` and done again.  Raises `Fenced`.
    """
    while True:
        try:
            log = await stores.events.read_from(EXECUTION, 0)
            if len(log) >= upto:
                return
            batch: list[Envelope] = []
            for left in range(len(log) % 3, -1, -1):
                previous = batch[-1].hash if batch else log[-1].hash if log else GENESIS_HASH
                batch.append(event(len(log) + len(batch), previous, {"last": left == 0, "writer": writer}))
            first, last = batch[0].sequence, batch[-1].sequence
            await stores.events.append(EXECUTION, first, batch, fence=fence, flow_id="f", status="running", due_ms=last)
        except ConcurrencyConflict:
            continue
        except (StoreUnavailable, AppendUnknown) as error:
            if refused is None:
                raise
            await refused(error)
            continue
        won(first, last, batch[-1].hash)


async def retry(error: Exception) -> None:
    """Wait a little before the same is done again."""
    await trio.sleep(0.01)


async def go() -> bool:
    """Wait for the word to begin; False if nobody is left to give it."""
    said: str = await trio.to_thread.run_sync(sys.stdin.readline)
    return said == "go\n"


async def share(stores: Stores, upto: int, say: Say) -> None:
    """Fill the log as one of several who own nothing, from a word on that all are given when they have opened it."""
    won = 0

    def note(*batch: int | str) -> None:
        nonlocal won
        won += 1
        say(" ".join(map(str, batch)))

    if not await go():
        return
    while not won:  # a race in which one had no part would show less
        await fill(stores, upto, writer=str(os.getpid()), fence=0, won=note, refused=retry)
        upto += 10


async def own(stores: Stores, upto: int, say: Say) -> None:
    """Fill the log as its owner, until somebody else is."""
    owner = str(os.getpid())
    fence = await stores.events.claim(EXECUTION, owner) if await stores.events.entry(EXECUTION) else 0
    try:
        await fill(stores, upto, writer=owner, fence=fence, won=lambda *batch: say(" ".join(map(str, batch))))
    except Fenced:
        say(OVERTAKEN)


async def lease(stores: Stores, count: int, say: Say) -> None:
    """Take what leases there are to be had, say which; when told to, prolong them all, and say which that was."""
    assert stores.leases is not None
    leases: Leases = stores.leases
    taken: dict[int, int] = {}
    for i in range(count):
        try:
            taken[i] = await leases.acquire(lease_id(i), str(os.getpid()), until_ms=1_000, after=0)
        except Fenced:
            continue
        say(f"taken {i}")
    say("all")
    if not await go():
        return
    for i, fence in taken.items():
        try:
            await leases.renew(lease_id(i), fence=fence, until_ms=2_000)
        except Fenced:
            say(f"fenced {i}")
        else:
            say(f"renewed {i}")


def lease_id(i: int) -> str:
    """Return the id of an execution that is leased."""
    return f"lease {i}"


ROLES = {"share": share, "own": own, "lease": lease}


async def _run(opener: str, place: str, role: str, count: int) -> None:
    def say(line: str) -> None:
        os.write(1, f"{line}\n".encode())

    async with find(opener)(place) as stores:
        say(OPENED)
        await ROLES[role](stores, count, say)


if __name__ == "__main__":
    opener, place, role, count = sys.argv[1:]
    find(opener)  # imported before it is told to go
    os.write(1, f"{READY}\n".encode())
    if sys.stdin.readline() == "go\n":
        trio.run(_run, opener, place, role, int(count))
