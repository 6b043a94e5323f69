"""For each invariant the smallest broken part that makes it fail, and none other: proof that it sees what it says."""

from __future__ import annotations

import attrs
import pytest
import trio

from dst.choices import Calm, Random
from dst.durable.invariants import ALL
from dst.durable.services import Service
from dst.durable.stores import SimStore
from dst.lookup import says
from dst.mutant import exchange
from dst.run import Host, Limits, RunResult, host
from dst.scenario import Scenario
from dst.signature import violation_of
from dst.transparency import NAME as TRANSPARENT
from dst.transparency import Transparency
from dst.verdict import Ending, Verdict
from kernel import Context, Parts, flow
from kernel.emit_rule import EmitRule, Ruling
from kernel.events import DECISION_RECORDED, EXECUTION_COMPLETED, KERNEL_TYPES, STEP_COMPLETED
from kernel.fold import FoldPass, fold_events
from kernel.forks import forked
from kernel.lifecycle import read_log, save_snapshot
from kernel.live_query import LiveQuery, Subscription
from kernel.projections import SURFACES
from kernel.runtime import Runtime
from kernel.saga import Saga, saga
from kernel.supervision import Supervisor
from scenarios.chat_session import ChatSession
from scenarios.dashboard import Dashboard
from scenarios.fork_and_replay import ForkAndReplay
from scenarios.leader_lease import LeaderLease, Register
from scenarios.order_saga import OrderSaga
from scenarios.policy_agent import PolicyAgent
from scenarios.reminders import Reminders
from scenarios.research_swarm import ResearchSwarm

SCHEDULES = 300


class SwallowsEmits(EmitRule):
    """no-emit-lost: an emit is acknowledged, and there is no event."""

    def rule(self, digest):
        return Ruling.SERVED


class RepeatsEmits(EmitRule):
    """emit-once: a re-run emits again."""

    def rule(self, digest):
        return Ruling.UNSTAMPED


class CompletesTwice(Context):
    """step-completes-once: the end of a step is recorded, and recorded again."""

    async def commit(self, type, payload_text, **more):
        await super().commit(type, payload_text, **more)
        if type == STEP_COMPLETED:
            await super().commit(type, payload_text, **more)


class AsksTwice(Service):
    """effect-accounted: each request is carried out twice."""

    def _do(self, *request):
        super()._do(*request)
        super()._do(*request)


class Forwards(Saga):
    """compensator-once: what was done first is undone first."""

    async def rollback(self):
        self._stack.reverse()
        await super().rollback()


class StopsHalfway(Saga):
    """rollback-finished: only the last step is undone."""

    async def rollback(self):
        del self._stack[:-1]
        await super().rollback()


class StampsFacts(Context):
    """log-sound: what the kernel records of itself is stamped like an emit."""

    async def commit(self, type, payload_text, *, stamp=None, provenance=None):
        stamp = "0" * 16 if type in KERNEL_TYPES else stamp
        await super().commit(type, payload_text, stamp=stamp, provenance=provenance)


class ForgetsItsEnd(FoldPass):
    """terminal-once: a completed execution is run once more."""

    ends = 0

    def apply(self, event):
        super().apply(event)
        if event.type == EXECUTION_COMPLETED:
            self.ends += 1
            if self.ends == 1:
                self.state["status"] = "running"


class RawValues(Context):
    """value-stable: the first run gets what the effect returned."""

    def live_value(self, raw, text):
        return raw


class LosesVersion(FoldPass):
    """fold-consistent: what is folded on a snapshot lacks something that was in it."""

    def __init__(self, *state):
        super().__init__(*state)
        if self.state["lastSequence"] >= 0:
            self.state["flowVersion"] = "lost"


class ForgetsDeliveries(FoldPass):
    """gate-once: no delivery is remembered, and a duplicate passes the next gate."""

    def own_deliveries(self):
        return {}


class DecidesTwice(Context):
    """decision-stable: a choice is recorded, and recorded again."""

    async def commit(self, type, payload_text, **more):
        await super().commit(type, payload_text, **more)
        if type == DECISION_RECORDED:
            await super().commit(type, payload_text, **more)


class SeesNothing(SimStore):
    """converges: recovery is told of no execution, so that nobody takes up what the dead process left."""

    async def entries(self, *statuses):
        return []


def _saga(kind):
    return type("broken_saga", (saga,), {"saga_type": kind})


async def _compacts_nothing(self, execution_id):
    """In place of a compaction."""


_NO_SNAPSHOTS = {"snapshot_every": None, "compact": _compacts_nothing}  # they would show the fold itself


def _services(kind):
    def service(self, name):
        made = kind(self.sim, name)
        self.services.append(made)
        return made

    return service


PLANTED = {
    "no-emit-lost": (OrderSaga, {"parts": Parts(emit_rule=SwallowsEmits)}),
    "emit-once": (ChatSession, {"parts": Parts(emit_rule=RepeatsEmits)}),
    "step-completes-once": (OrderSaga, {"parts": Parts(context=CompletesTwice)}),
    "effect-accounted": (OrderSaga, {"service": _services(AsksTwice)}),
    "compensator-once": (OrderSaga, {"saga": _saga(Forwards)}),
    "rollback-finished": (OrderSaga, {"saga": _saga(StopsHalfway)}),
    "log-sound": (OrderSaga, {"parts": Parts(context=StampsFacts)}),
    "terminal-once": (OrderSaga, {"parts": Parts(fold=ForgetsItsEnd)}),
    "value-stable": (OrderSaga, {"parts": Parts(context=RawValues)}),
    "decision-stable": (ChatSession, {"parts": Parts(context=DecidesTwice)}),
    "fold-consistent": (ChatSession, {"parts": Parts(fold=LosesVersion)}),
    "gate-once": (ChatSession, {"parts": Parts(fold=ForgetsDeliveries), **_NO_SNAPSHOTS}),
    "converges": (OrderSaga, {"store": SeesNothing}),
}


def first_failure(scenario: type[Scenario]) -> tuple[int, RunResult]:
    async def body(h: Host):
        for seed in range(SCHEDULES):
            result = await h.run(scenario, Random(seed, scenario.faults))
            if result.verdict is not Verdict.PASS:
                return seed, result
        pytest.fail(f"{SCHEDULES} schedules, and nothing was found")

    return host(body)


def test_each_invariant_has_its_bug():
    assert {invariant.name for invariant in ALL} == set(PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_the_bug_is_found_by_its_own_invariant_and_no_other(name):
    scenario, parts = PLANTED[name]
    _, result = first_failure(exchange(**parts)(scenario))
    assert {name} == {violation.invariant for violation in result.judgement.violations}
    assert ((), (), ()) == (result.judgement.crashed, result.failures, result.refused)
    assert Ending.QUIESCENT is result.ending


class KeepsTheOlder(SimStore):
    """fold-consistent: a snapshot takes the place of a newer one."""

    def keep(self, execution_id, snapshot):
        older = [stored for name, stored in self.saved if name == execution_id]
        self.snapshots[execution_id] = older[0] if older else snapshot


class DropsFirst(Runtime):
    """fold-consistent: the log is dropped, and then there is a snapshot of it."""

    async def compact(self, execution_id):
        state = await self.state(execution_id)
        await self._stores.events.truncate_prefix(execution_id, state["lastSequence"])
        await save_snapshot(self._stores.snapshots, execution_id, state, {SURFACES.name: {}})


class DropsStamps(Runtime):
    """emit-once: what a fork has copied is not served to it."""

    async def fork(self, execution_id, *, upto=None, new_id):
        log = await read_log(self._stores.events, execution_id, 0)
        bare = [attrs.evolve(e, metadata={k: v for k, v in e.metadata.items() if k != "flowEmit"}) for e in log]
        copies = forked(bare[: upto + 1], new_id)
        state = fold_events(copies)
        await self._stores.events.append(
            new_id, 0, copies, fence=0, flow_id="order", status=state["status"], due_ms=None
        )
        self._driver.spawn(new_id, None)


class Deaf(Supervisor):
    """child-once: a supervisor that observes nothing; a parent is parked, and its children are never started."""

    def observe(self, event):
        pass


class Repeats(Subscription):
    """live-query-fresh: each wake-up shows a state, a new one or not."""

    async def _refresh(self):
        await super()._refresh()
        return True


class Repeating(LiveQuery):
    def subscription(self, execution_id, wakeups):
        return Repeats(self._stores, execution_id, wakeups, self._fold)


@pytest.mark.parametrize(
    ("name", "scenario", "parts"),
    [
        ("fold-consistent", ChatSession, {"store": KeepsTheOlder}),
        ("fold-consistent", ChatSession, {"runtime": DropsFirst}),
        ("emit-once", OrderSaga, {"runtime": DropsStamps}),
        ("child-once", ResearchSwarm, {"supervisor": Deaf}),
        ("live-query-fresh", Dashboard, {"live": Repeating}),
    ],
    ids=["older-snapshot", "dropped-first", "stamps-dropped", "deaf-supervisor", "repeated-state"],
)
def test_a_broken_store_or_part_is_found_too(name, scenario, parts):
    _, result = first_failure(exchange(**parts)(scenario))
    assert name == result.judgement.violations[0].invariant


class AppendsAlways(EmitRule):
    """replay-silent: every emit is appended, and stamped; one run of a flow does not show it."""

    def rule(self, digest):
        return Ruling.STAMPED


class NoSeq(FoldPass):
    """credit-stable: decisions have no position."""

    def apply(self, event):
        super().apply(event)
        if event.type == DECISION_RECORDED:
            decisions = self.own_decisions()
            for decision_id, entry in decisions.items():
                decisions[decision_id] = {"choice": entry["choice"]}


class NamesNoHash(Runtime):
    """fork-sound: a copy does not say which hash its original has."""

    def copy_prefix(self, prefix, new_id):
        return super().copy_prefix([attrs.evolve(event, hash="") for event in prefix], new_id)


class NeverSleeps(Context):
    """reminder-earned: no timer is waited for."""

    async def sleep(self, seconds):
        await self.decide(f"slept:{seconds}", lambda: None)


class Forgets(Register):
    """someone-leads: a write is said to be taken, and is not."""

    def write(self, version, value, who):
        super().write(version, value, who)
        self.value = 0
        return True


@pytest.mark.parametrize(
    ("name", "scenario", "parts"),
    [
        ("reminder-earned", Reminders, {"parts": Parts(context=NeverSleeps)}),
        ("someone-leads", LeaderLease, {"register": Forgets}),
        ("replay-silent", OrderSaga, {"parts": Parts(emit_rule=AppendsAlways)}),
        ("credit-stable", PolicyAgent, {"parts": Parts(fold=NoSeq)}),
        ("fork-sound", ForkAndReplay, {"runtime": NamesNoHash}),
    ],
)
def test_what_some_scenarios_declare_has_its_bug_too(name, scenario, parts):
    result = host(lambda h: h.run(exchange(**parts)(scenario), Calm()))
    assert name == result.judgement.violations[0].invariant
    assert ((), ()) == (result.judgement.crashed, result.failures)


# ---- what is no invariant over the trace -----------------------------------------------------------------------------


class Counts(OrderSaga):
    """crash-transparent: the answer depends on how often the worker was started."""

    def flows(self):
        @flow(id="order")
        async def order(ctx, input):
            await ctx.emit("order.received", input)
            return {"starts": self.worker.starts}

        return (order,)

    def finish(self, sim):
        super(OrderSaga, self).finish(sim)


class ClientDies(OrderSaga):
    """unbroken: a client that takes what it asked for to be there at once."""

    async def drive(self, sim):
        await super().drive(sim)
        if self.worker.starts > 1:
            raise LookupError("no order")


class WorkerDies(OrderSaga):
    """unbroken, and therefore not `converges`: a worker that raises when it comes up again."""

    async def _work(self, incarnation):
        if incarnation.number > 1:
            raise LookupError("no configuration")
        await super()._work(incarnation)


class ReachesOut(OrderSaga):
    """simulated-world: an effect that wants a real thread, and goes on without it."""

    def world(self, sim):
        effects = super().world(sim)

        async def quote(context, input):
            try:
                await trio.to_thread.run_sync(len, "x")
            except RuntimeError:
                return await effects["quote"](context, input)

        return {**effects, "quote": quote}


def first_wrong(scenario: type[Scenario]) -> str:
    async def body(h: Host):
        transparency = Transparency(h)
        for seed in range(SCHEDULES):
            result = await h.run(scenario, Random(seed, scenario.faults))
            _, violation = await transparency.check(scenario, result)
            if violation := violation_of(result) or violation:
                return violation.invariant
        return f"nothing in {SCHEDULES} schedules"

    return host(body)


@pytest.mark.parametrize(
    ("scenario", "name"), [(Counts, TRANSPARENT), (ClientDies, "unbroken"), (ReachesOut, "simulated-world")]
)
def test_so_is_what_no_monitor_sees(scenario, name):
    assert name == first_wrong(scenario)
    assert says(scenario, name), "it is said in words as well"


def test_an_error_that_nobody_injected_is_told_before_what_follows_from_it():
    """A dead worker leaves its execution idle; `converges` alone would not say why."""
    assert "unbroken" == first_wrong(WorkerDies)


# ---- what must not be taken for a bug --------------------------------------------------------------------------------


class Endless(OrderSaga):
    """Emits for ever, and nobody else wants to run: nothing is wrong, it only does not end."""

    def flows(self):
        @flow(id="order")
        async def order(ctx, input):
            for number in range(20_000):  # so that a harness that lets it go on does end
                await ctx.emit("order.received", number)

        return (order,)


class Patient(OrderSaga):
    """Does something that takes a year."""

    def world(self, sim):
        async def quote(context, input):
            await trio.sleep(365 * 24 * 3600)
            return {"price": 1}

        return {**super().world(sim), "quote": quote}


@pytest.mark.parametrize(("scenario", "ending"), [(Endless, Ending.LIVELOCK), (Patient, Ending.OUT_OF_TIME)])
def test_a_run_that_was_given_up_is_inconclusive_whatever_state_it_is_in(scenario, ending):
    """`converges` says what holds when all is quiet; a run out of budget is not quiet."""
    result = host(lambda h: h.run(scenario, Calm()), Limits(steps=300))
    assert ending is result.ending
    assert () == result.judgement.violations
    assert Verdict.UNKNOWN is result.verdict


class ForgetsDecisions(FoldPass):
    """A fold that never knew a kind of event: every snapshot lacks it, and so does every fold."""

    def own_decisions(self):
        return {}


def test_a_fold_that_drops_something_always_is_told_by_the_true_fold():
    """The ground truth of a fold cannot be the fold that is tested."""
    scenario = exchange(parts=attrs.evolve(Parts(), fold=ForgetsDecisions))(ChatSession)
    result = host(lambda h: h.run(scenario, Calm()))
    assert "fold-consistent" in {violation.invariant for violation in result.judgement.violations}
