"""Running flows from the command line: the code that is named, and only the executions that are meant."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import cast

import attrs

from kernel.cli.code import find
from kernel.cli.errors import WrongUsage
from kernel.cli.output import summary
from kernel.cli.stores import Opened
from kernel.definitions import Effect, Flow
from kernel.errors import UnknownExecution
from kernel.events import Envelope, StoredEvent
from kernel.jsonform import Json
from kernel.lifecycle import load
from kernel.ports import CatalogueEntry, EventStore, Status
from kernel.projections import SURFACES, Projection
from kernel.runtime import Runtime, open_runtime

LEASE_SECONDS = 30
"""For how long what is driven here is left alone by workers, should this process die."""

NEXT_WORKER = "the next worker that recovers goes on with it"


@attrs.frozen(kw_only=True)
class Code:
    """The flows and effects that were named."""

    flows: Sequence[Flow]
    effects: Mapping[str, Effect]

    def check(self, entry: CatalogueEntry) -> None:
        """Raise `WrongUsage` unless the execution's flow is among them."""
        if entry.flow_id not in {flow.id for flow in self.flows}:
            raise WrongUsage(
                f"execution {entry.execution_id!r} is of flow {entry.flow_id!r}, --flows has "
                f"{sorted(flow.id for flow in self.flows)}"
            )


def load_code(flows: Sequence[str], effects: str | None) -> Code | None:
    """Return what `--flows` and `--effects` name, or None if there are no flows.  Raises `WrongUsage`."""
    if not flows:
        if effects is not None:
            raise WrongUsage("--effects is for the flows of --flows, which names none")
        return None
    found: list[Flow] = []
    for name in flows:
        value = find(name)
        several = list(value) if isinstance(value, Iterable) else [value]
        if not several or not all(isinstance(flow, Flow) for flow in several):
            raise WrongUsage(f"{name} is {value!r:.100}: wanted is a Flow, or a list of them")
        found += cast("list[Flow]", several)
    registry = {} if effects is None else find(effects)
    if not isinstance(registry, Mapping):
        raise WrongUsage(f"{effects} is {registry!r:.100}: wanted is a mapping of tool ids to effects")
    return Code(flows=found, effects=registry)


def load_projections(names: Sequence[str]) -> list[Projection]:
    """Return the surfaces, and the projections that are named.  Raises `WrongUsage`."""
    found = [SURFACES]
    for name in names:
        value = find(name)
        several = list(value) if isinstance(value, Iterable) else [value]
        if not all(isinstance(projection, Projection) for projection in several):
            raise WrongUsage(f"{name} is {value!r:.100}: wanted is a Projection, or a list of them")
        found += cast("list[Projection]", several)
    return list({projection.name: projection for projection in found}.values())


@attrs.frozen(kw_only=True)
class _Only:
    """An event store whose catalogue lists some executions only, so that a runtime takes up no others."""

    inner: EventStore
    flow_ids: Collection[str]
    execution_ids: Collection[str] | None  # None: all of these flows

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        return [
            entry
            for entry in await self.inner.entries(*statuses)
            if entry.flow_id in self.flow_ids
            and (self.execution_ids is None or entry.execution_id in self.execution_ids)
        ]

    async def append(
        self,
        execution_id: str,
        expected: int,
        batch: Sequence[Envelope],
        *,
        fence: int,
        flow_id: str,
        status: Status,
        due_ms: int | None,
    ) -> None:
        await self.inner.append(
            execution_id, expected, batch, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms
        )

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        return await self.inner.read_from(execution_id, sequence)

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        await self.inner.truncate_prefix(execution_id, through)

    async def claim(self, execution_id: str, owner: str) -> int:
        return await self.inner.claim(execution_id, owner)

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        return await self.inner.entry(execution_id)


async def record_only(opened: Opened, act: Callable[[Runtime], Awaitable[object]]) -> None:
    """Have `act` append, and run no flow: the runtime has none, and is gone before it could look for one.

    Without a lease, so that whoever recovers next need not wait for it to run out.
    """
    async with open_runtime(stores=opened.stores, flows=()) as runtime:
        await act(runtime)


async def drive(
    opened: Opened,
    code: Code,
    act: Callable[[Runtime], Awaitable[Iterable[str]]],
    execution_ids: Collection[str] | None = None,
) -> list[dict[str, Json]]:
    """Have `act` set executions going, and run them until none goes on by itself; return what became of them."""
    only = _Only(inner=opened.stores.events, flow_ids={f.id for f in code.flows}, execution_ids=execution_ids)
    leases = opened.stores.leases
    with contextlib.redirect_stdout(sys.stderr):  # what flows print is no part of the answer
        async with open_runtime(
            stores=attrs.evolve(opened.stores, events=only),
            flows=code.flows,
            effects=code.effects,
            lease_seconds=None if leases is None else LEASE_SECONDS,
        ) as runtime:
            touched = await act(runtime)
            stopped = await runtime.wait_idle()
    interrupted = {name: f"{type(error).__name__}: {error}" for name, error in stopped.items()}
    return [await outcome(opened, name, interrupted.get(name)) for name in touched]


async def recover_all(runtime: Runtime) -> list[str]:
    """Take up what a dead worker has left, also what has become due; return the ids.

    A runtime has timers for the latter, which ring at once; but that is after `drive` has looked for what is driven.
    """
    due = overdue(await runtime.executions("suspended"))
    taken = set(await runtime.recover_all())
    for execution_id in due:
        await runtime.wake(execution_id)
    return sorted(taken | set(due))


def overdue(parked: Iterable[CatalogueEntry]) -> list[str]:
    """Return the ids of the parked executions whose time has come."""
    now_ms = time.time_ns() // 1_000_000
    return [entry.execution_id for entry in parked if entry.due_ms is not None and entry.due_ms <= now_ms]


async def outcome(opened: Opened, execution_id: str, interrupted: str | None = None) -> dict[str, Json]:
    """Return what has become of an execution."""
    try:
        record = summary(execution_id, (await load(opened.stores, execution_id)).fold.state)
    except UnknownExecution:
        return {"execution": execution_id, "status": None}  # deleted meanwhile
    if interrupted is not None:
        record["interrupted"] = interrupted
    return record
