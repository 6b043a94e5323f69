"""Invariants: for each, the smallest traces that trip it and near misses that do not; and the judge itself."""

from __future__ import annotations

from typing import Self

import attrs
import pytest

from dst.durable import fencing
from dst.durable.invariants import (
    ALL,
    CHILDREN,
    FOLLOWED,
    CompensatorOnce,
    NoEmitLost,
    ParkedRests,
    ReplaySilent,
    RollbackFinished,
    SegmentStable,
)
from dst.durable.stores import LEGACY_SCHEMA, LIVE
from dst.durable.timing import TimerOnTime
from dst.invariants import Broken, Invariant, Judge, Judgement
from dst.trace import Record
from dst.verdict import Verdict
from kernel.events import GENESIS_HASH, Envelope, seal
from kernel.jsonform import encode

STAMP = "0123456789abcdef"


class Log:
    """Records of one execution's log, chained as they should be.  Mutable: it grows."""

    def __init__(self, execution: str = "x") -> None:
        self.execution = execution
        self.records: list[Record] = []
        self._sequence, self._hash = 0, GENESIS_HASH

    def seal(self, type: str, stamp: str | None = None, **payload: object) -> Envelope:
        envelope = seal(
            execution_id=self.execution,
            sequence=self._sequence,
            type=type,
            payload_text=encode(payload),
            timestamp_ms=0,
            append_id=f"w/{self._sequence}",
            previous_hash=self._hash,
            stamp=stamp,
        )
        self._sequence, self._hash = self._sequence + 1, envelope.hash
        return envelope

    def has(self, type: str, stamp: str | None = None, **payload: object) -> Self:
        """A fact of the kernel."""
        self.records.append((type, self.execution, self.seal(type, stamp, **payload)))
        return self

    def step(self, what: str, step: str, **more: object) -> Log:
        return self.has(f"STEP_{what}", step=step, **more)

    def note(self, kind: str, *rest: object) -> Log:
        self.records.append((kind, self.execution, *rest))
        return self

    def call(self, logical: str, content: str = "t/1", segment: int = 0) -> Log:
        return self.note("emit", segment, content, logical)

    def emitted(self, logical: str, facts: str = "", content: str = "t/1", segment: int = 0) -> Log:
        return self.note("emitted", segment, content, logical, facts, self.seal("t"))

    def acked(self, logical: str, content: str = "t/1", segment: int = 0, facts: str = "") -> Log:
        return self.note("acked", segment, content, logical, facts)

    def performed(self, step: str, attempt: int = 1, beginning: int = 0) -> Log:
        scope = f"{self.execution}~{beginning}" if beginning else self.execution
        self.records.append(("performed", "bank", "charge", f"{scope}/{step}", attempt))
        return self

    def decided(self, decision: str, choice: object) -> Self:
        return self.has("DECISION_RECORDED", decisionId=decision, choice=choice)

    def resolved(self, step: str, resolution: str) -> Log:
        return self.has("EFFECT_RESOLVED", step=step, resolution=resolution)

    def begins_anew(self) -> Log:
        return self.has("EXECUTION_CONTINUED", input=None)

    def claimed(self, owner: str, taken_from: str = "") -> Log:
        return self.note("claimed", owner, 1, taken_from)

    def final(self, row: str = "completed", end: str = "completed", gate: str = "", deliverable: str = "") -> Log:
        return self.note("final", row, end, gate, deliverable)


def started() -> Log:
    return Log().has("EXECUTION_STARTED")


def opened() -> Log:
    """A gate that is open."""
    return started().has("EXECUTION_SUSPENDED", on="message", due=None)


def passed(log: Log, delivery: str) -> Log:
    """A gate, passed with a delivery."""
    log.has("EXECUTION_SUSPENDED", on="message", due=None)
    return log.has("EXECUTION_RESUMED", deliveryId=delivery, on="message")


def fired(log: Log, due: int) -> Log:
    """A gate, passed by its timer at 0."""
    return log.has("EXECUTION_SUSPENDED", on="TIMER", due=due).has("EXECUTION_RESUMED", on="TIMER_FIRED")


SPEC, WAITS = {"childId": "x::c", "flowId": "f", "input": None}, "CHILD_DONE/x::c"


class Family(Log):
    """Records of a parent `x`, and of its child `x::c`."""

    def child(self, type: str, **payload: object) -> Family:
        self.records += Log("x::c").has(type, **payload).records
        return self

    def heard(self, payload: object) -> Family:
        return self.has("EXECUTION_RESUMED", on="CHILD_DONE", correlationKey="x::c", payload=payload)


def parked() -> Family:
    return Family().decided("child:c", SPEC).has("EXECUTION_SUSPENDED", on="CHILD_DONE", correlationKey="x::c")


def ended(status: str = "COMPLETED", **payload: object) -> Family:
    return parked().child("EXECUTION_STARTED").child(f"EXECUTION_{status}", **(payload or {"output": 1}))


def rolling_back() -> Log:
    """Two steps done, the third failed, and the rollback of the second has begun."""
    log = started()
    for step in ("reserve", "charge"):
        log.step("STARTED", step).step("COMPLETED", step)
    return log.step("STARTED", "ship").step("FAILED", "ship", reason="error").step("STARTED", "refund#compensate:1")


def both_undone(log: Log) -> Log:
    log.step("COMPLETED", "refund#compensate:1")
    return log.step("STARTED", "release#compensate:0").step("COMPLETED", "release#compensate:0")


def bad_position() -> Log:
    log = started()
    log.records.append(log.records[0])
    return log


def bad_chain() -> Log:
    log, other = started(), Log().has("EXECUTION_STARTED", other=True)
    log._hash = other._hash
    return log.step("STARTED", "a")


def twice_decided_by_an_older_kernel() -> Log:
    log = started().decided("a", 1).decided("a", 2)
    kind, execution, envelope = log.records[-1]
    log.records[-1] = (kind, execution, attrs.evolve(envelope, schema_version=LEGACY_SCHEMA))
    return log


TRIPS = {  # invariant: traces of which each breaks it once
    "no-emit-lost": (
        started().call("a#1").acked("a#1").has("EXECUTION_COMPLETED"),
        started().call("a#1").acked("a#1").has("EXECUTION_SUSPENDED"),
        started().call("a#1").emitted("a#1").acked("a#1").call("b#1").acked("b#1").has("EXECUTION_FAILED"),
        started().call("a#1").emitted("a#1", content="u/1").acked("a#1").has("EXECUTION_CANCELLED"),
        started().call("a#1").emitted("a#1", segment=1).acked("a#1").has("EXECUTION_COMPLETED"),
        started().call("a#1").emitted("a#1").acked("a#1").begins_anew().acked("a#1").has("EXECUTION_COMPLETED"),
    ),
    "emit-once": (
        started().call("a#1").emitted("a#1").acked("a#1").call("a#1").emitted("a#1"),
        started().call("a#1").emitted("a#1").call("b#1").emitted("b#1").call("a#1").emitted("a#1"),
        started().emitted("", facts="I").call("a#1").emitted("a#1"),  # a fork is served what it has inherited
    ),
    "step-completes-once": (
        started().step("FAILED", "a", reason="typed").step("COMPLETED", "a"),
        started().has("EFFECT_RESOLVED", step="a", resolution="completed").step("COMPLETED", "a"),
        started().step("COMPLETED", "a").step("COMPLETED", "a"),
        started().note("handed", "step", "a", ""),
        started().resolved("a", "completed").step("COMPLETED", "a"),
        started().note("handed", "step", "a", "").begins_anew().step("COMPLETED", "a"),
    ),
    "effect-accounted": (
        started().performed("a"),
        started().step("STARTED", "a", attempt=1).performed("a", attempt=2),
        started().step("STARTED", "a", attempt=1).performed("a").performed("a"),
        started().step("STARTED", "a", attempt=1).step("STARTED", "a", attempt=1).performed("a"),
        started().step("STARTED", "b", attempt=1).performed("a"),
    ),
    "compensator-once": (
        rolling_back().step("COMPLETED", "refund#compensate:1").step("COMPLETED", "refund#compensate:1"),
        rolling_back().has("EXECUTION_FAILED"),
        started().step("STARTED", "release#compensate:0").step("STARTED", "refund#compensate:1"),
    ),
    "rollback-finished": (
        rolling_back().step("STARTED", "ship").step("COMPLETED", "ship"),
        rolling_back().step("COMPLETED", "refund#compensate:1").has("EXECUTION_FAILED"),
        rolling_back().step("COMPLETED", "refund#compensate:1").has("EXECUTION_COMPLETED"),
    ),
    "log-sound": (bad_position(), bad_chain(), started().has("STEP_STARTED", stamp=STAMP, step="a")),
    "terminal-once": (
        started().has("EXECUTION_COMPLETED").has("EXECUTION_COMPLETED"),
        started().has("EXECUTION_FAILED").step("STARTED", "a"),
        started().has("EXECUTION_CANCELLED").emitted("a#1"),
        started().has("EXECUTION_COMPLETED").note("other", Log().seal("t")),
    ),
    "value-stable": (started().note("handed", "step", "a", "tuple(int 1) for list(int 1)"),),
    "decision-stable": (
        started().decided("a", 1).decided("a", 2),
        started().decided("a", 1).decided("b", 1).decided("a", 1),
    ),
    "fold-consistent": (
        started().note("truncated", 4, "events up to 4 are dropped, the snapshot holds those up to 3"),
        started().note("snapshot", 4, "the stored snapshot was at 5, and is at 4 now"),
        started().note("folded", 4, "the snapshot is not the fold of the log"),
        started().final(row="running", end="completed"),
    ),
    "gate-once": (
        passed(passed(started(), "d1"), "d1"),
        passed(
            started().has("EXECUTION_SUSPENDED", on="message").has("GATE_DELIVERED", deliveryId="d1", on="message"),
            "d1",
        ),
        started().has("EXECUTION_RESUMED", deliveryId="d1", on="message"),
        started().final("suspended", "suspended", "message/", "d2"),
    ),
    "converges": (
        started().final("running", "running"),
        started().final("suspended", "suspended", "message/", "d2"),
    ),
    "parked-rests": (
        started().has("EXECUTION_SUSPENDED", on="go").step("STARTED", "a"),
        started().has("EXECUTION_SUSPENDED", on="go").has("EXECUTION_FAILED"),
        started().has("EXECUTION_SUSPENDED", on="go").has("EXECUTION_SUSPENDED", on="go"),
        started().has("EXECUTION_SUSPENDED", on="go").note("accepted", "m1", "go", None, True).step("STARTED", "a"),
    ),
    "segment-stable": (started().call("/0.1@f:1#1").call("/0.1@f:1#1", segment=1),),
    "one-author": (started().claimed("v").step("STARTED", "a"),),
    "lease-respected": (started().claimed("w").claimed("v", taken_from="w"),),
    "start-once": (
        Log().has("EXECUTION_STARTED", input=1).has("EXECUTION_STARTED", input=1),
        Log().has("EXECUTION_STARTED", input=1).note("told", "2"),
    ),
    "timer-on-time": (
        fired(started(), due=1),  # early: all happens at 0
        fired(started(), due=-86_400_000),
        started().has("EXECUTION_RESUMED", on="TIMER_FIRED"),
    ),
    "replay-silent": (
        started().note("replayed", "prefix", 4, "it asks for step 'b', which the log does not hold"),
        started().note("replayed", "all", 9, "it would append t 1"),
    ),
    "child-once": (
        parked().decided("child:c", {"childId": "x::c~7"}),
        Family().decided("child:c", SPEC).child("EXECUTION_STARTED"),  # nobody is parked for it
        parked().child("EXECUTION_STARTED").heard(1),
        ended().heard(2),
        ended(status="FAILED", error="no").heard({"__loomChildFailed": {"childId": "x::c", "error": "no"}}),
        ended().final("suspended", "suspended", WAITS),
        parked().final("suspended", "suspended", WAITS),
    ),
    "live-query-fresh": (
        Log().note("seen", "wall", 3).note("seen", "wall", 2),
        Log().note("seen", "wall", 3).note("seen", "wall", 3),
        Log().note("seen", "wall", 3).note("followed", "wall", "it saw 3 last", 4, 5),
        Log().note("seen", "wall", 3).note("followed", "wall", "", 9, 4),
    ),
}
PASSES = {  # invariant: near misses
    "no-emit-lost": (
        started().call("a#1").emitted("a#1").acked("a#1").has("EXECUTION_COMPLETED"),
        started().call("a#1").acked("a#1"),  # not judged before a gate or an end
        started().call("a#1").has("EXECUTION_COMPLETED"),  # the flow was never told
        started().call("a#1").emitted("a#1").acked("a#1").acked("a#1").has("EXECUTION_COMPLETED"),  # served on a re-run
        started()
        .call("a#1")
        .emitted("a#1")
        .call("b#1")
        .emitted("b#1")
        .acked("b#1")
        .acked("a#1")
        .has("EXECUTION_FAILED"),
        started().call("a#1").emitted("a#1").emitted("a#1").acked("a#1").has("EXECUTION_COMPLETED"),  # once too often
    ),
    "emit-once": (
        started().call("a#1").emitted("a#1").acked("a#1").call("a#1").acked("a#1"),
        started().call("a#1").emitted("a#1").call("a#1").emitted("a#1", facts="L"),  # a syscall was live before it
        started().call("a#1").emitted("a#1", facts="E").call("a#1").emitted("a#1"),  # the first was made by an effect
        started().call("a#1").emitted("a#1", facts="U").call("a#1").emitted("a#1"),  # after an unsettled outcome
        started().call("a#1").emitted("a#1").call("b#1").emitted("b#1"),
        started().call("a#1").emitted("a#1").call("a#1", segment=1).emitted("a#1", segment=1),
        started().call("a#1").emitted("a#1").begins_anew().call("a#1").emitted("a#1"),
        started().emitted("", facts="I").call("a#1").acked("a#1").call("b#1").emitted("b#1"),
        started().emitted("", facts="IU").call("a#1").emitted("a#1"),  # one without a stamp serves nobody
    ),
    "step-completes-once": (
        started().has("EFFECT_RESOLVED", step="a", resolution="completed").note("handed", "step", "a", ""),
        started().has("EFFECT_RESOLVED", step="a", resolution="retry").step("COMPLETED", "a"),
        started().step("FAILED", "a", reason="error").step("FAILED", "a", reason="typed"),
        started().step("COMPLETED", "a").step("COMPLETED", "a[1]").note("handed", "step", "a", ""),
        started().note("handed", "failure", "a", ""),
        started().resolved("a", "completed").note("handed", "step", "a", ""),
        started().resolved("a", "retry").step("COMPLETED", "a"),
        started().step("COMPLETED", "a").begins_anew().step("COMPLETED", "a"),
        started().step("STARTED", "a").step("STARTED", "a").step("COMPLETED", "a"),
    ),
    "effect-accounted": (
        started().step("STARTED", "a", attempt=1).performed("a"),
        started().step("STARTED", "a", attempt=1).step("STARTED", "a", attempt=2).performed("a", 2).performed("a", 1),
        started().step("STARTED", "a", attempt=1).step("COMPLETED", "a"),
        started()
        .step("STARTED", "a", attempt=1)
        .begins_anew()
        .step("STARTED", "a", attempt=1)
        .performed("a")
        .performed("a", beginning=1),
    ),
    "compensator-once": (
        both_undone(rolling_back()).has("EXECUTION_FAILED"),
        rolling_back().step("FAILED", "refund#compensate:1", reason="error").has("EXECUTION_FAILED"),
        rolling_back(),
        both_undone(rolling_back().step("STARTED", "refund#compensate:1")).has("EXECUTION_FAILED"),  # tried again
        started()  # two sagas
        .step("STARTED", "a#compensate:x:0")
        .step("COMPLETED", "a#compensate:x:0")
        .step("STARTED", "b#compensate:y:1")
        .step("COMPLETED", "b#compensate:y:1")
        .has("EXECUTION_FAILED"),
    ),
    "rollback-finished": (
        both_undone(rolling_back()).has("EXECUTION_FAILED"),
        both_undone(rolling_back()).step("STARTED", "later").step("COMPLETED", "later").has("EXECUTION_COMPLETED"),
        rolling_back(),
    ),
    "log-sound": (
        started().step("STARTED", "a").call("a#1").emitted("a#1").step("COMPLETED", "a"),
        started().note("other", Log().has("EXECUTION_STARTED").seal("t")),
    ),
    "terminal-once": (started().has("EXECUTION_COMPLETED"), started().has("EXECUTION_BLOCKED").has("EXECUTION_FAILED")),
    "value-stable": (started().note("handed", "step", "a", ""),),
    "decision-stable": (
        started().decided("a", 1).decided("b", 1),
        started().decided("a", 1).begins_anew().decided("a", 2),
        twice_decided_by_an_older_kernel(),
    ),
    "fold-consistent": (
        started().note("folded", 4, "").final("running", "running"),
        started().note("snapshot", 4, "").note("truncated", 4, ""),
    ),
    "gate-once": (
        passed(passed(started(), "d1"), "d2").final(),
        started()
        .has("EXECUTION_SUSPENDED", on="message")
        .has("GATE_DELIVERED", deliveryId="d1", on="message")
        .has("EXECUTION_RESUMED", deliveryId="d2", on="message")
        .final(),
        started().has("EXECUTION_RESUMED", deliveryId="cancel:0", on="CANCEL_REQUESTED"),  # it never parked there
        started().final("suspended", "suspended", "message/"),
    ),
    "converges": (
        started().final(),
        started().final("suspended", "suspended", "message/"),
        started().final("blocked", "blocked"),
    ),
    "parked-rests": (
        started().has("EXECUTION_SUSPENDED", on="go").has("EXECUTION_RESUMED", on="go").step("STARTED", "a"),
        started().has("EXECUTION_SUSPENDED", on="go").has("CANCEL_REQUESTED").has("EXECUTION_CANCELLED"),
        started()
        .has("EXECUTION_SUSPENDED", on="go")
        .note("accepted", "cancel", "CANCEL_REQUESTED", None, True)
        .step("STARTED", "a"),
        started().has("EXECUTION_SUSPENDED", on="go"),
        started()  # on its way out it tries again what is not served (K-RUN-4)
        .note("accepted", "cancel:", "CANCEL_REQUESTED", None, True)
        .has("EXECUTION_SUSPENDED", on="go")
        .step("STARTED", "a"),
    ),
    "segment-stable": (
        started().call("/0.1@f:1#1").call("/0.1@f:1#1"),
        started().call("@f:1#1").call("@f:1#1", segment=1),  # in the flow's own task, a loop around a gate
    ),
    "one-author": (started().claimed("v").claimed("w").step("STARTED", "a"), started().step("STARTED", "a")),
    "lease-respected": (started().claimed("w").claimed("v"),),
    "start-once": (Log().has("EXECUTION_STARTED", input=1).note("told", "1").note("told", "1"),),
    "timer-on-time": (fired(started(), due=0), fired(started(), due=-60_000)),
    "replay-silent": (started().note("replayed", "prefix", 4, "").note("replayed", "all", 9, ""),),
    "child-once": (
        ended().heard(1),
        ended(output={"__loomChildOutput": 1}).heard({"__loomChildOutput": {"__loomChildOutput": 1}}),
        ended(status="CANCELLED", error="no").heard(
            {"__loomChildFailed": {"childId": "x::c", "error": "no", "status": "cancelled"}}
        ),
        ended().heard(1).begins_anew().decided("child:c", {"childId": "x::c~1"}),
        parked().child("EXECUTION_STARTED").final("suspended", "suspended", WAITS),
        ended().final("completed", "completed"),  # it was cancelled, and hears of nothing any more
    ),
    "live-query-fresh": (
        Log().note("seen", "wall", 3).note("seen", "phone", 2).note("seen", "wall", 5),
        Log().note("seen", "wall", 3).note("followed", "wall", "", 8, 4),
    ),
}
EVERY = (
    *ALL,
    ParkedRests(),
    SegmentStable(),
    ReplaySilent(),
    *fencing.ALL,
    TimerOnTime(),
    *CHILDREN,
    *FOLLOWED,
)
BY_NAME = {invariant.name: invariant for invariant in EVERY}


def judge(invariant: Invariant, records: list[Record]) -> Judgement:
    return Judge([invariant]).judge(records)


def cases(table: dict[str, tuple[Log, ...]]) -> list:
    return [
        pytest.param(BY_NAME[name], log.records, id=f"{name}-{at}")
        for name, logs in table.items()
        for at, log in enumerate(logs, 1)
    ]


def test_every_invariant_has_a_trace_that_trips_it_and_one_that_does_not():
    assert {i.name for i in EVERY} == set(TRIPS) == set(PASSES)


@pytest.mark.parametrize(("invariant", "records"), cases(TRIPS))
def test_a_trace_that_breaks_it_is_one_violation(invariant, records):
    judgement = judge(invariant, records)
    assert () == judgement.crashed
    assert [invariant.name] == [violation.invariant for violation in judgement.violations]
    assert Verdict.FAIL is judgement.verdict
    assert all(violation.seen and violation.wanted for violation in judgement.violations)
    assert all(0 <= violation.at <= len(records) for violation in judgement.violations)


@pytest.mark.parametrize(("invariant", "records"), cases(PASSES))
def test_its_near_miss_is_none(invariant, records):
    judgement = judge(invariant, records)
    assert () == judgement.crashed
    assert () == judgement.violations
    assert Verdict.PASS is judgement.verdict


@pytest.mark.parametrize("invariant", EVERY, ids=lambda invariant: invariant.name)
def test_it_is_judged_where_it_can_fail_and_not_on_nothing(invariant):
    assert ((invariant.name, 0),) == judge(invariant, []).judged
    assert max(dict(judge(invariant, log.records).judged)[invariant.name] for log in PASSES[invariant.name]) > 0


@pytest.mark.parametrize("invariant", EVERY, ids=lambda invariant: invariant.name)
def test_states_can_be_put_together_by_an_explorer(invariant):
    for log in (*TRIPS[invariant.name], *PASSES[invariant.name]):
        row = Judge([invariant])
        row.judge(log.records)
        for states in row._rows[0].groups.values():
            assert all(isinstance(hash(state), int) for state in states.values())


def test_names_and_sentences_are_there_and_unique():
    assert len(EVERY) == len({i.name for i in EVERY}) == len({i.says for i in EVERY})
    assert all(i.kinds for i in EVERY)


# ---- sagas that say more -------------------------------------------------------------------------------------------


def test_a_compensator_of_what_never_completed_is_unowed():
    owed = CompensatorOnce(owed_by={"refund": "charge"})
    began = started().step("STARTED", "charge").step("STARTED", "refund#compensate:0")
    assert ["compensator-once"] == [v.invariant for v in judge(owed, began.records).violations]
    assert () == judge(owed, rolling_back().records).violations


def test_a_compensator_is_given_the_output_of_what_it_undoes():
    owed = CompensatorOnce(owed_by={"release": "hold"})
    held = started().step("COMPLETED", "hold[main]", output={"hold": 1})
    assert () == judge(owed, held.step("STARTED", "release#compensate:0", input={"hold": 1}).records).violations
    other = started().step("COMPLETED", "hold[main]", output={"hold": 1})
    other.step("STARTED", "release#compensate:0", input={"account": "main"})
    assert ["compensator-once"] == [v.invariant for v in judge(owed, other.records).violations]


def test_steps_outside_the_scope_may_go_on_beside_a_rollback():
    log = rolling_back().step("STARTED", "notify")
    log.step("STARTED", "release#compensate:0").step("COMPLETED", "notify")
    assert () == judge(RollbackFinished(scope=("reserve", "charge", "ship")), log.records).violations
    assert 1 == len(judge(RollbackFinished(), log.records).violations)


# ---- the judge -------------------------------------------------------------------------------------------------------


class Even(Invariant[int]):
    """Counts; broken at every second record of a key."""

    name = "even"
    says = "a key comes an odd number of times"
    kinds = ("n",)
    initial = 0

    def key(self, record):
        return record[1], record[2]

    def advance(self, state, record):
        if state % 2:
            raise Broken("even", "odd")
        return state + 1

    def could_fail(self, state):
        return state > 0


def test_an_instance_is_told_of_once():
    records = [("n", "g", "a")] * 4 + [("n", "g", "b")] * 3
    violations = judge(Even(), records).violations
    assert [("a", 1), ("b", 5)] == [(v.key, v.at) for v in violations]


def test_groups_keep_equal_instances_apart_by_what_they_are():
    records = [("n", "g", ("g", 1)), ("n", "h", ("h", 1))]
    assert () == judge(Even(), records).violations


def test_a_record_without_an_instance_goes_to_all_of_its_group_and_no_other():
    records = [("n", "g", "a"), ("n", "g", "b"), ("n", "h", "c"), ("n", "g", None)]
    assert ["a", "b"] == [v.key for v in judge(Even(), records).violations]


def test_violations_of_all_invariants_come_in_order_of_the_trace():
    class Never(Even):
        name = "never"

        def advance(self, state, record):
            raise Broken("it", "nothing")

    records = [("n", "g", "a"), ("n", "g", "a"), ("n", "g", "b")]
    judgement = Judge([Even(), Never()]).judge(records)
    assert [("never", "a", 0), ("even", "a", 1), ("never", "b", 2)] == [
        (v.invariant, v.key, v.at) for v in judgement.violations
    ]


def test_judged_counts_instances_that_could_have_failed():
    assert (("even", 2),) == judge(Even(), [("n", "g", "a"), ("n", "g", "b"), ("m", "g", "c")]).judged


def test_a_judge_remembers_nothing_of_the_last_trace():
    judge_ = Judge([Even()])
    records = [("n", "g", "a"), ("n", "g", "a")]
    assert judge_.judge(records) == judge_.judge(records)
    assert () == judge_.judge(records[:1]).violations


@pytest.mark.parametrize("method", ["key", "advance", "at_end", "could_fail"])
def test_a_checker_that_breaks_says_unknown_and_never_pass(method):
    def breaks(self, *_):
        raise ZeroDivisionError("ouch")

    checker = type("Breaks", (Even,), {method: breaks, "name": "breaks"})()
    judgement = Judge([checker, Even()]).judge([("n", "g", "a")])
    assert Verdict.UNKNOWN is judgement.verdict
    assert ["breaks"] == [name for name, _ in judgement.crashed]
    assert "ZeroDivisionError: ouch" in judgement.crashed[0][1]
    assert ("even", 1) in judgement.judged


def test_a_violation_outweighs_a_checker_that_breaks():
    class Breaks(Even):
        name = "breaks"

        def key(self, record):
            raise KeyError("x")

    judgement = Judge([Breaks(), Even()]).judge([("n", "g", "a"), ("n", "g", "a")])
    assert Verdict.FAIL is judgement.verdict
    assert 1 == len(judgement.crashed)


def test_a_checker_that_breaks_on_a_group_still_sees_the_rest_of_the_trace():
    class BreaksOnNone(Even):
        def advance(self, state, record):
            if record[2] is None:
                raise ValueError("none")
            return super().advance(state, record)

    judgement = judge(BreaksOnNone(), [("n", "g", "a"), ("n", "g", None), ("n", "g", "a")])
    assert [("a", 2)] == [(v.key, v.at) for v in judgement.violations]
    assert 1 == len(judgement.crashed)


@pytest.mark.parametrize("invariant", EVERY, ids=lambda invariant: invariant.name)
def test_a_record_of_another_form_makes_no_pass(invariant):
    """A harness that changes what it notes must change who reads it: unknown, not silence."""
    log = TRIPS[invariant.name][0]
    for cut in range(1, 3):
        records = [record[:cut] if record[0] in invariant.kinds else record for record in log.records]
        assert Verdict.PASS is not judge(invariant, records).verdict


@pytest.mark.parametrize("invariant", EVERY, ids=lambda invariant: invariant.name)
def test_a_broken_instance_counts_as_one_on_which_it_could_fail(invariant):
    """Otherwise a campaign tells of an invariant both that it failed and that it was never judged."""
    for log in TRIPS[invariant.name]:
        assert dict(judge(invariant, log.records).judged)[invariant.name] > 0


def test_a_judgement_is_a_value():
    one, other = (judge(Even(), [("n", "g", "a")]) for _ in "12")
    assert one == other
    assert attrs.has(type(one))


# ---- a loss that is accepted -----------------------------------------------------------------------------------------


def moved(*, facts: str = "", content: str = "t/1", segment: int = 0) -> Log:
    """An emit was made by the old code at a, and the new one's at b is taken for it."""
    log = started().call("a#1", content, segment).emitted("a#1", content=content, segment=segment)
    log.acked("a#1", content, segment).call("b#1", content, segment)
    return log.acked("b#1", content, segment, facts).has("EXECUTION_COMPLETED")


def test_a_moved_emit_is_taken_for_the_old_one_where_that_is_declared():  # ADR 0102 D2 (a)
    assert () == judge(NoEmitLost(moved=[(0, "t")]), moved().records).violations
    assert 1 == len(judge(NoEmitLost(), moved().records).violations)


@pytest.mark.parametrize("log", [moved(facts=LIVE), moved(content="u/1"), moved(segment=1)])
def test_behind_a_live_syscall_of_other_content_and_in_another_segment_it_is_lost(log):
    assert 1 == len(judge(NoEmitLost(moved=[(0, "t")]), log.records).violations)


def test_a_declared_emit_that_was_never_made_is_lost():
    never = started().call("b#1").acked("b#1").has("EXECUTION_COMPLETED")
    assert 1 == len(judge(NoEmitLost(moved=[(0, "t")]), never.records).violations)
