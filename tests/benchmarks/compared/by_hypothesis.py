"""Hypothesis on the planted bugs: a state machine whose rules let one task take a step, or kill the process.

Its database is off.  Each machine has as many steps as its body takes, so that none is drawn in vain.
"""

from __future__ import annotations

import re
import types
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, ClassVar

import bodies
import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from hypothesis.statistics import collector
from trying import Exhausted, Limits, Stopwatch, Tool, Try, main

STEP_BY_STEP, LIFE_BY_LIFE = "stateful", "stateful, a life a rule"
STEPS_OF_CRASHES = 40
FINISHED = "nothing left to do"


class OutOfTime(KeyboardInterrupt):
    """The one thing that ends a search and is no failure."""


class Machine(RuleBasedStateMachine):
    """What both kinds have.  Mutable: each is one run, and the class counts them."""

    row: ClassVar[str]
    way: ClassVar[str]
    seed: ClassVar[int]
    mended: ClassVar[bool]
    watch: ClassVar[Stopwatch]
    first: ClassVar[tuple[int, float] | None]  # runs and seconds up to the first failure
    last_steps: ClassVar[int] = 0  # of the newest example
    steps: int

    def __init__(self) -> None:
        super().__init__()
        if type(self).first is None and type(self).watch.over:
            raise OutOfTime
        type(self).watch.runs += 1
        self.steps = 0
        self.world = bodies.make(self.row, self.seed, mended=self.mended)

    @invariant()
    def whole(self) -> None:
        """Is nothing broken?"""
        if self.world.broken and type(self).first is None:
            type(self).first = type(self).watch.runs, type(self).watch.seconds
        type(self).last_steps = self.steps
        assert not self.world.broken, self.world.broken


class SideBySide(Machine):
    """Tasks that take their steps in a drawn order."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = [body(_pauses()) for body in self.world.tasks()]

    @rule(which=st.integers(0, 4))
    def step(self, which: int) -> None:
        """Let one go on."""
        self.steps += 1
        task = self.alive[which % len(self.alive)]
        if _ends(task):
            self.alive.remove(task)

    def teardown(self) -> None:
        for task in self.alive:
            task.close()


class Crashing(Machine):
    """A process that takes its steps, and dies now and then."""

    def __init__(self) -> None:
        super().__init__()
        (self.process,) = self.world.tasks()
        self.lives, self.now = 1, self.process(_pause)
        self.ended = False

    @precondition(lambda self: not self.ended)
    @rule()
    def step(self) -> None:
        """Go on."""
        self.steps += 1
        self.ended = _ends(self.now)

    @precondition(lambda self: not self.ended and self.lives < bodies.LIVES_MAX)
    @rule()
    def crash(self) -> None:
        """Die, and start again."""
        self.steps += 1
        self.now.close()
        self.lives += 1
        self.now = self.process(_pause)

    @precondition(lambda self: self.ended)
    @rule()
    def rest(self) -> None:
        """There has to be something to do."""

    def teardown(self) -> None:
        self.now.close()


class Living(Machine):
    """A process whose lives are rules: how many pauses each of them survives is drawn at once."""

    def __init__(self) -> None:
        super().__init__()
        (self.process,) = self.world.tasks()
        self.lives, self.ended = 0, False

    @precondition(lambda self: not self.ended)
    @rule(dies_at=st.integers(0, bodies.PAUSES_MAX))
    def life(self, dies_at: int) -> None:
        """Live until some pause, or, in the last life or for 0, to the end."""
        self.steps += 1
        self.lives += 1
        last = self.lives == bodies.LIVES_MAX
        now = self.process(_pause)
        pauses = 0
        while not (self.ended or (pauses == dies_at and not last and dies_at)):
            self.ended = _ends(now)
            pauses += 1
        now.close()

    @precondition(lambda self: self.ended)
    @rule()
    def rest(self) -> None:
        """There has to be something to do."""


def _ends(task: Coroutine[Any, Any, None]) -> bool:
    try:
        task.send(None)
    except StopIteration:
        return True
    return False


@types.coroutine
def _pause(*_: Any) -> Generator[None, None, None]:
    yield


def _pauses() -> bodies.Pause:
    begun = False

    async def pause(*_: Any) -> None:
        nonlocal begun
        if begun:
            await _pause()
        begun = True

    return pause


def steps_of(row: str, way: str) -> int:
    """Return how many steps a machine may take."""
    if way == LIFE_BY_LIFE:
        return bodies.LIVES_MAX
    if bodies.ROWS[row].crashes:
        return STEPS_OF_CRASHES
    count = 0
    for body in bodies.make(row, 1, mended=True).tasks():
        task, ended = body(_pauses()), False
        while not ended:
            count, ended = count + 1, _ends(task)
    return count


class Hypothesis(Tool):
    """`run_state_machine_as_test`."""

    name = "Hypothesis"
    version = hypothesis.__version__

    def ways(self, row: str) -> Mapping[str, str]:
        ways = (STEP_BY_STEP, LIFE_BY_LIFE) if bodies.ROWS[row].crashes else (STEP_BY_STEP,)
        return dict.fromkeys(ways, "rules")

    def find(self, row: str, way: str, seed: int, limits: Limits) -> Try:
        machine = _machine(row, way, seed, limits, mended=False)
        _run(machine, limits.runs, (Phase.generate,))
        if machine.first is None:
            return Try(seed, False, machine.watch.runs, machine.watch.seconds)
        runs, seconds = machine.first
        said = _run(machine, limits.runs, (Phase.generate, Phase.shrink))
        size = machine.last_steps  # of the last example, which is the shrunk one, run once more to be shown
        return Try(seed, True, runs, seconds, size=size, replayed=_replayed(row, way, seed, limits, said))

    def rate(self, row: str, way: str, limits: Limits) -> tuple[int, float]:
        runs, watch = 0, Stopwatch(limits)
        while not watch.over:
            left = Limits(limits.runs, max(limits.seconds - watch.seconds, 0.01))
            machine = _machine(row, way, 1 + runs, left, mended=True)
            _run(machine, limits.runs, (Phase.generate,))
            runs += machine.watch.runs
        return runs, watch.seconds

    def exhaust(self, row: str, limits: Limits) -> Sequence[Exhausted]:
        way = list(self.ways(row))[-1]
        machine, why = _machine(row, way, 1, limits, mended=True), list[str]()
        with collector.with_value(lambda statistics: why.append(statistics.get("stopped-because", ""))):
            _run(machine, limits.runs, (Phase.generate,))
        ended = FINISHED in why
        crashes = bodies.ROWS[row].crashes
        bound = f", at most {bodies.LIVES_MAX - 1} crashes" if crashes else ""
        says = f"exhausted ({FINISHED}{bound})" if ended else ""
        return [Exhausted(way, machine.watch.runs, machine.watch.seconds, ended, says, whole=not crashes)]


def _machine(row: str, way: str, seed: int, limits: Limits, *, mended: bool) -> Any:
    kind = Living if way == LIFE_BY_LIFE else Crashing if bodies.ROWS[row].crashes else SideBySide
    space = {"row": row, "way": way, "seed": seed, "mended": mended, "watch": Stopwatch(limits), "first": None}
    made = type(kind.__name__, (kind,), space)
    return hypothesis.seed(seed)(made)


def _run(machine: Any, runs: int, phases: Sequence[Phase]) -> str:
    """Run it; return what Hypothesis says of a failure, "" if there is none."""
    chosen = settings(
        max_examples=runs,
        stateful_step_count=steps_of(machine.row, machine.way),
        phases=phases,
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        with redirect_stdout(StringIO()):
            run_state_machine_as_test(machine, settings=chosen)
    except AssertionError as error:
        return "\n".join(getattr(error, "__notes__", ()))
    except OutOfTime:
        pass
    return ""


def _replayed(row: str, way: str, seed: int, limits: Limits, said: str) -> bool:
    """Run the line that it prints to reproduce a failure: does it fail?"""
    blob = re.search(r"reproduce_failure\('([^']+)', (b'[^']+')\)", said)
    if blob is None:
        return False
    machine = _machine(row, way, seed, limits, mended=False)
    again = hypothesis.reproduce_failure(blob[1], blob[2].removeprefix("b'").removesuffix("'").encode())(machine)
    _run(again, 1, (Phase.generate,))
    return again.first is not None


if __name__ == "__main__":
    main(Hypothesis())
