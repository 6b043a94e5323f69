"""A durable-execution kernel: an event-sourced log, a fold, and flows that re-run from the top.

The names here are the public ones.  The rules they keep are in the module docstrings, by id (`K-EMIT-3`).
"""

import logging

from kernel.codec import Codec, with_codec
from kernel.content import with_content
from kernel.context import Context
from kernel.definitions import Effect, EffectContext, Flow, Step, flow, step, transaction
from kernel.errors import (
    CancelRequested,
    ConcurrencyConflict,
    ExecutionBlocked,
    ExecutionCancelled,
    ExecutionFailed,
    ExecutionInterrupted,
    ExecutionMismatch,
    GateInBranch,
    GateTimeout,
    KernelError,
    NoJsonForm,
    NothingToResolve,
    NoTransactions,
    StepTimeout,
    TooLarge,
    TransactionEnded,
    TransactionMisuse,
    TransactionRefused,
    TypedFailure,
    UnknownExecution,
)
from kernel.events import EVENT_SCHEMA_VERSION, KERNEL_ABI_VERSION, WIRE_ABI_VERSION, Envelope, StoredEvent
from kernel.fold import fold_events
from kernel.gates import Delivered
from kernel.jsonform import Json
from kernel.learning import evidence_events, load_evidence, trajectories
from kernel.live_query import LiveQuery
from kernel.log_ids import LogIds
from kernel.orchestration import ChildFailed, await_child, await_children, settle_children
from kernel.parts import Parts
from kernel.ports import Sql, SqlResult
from kernel.projections import SURFACES, Projection
from kernel.retries import RetryPolicy
from kernel.runtime import Handle, Runtime, open_runtime
from kernel.saga import RollbackInProgress, Saga, SagaCompensationError, saga
from kernel.supervision import Supervisor, supervise_children

__all__ = [
    "EVENT_SCHEMA_VERSION",
    "KERNEL_ABI_VERSION",
    "SURFACES",
    "WIRE_ABI_VERSION",
    "CancelRequested",
    "Codec",
    "ChildFailed",
    "ConcurrencyConflict",
    "Context",
    "Delivered",
    "Effect",
    "EffectContext",
    "Envelope",
    "ExecutionBlocked",
    "ExecutionCancelled",
    "ExecutionFailed",
    "ExecutionInterrupted",
    "ExecutionMismatch",
    "Flow",
    "GateInBranch",
    "GateTimeout",
    "Handle",
    "Json",
    "KernelError",
    "LiveQuery",
    "LogIds",
    "NoJsonForm",
    "NothingToResolve",
    "NoTransactions",
    "Parts",
    "Projection",
    "RetryPolicy",
    "RollbackInProgress",
    "Runtime",
    "Saga",
    "SagaCompensationError",
    "Sql",
    "SqlResult",
    "Step",
    "StepTimeout",
    "StoredEvent",
    "TooLarge",
    "Supervisor",
    "TransactionEnded",
    "TransactionMisuse",
    "TransactionRefused",
    "TypedFailure",
    "UnknownExecution",
    "await_child",
    "await_children",
    "evidence_events",
    "flow",
    "fold_events",
    "load_evidence",
    "open_runtime",
    "saga",
    "settle_children",
    "step",
    "supervise_children",
    "trajectories",
    "transaction",
    "with_codec",
    "with_content",
]

logging.getLogger("kernel").addHandler(logging.NullHandler())  # a library says nothing unless it is asked to
for _name in ("kernel", "kernel.flow"):
    logging.getLogger(_name).addFilter(LogIds())
