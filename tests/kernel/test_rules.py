"""The page of rules and the tests name the same rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kernel

PAGE = (Path(kernel.__file__).parent / "RULES.md").read_text(encoding="utf-8")
RULES = re.findall(r"^- \*\*(K-[A-Z]+-\d+)\*\* \((.*?)\): .+", PAGE, re.MULTILINE)
HERE = Path(__file__)
NAMED = {
    rule
    for path in HERE.parent.glob("*.py")
    if path != HERE
    for comment in re.findall(r"(?:#|\"\"\").*", path.read_text(encoding="utf-8"))
    for rule in re.findall(r"K-[A-Z]+-\d+", comment)
}


@pytest.mark.parametrize("rule", [rule for rule, _ in RULES])
def test_every_rule_has_a_test(rule):
    assert rule in NAMED


def test_every_rule_that_a_test_names_is_on_the_page_and_promised():
    assert NAMED <= {rule for rule, _ in RULES}


def test_rules_are_listed_once_and_say_where_they_come_from():
    names = [rule for rule, _ in RULES]
    assert sorted(set(names)) == sorted(names)
    assert all(re.search(r"ADR \d{4}|\+", origin) for _, origin in RULES)


def test_no_rule_is_promised_in_another_form():
    assert len(RULES) == len(re.findall(r"^- ", PAGE, re.MULTILINE))
