"""Stored records come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dst.records
from dst.records import (
    BadRecords,
    CampaignRecord,
    DeviationRecord,
    DivergenceRecord,
    FailureRecord,
    InconclusiveRecord,
    ScenarioRecord,
    SeedsRecord,
    parse_campaign,
    parse_failure,
    printable,
    to_json,
    to_text,
)

FAILURE = FailureRecord(
    id="K7Q2MD",
    signature="order_saga||compensator-once|order-N|STEP_COMPLETED",
    invariant="compensator-once",
    says="no compensator completes twice",
    scenario="order_saga",
    mutant=None,
    seed=7,
    key="order-1",
    record=19,
    during="order-1: appends 19 STEP_COMPLETED refund#compensate:1",
    when_ns=61_500_000_000,
    seen="refund#compensate:1 completed twice",
    wanted="once",
    deviations=(DeviationRecord(at="append:order-1:STEP_COMPLETED:charge#1", do="crash-after"),),
    sentences=("crash worker-1 after it appended STEP_COMPLETED charge of order-1",),
    found_with=9,
    choices=11,
    minimal=True,
    shrunk=True,
    digest="8f3c" * 8,
    replays=True,
    replay="dst replay K7Q2MD",
)
CAMPAIGN = CampaignRecord(
    scenario=("order_saga",),
    strategy="random",
    mutant=None,
    seeds=SeedsRecord(campaign=1, first=5, last=9),
    schedules=200,
    planned=2000,
    seconds=1.25,
    workers=2,
    shard=None,
    verdict="fail",
    failures=(FAILURE,),
    divergences=(DivergenceRecord(scenario="order_saga", seed=3, record=4, first="[1]", second="[2]"),),
    inconclusive=(InconclusiveRecord(scenario="order_saga", seed=3, why="out of steps"),),
    inconclusive_runs=1,
    fired={"crash-after": 12},
    judged={"compensator-once": 40},
    marks={"shipped": 100},
    missing=(),
    scenarios=(
        ScenarioRecord(
            name="order_saga",
            schedules=200,
            run_seconds=1.0,
            fired={"crash-after": 12},
            judged={"compensator-once": 40},
            marks={"shipped": 100},
            says={"compensator-once": "no compensator completes twice"},
        ),
    ),
    rechecked=4,
    stopped="",
    interrupted=False,
    digest="ab" * 16,
    repeat="dst fuzz order_saga --seed 1 -n 2000",
    exit_code=1,
)


def test_a_campaign_comes_back_as_it_was() -> None:
    assert parse_campaign(to_text(CAMPAIGN), "here") == CAMPAIGN


def test_a_failure_comes_back_as_it_was() -> None:
    assert parse_failure(to_text(FAILURE), "here") == FAILURE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedules": "many"}, "here.schedules: wanted int, saw 'many'"),
        ({"schedules": True}, "here.schedules: wanted int"),
        ({"scenario": "order_saga"}, "here.scenario: wanted a list"),
        ({"fired": ["crash"]}, "here.fired: wanted an object"),
        ({"failures": [{"id": "K7Q2MD"}]}, r"here.failures\[0\] is no FailureRecord: without signature"),
        ({"surprise": 1}, "unknown fields surprise"),
        ({"format": 99}, "here has format 99, this version reads 1"),
        ({"digest": "x" * 200_000}, "a text of 200000 characters"),
    ],
)
def test_a_record_of_another_shape_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(BadRecords, match=said):
        parse_campaign(json.dumps({**to_json(CAMPAIGN), **change}), "here")


@pytest.mark.parametrize("text", ["", "[", "null", "[1, 2]", '{"schedules": NaN}', "[" * 100_000, "\ud800"])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(BadRecords):
        parse_campaign(text, "here")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_refused_or_read(value: object) -> None:
    with pytest.raises(BadRecords):
        parse_failure(json.dumps(value), "here")


@pytest.mark.parametrize("id", ["../../etc", "K7Q2M", "k7q2md", "K7Q2MD\n", "K7Q2M0"])
def test_an_id_is_six_base32_characters(id: str) -> None:
    with pytest.raises(BadRecords, match="is no id"):
        parse_failure(to_text(attrs.evolve(FAILURE, id=id)), "here")


@given(st.text())
def test_what_is_printable_cannot_move_a_cursor(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0x202A <= ord(c) <= 0x202E]
    shown.encode()  # no lone surrogate is left


def test_a_control_character_is_written_out() -> None:
    assert "\\x1b[31mred\\x0a\\u202e" == printable("\x1b[31mred\n\u202e")


def test_records_and_reports_work_where_nothing_else_of_ours_is(tmp_path: Path) -> None:
    ours = Path(dst.records.__file__).parent
    (tmp_path / "dst").mkdir()
    for name in ("__init__.py", "records.py"):
        (tmp_path / "dst" / name).write_text((ours / name).read_text())
    (tmp_path / "reports").symlink_to(ours.parent / "reports")
    (tmp_path / "stats.json").write_text(to_text(CAMPAIGN))
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "from dst.records import parse_campaign; from reports.summary import campaign\n"
        "print('\\n'.join(l.text for l in campaign(parse_campaign(open('stats.json').read(), 'stats.json'))))\n"
        "assert not {'kernel', 'scenarios', 'trio'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "" == done.stderr
    assert "Reproduce:  dst replay K7Q2MD" in done.stdout
