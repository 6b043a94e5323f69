"""The pytest plugin, as a suite of its own meets it: alone, under xdist, under pytest-randomly."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from dst.schedule import Deviation, Schedule
from tests.dst.conftest import HERE, ROOT, clean_environ

ALONE = ("-p", "dst.pytest_plugin")
XDIST = (*ALONE, "-p", "xdist", "-n", "2")
RANDOMLY = (*ALONE, "-p", "pytest_randomly")

SEEDS = """
    import json, pathlib, pytest
    @pytest.mark.parametrize("number", range(3))
    def test_numbered(dst, number):
        pathlib.Path(f"seed-{number}").write_text(json.dumps([dst.session_seed, dst.seed]))
    def test_other(dst):
        pathlib.Path("seed-other").write_text(json.dumps([dst.session_seed, dst.seed]))
"""
CHECKS = """
    import pytest
    from dst.testing import check
    from toy_scenarios import Forgetful, Steady
    def test_forgetful():
        check(Forgetful)
    def test_steady():
        check(Steady)
"""
CRASH = Deviation(at="append:box-1:WRITTEN:item 1#1", do="crash-after")


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite in an empty folder, with no plugins but those that a test names."""
    for name in set(os.environ) - set(clean_environ()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(HERE))))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def reproducing(result: pytest.RunResult) -> list[str]:
    """Return the lines that reproduce."""
    return re.findall(r"Reproduce:  (.*)", result.stdout.str())


# ---- the seed --------------------------------------------------------------------------------------------------------


def drawn(suite: pytest.Pytester, *words: str) -> tuple[set[int], dict[str, int]]:
    """Run SEEDS; return the session's seeds as tests saw them, and each test's own."""
    for file in suite.path.glob("seed-*"):
        file.unlink()
    suite.makepyfile(SEEDS)
    assert 0 == suite.runpytest_subprocess(*words).ret
    found = {file.name: json.loads(file.read_text()) for file in suite.path.glob("seed-*")}
    return {session for session, _ in found.values()}, {name: own for name, (_, own) in found.items()}


@pytest.mark.parametrize("under", [XDIST, RANDOMLY], ids=["xdist", "randomly"])
def test_a_test_has_the_same_seed_alone_and_under(under: tuple[str, ...], suite: pytest.Pytester) -> None:
    assert drawn(suite, *ALONE, "--dst-seed", "7") == drawn(suite, *under, "--dst-seed", "7")


def test_a_test_has_the_same_seed_when_it_is_run_alone_and_each_has_its_own(suite: pytest.Pytester) -> None:
    _, all_of_them = drawn(suite, *ALONE, "--dst-seed", "7")
    _, one = drawn(suite, *ALONE, "--dst-seed", "7", "-k", "other")
    assert one == {"seed-other": all_of_them["seed-other"]}
    assert 4 == len(set(all_of_them.values()))


def test_a_seed_drawn_by_the_session_is_one_for_all_workers_and_in_the_header(suite: pytest.Pytester) -> None:
    (first,), _ = drawn(suite, *XDIST)
    (second,), _ = drawn(suite, *XDIST)
    assert first != second
    suite.runpytest_subprocess(*ALONE, "--dst-seed", str(first)).stdout.fnmatch_lines([f"dst: --dst-seed={first}"])


def test_last_is_the_seed_of_the_last_session_that_ran_a_scenario(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_checks=CHECKS, test_none="def test_none(): pass")
    suite.runpytest_subprocess(*ALONE, "--dst-seed", "71")
    suite.runpytest_subprocess(*ALONE, "--dst-seed", "72", "test_none.py")

    suite.runpytest_subprocess(*ALONE, "--dst-seed", "last").stdout.fnmatch_lines(["dst: --dst-seed=71"])


@pytest.mark.parametrize("words", [("--dst-seed", "x"), ("--dst-seed", "last"), ("--dst-schedules", "0")])
def test_what_cannot_be_is_told_before_anything_runs(words: tuple[str, ...], suite: pytest.Pytester) -> None:
    suite.makepyfile(CHECKS)
    done = suite.runpytest_subprocess(*ALONE, *words)
    assert pytest.ExitCode.USAGE_ERROR == done.ret
    done.stderr.fnmatch_lines(["ERROR: dst: *seed*" if "seed" in words[0] else "ERROR: dst: --dst-schedules: wanted *"])


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_failure_says_invariant_schedule_seed_and_last_how_to_reproduce_it(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_checks=CHECKS)
    done = suite.runpytest_subprocess(*ALONE, "--dst-seed", "3")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "E *InvariantFailed: FAIL written-once*id MR5VN3",
            "E *broken: each item is written once",
            "E *1. crash writer-1 after it appended WRITTEN item * of box-1",
            "E *found:  in * of 300 schedules, seed *; again: pytest test_checks.py::test_forgetful --dst-seed 3",
            "E *Reproduce:  dst replay MR5VN3 --scenario toy_scenarios:Forgetful",
        ]
    )


def test_a_scenario_that_only_pytest_can_import_is_reproduced_by_pytest(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_local="""
        from dst.testing import check
        from toy_scenarios import Forgetful
        def test_it():
            class Local(Forgetful):
                name = "local"
            check(Local)
        """
    )
    (line,) = reproducing(suite.runpytest_subprocess(*ALONE))
    program, *words = line.split()
    assert "pytest" == program
    again = suite.runpytest_subprocess(*ALONE, *words)
    assert pytest.ExitCode.TESTS_FAILED == again.ret
    assert [line] == reproducing(again)


def test_a_junit_report_has_the_seeds_and_the_id(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_checks=CHECKS)
    suite.runpytest_subprocess(*XDIST, "--dst-seed", "3", "--junitxml=junit.xml")
    cases = {case.get("name"): case for case in xml.parse(suite.path / "junit.xml").iter("testcase")}
    names = {
        name: {p.get("name"): p.get("value") for p in case.iter("property")} for name, case in cases.items() if name
    }
    assert {"dst-session-seed", "dst-seed", "dst-id"} == set(names["test_forgetful"])
    assert {"dst-session-seed", "dst-seed"} == set(names["test_steady"])
    assert ("3", "MR5VN3") == (names["test_forgetful"]["dst-session-seed"], names["test_forgetful"]["dst-id"])


# ---- marker, settings, kept schedules --------------------------------------------------------------------------------

MARKED = """
    import pytest
    from toy_scenarios import Forgetful, Steady
    @pytest.mark.dst(Steady, schedules=20)
    def test_two(dst):
        assert [20] == [record.schedules for record in dst.records]
    @pytest.mark.dst(scenario=Forgetful)
    def test_body():
        raise RuntimeError("the body ran")
    @pytest.mark.dst(schedules=30)
    def test_settings(dst):
        assert (30, 31) == (dst.check(Steady).schedules, dst.check(Steady, schedules=31).schedules)
    @pytest.mark.dst(scheduels=3)
    def test_mistaken():
        pass
"""


def test_a_marker_checks_its_scenarios_before_the_body_runs(suite: pytest.Pytester) -> None:
    suite.makepyfile(MARKED)
    done = suite.runpytest_subprocess(*ALONE, "--strict-markers")
    done.assert_outcomes(passed=2, failed=2)
    done.stdout.fnmatch_lines(["*FAIL written-once*", "*did you mean 'schedules'?*"])
    done.stdout.no_fnmatch_line("*the body ran*")


def test_flags_win_over_the_environment_over_the_code_over_a_profile_over_the_project(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A seed of its own: with so few schedules a fault need not fire, and then no campaign is a pass.
    suite.makepyprojecttoml("[tool.dst]\nseed = 1\nschedules = 11\n[tool.dst.profiles.many]\nschedules = 12")
    suite.makepyfile(
        test_counts="""
        import json, pathlib
        from dst.testing import check
        from toy_scenarios import Steady
        def test_it():
            counts = [check(Steady).schedules, check(Steady, schedules=13).schedules]
            pathlib.Path("counts").write_text(json.dumps(counts))
        """
    )

    def counts(*words: str) -> list[int]:
        assert 0 == suite.runpytest_subprocess(*ALONE, *words).ret
        found: list[int] = json.loads((suite.path / "counts").read_text())
        return found

    assert [11, 13] == counts()
    assert [12, 13] == counts("--dst-profile", "many")
    monkeypatch.setenv("DST_SCHEDULES", "14")
    assert [14, 14] == counts("--dst-profile", "many")
    assert [15, 15] == counts("--dst-schedules", "15")


def test_schedules_that_are_kept_are_replayed_first(suite: pytest.Pytester) -> None:
    kept = suite.mkdir("tests") / "regressions" / "second-item.json"
    kept.parent.mkdir()
    kept.write_text(Schedule(scenario="forgetful", deviations=(CRASH,)).to_text(), encoding="utf-8")
    suite.makepyfile(test_checks=CHECKS)
    done = suite.runpytest_subprocess(*ALONE)
    done.assert_outcomes(passed=1, failed=1)
    assert [f"dst replay {Path('tests/regressions/second-item.json')} --scenario toy_scenarios:Forgetful"] == (
        reproducing(done)
    )


def test_a_kept_schedule_that_finds_its_points_no_more_fails_as_stale(suite: pytest.Pytester) -> None:
    suite.makepyprojecttoml('[tool.dst]\nregressions = "kept"')
    gone = Schedule(scenario="steady", deviations=(Deviation(at="append:gone#1", do="crash-after"),))
    (suite.mkdir("kept") / "gone.json").write_text(gone.to_text(), encoding="utf-8")
    suite.makepyfile(test_checks=CHECKS)
    suite.runpytest_subprocess(*ALONE, "-k", "steady").stdout.fnmatch_lines(["E*Stale: STALE  kept/gone.json*"])


# ---- suites without scenarios ----------------------------------------------------------------------------------------


def test_a_suite_without_scenarios_imports_no_simulation_and_leaves_no_folder(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        """
        import sys
        def pytest_unconfigure():
            tops = {"trio", "attr", "hypothesis", "outcome", "click", "kernel", "secrets"} & set(sys.modules)
            print("IMPORTED", sorted(m for m in (*tops, *sys.modules) if m in tops or m.startswith("dst.")))
        """
    )
    suite.makepyfile("def test_nothing(): pass")
    done = suite.runpytest_subprocess(*ALONE)
    assert 0 == done.ret
    done.stdout.fnmatch_lines(["IMPORTED ['dst.ambient', 'dst.pytest_plugin']"])
    assert not (suite.path / ".dst").exists()
