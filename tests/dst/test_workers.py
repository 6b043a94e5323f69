"""Several workers on one simulated store: the ports pass the kernel's kits, clocks may be wrong, sweeps end."""

from __future__ import annotations

import contextlib

import attrs
import pytest
import trio

from dst.choices import Calm, Written
from dst.durable import faults
from dst.durable.clock import EPOCH_MS, JUMP_MS, LATE_MS, SimClock
from dst.durable.leases import SimLeases
from dst.durable.scenario import DurableScenario
from dst.durable.stores import SimStore
from dst.faults import CRASH_AFTER, CRASH_BEFORE, STALLING
from dst.run import RunResult, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.simulation import STALL_SECONDS, Moment
from dst.strategies.explore import explore
from dst.verdict import Ending
from kernel import flow, step
from kernel.conformance_leases import LEASE_CHECKS


def play(scenario: type[Scenario], *deviations: Deviation) -> RunResult:
    return host(lambda h: h.run(scenario, Written(deviations) if deviations else Calm()))


def kinds(result: RunResult, *of: str):
    return [record for record in result.records if record[0] in of]


# ---- leases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", LEASE_CHECKS, ids=lambda check: check.name)
def test_simulated_leases_conform(check):
    # K-RUN-3, K-LOG-5
    class Kit(Scenario):
        name, story, faults, invariants = "kit", "", (), ()

        def build(self, sim):
            pass

        async def drive(self, sim):
            @contextlib.asynccontextmanager
            async def store():
                db = SimStore(sim)
                yield attrs.evolve(db.stores, leases=SimLeases(db))

            @contextlib.asynccontextmanager
            async def second(stores):
                yield stores

            await check.run(store, second)

    assert ((), Ending.QUIESCENT) == ((result := play(Kit)).failures, result.ending)


# ---- workers ---------------------------------------------------------------------------------------------------------

dig = step("dig")


@flow
async def hole(ctx, _input):
    return await ctx.run(dig)


class Holes(DurableScenario):
    """One step of 50 s on two workers."""

    name = "holes"
    story = "two dig one hole"
    faults = (CRASH_AFTER, STALLING, faults.LEASE_REFUSED, faults.TIMER_LATE)
    invariants = ()
    workers = ("one", "two")
    lease_seconds = 30

    def flows(self):
        return [hole]

    def world(self, sim):
        return {"dig": self.service("spade").effect("dig", lambda _: None, seconds=50)}

    async def drive(self, sim):
        await self.start(hole, execution_id="hole-1")


def owners(result: RunResult) -> list[str]:
    return [record[2] for record in kinds(result, "claimed")]


def test_a_lease_that_is_renewed_is_left_alone_by_the_other_worker():
    result = play(Holes)
    assert ["one.1"] == owners(result)
    assert 4 <= len(kinds(result, "renewed"))


def test_the_other_worker_takes_over_when_a_lease_runs_out_in_the_middle_of_a_step():
    result = play(Holes, Deviation(at="renew:hole-1#1", do="stall"))
    assert ["one.1", "two.1"] == owners(result)
    (end,) = kinds(result, "EXECUTION_COMPLETED")
    assert end[2].metadata["appendId"].startswith("two.1/")


def test_one_refused_renewal_does_not_cost_the_lease():
    assert ["one.1"] == owners(play(Holes, Deviation(at="renew:hole-1#1", do="refused")))


def test_a_worker_without_a_name_waits_for_its_own_lease_after_a_crash():
    result = play(Holes, Deviation(at="append:hole-1:STEP_STARTED:dig#1", do="crash-after"))
    (_, second), when = owners(result), [r[1] for r in kinds(result, "clock")]
    assert second in ("one.2", "two.1")
    assert 30 * 10**9 <= min(at for at in when if result.records.index(("clock", at)) > _claimed(result, 1) - 2)


def _claimed(result: RunResult, nth: int) -> int:
    return result.records.index(kinds(result, "claimed")[nth])


def test_a_run_with_sweeping_workers_comes_to_rest():
    class Parks(Holes):
        def flows(self):
            @flow(id="hole")
            async def parks(ctx, _input):
                await ctx.suspend("never")

            return [parks]

        async def drive(self, sim):
            await self.start("hole", execution_id="hole-1")

    result = play(Parks)
    assert (Ending.QUIESCENT, []) == (result.ending, kinds(result, "fault"))
    assert max(record[1] for record in kinds(result, "clock")) <= 10 * 10**9


def test_two_workers_whose_timers_are_due_at_once_do_not_claim_from_each_other_for_ever():
    # K-RUN-3
    class Sleepers(Holes):
        def flows(self):
            @flow(id="hole")
            async def sleeps(ctx, _input):
                await ctx.sleep(100)

            return [sleeps]

        async def drive(self, sim):
            await self.start("hole", execution_id="hole-1")

    result = play(Sleepers)
    assert (Ending.QUIESCENT, 1) == (result.ending, len(kinds(result, "EXECUTION_COMPLETED")))
    assert len(owners(result)) <= 4


# ---- clocks ----------------------------------------------------------------------------------------------------------


class Sleeps(Scenario):
    """Two sleepers on one clock, which notes what it shows and what is true when they wake."""

    name, story, invariants = "sleeps", "", ()
    faults = faults.TIMES

    def build(self, sim):
        self.clock = SimClock(sim, "w")

    async def drive(self, sim):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.sleep, sim, 10, name="first")
            nursery.start_soon(self.sleep, sim, 4 * 3600, name="second")

    async def sleep(self, sim, seconds):
        await self.clock.sleep_until(EPOCH_MS + seconds * 1000)
        sim.note("woke", seconds, self.clock.now_ms() - EPOCH_MS, sim.scheduler.now_ns // 10**6)


def woke(*deviations: Deviation):
    """Return, by sleeper, what the clock shows and what is true, in ms."""
    return {record[1]: record[2:] for record in kinds(play(Sleeps, *deviations), "woke")}


def test_a_calm_clock_shows_the_truth():
    assert {10: (10_000, 10_000), 14_400: (14_400_000, 14_400_000)} == woke()


def test_a_timer_may_be_late_or_early():
    assert (10_000 + LATE_MS,) * 2 == woke(Deviation(at="timer:w:first#1", do="late"))[10]
    assert (5_000,) * 2 == woke(Deviation(at="timer:w:first#1", do="early"))[10]


def test_who_sleeps_on_a_clock_that_jumps_forward_wakes_by_it():
    seen = woke(Deviation(at="timer:w:second#1", do="forward"))
    assert (JUMP_MS, 0) == seen[10]
    assert (14_400_000, 14_400_000 - JUMP_MS) == seen[14_400]


def test_who_sleeps_on_a_clock_that_jumps_back_sleeps_on():
    seen = woke(Deviation(at="timer:w:second#1", do="back"))
    assert (10_000, 10_000 + JUMP_MS) == seen[10]


def test_a_clock_is_off_for_all_lives_of_its_worker_and_for_nobody_else():
    class Off(Holes):
        faults = (CRASH_AFTER, *faults.TIMES)

        def finish(self, sim):
            super().finish(sim)
            sim.note("off", *(self.clocks[name].off_ms for name in self.workers))

    jump = Deviation(at="timer:one:lease hole-1#1", do="forward")
    result = play(Off, jump, Deviation(at="renew:hole-1#1", do="crash-after"))
    assert [("off", JUMP_MS, 0)] == kinds(result, "off")


def test_a_stall_is_longer_than_the_leases_it_is_to_outlast():
    assert STALL_SECONDS > Holes.lease_seconds


# ---- exploring -------------------------------------------------------------------------------------------------------


class Empty(Holes):
    """A start, and an end."""

    faults = (CRASH_BEFORE, CRASH_AFTER)

    def flows(self):
        @flow(id="hole")
        async def nothing(ctx, _input):
            return None

        return [nothing]

    async def drive(self, sim):
        await self.start("hole", execution_id="hole-1")


@pytest.mark.slow
def test_the_crash_schedules_of_two_workers_close_on_a_small_flow():
    report = host(lambda h: explore(h, Empty))
    assert (True, [], []) == (report.closed, report.found, report.spurious)


def test_what_can_be_seen_of_the_world_includes_leases_and_idle_workers():
    seen: list[str] = []

    def spy(scenario, sim, point, menu, moment):
        if point.startswith("renew:") and moment is Moment.AFTER:
            seen.append(scenario.behaviour(sim, 1))

    class Digs(Holes):
        faults = (CRASH_BEFORE, CRASH_AFTER)

    host(lambda h: h.run(Digs, Calm(), spy=spy))
    assert len(seen) == len(set(seen)) >= 4  # the request under way is nearer to its end each time
