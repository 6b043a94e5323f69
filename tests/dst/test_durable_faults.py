"""Each fault of the durable world does what it says, once, and all is well in the end."""

from __future__ import annotations

import pytest
import trio

from dst.choices import Random, Written
from dst.durable import faults
from dst.durable.scenario import DurableScenario
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.verdict import Verdict
from kernel import flow
from kernel.events import GATE_DELIVERED
from scenarios.chat_session import ChatSession
from scenarios.order_saga import OrderSaga


def run(scenario, *deviations: tuple[str, str]) -> RunResult:
    """Run with these deviations, (point, what is done), each of which must find its point; nothing may be broken."""
    choices = Written([Deviation(at=at, do=do, until="idle" if do == "hold" else "") for at, do in deviations])
    result = host(lambda h: h.run(scenario, choices))
    assert () == choices.missed
    assert ((), Verdict.PASS) == (result.failures, result.verdict)
    return result


def kinds(result: RunResult) -> list[str]:
    return [record[0] for record in result.records]


def runs(result: RunResult, execution_id: str) -> int:
    """How often a flow was run."""
    return sum(record[:2] == ("run", execution_id) for record in result.records)


RECOVERING = ("append:order-1:STEP_COMPLETED:reserve#1", "crash-after")
RESUMING = ("append:chat-1:EXECUTION_RESUMED:message#2", "crash-after")


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_an_execution_whose_append_is_refused_goes_on_when_the_worker_looks_again():
    result = run(OrderSaga, ("append:order-1:STEP_COMPLETED:reserve#1", "refused"))
    assert 2 == runs(result, "order-1")
    assert ("clock", 15_000_000_000) in result.records
    assert {"append-refused": 1} == result.fired


@pytest.mark.parametrize("point", ["append:chat-1:EXECUTION_STARTED#1", "put:chat-1:m0#1", "truncate:chat-1#1"])
def test_a_client_whose_request_is_refused_asks_again(point):
    run(ChatSession, (point, "refused"))


@pytest.mark.parametrize("point", ["remove:chat-1:m0#1", "snapshot:chat-1#1"])
def test_what_is_refused_to_the_driver_interrupts_it_and_nothing_is_lost(point):
    assert ("clock", 15_000_000_000) in run(ChatSession, (point, "refused")).records


def test_a_refused_claim_is_tried_again():
    run(OrderSaga, RECOVERING, ("claim:order-1#1", "refused"))


def test_a_run_without_trouble_is_as_it_was_and_nobody_looks():
    assert ("clock", 15_000_000_000) not in run(OrderSaga, RECOVERING).records


# ---- reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", ["hide-1", "hide-2", "hide-3"])
def test_who_reads_an_older_log_loses_the_position_and_starts_again(hidden):
    result = run(OrderSaga, RECOVERING, ("read:order-1#1", hidden))
    assert 1 == sum(record[0] == "performed" and record[2] == "reserve" for record in result.records)


@pytest.mark.parametrize("point", ["entries#2", "entry:chat-1#2"])
def test_who_sees_an_older_catalogue_finds_it_out_later(point):
    run(ChatSession, RESUMING, (point, "stale"))


@pytest.mark.parametrize("pages", ["by-pages", "by-slow-pages"])
def test_a_log_that_is_cut_while_it_is_read_by_pages_is_read_again(pages):
    run(ChatSession, ("append:chat-1:EXECUTION_RESUMED:message#1", "crash-after"), ("read:chat-1#1", pages))


def test_reads_are_no_points_where_no_fault_of_reads_is_declared():
    class Plain(OrderSaga):
        faults = faults.CRASHES

    assert run(Plain).operations < run(type("Reads", (OrderSaga,), {"faults": faults.READS})).operations


# ---- snapshots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost", "late", "unreadable", "reordered"])
def test_a_worker_that_is_given_a_bad_snapshot_does_not_begin_anew(kind):
    result = run(ChatSession, ("emit:chat-1:1/STREAM_CHUNK/2923fad4#1", "crash-after"), ("load:chat-1#1", kind))
    assert 1 == kinds(result).count("EXECUTION_STARTED")


@pytest.mark.parametrize("kind", ["lost", "late", "unreadable", "reordered"])
def test_so_it_is_when_the_log_has_been_cut(kind):
    cut = ("truncate:chat-1#1", "crash-after")
    assert 1 == kinds(run(ChatSession, cut, ("load:chat-1#2", kind))).count("EXECUTION_STARTED")


# ---- deliveries and effects ------------------------------------------------------------------------------------------


def test_a_lost_message_is_sent_again():
    result = run(ChatSession, ("deliver:message:chat-1:m1#1", "lost"))
    assert ("clock", 7_000_000_000) in result.records


def test_a_message_nobody_was_woken_for_is_found():
    result = run(ChatSession, ("deliver:message:chat-1:m2#1", "unannounced"))
    assert 3 == kinds(result).count("EXECUTION_RESUMED")


def test_an_effect_that_hangs_ends_neither_the_run_nor_ever():
    result = run(OrderSaga, ("effect:order-1/charge#1", "hung"))
    assert not any(record[0] == "performed" and record[2] == "charge" for record in result.records)
    assert "rolled back" not in result.marks, "the charge has not completed: there is nothing to refund"
    assert "timeout" in [r[2].payload["reason"] for r in result.records if r[0] == "STEP_FAILED"]


def test_a_request_that_lands_after_its_caller_has_died_is_counted():
    late = ("effect:order-1/charge#1", "slow")
    assert {"step-timeout": 1} == run(OrderSaga, late).fired
    died = run(OrderSaga, late, ("append:order-1:STEP_FAILED:charge#1", "crash-before"))
    assert 1 == died.fired["landed-after-death"]


# ---- what others do --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["compact", "cancel", "fork", "recover-twice"])
@pytest.mark.parametrize("point", ["EXECUTION_STARTED", "STEP_STARTED:charge", "STEP_COMPLETED:ship"])
def test_others_may_act_at_any_append(act, point):
    run(OrderSaga, (f"append:order-1:{point}#1", act))


def test_what_comes_too_early_is_declined():
    result = run(OrderSaga, ("append:order-1:EXECUTION_STARTED#1", "fork"))
    assert ("declined", "fork", "UnknownExecution") in result.records


def test_a_fork_has_an_end_of_its_own_which_is_not_compared():
    result = run(OrderSaga, ("append:order-1:STEP_COMPLETED:ship#1", "fork"))
    assert ("final", "order-1-fork-1", "completed", "completed", "", "") in result.records
    assert run(OrderSaga).outcome == result.outcome


def test_a_run_that_was_cancelled_is_not_compared_and_one_that_was_not_is():
    assert run(OrderSaga, ("append:order-1:STEP_STARTED:charge#1", "cancel")).outcome is None
    late = run(OrderSaga, ("append:order-1:EXECUTION_COMPLETED#1", "cancel"))
    assert run(OrderSaga).outcome == late.outcome


class Deployed(DurableScenario):
    """A flow that says which version it is, at a gate of two."""

    name, story = "deployed", "two versions"
    faults = (*faults.CRASHES, faults.DEPLOY)
    invariants = ()
    versions = 2

    def flows(self):
        version = self.deployed

        @flow(id="versioned")
        async def versioned(ctx, input):
            await ctx.suspend_all(["go", "on"])
            await ctx.emit("version", version)

        return (versioned,)

    async def drive(self, sim):
        await self.start("versioned", execution_id="x")
        await self.deliver("x", "go", delivery_id="d1")
        if self.stops:
            self.deploy()
        await self.deliver("x", "on", delivery_id="d2")

    stops = False


def version(result: RunResult) -> int:
    return next(r[6].payload for r in result.records if r[0] == "emitted")


def test_a_worker_may_come_up_with_the_next_version():
    crash = (f"append:x:{GATE_DELIVERED}:go#1", "crash-after")
    assert 1 == version(run(Deployed, crash))
    deployed = run(Deployed, crash, ("deploy:worker#1", "next"))
    assert (2, None) == (version(deployed), deployed.outcome)


def test_a_drive_deploys_by_starting_the_worker_again():
    stopped = run(type("Stops", (Deployed,), {"stops": True}))
    assert 2 == version(stopped)
    assert ("stop", "worker.1", "version 2 is deployed") in stopped.records


# ---- contents and subscribers ----------------------------------------------------------------------------------------


class Apart(ChatSession):
    """All payloads are kept apart from the log."""

    inline_bytes_max = 0
    faults = (*faults.ALL, faults.CONTENT_MISSING, *faults.REFUSALS)


def test_content_that_is_missing_once_interrupts_and_is_found_later():
    result = run(Apart, RESUMING, (f"resolve:{_hash_of_the_start()}#1", "missing"))
    assert {"crash-after": 1, "content-missing": 1} == result.fired


def _hash_of_the_start() -> str:
    seen: list[str] = []

    class Listening(Apart):
        def finish(self, sim):
            seen.append(next(iter(self.contents.texts))[:8])

    run(Listening)
    return seen[0]


class Followed(ChatSession):
    """A session with a subscriber."""

    faults = (*faults.ALL, *faults.NOTIFICATIONS)

    async def drive(self, sim):
        live, self.seen = self.live_query(), []
        sim.spawn(lambda: self._follow(live), "subscriber")
        await super().drive(sim)

    async def _follow(self, live):
        async with live.subscribe("chat-1") as states:
            async for state in states:
                self.seen.append(state["lastSequence"])

    def finish(self, sim):
        super().finish(sim)
        assert sorted(set(self.seen)) == self.seen
        assert self.seen[-1] == self.db.rows["chat-1"].head


def test_a_subscriber_comes_to_the_end_whatever_becomes_of_its_wake_ups():
    async def body(h):
        fired = set()
        for seed in range(60):
            result = await h.run(Followed, Random(seed, faults.NOTIFICATIONS))
            assert Verdict.PASS is result.verdict, seed
            fired |= result.fired.keys()
        return fired

    assert {fault.name for fault in faults.NOTIFICATIONS} == host(body)


def test_a_lost_wake_up_is_made_up_for_by_a_reminder():
    class Lonely(Followed):
        async def drive(self, sim):
            live, self.seen = self.live_query(), []
            sim.spawn(lambda: self._follow(live), "subscriber")
            await trio.sleep(1)
            await self.start("chat", {"user": "ada"}, execution_id="chat-1")

    result = run(Lonely, *((f"notify:chat-1:1#{n}", "lost") for n in range(1, 6)))
    assert ("clock", 31_000_000_000) in result.records
