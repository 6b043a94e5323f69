"""A fault that fired and changed nothing is told of."""

from __future__ import annotations

import attrs

from dst.choices import Written
from dst.idle_faults import SAMPLED_MAX, sample
from dst.records import ScenarioRecord
from dst.run import host
from dst.schedule import Deviation
from reports.summary import Style, _idle
from scenarios.order_saga import OrderSaga

CRASH = Deviation(at="append:order-1:STEP_COMPLETED:reserve#1", do="crash-after")
IDLE = Deviation(at="append:order-1:STEP_STARTED:charge#1", do="recover-twice")
LOST = Deviation(at="append:order-1:STEP_STARTED:ship#1", do="refused")
DOWN = Deviation(at="effect:order-1/quote#1", do="refused")


def sampled(first, *deviations):
    async def body(h):
        result = await h.run(OrderSaga, Written(deviations))
        return await sample(h, OrderSaga, result, first)

    return host(body)


def test_a_fault_is_idle_if_the_same_schedule_without_it_leaves_the_same_trace():
    assert {("crash-after", True), ("recover-twice", False)} == set(sampled(0, CRASH, IDLE))


def test_only_some_of_a_run_are_left_out_and_over_many_runs_each_is():
    found = [sampled(first, DOWN, CRASH, IDLE, LOST) for first in range(4)]
    assert {SAMPLED_MAX} == {len(some) for some in found}
    assert {"effect-refused", "crash-after", "recover-twice", "append-refused"} == {kind for kind, _ in sum(found, ())}


def test_a_run_without_faults_has_nothing_to_leave_out():
    assert () == sampled(7)


def record(**counts):
    nothing = ScenarioRecord(
        name="order", schedules=9, run_seconds=1.0, fired={"hold": 120}, judged={}, marks={}, says={}
    )
    return attrs.evolve(nothing, **counts)


def test_the_report_says_how_many_changed_nothing():
    (said,) = _idle([record(sampled={"hold": 30, "fork": 2}, unchanged={"hold": 12})])
    assert ("  hold of order fired 120 times: 30 sampled, 12 changed nothing", Style.FAINT) == (said.text, said.style)


def test_a_kind_that_never_changed_anything_is_doubtful_once_enough_were_sampled():
    few, many = (next(_idle([record(sampled={"hold": n}, unchanged={"hold": n})])) for n in (4, 5))
    assert (Style.FAINT, Style.DOUBT) == (few.style, many.style)
    assert "none of the 5 sampled changed anything" in many.text
