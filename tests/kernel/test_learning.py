"""Evidence and credit: the same wherever an execution was compacted, on every store (K-LEARN, ADR 0128)."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from kernel import flow
from kernel.adapters.memory import MemoryStore
from kernel.errors import CorruptLog, UnknownExecution
from kernel.events import parse, seal
from kernel.fold import fold_events
from kernel.jsonform import encode
from kernel.learning import EvidenceEvent, evidence_events, load_evidence, success, trajectories
from kernel.lifecycle import load

ORDER = ["route-b", "route-a", "10", "2"]  # neither sorted, nor as integers first, nor by length and bytes
CREDIT = {"route-b": 0.125, "route-a": 0.25, "10": 0.5, "2": 1.0}


@flow
async def policy(ctx, _input):
    for n, decision_id in enumerate(ORDER):
        await ctx.decide(decision_id, lambda n=n: {"arm": n})
        await ctx.emit("moved", n)
    return "there"


@flow
async def lost(ctx, _input):
    await ctx.decide("route-b", lambda: 1)
    raise ValueError("no way on")


class LikeJsonb(MemoryStore):
    """Reorders the keys of every object in a snapshot as jsonb does: by length, then by bytes."""

    async def load(self, execution_id):
        snapshot = await super().load(execution_id)
        if snapshot is None:
            return None

        def reordered(pairs):
            return dict(sorted(pairs, key=lambda pair: (len(pair[0].encode()), pair[0].encode())))

        return attrs.evolve(snapshot, text=json.dumps(json.loads(snapshot.text, object_pairs_hook=reordered)))


@pytest.fixture(params=["memory", "like_jsonb", "sqlite", "postgresql"])
def open_store(request, opener):
    """What opens a store of each kind."""
    return (lambda: contextlib.nullcontext(LikeJsonb())) if request.param == "like_jsonb" else opener(request.param)


async def run(bench, store, flow, **more):
    """Run a flow to its end on a store."""
    bench.store = store
    async with bench.process(flow, **more) as runtime:
        await runtime.start(flow, execution_id="x")
        await runtime.wait_idle()


def credit(evidence, discount=0.5, **more):
    return {one.decision_id: one.credit for one in trajectories(evidence, discount, **more)}


def sealed(*events):
    """A chained log of (type, payload)."""
    made = []
    for sequence, (kind, payload) in enumerate(events):
        made.append(
            seal(
                execution_id="x",
                sequence=sequence,
                type=kind,
                payload_text=encode(payload),
                timestamp_ms=1,
                append_id=f"w/{sequence}",
                previous_hash=made[-1].hash if made else "0" * 64,
            )
        )
    return made


LOG = sealed(
    ("EXECUTION_STARTED", {"flowId": "policy", "input": None}),
    *(("DECISION_RECORDED", {"decisionId": key, "choice": n}) for n, key in enumerate(ORDER)),
    ("moved", 1),
    ("EXECUTION_COMPLETED", {"output": "there"}),
)


def state_with(*decisions, status="completed", last=9):
    """A folded state, with decisions as (id, seq), in this order; seq None for a legacy entry."""
    entries = {key: {"choice": key} | ({} if seq is None else {"seq": seq}) for key, seq in decisions}
    return fold_events([]) | {"status": status, "lastSequence": last, "variables": {"_decisions": entries}}


def ids(evidence):
    return [(event.payload["decisionId"], event.sequence) for event in evidence if event.type == "DECISION_RECORDED"]


# ---- equal credit ----------------------------------------------------------------------------------------------------


def test_a_compacted_run_gives_evidence_and_credit_of_an_uncompacted_one(bench, open_store, request):
    # K-LEARN-1, K-LEARN-2, K-RUN-6
    async def story():
        async with open_store() as store:
            await run(bench, store, policy)
            whole = await load_evidence(store.stores, "x")
            async with bench.process() as runtime:
                await runtime.compact("x")
            left, kept = await store.read_from("x", 10), await store.load("x")
            return whole, await load_evidence(store.stores, "x"), left, list(decisions_in(kept))

    whole, compacted, left, kept = trio.run(story)
    assert [] == list(left), "the log is gone"
    assert whole == compacted
    assert [*ORDER] == [key for key, _ in ids(compacted)]
    assert CREDIT == credit(compacted)
    for discount in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert trajectories(whole, discount) == trajectories(compacted, discount)
    in_order_of_jsonb = ["2", "10", "route-a", "route-b"]
    if request.node.callspec.params["open_store"] in ("like_jsonb", "postgresql"):
        assert in_order_of_jsonb == kept, "the store has reordered the keys"
    else:
        assert in_order_of_jsonb != kept


def decisions_in(snapshot):
    """The decision ids in a snapshot, in the order of its text."""
    return json.loads(snapshot.text)["state"]["variables"]["_decisions"]


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_evidence_is_the_same_for_every_cut_of_the_log(bench, open_store, every):
    # K-LEARN-1: a snapshot somewhere, a tail after it, and the log cut anywhere up to the snapshot
    async def story():
        bench.snapshot_every = every
        seen = []
        async with open_store() as store:
            await run(bench, store, policy)
            state = (await load(store.stores, "x", projections=bench.projections)).fold.release()
            log = await bench.envelopes()
            whole = evidence_events(state, log)
            position = (await store.load("x")).sequence
            for through in range(position + 1):
                await store.truncate_prefix("x", through)
                tail = [parse(stored) for stored in await store.read_from("x", through + 1)]
                seen.append(evidence_events(state, tail))
                seen.append(await load_evidence(store.stores, "x"))
        return whole, seen

    whole, seen = trio.run(story)
    assert len(seen) >= 2
    assert [whole] * len(seen) == seen
    assert CREDIT == credit(whole)


@given(st.integers(0, len(ORDER) + 3), st.permutations(ORDER))
def test_evidence_does_not_depend_on_the_order_of_the_map(cut, keys):
    # K-LEARN-1: whatever a store makes of the keys
    log = LOG
    state = fold_events(log)
    decisions = state["variables"]["_decisions"]
    state = state | {"variables": state["variables"] | {"_decisions": {key: decisions[key] for key in keys}}}
    assert evidence_events(fold_events(log), log) == evidence_events(state, log[cut:])


def test_credit_by_the_order_of_the_map_would_be_another(bench):
    # ADR 0128's failing scenario: this is what the other tests would see without `seq`
    async def story():
        store = LikeJsonb()
        await run(bench, store, policy)
        async with bench.process() as runtime:
            await runtime.compact("x")
        return (await load(store.stores, "x")).fold.release()

    state = trio.run(story)
    assert CREDIT == credit(evidence_events(state, []))
    unstamped = copy.deepcopy(state)
    for entry in unstamped["variables"]["_decisions"].values():
        del entry["seq"]
    assert CREDIT != credit(evidence_events(unstamped, []))
    assert dict.fromkeys(ORDER, 1.0) == credit(evidence_events(unstamped, []), discount=1.0), "order-free, so exact"


def test_two_routes_are_not_swapped_by_a_store(bench, open_store):
    # ADR 0128: route-b then route-a, of the same length, so jsonb lists route-a first
    @flow
    async def two(ctx, _input):
        await ctx.decide("route-b", lambda: 1)
        await ctx.decide("route-a", lambda: 2)

    async def story():
        async with open_store() as store:
            await run(bench, store, two)
            async with bench.process() as runtime:
                await runtime.compact("x")
            return await load_evidence(store.stores, "x")

    assert {"route-b": 0.5, "route-a": 1.0} == credit(trio.run(story))


# ---- evidence --------------------------------------------------------------------------------------------------------


def test_rebuilt_decisions_have_seq_as_sequence_and_not_in_the_payload():
    # K-LEARN-1
    state = state_with(("b", 3), ("a", 1), last=7)
    assert [
        EvidenceEvent(type="DECISION_RECORDED", sequence=1, payload={"choice": "a", "decisionId": "a"}),
        EvidenceEvent(type="DECISION_RECORDED", sequence=3, payload={"choice": "b", "decisionId": "b"}),
        EvidenceEvent(type="EXECUTION_COMPLETED", sequence=7, payload={"output": None}),
    ] == evidence_events(state, [])


def test_legacy_entries_come_first_in_map_order_with_negative_ordinals():
    # K-LEARN-1
    state = state_with(("new-b", 8), ("old-b", None), ("new-a", 5), ("old-a", None), ("10", None))
    assert [("old-b", -3), ("old-a", -2), ("10", -1), ("new-a", 5), ("new-b", 8)] == ids(evidence_events(state, []))


@pytest.mark.parametrize("keys", [*itertools.permutations(["b", "a", "10"])])
def test_a_legacy_snapshot_reads_in_map_order(keys):
    # ADR 0128: no migration, today's behaviour
    state = state_with(*((key, None) for key in keys))
    assert [*keys] == [key for key, _ in ids(evidence_events(state, []))]


def test_repeats_are_dropped():
    # K-LEARN-1: of an absorbed entry, of a legacy one, and within the log
    log = sealed(
        *[("x", None)] * 4,
        ("DECISION_RECORDED", {"decisionId": "stamped", "choice": "again"}),
        ("DECISION_RECORDED", {"decisionId": "legacy", "choice": "again"}),
        ("DECISION_RECORDED", {"decisionId": "fresh", "choice": "first"}),
        ("DECISION_RECORDED", {"decisionId": "fresh", "choice": "again"}),
    )
    state = fold_events(log[4:], state_with(("stamped", 2), ("legacy", None), last=3) | {"lastHash": log[3].hash})
    evidence = evidence_events(state, log[4:])
    assert [("legacy", -1), ("stamped", 2), ("fresh", 6)] == ids(evidence)
    assert ["legacy", "stamped", "first"] == [event.payload["choice"] for event in evidence[:3]]


def test_a_complete_log_tells_what_a_legacy_snapshot_has_lost():
    # K-LEARN-1: nothing was absorbed *before* the log's first row
    log = sealed(
        ("EXECUTION_STARTED", {"flowId": "f", "input": None}),
        ("DECISION_RECORDED", {"decisionId": "b", "choice": 1}),
        ("DECISION_RECORDED", {"decisionId": "a", "choice": 2}),
    )
    assert [("b", 1), ("a", 2)] == ids(evidence_events(state_with(("a", None), ("b", None), last=2), log))


def test_a_seq_in_a_payload_is_ignored():
    # K-FOLD-5
    log = sealed(("x", None), ("DECISION_RECORDED", {"decisionId": "a", "choice": 2, "seq": 99}))
    for tail in (log, []):
        assert [("a", 1)] == ids(evidence_events(fold_events(log), tail))


def test_a_log_ahead_of_the_state_counts_and_one_that_does_not_join_it_is_refused():
    # K-LEARN-1: the two are read one after the other, while the execution goes on
    log = sealed(
        ("EXECUTION_STARTED", {"flowId": "f", "input": None}),
        ("DECISION_RECORDED", {"decisionId": "b", "choice": 1}),
        ("DECISION_RECORDED", {"decisionId": "a", "choice": 2}),
        ("EXECUTION_COMPLETED", {"output": 5}),
    )
    whole = evidence_events(fold_events(log), log)
    for k in range(len(log) + 1):
        assert whole == evidence_events(fold_events(log[:k]), log)
    with pytest.raises(CorruptLog, match="begins at 3, its state ends at 1"):
        evidence_events(fold_events(log[:2]), log[3:])


def test_evidence_of_an_unknown_execution_is_an_error(bench):
    # K-LEARN-1
    with pytest.raises(UnknownExecution):
        trio.run(load_evidence, bench.store.stores, "unknown")


def test_evidence_is_a_copy():
    # K-LOG-4
    log = sealed(("x", None), ("DECISION_RECORDED", {"decisionId": "a", "choice": {"deep": []}}))
    state = fold_events(log)
    evidence_events(state, log)[0].payload["choice"]["deep"].append("changed")
    assert {"deep": []} == state["variables"]["_decisions"]["a"]["choice"]


# ---- credit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("discount", "wanted"),
    [(1.0, [1.0, 1.0, 1.0]), (0.5, [0.25, 0.5, 1.0]), (0.0, [0.0, 0.0, 1.0])],
)
def test_credit_is_the_reward_discounted_by_the_decisions_after_it(discount, wanted):
    # K-LEARN-2: sequences far apart count as little as sequences side by side
    steps = trajectories(evidence_events(state_with(("a", 1), ("b", 2), ("c", 700), last=800), []), discount)
    assert wanted == [step.credit for step in steps]
    assert [2, 1, 0] == [step.distance for step in steps]


@pytest.mark.parametrize(("status", "wanted"), [("completed", 1.0), ("failed", 0.0), ("cancelled", 0.0)])
def test_only_a_completed_execution_has_succeeded(status, wanted):
    # K-LEARN-2
    assert {"a": wanted} == credit(evidence_events(state_with(("a", 1), status=status), []))


@pytest.mark.parametrize("status", ["running", "suspended", "blocked"])
def test_an_execution_that_has_not_ended_has_no_credit_yet(status):
    # K-LEARN-2: not a credit of zero
    evidence = evidence_events(state_with(("a", 1), status=status), [])
    assert (1, []) == (len(evidence), trajectories(evidence))


def test_a_reward_may_be_read_from_the_end(bench):
    # K-LEARN-2: what a checkpoint keeps of the end is what it is computed from
    async def story():
        rewards = []
        await bench.run(lost)
        for _ in range(2):
            evidence = await load_evidence(bench.store.stores, "x")
            rewards.append(credit(evidence, reward=lambda end: -float(len(end.payload["error"]["message"]))))
            async with bench.process() as runtime:
                await runtime.compact("x")
        return rewards

    assert [{"route-b": -9.0}] * 2 == trio.run(story)
    end = EvidenceEvent(type="EXECUTION_FAILED", sequence=1, payload={})
    assert 0.0 == success(end)


def test_evidence_of_several_executions_in_one_is_refused():
    # K-LEARN-2: credit would run from one into the other
    evidence = evidence_events(state_with(("a", 1)), [])
    with pytest.raises(ValueError, match="several executions"):
        trajectories(evidence * 2)


@pytest.mark.parametrize("discount", [-0.1, 1.1, float("nan")])
def test_a_discount_outside_its_range_is_refused(discount):
    # K-LEARN-2
    with pytest.raises(ValueError, match="from 0 to 1"):
        trajectories([], discount)
