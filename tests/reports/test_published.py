"""What is published: pages that their records give, of the mutants and scenarios that there are."""

from __future__ import annotations

import re
from pathlib import Path

import reports
from dst.killing import EXPLORE
from dst.records import parse_explorations, parse_mutants, to_text
from dst.strategies.portfolio import DEFAULT, STRATEGIES
from reports.exploration import page as exploration_page
from reports.mutants import page, survivors
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS

PUBLISHED = Path(reports.__file__).parent / "published"
TEXT = (PUBLISHED / "mutants.json").read_text(encoding="utf-8")
RECORD = parse_mutants(TEXT, "mutants.json")


def test_the_page_is_what_its_record_gives():
    assert (PUBLISHED / "mutants.md").read_text(encoding="utf-8") == page(RECORD)


def test_the_record_is_written_as_it_is_read():
    assert TEXT == to_text(RECORD)


def test_it_tells_of_every_mutant_that_there_is_and_none_survived():
    assert sorted(MUTANTS) == sorted(row.name for row in RECORD.mutants)
    assert [] == survivors(RECORD)


def test_each_kill_is_short_minimal_and_of_the_mutant():
    kills = [kill for row in RECORD.mutants for kill in row.kills if kill.killed]
    assert len(kills) >= 5 * (len(MUTANTS) - 1)
    assert all(kill.minimal and kill.true_kernel_holds and len(kill.sentences) == kill.deviations for kill in kills)
    assert max(kill.deviations or 0 for kill in kills if kill.strategy == DEFAULT) <= 5
    assert max(kill.deviations or 0 for kill in kills) <= 6


def test_every_strategy_was_tried_on_every_mutant():
    assert (*STRATEGIES, EXPLORE) == RECORD.strategies
    wanted = {(name, strategy) for name in MUTANTS for strategy in RECORD.strategies}
    assert wanted == {(row.name, kill.strategy) for row in RECORD.mutants for kill in row.kills}


def test_each_mutant_that_is_found_is_explained():
    told = (PUBLISHED / "explanations.md").read_text(encoding="utf-8")
    assert [row.name for row in RECORD.mutants if not row.equivalent] == re.findall(r"^## `(.*)`$", told, re.MULTILINE)


# ---- explored scenarios ----------------------------------------------------------------------------------------------

EXPLORED_TEXT = (PUBLISHED / "exploration.json").read_text(encoding="utf-8")
EXPLORED = parse_explorations(EXPLORED_TEXT, "exploration.json")


def test_the_page_of_explored_scenarios_is_what_its_record_gives():
    assert (PUBLISHED / "exploration.md").read_text(encoding="utf-8") == exploration_page(EXPLORED)
    assert EXPLORED_TEXT == to_text(EXPLORED)


def test_it_tells_of_every_scenario_that_there_is_which_closed_or_names_its_bounds():
    assert sorted(SCENARIOS) == sorted(one.scenario for one in EXPLORED.explorations)
    assert (0, False) == (len(EXPLORED.missing), EXPLORED.interrupted)
    assert all(one.closed or one.stopped for one in EXPLORED.explorations)
    assert [] == [one.scenario for one in EXPLORED.explorations if one.failures or one.spurious or one.diverged]
    assert EXPLORED.seconds <= 600
    assert EXPLORED.workers <= 2
