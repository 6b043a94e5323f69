"""The flow context: the syscalls of a flow, served from the fold or made live (K-FLOW)."""

from __future__ import annotations

import contextlib
import contextvars
import enum
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import trio

from kernel import events
from kernel.branches import Branches
from kernel.cancelling import Cancelling
from kernel.digest import fnv1a64
from kernel.doubt import find_in_doubt, may_try_again
from kernel.effects import Attempt, EffectCalls, run_attempt, run_attempts
from kernel.emit_rule import Ruling
from kernel.errors import (
    BlockingSignal,
    ContinuedAsNew,
    ControlSignal,
    DuplicateStep,
    GateInBranch,
    NonDeterministicFlow,
    NoTransactions,
    ReservedEventType,
    RunEnded,
    RunInterrupted,
    SyscallOutsideFlow,
    TransactionMisuse,
    TransactionRefused,
    UndeclaredFailure,
    UnknownEffect,
)
from kernel.events import quoted
from kernel.gates import TIMER, Delivered, Member, Wait, check_member, come_to, results, wait_on
from kernel.ids import LIKE_A_BEGINNING
from kernel.jsonform import Json, decode_canonical, fresh
from kernel.log_ids import FlowLog
from kernel.retries import next_try
from kernel.state import StepEntry, count_emits, get_decision
from kernel.surfaces import Ui

if TYPE_CHECKING:
    from kernel.definitions import Effect, Step
    from kernel.journal import Journal
    from kernel.parts import Parts
    from kernel.ports import Chance, Transaction

LiveCheck = Callable[[str], None]
LIVE_CHECKS: contextvars.ContextVar[tuple[LiveCheck, ...]] = contextvars.ContextVar("live_checks", default=())
"""Asked, innermost last, before a syscall that is not served; one may raise to refuse it.  Branches inherit them."""


COMPENSATION = "compensation"
"""The kind of a step that undoes another: a cancellation does not keep it from running."""


class Role(enum.Enum):
    """What a task of a run is doing."""

    FLOW = "flow"
    BRANCH = "branch"
    EFFECT = "effect"
    TRANSACTION = "transaction"  # an effect whose emits would wait for itself


_EFFECTS = (Role.EFFECT, Role.TRANSACTION)


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
        self.journal = journal
        self._registry = registry
        self._chance = chance
        self._workers = workers
        self.ending: str | None = None  # why the run is over, when it is
        self.signal: ControlSignal | None = None  # and the signal that ended it, were the flow to swallow it
        self.cancelling = Cancelling(self)
        self.blocker: BlockingSignal | None = None  # the first one of this run: it makes no syscall after it
        self.doubts: list[str] = []  # the at-most-once steps that this run has found, or left, in doubt
        self.reexecuted: str | None = None  # the first step of this run whose earlier end was not one to be served
        self._may_part = False  # something that once sent the flow on, and is not served, was done anew in this run
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
        self._began_after = journal.state["lastSequence"]  # what this run was given to go on from

    @property
    def log(self) -> FlowLog:
        """A log for flows: what was logged before something that the log serves is not logged again (K-USER-4).

        Silent as long as this run has been served all it asked for and there is more; then an earlier run has been
        here.  From the first syscall that is not served, or the end of the log, each line is logged, perhaps again.  A
        line is lost only if its run was stopped right before it.
        """
        return FlowLog(self.is_repeating)

    # ---- steps -------------------------------------------------------------------------------------------------------

    async def execute(self, step: Step, input: Json = None, *, key: str | None = None) -> Json:
        """Return the step's output: the recorded one, or that of running its effect now (K-FLOW-1).

        Raises the step's typed failures, the effect's own exception, `StepTimeout`, `DuplicateStep`, and `NoJsonForm`
        for an input or output that cannot be recorded.  If its tool has no effect here, the execution blocks.
        """
        return await self.execute_as(step.id if key is None else f"{step.id}[{key}]", step, input)

    run = execute

    async def execute_as(self, journal_id: str, step: Step, input: Json = None, *, kind: str = "step") -> Json:
        """`execute` under a journal identity of the caller's own; the effect is still looked up by the step's tool."""
        self.check_syscall()
        input_text = self.journal.encode(input, f"input of step {journal_id!r}")
        self._take_step_id(journal_id)
        entry = self.journal.state["steps"].get(journal_id)
        if entry is not None and entry["outcome"] in ("completed", "typed"):
            return self._serve_step(journal_id, step, entry, input_text)
        if self.journal.cancel is not None and kind != COMPENSATION:
            again = entry is not None and not step.at_most_once
            await self.cancelling.give_way(f"step {journal_id!r}", again=again)
        self.check_live(f"step {journal_id!r}")
        if entry is not None and self.reexecuted is None:
            self.reexecuted = journal_id
        if entry is not None and entry["outcome"] is not None and "retryDue" not in entry:
            self._may_part = True
        self.rule.went_live()
        if step.at_most_once and entry is not None and not may_try_again(entry):
            raise await find_in_doubt(self, journal_id, entry)
        return await self._run_live(journal_id, step, kind, input_text, entry)

    def _take_step_id(self, journal_id: str) -> None:
        if self._step_settled.get(journal_id, False):
            raise DuplicateStep(
                f"step {journal_id!r} was used twice in one run of {self.execution_id!r}: give each call its own `key`"
            )
        self._step_settled[journal_id] = True

    def _serve_step(self, journal_id: str, step: Step, entry: StepEntry, input_text: str) -> Json:
        recorded = entry["inputDigest"]
        if recorded is not None and recorded != fnv1a64(input_text):
            raise self.diverged(
                f"step {journal_id!r} of {self.execution_id!r} is asked for with another input than its log records: "
                "look for time, randomness or set order in the flow, or for a changed step that kept its id"
            )
        if entry["outcome"] == "completed":
            return fresh(entry["output"])
        raise self.rebuild_failure(journal_id, step, entry["failure"])

    def recorded_steps(self) -> Iterable[str]:
        """Return the journal ids of all steps the log knows."""
        return self.journal.state["steps"].keys()

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
            raise self.block(
                UnknownEffect(
                    f"step {step.id!r} names the tool {step.tool!r}, for which no effect is registered; "
                    f"registered are {sorted(self._registry)}"
                )
            )
        if step.transactional and self.journal.stores.transactions is None:
            raise NoTransactions(
                f"step {step.id!r} is a transaction, and the store of this runtime has none: use one whose `Stores` "
                "have `transactions` (SQLite, PostgreSQL, memory), or make it an ordinary step"
            )
        return effect

    async def _run_live(self, journal_id: str, step: Step, kind: str, input_text: str, entry: StepEntry | None) -> Json:
        settled = False
        try:
            attempt = Attempt(
                journal_id=journal_id,
                step=step,
                kind=kind,
                effect=self._find_effect(step),
                input_text=input_text,
                number=1 if entry is None else entry["attempts"] + 1,
                tries=0 if step.retry is None else next_try(step.retry, entry),
            )
            if step.retry is None:
                result = await run_attempt(self, attempt)
            else:
                result = await run_attempts(self, attempt, None if entry is None else entry.get("retryDue"))
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

    def now_ms(self) -> int:
        """Return the time: for what is recorded with it, never to be shown to a flow."""
        return self.journal.clock.now_ms()

    async def wait_until(self, due_ms: int, journal_id: str, kind: str) -> None:
        """Return when the time has come for another attempt, or, if it undoes nothing, for a cancellation."""
        with trio.CancelScope() as nap:
            if kind != COMPENSATION:
                self.journal.naps.add(nap)
            try:
                await self.journal.clock.sleep_until(due_ms)
            finally:
                self.journal.naps.discard(nap)
        self.check_syscall()  # a sibling may have ended the run meanwhile
        if self.journal.cancel is not None and kind != COMPENSATION:
            await self.cancelling.give_way(f"step {journal_id!r}", again=True)

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
        recorded = get_decision(self.journal.state, decision_id)
        if recorded is not None:
            return fresh(recorded["choice"])
        done = self._deciding[decision_id] = trio.Event()
        try:
            if self.journal.cancel is not None:
                await self.cancelling.give_way(f"decision {decision_id!r}", again=True)
            self.check_live(f"decision {decision_id!r}")
            return await self._decide_live(decision_id, decider)
        finally:
            del self._deciding[decision_id]
            done.set()

    async def _decide_live(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> Json:
        if self._leaves_gates():
            self._may_part = True  # its decider may have thrown before, which no log tells
        self.rule.went_live()
        try:
            self.rule.effect_began()
            try:
                with self.acting_as_effect():
                    raw = await self.call_decider(decision_id, decider)
            finally:
                self.rule.effect_settled()
            text = self.journal.encode(raw, f"choice of decision {decision_id!r}")
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
        value = await self.decide(self._draw_id("now"), self.journal.clock.now_ms)
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
        return bool(await self.decide(f"patched:{patch_id}", lambda: not self.is_replaying()))

    def is_replaying(self) -> bool:
        """Does the log hold a gate, a step or a decision that this run has not come to yet?"""
        return next(self._unvisited(), None) is not None

    def is_repeating(self) -> bool:
        """Has this run been served all it asked for, and does the log hold more than it has come to?  (K-USER-4)

        Then the flow does what an earlier run of it has done, and gone on from.  As long as all is served, whatever
        the run has come to is in the log: numbers can be compared instead of names, in no time that grows with them.
        """
        state = self.journal.state
        if self.rule.live or self.rule.unsettled or state["lastSequence"] != self._began_after:
            return False
        return (
            self.rule.segment < len(state["resumes"])
            or len(self._step_settled) < len(state["steps"])
            or len(self._asked) < len(state["variables"].get("_decisions", ()))
        )

    def unvisited(self) -> list[str]:
        """Return what the log holds that this run has not come to: gates, then steps, then decisions."""
        return list(self._unvisited())

    def _unvisited(self) -> Iterator[str]:
        state = self.journal.state
        for resume in state["resumes"][self.rule.segment :]:
            yield f"a gate that was passed on {resume['on']!r}"
        for step in state["steps"]:
            if step not in self._step_settled:
                yield f"step {step!r}"
        for decision in state["variables"].get("_decisions", {}):
            if decision not in self._asked:
                yield f"decision {decision!r}"

    def _draw_id(self, kind: str) -> str:
        """A decision id that is a function of the flow: the branch, and how often it has drawn."""
        place = f"{kind}:{self.branch_path()}"
        self._draws[place] = self._draws.get(place, 0) + 1
        return f"{place}#{self._draws[place]}"

    # ---- gates -------------------------------------------------------------------------------------------------------

    async def suspend(self, on: str, correlation_key: str | None = None, *, timeout: float | None = None) -> Json:
        """Return the payload delivered to this gate, or park the execution until there is one (K-FLOW-6).

        `timeout` is in seconds from when the gate is first reached; when it passes first, `GateTimeout` is raised.
        Raises `ValueError` for a name that nothing can be delivered on.
        """
        self.check_gate_place(on)
        check_member((on, correlation_key))
        return fresh((await come_to(self, Wait(((on, correlation_key),)), timeout))["payload"])

    async def suspend_any(self, gates: Sequence[str | Member], *, timeout: float | None = None) -> Delivered:
        """Return the first delivery to one of `gates`, each a name or a pair of name and correlation key (K-FLOW-6).

        Deliveries to the others wait for gates of their own.
        """
        wait = wait_on(gates, "any")
        self.check_gate_place(wait)
        resume = await come_to(self, wait, timeout)
        return Delivered(on=resume["on"], correlation_key=resume["correlationKey"], payload=fresh(resume["payload"]))

    async def suspend_all(self, gates: Sequence[str | Member], *, timeout: float | None = None) -> dict[Member, Json]:
        """Return what was delivered to each of `gates`, by (name, key), when all have had one (K-FLOW-6).

        They come in any order.  When the timeout passes first, `GateTimeout.arrived` has those that have come: they
        have passed this gate, and pass no other.  For no gates at all there is nothing to wait for.
        """
        if not gates:
            self.check_syscall()
            return {}
        wait = wait_on(gates, "all")
        self.check_gate_place(wait)
        resume = await come_to(self, wait, timeout)
        return results(wait, [*resume.get("arrived", ()), resume])

    async def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed since this was first reached; a durable timer, of any length (K-FLOW-7)."""
        self.check_gate_place(TIMER)
        await come_to(self, Wait(((TIMER, None),)), seconds)

    def check_gate_place(self, what: object) -> None:
        """Raise unless the caller may wait at a gate: the flow's own task, with no branch open (K-FLOW-6)."""
        self.check_syscall()
        if self._open_branches or trio.lowlevel.current_task() is not self._flow_task:
            raise GateInBranch(
                f"gate {str(what)!r} of {self.execution_id!r} is awaited while branches are open: close them first, "
                "so that which emits lie before the gate is a function of the log"
            )

    def check_gates_passed(self) -> None:
        """Raise if the flow comes to an end and has left out a gate that its log has passed (K-FLOW-9).

        It may, after an outcome that is not served: a step failed, the flow slept and is to try again, and on the
        re-run the step succeeds at once.
        """
        if self._leaves_gates() and not self._may_part:
            raise self.diverged(
                f"{self.execution_id!r} comes to an end and has not asked for gate {self.rule.segment}, which was "
                f"passed on {self.journal.state['resumes'][self.rule.segment]['on']!r}: a gate was taken out of the "
                "flow, or look for time, randomness or set order in it"
            )

    def _leaves_gates(self) -> bool:
        return self.rule.segment < len(self.journal.state["resumes"])

    async def continue_as_new(self, input: Json = None) -> NoReturn:
        """Begin again from the top with another input and nothing else remembered: no steps, decisions, passed gates.

        The execution keeps its id, so what was delivered and has passed no gate is there for the new run, and what has
        passed one passes no second.  Its old events serve no re-run any more: `Runtime.compact` drops them (K-RUN-7).
        """
        self.check_gate_place("a new beginning")
        text = self.journal.encode(input, "input")
        self.check_gates_passed()
        if self.journal.cancel is not None:
            await self.cancelling.give_way("a new beginning")
        self.check_live("a new beginning")
        await self.commit(events.EXECUTION_CONTINUED, f'{{"input":{text}}}')
        signal = ContinuedAsNew(f"execution {self.execution_id!r} begins anew")
        self.end("it begins anew", signal)
        raise signal

    @property
    def beginning(self) -> int:
        """How often the execution has begun anew."""
        return self.journal.state.get("continued", 0)

    def effect_scope(self) -> str:
        """Return what step ids are unique in, for services that deduplicate: the execution, and which beginning.

        An id that ends like a beginning has its own behind it from the first on.  Otherwise: 1. the child `x::c` begins
        anew, and so does its parent, 2. the parent's next child is `x::c~1`, 3. their effects are taken for the same.
        """
        if self.beginning or LIKE_A_BEGINNING.search(self.execution_id):
            return f"{self.execution_id}~{self.beginning}"
        return self.execution_id

    # ---- emits -------------------------------------------------------------------------------------------------------

    async def emit(self, type: str, payload: Json = None) -> None:
        """Append an event once per execution: a re-run that makes the same emit again is served (K-EMIT).

        Raises `ReservedEventType`, `NoJsonForm`; nothing is appended then.
        """
        self.check_emit()
        check_event_type(type)
        await self.emit_text(type, self.journal.encode(payload))

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
            await self.journal.commit(type, payload_text, stamp=stamp, provenance=provenance, admit=self.check_alive)
        except ControlSignal as signal:
            self.end(str(signal), signal)
            raise
        except Exception as error:
            raise self._interrupted(error) from error

    async def begin(self) -> Transaction:
        """Open a transaction, as `Journal.begin`, if the run has not ended; a failing store ends it, as in `commit`."""
        try:
            return await self.journal.begin(self.check_alive)
        except Exception as error:
            raise self._interrupted(error) from error

    async def commit_in(self, transaction: Transaction, type: str, payload_text: str) -> None:
        """Append with a transaction, as `commit` does without.

        Raises `TransactionRefused`, which is the effect's affair and ends no run.
        """
        try:
            self.check_alive()
            await self.journal.commit_in(transaction, type, payload_text)
        except ControlSignal as signal:
            self.end(str(signal), signal)
            raise
        except TransactionRefused:
            raise
        except Exception as error:
            raise self._interrupted(error) from error

    def _interrupted(self, error: Exception) -> RunInterrupted:
        """The store has failed: end the run, and return the signal that says so."""
        interrupted = RunInterrupted(f"an append of {self.execution_id!r} failed: {error}")
        interrupted.__cause__ = error
        self.end(str(interrupted), interrupted)
        return interrupted

    def end(self, why: str, signal: ControlSignal | None = None) -> None:
        """The run is over: whatever still holds this context can do nothing with it (K-FLOW-10)."""
        if self.ending is None:
            self.ending = why
            self.signal = signal

    def check_alive(self) -> None:
        """Raise `RunEnded` if the run is over."""
        if self.ending is not None:
            raise RunEnded(f"the run of {self.execution_id!r} is over ({self.ending})")

    def diverged(self, what: str) -> BlockingSignal:
        """Note that flow and log have parted; branches may settle what they are at, and begin nothing (K-FLOW-9)."""
        if self.reexecuted is not None:
            what += (
                f"; step {self.reexecuted!r} before it ended in a way that is not served and ran again, perhaps to "
                "another end: give each path step ids of its own, or declare the failure"
            )
        return self.block(NonDeterministicFlow(what))

    def block(self, signal: BlockingSignal) -> BlockingSignal:
        """The execution will block: this run makes no syscall any more.  Returns the signal to raise, the first one."""
        if self.blocker is None:
            self.blocker = signal
        return self.blocker

    def check_syscall(self) -> None:
        """Raise unless the caller may make any syscall: the flow's task or a branch, not an effect (K-FLOW-8)."""
        self.check_alive()
        role = self._roles.get(trio.lowlevel.current_task())
        if self.blocker is not None and role not in _EFFECTS:
            raise self.blocker
        if role is None or role in _EFFECTS:
            raise SyscallOutsideFlow(
                f"a syscall of {self.execution_id!r} came from "
                f"{'inside an effect or decider' if role else 'a task that is no branch of the flow'}: "
                "use `ctx.branches()` for concurrent work, and `EffectContext.emit` in effects"
            )

    def check_emit(self) -> None:
        """Raise unless the caller may emit: effects may too, through a closure over the context (ADR 0102 D4)."""
        self.check_alive()
        role = self._roles.get(trio.lowlevel.current_task())
        if role is Role.TRANSACTION:
            raise TransactionMisuse(
                f"an emit of {self.execution_id!r} came from the effect of a transaction, which may be rolled back: "
                "return what is to be told, and let the flow emit it"
            )
        if self.blocker is not None and role is not Role.EFFECT:
            raise self.blocker
        if role is None:
            raise SyscallOutsideFlow(f"an emit of {self.execution_id!r} came from a task that is no branch of the flow")

    @contextlib.contextmanager
    def acting_as_effect(self, *, in_transaction: bool = False) -> Iterator[None]:
        """While the block lasts, the current task is an effect or decider: it may emit, and nothing else."""
        task = trio.lowlevel.current_task()
        before = self._roles.get(task)
        self._roles[task] = Role.TRANSACTION if in_transaction else Role.EFFECT
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

    def check_live(self, what: str) -> None:
        """Ask whoever may refuse a syscall that is not served."""
        for check in LIVE_CHECKS.get():
            check(what)


def check_event_type(type: str) -> None:
    """Raise `ReservedEventType` for the kernel's own types (K-FLOW-7)."""
    if type in events.KERNEL_TYPES:
        raise ReservedEventType(f"{type!r} is the kernel's own event type: emit under a name of your own")
