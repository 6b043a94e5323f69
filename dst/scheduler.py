"""The scheduler: trio's own loop runs the tasks; we decide which task, when time moves, and who is dead.

This is the only module that touches trio's internals.  For the time of a `run` it puts two things of ours into trio:
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

from __future__ import annotations

import contextlib
import contextvars
import enum
import inspect
import operator
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from math import inf
from typing import NoReturn, TypeVar

import outcome
import trio
import trio._core._run as trio_run
import trio._core._thread_cache as trio_threads

from dst.clock import LAST_NS, VirtualClock, due_ns

T = TypeVar("T")
Task = trio.lowlevel.Task
Abort = trio.lowlevel.Abort

NODE: contextvars.ContextVar[str | None] = contextvars.ContextVar("dst_node", default=None)
"""Which node (incarnation) a task belongs to; trio copies it to children.  None is the world, which never crashes."""

UNLIMITED = 2**63 - 1
GRACE_STEPS = 10_000  # after a limit or a failure was told: what may still run before it is told again
SETTLE_STEPS = 1_000  # what the unwinding that one delivery of Reaped starts may use, or one dropped generator
REAP_DELIVERIES = 20  # how often a task may swallow Reaped
REAP_PASSES = 50  # for tasks that start new ones while they unwind


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


def run(async_fn: Callable[[Scheduler], Coroutine[object, object, T]]) -> T:
    """Run `async_fn(scheduler)` in one `trio.run` under virtual time; it may host many simulations, one after another.

    Real I/O and threads are refused until it returns.  Ctrl-C comes out as a plain KeyboardInterrupt, wherever it hit.
    The garbage collector is left to the caller: switch it off for speed, collect between simulations.
    """
    clock = VirtualClock()

    async def main() -> T:
        scheduler = Scheduler(clock)
        with scheduler._in_charge():
            await _check_habits(scheduler)
            try:
                return await async_fn(scheduler)
            finally:
                await scheduler._run_callbacks()
                scheduler._raise_interrupt()

    try:
        return trio.run(main, clock=clock, strict_exception_groups=True)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or not _interrupted(error):
            raise
        raise KeyboardInterrupt from error


class Scheduler:
    """Decides, within one `run`, who runs next and when time moves.

    Mutable: it is the state of the simulation that is going on.  The hooks and limits are set by the harness and keep
    their values over `begin`; hooks are asked between `begin` and `reap` only.  A hook that raises ends the simulation:
    what it raised is raised in the main task (the one that called `begin`), and from then on no hook is asked.
    """

    pick: Callable[[list[Task]], int] | None
    """Asked only when two tasks or more are runnable: the index of the one to run.  None: always 0, the calm order."""
    on_idle: Callable[[], bool] | None
    """Asked when nobody can run, before the clock jumps: True if it made a task runnable."""
    on_jump: Callable[[int], None] | None
    """Told the new `now_ns` after each jump."""
    time_limit_ns: int
    """The clock never jumps past it, nor past LAST_NS."""

    def __init__(self, clock: VirtualClock) -> None:
        self.pick = None
        self.on_idle = None
        self.on_jump = None
        self.time_limit_ns = LAST_NS
        self.steps = 0
        self.refused: list[RealWorld] = []  # in this simulation, even if the code that asked swallowed the error
        self._max_steps = UNLIMITED
        self._limit = UNLIMITED  # the step at which a limit is told next: max_steps, or later once it was told
        self._clock = clock
        self._runner = trio_run.GLOBAL_RUN_CONTEXT.runner
        _check_shape(self._runner)
        self._queue = self._runner.runq  # during a step: who became runnable in it; after the turn: who runs next
        self._deadlines = self._runner.deadlines
        self._real_io = self._runner.io_manager
        self._main = trio.lowlevel.current_task()
        self._shown: Task | None = None  # who ran in this step; None once the queue ran empty
        self._ready: list[Task] = []  # runnable, not shown to trio; always in the order of the options
        self._withheld: dict[Task, bool] = {}  # held back; True once it is runnable and kept out of _ready
        self._parked: dict[Task, outcome.Outcome[None]] = {}  # in park(); what it gets when released
        self._frozen: set[str | None] = set()
        self._morgue: list[Task] = []  # runnable, but dead
        self._paused: dict[str | None, list[Task]] = {}  # nodes that stand still, and who of them would run
        self._filtering = False  # always bool(_frozen or _withheld or _paused)
        self._live = False  # between begin and reap, and no failure yet
        self._calm = True  # no hook is asked: not live, or out of steps
        self._over = False  # trio has its own clock and I/O manager back
        self._waiter: Task | None = None  # in wait_idle
        self._settler: Task | None = None  # in _settle
        self._settler_jumps = False
        self._overrun: list[Task] = []  # who was taken off the queue because settling took too long
        self._unwinding: Callable[[Task], bool] | None = None  # whom the one in _settle waits for
        self._interrupt: BaseException | None = None  # a Ctrl-C that came while settling

    # --- time and steps

    @property
    def now_ns(self) -> int:
        """Virtual time since this simulation began; `trio.current_time()` is the same in seconds."""
        return self._clock.now_ns

    @property
    def max_steps(self) -> int:
        """How many steps a simulation may take.  There `wait_idle` returns STEP_LIMIT, or else main gets StepLimit."""
        return self._max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self._max_steps = self._limit = value

    def begin(self) -> None:
        """Start a simulation: time 0, step 0, nobody frozen or held; the caller is its main task.

        Raises RuntimeError if the last one was not reaped, or if a deadline is pending: a deadline around simulations
        would fire in the middle of one.
        """
        still = [task for tasks in self._paused.values() for task in tasks]
        left = [*self._ready, *self._morgue, *still, *self._withheld, *self._parked]
        if left:
            raise RuntimeError(f"the last simulation was not reaped:\n{_listed(left)}")
        if self._deadlines.next_deadline() != inf:  # this also drops what is stale
            raise RuntimeError("a deadline is pending around simulations; each begins at time 0, so it has no meaning")
        self._main = self._shown = trio.lowlevel.current_task()
        self._clock.move_to(0)
        self.steps = 0
        self._limit = self._max_steps
        self.refused = []
        self._frozen.clear()
        self._paused.clear()
        self._filtering = self._calm = False
        self._live = True

    @contextlib.asynccontextmanager
    @trio.lowlevel.enable_ki_protection  # as for `reap`, up to the block and from its end on
    async def simulation(self) -> AsyncIterator[trio.Nursery]:
        """Begin a simulation, lend its nursery, and reap it however the block ends: what most callers want.

        An error of the block itself comes out as it is; errors of tasks come out as trio's exception group.
        """
        self.begin()
        errors: list[BaseException] = []
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as raised:
                errors.append(raised)
            try:
                await self.reap(nursery)
            except BaseException as raised:
                errors.append(raised)
            if nursery._pending_excs or any(_has(error, (trio.Cancelled,)) for error in errors):
                nursery._pending_excs += errors  # trio sorts out whose cancellation that was
                errors.clear()
        if len(errors) > 1:
            raise BaseExceptionGroup("a simulation failed, and did not end", errors)
        if errors:
            raise errors[0]

    # --- yielding

    def others_runnable(self) -> bool:
        """Is a task besides the current one ready to run, or a deadline already due?  O(1); the held do not count.

        For ports: with nobody else to run there is no need to yield.
        """
        if self._ready or ((heap := self._deadlines._heap) and heap[0][0] <= self._clock.now):
            return True
        if not self._filtering:
            return bool(self._queue)
        return any(t not in self._withheld and not self._stands_still(t) for t in self._queue)

    def _stands_still(self, task: Task) -> bool:
        """Does the task belong to a node that is dead or paused?"""
        node = task.context.get(NODE)
        return node in self._frozen or node in self._paused

    async def yield_now(self) -> None:
        """Let others run: the current task goes behind those already runnable.

        Never raises Cancelled, so that a port behaves the same whether or not it had to yield; a port that wants to be
        a cancellation point says so with `trio.lowlevel.checkpoint_if_cancelled()`.
        """
        await trio.lowlevel.cancel_shielded_checkpoint()

    # --- holding back

    def hold_back(self, task: Task) -> None:
        """Do not show `task` until it is released.  Meanwhile it is not runnable: time may jump past it.

        It may be runnable, blocked, or the current task; if it is not runnable now, it is held when it would be.
        """
        if task not in self._withheld:
            self._withheld[task] = any(_take(tasks, task) for tasks in (self._ready, *self._paused.values()))
            self._filtering = True

    def release(self, task: Task) -> bool:
        """Let go of a held back or parked task.  True if that made it runnable, as of now."""
        runnable = self._withheld.pop(task, False)
        self._set_filtering()
        if runnable:
            self._queue.append(task)
        elif task in self._parked:
            self._runner.reschedule(task, self._parked.pop(task))
            runnable = True
        return runnable

    def _set_filtering(self) -> None:
        self._filtering = bool(self._frozen or self._withheld or self._paused)

    @property
    def held(self) -> tuple[Task, ...]:
        """Whom `release` would make runnable: the held back, then the parked, each in the order in which they came."""
        return (*(task for task, runnable in self._withheld.items() if runnable), *self._parked)

    async def park(self) -> None:
        """Wait until released.

        A cancellation that arrives meanwhile does not wake the task; it is raised when the task is released, so that
        only `release` decides when a parked task goes on.
        """
        task = trio.lowlevel.current_task()

        def abort(raise_cancel: Callable[[], NoReturn]) -> Abort:
            error: outcome.Error = outcome.capture(raise_cancel)
            if self._over or not isinstance(error.error, trio.Cancelled):  # Ctrl-C does not wait
                self._parked.pop(task, None)
                return Abort.SUCCEEDED
            if task in self._parked:
                self._parked[task] = error
            return Abort.FAILED

        self._parked[task] = outcome.Value(None)
        await trio.lowlevel.wait_task_rescheduled(abort)

    # --- standing still, and crash

    def pause(self, node: str) -> None:
        """A process that is stopped, as by a long collection or a suspended machine: none of its tasks runs for now.

        What would wake them meanwhile, a timer that comes due or a task that is new, wakes them when `resume` is
        called.  A caller that belongs to the node goes on until it next yields.
        """
        if node in self._paused or node in self._frozen:
            return
        still = self._paused[node] = [task for task in self._ready if task.context.get(NODE) == node]
        self._ready[:] = [task for task in self._ready if task not in still]
        self._filtering = True

    def resume(self, node: str) -> None:
        """A paused node goes on where it was, in the order in which its tasks became runnable.  Nothing for others."""
        still = self._paused.pop(node, [])
        self._set_filtering()
        self._ready += still

    def freeze(self, node: str) -> None:
        """A crash: from now on no task of `node` runs, not even its `finally` blocks, and its timers are gone.

        A caller that belongs to the node goes on until it next awaits; end it in `hold_forever`.
        """
        self._frozen.add(node)
        self._filtering = True
        for task in [task for task in self._ready if task.context.get(NODE) == node]:
            self._ready.remove(task)
            self._morgue.append(task)
        self._morgue += self._paused.pop(node, [])
        for task in [task for task in self._withheld if task.context.get(NODE) == node]:
            if self._withheld.pop(task):
                self._morgue.append(task)
        for task in [task for task in self._parked if task.context.get(NODE) == node]:
            del self._parked[task]
        for task in self._runner.tasks:  # a set, but what is done does not depend on its order
            if task.context.get(NODE) == node:
                _drop_deadlines(task)

    async def hold_forever(self) -> NoReturn:
        """Where a port ends when its call crashed its own node: the caller never goes on."""
        await trio.lowlevel.wait_task_rescheduled(lambda _: Abort.SUCCEEDED if self._over else Abort.FAILED)
        raise AssertionError("woken for ever held")

    # --- quiescence

    async def wait_idle(self) -> Idle:
        """Let everything run until nobody can, `on_idle` has nothing more, and no deadline is pending; or to a limit.

        One caller at a time.  A limit that is reached already is told again: raise it to go on.
        """
        if self._waiter is not None:
            raise RuntimeError(f"{_described(self._waiter)} is in wait_idle already")

        def abort(_raise_cancel: object) -> Abort:
            self._waiter = None
            return Abort.SUCCEEDED

        self._waiter = trio.lowlevel.current_task()
        if self._live:
            self._calm = False
            self._limit = self._max_steps
        why: Idle = await trio.lowlevel.wait_task_rescheduled(abort)
        return why

    def _wake_waiter(self, why: Idle) -> bool:
        task, self._waiter = self._waiter, None
        if task is not None:
            self._runner.reschedule(task, outcome.Value(why))
        return task is not None

    # --- the turn: trio asks for I/O events once per turn of its loop

    def _turn(self, _timeout: float) -> tuple[()]:
        """Cut trio's queue down to the one task that runs next."""
        if (heap := self._deadlines._heap) and heap[0][0] <= self._clock.now:  # trio puts another in its place at times
            self._deadlines.expire(self._clock.now)
        queue, ready = self._queue, self._ready
        if self._filtering and queue:
            self._filter()
        if self.steps >= self._limit or self._runner.ki_pending:
            self._interfere()
        if ready or len(queue) > 1:
            if len(queue) == 1:
                ready.append(queue.pop())
            elif queue:
                self._collect()
            self.steps += 1
            if len(ready) == 1 or self.pick is None or self._calm:
                self._shown = ready.pop(0)
            else:
                self._shown = self._pick(self.pick)
            queue.append(self._shown)
        elif queue:
            self.steps += 1
            self._shown = queue[0]
        return ()

    def _collect(self) -> None:
        """Put what became runnable in this step behind what was runnable before."""
        new = sorted(self._queue, key=_counter) if len(self._queue) > 1 else list(self._queue)
        self._queue.clear()
        if len(new) > 1 and (me := self._shown) is not None and _take(new, me):
            new.append(me)
        self._ready += new

    def _pick(self, pick: Callable[[list[Task]], int]) -> Task:
        options = self._ready.copy()  # pick may hold some of them back
        try:
            task = options[pick(options)]
            if not _take(self._ready, task):
                raise RuntimeError(f"pick chose {_described(task)}, and held it back")
            return task
        except BaseException as error:
            self._fail(error)
            return self._ready.pop(0)

    def _filter(self) -> None:
        """Take the dead, those who stand still and the held back out of the queue."""
        frozen, withheld, paused = self._frozen, self._withheld, self._paused
        for task in self._queue:
            node = task.context.get(NODE)
            if node in frozen or task in withheld or node in paused:
                break
        else:
            return  # nearly always: worth a loop of its own
        for task in sorted(self._queue, key=_counter) if paused else list(self._queue):
            node = task.context.get(NODE)
            if node in frozen:
                self._morgue.append(task)
            elif task in withheld:
                withheld[task] = True
            elif node in paused:
                paused[node].append(task)
            else:
                continue
            self._queue.remove(task)

    def _interfere(self) -> None:
        if self._runner.ki_pending:
            self._runner._deliver_ki_cb()  # trio would do it in a task of its own, which would cost a step
            self._filter()
        self._collect()
        if not self._ready or self.steps < self._limit:
            return
        self._limit = self.steps + GRACE_STEPS
        self._calm = True
        if self._settler is not None:
            self._overrun = [task for task in self._ready if self._unwinding is None or self._unwinding(task)]
            self._ready[:] = [task for task in self._ready if task not in self._overrun]
            self._wake_settler()
        elif (waiter := self._waiter) is not None:
            self._wake_waiter(Idle.STEP_LIMIT)
            self._run_first(waiter)
        else:
            self._fail(StepLimit(f"{self.steps} steps, and these still want to run:\n{_listed(self._ready)}"))

    def _run_first(self, task: Task) -> None:
        """Let `task`, if it is runnable at all, run before the others; hooks are not asked, so the first one runs."""
        self._filter()
        self._collect()
        if _take(self._ready, task):
            self._ready.insert(0, task)

    # --- nobody can run: trio asks the clock, and it asks us, only with an empty run queue

    def _idle(self, deadline: float) -> float:
        """Find something that goes on; trio comes back as long as nobody can run."""
        self._shown = None
        if self._ready or deadline <= self._clock.now:
            return 0.0
        try:
            if self._settler is not None and (not self._settler_jumps or deadline == inf):
                self._wake_settler()
            else:
                self._go_on(deadline)
        except BaseException as error:
            self._fail(error)
        return 0.0

    def _go_on(self, deadline: float) -> None:
        if self.on_idle is not None and not self._calm:
            claimed = self.on_idle()
            if self._queue or self._ready:
                return
            if claimed:
                raise RuntimeError("on_idle said that it made a task runnable, but none is")
        if self._wake_all_tasks_blocked():
            return
        if deadline == inf:
            if not self._wake_waiter(Idle.QUIESCENT):
                raise Deadlock(f"nobody can run and nothing is due:\n{self._blocked()}")
            return
        at_ns = due_ns(deadline)
        if at_ns <= min(self.time_limit_ns, LAST_NS):
            heap = self._deadlines._heap
            together = [due for due, _, scope in heap if due == scope._registered_deadline and due_ns(due) == at_ns]
            self._jump(at_ns, max(together))
            return
        if self._clock.now_ns < self.time_limit_ns:
            self._jump(self.time_limit_ns)
        if not self._wake_waiter(Idle.TIME_LIMIT):
            raise TimeLimit(f"nothing is due before the time limit of {self.time_limit_ns} ns:\n{self._blocked()}")

    def _jump(self, to_ns: int, deadline: float = 0.0) -> None:
        self._clock.move_to(to_ns, deadline)
        if self.on_jump is not None and not self._calm:
            self.on_jump(to_ns)

    def _wake_all_tasks_blocked(self) -> bool:
        """Wake who is in trio.testing.wait_all_tasks_blocked.  Trio would do it after the jump, in order of `id()`."""
        waiting = self._runner.waiting_for_idle
        if not waiting:
            return False
        cushion = waiting.keys()[0][0]
        for key in [key for key in waiting if key[0] == cushion]:
            self._runner.reschedule(waiting.pop(key))
        return True

    # --- failure: raised in the main task, wherever that is

    def _fail(self, error: BaseException) -> None:
        """Raise `error` in the main task; if that cannot be now, work towards it: called again when all is idle."""
        main = self._main if self._main in self._runner.tasks else self._runner.main_task
        assert main is not None, "a simulation runs under trio's main task"
        self._live, self._calm = False, True
        self._limit = self.steps + GRACE_STEPS
        self._queue.extend(task for task, runnable in self._withheld.items() if runnable)
        self._withheld.clear()
        self._filtering = bool(self._frozen or self._paused)
        if main._next_send_fn is not None:
            _poison(main, error)
        elif main._abort_func is not None:
            main._attempt_abort(_raiser(error))  # at the end of a nursery this cancels its children
        elif any(_busy(nursery) for nursery in main._child_nurseries):
            self._runner.spawn_system_task(self._rescue, main, error)  # the dead keep the nursery open
        else:
            self._parked.pop(main, None)
            self._runner.reschedule(main, outcome.Error(error))
        self._run_first(main)

    async def _rescue(self, main: Task, error: BaseException) -> None:
        """Reap all that main waits for, in a system task; then main goes on, with `error` in its innermost nursery."""
        nurseries = main.child_nurseries[::-1]
        if error not in nurseries[0]._pending_excs:
            nurseries[0]._pending_excs.append(error)
        for nursery in nurseries:
            nursery._pending_starts += 1  # keeps it open, and so main from going on before all is reaped
        for nursery in nurseries:
            try:
                await self.reap(nursery)
            except BaseException as raised:  # RefusesToEnd, Ctrl-C: comes out of main; a system task must not fail
                nursery._pending_excs.append(raised)
        for nursery in nurseries:
            nursery._pending_starts -= 1
            nursery._check_nursery_closed()

    def _blocked(self) -> str:
        below = (task for nursery in self._main._child_nurseries for task in _below(nursery))
        return _listed([self._main, *below], self._state)

    def _state(self, task: Task) -> str:
        if task.context.get(NODE) in self._frozen:
            return "dead"
        if task.context.get(NODE) in self._paused:
            return "stands still"
        if task in self._parked:
            return "parked"
        if task in self._withheld:
            return "held back"
        if any(nursery._parent_waiting_in_aexit for nursery in task._child_nurseries):
            return "waits for its children"
        return "waits"

    # --- the end

    # Otherwise: 1. Ctrl-C hits this code, 2. tasks are left, 3. their nursery waits for them, 4. a Deadlock is told.
    @trio.lowlevel.enable_ki_protection
    async def reap(self, nursery: trio.Nursery) -> tuple[BaseException, ...]:
        """The simulation is over: unwind every task under `nursery`, children before parents, then by task counter.

        The dead, the held, the parked, the sleeping and the shielded alike get `Reaped` where they wait; a task that
        never ran never does.  Time stands still and no hook is asked.  After it the nursery is empty, and nothing of
        the simulation is left.  Returns what the unwinding code raised, which nobody else will see; errors from before
        stay in the nursery.  Raises RefusesToEnd, after all is clean, naming tasks that had to be cut off.
        """
        earlier = list(nursery._pending_excs)
        self._stop(nursery)
        refusing = await self._unwind(nursery) if nursery._children else []
        refusing += await self._run_callbacks()
        noise = _take_noise(nursery, earlier)
        self._limit = UNLIMITED
        self._raise_interrupt()
        if refusing:
            raise RefusesToEnd(f"went on after the end of the simulation, and were cut off:\n{_listed(refusing)}")
        return noise

    def _stop(self, nursery: trio.Nursery) -> None:
        """From here on, whoever is under `nursery` runs only to unwind: who was runnable is not any more."""
        self._live, self._calm = False, True
        self._unwinding = lambda task: _is_under(task, nursery)
        self._thaw()
        if self._ready:
            doomed = set(_below(nursery))
            self._ready[:] = sorted((task for task in self._ready if task not in doomed), key=_counter)

    def _thaw(self) -> None:
        """Nobody is dead, stands still or is held back any more."""
        self._filter()
        self._collect()
        self._ready += [*self._morgue, *(task for task, runnable in self._withheld.items() if runnable)]
        self._ready += [task for still in self._paused.values() for task in still]
        self._morgue.clear()
        self._withheld.clear()
        self._frozen.clear()
        self._paused.clear()
        self._filtering = False

    async def _unwind(self, nursery: trio.Nursery) -> list[Task]:
        """Deliver Reaped until nobody is left; return who had to be cut off."""
        refusing: list[Task] = []
        deliveries: dict[Task, int] = {}
        passes = 0
        while doomed := _below(nursery):
            assert trio.lowlevel.current_task() not in doomed, "a task cannot reap the nursery it runs in"
            passes += 1
            for task in doomed:
                if task not in self._runner.tasks or any(_busy(each) for each in task._child_nurseries):
                    continue  # it ended meanwhile, or its turn comes when its children have ended
                deliveries[task] = deliveries.get(task, 0) + 1
                if deliveries[task] > REAP_DELIVERIES:
                    self._cut_off(task)
                    refusing.append(task)
                else:
                    self._deliver_reaped(task)
                await self._settle()
            if passes == REAP_PASSES:
                refusing += (doomed := _below(nursery))
                for task in doomed:
                    self._cut_off(task)
        return refusing

    def _deliver_reaped(self, task: Task) -> None:
        """Make `task` raise Reaped where it is; it has no children any more."""
        error = Reaped("the simulation is over")
        if task._next_send_fn is not None:
            _poison(task, error)
            self._queue.append(task)
            return
        if task._abort_func is not None:
            task._attempt_abort(_raiser(error))
        self._parked.pop(task, None)
        if task._next_send_fn is None:  # it cannot be aborted, and nobody is left who would wake it
            self._runner.reschedule(task, outcome.Error(error))

    def _cut_off(self, task: Task) -> None:
        """Make trio believe that `task` ended.  Its coroutine is kept for ever: dropping it would run its code."""
        _drop_deadlines(task)
        self._parked.pop(task, None)
        _take(self._ready, task)
        if task in self._queue:
            self._queue.remove(task)
        task._abort_func = None  # trio is about to cancel the nurseries that it leaves open
        _CUT_OFF.append(task.coro)
        self._runner.task_exited(task, outcome.Value(None))

    async def _settle(self, *, jumping: bool = False, steps: int = SETTLE_STEPS) -> None:
        """Wait until nobody else can run (with `jumping`: nor ever will), for so many steps at most.

        A Ctrl-C is kept for the end of `reap`.
        """

        def abort(raise_cancel: Callable[[], NoReturn]) -> Abort:
            error = outcome.capture(raise_cancel).error
            if not isinstance(error, trio.Cancelled):
                self._interrupt = error
            return Abort.FAILED

        self._overrun = []
        if self._queue or self._ready:
            self._limit = self.steps + steps
            self._settler_jumps = jumping
            self._settler = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(abort)

    def _raise_interrupt(self) -> None:
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt

    def _wake_settler(self) -> None:
        task, self._settler = self._settler, None
        if task is not None:
            self._runner.reschedule(task)

    async def _run_callbacks(self) -> list[Task]:
        """Run what is in trio's callback queue (dropped async generators, for one) and what that starts.

        Returns the tasks that had to be cut off.
        """
        entries, system = self._runner.entry_queue, self._runner.system_nursery
        refusing: list[Task] = []
        while waiting := len(entries.queue) + len(entries.idempotent_queue):
            self._unwinding = lambda task: task.parent_nursery is system
            self._real_io.process_events(self._real_io.get_events(0))  # wakes trio's own callback task
            # A share for each.  Otherwise: 1. each of many runs drops some generators in rings, 2. the collector finds
            # them all at once, 3. together they take too long, 4. a run that has nothing to do with it breaks.
            await self._settle(jumping=True, steps=SETTLE_STEPS * waiting)
            for task in self._overrun:
                self._cut_off(task)
            refusing += self._overrun
        self._unwinding = None
        return refusing

    # --- being installed

    @contextlib.contextmanager
    def _in_charge(self) -> Iterator[None]:
        """Put our clock and I/O manager in place; at the end give trio its own back, and every task its turn."""
        threads = _NoThreads(self, trio_threads.THREAD_CACHE)
        self._clock.when_idle = self._idle
        self._runner.io_manager = _NullIO(self)  # type: ignore[assignment]  # has only what trio's loop calls
        instruments = self._runner.instruments
        self._runner.instruments = _NoInstruments(self._runner)  # type: ignore[assignment]  # all that an empty one is asked
        trio_threads.THREAD_CACHE = threads  # type: ignore[assignment]  # has only start_thread_soon
        trio.socket.set_custom_socket_factory(_NoSockets(self))
        try:
            yield
        finally:
            trio.socket.set_custom_socket_factory(None)
            threads.uninstall()
            self._runner.io_manager = self._real_io
            self._runner.instruments = instruments
            self._clock.when_idle = None
            self._over = True
            self._wake_settler()
            self._thaw()
            self._queue.extend(self._ready)
            for task in list(self._parked):
                self._runner.reschedule(task, self._parked.pop(task))

    def _refuse(self, error: RealWorld) -> NoReturn:
        self.refused.append(error)
        raise error


# --- what stands in for the real world


class _NullIO:
    """An I/O manager for a world without I/O: trio's loop gets its turn from it, and simulated code an error."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._real = scheduler._real_io
        self._wakeup_sock = scheduler._runner.entry_queue.wakeup.wakeup_sock
        self.get_events = scheduler._turn
        self.process_events = operator.not_  # gets what _turn returned; does nothing, in C
        self.statistics = self._real.statistics
        self.force_wakeup = self._real.force_wakeup

    async def wait_readable(self, fd: object) -> None:
        if fd is not self._wakeup_sock:  # trio's own callback task sleeps on that one until the run is over
            self._refuse("wait_readable", fd)
        await self._real.wait_readable(self._wakeup_sock)

    async def wait_writable(self, fd: object) -> None:
        self._refuse("wait_writable", fd)

    def notify_closing(self, fd: object) -> None:
        """Nobody waits for `fd`."""

    def __getattr__(self, name: str) -> NoReturn:  # what trio has on other systems: kevents, completion ports
        self._refuse(name)

    def _refuse(self, name: str, *fds: object) -> NoReturn:
        on = " and ".join(str(fd) if isinstance(fd, int) else type(fd).__name__ for fd in fds) or "the operating system"
        self._scheduler._refuse(
            RealIO(f"{_who()} called {name} on {on} in a simulation; simulated code must go through ports")
        )


class _NoInstruments(dict[str, object]):
    """An empty dictionary in place of trio's own kind, which costs 0.3 us a step to be asked five times if it is empty.

    The first instrument that someone adds brings trio's own back.
    """

    def __init__(self, runner: trio_run.Runner) -> None:
        super().__init__()
        self._runner = runner
        self._real = runner.instruments

    def add_instrument(self, instrument: trio.abc.Instrument) -> None:
        self._runner.instruments = self._real
        self._real.add_instrument(instrument)

    def remove_instrument(self, instrument: trio.abc.Instrument) -> None:
        self._real.remove_instrument(instrument)  # not there: the right KeyError


class _NoSockets(trio.abc.SocketFactory):
    """Refuses trio sockets where they are made: an operation that succeeds at once never gets to the I/O manager."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def socket(self, family: object = None, type: object = None, proto: object = None) -> NoReturn:
        self._scheduler._refuse(
            RealIO(f"{_who()} opened a socket in a simulation; simulated code must go through ports")
        )


class _NoThreads:
    """Stands in for trio's thread cache, which is one for the process: other threads still get what they ask for."""

    def __init__(self, scheduler: Scheduler, real: trio_threads.ThreadCache) -> None:
        self._scheduler = scheduler
        self._real = real
        self._thread: int | None = threading.get_ident()

    def start_thread_soon(
        self, fn: Callable[[], object], deliver: Callable[[outcome.Outcome[object]], object], name: str | None = None
    ) -> None:
        if threading.get_ident() != self._thread:
            self._real.start_thread_soon(fn, deliver, name)
            return
        self._scheduler._refuse(
            RealThread(f"{_who()} wanted a thread in a simulation; simulated code must go through ports")
        )

    def uninstall(self) -> None:
        self._thread = None
        if trio_threads.THREAD_CACHE is self:  # type: ignore[comparison-overlap]  # see _in_charge
            trio_threads.THREAD_CACHE = self._real


# --- trio's objects

_CUT_OFF: list[object] = []  # coroutines that refused to end; see _cut_off
_HABITS_KNOWN: list[str] = []  # the trio that passed _check_habits in this process, if it did
_counter: Callable[[Task], int] = operator.attrgetter("_counter")


def _take(tasks: list[Task], task: Task) -> bool:
    """Remove `task` from `tasks`; False if it is not there."""
    try:
        tasks.remove(task)
    except ValueError:
        return False
    return True


def _raiser(error: BaseException) -> Callable[[], NoReturn]:
    def raise_it() -> NoReturn:
        raise error

    return raise_it


def _poison(task: Task, error: BaseException) -> None:
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


def _busy(nursery: trio.Nursery) -> bool:
    return bool(nursery._children or nursery._pending_starts)


def _below(nursery: trio.Nursery) -> list[Task]:
    """Return the tasks under `nursery`, deepest first, then by task counter."""
    generations: list[list[Task]] = []
    nurseries = [nursery]
    while nurseries:
        generations.append(sorted((task for each in nurseries for task in each._children), key=_counter))
        nurseries = [each for task in generations[-1] for each in task._child_nurseries]
    return [task for tasks in reversed(generations) for task in tasks]


def _is_under(task: Task, nursery: trio.Nursery) -> bool:
    above = task.parent_nursery
    while above is not None and above is not nursery:
        above = above.parent_task.parent_nursery
    return above is nursery


def _drop_deadlines(task: Task) -> None:
    """Let no cancel scope that `task` itself entered ever expire."""
    status: trio_run.CancelStatus | None = task._cancel_status
    outside = task.parent_nursery._cancel_status if task.parent_nursery is not None else None
    while status is not None and status is not outside:
        status._scope.deadline = float("inf")
        status = status.parent


def _take_noise(nursery: trio.Nursery, earlier: list[BaseException]) -> tuple[BaseException, ...]:
    """Remove what unwinding raised from `nursery`, but for Ctrl-C and SystemExit; return what of it is an error."""
    new = nursery._pending_excs[len(earlier) :]
    if not new:
        return ()
    loud = [error for error in new if _has(error, (KeyboardInterrupt, SystemExit))]
    nursery._pending_excs[:] = earlier + loud
    quiet = (_without(error, (Reaped, trio.Cancelled)) for error in new if error not in loud)
    return tuple(error for error in quiet if error is not None)


def _has(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    return isinstance(error, kinds) or (isinstance(error, BaseExceptionGroup) and error.subgroup(kinds) is not None)


def _interrupted(error: BaseException | None) -> bool:
    """Did a Ctrl-C lead to this?  Where it hits a nursery that is being opened or left, trio tells of that instead."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return error is not None
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(map(_interrupted, (error.__cause__ or error.__context__, *within)))


def _without(error: BaseException, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)[1]
    return None if isinstance(error, kinds) else error


# --- words


def _described(task: Task) -> str:
    node = task.context.get(NODE)
    return task.name if node is None else f"{task.name} (node {node})"


def _listed(tasks: list[Task], state: Callable[[Task], str] | None = None) -> str:
    shown = sorted(tasks, key=_counter)[:40]
    lines = [f"  {_described(task)}" + (f": {state(task)}{_place(task)}" if state else "") for task in shown]
    if len(tasks) > len(shown):
        lines.append(f"  and {len(tasks) - len(shown)} more")
    return "\n".join(lines)


def _place(task: Task) -> str:
    """Say in which function of ours, not trio's, a task stands still."""
    for frame, line in reversed(list(task.iter_await_frames())):
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] != "trio" and module != __name__:
            return f" in {frame.f_code.co_name}, {module} line {line}"
    return ""


def _who() -> str:
    try:
        return _described(trio.lowlevel.current_task())
    except RuntimeError:
        return "code outside any task"


# --- is this a trio that we know?

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


def _check_shape(runner: trio_run.Runner) -> None:
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


async def _check_habits(scheduler: Scheduler) -> None:
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
