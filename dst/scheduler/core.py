"""Trio's own loop runs the tasks; we decide which task, when time moves, and who is dead."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from math import inf
from typing import NoReturn, TypeVar

import outcome
import trio
import trio._core._run as trio_run
import trio._core._thread_cache as trio_threads

from dst.clock import LAST_NS, VirtualClock, due_ns
from dst.scheduler.errors import Deadlock, Idle, RealWorld, Reaped, RefusesToEnd, StepLimit, TimeLimit
from dst.scheduler.known_trio import check_habits, check_shape
from dst.scheduler.real_world import NoInstruments, NoSockets, NoThreads, NullIO
from dst.scheduler.tasks import (
    NODE,
    Task,
    below,
    busy,
    counter,
    described,
    drop_deadlines,
    interrupted,
    is_or_holds,
    is_under,
    listed,
    poison,
    raiser,
    take,
    take_noise,
)

T = TypeVar("T")
Abort = trio.lowlevel.Abort

UNLIMITED = 2**63 - 1
GRACE_STEPS = 10_000  # after a limit or a failure was told: what may still run before it is told again
SETTLE_STEPS = 1_000  # what the unwinding that one delivery of Reaped starts may use, or one dropped generator
REAP_DELIVERIES = 20  # how often a task may swallow Reaped
REAP_PASSES = 50  # for tasks that start new ones while they unwind

_CUT_OFF: list[object] = []  # coroutines that refused to end; see _cut_off


def run(async_fn: Callable[[Scheduler], Coroutine[object, object, T]]) -> T:
    """Run `async_fn(scheduler)` in one `trio.run` under virtual time; it may host many simulations, one after another.

    Real I/O and threads are refused until it returns.  Ctrl-C comes out as a plain KeyboardInterrupt, wherever it hit.
    The garbage collector is left to the caller: switch it off for speed, collect between simulations.
    """
    clock = VirtualClock()

    async def main() -> T:
        scheduler = Scheduler(clock)
        with scheduler._in_charge():
            await check_habits(scheduler)
            try:
                return await async_fn(scheduler)
            finally:
                await scheduler._run_callbacks()
                scheduler._raise_interrupt()

    try:
        return trio.run(main, clock=clock, strict_exception_groups=True)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or not interrupted(error):
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
        check_shape(self._runner)
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
            raise RuntimeError(f"the last simulation was not reaped:\n{listed(left)}")
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
            if nursery._pending_excs or any(is_or_holds(error, (trio.Cancelled,)) for error in errors):
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
            self._withheld[task] = any(take(tasks, task) for tasks in (self._ready, *self._paused.values()))
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
                drop_deadlines(task)

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
            raise RuntimeError(f"{described(self._waiter)} is in wait_idle already")

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
        new = sorted(self._queue, key=counter) if len(self._queue) > 1 else list(self._queue)
        self._queue.clear()
        if len(new) > 1 and (me := self._shown) is not None and take(new, me):
            new.append(me)
        self._ready += new

    def _pick(self, pick: Callable[[list[Task]], int]) -> Task:
        options = self._ready.copy()  # pick may hold some of them back
        try:
            task = options[pick(options)]
            if not take(self._ready, task):
                raise RuntimeError(f"pick chose {described(task)}, and held it back")
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
        for task in sorted(self._queue, key=counter) if paused else list(self._queue):
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
            self._fail(StepLimit(f"{self.steps} steps, and these still want to run:\n{listed(self._ready)}"))

    def _run_first(self, task: Task) -> None:
        """Let `task`, if it is runnable at all, run before the others; hooks are not asked, so the first one runs."""
        self._filter()
        self._collect()
        if take(self._ready, task):
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
            poison(main, error)
        elif main._abort_func is not None:
            main._attempt_abort(raiser(error))  # at the end of a nursery this cancels its children
        elif any(busy(nursery) for nursery in main._child_nurseries):
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
        under = (task for nursery in self._main._child_nurseries for task in below(nursery))
        return listed([self._main, *under], self._state)

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
        noise = take_noise(nursery, earlier)
        self._limit = UNLIMITED
        self._raise_interrupt()
        if refusing:
            raise RefusesToEnd(f"went on after the end of the simulation, and were cut off:\n{listed(refusing)}")
        return noise

    def _stop(self, nursery: trio.Nursery) -> None:
        """From here on, whoever is under `nursery` runs only to unwind: who was runnable is not any more."""
        self._live, self._calm = False, True
        self._unwinding = lambda task: is_under(task, nursery)
        self._thaw()
        if self._ready:
            doomed = set(below(nursery))
            self._ready[:] = sorted((task for task in self._ready if task not in doomed), key=counter)

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
        while doomed := below(nursery):
            assert trio.lowlevel.current_task() not in doomed, "a task cannot reap the nursery it runs in"
            passes += 1
            for task in doomed:
                if task not in self._runner.tasks or any(busy(each) for each in task._child_nurseries):
                    continue  # it ended meanwhile, or its turn comes when its children have ended
                deliveries[task] = deliveries.get(task, 0) + 1
                if deliveries[task] > REAP_DELIVERIES:
                    self._cut_off(task)
                    refusing.append(task)
                else:
                    self._deliver_reaped(task)
                await self._settle()
            if passes == REAP_PASSES:
                refusing += (doomed := below(nursery))
                for task in doomed:
                    self._cut_off(task)
        return refusing

    def _deliver_reaped(self, task: Task) -> None:
        """Make `task` raise Reaped where it is; it has no children any more."""
        error = Reaped("the simulation is over")
        if task._next_send_fn is not None:
            poison(task, error)
            self._queue.append(task)
            return
        if task._abort_func is not None:
            task._attempt_abort(raiser(error))
        self._parked.pop(task, None)
        if task._next_send_fn is None:  # it cannot be aborted, and nobody is left who would wake it
            self._runner.reschedule(task, outcome.Error(error))

    def _cut_off(self, task: Task) -> None:
        """Make trio believe that `task` ended.  Its coroutine is kept for ever: dropping it would run its code."""
        drop_deadlines(task)
        self._parked.pop(task, None)
        take(self._ready, task)
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
        threads = NoThreads(self, trio_threads.THREAD_CACHE)
        self._clock.when_idle = self._idle
        self._runner.io_manager = NullIO(self)  # type: ignore[assignment]  # has only what trio's loop calls
        instruments = self._runner.instruments
        self._runner.instruments = NoInstruments(self._runner)  # type: ignore[assignment]  # all that an empty one is asked
        trio_threads.THREAD_CACHE = threads  # type: ignore[assignment]  # has only start_thread_soon
        trio.socket.set_custom_socket_factory(NoSockets(self))
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
