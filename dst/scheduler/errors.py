"""What the scheduler raises, and why a wait for quiet ended."""

from __future__ import annotations

import enum


class Idle(enum.Enum):
    """Why `wait_idle` returned."""

    QUIESCENT = "quiescent"  # nobody can run, and no deadline is pending
    TIME_LIMIT = "time limit"  # nobody can run before the time limit
    STEP_LIMIT = "step limit"  # somebody still wants to run


class SchedulerError(Exception):
    """Something about the simulation as a whole; raised in its main task."""


class Deadlock(SchedulerError):
    """Nobody can run, nothing is due, and nobody waits for that in `wait_idle`."""


class StepLimit(SchedulerError):
    """The simulation used up its steps while nobody was in `wait_idle`."""


class TimeLimit(SchedulerError):
    """Nothing can happen before the time limit, and nobody was in `wait_idle`."""


class RefusesToEnd(SchedulerError):
    """Tasks went on after the simulation was over; they were cut off, and their code never ended."""


class RealWorld(RuntimeError):
    """Simulated code reached for something real; see `Scheduler.refused`."""


class RealIO(RealWorld):
    """Simulated code wanted real I/O."""


class RealThread(RealWorld):
    """Simulated code wanted a real thread."""


class UnknownTrio(RuntimeError):
    """This trio does not have the parts, or the habits, that the scheduler was written for."""


class Reaped(BaseException):
    """What tasks unwind with once their simulation is over.  Nobody should catch it."""
