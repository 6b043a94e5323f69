"""Broken parents and supervisors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from dst.mutant import Mutant, exchange
from kernel import Context, Json, Parts, Supervisor
from kernel.events import DECISION_RECORDED, Envelope
from kernel.gates import wait_of
from kernel.jsonform import encode
from kernel.orchestration import ChildFailed, outcome_of, read_spec
from kernel.supervision import Action, Executions, Repair, Start, Supervision


class RandomChildIds(Context):
    """A child's id is drawn when the flow asks for it; what keeps it is the gate, and no decision."""

    async def decide(self, decision_id: str, decider: Callable[[], object | Awaitable[object]]) -> Json:
        """Take the child that a gate of the log has waited for, or else a new one."""
        if not decision_id.startswith("child:"):
            return await super().decide(decision_id, decider)
        spec = cast("dict[str, Any]", decider())
        state = self.journal.state
        gates = [*map(wait_of, state["resumes"]), *([wait_of(state["gate"])] if state["gate"] else [])]
        for _, child_id in [member for gate in gates for member in gate.members]:
            if child_id is not None and child_id.startswith(spec["childId"] + "~"):
                return {**spec, "childId": child_id}
        spec["childId"] += f"~{round(self._chance.random() * 1e9)}"
        await self.commit(DECISION_RECORDED, encode({"choice": spec, "decisionId": decision_id}))
        return spec


class StartsOnDecision(Supervisor):
    """A child is started as soon as it is decided on."""

    def _learn(self, event: Envelope) -> None:
        super()._learn(event)
        payload = cast("dict[str, Json]", event.payload)
        spec = read_spec(str(payload["decisionId"]), payload["choice"])
        if spec is not None:
            self.expect(spec.child_id, event.execution_id)
            self.enqueue(Start(spec=spec, waiter=event.execution_id))


class Forgetful(Supervisor):
    """ADR 0040 as first built: what is known is what was observed in this life, and nothing is looked up."""

    def enqueue(self, action: Action) -> None:
        """Do no repairs."""
        if not isinstance(action, Repair):
            super().enqueue(action)

    def at_work_on(self, runtime: Executions) -> Supervision:
        """Sweep nothing either."""
        return _NeverSweeps(supervisor=self, runtime=runtime)


class _NeverSweeps(Supervision):
    async def sweep(self) -> None:
        """Find nothing."""


class Uncorrelated(Supervisor):
    """An end is delivered under the first key that its parent still waits for, whose child it is or not."""

    def at_work_on(self, runtime: Executions) -> Supervision:
        """Deliver by turn."""
        return _DeliversByTurn(supervisor=self, runtime=runtime)


class _DeliversByTurn(Supervision):
    async def _deliver(self, child_id: str, waiter: str, payload: Json) -> None:
        gate = (await self.runtime.state(waiter))["gate"]
        arrived = [] if gate is None else [member["correlationKey"] for member in gate.get("arrived", ())]
        open_ = [] if gate is None else [key for _, key in wait_of(gate).members if key and key not in arrived]
        await super()._deliver(open_[0] if open_ else child_id, waiter, payload)


class TellsNoFailure(Supervisor):
    """Who waits for a child is told when it has completed, and not when it has failed."""

    def at_work_on(self, runtime: Executions) -> Supervision:
        """Keep failures back."""
        return _KeepsFailures(supervisor=self, runtime=runtime)


class _KeepsFailures(Supervision):
    async def _tell(self, child_id: str, waiter: str, payload: Json) -> None:
        if not isinstance(outcome_of(payload), ChildFailed):
            await super()._tell(child_id, waiter, payload)


def _mutant(name: str, breaks: str, **parts: object) -> Mutant:
    return Mutant(
        name=name, breaks=breaks, scenario="research_swarm", expected=("child-once",), apply=exchange(**parts)
    )


CHILDREN = (
    _mutant("child-random-id", "a child's id is drawn, and fixed by no decision", parts=Parts(context=RandomChildIds)),
    _mutant("child-start-on-decision", "a child starts before its parent has parked", supervisor=StartsOnDecision),
    _mutant("child-restart-forgets", "what a supervisor has not observed itself is lost", supervisor=Forgetful),
    _mutant("child-resume-uncorrelated", "a child's end is delivered as that of another", supervisor=Uncorrelated),
    _mutant("child-failure-unreported", "a parent is not told that its child has failed", supervisor=TellsNoFailure),
)
