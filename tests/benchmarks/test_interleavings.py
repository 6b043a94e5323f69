"""Sleep sets leave few orders to be run, and lose no state: counted on small flows over the real kernel."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from scenarios.parallel_quotes import ParallelQuotes


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, as a module."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("interleavings")


@pytest.mark.parametrize(("flow", "count", "most"), [("Emits", 1680, 84), ("Steps", 924, 46)])
def test_where_nothing_is_decided_sleep_sets_run_at_least_twenty_times_fewer(
    orders: ModuleType, flow: str, count: int, most: int
) -> None:
    every, fewer = (orders.search(getattr(orders, flow), reduced=reduced) for reduced in (False, True))
    assert every.runs == count
    assert fewer.runs <= most
    assert every.final == fewer.final
    assert every.visible == fewer.visible
    assert len(every.visible) > 50


def test_decisions_cannot_change_places(orders: ModuleType) -> None:
    every, fewer = (orders.search(orders.Decisions, reduced=reduced) for reduced in (False, True))
    assert (6, 6, 0) == (every.runs, fewer.runs, fewer.pruned)
    assert every.visible == fewer.visible
    assert len(every.final) == 6


def test_a_flow_with_effects_that_speak_is_searched_as_far_as_its_bound(orders: ModuleType) -> None:
    searched = orders.search(ParallelQuotes, reduced=True, runs_max=60)
    assert (60, False) == (searched.runs, searched.whole)
    assert searched.pruned


def test_the_quick_table_has_a_row_for_each_flow(orders: ModuleType) -> None:
    lines = list(orders.show(orders.measure(quick=True)))
    assert len(lines) == 4
    assert "two branches of two steps" in lines[1]
    assert "as far as its bound" in lines[3]
