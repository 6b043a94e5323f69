"""Logs from before stamps: each of their emits is made once more, and no more than that (ADR 0102 D8)."""

from __future__ import annotations

from collections import Counter

import pytest

from dst.choices import Written
from dst.durable.invariants import EmitOnce
from dst.durable.stores import EXECUTING, LEGACY, LIVE, REPEATED, UNSETTLED
from dst.invariants import Judge
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.signature import violation_of
from dst.verdict import Verdict
from kernel.events import EVENT_SCHEMA_VERSION, seal
from scenarios.chat_session import ChatSession
from scenarios.mutants import MUTANTS

LEGACY_SESSION = Deviation(at="open:chat-1#1", do="legacy")


def play(scenario: type[ChatSession], *more: Deviation) -> RunResult:
    return host(lambda h: h.run(scenario, Written((LEGACY_SESSION, *more))))


def emitted(result: RunResult) -> Counter[str]:
    return Counter(record[-1].type for record in result.records if record[0] == "emitted" and record[2] == 0)


def test_a_legacy_session_repeats_its_prefix_once_and_is_stable_from_then_on():  # K-EMIT-7
    result = play(ChatSession)
    assert Verdict.PASS is result.verdict
    assert {"session.opened": 2, "SURFACE_PATCH": 2} == emitted(result)
    assert 1 == result.marks["went on from a legacy log"]


def test_it_is_stable_through_crashes_too():  # K-EMIT-7
    crashes = [Deviation(at=f"append:chat-1:EXECUTION_RESUMED:message#{n}", do="crash-after") for n in (1, 2, 3)]
    result = play(ChatSession, *crashes)
    assert Verdict.PASS is result.verdict
    assert 3 == result.fired["crash-after"]
    assert {"session.opened": 2, "SURFACE_PATCH": 2} == emitted(result)


def test_the_old_events_say_the_old_schema_and_have_no_stamp():
    old = [record[-1] for record in play(ChatSession).records if record[-1].__class__.__name__ == "Envelope"][:5]
    assert ["1.18.0"] * 5 == [envelope.schema_version for envelope in old]
    assert EVENT_SCHEMA_VERSION != "1.18.0"
    assert all("flowEmit" not in envelope.metadata for envelope in old)


def test_a_kernel_that_repeats_it_again_and_again_is_noticed():  # emit-once
    violation = violation_of(play(MUTANTS["emit-always-append"].apply(ChatSession)))
    assert violation is not None
    assert "emit-once" == violation.invariant


def envelope(sequence: int):
    return seal(
        execution_id="e",
        sequence=sequence,
        type="x",
        payload_text="1",
        timestamp_ms=0,
        append_id="a",
        previous_hash="",
    )


def verdict(*steps: str) -> Verdict:
    """Judge emits of one content: `a` calls the logical emit a, `+L` appends an event with the fact L."""
    records = []
    for position, step in enumerate(steps):
        if step.startswith("+"):
            records.append(("emitted", "e", 0, "x/1", "", step[1:], envelope(position)))
        else:
            records.append(("emit", "e", 0, "x/1", step))
    return Judge([EmitOnce()]).judge(records).verdict


@pytest.mark.parametrize("excuse", [EXECUTING, UNSETTLED, LIVE + UNSETTLED])
def test_each_excuse_allows_one_duplicate(excuse):  # emit-once
    assert Verdict.PASS is verdict("a", "+" + excuse, "a", "+")
    assert Verdict.FAIL is verdict("a", "+" + excuse, "a", "+", "a", "+")


def test_a_duplicate_behind_a_live_syscall_is_allowed_and_excuses_no_other():  # emit-once
    assert Verdict.PASS is verdict("a", "+", "a", "+" + LIVE, "a", "+" + LIVE)
    assert Verdict.FAIL is verdict("a", "+", "a", "+" + LIVE, "a", "+")


def test_an_event_in_place_of_one_that_the_log_holds_excuses_a_duplicate():  # emit-once
    # It is behind a live syscall and not beyond the count: not served, and not stamped.
    assert Verdict.PASS is verdict("b", "+", "a", "+" + LIVE + REPEATED, "a", "b", "+")
    assert Verdict.FAIL is verdict("b", "+", "a", "+" + LIVE + REPEATED, "a", "b", "+", "b", "+")
    assert Verdict.FAIL is verdict("b", "+", "a", "+" + LIVE, "a", "b", "+")


def test_an_event_of_a_legacy_log_stands_for_no_logical_emit():  # emit-once
    assert Verdict.PASS is verdict("+" + LEGACY, "a", "+")
    assert Verdict.FAIL is verdict("+" + LEGACY, "a", "+", "a", "+")


def test_two_logical_emits_of_one_content_may_have_two_events():  # emit-once
    assert Verdict.PASS is verdict("a", "+", "b", "+")
    assert Verdict.FAIL is verdict("a", "+", "+")
