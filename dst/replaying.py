"""One run looked at closely: what it came to, twice, and which of the deviations asked for did not take place.

A schedule is replayed in one of three modes.  *strict*: a deviation that does not find its point is named, and then
the replay says nothing else.  *lenient*: it is moved to the point that is most like it, if there is one, else the run
goes on calmly there.  *resume*: likewise, and from the last deviation that took place on a strategy goes on.

Two points are alike if only what is counted in their labels differs: the occurrence, the gates passed before an emit,
the blocks of branches before one, which of several tasks of one name it is, the incarnation of a worker.  Edits shift
counts: a gate that is added comes before all emits behind it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from dst.choices import IDLE, IDLE_AFTER, Choices, Written
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

    def __getattr__(self, name: str) -> Any:
        """Pass on whatever else these choices have to say, of orders for one; what they do not have, this has not."""
        return getattr(self._choices, name)


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


Alike = Callable[[str, str], bool]
"""Can what was done at the point of one label be done at that of another?"""

_COUNTED = re.compile(r"#\d+$|\(\d+\)|(?<=:)\d+(?=/)|(?<=/)\d+(?=\.\d)")


def alike(point: str, other: str) -> bool:
    """Do the labels of two points differ in nothing but in what they count?"""
    return _COUNTED.sub("", point) == _COUNTED.sub("", other)


_NUMBER = re.compile(r"(?<=/)[0-9a-f]{8}(?=#)|\d+")  # digests of contents too: what is said may be numbered


def alike_but_for_numbers(point: str, other: str) -> bool:
    """Do they differ in numbers only?  A smaller story has no fourth box: what befell it befalls another."""
    return _NUMBER.sub("", point) == _NUMBER.sub("", other)


async def settle(
    host: Host, scenario: type[Scenario], deviations: Sequence[Deviation], alike: Alike = alike
) -> tuple[Deviation, ...]:
    """Return the deviations, those that do not find their points moved to points that are like them, as far as there
    are any.  One after the other, earliest first: where one is moved to changes what comes after it.
    """
    settled = tuple(deviations)
    for _ in range(2 * len(settled)):
        noting = Noting(Written(settled))
        result = await host.run(scenario, noting, judged=False)
        moved = _move_first(settled, result, noting.points, alike)
        if moved == settled:
            break
        settled = moved
    return settled


def _move_first(
    deviations: tuple[Deviation, ...], result: RunResult, points: Mapping[str, Menu], alike: Alike
) -> tuple[Deviation, ...]:
    happened = {(deviation.at, deviation.do): deviation for deviation in result.deviations}
    for i, wanted in enumerate(deviations):
        done, moved = happened.get((wanted.at, wanted.do)), wanted
        if done is None:
            taken = {deviation.at for deviation in result.deviations}
            free = [p for p, menu in points.items() if p not in taken and menu.index(wanted.do) is not None]
            moved = attrs.evolve(wanted, at=_nearest(wanted.at, free, alike) or wanted.at)
        elif wanted.do == HOLD and done.until != wanted.until:
            after = IDLE_AFTER if wanted.until.startswith(IDLE_AFTER) else ""
            until = wanted.until.removeprefix(after)
            if until not in (*points, IDLE):
                moved = attrs.evolve(wanted, until=after + (_nearest(until, points, alike) or until))
        if moved != wanted:
            return (*deviations[:i], moved, *deviations[i + 1 :])
    return deviations


def _nearest(point: str, points: Iterable[str], alike: Alike) -> str | None:
    """Return the point that is like this one, of the nearest occurrence; of several the first.  None if none is."""
    occurrence = Deviation(at=point, do="").occurrence
    found = [other for other in points if alike(point, other)]
    return min(found, key=lambda other: abs(Deviation(at=other, do="").occurrence - occurrence), default=None)


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
