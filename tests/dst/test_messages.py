"""Messages between nodes: calm, lost, late, twice, and when who sent them is dead."""

from __future__ import annotations

import pytest
import trio

from dst import messages
from dst.choices import Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING
from dst.messages import LATE_SECONDS, Network
from dst.run import host
from dst.scenario import Scenario
from dst.schedule import Deviation


class Asks(Scenario):
    """A node asks the world one thing, and gives up after three seconds; a later life asks nothing."""

    name = "asks"
    story = "a test's own"
    faults = (CRASH_BEFORE, CRASH_AFTER, HOLDING, *messages.ALL)
    invariants = ()

    def build(self, sim):
        self.network = Network(sim)
        sim.add_node("ann", self.work)

    async def work(self, incarnation):
        def serve():
            self.sim.note("served", round(trio.current_time()))
            return 42

        if incarnation.number > 1:
            return
        try:
            said = await self.network.ask("ann asks", serve, timeout_seconds=3)
        except trio.TooSlowError:
            said = "too slow"
        self.sim.note("said", said, round(trio.current_time()))

    async def drive(self, sim):
        self.sim = sim


def play(*acts: str) -> list[tuple]:
    split = (act.partition("=") for act in acts)
    deviations = [Deviation(at=f"send:{message}#1", do=do) for message, _, do in split]
    choices = Written(deviations)
    result = host(lambda h: h.run(Asks, choices))
    assert () == choices.missed
    return [record for record in result.records if record[0] in ("served", "said")]


def test_a_calm_message_arrives_at_once():
    assert [("served", 0), ("said", 42, 0)] == play()


def test_what_is_lost_is_not_served():
    assert [("said", "too slow", 3)] == play("ann asks=lost")


def test_an_answer_that_is_lost_was_served():
    assert [("served", 0), ("said", "too slow", 3)] == play("answer to ann asks=lost")


def test_what_is_late_is_served_when_nobody_waits_any_more():
    assert [("said", "too slow", 3), ("served", round(LATE_SECONDS))] == play("ann asks=late")


def test_what_comes_twice_is_served_twice_and_answered_once():
    assert [("served", 0), ("said", 42, 0), ("served", round(LATE_SECONDS))] == play("ann asks=twice")


@pytest.mark.parametrize(("crash", "served"), [("crash-before", []), ("crash-after", [("served", 0)])])
def test_a_message_outlives_who_sent_it_once_it_is_on_its_way(crash, served):
    assert served == play(f"ann asks={crash}")
