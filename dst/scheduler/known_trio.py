"""Is this a trio that we know?  Its parts are looked at, and one small simulation is run whose outcome is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio._core._run as trio_run
import trio._core._thread_cache as trio_threads

from dst.scheduler.errors import UnknownTrio

if TYPE_CHECKING:
    from dst.scheduler.core import Scheduler

_HABITS_KNOWN: list[str] = []  # the trio that passed check_habits in this process, if it did

_NEEDED = {
    "Runner": "runq instruments tasks deadlines io_manager entry_queue ki_pending _deliver_ki_cb waiting_for_idle "
    "main_task reschedule task_exited spawn_system_task system_nursery",
    "Deadlines": "_heap expire next_deadline",
    "EntryQueue": "queue idempotent_queue wakeup",
    "WakeupSocketpair": "wakeup_sock",
    "IOManager": "get_events process_events wait_readable statistics force_wakeup",
    "Task": "_counter _next_send _next_send_fn _abort_func _attempt_abort _cancel_status _child_nurseries "
    "parent_nursery context coro name iter_await_frames",
    "CancelStatus": "_scope parent",
    "CancelScope": "_registered_deadline deadline",
    "Nursery": "_children _pending_excs _pending_starts _nested_child_running "
    "_check_nursery_closed _parent_waiting_in_aexit _cancel_status parent_task",
    "ThreadCache": "start_thread_soon",
}


def check_shape(runner: trio_run.Runner) -> None:
    """Raise `UnknownTrio` if a part is missing."""
    task = trio.lowlevel.current_task()
    parts = {
        "Runner": runner,
        "Deadlines": getattr(runner, "deadlines", None),
        "EntryQueue": getattr(runner, "entry_queue", None),
        "WakeupSocketpair": getattr(getattr(runner, "entry_queue", None), "wakeup", None),
        "IOManager": getattr(runner, "io_manager", None),
        "Task": task,
        "CancelStatus": getattr(task, "_cancel_status", None),
        "CancelScope": trio.CancelScope(),
        "Nursery": task.parent_nursery,
        "ThreadCache": getattr(trio_threads, "THREAD_CACHE", None),
    }
    missing = [f"{part}.{name}" for part in parts for name in _NEEDED[part].split() if not hasattr(parts[part], name)]
    if missing:
        raise _unknown(f"lacks {', '.join(missing)}")


async def check_habits(scheduler: Scheduler) -> None:
    """Run a small simulation, once a process, whose only right outcome is known: is trio's loop what we think?"""
    if _HABITS_KNOWN:
        return
    seen: list[str] = []

    async def task(name: str) -> None:
        seen.append(name)
        with trio.move_on_after(1):
            await trio.sleep_forever()
        seen.append(f"{name} at {scheduler.now_ns}")

    scheduler.pick = lambda options: len(options) - 1
    async with scheduler.simulation() as nursery:
        for name in "abc":
            nursery.start_soon(task, name)
        seen.append(f"{(await scheduler.wait_idle()).value} after {scheduler.steps} steps")
    scheduler.pick = None
    wanted = ["c", "b", "a", "c at 1000000000", "b at 1000000000", "a at 1000000000", "quiescent after 7 steps"]
    if seen != wanted:
        raise _unknown(f"ran {seen} where {wanted} was expected")
    _HABITS_KNOWN.append(trio.__version__)
    scheduler.steps = 0
    scheduler._clock.move_to(0)


def _unknown(what: str) -> UnknownTrio:
    return UnknownTrio(
        f"trio {trio.__version__} {what}; the scheduler was tried with trio 0.22 to 0.35: "
        "use one of those, or teach dst.scheduler this one"
    )
