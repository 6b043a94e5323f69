"""Schedules drawn by Hypothesis.

    @settings(SIMULATING, max_examples=300)
    @given(schedule=schedules(OrderSaga))
    def test_the_order(schedule):
        run(OrderSaga, schedule).check()

What is drawn has the shape of what a seed draws: some kinds of faults are left out of a run, some sites are on, and at
each that is there is something to do at its first passings.  So that shrinking works, all is drawn before the run, a
site and its story in one piece of a list: to take one away does not move the others, and the simplest value is the calm
run.  Then the scenario is run with these choices, and the example is the schedule of what took place.  What Hypothesis
prints, `token('dst:...')`, can be pasted into an `@example`; so can the token of any other schedule.

Each draw is a run, and the test's own run is another, each in an event loop of its own: not for async tests.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import attrs
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from dst.choices import Calm
from dst.config import known_among
from dst.faults import GO, Fault, Menu
from dst.replaying import Noting
from dst.run import host
from dst.scenario import Scenario
from dst.schedule import Schedule

SIMULATING = settings(
    deadline=None,  # a run with a crash takes longer than one without: that is no flakiness
    suppress_health_check=[HealthCheck.too_slow],  # to draw is to run
    phases=[phase for phase in Phase if phase is not Phase.explain],  # which traces every line, and says less than ours
)
"""Settings for tests that run simulations."""

_SITES_MAX = 12  # that are on in one run
_PASSINGS_MAX = 4  # of one site at which something may be done
_PATIENCE_MAX = 16  # operations that a hold waits for


@attrs.frozen
class _Story:
    """What happens at one site: an act at its first passing, one for each of the next, 0 for nothing; and how long
    holds last."""

    site: int
    first: int
    then: list[int]
    patience: int

    def act(self, passing: int) -> int:
        """Return the act at a passing, numbered from 0."""
        acts = (self.first, *self.then)
        return acts[passing] if passing < len(acts) else 0


def schedules(scenario: type[Scenario], *, faults: Iterable[str] | None = None) -> st.SearchStrategy[Schedule]:
    """Return a strategy for schedules of `scenario`, with these kinds of faults or all it has.

    Raises `WrongUsage` if a kind is not one of its own.
    """
    kinds = tuple(f.name for f in scenario.faults) if faults is None else tuple(faults)
    known_among("fault", kinds, [fault.name for fault in scenario.faults])
    return _schedules(scenario, kinds)


@st.composite
def _schedules(draw: st.DrawFn, scenario: type[Scenario], kinds: tuple[str, ...]) -> Schedule:
    sites, asked, options_max = _calm_sites(scenario)
    left_out = {kind for kind in kinds if draw(st.booleans())}
    # Half as many again for sites that no calm run comes to: recoveries, rollbacks.  What the environment does makes
    # the story that other faults break, and has few sites: as with a seed, they have a good share of their own.
    numbers = (*range(len(sites) + len(sites) // 2 + 2), *asked * (1 + len(sites) // (1 + len(asked))))
    # Four draws and the list's own: Hypothesis removes five draws at a time, and elements that are longer may stay.
    story = st.builds(
        _Story,
        st.sampled_from(numbers),
        st.integers(1, max(options_max, 1)),  # a site at which nothing happens need not be in the list
        st.lists(st.integers(0, options_max), max_size=_PASSINGS_MAX - 1),
        st.integers(1, _PATIENCE_MAX),
    )
    stories = draw(st.lists(story, max_size=_SITES_MAX))
    taking_part = frozenset(kinds) - left_out or frozenset(kinds)
    choices = _Told(sites, {s.site: s for s in reversed(stories)}, taking_part)
    result = host(lambda h: h.run(scenario, choices), brief=True)
    return Schedule(scenario=scenario.name, deviations=result.deviations)


@functools.cache
def _calm_sites(scenario: type[Scenario]) -> tuple[tuple[str, ...], tuple[int, ...], int]:
    """Return the sites of the calm run at which something can be done, in order; the numbers of those where the
    environment can do something; and how much can be done at one of them at most."""
    noting = Noting(Calm())
    host(lambda h: h.run(scenario, noting), brief=True)
    menus = {point.rpartition("#")[0]: menu for point, menu in noting.points.items() if len(menu.options) > 1}
    asked = [
        number
        for number, menu in enumerate(menus.values())
        if any(option.fault is not None and option.fault.environmental for option in menu.options)
    ]
    return tuple(menus), tuple(asked), max((len(menu.options) - 1 for menu in menus.values()), default=0)


class _Told:
    """Choices as stories tell them.  Mutable: knows what it has come past.

    Sites are numbered as the calm run comes to them, then as this run comes to others.
    """

    def __init__(self, sites: tuple[str, ...], stories: Mapping[int, _Story], kinds: frozenset[str]) -> None:
        self._numbers = {site: number for number, site in enumerate(sites)}
        self._stories = stories
        self._kinds = kinds
        self._passed: dict[str, int] = {}
        self._used: dict[Fault, int] = {}
        self._patience = 1

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return what the site's story says for this passing, within the fault's budget."""
        if len(menu.options) == 1:
            return 0
        passed = self._passed.get(site, 0)
        self._passed[site] = passed + 1
        story = self._stories.get(self._numbers.setdefault(site, len(self._numbers)))
        act = 0 if story is None else story.act(passed)
        if story is None or act == 0:
            return 0
        possible = [i for i, o in enumerate(menu.options) if o.name != GO and o.fault and o.fault.name in self._kinds]
        if not possible:
            return 0
        index = possible[(act - 1) % len(possible)]
        fault = menu.options[index].fault
        assert fault is not None
        used = self._used.get(fault, 0)
        if used >= fault.budget:
            return 0
        self._used[fault] = used + 1
        self._patience = story.patience
        return index

    def hold_until(self, point: str) -> str | int:
        """Return how many operations the story's holds last."""
        return self._patience
