"""The flow context: the syscalls of a flow, served from the fold or made live (K-FLOW)."""

from __future__ import annotations

import contextlib
import contextvars
import enum
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import trio

from kernel import events
from kernel.branches import Branches
from kernel.digest import fnv1a64
from kernel.effects import Attempt, EffectCalls, run_attempt
from kernel.emit_rule import Ruling
from kernel.errors import (
    ControlSignal,
    DuplicateStep,
    GateInBranch,
    GateTimeout,
    NonDeterministicFlow,
    ReservedEventType,
    RunEnded,
    RunInterrupted,
    Suspended,
    SyscallOutsideFlow,
    UndeclaredFailure,
    UnknownEffect,
)
from kernel.events import quoted
from kernel.jsonform import Json, decode_canonical, encode, fresh
from kernel.state import StepEntry, count_emits, get_decision
from kernel.surfaces import Ui

if TYPE_CHECKING:
    from kernel.definitions import Effect, Step
    from kernel.journal import Journal
    from kernel.parts import Parts
    from kernel.ports import Chance

TIMER = "TIMER"
"""What a sleep waits on: nothing can be delivered to it, only time resumes it."""

LiveCheck = Callable[[str], None]
LIVE_CHECKS: contextvars.ContextVar[tuple[LiveCheck, ...]] = contextvars.ContextVar("live_checks", default=())
"""Asked, innermost last, before a syscall that is not served; one may raise to refuse it.  Branches inherit them."""


class Role(enum.Enum):
    """What a task of a run is doing."""

    FLOW = "flow"
    BRANCH = "branch"
    EFFECT = "effect"


class Context:
    """One run of one flow.  Mutable: a run goes on; when it has ended, every syscall is refused (K-FLOW-10)."""

    def __init__(
        self,
        journal: Journal,
        parts: Parts,
        *,
        registry: Mapping[str, Effect],
        chance: Chance,
        workers: trio.Nursery,
    ) -> None:
        self.execution_id = journal.execution_id
        self.ui = Ui(self)
        self.rule = parts.emit_rule(lambda digest: count_emits(journal.state, digest))
        self._journal = journal
        self._registry = registry
        self._chance = chance
        self._workers = workers
        self.ending: str | None = None  # why the run is over, when it is
        self.signal: ControlSignal | None = None  # and the signal that ended it, were the flow to swallow it
        self.divergence: NonDeterministicFlow | None = None  # the first one of this run: it makes no syscall after it
        self._reexecuted: str | None = None  # the first step of this run whose earlier end was not one to be served
        self._flow_task = trio.lowlevel.current_task()
        self._roles = {self._flow_task: Role.FLOW}
        self._branch_paths = {self._flow_task: ""}
        self._open_branches = 0
        self._compensations: set[str] = set()  # their journal ids, as far as sagas of this run have taken them
        self._branch_groups: dict[str, int] = {}
        self._step_settled: dict[str, bool] = {}  # step ids used in this run; False: ended unsettled, may be used again
        self._asked: set[str] = set()  # decision ids this run has come to
        self._deciding: dict[str, trio.Event] = {}  # deciders at work, by decision id
        self._draws: dict[str, int] = {}  # now/random/uuid calls so far, by kind and branch

    # ---- steps -------------------------------------------------------------------------------------------------------

    async def execute(self, step: Step, input: Json = None, *, key: str | None = None) -> Json:
        """Return the step's output: the recorded one, or that of running its effect now (K-FLOW-1).

        Raises the step's typed failures, the effect's own exception, `StepTimeout`, `DuplicateStep`, `UnknownEffect`,
        `NoJsonForm` for an input or output that cannot be recorded.
        """
        return await self.execute_as(step.id if key is None else f"{step.id}[{key}]", step, input)

    run = execute

    async def execute_as(self, journal_id: str, step: Step, input: Json = None, *, kind: str = "step") -> Json:
        """`execute` under a journal identity of the caller's own; the effect is still looked up by the step's tool."""
        self.check_syscall()
        input_text = encode(input, at=f"input of step {journal_id!r}")
        self._take_step_id(journal_id)
        entry = self._journal.state["steps"].get(journal_id)
        if entry is not None and entry["outcome"] in ("completed", "typed"):
            return self._serve_step(journal_id, step, entry, input_text)
        self._check_live(f"step {journal_id!r}")
        if entry is not None and self._reexecuted is None:
            self._reexecuted = journal_id
        self.rule.went_live()
        return await self._run_live(
            journal_id, step, kind, input_text, number=1 if entry is None else entry["attempts"] + 1
        )

    def _take_step_id(self, journal_id: str) -> None:
        if self._step_settled.get(journal_id, False):
            raise DuplicateStep(
                f"step {journal_id!r} was used twice in one run of {self.execution_id!r}: give each call its own `key`"
            )
        self._step_settled[journal_id] = True

    def _serve_step(self, journal_id: str, step: Step, entry: StepEntry, input_text: str) -> Json:
        recorded = entry["inputDigest"]
        if recorded is not None and recorded != fnv1a64(input_text):
            raise self._diverged(
                f"step {journal_id!r} of {self.execution_id!r} is asked for with another input than its log records: "
                "look for time, randomness or set order in the flow, or for a changed step that kept its id"
            )
        if entry["outcome"] == "completed":
            return fresh(entry["output"])
        raise self.rebuild_failure(journal_id, step, entry["failure"])

    def recorded_steps(self) -> Iterable[str]:
        """Return the journal ids of all steps the log knows."""
        return self._journal.state["steps"].keys()

    def take_compensation(self, journal_id: str) -> bool:
        """Reserve a compensation's journal id for this run; False if it is taken."""
        if journal_id in self._compensations:
            return False
        self._compensations.add(journal_id)
        return True

    def release_compensation(self, journal_id: str) -> None:
        """Give a reserved id back: what was to be compensated has not happened."""
        self._compensations.discard(journal_id)

    def has_compensation(self, journal_id: str) -> bool:
        """Has a saga of this run taken this journal id?"""
        return journal_id in self._compensations

    def rebuild_failure(self, journal_id: str, step: Step, failure: Json) -> Exception:
        """Return the typed failure a step's record describes, as the type the step declares for it."""
        assert isinstance(failure, dict)
        for declared in step.failures:
            if declared.wire_name == failure["name"]:
                return declared.from_data(fresh(failure["data"]))
        return UndeclaredFailure(
            f"step {journal_id!r} of {self.execution_id!r} failed as {failure['name']!r}, which it does not declare; "
            f"declared are {[d.wire_name for d in step.failures]}"
        )

    def _find_effect(self, step: Step) -> Effect:
        effect = step.effect if step.effect is not None else self._registry.get(step.tool)
        if effect is None:
            raise UnknownEffect(
                f"step {step.id!r} names the tool {step.tool!r}, for which no effect is registered; "
                f"registered are {sorted(self._registry)}"
            )
        return effect

    async def _run_live(self, journal_id: str, step: Step, kind: str, input_text: str, *, number: int) -> Json:
        settled = False
        try:
            result = await run_attempt(
                self,
                Attempt(
                    journal_id=journal_id,
                    step=step,
                    kind=kind,
                    effect=self._find_effect(step),
                    input_text=input_text,
                    number=number,
                ),
            )
            settled = True
            return result
        except step.failures:
            settled = True
            raise
        finally:
            self._step_settled[journal_id] = settled
            if not settled:
                # Known failures have said so before they were appended.  This is for the rest, such as a flow that
                # gives up waiting for the append of a completion: it lands, and the next run takes another path.
                self.rule.ended_unsettled()

    async def perform(self, attempt: Attempt, effect_context: EffectCalls, input: Json) -> object:
        """Call the effect of one attempt."""
        return await attempt.effect(effect_context, input)

    def live_value(self, raw: object, text: str) -> Json:
        """Return what a live call hands out: the decoded record, never the raw value (K-LOG-4)."""
        return decode_canonical(text)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    async def decide(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> Json:
        """Return the recorded choice, or call `decider` once and record what it returns (K-FLOW-5)."""
        self.check_syscall()
        self._asked.add(decision_id)
        while decision_id in self._deciding:
            await self._deciding[decision_id].wait()
            self.check_syscall()
        recorded = get_decision(self._journal.state, decision_id)
        if recorded is not None:
            return fresh(recorded["choice"])
        self._check_live(f"decision {decision_id!r}")
        done = self._deciding[decision_id] = trio.Event()
        try:
            return await self._decide_live(decision_id, decider)
        finally:
            del self._deciding[decision_id]
            done.set()

    async def _decide_live(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> Json:
        self.rule.went_live()
        try:
            self.rule.effect_began()
            try:
                with self.acting_as_effect():
                    raw = await self.call_decider(decision_id, decider)
            finally:
                self.rule.effect_settled()
            text = encode(raw, at=f"choice of decision {decision_id!r}")
            await self.commit(events.DECISION_RECORDED, f'{{"choice":{text},"decisionId":{quoted(decision_id)}}}')
        except BaseException:
            self.rule.ended_unsettled()
            raise
        return self.live_value(raw, text)

    async def call_decider(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> object:
        """Call a decider, sync or async."""
        choice = decider()
        return await choice if inspect.isawaitable(choice) else choice

    async def now(self) -> int:
        """Return the time in milliseconds since the epoch, as it was when this call was first made (K-FLOW-5)."""
        value = await self.decide(self._draw_id("now"), self._journal.clock.now_ms)
        assert isinstance(value, int)
        return value

    async def random(self) -> float:
        """Return a number in [0, 1), the same on every re-run (K-FLOW-5)."""
        value = await self.decide(self._draw_id("random"), self._chance.random)
        assert isinstance(value, int | float)
        return float(value)

    async def uuid(self) -> str:
        """Return a fresh UUID, the same on every re-run (K-FLOW-5)."""
        value = await self.decide(self._draw_id("uuid"), self._chance.uuid)
        assert isinstance(value, str)
        return value

    async def patched(self, patch_id: str) -> bool:
        """Return True for executions that reach this first with the patched code, for ever (K-FLOW-5).

        False, for ever, for one whose log shows that an earlier run has been past this place without it.
        """
        return bool(await self.decide(f"patched:{patch_id}", lambda: not self._is_replaying()))

    def _is_replaying(self) -> bool:
        """Does the log hold a gate, a step or a decision that this run has not come to yet?"""
        state = self._journal.state
        return (
            self.rule.segment < len(state["resumes"])
            or any(step not in self._step_settled for step in state["steps"])
            or any(decision not in self._asked for decision in state["variables"].get("_decisions", {}))
        )

    def _draw_id(self, kind: str) -> str:
        """A decision id that is a function of the flow: the branch, and how often it has drawn."""
        place = f"{kind}:{self.branch_path()}"
        self._draws[place] = self._draws.get(place, 0) + 1
        return f"{place}#{self._draws[place]}"

    # ---- gates -------------------------------------------------------------------------------------------------------

    async def suspend(self, on: str, correlation_key: str | None = None, *, timeout: float | None = None) -> Json:
        """Return the payload delivered to this gate, or park the execution until there is one (K-FLOW-6).

        `timeout` is in seconds from when the gate is first reached; when it passes first, `GateTimeout` is raised.
        """
        self.check_syscall()
        self._check_gate_place(on)
        ordinal = self.rule.segment
        resumes = self._journal.state["resumes"]
        if ordinal < len(resumes):
            return self._pass_gate(on, correlation_key)
        await self._park(on, correlation_key, timeout)
        raise AssertionError("a parked run does not go on")

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed since this was first reached; a durable timer, of any length (K-FLOW-7)."""
        self.check_syscall()
        self._check_gate_place(TIMER)
        if self.rule.segment < len(self._journal.state["resumes"]):
            self._pass_gate(TIMER, None)
            return
        await self._park(TIMER, None, seconds)

    def _check_gate_place(self, on: str) -> None:
        if self._open_branches or trio.lowlevel.current_task() is not self._flow_task:
            raise GateInBranch(
                f"gate {on!r} of {self.execution_id!r} is awaited while branches are open: close them first, so that "
                "which emits lie before the gate is a function of the log"
            )

    def _pass_gate(self, on: str, correlation_key: str | None) -> Json:
        resume = self._journal.state["resumes"][self.rule.segment]
        timed_out = resume["on"] == events.TIMER_FIRED
        passed: tuple[Json, Json] = (resume["on"], resume["correlationKey"])
        if timed_out:  # a timer names the gate it has opened in its payload; legacy ones do not
            gate = resume["payload"]
            passed = (gate["on"], gate["correlationKey"]) if isinstance(gate, dict) else (on, correlation_key)
        if passed != (on, correlation_key):
            raise self._diverged(
                f"gate {self.rule.segment} of {self.execution_id!r} was passed on {passed}, "
                f"the flow now waits on {(on, correlation_key)}"
            )
        self.rule.gate_passed()
        if timed_out and on != TIMER:
            raise GateTimeout(f"gate {self.rule.segment - 1} of {self.execution_id!r} on {on!r} ran out of time")
        return fresh(resume["payload"])

    async def _park(self, on: str, correlation_key: str | None, timeout: float | None) -> None:
        gate = self._journal.state["gate"]
        if gate is None:
            self._check_live(f"gate on {on!r}")
            due = "null" if timeout is None else str(self._journal.clock.now_ms() + round(timeout * 1000))
            key = "null" if correlation_key is None else quoted(correlation_key)
            await self.commit(
                events.EXECUTION_SUSPENDED,
                f'{{"correlationKey":{key},"due":{due},"on":{quoted(on)},"ordinal":{self.rule.segment}}}',
            )
        elif (gate["on"], gate["correlationKey"]) != (on, correlation_key):
            raise self._diverged(
                f"{self.execution_id!r} is parked on {(gate['on'], gate['correlationKey'])}, "
                f"the flow now waits on {(on, correlation_key)}"
            )
        parked = Suspended(on)
        self.end("parked at a gate", parked)
        raise parked

    # ---- emits -------------------------------------------------------------------------------------------------------

    async def emit(self, type: str, payload: Json = None) -> None:
        """Append an event once per execution: a re-run that makes the same emit again is served (K-EMIT).

        Raises `ReservedEventType`, `NoJsonForm`; nothing is appended then.
        """
        self.check_emit()
        check_event_type(type)
        await self.emit_text(type, encode(payload))

    async def emit_text(self, type: str, text: str) -> None:
        """Emit a payload that is encoded."""
        digest = self.rule.identity(quoted(type), text)
        ruling = self.rule.rule(digest)  # no await since the call: taken, served, stamped in one step (K-EMIT-3)
        if ruling is not Ruling.SERVED:
            await self.commit(type, text, stamp=digest if ruling is Ruling.STAMPED else None)

    async def stream(self, chunk: Json) -> None:
        """Emit one `STREAM_CHUNK` (K-FLOW-7)."""
        await self.emit(events.STREAM_CHUNK, chunk)

    # ---- branches ----------------------------------------------------------------------------------------------------

    def branches(self) -> Branches:
        """Open concurrent branches: `async with ctx.branches() as b: b.start(f, arg)` (K-FLOW-8)."""
        self.check_syscall()
        return Branches(self)

    def branch_path(self) -> str:
        """The path of the current branch, "" in the flow's own task: a function of the flow, not of timing."""
        return self._branch_paths.get(trio.lowlevel.current_task(), "effect")

    def next_branch_group(self, path: str) -> int:
        """Number the groups of branches opened from one path, in order."""
        self._branch_groups[path] = self._branch_groups.get(path, -1) + 1
        return self._branch_groups[path]

    def enter_branch(self, path: str) -> None:
        """The current task is a branch from now on."""
        task = trio.lowlevel.current_task()
        self._roles[task] = Role.BRANCH
        self._branch_paths[task] = path

    def leave_branch(self) -> None:
        """The current task's branch is over."""
        task = trio.lowlevel.current_task()
        del self._roles[task], self._branch_paths[task]

    def count_branches(self, change: int) -> None:
        """A group of branches was opened or closed."""
        self._open_branches += change

    # ---- the run's life ----------------------------------------------------------------------------------------------

    async def commit(
        self, type: str, payload_text: str, *, stamp: str | None = None, provenance: dict[str, Json] | None = None
    ) -> None:
        """Append for this run, if it has not ended.  A lost position or a failing store ends it, as a signal that a
        flow's `except Exception` does not see: no handler may take it for a step's failure."""
        try:
            await self._journal.commit(type, payload_text, stamp=stamp, provenance=provenance, admit=self.check_alive)
        except ControlSignal as signal:
            self.end(str(signal), signal)
            raise
        except Exception as error:
            interrupted = RunInterrupted(f"an append of {self.execution_id!r} failed: {error}")
            interrupted.__cause__ = error
            self.end(str(interrupted), interrupted)
            raise interrupted from error

    def end(self, why: str, signal: ControlSignal | None = None) -> None:
        """The run is over: whatever still holds this context can do nothing with it (K-FLOW-10)."""
        if self.ending is None:
            self.ending = why
            self.signal = signal

    def check_alive(self) -> None:
        """Raise `RunEnded` if the run is over."""
        if self.ending is not None:
            raise RunEnded(f"the run of {self.execution_id!r} is over ({self.ending})")

    def _diverged(self, what: str) -> NonDeterministicFlow:
        """Note that flow and log have parted; branches may settle what they are at, and begin nothing (K-FLOW-9)."""
        if self._reexecuted is not None:
            what += (
                f"; step {self._reexecuted!r} before it ended in a way that is not served and ran again, perhaps to "
                "another end: give each path step ids of its own, or declare the failure"
            )
        if self.divergence is None:
            self.divergence = NonDeterministicFlow(what)
        return self.divergence

    def check_syscall(self) -> None:
        """Raise unless the caller may make any syscall: the flow's task or a branch, not an effect (K-FLOW-8)."""
        self.check_alive()
        role = self._roles.get(trio.lowlevel.current_task())
        if self.divergence is not None and role is not Role.EFFECT:
            raise self.divergence
        if role is None or role is Role.EFFECT:
            raise SyscallOutsideFlow(
                f"a syscall of {self.execution_id!r} came from "
                f"{'inside an effect or decider' if role else 'a task that is no branch of the flow'}: "
                "use `ctx.branches()` for concurrent work, and `EffectContext.emit` in effects"
            )

    def check_emit(self) -> None:
        """Raise unless the caller may emit: effects may too, through a closure over the context (ADR 0102 D4)."""
        self.check_alive()
        role = self._roles.get(trio.lowlevel.current_task())
        if self.divergence is not None and role is not Role.EFFECT:
            raise self.divergence
        if role is None:
            raise SyscallOutsideFlow(f"an emit of {self.execution_id!r} came from a task that is no branch of the flow")

    @contextlib.contextmanager
    def acting_as_effect(self) -> Iterator[None]:
        """While the block lasts, the current task is an effect or decider: it may emit, and nothing else."""
        task = trio.lowlevel.current_task()
        before = self._roles.get(task)
        self._roles[task] = Role.EFFECT
        try:
            yield
        finally:
            if before is None:
                del self._roles[task]
            else:
                self._roles[task] = before

    @property
    def workers(self) -> trio.Nursery:
        """The worker's nursery, in which effects with a deadline run (K-FLOW-3)."""
        return self._workers

    def _check_live(self, what: str) -> None:
        for check in LIVE_CHECKS.get():
            check(what)


def check_event_type(type: str) -> None:
    """Raise `ReservedEventType` for the kernel's own types (K-FLOW-7)."""
    if type in events.KERNEL_TYPES:
        raise ReservedEventType(f"{type!r} is the kernel's own event type: emit under a name of your own")
