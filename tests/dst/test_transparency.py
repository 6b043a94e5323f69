"""crash-transparent: whatever goes wrong with the process, the end is one that a calm run comes to."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dst.choices import Calm, Random, Written
from dst.durable import faults
from dst.durable.invariants import ALL
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING
from dst.mutant import exchange
from dst.run import Host, RunResult, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.transparency import NAME, Transparency, _candidates, _left_out
from dst.verdict import Violation
from kernel import RetryPolicy, flow, step
from scenarios.catalogue import SCENARIOS
from scenarios.order_saga import CardDeclined, OrderSaga

CRASH = Deviation(at="append:order-1:STEP_COMPLETED:charge#1", do="crash-after")
DECLINED = Deviation(at="effect:order-1/charge#1", do="declined")


def check(scenario: type[Scenario], *deviations: Deviation) -> tuple[RunResult, bool, Violation | None]:
    async def body(h: Host):
        result = await h.run(scenario, Written(deviations))
        return (result, *await Transparency(h).check(scenario, result))

    return host(body)


def test_what_the_environment_does_after_a_hold_counts_as_well() -> None:
    held = Deviation(at=DECLINED.at, do="hold", until="idle")
    result, compared, violation = check(OrderSaga, held, DECLINED)
    assert [held, DECLINED] == list(result.deviations)
    assert (True, None) == (compared, violation)


@pytest.mark.parametrize(
    "deviations", [(), (CRASH,), (DECLINED,), (DECLINED, Deviation(at="effect:order-1/quote#1", do="refused"))]
)
def test_ends_that_a_calm_world_comes_to_are_accepted(deviations):
    result, compared, violation = check(OrderSaga, *deviations)
    assert set(deviations) == set(result.deviations)
    assert (True, None) == (compared, violation)


def test_what_the_environment_did_before_a_crash_is_allowed_for():
    """The refusal stood in a run that was lost; the calm run it is like has it once, or not at all."""
    quote = "effect:order-1/quote"
    refused = [
        Deviation(at=f"{quote}#1", do="refused"),
        Deviation(at="append:order-1:STEP_FAILED:quote#1", do="crash-before"),
    ]
    for acts in (refused, [*refused, Deviation(at=f"{quote}#2", do="refused")]):
        result, compared, violation = check(OrderSaga, *acts)
        assert len(acts) == len(result.deviations)
        assert (True, None) == (compared, violation)


class Forgetful(OrderSaga):
    """A client sees how often the worker was started: the output differs after a crash."""

    def flows(self):
        @flow(id="order")
        async def order(ctx, input):
            await ctx.emit("order.received", input)
            return {"starts": self.worker.starts}

        return (order,)

    def finish(self, sim):
        DurableScenario.finish(self, sim)


def test_an_output_that_differs_after_a_crash_is_told():
    crash = Deviation(at="append:order-1:EXECUTION_COMPLETED#1", do="crash-before")
    result, compared, violation = check(Forgetful, crash)
    assert (crash,) == result.deviations
    assert compared
    assert NAME == violation.invariant
    assert "starts" in violation.seen
    assert (True, None) == check(Forgetful)[1:]


def test_an_effect_in_the_ledger_that_no_calm_run_has_is_told():
    class Twice(OrderSaga):
        def world(self, sim):
            effects = super().world(sim)

            async def charge(context, input):
                if self.worker.starts > 1:
                    sim.note("performed", "bank", "charge", "order-1/another", 1)
                return await effects["charge"](context, input)

            return {**effects, "charge": charge}

    assert None is not check(Twice, Deviation(at="effect:order-1/charge#1", do="crash-before"))[2]
    assert None is check(Twice)[2]


def test_a_run_without_an_outcome_is_not_compared():
    silent = exchange(outcome=lambda self, sim: None)(OrderSaga)
    assert (False, None) == check(silent, CRASH)[1:]


def test_a_run_that_could_be_like_too_many_calm_ones_is_not_compared():
    passings = (("refused",), ("answer-lost",), ("slow",))
    rows = {f"effect:{site}": _left_out(passings, 3) for site in range(5)}
    assert _candidates(rows) is None
    assert len(_candidates({"effect:0": rows["effect:0"]})) == 8


def test_that_it_was_not_compared_is_not_counted_as_judged(monkeypatch):
    crash = Deviation(at="append:order-1:EXECUTION_COMPLETED#1", do="crash-before")
    assert None is not check(Forgetful, crash)[2]
    monkeypatch.setattr("dst.transparency._CANDIDATES_MAX", 0)
    assert (False, None) == check(Forgetful, crash)[1:]


def candidates(**passings: tuple[tuple[str, ...], ...]) -> list[list[tuple[str, str]]]:
    """Return the candidates of passings, as points and what is done there."""
    found = _candidates({site: _left_out(row, len(row)) for site, row in passings.items()})
    return [[(d.at, d.do) for d in candidate] for candidate in found]


def test_candidates_leave_out_passings_the_most_alike_first():
    written = candidates(a=(("x",), ("",), ("y",)))
    assert [("a#1", "x"), ("a#3", "y")] == written[0]
    wanted = [[("a#1", "x"), ("a#2", "y")], [("a#2", "y")], [("a#1", "y")], [("a#1", "x")], []]
    assert sorted([written[0], *wanted]) == sorted(written), "each of them once"


def test_candidates_of_several_sites_begin_with_all_that_happened_and_have_none_of_it_too():
    written = candidates(a=(("x",), ("y",)), b=(("",), ("z",)))
    assert [("a#1", "x"), ("a#2", "y"), ("b#2", "z")] == written[0]
    assert [] in written
    assert 4 * 3 == len(written), "four at one site; at the other none of it, at the first passing, at the second"


def test_alike_faults_of_the_environment_stand_for_each_other():
    assert [[("deliver#1", "swapped")], [("deliver#1", "late")], []] == candidates(deliver=(("swapped", "late"),))


PASSINGS = st.lists(st.sampled_from([("",), ("x",), ("y",), ("x", "y")]), max_size=5).map(tuple)


@given(PASSINGS, st.integers(0, 5))
def test_rows_are_all_that_come_of_leaving_out_passings_the_longest_first(passings, most):
    rows = _left_out(passings, most)
    kept = itertools.chain(*(itertools.combinations(passings, n) for n in range(most + 1)))
    wanted = {row for names in kept for row in itertools.product(*names)}
    assert (len(wanted), wanted) == (len(rows), set(rows))
    assert sorted(map(len, rows), reverse=True) == [len(row) for row in rows]


def test_of_rows_of_one_length_the_first_has_the_last_passings():
    """What they came to is what the flow went on with."""
    passings = tuple((str(n),) for n in range(6))
    for most in range(7):
        assert tuple(str(n) for n in range(6 - most, 6)) == _left_out(passings, most)[0]


class Persistent(OrderSaga):
    """The bank is asked three times; if the card is declined, the carrier is asked three times."""

    def flows(self):
        policy = RetryPolicy(attempts=3)
        charge = step("charge", failures=(CardDeclined,), retry=policy)
        quote = step("quote", retry=policy)

        @flow(id="order")
        async def order(ctx, input):
            try:
                try:
                    return await ctx.run(charge, input)
                except CardDeclined:
                    return await ctx.run(quote, input)
            except Exception:
                return "gave up"

        return (order,)

    def finish(self, sim):
        DurableScenario.finish(self, sim)


CHARGED, QUOTED = "effect:order-1/charge", "effect:order-1/quote"
REFUSED_3 = (("refused",),) * 3


@pytest.mark.parametrize(
    "deviations",
    [
        [Deviation(at=f"{CHARGED}#{i}", do="refused") for i in (1, 2, 3)],
        [DECLINED, *(Deviation(at=f"{QUOTED}#{i}", do="refused") for i in (1, 2, 3))],
    ],
)
def test_a_run_in_which_only_the_environment_acted_is_like_itself(deviations):
    """Also where a calm run comes to a site only if something has happened elsewhere."""
    result, compared, violation = check(Persistent, *deviations)
    assert tuple(deviations) == result.deviations
    assert "gave up" in str(result.outcome)
    assert (True, None) == (compared, violation)


def test_a_calm_run_passes_a_site_no_more_often_than_any_act_there_can_make_it():
    """Without that a run with many crashes could be like too many calm ones to be compared."""

    async def rows(h: Host, *passings: tuple[str, ...], site: str = CHARGED):
        return await Transparency(h)._rows(Persistent, site, passings)

    many = host(lambda h: rows(h, *REFUSED_3 * 4))
    assert [("refused",) * n for n in (3, 2, 1, 0)] == many
    after_a_lost_one = host(lambda h: rows(h, ("declined",), *REFUSED_3))
    assert {("declined",), ("refused",) * 3} <= set(after_a_lost_one)
    assert 3 == max(map(len, after_a_lost_one))
    assert ("refused",) * 3 in host(lambda h: rows(h, *REFUSED_3, site=QUOTED))


COMPARED = [name for name, scenario in SCENARIOS.items() if scenario.outcome is not Scenario.outcome]


@pytest.mark.parametrize("name", COMPARED)
def test_nearly_every_run_of_a_scenario_is_compared_and_none_is_at_fault(name):
    scenario, runs = SCENARIOS[name], 60

    async def body(h: Host):
        transparency, compared, comparable = Transparency(h), 0, 0
        for seed in range(runs):
            result = await h.run(scenario, Random(seed, scenario.faults))
            was, violation = await transparency.check(scenario, result)
            assert violation is None, seed
            if scenario.outcome is DurableScenario.outcome:
                assert result.outcome is not None or {"cancel", "deploy"} & result.fired.keys(), seed
            compared, comparable = compared + was, comparable + (result.outcome is not None)
        return compared, comparable

    compared, comparable = host(body)
    assert compared > 0.9 * comparable > 0.5 * runs


def test_a_calm_run_does_not_depend_on_what_was_compared_before():
    async def body(h: Host):
        transparency = Transparency(h)
        for seed in range(20):
            await transparency.check(OrderSaga, await h.run(OrderSaga, Random(seed, OrderSaga.faults)))
        return (await h.run(OrderSaga, Calm())).digest

    assert host(lambda h: h.run(OrderSaga, Calm())).digest == host(body)


def test_the_comparison_knows_the_faults_of_a_calm_world():
    """Only what a calm world does too is left in the calm runs: a crash, a duplicate, a hold never is."""
    environmental = {fault.name for fault in (*faults.ALL, HOLDING) if fault.environmental}
    assert {
        "delivery-reordered",
        "delivery-delayed",
        "effect-refused",
        "effect-answer-lost",
        "step-timeout",
    } == environmental
    assert NAME not in {invariant.name for invariant in ALL}
    assert len(list(itertools.chain(faults.ALL))) == len({fault.name for fault in faults.ALL})
