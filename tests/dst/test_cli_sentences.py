"""Deviations read as plain sentences."""

from __future__ import annotations

import pytest

from dst.reading import lines, said
from dst.schedule import Deviation
from dst.sentences import act, happening, said_crash, said_node, sentence, sentences

SENTENCES = [
    (
        ("append:order-1:STEP_COMPLETED:refund#compensate:1#1", "crash-after"),
        "crash worker-1 after it appended STEP_COMPLETED refund#compensate:1 of order-1",
    ),
    (
        ("append:order-1:STEP_STARTED:charge#2", "crash-before"),
        "crash worker-1 before it appends STEP_STARTED charge of order-1 for the second time",
    ),
    (
        ("append:order-1:EXECUTION_STARTED#1", "crash-after"),
        "crash worker-1 after it appended EXECUTION_STARTED of order-1",
    ),
    (
        ("append:order-1:STEP_STARTED:quote#1", "answer-lost"),
        "append STEP_STARTED quote of order-1, but lose the store's answer",
    ),
    (
        ("emit:order-1:0/order.confirmed/3f9a#1", "crash-after"),
        "crash worker-1 after it appended the emit order.confirmed of order-1",
    ),
    (
        ("emit:chat-1:2/turn.failed/00ff00ff#11", "crash-before"),
        "crash worker-1 before it appends the emit turn.failed of chat-1, past gate 2 for the 11th time",
    ),
    (("effect:order-1/charge#2", "answer-lost"), "do charge of order-1 for the second time, but lose the answer"),
    (("effect:order-1/charge#1", "refused"), "refuse charge of order-1: nothing is done"),
    (("effect:order-1/charge#22", "refused"), "refuse charge of order-1 for the 22nd time: nothing is done"),
    (("effect:order-1/charge#1", "slow"), "do charge of order-1 only after its deadline"),
    (("effect:order-1/charge#1", "declined"), "answer charge of order-1 with 'declined'"),
    (("effect:order-1/charge#1", "crash-before"), "crash worker-1 before charge of order-1 is done"),
    (("effect:order-1/charge#1", "crash-after"), "crash worker-1 after charge of order-1 was done"),
    (("deliver:message:chat-1:m0#1", "twice"), "deliver message 'm0' to chat-1 twice"),
    (("deliver:message:chat-1:m0#1", "again-later"), "deliver message 'm0' to chat-1, and once more later"),
    (("deliver:message:chat-1:m0#1", "swapped"), "deliver message 'm0' to chat-1 only after the next delivery"),
    (("deliver:message:chat-1:m0#1", "late"), "deliver message 'm0' to chat-1 late"),
    (("claim:chat-1#1", "crash-after"), "crash worker-1 after it claimed chat-1"),
    (("put:chat-1:m0#1", "crash-before"), "crash worker-1 before it accepts delivery 'm0' for chat-1"),
    (("remove:chat-1:m0#1", "crash-after"), "crash worker-1 after it removed delivery 'm0' of chat-1 from the mailbox"),
    (("snapshot:chat-1#3", "crash-after"), "crash worker-1 after it saved a snapshot of chat-1 for the third time"),
    (("truncate:chat-1#1", "crash-before"), "crash worker-1 before it cuts the log of chat-1"),
    (("send:ann asks#2", "lost"), "lose message 'ann asks' for the second time"),
    (("send:ann asks#1", "late"), "send message 'ann asks', and it comes late"),
    (("send:ann asks#1", "twice"), "send message 'ann asks', and it comes twice"),
    (("send:ann asks#1", "crash-after"), "crash worker-1 after it sent message 'ann asks'"),
    (("acquire:chat-1#2", "crash-after"), "crash worker-1 after it acquired the lease on chat-1 for the second time"),
    (("acquire:chat-1#1", "refused"), "refuse that the lease on chat-1 is acquired"),
    (("renew:chat-1#1", "stall"), "let worker-1 stand still before it renews the lease on chat-1"),
    (
        ("append:order-1:STEP_STARTED:charge#1", "stall"),
        "let worker-1 stand still before it appends STEP_STARTED charge of order-1",
    ),
    (("timer:east:timer plants#1", "late"), "let the timer of 'timer plants' of east go a minute late"),
    (("timer:east:timer plants#1", "early"), "let the timer of 'timer plants' of east go at half the time"),
    (
        ("timer:east:timer plants#1", "back"),
        "set its worker's clock back by hours when the timer of 'timer plants' of east is set",
    ),
    (
        ("append:order-1:STEP_STARTED:charge#2", "fork"),
        "fork the execution while STEP_STARTED charge of order-1 is appended for the second time",
    ),
    (("append:order-1:STEP_STARTED:charge#1", "tidy"), "do 'tidy' while STEP_STARTED charge of order-1 is appended"),
    (
        ("observe:research-1:DECISION_RECORDED#2", "late"),
        "tell the supervisor late of DECISION_RECORDED of research-1 for the second time",
    ),
    (
        ("observe:child-1:EXECUTION_COMPLETED#1", "missed"),
        "do not tell the supervisor of EXECUTION_COMPLETED of child-1",
    ),
    (("read:order-1#1", "hide-1"), "read the log of order-1 without its last event"),
    (("read:order-1#3", "hide-2"), "read the log of order-1 without its last two events for the third time"),
    (("entries#1", "stale"), "read the catalogue as it was before its last change"),
    (("deploy:worker#1", "next"), "start worker with the next version of the flows"),
    (("resolve:3f9a0b1c#1", "missing"), "do not find the payload 3f9a0b1c that is kept apart"),
    (("teleport:chat-1#1", "explode"), "choose 'explode' at 'teleport chat-1'"),
    (("stall:ann#1", "stall"), "let ann stall"),
    (("stall:ann#2", "stall"), "let ann stall for the second time"),
    (
        ("operator:payout-1:transfer#2", "gives-up"),
        "choose 'gives-up' at 'operator payout-1 transfer' for the second time",
    ),
    (("write:cell#1", "crash-before"), "crash worker-1 before 'write cell'"),
    (("write:cell#2", "crash-after"), "crash worker-1 after 'write cell' for the second time"),
    (("deliver:message:chat-1:m0#1", "explode"), "do explode at deliver:message:chat-1:m0#1"),
    (("append:", "crash-after"), "do crash-after at append:"),
    (("nothing", "crash-after"), "do crash-after at nothing"),
]


@pytest.mark.parametrize(("deviation", "said"), SENTENCES, ids=[said for _, said in SENTENCES])
def test_a_deviation_is_a_sentence(deviation: tuple[str, str], said: str) -> None:
    at, do = deviation
    assert said == sentence(Deviation(at=at, do=do), "worker.1")


def test_a_hold_says_what_it_waits_for() -> None:
    held = Deviation(at="append:o-1:STEP_STARTED:a#1", do="hold", until="effect:o-1/b#1")
    assert "hold the append of STEP_STARTED a of o-1 until b of o-1 is done" == sentence(held)
    task = Deviation(at="task:worker.1/serve#4", do="hold", until="idle")
    assert "hold task worker.1/serve for the fourth time until nothing else can run" == sentence(task)
    unknown = Deviation(at="x:y#1", do="hold", until="z:w#1")
    assert "hold 'x y' until 'z w' has happened" == sentence(unknown)
    call = Deviation(at="call:step:quotes-1:/0.1:ask-brick#1", do="hold", until="call:gate:quotes-1:#1")
    assert (
        "hold the call of step ask-brick in branch 0.1 of quotes-1 until the call of gate of quotes-1 is made"
        == sentence(call)
    )


def test_the_trace_tells_who_crashed() -> None:
    deviation = Deviation(at="claim:o-1#1", do="crash-after")
    assert ("crash worker-3 after it claimed o-1",) == sentences(
        [deviation], [("fault", "claim:o-1#1", "crash-after"), ("crash", "worker.3", "claim:o-1#1")]
    )
    assert ("crash the worker after it claimed o-1",) == sentences([deviation])


def test_words_for_parts() -> None:
    assert "worker-12" == said_node("worker.12")
    assert "client" == said_node("client")
    assert "nothing else can run" == happening("idle")


@pytest.mark.parametrize(
    ("label", "noun"),
    [
        (
            "append:order-1:STEP_COMPLETED:charge#2",
            "the append of STEP_COMPLETED charge of order-1 for the second time",
        ),
        ("append:dentist:mail.accepted#1", "the append of the emit mail.accepted of dentist"),
        ("effect:order-1/charge#1", "the request for charge of order-1"),
        ("task:drive#1", "the turn of task drive"),
        ("entries#1", "the reading of the catalogue"),
        ("unheard of#1", "unheard of#1"),
    ],
)
def test_a_moment_is_a_noun(label: str, noun: str) -> None:
    assert noun == act(label)


def test_only_a_crash_is_said_as_a_crash() -> None:
    at = "effect:order-1/charge#1"
    crash = said_crash(Deviation(at=at, do="crash-after"), "worker.1")
    assert crash == "the crash of worker-1 after charge of order-1 was done"
    assert said_crash(Deviation(at=at, do="refused")) == ""


def test_a_part_of_a_trace_keeps_its_numbers_and_times() -> None:
    records = (("start", "w.1"), ("clock", 2_000_000_000), ("healed",), ("start", "w.2"))
    assert ["    2      2.000 s  the faults stop; everything heals"] == list(lines(records, 1, 3))
    assert "time goes on to 2.000 s" == said(records[1])
