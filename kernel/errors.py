"""Every error and control signal of the kernel, in one place.

`Exception`s are for callers and flows.  `ControlSignal`s are how a run ends without a result; they derive from
`BaseException` so that no `except Exception` in a flow can record one as a value (K-RUN).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from kernel.jsonform import Json, MalformedJson, NoJsonForm

__all__ = [
    "AppendUnknown",
    "BlockingSignal",
    "CancelRequested",
    "ConcurrencyConflict",
    "ContentMissingError",
    "ContinuedAsNew",
    "ControlSignal",
    "CorruptLog",
    "DuplicateStep",
    "ExecutionBlocked",
    "ExecutionCancelled",
    "ExecutionFailed",
    "ExecutionInterrupted",
    "ExecutionMismatch",
    "Fenced",
    "GateInBranch",
    "GateTimeout",
    "InvalidId",
    "KernelError",
    "LeaseHeld",
    "LogTruncated",
    "MalformedJson",
    "NoJsonForm",
    "NoTransactions",
    "NonDeterministicFlow",
    "NotAStore",
    "NotEnded",
    "NothingToResolve",
    "ProjectionFailed",
    "ReservedEventType",
    "RunEnded",
    "RunInterrupted",
    "RunLost",
    "SnapshotUnreadable",
    "StepInDoubt",
    "StepTimeout",
    "StoreUnavailable",
    "StoreVersion",
    "SurfaceConflict",
    "Suspended",
    "SyscallOutsideFlow",
    "TooLarge",
    "TransactionEnded",
    "TransactionMisuse",
    "TransactionRefused",
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


class ContentMissingError(KernelError):
    """An event's payload is stored by reference, and the content store has nothing under it (K-LOG-6)."""


class LeaseHeld(KernelError):
    """Another worker drives the execution, and its lease has not run out (K-RUN-3)."""


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


class ProjectionFailed(KernelError):
    """A projection raised at an event: its code is at fault, the log is whole.  Mend it, and recover (K-FOLD-6)."""


class NotAStore(KernelError):
    """The file is not a store of this kernel."""


class StoreVersion(KernelError):
    """The store, or an event in it, was written by a newer version than this one reads."""


# ---- what a caller may get -------------------------------------------------------------------------------------------


class InvalidId(KernelError, ValueError):
    """An id that not every store can keep, or that is the kernel's own; nothing was stored (K-RUN-1)."""


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


class ExecutionCancelled(ExecutionFailed):
    """The execution was cancelled; `error` says why, and what went wrong on the way out."""


class ExecutionBlocked(KernelError):
    """The execution cannot go on by itself; `reason` is what its log says."""

    def __init__(self, execution_id: str, reason: Json) -> None:
        super().__init__(f"execution {execution_id!r} is blocked: {reason}")
        self.execution_id = execution_id
        self.reason = reason


class NotEnded(KernelError):
    """The execution has not ended, so it is not deleted; cancel it first (K-USER-1)."""


class NothingToResolve(KernelError):
    """The execution is not blocked, or the step is not in doubt: there is nothing to say about it (K-FLOW-4)."""


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


class TooLarge(NoJsonForm):
    """A value's JSON form is larger than the runtime lets a payload be; `path` says which value (K-LOG-6)."""

    def __str__(self) -> str:
        return f"{self.path}: {self.what}; {self.remedy}"


class StepTimeout(KernelError):
    """A step's attempt passed its deadline; its effect may still be at work (K-FLOW-3)."""


class GateTimeout(KernelError):
    """A gate's time was up before a delivery came; `arrived` is what has come of several, by (on, key)."""

    def __init__(self, message: str, arrived: Mapping[tuple[str, str | None], Json] | None = None) -> None:
        super().__init__(message)
        self.arrived = dict(arrived or {})


class DuplicateStep(KernelError):
    """The same step id was used twice in one run; give the calls different keys (K-FLOW-1)."""


class NoTransactions(KernelError):
    """A step is a transaction, and the runtime's store has none; nothing was appended (K-USER-2)."""


class TransactionEnded(KernelError):
    """SQL came from an attempt that is over, one that has passed its deadline for example; it was not executed."""


class TransactionMisuse(KernelError):
    """An effect tried what a transactional step leaves to the kernel, such as COMMIT; it was not done (K-USER-2)."""


class TransactionRefused(KernelError):
    """The database does not commit what the effect has done, so the attempt has failed and nothing of it is there."""


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


class ContinuedAsNew(ControlSignal):
    """The run is over, and the execution begins again with another input (K-RUN-7)."""


class CancelRequested(ControlSignal):
    """The execution is to be cancelled: a flow may clean up on its way out, and comes to no other end (K-RUN-4)."""


class BlockingSignal(ControlSignal):
    """The execution cannot go on by itself: the run makes no syscall after this, and its log will say so.

    A signal, because a handler in the flow that took it for a step's failure would undo work that is done.
    """


class NonDeterministicFlow(BlockingSignal):
    """What the flow asks for is not what its log says it asked for before: the execution blocks, with nothing lost
    (K-FLOW-9)."""


class StepInDoubt(BlockingSignal):
    """An at-most-once step may have had its effect, and nobody knows: an operator has to say (K-FLOW-4)."""


class UnknownEffect(BlockingSignal):
    """A step that is to run names a tool for which no effect is registered: the execution blocks until there is one
    (K-FLOW-1)."""


class RunLost(ControlSignal):
    """Another writer won the next position: this run ends at once, its owner starts again from the tail (K-LOG-2)."""


class RunInterrupted(ControlSignal):
    """The store failed under a run: this process stops driving it, recovery goes on from the log."""


class RunEnded(ControlSignal):
    """A syscall came after its run had ended (K-FLOW-10)."""
