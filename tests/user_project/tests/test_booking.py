"""The booking survives crashes, lost answers and declined cards."""

import pytest
from box_office.simulation import Booking
from hypothesis import given, settings

from dst.strategies.hypothesis import SIMULATING, schedules
from dst.testing import check, run


@pytest.mark.dst(Booking, schedules=200)
def test_a_campaign(dst):
    assert dst.records[0].marks["declined"]


def test_every_crash():
    check(Booking, strategy="explore")


@settings(SIMULATING, max_examples=300)
@given(schedule=schedules(Booking))
def test_a_property(schedule):
    run(Booking, schedule).check()


def test_the_calm_way():
    result = run(Booking).check()
    assert "booked" in result.marks
