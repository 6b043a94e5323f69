"""Code and kernel change under executions that are under way."""

from __future__ import annotations

import trio

from kernel import flow
from kernel.events import GENESIS_HASH, StoredEvent, hash_of, parse
from kernel.jsonform import encode
from kernel.replay import Outcome, replay

GOLDEN = [  # as schema 1.24.0 has it: no digests, no attempts, no ids of appends and deliveries
    ("EXECUTION_STARTED", {"flowId": "old", "flowVersion": None, "input": {"n": 2}}),
    ("DECISION_RECORDED", {"decisionId": "uuid:#1", "choice": "3f2a"}),
    ("STEP_STARTED", {"step": "a", "toolId": "a", "input": "3f2a"}),
    ("STEP_COMPLETED", {"step": "a", "output": 2}),
    ("DECISION_RECORDED", {"decisionId": "random:#1", "choice": 0.25}),
    ("EXECUTION_SUSPENDED", {"on": "go", "correlationKey": None}),
]


def _golden():
    log, previous = [], GENESIS_HASH
    for sequence, (type, payload) in enumerate(GOLDEN):
        fields = {"executionId": "x", "payload": payload, "previousHash": previous, "schemaVersion": "1.24.0"}
        text = encode({**fields, "metadata": {}, "sequence": sequence, "timestamp": 1, "type": type})
        previous = hash_of(text)
        log.append(parse(StoredEvent(sequence, text, previous)))
    return log


def test_b75_a_log_of_the_last_schema_is_served_by_this_kernel(bench, booked):
    """An upgrade of the engine draws its ids in another order, and old logs do not replay."""
    ledger = []

    @flow(id="old")
    async def old(ctx, input):
        a = await ctx.run(booked(ledger, "a"), await ctx.uuid())
        return [input["n"], a, await ctx.random(), await ctx.suspend("go")]

    async def story():
        log = _golden()
        outcomes = [(await replay(old, log[:n])).outcome for n in range(1, len(log) + 1)]
        await bench.store.append("x", 0, log, fence=0, flow_id="old", status="suspended", due_ms=None)
        await bench.deliver(old, on="go", payload="on", id="d")
        new = (await bench.envelopes())[len(log) :]
        return outcomes, [event.type for event in new], (await bench.state(old))["output"]

    outcomes, new, output = trio.run(story)
    assert [Outcome.UNDECIDED if type == "STEP_STARTED" else Outcome.SAME for type, _ in GOLDEN] == outcomes
    assert ["EXECUTION_RESUMED", "EXECUTION_COMPLETED"] == new, "nothing else is appended"
    assert ([], [2, 2, 0.25, "on"]) == (ledger, output)


def test_b77_a_step_put_in_front_of_others_moves_none_of_them(bench, booked):
    """The place to go on from is an index, and a new step shifts it."""
    # K-FLOW-9 decides: identity, not position; what is new runs, what is recorded is served.
    ledger = []

    def version(*later):
        @flow(id="f")
        async def f(ctx, _input):
            outputs = [await ctx.run(booked(ledger, "a", "a"))]
            await ctx.suspend("go")
            return outputs + [await ctx.run(booked(ledger, id, id)) for id in later]

        return f

    new = version("NEW", "b", "c")

    async def story():
        await bench.run(version("b", "c"))
        await bench.deliver(new, on="go", id="d")
        return (await bench.state(new))["output"]

    assert ["a", "NEW", "b", "c"] == trio.run(story) == ledger
