"""External services: one answer for a key, a ledger of every attempt, and what may go wrong on the way there."""

from __future__ import annotations

import pytest

from dst.choices import Written
from dst.durable.scenario import DurableScenario
from dst.durable.services import Service
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.verdict import Verdict
from kernel import TypedFailure, flow, step
from scenarios.order_saga import CARD_DECLINED

SECOND = 1_000_000_000


class Declined(TypedFailure):
    wire_name = "declined"


quick = step("pay", failures=(Declined,))
patient = step("pay", failures=(Declined,), deadline=10)


class Pays(DurableScenario):
    """One payment; the answer says how many there were."""

    name = "pays"
    story = "a test's own"
    faults = (*DurableScenario.faults, CARD_DECLINED)
    invariants = ()
    pay = patient
    tries = 3

    def world(self, sim):
        self.bank = Service(sim, "bank")
        self.paid = 0

        def pay(amount):
            self.paid += 1
            return {"receipt": self.paid, "of": amount}

        return {"pay": self.bank.effect("pay", pay, {"declined": (CARD_DECLINED, Declined)})}

    def flows(self):
        @flow(id="pay")
        async def paying(ctx, input):
            for _ in range(self.tries):
                try:
                    return await ctx.run(self.pay, input)
                except Declined:
                    return "declined"
                except Exception as error:
                    self.sim.note("saw", type(error).__name__, self.sim.scheduler.now_ns)
            return "nothing"

        return (paying,)

    async def drive(self, sim):
        await self.start("pay", 7, execution_id="p")


class Quick(Pays):
    pay = quick


def play(*deviations: str, scenario: type[Pays] = Pays) -> RunResult:
    written = [Deviation(at=f"effect:p/pay#{at.partition(' ')[0]}", do=at.partition(" ")[2]) for at in deviations]
    choices = Written(written)
    result = host(lambda h: h.run(scenario, choices))
    assert () == choices.missed
    assert Verdict.PASS is result.verdict
    return result


def ledger(result: RunResult) -> list[int]:
    """The attempts that were carried out, in order."""
    return [record[4] for record in result.records if record[0] == "performed"]


def output(result: RunResult) -> str:
    return result.outcome[0][0][2]


def saw(result: RunResult) -> list[tuple[str, float]]:
    return [(record[1], record[2] / SECOND) for record in result.records if record[0] == "saw"]


def test_it_answers_and_has_it_in_its_ledger():
    assert ('{"of":7,"receipt":1}', [1]) == (output(play()), ledger(play()))


def test_a_refused_request_is_not_carried_out():
    result = play("1 refused")
    assert ([2], [("ServiceDown", 0.0)]) == (ledger(result), saw(result))


def test_a_lost_answer_was_carried_out_and_the_next_attempt_gets_it_again():
    result = play("1 answer-lost")
    assert ([1, 2], [("AnswerLost", 0.0)]) == (ledger(result), saw(result))
    assert '{"of":7,"receipt":1}' == output(result)


@pytest.mark.parametrize(("act", "attempts"), [("crash-before", [2]), ("crash-after", [1, 2])])
def test_a_crash_beside_it_leaves_what_it_says(act, attempts):
    result = play(f"1 {act}")
    assert attempts == ledger(result)
    assert '{"of":7,"receipt":1}' == output(result)


def test_what_it_declines_is_the_typed_failure():
    assert ('"declined"', []) == (output(play("1 declined")), ledger(play("1 declined")))


def test_what_it_has_taken_on_it_cannot_decline():
    choices = Written([Deviation(at="effect:p/pay#1", do="answer-lost"), Deviation(at="effect:p/pay#2", do="declined")])
    result = host(lambda h: h.run(Pays, choices))
    assert ["declined"] == [deviation.do for deviation in choices.missed]
    assert '{"of":7,"receipt":1}' == output(result)


def test_a_slow_request_outlives_its_deadline_and_lands():
    result = play("1 slow")
    assert [("StepTimeout", 10.0)] == saw(result)
    assert [2, 1] == ledger(result), "the zombie lands after the attempt that followed it"
    assert '{"of":7,"receipt":1}' == output(result)


def test_a_slow_request_lands_although_its_caller_has_died():
    result = play("1 slow", "2 crash-before")
    assert [3, 1] == ledger(result)
    assert 2 == sum(record[0] == "start" for record in result.records)


def test_without_a_deadline_nothing_is_slow():
    choices = Written([Deviation(at="effect:p/pay#1", do="slow")])
    host(lambda h: h.run(Quick, choices))
    assert 1 == len(choices.missed)


def test_keys_are_answered_apart_and_operations_too():
    class Two(Quick):
        def flows(self):
            @flow(id="pay")
            async def paying(ctx, input):
                return [await ctx.run(quick, input, key=key) for key in ("a", "b")]

            return (paying,)

    assert '[{"of":7,"receipt":1},{"of":7,"receipt":2}]' == output(host(lambda h: h.run(Two, Written(()))))
