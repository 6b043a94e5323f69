"""OpenTelemetry spans, made of the events that this process appends (K-USER-4); needs the extra `otel`.

A span lives in one process and an execution does not, so there is one span for each run, in a trace of its own: from
the first event of the run to the one that parks or ends it, with a child span for each attempt of a step.  A run is
linked to the earlier run of its execution, to the run that asked for it as a child, and to the span in which it was
started, as far as this process knows them; runs in other processes are found by `loom.execution_id`.

Times are those of the events.  No payload and no error message is put into a span: those may be secret (K-USER-3).
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import cast

import attrs
from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Link, Span, SpanContext, Status, StatusCode, Tracer

from kernel import events
from kernel.events import Envelope
from kernel.jsonform import Json
from kernel.log_ids import PLACE

LEFT_MAX = 10_000
"""Of how many executions the last run is remembered, to be linked to."""

_RUN_ENDS = {
    events.EXECUTION_SUSPENDED: "suspended",
    events.EXECUTION_CONTINUED: "continued",
    events.EXECUTION_BLOCKED: "blocked",
    events.EXECUTION_COMPLETED: "completed",
    events.EXECUTION_FAILED: "failed",
    events.EXECUTION_CANCELLED: "cancelled",
}
_ATTEMPT_ENDS = {
    events.STEP_COMPLETED: "completed",
    events.STEP_FAILED: "failed",
    events.STEP_CANCELLED: "cancelled",
    events.EFFECT_INDOUBT: "indoubt",
}
_ERRORS = frozenset({"blocked", "failed", "indoubt"})

_Payload = dict[str, Json]
_Attempt = tuple[str, int]


@attrs.define(kw_only=True)
class _Run:
    """A run under way.  Mutable: it is at the last event that was seen of it."""

    span: Span
    sequence: int
    at_ns: int
    attempts: dict[_Attempt, Span] = attrs.field(factory=dict)


class Spans:
    """An observer: `with Spans() as spans: ... open_runtime(..., observers=[spans])`.

    Mutable: it holds the spans under way.  When the block ends, those are ended as `unfinished`.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer or trace.get_tracer("kernel")
        self._runs: dict[str, _Run] = {}
        self._left: OrderedDict[str, SpanContext] = OrderedDict()

    def __enter__(self) -> Spans:
        return self

    def __exit__(self, *_raised: object) -> None:
        for execution_id in list(self._runs):
            self._end_run(execution_id, "unfinished")

    def __call__(self, event: Envelope) -> None:
        """See one event of this process, as a runtime shows it."""
        run = self._runs.get(event.execution_id)
        if run is not None and event.sequence != run.sequence + 1:
            self._end_run(event.execution_id, "overtaken")  # somebody else has gone on from where it was
            run = None
        if run is None:
            if event.type == events.GATE_DELIVERED:
                return  # the gate stays closed: nothing runs
            run = self._runs[event.execution_id] = self._begin_run(event)
        run.sequence = event.sequence
        run.at_ns = max(run.at_ns, _ns(event))  # a clock that was set back makes no span of less than no time
        if event.type == events.STEP_STARTED:
            self._begin_attempt(run, event)
        elif event.type in _ATTEMPT_ENDS:
            self._end_attempt(run, event)
        elif event.type in _RUN_ENDS:
            self._end_run(event.execution_id, _RUN_ENDS[event.type], _error(event))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the attempt's span the current one: for the body of an effect, so that what it calls is beneath it."""
        place = PLACE.get()
        run = None if place is None else self._runs.get(place.execution_id)
        if place is None or run is None or place.step_id is None or place.attempt is None:
            yield
            return
        span = run.attempts.get((place.step_id, place.attempt), run.span)
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield

    # ---- runs --------------------------------------------------------------------------------------------------------

    def _begin_run(self, event: Envelope) -> _Run:
        flow_id = _flow_of(event)
        append_id = cast(str, event.metadata["appendId"])
        attributes: dict[str, str | int] = {
            "loom.execution_id": event.execution_id,
            "loom.incarnation": append_id.rpartition("/")[0],
            "loom.first_sequence": event.sequence,
        }
        if flow_id is not None:
            attributes["loom.flow_id"] = flow_id
        span = self._tracer.start_span(
            "run" if flow_id is None else f"run {flow_id}",
            context=TraceContext(),  # a root: what is current here is somebody else's
            links=list(self._links(event)),
            attributes=attributes,
            start_time=_ns(event),
        )
        return _Run(span=span, sequence=event.sequence, at_ns=_ns(event))

    def _links(self, event: Envelope) -> Iterator[Link]:
        parent_id, _, key = event.execution_id.rpartition("::")
        parent = self._runs.get(parent_id) if key else None
        caller = trace.get_current_span() if event.type == events.EXECUTION_STARTED else trace.INVALID_SPAN
        linked = {
            "earlier run": self._left.get(event.execution_id),
            "parent": self._left.get(parent_id) if parent is None else parent.span.get_span_context(),
            "caller": caller.get_span_context(),
        }
        for name, context in linked.items():
            if context is not None and context.is_valid:
                yield Link(context, {"loom.link": name})

    def _end_run(self, execution_id: str, outcome: str, error: Json = None) -> None:
        run = self._runs.pop(execution_id)
        for span in run.attempts.values():
            _end(span, "unfinished", None, run.at_ns)
        run.span.set_attribute("loom.last_sequence", run.sequence)
        _end(run.span, outcome, error, run.at_ns)
        self._left[execution_id] = run.span.get_span_context()
        self._left.move_to_end(execution_id)
        if len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)

    # ---- attempts ----------------------------------------------------------------------------------------------------

    def _begin_attempt(self, run: _Run, event: Envelope) -> None:
        payload = _payload(event)
        (step_id, attempt), tool_id = _attempt(payload), cast(str, payload["toolId"])
        run.attempts[step_id, attempt] = self._tracer.start_span(
            f"step {tool_id}",
            context=trace.set_span_in_context(run.span, TraceContext()),
            attributes={
                "loom.execution_id": event.execution_id,
                "loom.step_id": step_id,
                "loom.attempt": attempt,
                "loom.tool_id": tool_id,
                "loom.step_kind": cast(str, payload["kind"]),
            },
            start_time=run.at_ns,
        )

    def _end_attempt(self, run: _Run, event: Envelope) -> None:
        """End the attempt's span; one that another run began has none here."""
        payload = _payload(event)
        span = run.attempts.pop(_attempt(payload), None)
        if span is not None:
            outcome = "timeout" if payload.get("reason") == "timeout" else _ATTEMPT_ENDS[event.type]
            _end(span, outcome, payload.get("failure"), run.at_ns)


def _end(span: Span, outcome: str, error: Json, at_ns: int) -> None:
    span.set_attribute("loom.outcome", outcome)
    kind = None
    if isinstance(error, dict):
        kind = cast("str | None", error.get("name", error.get("type")))
        if kind is not None:
            span.set_attribute("error.type", kind)
    if outcome in _ERRORS or outcome == "timeout":
        span.set_status(Status(StatusCode.ERROR, kind or outcome))
    span.end(end_time=at_ns)


def _ns(event: Envelope) -> int:
    return event.timestamp_ms * 1_000_000


def _payload(event: Envelope) -> _Payload:
    return cast(_Payload, event.payload)


def _error(event: Envelope) -> Json:
    """Return why a run has ended, if it has ended badly."""
    payload = _payload(event)
    return {"type": payload["reason"]} if event.type == events.EXECUTION_BLOCKED else payload.get("error")


def _attempt(payload: _Payload) -> _Attempt:
    return cast(str, payload["step"]), cast(int, payload["attempt"])


def _flow_of(event: Envelope) -> str | None:
    """Return the flow of the execution: its start says so, and otherwise whoever drives it."""
    if event.type == events.EXECUTION_STARTED:
        return cast(str, _payload(event)["flowId"])
    place = PLACE.get()
    return place.flow_id if place is not None and place.execution_id == event.execution_id else None
