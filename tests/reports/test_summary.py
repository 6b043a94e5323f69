"""The terminal report, from a stored record."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import attrs

from dst.records import CampaignRecord, FailureRecord
from reports.summary import Style, campaign, failure
from reports.terminal import show

_SPEC = importlib.util.spec_from_file_location("records_of", Path(__file__).parents[1] / "dst" / "test_records.py")
assert _SPEC is not None
assert _SPEC.loader is not None
_RECORDS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_RECORDS)
CAMPAIGN: CampaignRecord = _RECORDS.CAMPAIGN
FAILURE: FailureRecord = _RECORDS.FAILURE
GREEN = attrs.evolve(
    CAMPAIGN, verdict="pass", failures=(), divergences=(), inconclusive=(), inconclusive_runs=0, exit_code=0
)


def text(record: CampaignRecord, *, quiet: bool = False) -> str:
    return "\n".join(line.text for line in campaign(record, quiet=quiet))


def test_a_failure_has_its_shape() -> None:
    assert [
        "FAIL compensator-once" + " " * 46 + "  order_saga  id K7Q2MD",
        "  broken: no compensator completes twice",
        "  at 61.500 s, record 19 (order-1: appends 19 STEP_COMPLETED refund#compensate:1), about order-1",
        "  seen:   refund#compensate:1 completed twice",
        "  wanted: once",
        "  schedule: 1 deviation of 11 choices, 1-minimal",
        "    1. crash worker-1 after it appended STEP_COMPLETED charge of order-1",
        "  replayed: same digest 8f3c8f3c…",
        "Reproduce:  dst replay K7Q2MD",
    ] == [line.text for line in failure(FAILURE)]


def test_a_schedule_that_was_not_shrunk_to_the_end_does_not_claim_it() -> None:
    lines = [line.text for line in failure(attrs.evolve(FAILURE, minimal=False))]
    assert "  schedule: 1 deviation of 11 choices, shrinking was cut short" in lines
    lines = [line.text for line in failure(attrs.evolve(FAILURE, minimal=False, shrunk=False))]
    assert "  schedule: 1 deviation of 11 choices, not shrunk" in lines


def test_of_a_schedule_that_somebody_wrote_it_says_whether_it_may_be_too_long() -> None:
    given = attrs.evolve(FAILURE, minimal=False, shrunk=None)
    assert "  schedule: 1 deviation of 11 choices" in [line.text for line in failure(given)]
    longer = attrs.evolve(given, deviations=FAILURE.deviations * 3)
    said = "  schedule: 3 deviations of 11 choices, not known to be minimal: see `dst shrink`"
    assert said in [line.text for line in failure(longer)]


def test_green_says_how_much_was_done() -> None:
    shown = text(GREEN)
    for part in ("200 schedules", "crash-after", "12", "compensator-once", "40", "shipped", "100", "ab" * 16, "seed 1"):
        assert part in shown
    assert "PASS  200 schedules in 1.2 s (160/s, 2 workers)" in shown


def test_vacuous_says_what_is_missing() -> None:
    shown = text(attrs.evolve(GREEN, verdict="unknown", missing=("mark 'shipped' was never reached",), exit_code=5))
    assert "missing: mark 'shipped' was never reached" in shown
    assert "VACUOUS" in shown
    assert "PASS" not in shown


def test_quiet_keeps_failures_and_the_verdict() -> None:
    shown = text(CAMPAIGN, quiet=True)
    assert "Reproduce:  dst replay K7Q2MD" in shown
    assert "judged" not in shown


def test_what_was_recorded_cannot_move_the_cursor() -> None:
    shown = text(attrs.evolve(CAMPAIGN, failures=(attrs.evolve(FAILURE, seen="red \x1b[31m\r\n"),)))
    assert "red \\x1b[31m\\x0d\\x0a" in shown
    assert "\x1b" not in shown


def test_same_record_same_text() -> None:
    assert text(CAMPAIGN) == text(CAMPAIGN)


def test_a_pipe_gets_no_colour() -> None:
    stream = io.StringIO()
    show(campaign(CAMPAIGN), stream, color=True)
    assert "\x1b" not in stream.getvalue()


def test_many_scenarios_share_a_column() -> None:
    one = GREEN.scenarios[0]
    many = tuple(attrs.evolve(one, name=f"scenario_{i}") for i in range(9))
    assert "in all" in text(attrs.evolve(GREEN, scenarios=many))


def test_a_zero_stands_out() -> None:
    one = attrs.evolve(GREEN.scenarios[0], marks={"never": 0})
    lines = campaign(attrs.evolve(GREEN, scenarios=(one,)))
    assert [Style.DOUBT] == [line.style for line in lines if "never" in line.text]
