"""Kept schedules outlive unrelated edits of the scenario they are of: measured, and held to what was measured."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
FAULTS, PAIRS, DRAWN = "faults alone", "racing pairs", "holds as drawn"
UNTOUCHED = ("locals renamed", "a scenario added", "an invariant added")
"""Edits after which the same things happen at the same points."""

FLOORS = {FAULTS: 0.98, PAIRS: 0.90, DRAWN: 0.93}
"""The least share of replays that reproduce after the edits that add something before what fails; for `a gate before`
a share of its own."""

GATE_FLOOR = 0.70


@pytest.fixture(scope="module")
def across() -> ModuleType:
    """The benchmark, as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE.parent / "benchmarks")
        return importlib.import_module("across_versions")


@pytest.fixture(scope="module")
def rows(across: ModuleType) -> list[Any]:
    """Every second schedule of each kind, after each edit."""
    return across.measure(across.read()[::2])


def share(rows: list[Any]) -> float:
    assert rows
    return sum(row.alike for row in rows) / len(rows)


def test_there_are_more_than_forty_schedules_of_both_sorts(across: ModuleType) -> None:
    kinds = Counter(kind for kind, _ in across.read())
    assert (kinds[FAULTS] >= 40, kinds[PAIRS] >= 15, kinds[DRAWN] >= 15) == (True, True, True)
    assert len({schedule.to_token() for _, schedule in across.read()}) > 100
    assert len(across.EDITS) >= 7


@pytest.mark.parametrize("edit", UNTOUCHED)
def test_an_edit_that_touches_no_point_loses_nothing(rows: list[Any], edit: str) -> None:
    after = [row for row in rows if row.edit == edit]
    assert [] == [row.kept.schedule for row in after if not row.alike or row.lost]


@pytest.mark.parametrize("kind", [FAULTS, PAIRS, DRAWN])
def test_what_is_added_before_loses_few(rows: list[Any], kind: str) -> None:
    after = [row for row in rows if row.kept.kind == kind and row.edit not in (*UNTOUCHED, "a gate before")]
    assert share(after) >= FLOORS[kind]


def test_most_outlive_a_gate_before_everything(rows: list[Any]) -> None:
    assert share([row for row in rows if row.edit == "a gate before"]) >= GATE_FLOOR


def test_over_all_edits_nineteen_in_twenty_reproduce(rows: list[Any], across: ModuleType) -> None:
    print("\n".join(across.show(rows)))  # noqa: T201  # the table, for who asks with -s
    assert share(rows) >= 0.94


def test_an_edit_makes_another_class_and_leaves_the_first_alone(across: ModuleType) -> None:
    scenario = across.scenarios()["order_saga"]
    for edit in across.EDITS:
        other = across.edited(scenario, edit)
        assert other is not scenario
        assert other.name == scenario.name
        assert "_edited_" in other.__module__
