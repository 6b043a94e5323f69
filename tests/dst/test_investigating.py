"""What becomes of a failing run: a schedule that is as short as it gets."""

from __future__ import annotations

from typing import ClassVar

from dst.choices import Written
from dst.faults import Fault, menu
from dst.invariants import Broken, Invariant
from dst.investigating import investigate
from dst.judging import run_one
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.signature import signature_of
from dst.simulation import Simulation
from dst.transparency import Transparency

RAIN = Fault(name="rain", budget=5)


class Dry(Invariant[frozenset[str]]):
    """Broken by rain at all of a, b, c and d, or by rain at e alone."""

    name = "dry"
    says = "somebody stays dry"
    kinds = ("fault", "home")
    initial = frozenset()

    def key(self, record):
        return "all", "all"

    def advance(self, state, record):
        if record[0] == "fault":
            return state | {record[1].partition("#")[0]}
        if {"a", "b", "c", "d"} <= state or "e" in state:
            raise Broken("all are wet", "one who is not")
        return state


class Outing(Scenario):
    """Five places where it may rain."""

    name = "outing"
    story = "five places where it may rain"
    faults: ClassVar = (RAIN,)
    invariants: ClassVar = (Dry(),)

    def build(self, sim: Simulation) -> None:
        """Nothing."""

    async def drive(self, sim: Simulation) -> None:
        """Go there."""
        for place in "abcde":
            point, _ = sim.enter(place, menu(tuple(sim.faults), (("rain", RAIN),)))
            sim.happened(point)
        sim.note("home")


def found(places: str) -> list[str]:
    async def body(simulations: Host) -> list[str]:
        transparency = Transparency(simulations)
        choices = Written([Deviation(at=f"{place}#1", do="rain") for place in places])
        result, violation = await run_one(simulations, transparency, Outing, choices)
        assert violation is not None
        signature = signature_of(result, None, violation)
        failure = await investigate(
            simulations, transparency, Outing, result, violation, signature, seed=1, mutant=None, budget=100
        )
        assert failure.minimal
        assert failure.replays
        return [deviation.at for deviation in failure.schedule.deviations]

    return host(body)


def test_a_long_schedule_gives_way_to_a_shorter_one_that_is_no_part_of_it():
    assert ["e#1"] == found("abcd")


def test_a_short_schedule_stays_what_it_is():
    assert ["e#1"] == found("ae")
