"""What a flow is handed live is what it is handed on a re-run."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json

import pytest
import trio

from kernel import NoJsonForm, TypedFailure, flow
from kernel.adapters.sqlite import open_sqlite


class Colour(enum.Enum):
    RED = "red"


class Kind(enum.StrEnum):
    A = "a"


NAIVE = datetime.datetime(2020, 1, 1)
REFUSED = [
    {1: "a"},
    {1: "a", "1": "b"},
    2**63,
    decimal.Decimal("1.5"),
    NAIVE,
    NAIVE.replace(tzinfo=datetime.UTC),
    b"bytes",
    {1, 2},
    Colour.RED,
    Kind.A,
    collections.defaultdict(int, a=1),
]
SERVED = [
    ((1, 2), [1, 2]),
    (float("nan"), None),
    (float("inf"), None),
    (-0.0, 0),
    (1e16, 1e16),
    (0.1, 0.1),
    ("\ud800 lone", "\ud800 lone"),
    ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
]


@pytest.mark.parametrize(("value", "wanted"), [(v, NoJsonForm) for v in REFUSED] + SERVED, ids=repr)
def test_b69_a_value_is_refused_or_is_the_same_live_and_on_a_re_run(bench, booked, value, wanted):
    """A value changes its type on its way through the store, seen only after a resume."""
    # K-JSON-3 decides what is refused, by its path; K-JSON-1 what is recorded; K-LOG-4: that, on the first run too.
    ledger, seen = [], []

    @flow
    async def makes(ctx, _input):
        try:
            seen.append(await ctx.run(booked(ledger, "s", lambda *_: {"items": [value]})))
        except NoJsonForm as error:
            seen.append(str(error))
        await ctx.sleep(1)

    async def story():
        await bench.run(makes)
        bench.clock.advance(1)
        await bench.recover(makes)

    trio.run(story)
    live, again = seen
    if wanted is NoJsonForm:
        assert live == again
        assert live.startswith("output of step 's'.items[0]")
        assert 2 == len(ledger)  # K-FLOW-2: an error is not served
    else:
        assert repr({"items": [wanted]}) == repr(live) == repr(again), "in value, type and order"
        assert 1 == len(ledger)


def test_b71_every_store_serves_the_same_values(make_bench, booked, tmp_path):
    """The store of the tests is more faithful than that of production."""

    def played(store, seen):
        bench = make_bench(store=store)

        @flow
        async def makes(ctx, input):
            seen.append(repr(input))
            for n, (value, _) in enumerate(SERVED):
                seen.append(repr(await ctx.run(booked([], f"s{n}", lambda *_, value=value: value))))
            seen.append(repr(await ctx.suspend("go")))
            return [value for value, _ in SERVED]

        async def play():
            await bench.run(makes, [value for value, _ in SERVED])
            await bench.deliver(makes, on="go", payload=SERVED[-1][0], id="d")
            seen.append(repr((await bench.state(makes))["output"]))
            return [event.text for event in await bench.envelopes()]

        return play()

    async def story():
        in_memory, on_disk = [], []
        async with open_sqlite(tmp_path / "store.db", inline=True) as store:
            on_disk.append(await played(store, on_disk))
        in_memory.append(await played(make_bench().store, in_memory))
        return in_memory, on_disk

    in_memory, on_disk = trio.run(story)
    assert 2 * len(SERVED) < len(in_memory)
    assert in_memory == on_disk


def test_b73_a_failure_is_the_same_to_the_bit_on_a_re_run(bench, booked):
    """The text of an error differs on a re-run, so what is computed from it does not match."""

    class Boom(TypedFailure):
        pass

    def boom(_ectx, _input):
        raise Boom({"code": 51, "at": (1, 2.0)})

    ledger, seen = [], []

    @flow
    async def reports(ctx, _input):
        try:
            await ctx.run(booked(ledger, "a", boom, failures=(Boom,)))
        except Boom as error:
            details = {"data": error.data, "text": str(error), "type": type(error).__name__, "args": error.args}
            seen.append(json.dumps(details))
            await ctx.run(booked(ledger, "report"), details)
        return await ctx.suspend("go")

    async def story():
        await bench.run(reports)
        await bench.deliver(reports, on="go", payload="on", id="d")
        return (await bench.state(reports))["output"]

    assert "on" == trio.run(story)
    assert (["a", "report"], 2, 1) == (ledger, len(seen), len(set(seen)))
    assert {"code": 51, "at": [1, 2]} == json.loads(seen[0])["data"]
