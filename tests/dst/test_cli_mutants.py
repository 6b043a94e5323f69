"""`dst mutants`: the matrix, what survives, and what is kept of it."""

from __future__ import annotations

import json

import attrs
import pytest

from dst.killing import Attempt, attempt
from dst.mutant import Mutant
from dst.records import KillRecord, MutantRecord, MutantsRecord
from reports.mutants import cell, matrix, page
from scenarios.mutants import MUTANTS

PROMISED = {
    "name", "scenario", "expected", "killed", "equivalent", "invariant", "schedules", "seconds", "deviations",
}  # fmt: skip


def tried(**changes: object) -> KillRecord:
    kill = KillRecord(
        mutant="m",
        strategy="swarm",
        seed=1,
        killed=True,
        invariant="log-sound",
        others=(),
        schedules=10,
        seconds=0.5,
        deviations=2,
        minimal=True,
        sentences=("crash it",),
        token="dst:s",
        true_kernel_holds=True,
    )
    return attrs.evolve(kill, **changes)


SURVIVED = tried(killed=False, invariant="", schedules=5_000, deviations=None, true_kernel_holds=None, token="")


def record(*kills: KillRecord, equivalent: str = "") -> MutantsRecord:
    mutant = MutantRecord(
        name="m",
        breaks="all of it",
        scenario="s",
        expected=("log-sound",),
        equivalent=equivalent,
        killed=all(kill.killed for kill in kills),
        invariant="",
        schedules=None,
        seconds=None,
        deviations=None,
        kills=kills,
    )
    return MutantsRecord(
        strategies=tuple(dict.fromkeys(kill.strategy for kill in kills)),
        seeds=(1, 2),
        schedules_max=5_000,
        seconds_max=60.0,
        mutants=(mutant,),
        verdict="pass",
        interrupted=False,
        repeat="dst mutants",
        exit_code=0,
    )


@pytest.mark.parametrize("strategy", ["portfolio", "explore"])
def test_a_try_that_kills_tells_how_and_that_the_true_kernel_holds(strategy):
    found = attempt(
        Attempt(mutant="saga-outside-steps", strategy=strategy, seed=1, schedules_max=500, seconds_max=60.0)
    )
    assert (True, "effect-accounted", True) == (found.killed, found.invariant, found.true_kernel_holds)
    assert 1 <= found.schedules <= 500
    assert found.deviations == len(found.sentences)


def test_a_try_that_runs_out_of_schedules_has_survived():
    found = attempt(Attempt(mutant="emit-no-unsettled", strategy="swarm", seed=2, schedules_max=2, seconds_max=60.0))
    assert (False, 2, None, None) == (found.killed, found.schedules, found.deviations, found.true_kernel_holds)


def test_json_has_a_row_for_each_mutant(command):
    names = ("append-without-expectation", "live-value-not-decoded")
    done = command.call("mutants", *names, "--seeds", "1:3", "--json")
    rows = json.loads(done.out)["mutants"]
    assert 0 == done.code
    assert list(names) == [row["name"] for row in rows]
    assert all(set(row) >= PROMISED for row in rows)
    assert [1, 2] == [kill["seed"] for kill in rows[0]["kills"]]


def test_several_processes_come_to_the_same(command):
    words = ("mutants", "live-value-not-decoded", "saga-outside-steps", "--seeds", "1:2", "--json")
    found = [json.loads(command.run(*words, "-w", workers).out) for workers in ("1", "2")]
    one, two = ([(kill["schedules"], kill["token"]) for row in f["mutants"] for kill in row["kills"]] for f in found)
    assert one == two


def test_a_mutant_that_survives_is_exit_code_1_unless_it_is_said_to_be_equivalent(command, monkeypatch):
    harmless = Mutant(
        name="harmless",
        breaks="nothing",
        scenario="order_saga",
        expected=("log-sound",),
        apply=lambda scenario: scenario,
    )
    for equivalent, code in (("", 1), ("nothing is broken", 0)):
        mutant = attrs.evolve(harmless, equivalent=equivalent)
        monkeypatch.setitem(MUTANTS, "harmless", mutant)
        done = command.call("mutants", "harmless", "--seeds", "1:2", "-n", "3")
        assert code == done.code
        assert ("SURVIVED  harmless" in done.out) == (code == 1)


def test_the_page_and_the_record_are_written_where_they_are_wanted(command):
    command.call("mutants", "live-value-not-decoded", "--seeds", "1:2", "--write", "kept")
    assert (
        "| `live-value-not-decoded` | order_saga | value-stable |" in (command.folder / "kept/mutants.md").read_text()
    )
    told = (command.folder / "kept/explanations.md").read_text()
    assert "## `live-value-not-decoded`" in told
    assert "nothing has to go wrong: the calm run fails, and" in told
    assert (
        "live-value-not-decoded" == json.loads((command.folder / "kept/mutants.json").read_text())["mutants"][0]["name"]
    )


def test_an_unknown_mutant_is_answered_with_the_nearest(command):
    done = command.call("mutants", "emit-ordnal")
    assert 2 == done.code
    assert "did you mean 'emit-ordinal'?" in done.err


# ---- the report ------------------------------------------------------------------------------------------------------


def test_a_cell_has_median_and_worst():
    assert "10.5 schedules (worst 11), 0.5 s (worst 0.5), 2 to 3 deviations, log-sound" == cell(
        [tried(), tried(schedules=11, deviations=3)]
    )


def test_a_cell_with_a_survivor_says_so_first():
    assert cell([tried(), SURVIVED]).startswith("SURVIVED 1 of 2; else 10 schedules")
    assert "survived 2 of 2, 5,000 schedules" == cell([SURVIVED, SURVIVED])


def test_a_schedule_that_breaks_the_true_kernel_is_told_with_the_way_to_see_it():
    texts = [line.text for line in matrix(record(tried(true_kernel_holds=False)))]
    assert "m, swarm, seed 1: its schedule breaks the true kernel too: replay dst:s" in texts


def test_the_page_compares_the_first_strategy_with_the_best_other():
    text = page(record(tried(strategy="portfolio", schedules=31), tried(strategy="swarm", schedules=10)))
    assert "in median schedules: 3.10 in the median of 1 mutants, at worst 3.1" in text
    assert "more than 3 for 1: `m` 3.1 (`swarm` is best)." in text
    assert "1. crash it" in text
