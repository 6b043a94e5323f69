"""The worker of the tests of transactional steps (K-USER-2).

Run as a program it reads numbers, and forks a worker for each that goes on up to so many executions, to be killed.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from kernel import Context, EffectContext, Json, flow, open_runtime, transaction
from kernel.adapters.postgres import open_postgres
from kernel.adapters.sqlite import open_sqlite

STEPS = 4
"""How many transactions an execution has; each adds one to the row."""


def open_store(kind: str, address: str, schema: str) -> AbstractAsyncContextManager[Any]:
    """Open the store at a place."""
    if kind == "postgres":
        return open_postgres(address, schema=schema, timeout_ms=20_000)
    return open_sqlite(address, busy_ms=20_000)


@transaction("add")
async def add(effect: EffectContext, input: Json) -> Json:
    """Add one to the row, and note which step has done it."""
    ((n,),) = (await effect.sql.execute("UPDATE total SET n = n + 1 RETURNING n")).rows
    await effect.sql.execute(f"INSERT INTO added VALUES ('{effect.idempotency_key}')")
    return n


@flow
async def adding(ctx: Context, input: Json) -> Json:
    """Add `STEPS` to the row."""
    return [await ctx.run(add, key=f"{i}") for i in range(STEPS)]


async def work(kind: str, address: str, schema: str, upto: int) -> None:
    """Finish what was begun, and start executions until there are `upto`; say which have ended."""
    async with open_store(kind, address, schema) as store, open_runtime(stores=store.stores, flows=[adding]) as runtime:
        os.write(1, f"opened {os.getpid()}\n".encode())
        await runtime.recover_all()
        begun = [entry for entry in await store.entries() if entry.flow_id == adding.id]
        for entry in begun:
            if entry.status != "completed":
                await runtime.wait_result(entry.execution_id)
        for i in range(len(begun), upto):
            await (await runtime.start(adding, execution_id=f"e{i:06}")).result()
            os.write(1, f"{i}\n".encode())


if __name__ == "__main__":
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            trio.run(work, *sys.argv[1:4], int(line))
            os._exit(0)
        os.waitpid(child, 0)
        os.write(1, b"gone\n")
