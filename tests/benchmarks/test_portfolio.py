"""The portfolio beside the best single strategy: counted as `dst mutants` counts, and judged without flattering it."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest

from dst.killing import Attempt, attempt
from dst.lookup import shipped_mutants

MUTANT = "saga-outside-steps"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, as a module."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return importlib.import_module("portfolio")


def draws(bench: ModuleType, strategy: str, *counts: int, first: int = 1) -> list:
    return [bench.Draw("m", strategy, seed, n, strategy) for seed, n in enumerate(counts, first)]


@pytest.mark.parametrize("strategy", ["portfolio", "guided"])
def test_a_draw_is_what_dst_mutants_counts(bench: ModuleType, strategy: str) -> None:
    drawn = bench.draw(shipped_mutants()[MUTANT], [strategy], range(1, 4), 500, 10_000, [])
    plans = [
        Attempt(mutant=MUTANT, strategy=strategy, seed=seed, schedules_max=500, seconds_max=math.inf)
        for seed in range(1, 4)
    ]
    assert [draw.schedules for draw in drawn] == [attempt(plan).schedules for plan in plans]


def test_what_was_drawn_is_not_drawn_again_and_counts_towards_enough(bench: ModuleType) -> None:
    mutant = shipped_mutants()[MUTANT]
    done = [bench.Draw(MUTANT, "swarm", 1, 50, "swarm")]
    assert bench.draw(mutant, ["swarm"], range(1, 4), 500, 50, done) == []
    assert [d.seed for d in bench.draw(mutant, ["swarm"], range(1, 4), 500, 10_000, done)] == [2, 3]


def test_a_campaign_without_a_kill_has_been_run_to_its_cap(bench: ModuleType) -> None:
    (drawn,) = bench.draw(shipped_mutants()["emit-inflight-until-deadline"], ["swarm"], range(1, 2), 3, 10, [])
    assert (drawn.schedules, drawn.by) == (3, "")


def test_the_best_strategy_is_judged_on_seeds_that_did_not_choose_it(bench: ModuleType) -> None:
    lucky = draws(bench, "pct", 1, 40, 1, 40)  # best on odd seeds, by chance
    other = draws(bench, "walk", 10, 30, 10, 30)
    best, names = bench.judged({"pct": lucky, "walk": other})
    assert set(names) == {"pct", "walk"}
    assert [draw.schedules for draw in best] == [10, 10, 40, 40]


def test_schedules_of_campaigns_that_killed_nothing_count(bench: ModuleType) -> None:
    some = [*draws(bench, "pct", 10, 20), bench.Draw("m", "pct", 3, 30, "")]
    assert (bench.each_kill(some), bench.median(some)) == (30, 20)
    assert bench.each_kill(some[2:]) == math.inf


def test_a_standing_has_a_ratio_and_limits_around_it(bench: ModuleType) -> None:
    drawn = [
        *draws(bench, "portfolio", *range(10, 50)),
        *draws(bench, "walk", *range(5, 25)),
        *draws(bench, "pct", 90, 80),
    ]
    stands = bench.standing("m", drawn)
    assert stands.best == ("walk",)
    assert stands.ratio == pytest.approx(29.5 / 14.5)
    assert stands.limits[0] < stands.ratio < stands.limits[1]
    assert stands == bench.standing("m", drawn)
    assert bench.standing("m", draws(bench, "walk", 1, 2)) is None


def test_a_line_that_is_no_draw_is_said(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "draws.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit, match=r"line 1 of .*draws\.jsonl is no draw: '\{\}'"):
        bench.read(tmp_path / "draws.jsonl")


def test_a_search_that_was_stopped_goes_on_from_its_file(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "draws.jsonl"
    said = ["portfolio.py", MUTANT, "--strategy", "portfolio", "--strategy", "walk", "--results", str(file)]
    monkeypatch.setattr("sys.argv", [*said, "--seeds", "1:3"])
    bench.main()
    assert len(bench.read(file)) == 4
    monkeypatch.setattr("sys.argv", [*said, "--seeds", "1:5"])
    bench.main()
    assert [d.seed for d in bench.read(file)] == [1, 2, 1, 2, 3, 4, 3, 4]
    assert "of 1 mutants" in capsys.readouterr().out
