"""Holds are said as the pair of operations that race, wherever the hold that was found began and ended."""

from __future__ import annotations

from typing import ClassVar

import pytest

from dst import shrink as shrinking
from dst.choices import Written
from dst.footprints import READ, WRITE
from dst.invariants import Broken, Invariant
from dst.investigating import Failure, investigate
from dst.judging import run_one
from dst.passings import Looking, Passing
from dst.racing import races
from dst.run import Host, host
from dst.schedule import Deviation
from dst.signature import signature_of
from dst.transparency import Transparency
from tests.dst.ordered_toys import Tasks

RACE = Deviation(at="op:0.2#1", do="hold", until="op:1.4#1")


class ReadsWhatIsWritten(Invariant[bool]):
    """Broken by a read before the write."""

    name = "reads-what-is-written"
    says = "what is read was written before"
    kinds = ("did",)
    initial = False

    def key(self, record):
        return "box", "box"

    def advance(self, state, record):
        if record[1:] == (1, 4) and not state:
            raise Broken("it was read too early", "written, then read")
        return state or record[1:] == (0, 2)


class Late(Tasks):
    """In the calm order the write is in time; nothing else that these tasks do matters to each other."""

    name = "late"
    invariants: ClassVar = (ReadsWhatIsWritten(),)
    tasks: ClassVar = (
        (("add", "a"), ("add", "a"), ("write", "x"), ("add", "a")),
        (*(("add", "b"),) * 4, ("read", "x"), ("add", "b")),
        (("add", "c"),) * 8,
    )


def found(*deviations: Deviation) -> Failure:
    """What becomes of a run with these deviations, which must fail."""

    async def body(simulations: Host) -> Failure:
        transparency = Transparency(simulations)
        result, violation = await run_one(simulations, transparency, Late, Written(deviations))
        assert violation is not None
        signature = signature_of(result, None, violation)
        return await investigate(
            simulations, transparency, Late, result, violation, signature, seed=None, mutant=None, budget=400
        )

    return host(body)


def hold(at: str, until: str) -> Deviation:
    return Deviation(at=at, do="hold", until=until)


WAYS = [
    pytest.param(RACE, id="as it is best said"),
    pytest.param(hold("op:0.2#1", "idle"), id="until nothing else can run"),
    pytest.param(hold("op:0.2#1", "idle after op:1.4#1"), id="until that and nothing else can run"),
    pytest.param(hold("op:0.2#1", "op:1.5#1"), id="until a later operation"),
    pytest.param(hold("op:0.2#1", "op:2.7#1"), id="until an operation that has nothing to do with it"),
    pytest.param(hold("op:0.0#1", "op:1.4#1"), id="from an earlier operation"),
    pytest.param(hold("op:0.1#1", "op:2.7#1"), id="from an earlier operation until another one"),
    pytest.param(hold("task:1/task 0#1", "op:1.4#1"), id="from the task's first turn"),
    pytest.param(hold("task:1/task 0#2", "idle"), id="from a later turn of the task"),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_hold_becomes_the_pair_that_races(way):
    failure = found(way)
    assert (RACE,) == failure.schedule.deviations
    assert failure.minimal
    assert failure.replays


def test_without_that_pass_it_stays_as_it_was_found(monkeypatch):
    """So what is asked above is not so from the start."""
    monkeypatch.setattr(shrinking, "races", lambda *_: [])
    way = hold("op:0.1#1", "op:2.7#1")
    assert (way,) == found(way).schedule.deviations


def test_what_was_paired_stays_when_it_is_shrunk_again():
    first = found(hold("op:0.0#1", "idle"), hold("op:2.6#1", "idle")).schedule.deviations
    assert (RACE,) == first
    assert first == found(*first).schedule.deviations


def test_the_pair_is_said_in_words():
    assert "hold op:0.2#1 until op:1.4#1" == RACE.sentence()


# ---- which holds one may stand for -----------------------------------------------------------------------------------


def looked(*deviations: Deviation) -> tuple[Passing, ...]:
    async def body(simulations: Host) -> tuple[Passing, ...]:
        looking = Looking(deviations)
        await simulations.run(Late, looking, judged=False)
        return looking.passings()

    return host(body)


def test_a_run_that_is_looked_at_is_the_same_run():
    async def body(simulations: Host) -> list[str]:
        way = [hold("task:1/task 0#1", "op:1.4#1")]
        return [(await simulations.run(Late, choices)).digest for choices in (Written(way), Looking(way))]

    assert 1 == len(set(host(body)))


def test_each_operation_is_noted_with_what_it_touches_and_whose_it_is():
    passings = {passing.at: passing for passing in looked()}
    assert frozenset({("x", WRITE)}) == passings["op:0.2#1"].footprint
    assert frozenset({("x", READ)}) == passings["op:1.4#1"].footprint
    assert passings["op:0.2#1"].task == passings["op:0.0#1"].task == passings["task:1/task 0#1"].task
    assert passings["op:0.2#1"].task != passings["op:1.4#1"].task
    done = passings["op:0.2#1"].done
    assert done is not None
    assert passings["op:0.2#1"].came < done
    assert passings["task:1/task 0#1"].done is None


def test_what_conflicts_comes_first_and_what_does_not_only_as_another_end():
    way = hold("op:0.1#1", "op:2.7#1")
    offered = races(way, looked(), looked(way))
    assert RACE == offered[0]
    assert {"op:0.1#1"} == {pair.at for pair in offered if pair.until.startswith("op:2.")}
    assert not [pair for pair in offered if pair.at == "op:0.3#1"]
