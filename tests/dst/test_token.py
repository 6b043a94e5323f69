"""Tokens: a schedule in one line, to be pasted into a test or a shell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dst.schedule import BadSchedule, Deviation, Schedule, token
from tests.dst.conftest import CommandLine

LABELS = st.text(min_size=1, max_size=30)
DEVIATIONS = st.builds(Deviation, at=LABELS, do=LABELS, until=st.text(max_size=30))
SCHEDULES = st.builds(
    Schedule,
    scenario=LABELS,
    mutant=st.none() | LABELS,
    deviations=st.lists(DEVIATIONS, max_size=4).map(tuple),
)
CRASH = "dst:forgetful;append:box-1:WRITTEN:item 0#1=crash-after"


@given(schedule=SCHEDULES)
def test_a_token_stands_for_its_schedule(schedule: Schedule) -> None:
    assert schedule == token(schedule.to_token())


@given(schedule=SCHEDULES)
def test_the_repr_of_a_schedule_is_python_that_makes_it_again(schedule: Schedule) -> None:
    assert schedule == eval(repr(schedule), {"token": token})


@given(schedule=SCHEDULES)
def test_a_token_is_one_printable_line_without_quotes(schedule: Schedule) -> None:
    text = schedule.to_token()
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set("'\"\\`")


def test_a_lone_surrogate_of_an_untrusted_label_has_a_token() -> None:
    schedule = Schedule(scenario="\ud800")
    assert schedule == token(schedule.to_token())


@pytest.mark.parametrize(
    "text", ["", "forgetful", "dst:", "dst:a=b=c", "dst:a;", "dst:a;x", "dst:a;x=y=z=w", "dst:%ff", "dst:" + "a" * 3000]
)
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(BadSchedule, match="token"):
        token(text)


def test_the_command_replays_a_token(command: CommandLine) -> None:
    done = command.call("replay", CRASH, "--scenario", "toy_scenarios:Forgetful")
    assert 1 == done.code
    assert f"dst replay '{CRASH}' --scenario toy_scenarios:Forgetful" == done.out.splitlines()[-1].removeprefix(
        "Reproduce:  "
    )


def test_the_command_says_of_a_stale_token_that_it_is(command: CommandLine) -> None:
    done = command.call("replay", CRASH.replace("item 0", "item 9"), "--scenario", "toy_scenarios:Forgetful")
    assert 2 == done.code
    assert "STALE  the token" in done.out
