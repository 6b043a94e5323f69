"""What clients and operators may ask of a worker: from a scenario's drive, or at any moment, as a fault."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, cast

import trio

from dst.durable import faults
from dst.durable.stores import SimStore
from dst.faults import Fault, menu
from dst.node import Incarnation, Node
from dst.simulation import Simulation
from kernel.errors import (
    AppendUnknown,
    ContentMissingError,
    ExecutionMismatch,
    LogTruncated,
    NothingToResolve,
    SnapshotUnreadable,
    StoreUnavailable,
    TypedFailure,
    UnknownExecution,
)
from kernel.jsonform import Json
from kernel.runtime import Runtime

ASK_AGAIN_SECONDS = 5.0
"""How long a client waits when the store was in trouble, before it asks again."""

_TROUBLES = (
    StoreUnavailable,
    SnapshotUnreadable,
    ContentMissingError,
    UnknownExecution,  # of which a stale read shows nothing yet
    ValueError,  # to be forked at a position that a stale read hides
    ExecutionMismatch,  # with a fork of which a stale read shows too little
)
_NOT_NOW = (UnknownExecution, LogTruncated, NothingToResolve)  # what an act at any moment may be answered

Act = Callable[[], Awaitable[None]]


class Operations:
    """Acts of the outside, each asked again until it is answered.  Part of `DurableScenario`."""

    sim: Simulation
    db: SimStore
    worker: Node  # the first
    nodes: Sequence[Node]
    workers: ClassVar[Sequence[str]]
    versions: ClassVar[int]
    deployed: int
    _forks: int

    def interference(self) -> Mapping[str, tuple[Fault, Act]]:
        """Return what others may do while an event is being appended, whichever it is, by the name of the option.

        One that cannot be done at that moment, since the execution is not there yet for example, is left.
        """
        return {}

    async def look_again(self, runtime: Runtime) -> None:
        """Have a worker look for what it stopped driving."""
        raise NotImplementedError

    async def look_now(self, runtime: Runtime) -> None:
        """Have it look; should the store refuse, that is trouble, after which it looks once more."""
        with contextlib.suppress(StoreUnavailable):
            await self.look_again(runtime)

    async def ask(self, act: Callable[[Runtime], Awaitable[object]], name: str, worker: str | None = None) -> None:
        """Have a worker do something: the one named, or the first; while it is down, the first that is up.

        Asks again if it says that its store is in trouble, and it was.
        """
        first = self.worker if worker is None else self.nodes[self.workers.index(worker)]
        others = [node for node in self.nodes if node is not first]

        async def call(incarnation: Incarnation) -> None:
            await act(cast(Runtime, incarnation.service))

        while True:
            troubles = self.db.troubles
            try:
                await self.sim.request(first, call, name, others=others)
                return
            except AppendUnknown:
                self.db.trouble()  # what may have landed is nobody's until it is asked for again, or looked for
            except _TROUBLES:
                if self.db.troubles == troubles:
                    raise  # nobody has made trouble meanwhile
            await trio.sleep(ASK_AGAIN_SECONDS)

    async def compact(self, execution_id: str) -> None:
        """Have an execution's log compacted."""
        await self.ask(lambda runtime: runtime.compact(execution_id), f"compact {execution_id}")

    async def cancel(self, execution_id: str, reason: str = "cancelled", *, worker: str | None = None) -> None:
        """Ask for an execution to be cancelled."""
        await self.ask(lambda runtime: runtime.cancel(execution_id, reason), f"cancel {execution_id}", worker)

    async def resolve(
        self,
        execution_id: str,
        step: str,
        *,
        completed: Json = None,
        failed: TypedFailure | None = None,
        retry: bool = False,
        attempt: int | None = None,
    ) -> None:
        """Say what has come of a step in doubt: it has completed, unless it `failed` or is to `retry`."""

        async def say(runtime: Runtime) -> None:
            if failed is not None or retry:
                await runtime.resolve(execution_id, step, failed=failed, retry=retry, attempt=attempt)
            else:
                await runtime.resolve(execution_id, step, completed=completed, attempt=attempt)

        await self.ask(say, f"resolve {execution_id} {step}")

    async def resume_blocked(self, execution_id: str) -> None:
        """Run a blocked execution again."""
        await self.ask(lambda runtime: runtime.resume_blocked(execution_id), f"unblock {execution_id}")

    async def fork(self, execution_id: str, *, upto: int | None = None, new_id: str | None = None) -> None:
        """Make another execution of the first events of this one; without `new_id`: under the next free name.

        Without `upto` of all that it has when the client looks: asked again, the same fork is meant.
        """
        if execution_id not in self.db.rows:
            raise UnknownExecution(f"no execution {execution_id!r} to fork")
        if upto is None:
            upto = self.db.rows[execution_id].head
        if new_id is None:
            self._forks += 1
            new_id = f"{execution_id}-fork-{self._forks}"
        name = new_id
        await self.ask(lambda runtime: runtime.fork(execution_id, upto=upto, new_id=name), f"fork {execution_id}")

    async def recover(self) -> None:
        """Have the worker take up what nobody drives."""
        await self.ask(self.look_again, "recover")

    async def recover_twice(self) -> None:
        """Have it do so twice at once."""

        async def twice(runtime: Runtime) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.look_now, runtime)
                nursery.start_soon(self.look_now, runtime)

        await self.ask(twice, "recover twice")

    def deploy(self) -> None:
        """Start the worker again with the next version of the flows: a restart is a crash (K-RUN-3)."""
        assert self.deployed < self.versions, f"there is no version {self.deployed + 1}"
        self.deployed += 1
        self.sim.stop(self.worker, f"version {self.deployed} is deployed")

    # ---- as faults ---------------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        """Make what others may do options at every append."""
        acts = self.interference()
        self.db.offer({name: (fault, self._spawner(name, act)) for name, (fault, act) in acts.items()})

    def _spawner(self, name: str, act: Act) -> Callable[[], None]:
        async def try_to() -> None:
            try:
                await act()
            except _NOT_NOW as refusal:
                self.sim.note("declined", name, type(refusal).__name__)

        return lambda: self.sim.spawn(try_to, name)

    def _maybe_deploy(self) -> None:
        """A worker that is started again may have the next version of the flows."""
        if self.deployed == self.versions or faults.DEPLOY not in self.sim.faults:
            return
        point, act = self.sim.enter("deploy:worker", menu(self.sim.faults, (("next", faults.DEPLOY),)))
        self.deployed += act == "next"
        self.sim.happened(point)
