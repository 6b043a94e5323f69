"""A store that is opened to read only is left exactly as it is (K-LOG-5)."""

from __future__ import annotations

import pytest
import trio

from kernel.conformance import chain
from kernel.errors import NotAStore, StoreUnavailable
from kernel.ports import Delivery, StoredSnapshot


@pytest.fixture(params=["sqlite", "postgresql"])
def open_store(request, opener):
    return opener(request.param)


async def written(open_store):
    """Make a store with one execution of two events."""
    async with open_store() as store:
        await store.append("e", 0, chain("e", 2), fence=0, flow_id="f", status="running", due_ms=None)


def test_everything_in_it_can_be_read(open_store):
    async def story():
        await written(open_store)
        async with open_store() as writer:
            await writer.save("e", StoredSnapshot(sequence=1, text="{}"))
            await writer.put_content("h", "1")
            fence = await writer.acquire("e", "w", until_ms=5, after=0)
            async with open_store(read_only=True) as store, store.subscribe("e") as wakeups:
                assert 2 == len(await store.read_from("e", 0))
                assert (1, "1") == ((await store.load("e")).sequence, await store.content("h"))
                assert (1, "w") == (fence, (await store.lease("e")).owner)
                third = chain("e", 3)[2:]
                await writer.append("e", 2, third, fence=fence, flow_id="f", status="running", due_ms=None)
                with trio.fail_after(20):
                    await wakeups.wait()
                assert 2 == (await store.entry("e")).head

    trio.run(story)


WRITES = {
    "append": lambda s: s.append("e", 2, chain("e", 3)[2:], fence=0, flow_id="f", status="failed", due_ms=None),
    "claim": lambda s: s.claim("e", "me"),
    "acquire": lambda s: s.acquire("e", "me", until_ms=1, after=0),
    "renew": lambda s: s.renew("e", fence=0, until_ms=1),
    "delete": lambda s: s.delete("e"),
    "truncate": lambda s: s.truncate_prefix("e", 0),
    "save": lambda s: s.save("e", StoredSnapshot(sequence=0, text="{}")),
    "put": lambda s: s.put("e", Delivery(delivery_id="d", on="", correlation_key=None, payload_text="1")),
    "remove": lambda s: s.remove("e", ["d"]),
    "content": lambda s: s.put_content("h", "1"),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_refused_and_changes_nothing(open_store, write):
    async def story():
        await written(open_store)
        async with open_store(read_only=True) as store:
            before = await store.entry("e"), await store.read_from("e", 0)
            with pytest.raises(StoreUnavailable, match="was opened to read only; open it to write"):
                await WRITES[write](store)
            assert before == (await store.entry("e"), await store.read_from("e", 0))
            assert (None, []) == (await store.load("e"), await store.pending("e"))
            assert await store.content("h") is None

    trio.run(story)


def test_where_there_is_no_store_none_is_made(open_store):
    async def story():
        for _ in range(2):
            with pytest.raises(NotAStore, match="open it to write, and it is made"):
                async with open_store(read_only=True):
                    pass

    trio.run(story)


def test_what_an_older_store_has_no_place_for_says_how_to_upgrade_it(open_store):
    async def story():
        await written(open_store)
        async with open_store() as store:
            await make_old(store)
        async with open_store(read_only=True) as store:
            assert 2 == len(await store.read_from("e", 0))
            for asked in (store.lease("e"), store.content("h")):
                with pytest.raises(StoreUnavailable, match=r"of an older version .*to write, which upgrades it"):
                    await asked
        async with open_store() as store:
            assert (None, None) == (await store.lease("e"), await store.content("h"))

    trio.run(story)


async def make_old(store):
    """Have the store be one of version 1."""

    def downgrade(transaction):
        for table in ("leases", "contents"):
            transaction.execute(f"DROP TABLE {table}")
        is_file = hasattr(store, "path")
        transaction.execute("PRAGMA user_version = 1" if is_file else "UPDATE loom_store SET version = 1")

    await store._write(downgrade)
