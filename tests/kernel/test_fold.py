"""The fold: state is a pure function of the log (K-FOLD)."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.errors import CorruptLog, StoreVersion
from kernel.events import EVENT_SCHEMA_VERSION, Envelope, StoredEvent, hash_of, parse, seal
from kernel.fold import HANDLERS, FoldPass, fold_events
from kernel.jsonform import encode
from kernel.lifecycle import decode_snapshot, encode_snapshot
from kernel.state import EMPTY, count_emits, get_decision
from kernel.vectors import load_fold_vectors

VECTORS = load_fold_vectors()
DIGEST = "00112233445566aa"  # goes to slots 6, a, a


def log(*events, execution_id="x") -> list[Envelope]:
    """A chained log of (type, payload) or (type, payload, stamp)."""
    made: list[Envelope] = []
    for sequence, (type_, payload, *stamp) in enumerate(events):
        made.append(
            seal(
                execution_id=execution_id,
                sequence=sequence,
                type=type_,
                payload_text=encode(payload),
                timestamp_ms=1,
                append_id=f"w/{sequence}",
                previous_hash=made[-1].hash if made else "0" * 64,
                stamp=stamp[0] if stamp else None,
            )
        )
    return made


STARTED = ("EXECUTION_STARTED", {"flowId": "f", "flowVersion": None, "input": None})

# ---- vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_fold_comes_to_what_the_vectors_say(vector):
    # K-FOLD-7
    assert vector.state == fold_events(vector.events, vector.initial)


def test_every_handler_has_a_vector():
    # K-FOLD-7
    assert set(HANDLERS) <= {event.type for vector in VECTORS for event in vector.events}


class IgnoresMetadata(FoldPass):
    def count_stamp(self, event):
        pass


class StampsUnknownTypesOnly(FoldPass):
    def count_stamp(self, event):
        if event.type not in HANDLERS:
            super().count_stamp(event)


class DropsOldSegments(FoldPass):
    def apply(self, event):
        super().apply(event)
        if event.type == "EXECUTION_RESUMED":
            self.state["variables"] = {k: v for k, v in self.state["variables"].items() if k != "_flowEmits"}


class OtherSeq(FoldPass):
    """A fold that gets the sequence of decisions from somewhere else."""

    def apply(self, event):
        known = dict(self.state["variables"].get("_decisions", {}))
        super().apply(event)
        if event.type == "DECISION_RECORDED":
            decisions = self.own_decisions()
            decision_id = event.payload["decisionId"]
            decisions[decision_id] = self.entry(event, known.get(decision_id), decisions)
            self.reorder(decisions)

    def entry(self, event, known, decisions):
        raise NotImplementedError

    def reorder(self, decisions):
        pass


class MapOrder(OtherSeq):
    """`seq` is the place in the map, whose keys some stores order by length and then bytes."""

    def entry(self, event, known, decisions):
        return known or {"choice": event.payload["choice"]}

    def reorder(self, decisions):
        for place, key in enumerate(sorted(decisions, key=lambda key: (len(key), key))):
            decisions[key] = {**decisions[key], "seq": place}


class WithoutSeq(OtherSeq):
    def entry(self, event, known, decisions):
        return known or {"choice": event.payload["choice"]}


class PayloadSeq(OtherSeq):
    def entry(self, event, known, decisions):
        return known or {"choice": event.payload["choice"], "seq": event.payload.get("seq", event.sequence)}


class LastSeq(OtherSeq):
    def entry(self, event, known, decisions):
        kept = known or {"choice": event.payload["choice"], "seq": 0}
        return {**kept, "seq": event.sequence} if "seq" in kept else kept


class LastChoice(OtherSeq):
    def entry(self, event, known, decisions):
        return {"choice": event.payload["choice"], **({"seq": known["seq"]} if known else {"seq": event.sequence})}


class InventsLegacySeq(OtherSeq):
    def entry(self, event, known, decisions):
        return {"seq": event.sequence, **(known or {"choice": event.payload["choice"]})}


class After(FoldPass):
    """A fold that does something else after one type of event."""

    type: str

    def apply(self, event):
        before = copy.deepcopy(self.state)
        super().apply(event)
        if event.type == self.type:
            self.spoil(before)

    def spoil(self, before):
        raise NotImplementedError


class ForgetsArrivals(After):
    type = "GATE_DELIVERED"

    def spoil(self, before):
        self.state["gate"].pop("arrived")


class ForgetsThatARetryIsDue(After):
    type = "STEP_FAILED"

    def spoil(self, before):
        for entry in self.state["steps"].values():
            entry.pop("retryDue", None)


class ForgetsDeliveriesAtANewBeginning(After):
    type = "EXECUTION_CONTINUED"

    def spoil(self, before):
        self.state["deliveries"] = {}


class KeepsStepsAtANewBeginning(After):
    type = "EXECUTION_CONTINUED"

    def spoil(self, before):
        self.state["steps"] = before["steps"]


class LeavesACancelledExecutionParked(After):
    type = "CANCEL_REQUESTED"

    def spoil(self, before):
        self.state["status"] = before["status"]


class ForgetsAWord(After):
    type = "EFFECT_RESOLVED"

    def spoil(self, before):
        self.state["steps"] = before["steps"]


WRONG_FOLDS = [IgnoresMetadata, StampsUnknownTypesOnly, DropsOldSegments, MapOrder, WithoutSeq]
WRONG_FOLDS += [ForgetsArrivals, ForgetsThatARetryIsDue, ForgetsDeliveriesAtANewBeginning, KeepsStepsAtANewBeginning]
WRONG_FOLDS += [LeavesACancelledExecutionParked, ForgetsAWord]
WRONG_FOLDS += [PayloadSeq, LastSeq, LastChoice, InventsLegacySeq]


@pytest.mark.parametrize("wrong", WRONG_FOLDS)
def test_a_wrong_fold_fails_a_vector(wrong):
    # K-FOLD-7, ADR 0102 D5, ADR 0128
    def passes(vector) -> bool:
        fold = wrong(vector.initial)
        try:
            for event in vector.events:
                fold.apply(event)
        except KeyError:
            return False
        return fold.release() == vector.state

    assert not all(passes(vector) for vector in VECTORS)


# ---- laws ------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "10", "2"])
payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "x", "é", "\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)
stamps = st.none() | st.builds("{:013x}{}".format, st.integers(0, 2), st.sampled_from(["000", "001", "0f0", "f00"]))
facts = st.one_of(
    st.builds(
        lambda n, p: ("STEP_STARTED", {"step": n, "attempt": 1, "inputDigest": None, "input": p}), names, payloads
    ),
    st.builds(lambda n, p: ("STEP_COMPLETED", {"step": n, "output": p}), names, payloads),
    st.builds(
        lambda n, r, p: ("STEP_FAILED", {"step": n, "reason": r, "failure": p}),
        names,
        st.sampled_from(["typed", "error", "timeout"]),
        payloads,
    ),
    st.builds(lambda n: ("STEP_CANCELLED", {"step": n}), names),
    st.builds(lambda n: ("EFFECT_INDOUBT", {"step": n}), names),
    st.builds(lambda n, p: ("DECISION_RECORDED", {"decisionId": n, "choice": p}), names, payloads),
    st.builds(lambda n: ("EXECUTION_SUSPENDED", {"on": n, "correlationKey": None, "due": None}), names),
    st.builds(lambda n, p: ("EXECUTION_RESUMED", {"on": n, "payload": p, "deliveryId": n}), names, payloads),
    st.builds(lambda n, p: ("note." + n, p), names, payloads),
)
logs = st.lists(st.tuples(facts, stamps), max_size=12).map(
    lambda made: log(STARTED, *((type_, payload, stamp) for (type_, payload), stamp in made))
)


@settings(max_examples=150, deadline=None)
@given(logs)
def test_state_does_not_depend_on_where_a_log_is_split(events):
    # K-FOLD-1
    whole = fold_events(events)
    for k in range(len(events) + 1):
        head = fold_events(events[:k])
        before = copy.deepcopy(head)
        assert whole == fold_events(events[k:], head)
        assert before == head, "folding on a state changes that state"


@settings(max_examples=150, deadline=None)
@given(logs)
def test_a_snapshot_and_the_tail_fold_to_the_whole(events):
    # K-FOLD-1, K-FOLD-4: the snapshot goes through text, as a store keeps it
    whole = fold_events(events)
    for k in range(1, len(events) + 1):
        snapshot = decode_snapshot(encode_snapshot(fold_events(events[:k]), {}))
        assert whole == fold_events(events[k:], snapshot.state)


@settings(max_examples=100, deadline=None)
@given(logs)
def test_folding_event_by_event_is_folding_in_one_pass(events):
    # K-FOLD-1, K-FOLD-3
    one_by_one = FoldPass()
    for event in events:
        one_by_one.apply(event)
        one_by_one.release()
    assert fold_events(events) == one_by_one.release()


@settings(max_examples=100, deadline=None)
@given(logs)
def test_emits_are_counted_as_a_flat_count_would(events):
    # K-FOLD-2
    flat: dict[str, int] = {}
    for event in events:
        if "flowEmit" in event.metadata:
            flat[event.metadata["flowEmit"]] = flat.get(event.metadata["flowEmit"], 0) + 1
    state = fold_events(events)
    assert flat == {digest: count_emits(state, digest) for digest in flat}
    assert bool(flat) == ("_flowEmits" in state["variables"])


# ---- the trie --------------------------------------------------------------------------------------------------------


def test_the_trie_is_indexed_by_the_last_three_digits_with_counts_in_leaves():
    # K-FOLD-3, ADR 0102 D5
    state = fold_events(log(STARTED, ("note", None, DIGEST), ("note", None, DIGEST)))
    root = state["variables"]["_flowEmits"]
    assert [6] == [slot for slot, node in enumerate(root) if node is not None]
    assert ([16, 16, 16], {DIGEST: 2}) == ([len(root), len(root[6]), len(root[6][10])], root[6][10][10])


def test_a_live_commit_copies_the_path_to_its_leaf_and_shares_the_rest():
    # K-FOLD-3, ADR 0102 D5
    siblings = ["0000000000000baa", "00000000000006ba", "00000000000006ab"]  # part at level 1, 2, 3
    events = log(STARTED, *(("note", None, digest) for digest in [DIGEST, *siblings]), ("note", None, DIGEST))
    older = fold_events(events[:-1])
    kept = copy.deepcopy(older)
    newer = fold_events(events[-1:], older)
    old, new = older["variables"]["_flowEmits"], newer["variables"]["_flowEmits"]
    assert kept == older
    assert [True, True, True] == [old[11] is new[11], old[6][11] is new[6][11], old[6][10][11] is new[6][10][11]]
    assert [False, False, False] == [old[6] is new[6], old[6][10] is new[6][10], old[6][10][10] is new[6][10][10]]


def test_a_pass_over_many_events_updates_the_nodes_it_owns():
    # K-FOLD-3
    events = log(STARTED, ("note", None, DIGEST), ("note", None, DIGEST))
    fold = FoldPass()
    for event in events[:-1]:
        fold.apply(event)
    leaf = fold.state["variables"]["_flowEmits"][6][10][10]
    fold.apply(events[-1])
    assert leaf is fold.state["variables"]["_flowEmits"][6][10][10]


def test_a_log_that_never_stamps_never_gains_the_key():
    # K-FOLD-2
    assert {} == fold_events(log(STARTED, ("note", 1), ("note", {"flowEmit": DIGEST})))["variables"]


# ---- decisions -------------------------------------------------------------------------------------------------------


def test_a_decision_has_its_choice_and_the_sequence_of_its_first_record():
    # K-FOLD-5, ADR 0128
    again = ("DECISION_RECORDED", {"choice": "other", "decisionId": "d", "seq": 7})
    state = fold_events(log(STARTED, ("DECISION_RECORDED", {"choice": "first", "decisionId": "d"}), again))
    assert {"choice": "first", "seq": 1} == get_decision(state, "d")


def test_decision_order_survives_a_store_that_reorders_keys():
    # K-FOLD-5, K-RUN-6, ADR 0128: jsonb orders keys by length, then bytes
    made = [("DECISION_RECORDED", {"choice": None, "decisionId": key}) for key in ("route-b", "route-a", "10", "2")]
    decisions = decode_snapshot(encode_snapshot(fold_events(log(STARTED, *made)), {})).state["variables"]["_decisions"]
    assert ["route-b", "route-a", "10", "2"] == sorted(decisions, key=lambda key: decisions[key]["seq"])


# ---- versions and positions ------------------------------------------------------------------------------------------


def of_version(version: str) -> StoredEvent:
    text = log(STARTED)[0].text.replace(EVENT_SCHEMA_VERSION, version)
    return StoredEvent(0, text, hash_of(text))


def test_an_event_of_a_newer_major_is_refused():
    # K-FOLD-7
    with pytest.raises(StoreVersion, match=r"schema 2\.0\.0"):
        parse(of_version("2.0.0"))


@pytest.mark.parametrize("version", ["1.12.0", "1.99.0", "0.9.0"])
def test_older_versions_and_newer_minors_are_read(version):
    # K-FOLD-7
    assert "f" == fold_events([parse(of_version(version))])["flowId"]


def test_unknown_types_change_the_position_only():
    # K-FOLD-7
    events = log(STARTED, ("SOMETHING_NEW", {"step": "a", "flowId": "other"}))
    expected = {**fold_events(events[:1]), "lastSequence": 1, "lastHash": events[1].hash}
    assert expected == fold_events(events)


def test_a_gap_in_the_log_is_no_state():
    # K-LOG-1
    events = log(STARTED, ("a", None), ("b", None))
    with pytest.raises(CorruptLog, match="from event 0 to 2"):
        fold_events([events[0], events[2]])


def test_the_empty_state_is_never_changed():
    # K-FOLD-1
    before = copy.deepcopy(EMPTY)
    fold_events([event for vector in VECTORS[:1] for event in vector.events])
    assert before == EMPTY
