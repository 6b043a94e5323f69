"""Broken ways for several workers to share a store."""

from __future__ import annotations

import attrs

from dst.durable.stores import SimStore
from dst.mutant import Mutant, exchange
from kernel import Context, Flow, Json, Parts
from kernel.errors import Fenced, RunInterrupted
from kernel.events import DECISION_RECORDED, STEP_COMPLETED
from kernel.jsonform import encode
from kernel.leases import Ownership
from kernel.ports import CatalogueEntry
from kernel.runtime import Handle, Runtime


class NoFence(SimStore):
    """Appends for whoever knows the next position, overtaken or not."""

    def check(self, execution_id: str, expected: int, fence: int) -> None:
        """Look at the position, and at the fence only when that is taken."""
        if expected != self.cuts.get(execution_id, 0) + len(self.logs.get(execution_id, ())):
            super().check(execution_id, expected, fence)


@attrs.frozen(kw_only=True)
class AdoptsLive(Ownership):
    """A worker takes what it has never driven for an orphan, as if it were the only one on its store."""

    _driven: set[str] = attrs.field(factory=set)

    async def claim(self, execution_id: str, *, overtaken: bool = False) -> int:
        """Remember it."""
        fence = await super().claim(execution_id, overtaken=overtaken)
        self._driven.add(execution_id)
        return fence

    async def is_held(self, entry: CatalogueEntry, *, parked_too: bool = False) -> bool:
        """Only if it was driven here."""
        return entry.execution_id in self._driven and await super().is_held(entry, parked_too=parked_too)


class OwnValue(Context):
    """A worker that was overtaken goes on with what it had computed, instead of what the log says."""

    async def commit(
        self, type: str, payload_text: str, *, stamp: str | None = None, provenance: dict[str, Json] | None = None
    ) -> None:
        """A refused result is as good as a recorded one."""
        try:
            await super().commit(type, payload_text, stamp=stamp, provenance=provenance)
        except RunInterrupted as refused:
            if type not in (DECISION_RECORDED, STEP_COMPLETED) or not isinstance(refused.__cause__, Fenced):
                raise


class ChecksThenActs(Runtime):
    """Looks whether there is such an execution, and starts it if there was none: what lies between is not seen."""

    async def start(
        self, flow: Flow | str, input: Json = None, *, execution_id: str, deadline_seconds: float | None = None
    ) -> Handle:
        """Look first."""
        if await self._stores.events.entry(execution_id) is not None:
            definition = self._driver.flow(flow if isinstance(flow, str) else flow.id)
            await super()._check_same(execution_id, definition.id, encode(input))
            return Handle(execution_id=execution_id, runtime=self)
        return await super().start(flow, input, execution_id=execution_id, deadline_seconds=deadline_seconds)

    async def _check_same(self, execution_id: str, flow_id: str, input_text: str) -> None:
        """There was none a moment ago: whatever is there now must be this very start."""


WORKERS = (
    Mutant(
        name="append-without-fence",
        breaks="the store appends for a worker that was overtaken",
        scenario="two_workers",
        expected=("one-author",),
        apply=exchange(store=NoFence),
    ),
    Mutant(
        name="recover-adopts-live",
        breaks="recovery takes up what another worker is driving",
        scenario="two_workers",
        expected=("lease-respected",),
        apply=exchange(parts=Parts(ownership=AdoptsLive)),
    ),
    Mutant(
        name="loser-uses-own-value",
        breaks="a worker that lost its position goes on with its own result",
        scenario="two_workers",
        expected=("value-stable",),
        apply=exchange(parts=Parts(context=OwnValue)),
    ),
    Mutant(
        name="start-check-then-act",
        breaks="a start looks for another one first, and not again when it appends",
        scenario="two_workers",
        expected=("start-once",),
        apply=exchange(runtime=ChecksThenActs),
    ),
)
