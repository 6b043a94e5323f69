"""Every order in which operations can come from one state on: depth first, with sleep sets.

Whatever comes to a port where it can be held is held there, and so is every syscall of a flow before it goes on to its
port.  When nobody else can run, those that are held are the choices: one is let go, and all that follows from it by
itself, until again nobody can run, is one *turn*.  Each run goes along a known beginning and from there on takes the
first choice that is awake; what it notes on its way are the turns at which others remain.

Sleep sets prune transitions and never states, so that each state in which a crash could come is still visited: what was
tried at a state sleeps in the states after its siblings, as long as they are independent of it.  The footprints are
those that were recorded when it was tried.

Where no crash can follow only the ends of runs matter.  There another choice is tried at a turn only if a race was
found that it would turn round (`dst.strategies.races`), on top of the sleep sets.  That rests on more: each operation
is a choice of its own, is done in the turn that it is let go in, and has a name that no other order gives to another
task.  A run that shows otherwise ends it, and every choice that is awake is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import trio

from dst.choices import CALL, FREE, TASK, Steered, Written
from dst.faults import HOLD, Menu
from dst.footprints import EVERYTHING, WRITE, Footprint, independent
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.simulation import Simulation
from dst.strategies.races import Recording, races


def _not_there(point: str) -> str:
    return f"{point} was to go on, and was not there when its order was run again"


class NotThere(Exception):
    """An order did not do again what it did before."""


@attrs.define(kw_only=True)
class Turn:
    """One choice of the run that was last made.  Mutable: what was tried there, and what is tried now."""

    pending: tuple[str, ...]
    chosen: str
    asleep: dict[str, Footprint]
    tried: dict[str, Footprint] = attrs.field(factory=dict)  # before `chosen`
    wanted: set[str] = attrs.field(factory=set)  # by races: what is to be tried, or was
    footprint: Footprint = frozenset()  # of `chosen`, once it was done


class Orders:
    """The orders from one state on.  Mutable: the turns of the run that was last made.

    Make a run with the choices of `steer`, then `advance`, until that returns False.  Without `reduced` every order is
    run: for comparison.  Where no `crashes` can follow only what races is tried in another order.
    """

    def __init__(self, *, reduced: bool = True, crashes: bool = True) -> None:
        self.reduced = reduced
        self.by_races = reduced and not crashes
        self.turns: list[Turn] = []
        self._runs = 0
        self._anew = False  # is all to be begun once more, since what is known now would have mattered before?
        self._last: Steer | None = None
        self._known: dict[str, Footprint] = {}  # what the operation at each point has touched in any run

    def steer(self, deviations: tuple[Deviation, ...], scenario: type[Scenario]) -> Steer:
        """Return the choices of the next run, which begins with `deviations`."""
        self._runs += 1
        recording = Recording(self._known) if self.by_races else None
        self._last = Steer(self.turns, deviations, scenario, reduced=self.reduced, recording=recording)
        return self._last

    def try_all(self) -> None:
        """From now on try every choice that is awake, also where no race was found, and what was not tried so far."""
        self._anew |= self.by_races and self._runs > 1
        self.by_races = False

    def advance(self) -> bool:
        """Go on to the next order: the deepest turn at which something is left to be tried.  False if there is none."""
        if self.by_races:
            self._learn()
        if self._anew:
            self._anew = False
            self.turns.clear()
            return True
        while self.turns:
            turn = self.turns[-1]
            turn.tried[turn.chosen] = turn.footprint
            left = [point for point in turn.pending if point not in turn.tried and point not in turn.asleep]
            if self.by_races:
                left = [point for point in left if point in turn.wanted]
            if left:
                turn.chosen = left[0]
                return True
            self.turns.pop()
        return False

    def _learn(self) -> None:
        """Have what the last run's races ask for tried."""
        assert self._last is not None
        recording = self._last.recording
        assert recording is not None
        if recording.unclear:
            self.try_all()
            return
        if recording.grown:
            self._anew = True  # races were overlooked, and what slept may have had to wake
            return
        for turn in self.turns:
            turn.wanted.add(turn.chosen)
        for race in races(recording.operations, since=self._last.known - 1):
            turn = self.turns[race.turn]
            firsts = [point for point in turn.pending if point in race.firsts]
            if not any(point in turn.wanted or point in turn.asleep for point in firsts):
                turn.wanted.update(firsts[:1] or turn.pending)


class Steer:
    """The choices of one run: written ones, and once those have happened an order.  Mutable: how far it has come."""

    at_calls = True

    def __init__(
        self,
        turns: list[Turn],
        deviations: tuple[Deviation, ...],
        scenario: type[Scenario],
        *,
        reduced: bool,
        recording: Recording | None = None,
    ) -> None:
        self._turns = turns
        self.known = len(turns)
        self._written = Written(deviations)
        self._crashes = sum(d.do.startswith("crash") for d in deviations)
        self._scenario = scenario
        self._reduced = reduced
        self._sim: Simulation | None = None
        self._at = -1  # the turn that is going on
        self._touched: dict[tuple[str, str], None] = {}  # since the last operation
        self._footprint: dict[tuple[str, str], None] = {}  # of this turn, up to then
        self._done = 0  # operations in this turn, calls left out
        self._held = 0  # who is held, and waits to be let go
        self._passed: set[str] = set()  # the points that are not held, or not any more
        self.blocked = False  # all that is left sleeps: what comes now was run in another order
        self.recording = recording

    @property
    def missed(self) -> tuple[Deviation, ...]:
        """The written deviations that have not found their point so far."""
        return self._written.missed

    @property
    def is_new(self) -> bool:
        """Has no earlier run been where this one is now?"""
        return not self.blocked and self._at >= self.known - 1

    # ---- what the simulation asks ------------------------------------------------------------------------------------

    def attach(self, sim: Steered) -> None:
        """Listen to what is touched."""
        assert isinstance(sim, Simulation)
        self._sim = sim
        sim.footprint = self._touched

    def will_hold(self, point: str, menu: Menu) -> bool:
        """Will what comes to this point be held, or is it held?  Nothing can be done there before it is let go."""
        return point not in self._passed and self._holds(point.rpartition("#")[0], menu)

    def _holds(self, site: str, menu: Menu) -> bool:
        assert self._sim is not None
        if menu.index(HOLD) is None or site.startswith(TASK) or not self._has_begun():
            return False
        return self._scenario.has_orders(site) and bool(self._held or self._sim.crowded())

    def choose(self, site: str, point: str, menu: Menu) -> int:
        """Return what is written; then to hold whatever can be held, where there is anybody else."""
        if self.recording is not None and not site.startswith(TASK):
            self.recording.come(site, trio.lowlevel.current_task())
        if not self._has_begun():
            return self._written.choose(site, point, menu)
        if self._holds(site, menu):
            return menu.names.index(HOLD)
        self._passed.add(point)
        if self._records and menu.index(HOLD) is not None and self._scenario.has_orders(site):
            self._go_on(point, let_go=False)  # alone
        return 0

    def _has_begun(self) -> bool:
        assert self._sim is not None
        return not self._written.missed and self._sim.crashes >= self._crashes

    def hold_until(self, point: str) -> str | int:
        """Return what is written, or that it will be seen."""
        if not self._has_begun():
            return self._written.hold_until(point)
        self._held += 1
        return FREE

    def after_hold(self, point: str, menu: Menu) -> int:
        """Return what is written."""
        return self._written.after_hold(point, menu)

    def release(self, points: Sequence[str]) -> int:
        """Begin the next turn."""
        self._held = len(points) - 1
        index = 0 if self.blocked else self._next(points)
        self._passed.add(points[index])
        return index

    def _next(self, points: Sequence[str]) -> int:
        self._end_turn()
        if self._at + 1 == len(self._turns):
            turn = self._next_turn(tuple(points))
            if turn is None:
                self.blocked = True
                return 0
            self._turns.append(turn)
        self._at += 1
        chosen = self._turns[self._at].chosen
        if chosen not in points:
            raise NotThere(_not_there(chosen))
        if self._records:
            self._go_on(chosen, let_go=True)
        return points.index(chosen)

    @property
    def _records(self) -> bool:
        """Is a turn going on that is to be recorded?"""
        return self.recording is not None and self._at >= 0 and not self.blocked

    def _go_on(self, point: str, *, let_go: bool) -> None:
        assert self.recording is not None
        assert self._sim is not None
        self.recording.end_operation(touched=bool(self._touched))
        self.recording.go_on(point, self._at, self._sim.scheduler.now_ns, let_go=let_go)

    def happened(self, point: str) -> None:
        """Count what a turn does.

        Where it does more than one thing, the world is seen in between by whoever comes after a crash, and once for
        each of the states that the turn begins from.  So such a turn changes places with nothing.
        """
        if self._records:
            assert self.recording is not None
            assert self._sim is not None
            task, now_ns = trio.lowlevel.current_task(), self._sim.scheduler.now_ns
            said = self.recording.happened(point, task, now_ns, frozenset(self._touched))
            self._footprint.update(dict.fromkeys(said))
        self._done += not point.startswith(CALL)
        if self._done > 1:
            self._touched[EVERYTHING, WRITE] = None
        self._footprint.update(self._touched)
        self._touched.clear()

    def finish(self) -> None:
        """The run has ended.  Raises `NotThere` if it did not come as far as it was known to."""
        self._end_turn()
        if self._at + 1 < self.known:
            raise NotThere(_not_there(self._turns[self._at + 1].chosen))

    def _end_turn(self) -> None:
        """The turn that was going on is over: nobody else can run."""
        if self._records:
            assert self.recording is not None
            self.recording.end_operation(touched=bool(self._touched))
        if self._at >= 0 and not self.blocked:
            self._turns[self._at].footprint = frozenset(self._footprint | self._touched)
        self._touched.clear()
        self._footprint.clear()
        self._done = 0

    def _next_turn(self, pending: tuple[str, ...]) -> Turn | None:
        asleep = self._still_asleep(pending) if self._reduced and self._turns else {}
        awake = [point for point in pending if point not in asleep]
        return Turn(pending=pending, chosen=awake[0], asleep=asleep) if awake else None

    def _still_asleep(self, pending: tuple[str, ...]) -> dict[str, Footprint]:
        """Return what sleeps after the last turn: what slept there or was tried before, and is independent of it."""
        last = self._turns[-1]
        asleep = {
            point: footprint
            for point, footprint in {**last.asleep, **last.tried}.items()
            if independent(footprint, last.footprint)
        }
        sites = [point.rpartition("#")[0] for point in (*pending, last.chosen)]
        # Of several at one site nobody knows which is which once they have changed places.
        return {point: f for point, f in asleep.items() if sites.count(point.rpartition("#")[0]) == 1}
