"""One simulation: points, faults, holds, nodes and the trace (the harness's core; it knows no kernel)."""

from __future__ import annotations

import contextlib
import contextvars
import enum
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar, cast

import attrs
import trio

from dst.choices import CALL, FREE, IDLE, IDLE_AFTER, TASK, Choices, Ordering, Steering
from dst.faults import HOLD, HOLDING, STALL, Fault, Menu, Option, menu
from dst.footprints import EVERYTHING, WRITE
from dst.node import Incarnation, Node, NodeMain
from dst.schedule import Deviation
from dst.scheduler import NODE, Reaped, Scheduler
from dst.trace import Record

T = TypeVar("T")

RESTART_SECONDS = 1.0
"""Virtual time between a node's crash and the start of its next incarnation."""

STALL_SECONDS = 60.0
"""How long a node that stalls stands still."""


@attrs.define(kw_only=True)
class _Hold:
    """A task held at a point.  Mutable: `left` counts down."""

    task: trio.lowlevel.Task
    deviation: int  # its index among the run's deviations
    until: str  # a point, IDLE, FREE, or "" while counting
    left: int  # operations to go while counting
    then_idle: bool = False  # when `until` has happened it goes on waiting, for IDLE
    said: str = ""  # how the schedule says it, once that is not simply what it ended with
    last: str = ""  # while FREE: the newest operation that has happened meanwhile


class Moment(enum.Enum):
    """When a watcher is called at a point: its work is about to be done, or has just been done."""

    BEFORE = "before"
    AFTER = "after"


Watch = Callable[["Simulation", str, Menu, Moment], None]


class Simulation:
    """The world of one run, as ports and scenarios see it.  Mutable: it is what happens."""

    def __init__(
        self,
        scheduler: Scheduler,
        nursery: trio.Nursery,
        choices: Choices,
        faults: Iterable[Fault],
    ) -> None:
        self.scheduler = scheduler
        self.nursery = nursery
        self.faults = tuple(faults)
        self.records: list[Record] = []
        self.deviations: list[Deviation] = []
        self.kinds: list[str] = []  # for each deviation, the fault it is
        self.environment: list[tuple[str, int, tuple[str, ...]]] = []  # of them, what a calm world may do too
        self.fired: dict[str, int] = {}
        self.marks: dict[str, int] = {}
        self.operations = 0
        self.quiet = False  # True once the faults have stopped
        self.over = False  # True once the trace is closed
        self.crashes = 0
        self.answered = 0  # requests of the world that were answered: how far its drive has come
        self.errands: dict[str, int | None] = {}  # what the world has under way, and when it is due if that is known
        self.watch: Watch | None = None  # told of each point on the calm way, before and after its work
        self.failures: list[str] = []  # what ended by an error that nobody injected
        self._choices = choices
        self._ordering = cast("Ordering", choices) if hasattr(choices, "after_hold") else None
        self._steering = cast("Steering", choices) if hasattr(choices, "release") else None
        self.at_calls = self._ordering is not None and self._ordering.at_calls
        self.footprint: dict[tuple[str, str], None] | None = None  # what was touched since somebody began to listen
        self._touched = False  # has the operation that is going on said what it touches?
        self.task_labels: dict[trio.lowlevel.Task, str] = {}  # of those whose turn was a choice
        self.jumped_at = 0  # the step at which time last moved
        self._counts: dict[str, int] = {}
        self._task_counts: dict[str, int] = {}
        self._holds: list[_Hold] = []
        self._nodes: dict[str, Node] = {}
        self._world = contextvars.copy_context()
        self._menus: dict[str, Menu] = {}  # of the points under way, for the watcher
        self._task_menu = menu(self.faults, ((HOLD, HOLDING),))
        scheduler.on_idle = self._on_idle
        scheduler.on_jump = self._on_jump
        scheduler.pick = self._pick if len(self._task_menu.options) > 1 else None
        if self._steering is not None:
            self._steering.attach(self)

    # ---- points ------------------------------------------------------------------------------------------------------

    def enter(self, site: str, menu: Menu) -> tuple[str, str]:
        """Come to a point: return its label and what is to be done there, "" for the calm way on.

        A port goes: `enter`; `approach` if something is to be done or others can run; its work; `happened`; and
        whatever follows from what was to be done.
        """
        if self.over:
            raise Reaped("the simulation is over")
        count = self._counts.get(site, 0) + 1
        self._counts[site] = count
        point = f"{site}#{count}"
        if self.quiet:
            return point, ""
        if self.watch is not None:
            self._menus[point] = menu
            if not self.crowded():
                self.watch(self, point, menu, Moment.BEFORE)
        index = self._choices.choose(site, point, menu)
        if index == 0:
            return point, ""
        option = menu.options[index]
        assert option.fault is not None
        if option.name != HOLD:
            self._menus.pop(point, None)  # no calm way on from here: nothing to watch
        elif self._ordering is not None:
            self._menus[point] = menu  # something more may be done here when the hold has ended
        self._deviate(point, menu, option)
        return point, option.name

    def _deviate(self, point: str, menu: Menu, option: Option) -> None:
        assert option.fault is not None
        self.count(option.fault.name)
        self.deviations.append(Deviation(at=point, do=option.name))
        self.kinds.append(option.fault.name)
        self.records.append(("fault", point, option.name))
        if option.fault.environmental:
            site, _, count = point.rpartition("#")
            self.environment.append((site, int(count), menu.alike(option)))

    async def call(self, site: str) -> None:
        """Come to a place where nothing happens, but a task can be held before it goes on to a port.

        For the syscalls of a flow, whose appends wait for each other in the kernel: at their ports it is too late to
        change their order.  It is a point only for choices that hold tasks at such places: others see none here.
        """
        if not self.at_calls:
            return
        point, act = self.enter(CALL + site, self._task_menu)
        if act:
            await self.approach(point, act)
        self._touched = True  # nothing is done here
        self.happened(point)

    def touch(self, resource: str, mode: str) -> None:
        """Say what the operation that is going on reads or changes; see `dst.footprints` for the modes."""
        if self.footprint is not None:
            self.footprint[resource, mode] = None
            self._touched = True

    def alike(self, point: str, option: str) -> None:
        """Say that what the environment did at a point is like `option` in a calm run: here it comes to the same."""
        for at in range(len(self.environment) - 1, -1, -1):
            site, occurrence, names = self.environment[at]
            if f"{site}#{occurrence}" == point:  # not always the last: others may have come to points meanwhile
                self.environment[at] = (site, occurrence, (*names, option))
                return

    def environmental_acts(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """Return what the environment did at each site at which it did something.

        For each passing of the site there are the names of what it did and of what is alike, or `("",)` for nothing.
        """
        acts: dict[str, list[tuple[str, ...]]] = {}
        for site, occurrence, names in self.environment:
            acts.setdefault(site, [("",)] * self._counts[site])[occurrence - 1] = names
        return {site: tuple(row) for site, row in acts.items()}

    def crowded(self) -> bool:
        """Could anybody else run now?  A port that is alone need not yield."""
        # A port that is alone uses no step.  Otherwise: 1. a flow that never ends, 2. alone, 3. no limit ever stops it.
        return self.operations >= self.scheduler.max_steps or self.scheduler.others_runnable()

    async def approach(self, point: str, act: str) -> str:
        """Let others run before the work of a point; a hold lets them run for longer, and a stall stops the node.

        Returns what is to be done now: what was to be done, but for a hold, which may be followed by a crash.
        """
        if act == HOLD:
            await self._hold(point)
        elif act == STALL:
            await self._stall(point)
        else:
            await self.scheduler.yield_now()
        if self.over:
            raise Reaped("the simulation is over")
        if act == HOLD and self._ordering is not None and not self.quiet:
            act = self._after_hold(point, self._ordering)
        if self.watch is not None and act in ("", HOLD) and point in self._menus:
            self.watch(self, point, self._menus[point], Moment.BEFORE)
        return act

    def _after_hold(self, point: str, choices: Ordering) -> str:
        """The hold at a point has ended: return what else is to be done there, or that it was held."""
        menu = self._menus[point]
        index = choices.after_hold(point, menu)
        if index == 0:
            return HOLD
        del self._menus[point]
        self._deviate(point, menu, menu.options[index])
        return menu.names[index]

    def happened(self, point: str) -> None:
        """The work of a point is done: what waits for it is let go."""
        self.operations += 1
        if self.footprint is not None:
            if not self._touched:
                self.touch(EVERYTHING, WRITE)  # it does not say
            self._touched = False
        if self._steering is not None:
            self._steering.happened(point)
        if self._holds:
            self._let_go(point)
        if self.watch is not None and point in self._menus:
            self.watch(self, point, self._menus.pop(point), Moment.AFTER)

    def note(self, *record: object) -> None:
        """Add a record to the trace."""
        self.records.append(record)

    def count(self, fault: str) -> None:
        """Count something that fired."""
        self.fired[fault] = self.fired.get(fault, 0) + 1

    def sometimes(self, name: str, condition: bool = True) -> None:
        """Mark that a case was reached: `sometimes("refunded", condition)`."""
        if condition and not self.over:
            self.marks[name] = self.marks.get(name, 0) + 1

    # ---- holds -------------------------------------------------------------------------------------------------------

    async def _hold(self, point: str) -> None:
        """Keep the current task at its point until the hold ends, or until nobody else can run."""
        self._withhold(trio.lowlevel.current_task(), point)
        await self.scheduler.park()

    def _withhold(self, task: trio.lowlevel.Task, point: str) -> None:
        until = self._choices.hold_until(point)
        counting = isinstance(until, int)
        said = str(until) if not counting and str(until).startswith(IDLE_AFTER) else ""
        self._holds.append(
            _Hold(
                task=task,
                deviation=len(self.deviations) - 1,
                until="" if counting else str(until).removeprefix(IDLE_AFTER),
                left=until if isinstance(until, int) else 0,
                then_idle=bool(said),
                said=said,
            )
        )

    def _let_go(self, point: str) -> None:
        """An operation has happened: end the holds that were waiting for it, or have waited for enough of them."""
        for hold in self._holds.copy():
            if hold.until == FREE:
                hold.last, ends = point, False
            elif hold.then_idle and hold.until == point:
                hold.until, hold.then_idle, ends = IDLE, False, False
            elif hold.until:
                ends = hold.until == point
            else:
                hold.left -= 1
                ends = hold.left <= 0
            if ends:
                self._end_hold(hold, point)

    def _end_hold(self, hold: _Hold, until: str) -> None:
        self._holds.remove(hold)
        self.deviations[hold.deviation] = attrs.evolve(self.deviations[hold.deviation], until=until)
        self.scheduler.release(hold.task)

    def _pick(self, options: list[trio.lowlevel.Task]) -> int:
        """Choose among runnable tasks: the first that is not held back here."""
        for index, task in enumerate(options[:-1]):
            site = self._task_label(task)
            point, act = self.enter(site, self._task_menu) if not self.over else ("", "")
            if act != HOLD:
                return index
            self._withhold(task, point)
            self.scheduler.hold_back(task)
        return len(options) - 1

    def _task_label(self, task: trio.lowlevel.Task) -> str:
        """A task's path: its name under its parent's, numbered when there are several."""
        label = self.task_labels.get(task)
        if label is None:
            parent = task.parent_nursery.parent_task if task.parent_nursery else None
            above = "" if parent is None or parent is self.nursery.parent_task else self._task_label(parent) + "/"
            base = f"{TASK}{above.removeprefix(TASK)}{task.name.rpartition('.')[2]}"
            count = self._task_counts[base] = self._task_counts.get(base, 0) + 1
            label = self.task_labels[task] = base if count == 1 else f"{base}({count})"
        return label

    def _on_idle(self) -> bool:
        """Nobody can run: before time moves, the oldest hold ends of those that wait for that, or else of all."""
        if not self._holds:
            return False
        waiting = [hold for hold in self._holds if hold.until == IDLE]
        free = [] if waiting else [hold for hold in self._holds if hold.until == FREE]
        if free:
            assert self._steering is not None
            hold = free[self._steering.release([self.deviations[hold.deviation].at for hold in free])]
            self._end_hold(hold, IDLE_AFTER + hold.last if hold.last else IDLE)
        else:
            hold = (waiting or self._holds)[0]
            self._end_hold(hold, hold.said if waiting and hold.said else IDLE)
        return True

    def _on_jump(self, now_ns: int) -> None:
        self.jumped_at = self.scheduler.steps
        if not self.over:
            self.records.append(("clock", now_ns))

    @property
    def passed(self) -> dict[str, int]:
        """How often each site has been come to."""
        return dict(self._counts)

    def way_to(self, point: str) -> tuple[Deviation, ...]:
        """Return the deviations so far, as of a run that is to crash at `point`: what is held is held for ever."""
        still = {hold.deviation for hold in self._holds}
        return tuple(attrs.evolve(d, until=point) if i in still else d for i, d in enumerate(self.deviations))

    def close(self) -> None:
        """The run is over, and so is its trace; a hold that is still on has no end but that."""
        for hold in self._holds:
            self.deviations[hold.deviation] = attrs.evolve(self.deviations[hold.deviation], until=IDLE)
        self.over = True

    # ---- the world's own tasks ---------------------------------------------------------------------------------------

    def spawn(self, function: Callable[[], Awaitable[None]], name: str, *, after_seconds: float = 0.0) -> None:
        """Start a task of the world after some virtual time; an error of it is a failure of the run.

        A `name` says what it is about: it is part of what tells two states of the world apart.
        """
        self._world.copy().run(self._start_soon, self._guarded, name, function, name, after_seconds)

    def _start_soon(self, function: Callable[..., Awaitable[None]], name: str, *args: object) -> None:
        self.nursery.start_soon(function, *args, name=name)

    async def _guarded(self, function: Callable[[], Awaitable[None]], name: str, after_seconds: float) -> None:
        if after_seconds:
            self.errands[name] = self.scheduler.now_ns + round(after_seconds * 1e9)
            await trio.sleep(after_seconds)
        self.errands[name] = None
        try:
            await function()
        except Exception as error:
            self._broke(name, error)
        finally:
            self.errands.pop(name, None)

    def _broke(self, name: str, error: Exception) -> None:
        """Something ended by an error of its own, which nobody injected."""
        if self.over:
            raise error
        while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]  # a nursery's wrapping says nothing
        self.failures.append(f"{name} ended by {type(error).__name__}: {error}")
        self.records.append(("broke", name, type(error).__name__))

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def add_node(self, name: str, main: NodeMain) -> Node:
        """Start a node: `main(incarnation)` runs now, and again after each crash."""
        node = self._nodes[name] = Node(name=name, main=main)
        self._start(node)
        return node

    def _start(self, node: Node) -> None:
        node.starts += 1
        incarnation = node.current = Incarnation(node=node, number=node.starts)
        self._world.copy().run(self._start_soon, self._live, incarnation.name, incarnation)

    async def _live(self, incarnation: Incarnation) -> None:
        NODE.set(incarnation.name)
        incarnation.context = contextvars.copy_context()
        self.records.append(("start", incarnation.name))
        try:
            async with trio.open_nursery() as nursery:
                incarnation.nursery = nursery
                await incarnation.node.main(incarnation)
                # A node lives until it crashes, or the simulation is over; caught here, so that no nursery wraps it.
                with contextlib.suppress(Reaped):
                    await trio.sleep_forever()
        except Exception as error:
            self._broke(incarnation.name, error)

    def current_node(self) -> str:
        """Return the incarnation that is running, "" for the world."""
        return NODE.get() or ""

    def is_alive(self, incarnation: str) -> bool:
        """Is an incarnation of that name alive?  The world always is."""
        current = self._nodes[incarnation.rpartition(".")[0]].current if incarnation else None
        return not incarnation or (current is not None and current.name == incarnation)

    async def crash(self, point: str) -> None:
        """The node that is running dies here: none of its code runs any more, its memory is lost.  Never returns."""
        name = NODE.get()
        assert name is not None, f"{point}: the world does not crash"
        self.crashes += 1
        node = self._nodes[name.rpartition(".")[0]]
        incarnation = node.current
        assert incarnation is not None
        assert incarnation.name == name
        self.records.append(("crash", name, point))
        if incarnation.recovering:
            self.count("crash-in-recovery")
        self._end(node, name, incarnation, at=point)
        await self.scheduler.hold_forever()

    def stop(self, node: Node, why: str) -> None:
        """The world stops a node, which is started again: a shutdown is a crash, but one that is meant.

        Does nothing if the node is down: it is about to be started.
        """
        assert NODE.get() is None, f"{why}: a node does not stop a node"
        if node.current is not None:
            self.records.append(("stop", node.current.name, why))
            self._end(node, node.current.name, node.current)

    def _end(self, node: Node, name: str, incarnation: Incarnation, at: str = "") -> None:
        node.current = None
        self.touch(EVERYTHING, WRITE)
        self.scheduler.freeze(name)
        for hold in [hold for hold in self._holds if hold.task.context.get(NODE) == name]:
            self._holds.remove(hold)
            until = at if hold.until == at else IDLE  # one that waits for its own end is to be held as long again
            self.deviations[hold.deviation] = attrs.evolve(self.deviations[hold.deviation], until=until)
        incarnation.died()
        self.spawn(lambda: self._restart(node), f"restart {node.name}", after_seconds=RESTART_SECONDS)

    async def _restart(self, node: Node) -> None:
        self._start(node)

    async def _stall(self, point: str) -> None:
        """The node that is running stands still here for a while, then goes on believing what it believed.

        A process that is swapped out, a long collection of garbage, a virtual machine that is moved: none of its tasks
        runs, its timers come when it goes on.
        """
        name = NODE.get()
        assert name is not None, f"{point}: the world does not stand still"
        self.records.append(("stall", name, point))
        self.scheduler.pause(name)

        async def go_on() -> None:
            self.records.append(("goes on", name))
            self.scheduler.resume(name)

        self.spawn(go_on, f"stall of {name}", after_seconds=STALL_SECONDS)
        await self.scheduler.yield_now()

    async def request(
        self, node: Node, call: Callable[[Incarnation], Awaitable[T]], name: str, *, others: Sequence[Node] = ()
    ) -> T:
        """Call a node as an outside client does, again after each crash until it answers: at least once.

        While the node is down, the first of `others` that is up is asked instead.
        """
        while name in self.errands:
            name += "'"  # somebody asks the same thing at the same time
        self.errands[name] = None
        try:
            return await self._ask((node, *others), call)
        finally:
            self.errands.pop(name, None)

    async def _ask(self, nodes: Sequence[Node], call: Callable[[Incarnation], Awaitable[T]]) -> T:
        while True:
            up = [node.current for node in nodes if node.current is not None and node.current.up]
            incarnation = up[0] if up else await nodes[0].wait_up()
            answer: list[T] = []
            errors: list[Exception] = []
            answered = trio.Event()

            async def serve(incarnation: Incarnation = incarnation) -> None:
                try:
                    answer.append(await call(incarnation))  # noqa: B023  # this turn's own list
                except Exception as error:
                    errors.append(error)  # noqa: B023
                # Here, not where the world reads it.  Otherwise: 1. the answer is on its way, 2. a crash, 3. what the
                # world does next is not what it does after a crash that came before the answer.
                self.answered += 1
                answered.set()  # noqa: B023

            incarnation.spawn(serve)
            incarnation.on_death.append(answered)
            await answered.wait()
            if errors:
                raise errors[0]
            if answer:
                return answer[0]
