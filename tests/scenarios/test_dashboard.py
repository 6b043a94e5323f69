"""What is particular to dashboards: what a screen reads, and what it makes of a bad read."""

from __future__ import annotations

from dst.choices import Calm, Written
from dst.run import RunResult, host
from dst.schedule import Deviation
from dst.verdict import Verdict
from scenarios.dashboard import OTHER, OVEN, Dashboard


def run(*deviations: tuple[str, str]) -> RunResult:
    choices = Written([Deviation(at=at, do=do) for at, do in deviations])
    result = host(lambda h: h.run(Dashboard, choices), brief=True)
    assert () == choices.missed
    assert Verdict.PASS is result.verdict, result.judgement.violations
    return result


def seen(result: RunResult, screen: str) -> list[int]:
    return [record[3] for record in result.records if record[0] == "seen" and record[2] == screen]


def rows_and_events(result: RunResult, screen: str) -> tuple[int, int]:
    (found,) = [record[4:] for record in result.records if record[0] == "followed" and record[2] == screen]
    return found


def test_a_screen_that_keeps_up_reads_each_row_once():
    # K-LIVE-1
    result = host(lambda h: h.run(Dashboard, Calm()), brief=True)
    assert {OVEN, OTHER} == {record[1] for record in result.records if record[0] == "followed"}
    rows, events = rows_and_events(result, "wall")
    assert rows == events


def test_the_phone_reads_less_than_there_is_since_the_log_is_cut_above_what_it_has_seen():
    # K-LIVE-2
    result = host(lambda h: h.run(Dashboard, Calm()), brief=True)
    assert "compacted underneath" in result.marks
    rows, events = rows_and_events(result, "phone")
    assert rows < events / 2
    assert seen(result, "phone")[-1] == events - 1


def test_a_screen_is_told_of_a_payload_that_is_missing_and_asks_again():
    # K-LIVE-3
    result = run(("resolve:dcff9611#1", "missing"))  # of the first batch, which the wall is the first to read
    assert "a screen was told of an error" in result.marks
    assert seen(result, "wall")[-1] == seen(result, "phone")[-1]


def test_a_screen_that_read_from_a_replica_that_lags_looks_again():
    # K-LOG-5: no wake-up is left for what its last read did not show
    result = run((f"read:{OVEN}#23", "hide-1"))
    assert seen(result, "phone")[-2:] == [13, 14]
    assert ("clock", 50_000_000_000) in result.records, "20 s, and then 30"
