"""Child executions, as a flow sees them (K-CHILD, ADR 0040).

Nothing here is new to the kernel.  A child's id and spec are a decision, so a re-run never asks for a second child; a
parent then waits at a gate like any other.  Who starts the child and delivers its end is `kernel.supervision`.

Many children are one gate that waits for all: all are decided on before it, so all are started at its one suspension,
each end is recorded when it comes, and the parent is run again once.  A gate for each, one after the other, would run
it from the top for each and put every emit after them in another segment.

A parent that begins anew (K-RUN-7) asks for other children under the same keys: the number of its beginning is in their
ids from the second on, `<parentId>::<key>~1`, or the end of an earlier child would stand for theirs.

The child's end is the gate's payload: its output as it is, as the record says.  A failure has to be told from every
possible output, so it is an object with one reserved key, and an output that looks like one is wrapped in another.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

import attrs

from kernel.definitions import Flow
from kernel.errors import KernelError, TypedFailure
from kernel.ids import LIKE_A_BEGINNING, check_id
from kernel.jsonform import Json
from kernel.state import FlowState

if TYPE_CHECKING:
    from kernel.context import Context

CHILD_DONE = "CHILD_DONE"
"""What a parent waits on; the correlation key is the child's id, and so is the delivery id."""

SEPARATOR = "::"
_DECISION = "child:"
_FAILED = "__loomChildFailed"
_OUTPUT = "__loomChildOutput"


class ChildFailed(TypedFailure):
    """A child failed or was cancelled.  `data` is {"childId", "error", "status"}, as the child's log has them."""

    wire_name = "ChildFailed"

    def __str__(self) -> str:
        data = cast("dict[str, Json]", self.data)
        return f"child {data['childId']!r} {data['status']}: {data['error']}"


class DuplicateChild(KernelError):
    """One run asked for the same child key twice: a child ends once, the second gate would never open."""


@attrs.frozen(kw_only=True)
class ChildSpec:
    """What is to run under which id: fixed by the parent's decision."""

    child_id: str
    flow_id: str
    input: Json


# ---- what a flow calls -----------------------------------------------------------------------------------------------


async def await_child(ctx: Context, key: str, flow: Flow | str, input: Json = None) -> Json:
    """Have `flow` run as the child `key`, once, and return its output when it has completed (K-CHILD-1).

    Raises `ChildFailed` if it failed or was cancelled, `DuplicateChild`, `ValueError` for a key that is no key.
    """
    return (await await_children(ctx, {key: (flow, input)}))[key]


async def await_children(ctx: Context, children: Mapping[str, tuple[Flow | str, Json]]) -> dict[str, Json]:
    """Have all children run at once and return their outputs by key when all have ended, in whatever order (K-CHILD-3).

    If any failed, the first in the order of `children` is raised, after all have ended.  `settle_children` gives all.
    """
    outcomes = await settle_children(ctx, children)
    for outcome in outcomes.values():
        if isinstance(outcome, ChildFailed):
            raise outcome
    return cast("dict[str, Json]", outcomes)


async def settle_children(
    ctx: Context, children: Mapping[str, tuple[Flow | str, Json]]
) -> dict[str, Json | ChildFailed]:
    """Like `await_children`, with a `ChildFailed` in the place of an output for each child that did not complete."""
    _take_keys(ctx, children)
    specs = {key: await decide_child(ctx, key, flow, input) for key, (flow, input) in children.items()}
    if len(specs) == 1:  # the gate of ADR 0040
        return {key: outcome_of(await ctx.suspend(CHILD_DONE, spec.child_id)) for key, spec in specs.items()}
    payloads = await ctx.suspend_all([(CHILD_DONE, spec.child_id) for spec in specs.values()])
    return {key: outcome_of(payloads[CHILD_DONE, spec.child_id]) for key, spec in specs.items()}


async def decide_child(ctx: Context, key: str, flow: Flow | str, input: Json = None) -> ChildSpec:
    """Return the child's recorded spec; it is started when the execution next parks for children.

    For gates of one's own: `ctx.suspend_any([(CHILD_DONE, spec.child_id), "stop"])`, whose payload `outcome_of` reads.
    The decision's id is not a function of the execution's: a fork of one that has decided waits for the same child.
    """
    flow_id = flow if isinstance(flow, str) else flow.id

    def spec() -> Json:
        return {"childId": child_id_of(ctx.execution_id, key, ctx.beginning), "flowId": flow_id, "input": input}

    decision_id = _DECISION + key
    recorded = read_spec(decision_id, await ctx.decide(decision_id, spec))
    if recorded is None:
        raise KernelError(f"decision {decision_id!r} of {ctx.execution_id!r} is no child's: ids {_DECISION}… are taken")
    return recorded


_taken: weakref.WeakKeyDictionary[Context, set[str]] = weakref.WeakKeyDictionary()  # child keys of each run so far


def _take_keys(ctx: Context, keys: Iterable[str]) -> None:
    taken = _taken.setdefault(ctx, set())
    for key in keys:
        _check_key(key)
        if key in taken:
            raise DuplicateChild(f"{ctx.execution_id!r} asks for child {key!r} twice: give each child a key of its own")
        taken.add(key)


# ---- ids -------------------------------------------------------------------------------------------------------------


def child_id_of(parent_id: str, key: str, beginning: int = 0) -> str:
    """Return `<parentId>::<key>`, and `~<beginning>` behind it if the parent has begun anew.

    Raises `ValueError` for a key from which the parts could not be told again, and for an id that is too long.
    """
    _check_key(key)
    child_id = f"{parent_id}{SEPARATOR}{key}" + (f"~{beginning}" if beginning else "")
    check_id(child_id, "child")
    return child_id


def _check_key(key: str) -> None:
    if not key or SEPARATOR in key or key.startswith(":") or LIKE_A_BEGINNING.search(key):
        raise ValueError(
            f"child key {key!r}: wanted a non-empty text without {SEPARATOR!r} that begins with no ':' and does not "
            "end like '~1'"
        )


def parent_and_key(child_id: str) -> tuple[str, str] | None:
    """Return the parent's id and the rest of a child's, or None for an id that is no child's."""
    parent_id, separator, key = child_id.rpartition(SEPARATOR)
    return (parent_id, key) if separator and key else None


# ---- specs and gates, as a supervisor reads them ---------------------------------------------------------------------


def read_spec(decision_id: str, choice: Json) -> ChildSpec | None:
    """Return the spec that a decision fixes, or None if it is not about a child."""
    if not decision_id.startswith(_DECISION) or not isinstance(choice, dict):
        return None
    child_id, flow_id = choice.get("childId"), choice.get("flowId")
    if not isinstance(child_id, str) or not isinstance(flow_id, str) or "input" not in choice:
        return None
    return ChildSpec(child_id=child_id, flow_id=flow_id, input=choice["input"])


def outstanding(state: FlowState) -> list[ChildSpec]:
    """Return the children that the execution has decided on and not heard of: a child's end has its id (K-RUN-2)."""
    decisions = state["variables"].get("_decisions", {})
    specs = [read_spec(decision_id, entry["choice"]) for decision_id, entry in decisions.items()]
    return [spec for spec in specs if spec is not None and spec.child_id not in state["deliveries"]]


def awaited_children(gate: Mapping[str, Json]) -> list[str]:
    """Return the ids of the children that a gate waits for: of an `EXECUTION_SUSPENDED`, or of a folded state."""
    members = gate.get("members")
    keys = [
        member.get("correlationKey")
        for member in (members if isinstance(members, list) else [gate])
        if isinstance(member, Mapping) and member.get("on") == CHILD_DONE
    ]
    return [key for key in keys if isinstance(key, str)]


# ---- ends ------------------------------------------------------------------------------------------------------------


def output_payload(output: Json) -> Json:
    """Return what a completed child delivers: its output, wrapped only if it could be taken for something else."""
    return {_OUTPUT: output} if isinstance(output, dict) and len(output) == 1 and output.keys() & _RESERVED else output


def failure_payload(child_id: str, status: str, error: Json) -> Json:
    """Return what a failed or cancelled child delivers."""
    return {_FAILED: {"childId": child_id, "error": error, "status": status}}


def outcome_of(payload: Json) -> Json | ChildFailed:
    """Return the output that was delivered, or the failure."""
    if isinstance(payload, dict) and len(payload) == 1:
        if _FAILED in payload:
            return ChildFailed(payload[_FAILED])
        if _OUTPUT in payload:
            return payload[_OUTPUT]
    return payload


_RESERVED = frozenset({_FAILED, _OUTPUT})
