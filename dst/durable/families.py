"""Scenarios whose worker supervises children: what it is told of events may be incomplete, doubled or out of order.

A supervisor knows what it has observed in one life of a worker, and a sweep repairs the rest (K-CHILD-2).  Here it
sweeps when it begins, and whenever the worker looks for what it stopped driving; see `DurableScenario.look_again`.
"""

from __future__ import annotations

from typing import ClassVar

import trio

from dst.durable.ends import end_of
from dst.durable.faults import EVENT_LATE, EVENT_MISSED, EVENT_TWICE
from dst.durable.scenario import DurableScenario
from dst.faults import Options, menu
from dst.node import Incarnation
from kernel import events
from kernel.events import Envelope
from kernel.journal import Observer
from kernel.orchestration import CHILD_DONE
from kernel.runtime import Runtime
from kernel.state import TERMINAL
from kernel.supervision import Supervision, Supervisor, supervise_children

_OBSERVE: Options = (("missed", EVENT_MISSED), ("twice", EVENT_TWICE), ("late", EVENT_LATE))
_OBSERVED = frozenset(
    {
        events.DECISION_RECORDED,
        events.EXECUTION_STARTED,
        events.EXECUTION_SUSPENDED,
        *events.TERMINAL_TYPES,
    }
)
"""What a supervisor goes by: only of these is it a fault to miss one."""


class FamilyScenario(DurableScenario):
    """A worker with a supervisor.  `supervisor` is a part like any other: a mutant puts another in its place."""

    supervisor: ClassVar[type[Supervisor]] = Supervisor
    swept_mark: ClassVar[str] = "a parent heard of its child from a sweep"

    async def _work(self, incarnation: Incarnation) -> None:
        supervisor = self.supervisor()
        self.db_observers = (self._telling(supervisor),)
        self._supervision: Supervision | None = None  # of this life of the worker
        await super()._work(incarnation)

        async def supervise() -> None:
            assert isinstance(incarnation.service, Runtime)
            async with supervise_children(supervisor, incarnation.service, sweep_seconds=None) as supervision:
                self._supervision = supervision
                await trio.sleep_forever()

        incarnation.spawn(supervise)

    def _telling(self, supervisor: Supervisor) -> Observer:
        """Return an observer that tells the supervisor of each event, at a point `observe:<execution>:<type>`."""
        late: list[Envelope] = []
        choices = menu(self.sim.faults, _OBSERVE)

        def observe(event: Envelope) -> None:
            if event.type not in _OBSERVED:
                supervisor.observe(event)
                return
            point, act = self.sim.enter(f"observe:{event.execution_id}:{event.type}", choices)
            if act in ("missed", "late"):
                self.db.trouble()  # it may be the last one: only a sweep can tell then
            if act == "late":
                late.append(event)
            else:
                for seen in [event] * {"missed": 0, "twice": 2}.get(act, 1) + late:
                    supervisor.observe(seen)
                late.clear()
            self.sim.happened(point)

        return observe

    async def fork(self, execution_id: str, *, upto: int | None = None, new_id: str | None = None) -> None:
        """As everywhere; nobody has observed what the fork waits for, so that it hears of its children from a sweep."""
        await super().fork(execution_id, upto=upto, new_id=new_id)
        self.db.trouble()

    async def look_again(self, runtime: Runtime) -> None:
        """Sweep as well; mark that it told somebody."""
        await super().look_again(runtime)
        supervision = self._supervision
        if supervision is None or supervision.runtime is not runtime:
            return  # it is about to begin, with a sweep
        untold = self._untold()
        await supervision.sweep()
        self.sim.sometimes(self.swept_mark, bool(untold - self._untold()))

    def _untold(self) -> set[tuple[str, str]]:
        """Return (parent, child) for each parent parked for a child that has ended, of which nothing has been sent."""
        ended = {execution_id for execution_id, row in self.db.rows.items() if row.status in TERMINAL}
        untold = set()
        for execution_id, row in self.db.rows.items():
            if row.status == "suspended":
                sent = self.db.mail.get(execution_id, {})
                for on, key in end_of(self.db.history[execution_id]).wanted:
                    if on == CHILD_DONE and key in ended and key not in sent:
                        untold.add((execution_id, key or ""))
        return untold
