"""One run looked at closely: what it came to, twice, and which of the deviations asked for did not take place.

A schedule is replayed in one of three modes.  *strict*: a deviation that does not find its point is named, and then
the replay says nothing else.  *lenient*: the run goes on calmly there.  *resume*: likewise, and from the last deviation
that took place on a strategy goes on.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import cast

import attrs

from dst.choices import IDLE, Choices, Ordering
from dst.faults import HOLD, Menu
from dst.judging import run_one
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.sentences import happening
from dst.signature import inconclusive
from dst.transparency import Transparency
from dst.verdict import Violation

STRICT, LENIENT, RESUME = MODES = ("strict", "lenient", "resume")


class Noting:
    """Choices that note which points there were.  Mutable: the notes of one run."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self.points: dict[str, Menu] = {}

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Pass it on."""
        self.points[point] = menu
        return self._choices.choose(site, point, menu)

    def hold_until(self, point: str) -> str | int:
        """Pass it on."""
        return self._choices.hold_until(point)

    @property
    def at_calls(self) -> bool:
        """Pass it on, if they have anything to say of it."""
        return bool(getattr(self._choices, "at_calls", False))

    def after_hold(self, point: str, menu: Menu) -> int:
        """Pass it on, if they have anything to say of it."""
        return cast("Ordering", self._choices).after_hold(point, menu) if hasattr(self._choices, "after_hold") else 0


@attrs.frozen(kw_only=True)
class Looked:
    """What one run, and the same run again, came to."""

    result: RunResult
    violation: Violation | None
    why: str  # it says nothing
    again: RunResult
    points: dict[str, Menu]

    @property
    def same(self) -> bool:
        """Did both runs come to the same digest?"""
        return self.result.digest == self.again.digest


async def look(host: Host, scenario: type[Scenario], choices: Choices, again: Choices) -> Looked:
    """Run twice, with choices that say the same, and judge the first."""
    noting = Noting(choices)
    result, violation = await run_one(host, Transparency(host), scenario, noting)
    second = await host.run(scenario, again)
    return Looked(result=result, violation=violation, why=inconclusive(result), again=second, points=noting.points)


def took_place(wanted: Sequence[Deviation], result: RunResult) -> tuple[Deviation, ...]:
    """Return the deviations of a schedule that found their points in its run: what can be gone on from."""
    happened = {(deviation.at, deviation.do) for deviation in result.deviations}
    return tuple(deviation for deviation in wanted if (deviation.at, deviation.do) in happened)


def missed(wanted: Sequence[Deviation], looked: Looked) -> list[tuple[Deviation, str]]:
    """Return the deviations of a schedule that did not take place as written, and why."""
    happened = {(deviation.at, deviation.do): deviation for deviation in looked.result.deviations}
    return [(d, why) for d in wanted if (why := _why_missed(d, happened.get((d.at, d.do)), looked))]


def _why_missed(wanted: Deviation, happened: Deviation | None, looked: Looked) -> str:
    menu = looked.points.get(wanted.at)
    if menu is None:
        near = difflib.get_close_matches(wanted.at, looked.points, n=1, cutoff=0.6)
        return f"the run never came to this point{f'; the nearest is {near[0]}' if near else ''}"
    if menu.index(wanted.do) is None:
        return f"{wanted.do!r} cannot be done there: wanted one of {', '.join(menu.names)}"
    if happened is None:
        return "it had happened as often as its budget allows, or the faults had stopped"
    if wanted.do == HOLD and happened.until != wanted.until and wanted.until != IDLE:
        return f"the hold ended when {happening(happened.until)}"
    return ""
