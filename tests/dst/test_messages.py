"""Messages between nodes: calm, lost, late, twice, and when who sent them is dead."""

from __future__ import annotations

import json
from collections.abc import Hashable

import pytest
import trio

from dst import messages
from dst.choices import Written
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING
from dst.footprints import EVERYTHING, WRITE
from dst.invariants import Broken, Invariant
from dst.investigating import investigate
from dst.judging import run_one
from dst.messages import LATE_SECONDS, Network
from dst.passings import Looking, Passing
from dst.racing import races
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.sentences import sentence
from dst.signature import signature_of
from dst.strategies.orders import Orders
from dst.transparency import Transparency
from scenarios.leader_lease import LeaderLease


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


# ---- what a message touches ------------------------------------------------------------------------------------------


class Posts(Scenario):
    """Tasks of one node send to servers, which keep what came in order; each asks, and keeps what it was answered."""

    name = "posts"
    story = "a test's own"
    faults = (HOLDING,)
    invariants = ()
    says_to_whom = True
    tasks = (("a", "b"), ("a",), ("b", "a"))

    def build(self, sim):
        self.sim, self.network = sim, Network(sim)
        self.kept = {"a": [], "b": []}
        self.told = {}
        sim.add_node("ann", self.work)

    async def work(self, incarnation):
        async with trio.open_nursery() as nursery:
            for number in range(len(self.tasks)):
                nursery.start_soon(self.task, number)

    async def task(self, number):
        for nth, server in enumerate(self.tasks[number]):

            def serve(server=server, name=f"{number}.{nth}"):
                self.kept[server].append(name)
                return len(self.kept[server])

            to = server if self.says_to_whom else ""
            place = await self.network.ask(f"{number}.{nth}", serve, timeout_seconds=3, to=to)
            self.told[f"{number}.{nth}"] = place

    async def drive(self, sim):
        pass

    def outcome(self, sim):
        return json.dumps([self.kept, self.told], sort_keys=True)

    def behaviour(self, sim, cap):
        return self.outcome(sim)


def ends(scenario: type[Scenario], *, reduced: bool) -> tuple[int, set[Hashable | None]]:
    """Run all orders: how many there are, and how they end."""

    async def body(simulations: Host) -> tuple[int, set[Hashable | None]]:
        orders, runs, ended = Orders(reduced=reduced), 0, set[Hashable | None]()
        while True:
            steer = orders.steer((), scenario)
            ended.add((await simulations.run(scenario, steer, judged=False)).outcome)
            steer.finish()
            runs += 1
            if not orders.advance():
                return runs, ended

    return host(body)


SENDERS = [(("a",), ("b",)), (("a",), ("a",)), (("a", "b"), ("b",)), (("a", "b"), ("b", "a")), (("a",), ("b",), ("a",))]


@pytest.mark.parametrize("tasks", SENDERS)
def test_leaving_out_orders_of_messages_loses_no_end(tasks):
    system = type("System", (Posts,), {"tasks": tasks})
    (every, all_ends), (fewer, same_ends) = ends(system, reduced=False), ends(system, reduced=True)
    assert all_ends == same_ends
    assert fewer <= every


def test_messages_to_two_receivers_can_change_places_and_to_one_cannot():
    assert (1, 2) == tuple(len(ends(type("S", (Posts,), {"tasks": t}), reduced=True)[1]) for t in SENDERS[:2])
    apart = type("Apart", (Posts,), {"tasks": SENDERS[0]})
    unsaid = type("Unsaid", (apart,), {"says_to_whom": False})
    assert ends(apart, reduced=True)[0] < ends(unsaid, reduced=True)[0]


def test_a_message_touches_the_mailbox_it_goes_to_and_everything_if_that_is_not_said():
    async def touched(simulations: Host, scenario: type[Scenario]) -> dict[str, set[tuple[str, str]]]:
        looking = Looking(())
        await simulations.run(scenario, looking, judged=False)
        return {p.at: set(p.footprint) for p in looking.passings() if p.at.startswith("send:")}

    said = host(lambda h: touched(h, Posts))
    assert {("mailbox:a", WRITE)} == said["send:0.0#1"] == said["send:1.0#1"]
    assert {("mailbox:b", WRITE)} == said["send:2.0#1"]
    assert {("mailbox:who asks 0.0", WRITE)} == said["send:answer to 0.0#1"]
    unsaid = host(lambda h: touched(h, type("Unsaid", (Posts,), {"says_to_whom": False})))
    assert {frozenset({(EVERYTHING, WRITE)})} == {frozenset(touches) for touches in unsaid.values()}


class AnnLeadsFirst(Invariant[bool]):
    """Broken where somebody else is granted the first lease."""

    name = "ann-leads-first"
    says = "ann has the first lease"
    kinds = ("granted",)
    initial = False

    def key(self, record):
        return "lock", "lock"

    def advance(self, state, record):
        if not state and not record[2].startswith("ann."):
            raise Broken(f"{record[2]} has it", "ann")
        return True


class AnnsLease(LeaderLease):
    """In the calm order she has."""

    name = "anns_lease"
    invariants = (AnnLeadsFirst(),)


@pytest.mark.parametrize("until", ["idle", "send:cleo acquires#1", "send:answer to bob acquires#1", "send:bob reads#1"])
def test_a_hold_of_a_message_becomes_the_pair_that_races(until):
    async def body(simulations: Host) -> tuple[Deviation, ...]:
        transparency = Transparency(simulations)
        way = Written([Deviation(at="send:ann acquires#1", do="hold", until=until)])
        result, violation = await run_one(simulations, transparency, AnnsLease, way)
        assert violation is not None
        signature = signature_of(result, None, violation)
        failure = await investigate(
            simulations, transparency, AnnsLease, result, violation, signature, seed=None, mutant=None, budget=400
        )
        return failure.schedule.deviations

    (hold,) = host(body)
    assert (hold.at, hold.until) == ("send:ann acquires#1", "send:bob acquires#1")
    assert sentence(hold) == "hold the sending of message 'ann acquires' until message 'bob acquires' is sent"


def test_a_message_to_somebody_else_that_is_nearer_is_not_what_it_races_with():
    system = type("System", (Posts,), {"tasks": SENDERS[4]})
    way = Deviation(at="send:0.0#1", do="hold", until="idle")

    async def looked(simulations: Host, *deviations: Deviation) -> tuple[Passing, ...]:
        looking = Looking(deviations)
        await simulations.run(system, looking, judged=False)
        return looking.passings()

    offered = races(way, host(looked), host(lambda h: looked(h, way)))
    assert (way.at, "send:2.0#1") == (offered[0].at, offered[0].until)
