"""Trio's tasks and nurseries: what is below, what is broken, what a person calls them."""

from __future__ import annotations

import contextvars
import inspect
import operator
from collections.abc import Callable
from typing import NoReturn

import outcome
import trio
import trio._core._run as trio_run

from dst.scheduler.errors import Reaped

Task = trio.lowlevel.Task

NODE: contextvars.ContextVar[str | None] = contextvars.ContextVar("dst_node", default=None)
"""Which node (incarnation) a task belongs to; trio copies it to children.  None is the world, which never crashes."""

counter: Callable[[Task], int] = operator.attrgetter("_counter")


def take(tasks: list[Task], task: Task) -> bool:
    """Remove `task` from `tasks`; False if it is not there."""
    try:
        tasks.remove(task)
    except ValueError:
        return False
    return True


def raiser(error: BaseException) -> Callable[[], NoReturn]:
    """Return a function that raises `error`."""

    def raise_it() -> NoReturn:
        raise error

    return raise_it


def poison(task: Task, error: BaseException) -> None:
    """Make a runnable task raise `error` instead of what it was to get."""
    nursery = task._child_nurseries[-1] if task._child_nurseries else None
    if nursery is not None and not nursery._nested_child_running:
        nursery._pending_excs.append(error)  # it is leaving this nursery; trio would not forgive an error in between
    elif inspect.getcoroutinestate(task.coro) == inspect.CORO_CREATED or not isinstance(
        task._next_send, outcome.Outcome
    ):
        task._next_send_fn, task._next_send = task.coro.throw, error  # it cannot unwrap an outcome
    else:
        task._next_send = outcome.Error(error)


def busy(nursery: trio.Nursery) -> bool:
    """Has the nursery tasks, or some that are still starting?"""
    return bool(nursery._children or nursery._pending_starts)


def below(nursery: trio.Nursery) -> list[Task]:
    """Return the tasks under `nursery`, deepest first, then by task counter."""
    generations: list[list[Task]] = []
    nurseries = [nursery]
    while nurseries:
        generations.append(sorted((task for each in nurseries for task in each._children), key=counter))
        nurseries = [each for task in generations[-1] for each in task._child_nurseries]
    return [task for tasks in reversed(generations) for task in tasks]


def is_under(task: Task, nursery: trio.Nursery) -> bool:
    """Is `task` in `nursery`, or below a task that is?"""
    above = task.parent_nursery
    while above is not None and above is not nursery:
        above = above.parent_task.parent_nursery
    return above is nursery


def drop_deadlines(task: Task) -> None:
    """Let no cancel scope that `task` itself entered ever expire."""
    status: trio_run.CancelStatus | None = task._cancel_status
    outside = task.parent_nursery._cancel_status if task.parent_nursery is not None else None
    while status is not None and status is not outside:
        status._scope.deadline = float("inf")
        status = status.parent


def take_noise(nursery: trio.Nursery, earlier: list[BaseException]) -> tuple[BaseException, ...]:
    """Remove what unwinding raised from `nursery`, but for Ctrl-C and SystemExit; return what of it is an error."""
    new = nursery._pending_excs[len(earlier) :]
    if not new:
        return ()
    loud = [error for error in new if is_or_holds(error, (KeyboardInterrupt, SystemExit))]
    nursery._pending_excs[:] = earlier + loud
    quiet = (without(error, (Reaped, trio.Cancelled)) for error in new if error not in loud)
    return tuple(error for error in quiet if error is not None)


def is_or_holds(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Is the error, or one of its group, of these kinds?"""
    return isinstance(error, kinds) or (isinstance(error, BaseExceptionGroup) and error.subgroup(kinds) is not None)


def interrupted(error: BaseException | None) -> bool:
    """Did a Ctrl-C lead to this?  Where it hits a nursery that is being opened or left, trio tells of that instead."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return error is not None
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(map(interrupted, (error.__cause__ or error.__context__, *within)))


def without(error: BaseException, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """Return the error without what is of these kinds; None if nothing is left."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)[1]
    return None if isinstance(error, kinds) else error


def described(task: Task) -> str:
    """Name a task, and its node."""
    node = task.context.get(NODE)
    return task.name if node is None else f"{task.name} (node {node})"


def listed(tasks: list[Task], state: Callable[[Task], str] | None = None) -> str:
    """Name tasks in the order of their counters, a line each, with what each does if `state` says it."""
    shown = sorted(tasks, key=counter)[:40]
    lines = [f"  {described(task)}" + (f": {state(task)}{place(task)}" if state else "") for task in shown]
    if len(tasks) > len(shown):
        lines.append(f"  and {len(tasks) - len(shown)} more")
    return "\n".join(lines)


def place(task: Task) -> str:
    """Say in which function of ours, not trio's, a task stands still."""
    for frame, line in reversed(list(task.iter_await_frames())):
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] != "trio" and not module.startswith(__package__):
            return f" in {frame.f_code.co_name}, {module} line {line}"
    return ""


def name_of_current() -> str:
    """Name the task that is running."""
    try:
        return described(trio.lowlevel.current_task())
    except RuntimeError:
        return "code outside any task"
