"""What users declare: flows and steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, overload

import attrs

from kernel.errors import TypedFailure
from kernel.ids import check_text
from kernel.jsonform import Json
from kernel.ports import Sql
from kernel.retries import RetryPolicy

if TYPE_CHECKING:
    from kernel.context import Context


class EffectContext(Protocol):
    """What an effect is given beside its input."""

    @property
    def idempotency_key(self) -> str:
        """Execution id and step id: the same for every attempt, to be handed to services that deduplicate."""

    @property
    def attempt(self) -> int:
        """1 for the first attempt; runs on across crashes."""

    @property
    def deadline_seconds(self) -> float | None:
        """The step's deadline for an attempt, if it has one."""

    @property
    def sql(self) -> Sql:
        """The SQL that is committed with the step's completion (K-USER-2).

        Raises `TransactionMisuse` in a step that is no transaction.
        """

    async def emit(self, type: str, payload: Json = None) -> None:
        """Append an event, tagged with step and attempt; at least once, never served (ADR 0102 D1).

        Raises `TransactionMisuse` in a transaction: it would tell of what may be rolled back.
        """


Effect = Callable[[EffectContext, Json], Awaitable[object]]
FlowFunction = Callable[["Context", Json], Awaitable[object]]


def _step_id(_instance: object, _attribute: object, value: str) -> None:
    if not value or any(c in value for c in "[]#\n"):
        raise ValueError(f"step id {value!r}: wanted a non-empty text without '[', ']', '#' and line breaks")


def _flow_id(_instance: object, _attribute: object, value: str) -> None:
    check_text(value, "flow")  # stores keep it beside the log


def _deadline(_instance: object, _attribute: object, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError(f"deadline {value!r}: wanted seconds over zero, or None for no deadline")


@attrs.frozen(kw_only=True)
class Step:
    """A step: what a flow may execute at most to completion once (K-FLOW-1).

    It carries its effect, or names one by `tool_id` (by default its id) in the runtime's registry.
    """

    id: str = attrs.field(validator=_step_id)
    effect: Effect | None = None
    tool_id: str | None = None
    failures: tuple[type[TypedFailure], ...] = ()
    deadline_seconds: float | None = attrs.field(default=None, validator=_deadline)
    at_most_once: bool = False
    retry: RetryPolicy | None = None
    transactional: bool = False

    def __attrs_post_init__(self) -> None:
        if self.at_most_once and self.transactional:
            raise ValueError(
                f"step {self.id!r} is a transaction and is to run at most once: a transaction whose end is not in the "
                "log has done nothing, so it is never in doubt; leave `at_most_once` out"
            )
        if self.at_most_once and self.retry is not None:
            raise ValueError(f"step {self.id!r} is to run at most once and has a retry policy: choose one of the two")

    @property
    def tool(self) -> str:
        """The id under which the effect is looked up."""
        return self.tool_id if self.tool_id is not None else self.id

    def __call__(self, effect: Effect) -> Step:
        """Return this step carrying `effect`: the decorator form."""
        return attrs.evolve(self, effect=effect)


def step(
    id: str,
    effect: Effect | None = None,
    *,
    tool_id: str | None = None,
    failures: tuple[type[TypedFailure], ...] = (),
    deadline: float | None = None,
    at_most_once: bool = False,
    retry: RetryPolicy | None = None,
) -> Step:
    """Declare a step; `@step("charge", failures=(CardDeclined,), deadline=30)` decorates its effect.

    `failures` are recorded and raised again on re-runs; any other exception is an untyped failure, and the step runs
    again on a re-run.  `deadline` is in seconds and for each attempt; `retry` says how often a failing one is tried.

    An `at_most_once` step never runs again by itself: whatever is neither a completion nor a declared failure, a crash
    in the middle too, leaves it in doubt, and the execution blocks until `Runtime.resolve` says what has happened.
    """
    return Step(
        id=id,
        effect=effect,
        tool_id=tool_id,
        failures=failures,
        deadline_seconds=deadline,
        at_most_once=at_most_once,
        retry=retry,
    )


def transaction(
    id: str,
    effect: Effect | None = None,
    *,
    tool_id: str | None = None,
    failures: tuple[type[TypedFailure], ...] = (),
    deadline: float | None = None,
    retry: RetryPolicy | None = None,
) -> Step:
    """Declare a step whose SQL is committed together with its completion, so exactly once (K-USER-2).

    The effect runs its SQL with `await effect.sql.execute(statement, parameters)`, in the store's own database.  Any
    failure, a declared one too, rolls it back; each attempt is a transaction of its own.  While it is open, the
    execution appends nothing else, and on SQLite nobody does: keep it short, and give it a `deadline`.
    """
    return Step(
        id=id,
        effect=effect,
        tool_id=tool_id,
        failures=failures,
        deadline_seconds=deadline,
        retry=retry,
        transactional=True,
    )


@attrs.frozen(kw_only=True)
class Flow:
    """A flow: re-run from the top on resume and recovery, its syscalls served from the fold (K-FLOW)."""

    id: str = attrs.field(validator=_flow_id)
    function: FlowFunction
    version: str | None = None


@overload
def flow(function: FlowFunction, /) -> Flow: ...
@overload
def flow(*, id: str | None = None, version: str | None = None) -> Callable[[FlowFunction], Flow]: ...
def flow(
    function: FlowFunction | None = None, /, *, id: str | None = None, version: str | None = None
) -> Flow | Callable[[FlowFunction], Flow]:
    """Declare `async def f(ctx, input)` as a flow; its id is the function's name unless given."""

    def declare(function: FlowFunction) -> Flow:
        name = id or getattr(function, "__name__", None)
        if name is None:
            raise ValueError(f"flow {function!r} has no name of its own: give it an `id`")
        return Flow(id=name, function=function, version=version)

    return declare if function is None else declare(function)
