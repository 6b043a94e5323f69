"""The scheduler: trio's own loop runs the tasks; we decide which task, when time moves, and who is dead.

This is the only package that touches trio's internals.  For the time of a `run` it puts two things of ours into trio:
a clock (public interface) and an I/O manager.  Trio asks the I/O manager once per turn of its loop, just before it
takes the run queue, and that is where the queue is cut down to the one task that may run.  The queue stays trio's own.

Determinism.  Options are ordered by (step at which the task became runnable, trio's task counter), never by the order
in which trio queued them: equal deadlines and mass cancellation go by `id()` or set order there.  Only the task that
ran in that step, if it just yielded, goes behind those that it woke.  Deadlines expire before the choice, all that are
due together, so that ties between them fall under the same order.

Async generators.  Trio finalises an async generator that was dropped before its end through a callback queue, at a
time the garbage collector chooses.  That queue is emptied in `reap` and at the end of `run` only: a dropped generator
never adds a step to a simulation, and its `finally` blocks run when the simulation is over.  No hook of ours is left.
"""

from dst.scheduler.core import UNLIMITED, Scheduler, run
from dst.scheduler.errors import (
    Deadlock,
    Idle,
    RealIO,
    RealThread,
    RealWorld,
    Reaped,
    RefusesToEnd,
    SchedulerError,
    StepLimit,
    TimeLimit,
    UnknownTrio,
)
from dst.scheduler.tasks import NODE

__all__ = [
    "NODE",
    "UNLIMITED",
    "Deadlock",
    "Idle",
    "RealIO",
    "RealThread",
    "RealWorld",
    "Reaped",
    "RefusesToEnd",
    "Scheduler",
    "SchedulerError",
    "StepLimit",
    "TimeLimit",
    "UnknownTrio",
    "run",
]
