"""Replays of what a run has left: what they say of another flow, and what is no part of a log."""

from __future__ import annotations

import attrs

from dst.choices import Calm
from dst.durable.replays import replays_of
from dst.mutant import exchange
from dst.run import RunResult, host
from kernel import Parts, flow
from kernel.events import STEP_COMPLETED
from scenarios.fork_and_replay import ForkAndReplay, article, write
from scenarios.order_saga import OrderSaga


def replayed(replaying, spoil=lambda history: None) -> list[str]:
    """Run calmly, spoil the published article's history, and replay it; return what is wrong."""
    faults: list[str] = []

    class Replays(ForkAndReplay):
        def look_back(self, sim):
            async def look():
                spoil(self.db.history["published"])
                faults.extend(r.fault for r in await replays_of(self.db, replaying, Parts(), "published"))

            sim.spawn(look, "replays")

    result: RunResult = host(lambda h: h.run(Replays, Calm()))
    assert () == result.failures
    return faults


def test_the_flow_that_made_the_log_is_silent():
    assert {""} == set(replayed(article))


@flow(id="article")
async def says_more(ctx, brief):
    await ctx.emit("article.draft", 1)
    return await article.function(ctx, brief)


@flow(id="article")
async def writes_twice(ctx, brief):
    await ctx.run(write, brief, key="again")
    return await article.function(ctx, brief)


def test_one_that_would_append_something_is_told_of():
    assert "it would append article.draft 1" in replayed(says_more)


def test_one_that_asks_for_something_else_is_told_of():
    faults = replayed(writes_twice)
    assert all("write[again]" in fault for fault in faults)
    assert len(faults) > 1


def test_what_stands_behind_an_end_is_no_part_of_what_led_to_it():  # a verifier must not make a hole of its own
    def trail(history):
        late = next(event for event in history if event.type == STEP_COMPLETED)
        history.append(attrs.evolve(late, sequence=len(history)))

    assert {""} == set(replayed(article, trail))


def test_a_scenario_that_declares_it_has_its_logs_replayed_and_no_other():
    kinds = [record[0] for record in host(lambda h: h.run(OrderSaga, Calm())).records]
    assert "replayed" in kinds
    silent = exchange(invariants=tuple(i for i in OrderSaga.invariants if i.name != "replay-silent"))(OrderSaga)
    assert "replayed" not in [record[0] for record in host(lambda h: h.run(silent, Calm())).records]
