"""The writer of the PostgreSQL store's tests; run as a program, the process that they race and kill.

Apart from the tests, because a process that need not load their libraries starts in half the time.
"""

from __future__ import annotations

import os
import sys

import trio

from kernel.adapters.postgres import PostgresStore, open_postgres
from kernel.errors import AppendUnknown, ConcurrencyConflict, StoreUnavailable
from kernel.events import GENESIS_HASH, Envelope, seal


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


async def fill(
    store: PostgresStore,
    upto: int,
    *,
    claim: bool,
    errors: list[Exception] | None = None,
    won: list[tuple[int, str]] | None = None,
) -> None:
    """Append batches of one to three events until the log is `upto` long; say which batches are durable.

    With `errors`, the store may fail: what it says is noted, and everything is done again.
    """
    fence = await store.claim("e", str(os.getpid())) if claim and await store.entry("e") else 0
    while True:
        try:
            log = await store.read_from("e", 0)
            if len(log) >= upto:
                return
            batch: list[Envelope] = []
            for left in range(len(log) % 3, -1, -1):
                previous = batch[-1].hash if batch else log[-1].hash if log else GENESIS_HASH
                payload = f'{{"last":{str(left == 0).lower()},"writer":{os.getpid()}}}'
                batch.append(event(len(log) + len(batch), payload, previous))
            first, last = batch[0].sequence, batch[-1].sequence
            await store.append("e", first, batch, fence=fence, flow_id="f", status="running", due_ms=last)
        except ConcurrencyConflict:
            continue
        except (StoreUnavailable, AppendUnknown) as error:
            if errors is None:
                raise
            errors.append(error)
            await trio.sleep(0.01)
            continue
        if won is None:
            os.write(1, f"{first} {last} {batch[-1].hash}\n".encode())
        else:
            won.append((last, batch[-1].hash))


async def write(dsn: str, schema: str, upto: int, *, claim: bool) -> None:
    """Open the store and fill the log."""
    async with open_postgres(dsn, schema=schema, timeout_ms=20_000) as store:
        os.write(1, b"opened\n")
        await fill(store, upto, claim=claim, errors=None if claim else [])


if __name__ == "__main__":
    os.write(1, b"ready\n")
    if sys.stdin.readline() == "go\n":
        trio.run(lambda: write(sys.argv[1], sys.argv[2], int(sys.argv[3]), claim=sys.argv[4] == "claim"))
