"""A durable-execution kernel: an event-sourced log, a fold, and flows that re-run from the top.

The names here are the public ones.  The rules they keep are in the module docstrings, by id (`K-EMIT-3`).
"""

import logging

from kernel.context import Context
from kernel.definitions import Effect, EffectContext, Flow, Step, flow, step
from kernel.errors import (
    ConcurrencyConflict,
    ExecutionBlocked,
    ExecutionFailed,
    ExecutionInterrupted,
    GateTimeout,
    KernelError,
    NoJsonForm,
    StepTimeout,
    TypedFailure,
    UnknownExecution,
)
from kernel.events import EVENT_SCHEMA_VERSION, KERNEL_ABI_VERSION, WIRE_ABI_VERSION, Envelope, StoredEvent
from kernel.fold import fold_events
from kernel.jsonform import Json
from kernel.parts import Parts
from kernel.projections import SURFACES, Projection
from kernel.runtime import Handle, Runtime, open_runtime
from kernel.saga import RollbackInProgress, Saga, SagaCompensationError, saga

__all__ = [
    "EVENT_SCHEMA_VERSION",
    "KERNEL_ABI_VERSION",
    "SURFACES",
    "WIRE_ABI_VERSION",
    "ConcurrencyConflict",
    "Context",
    "Effect",
    "EffectContext",
    "Envelope",
    "ExecutionBlocked",
    "ExecutionFailed",
    "ExecutionInterrupted",
    "Flow",
    "GateTimeout",
    "Handle",
    "Json",
    "KernelError",
    "NoJsonForm",
    "Parts",
    "Projection",
    "RollbackInProgress",
    "Runtime",
    "Saga",
    "SagaCompensationError",
    "Step",
    "StepTimeout",
    "StoredEvent",
    "TypedFailure",
    "UnknownExecution",
    "flow",
    "fold_events",
    "open_runtime",
    "saga",
    "step",
]

logging.getLogger("kernel").addHandler(logging.NullHandler())  # a library says nothing unless it is asked to
