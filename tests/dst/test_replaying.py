"""What a replay makes of deviations that do not find their points: moved to points like theirs, or left lost."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from dst.replaying import alike, settle
from dst.run import host
from dst.scenario import Scenario
from dst.schedule import Deviation

HERE = Path(__file__).parent


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Small scenarios over no kernel."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("toy_scenarios")


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Tasks that can be held."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("ordered_toys")


def settled(scenario: type[Scenario], *deviations: Deviation) -> tuple[Deviation, ...]:
    return host(lambda h: settle(h, scenario, deviations))


def crash(item: str, do: str = "crash-before") -> Deviation:
    return Deviation(at=f"append:box-1:WRITTEN:item {item}", do=do)


@pytest.mark.parametrize(
    ("point", "other"),
    [
        ("append:order-1:STEP_COMPLETED:charge#1", "append:order-1:STEP_COMPLETED:charge#12"),
        ("emit:order-1:0/order.charged/3f9a1b2c#1", "emit:order-1:2/order.charged/3f9a1b2c#1"),
        ("emit:research-1::archive:0/reader.came/3f9a1b2c#1", "emit:research-1::archive:1/reader.came/3f9a1b2c#2"),
        ("call:emit:quotes-1:/0.1:quotes.wanted#1", "call:emit:quotes-1:/1.1:quotes.wanted#1"),
        ("task:1/execution quotes-1/1#1", "task:2/execution quotes-1(2)/1(3)#5"),
    ],
)
def test_what_differs_only_in_counts_is_alike(point: str, other: str) -> None:
    assert alike(point, other)
    assert alike(other, point)


@pytest.mark.parametrize(
    ("point", "other"),
    [
        ("append:order-1:STEP_COMPLETED:charge#1", "append:order-2:STEP_COMPLETED:charge#1"),
        ("append:order-1:STEP_COMPLETED:charge#1", "append:order-1:STEP_STARTED:charge#1"),
        ("emit:order-1:0/order.charged/3f9a1b2c#1", "emit:order-1:0/order.charged/11111111#1"),
        ("effect:chat-1/answer[0]#1", "effect:chat-1/answer[1]#1"),
        ("effect:order-1/release#compensate:0#1", "effect:order-1/release#compensate:1#1"),
        ("task:1/execution quotes-1/1#1", "task:1/execution quotes-1/2#1"),
        ("call:emit:quotes-1:/0.1:quotes.wanted#1", "call:emit:quotes-1:/0.2:quotes.wanted#1"),
    ],
)
def test_what_is_about_something_else_is_not(point: str, other: str) -> None:
    assert not alike(point, other)


def test_a_schedule_that_finds_its_points_stays_as_it_is(toys: ModuleType) -> None:
    wanted = (crash("0#1"), crash("1#1", "crash-after"))
    assert wanted == settled(toys.Steady, *wanted)


def test_a_deviation_is_moved_to_the_nearest_occurrence_that_there_is(toys: ModuleType) -> None:
    assert (crash("1#1"),) == settled(toys.Steady, crash("1#9"))


def test_two_deviations_are_not_moved_to_one_point(toys: ModuleType) -> None:
    assert (crash("1#1"), crash("1#2")) == settled(toys.Steady, crash("1#8"), crash("1#9"))


def test_what_has_no_like_is_left_lost(toys: ModuleType) -> None:
    wanted = (crash("9#1"), crash("1#1", "explode"), crash("1#2"))
    assert (*wanted[:2], crash("1#1")) == settled(toys.Steady, *wanted)


def test_what_a_hold_waits_for_is_moved_too(tasks: ModuleType) -> None:
    hold = Deviation(at="op:0.0#1", do="hold", until="op:1.1#4")
    (moved,) = settled(tasks.Fine, hold)
    assert ("op:0.0#1", "op:1.1#1") == (moved.at, moved.until)


def test_a_hold_that_waits_for_what_never_comes_waits_for_it_still(tasks: ModuleType) -> None:
    hold = Deviation(at="op:0.0#1", do="hold", until="op:7.1#1")
    assert (hold,) == settled(tasks.Fine, hold)
    idle = Deviation(at="op:0.0#1", do="hold", until="idle")
    assert (idle,) == settled(tasks.Fine, idle)
