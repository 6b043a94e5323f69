"""Every error and control signal of the kernel, in one place.

`Exception`s are for callers and flows.  `ControlSignal`s are how a run ends without a result; they derive from
`BaseException` so that no `except Exception` in a flow can record one as a value (K-RUN).
"""

from __future__ import annotations

from typing import Self

from kernel.jsonform import Json, MalformedJson, NoJsonForm

__all__ = [
    "AppendUnknown",
    "ConcurrencyConflict",
    "ControlSignal",
    "CorruptLog",
    "DuplicateStep",
    "ExecutionBlocked",
    "ExecutionFailed",
    "ExecutionInterrupted",
    "ExecutionMismatch",
    "Fenced",
    "GateInBranch",
    "GateTimeout",
    "KernelError",
    "LogTruncated",
    "MalformedJson",
    "NoJsonForm",
    "NonDeterministicFlow",
    "NotAStore",
    "ReservedEventType",
    "RunEnded",
    "RunInterrupted",
    "RunLost",
    "SnapshotUnreadable",
    "StepTimeout",
    "StoreUnavailable",
    "StoreVersion",
    "SurfaceConflict",
    "Suspended",
    "SyscallOutsideFlow",
    "TypedFailure",
    "UndeclaredFailure",
    "UnknownEffect",
    "UnknownExecution",
    "UnknownFlow",
    "describe_error",
]


class KernelError(Exception):
    """Base of the errors the kernel itself raises."""


def describe_error(error: Exception) -> dict[str, Json]:
    """Return what a log keeps of an error: no trace and no address, and never an error of its own (K-RUN)."""
    try:
        message = str(error)
    except Exception:
        message = "its text cannot be made: its `__str__` raises"
    return {"message": message, "type": type(error).__name__}


# ---- what a store may say --------------------------------------------------------------------------------------------


class ConcurrencyConflict(KernelError):
    """The log is not at the expected position; nothing was written (K-LOG-2)."""


class Fenced(KernelError):
    """A newer owner has claimed the execution; nothing was written (K-LOG-2)."""


class AppendUnknown(KernelError):
    """The answer to an append was lost: it may or may not have landed (K-LOG-2)."""


class StoreUnavailable(KernelError):
    """The store refused or could not be reached, a full disk for example; nothing was written."""


class LogTruncated(KernelError):
    """A read began below the first stored event; read the snapshot first (K-LOG-1)."""


class CorruptLog(KernelError):
    """A stored log is not contiguous or its hash chain is broken (K-LOG-3)."""


class SnapshotUnreadable(KernelError):
    """A snapshot cannot be read and the log below it is gone, so there is no state to go on from (K-RUN-6)."""


class NotAStore(KernelError):
    """The file is not a store of this kernel."""


class StoreVersion(KernelError):
    """The store, or an event in it, was written by a newer version than this one reads."""


# ---- what a caller may get -------------------------------------------------------------------------------------------


class UnknownFlow(KernelError):
    """No flow of that id is registered with the runtime."""


class UnknownExecution(KernelError):
    """No execution of that id is in the store."""


class ExecutionMismatch(KernelError):
    """An execution of that id exists with another flow or another input (K-RUN-1)."""


class ExecutionFailed(KernelError):
    """The execution ended as failed; `error` is what its log says."""

    def __init__(self, execution_id: str, error: Json) -> None:
        super().__init__(f"execution {execution_id!r} failed: {error}")
        self.execution_id = execution_id
        self.error = error


class ExecutionBlocked(KernelError):
    """The execution cannot go on by itself; `reason` is what its log says."""

    def __init__(self, execution_id: str, reason: Json) -> None:
        super().__init__(f"execution {execution_id!r} is blocked: {reason}")
        self.execution_id = execution_id
        self.reason = reason


class ExecutionInterrupted(KernelError):
    """This process stopped driving the execution; nothing is lost, recovery goes on from its log."""


# ---- what a flow may get ---------------------------------------------------------------------------------------------


class TypedFailure(Exception):
    """A failure a step declares: recorded by wire name and data, and raised again on every re-run (K-FLOW-1).

    Subclass it, give it a `wire_name`, and raise it with JSON data: `raise CardDeclined({"code": 51})`.
    """

    wire_name: str = ""

    def __init__(self, data: Json = None) -> None:
        super().__init__(data)
        self.data = data

    @classmethod
    def from_data(cls, data: Json) -> Self:
        """Return the failure a record describes, without calling an `__init__` of the subclass's own."""
        failure = cls.__new__(cls, data)
        TypedFailure.__init__(failure, data)
        return failure

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "wire_name" not in cls.__dict__:
            cls.wire_name = cls.__name__


class UndeclaredFailure(KernelError):
    """The log holds a typed failure that the step no longer declares; declare it, or give the step a new id."""


class StepTimeout(KernelError):
    """A step's attempt passed its deadline; its effect may still be at work (K-FLOW-3)."""


class GateTimeout(KernelError):
    """A gate's time was up before a delivery came."""


class DuplicateStep(KernelError):
    """The same step id was used twice in one run; give the calls different keys (K-FLOW-1)."""


class UnknownEffect(KernelError):
    """A step names a tool for which no effect is registered (K-FLOW-1)."""


class GateInBranch(KernelError):
    """A gate was awaited in a branch, or while one was open (K-FLOW-6)."""


class SyscallOutsideFlow(KernelError):
    """A syscall came from a task that is neither the flow's nor one of its branches (K-FLOW-8)."""


class ReservedEventType(KernelError):
    """A flow tried to emit one of the kernel's own event types (K-FLOW-7)."""


class SurfaceConflict(KernelError):
    """A surface patch does not fit the value it patches, an increment of a text for example."""


# ---- control signals -------------------------------------------------------------------------------------------------


class ControlSignal(BaseException):
    """How a run ends without a result; never recorded, never to be caught by a flow."""


class Suspended(ControlSignal):
    """The run has parked at a gate."""


class NonDeterministicFlow(ControlSignal):
    """What the flow asks for is not what its log says it asked for before: the execution blocks, with nothing lost.

    A signal, because a handler in the flow that took it for a step's failure would undo work that is done (K-FLOW-9).
    """


class RunLost(ControlSignal):
    """Another writer won the next position: this run ends at once, its owner starts again from the tail (K-LOG-2)."""


class RunInterrupted(ControlSignal):
    """The store failed under a run: this process stops driving it, recovery goes on from the log."""


class RunEnded(ControlSignal):
    """A syscall came after its run had ended (K-FLOW-10)."""
