"""Ids that not every store can keep are refused before anything is stored (K-RUN-1, K-RUN-2)."""

from __future__ import annotations

import pytest
import trio

from kernel import Flow, flow
from kernel.adapters.sqlite import open_sqlite
from kernel.errors import InvalidId
from kernel.ids import ID_BYTES_MAX
from kernel.orchestration import await_child, child_id_of

BAD = ["", "a\0b", "\ud800", "x" * (ID_BYTES_MAX + 1), "é" * (ID_BYTES_MAX // 2 + 1), "timer:0", "cancel:", "cancel:me"]


@flow
async def gated(ctx, _input):
    return await ctx.suspend("go")


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_id_of_an_execution_a_fork_or_a_delivery_is_refused_and_nothing_is_stored(bench, bad):
    # K-RUN-1, K-RUN-2, K-RUN-5
    async def story():
        async with bench.process(gated) as runtime:
            await runtime.start(gated, execution_id="x")
            with pytest.raises(InvalidId, match=r"^execution"):
                await runtime.start(gated, execution_id=bad)
            with pytest.raises(InvalidId, match=r"^fork "):
                await runtime.fork("x", new_id=bad)
            with pytest.raises(InvalidId, match=r"^delivery "):
                await runtime.deliver("x", "go", delivery_id=bad)
        return [entry.execution_id for entry in await bench.store.entries()], await bench.store.executions()

    assert (["x"], []) == trio.run(story)


@pytest.mark.parametrize("odd", ["a\0b", "\ud800"])
def test_a_delivery_on_a_text_that_some_store_cannot_keep_is_refused(bench, odd):
    # K-RUN-2: stores keep what it is on, and its key, beside the payload
    async def story():
        async with bench.process(gated) as runtime:
            await runtime.start(gated, execution_id="x")
            with pytest.raises(InvalidId, match=r"is on, .* lone surrogate"):
                await runtime.deliver("x", odd, delivery_id="d")
            with pytest.raises(InvalidId, match="correlation key of delivery 'd'"):
                await runtime.deliver("x", "go", correlation_key=odd, delivery_id="d")
            with pytest.raises(InvalidId, match="flow"):
                Flow(id=odd, function=gated.function)
        return await bench.store.executions()

    assert [] == trio.run(story)


def test_the_longest_ids_are_kept_together(make_bench, tmp_path):
    # K-RUN-1, K-RUN-2
    async def story():
        async with open_sqlite(tmp_path / "s.db", inline=True) as store:
            bench = make_bench(store=store)
            async with bench.process(gated) as runtime:
                handle = await runtime.start(gated, execution_id="é" * (ID_BYTES_MAX // 2))
                await runtime.deliver(handle.execution_id, "go", 1, delivery_id="d" * ID_BYTES_MAX)
                return await handle.result()

    assert 1 == trio.run(story)


def test_a_child_whose_id_would_be_too_long_is_refused_where_it_is_decided(bench):
    # K-CHILD-1: nobody could start it, and its parent would wait for ever
    @flow
    async def parent(ctx, _input):
        await await_child(ctx, "k" * ID_BYTES_MAX, gated)

    async def story():
        await bench.run(parent)
        return (await bench.state(parent))["error"]["type"], await bench.log()

    error, log = trio.run(story)
    assert ("InvalidId", [("EXECUTION_STARTED",), ("EXECUTION_FAILED",)]) == (error, log)


def test_children_of_later_beginnings_have_ids_of_their_own():
    # K-CHILD-1, K-RUN-7
    assert ["x::a", "x::a~1", "x::a~2"] == [child_id_of("x", "a", n) for n in range(3)]
