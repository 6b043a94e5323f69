"""External services: what they really did is kept in a ledger outside every log.

A service deduplicates by idempotency key, as payment providers do: a second request with the same key is answered like
the first, and is in the ledger as another attempt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import trio

from dst.durable.faults import EFFECT_ANSWER_LOST, EFFECT_HUNG, EFFECT_REFUSED, STEP_TIMEOUT
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Fault, Menu, Options, menu
from dst.footprints import WRITE
from dst.simulation import Simulation
from kernel.definitions import Effect, EffectContext
from kernel.jsonform import Json

_ALWAYS: Options = (
    ("crash-before", CRASH_BEFORE),
    ("crash-after", CRASH_AFTER),
    ("hold", HOLDING),
    ("answer-lost", EFFECT_ANSWER_LOST),
    ("refused", EFFECT_REFUSED),
)
_WITH_DEADLINE: Options = (("slow", STEP_TIMEOUT), ("hung", EFFECT_HUNG))

Answer = Callable[[Json], object]
"""What the service answers: anything an effect may return."""

Decline = tuple[Fault, type[Exception]]


_BEGINNING = re.compile(r"~[0-9]+\Z")


def scope_of(execution_id: str, beginning: int) -> str:
    """Return what the idempotency keys of an execution begin with, in that beginning of its flow (from 0)."""
    return f"{execution_id}~{beginning}" if beginning or _BEGINNING.search(execution_id) else execution_id


def execution_of(idempotency_key: str) -> str:
    """Return the id of the execution that a key is of."""
    return _BEGINNING.sub("", idempotency_key.partition("/")[0])


class ServiceDown(Exception):
    """The service refused: nothing was done."""


class AnswerLost(Exception):
    """The service did it, and its answer was lost."""


class Service:
    """One simulated service.  Mutable: `done` holds its answers, by operation and idempotency key.

    Made by `DurableScenario.service`, which makes it part of what tells two states of the world apart.
    """

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.done: dict[tuple[str, str], object] = {}
        self._accepted: set[tuple[str, str]] = set()  # done, or on the way to it
        self._refused: dict[tuple[str, str], list[tuple[int, str]]] = {}  # attempts of what was not, and their points
        self._landings: dict[tuple[str, str], trio.Event] = {}  # of the requests that come late

    def visible(self) -> list[str]:
        """Return what this service's answers depend on: the keys it has done or taken on.  Not how often: the ledger
        belongs to the invariants."""
        return sorted(f"{operation}:{key}:{(operation, key) in self.done}" for operation, key in self._accepted)

    def _touch(self, operation: str, key: str) -> None:
        """Say that something is done for a key: answers depend on nothing else of the service (see `visible`)."""
        if self.sim.footprint is not None:
            self.sim.touch(f"service:{self.name}:{operation}:{key}", WRITE)

    async def has_done(self, operation: str, idempotency_key: str) -> bool:
        """Return what the service's own books say, when no request for it is on its way any more."""
        landing = self._landings.get((operation, idempotency_key))
        if landing is not None:
            await landing.wait()
        self._touch(operation, idempotency_key)
        return (operation, idempotency_key) in self.done

    def effect(
        self,
        operation: str,
        answer: Answer,
        declines: Mapping[str, Decline] | None = None,
        *,
        seconds: float = 0.0,
    ) -> Effect:
        """Return an effect that asks this service for `operation`, which takes it so many virtual `seconds`.

        `declines` are answers of its own kind that a calm world may give: an option name, the fault it counts as, and
        the exception it raises, a typed failure as a rule.
        """
        own = tuple((option, fault) for option, (fault, _) in (declines or {}).items())

        async def call(context: EffectContext, input: Json) -> object:
            options = _ALWAYS if context.deadline_seconds is None else _ALWAYS + _WITH_DEADLINE
            if (operation, context.idempotency_key) not in self._accepted:
                options += own  # what it has taken on already it cannot decline
            choices = menu(self.sim.faults, options)
            return await self._serve(operation, context, input, answer, declines or {}, choices, seconds)

        return call

    async def _serve(
        self,
        operation: str,
        context: EffectContext,
        input: Json,
        answer: Answer,
        declines: Mapping[str, Decline],
        choices: Menu,
        seconds: float,
    ) -> object:
        sim = self.sim
        point, act = sim.enter(f"effect:{context.idempotency_key}", choices)
        if act or sim.crowded():
            act = await sim.approach(point, act)
        if act == "crash-before":
            await sim.crash(point)
        elif act == "refused":
            self._not_told(point, operation, context)
            sim.happened(point)
            raise ServiceDown(f"{self.name} is down")
        elif act in declines:
            sim.happened(point)
            raise declines[act][1](input)
        elif act == "slow":
            assert context.deadline_seconds is not None
            await self._serve_late(context.deadline_seconds * 1.5, operation, context, input, answer)
            sim.happened(point)
            return self.done[operation, context.idempotency_key]
        elif act == "hung":
            self._not_told(point, operation, context)
            sim.happened(point)
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()  # nothing is done, and whoever waits is never told: a zombie for ever
        if seconds:
            await self._serve_late(seconds, operation, context, input, answer)
        else:
            self._do(operation, context, input, answer)
        sim.happened(point)
        if act == "crash-after":
            await sim.crash(point)
        elif act == "answer-lost":
            raise AnswerLost(f"{self.name} did not answer")
        return self.done[operation, context.idempotency_key]

    def _not_told(self, point: str, operation: str, context: EffectContext) -> None:
        """This attempt does nothing; if an earlier one has done it, or will, the caller has only not been told."""
        key = (operation, context.idempotency_key)
        if key in self._accepted:
            self._only_not_told(point)
        else:
            self._refused.setdefault(key, []).append((context.attempt, point))

    def _accept(self, key: tuple[str, str], attempt: int) -> None:
        """Take it on: what was refused to a later attempt, of a caller that has taken over, is done after all."""
        self._accepted.add(key)
        for later, point in self._refused.pop(key, ()):
            if later > attempt:
                self._only_not_told(point)

    def _only_not_told(self, point: str) -> None:
        self.sim.alike(point, "answer-lost")
        self.sim.alike(point, "slow")

    def _do(self, operation: str, context: EffectContext, input: Json, answer: Answer) -> None:
        key = (operation, context.idempotency_key)
        self._touch(*key)
        self._accept(key, context.attempt)
        if key not in self.done:
            self.done[key] = answer(input)
        self.sim.note("performed", self.name, operation, context.idempotency_key, context.attempt)

    async def _serve_late(
        self, seconds: float, operation: str, context: EffectContext, input: Json, answer: Answer
    ) -> None:
        """Do it after `seconds`: the request is on its way, whatever becomes of the caller, who does not stop waiting
        when it is asked to: a zombie."""
        key, caller = (operation, context.idempotency_key), self.sim.current_node()
        self._touch(*key)
        landed = self._landings[key] = trio.Event()
        self._accept(key, context.attempt)

        async def land() -> None:
            if not self.sim.is_alive(caller):
                self.sim.count("landed-after-death")
            self._do(operation, context, input, answer)
            landed.set()

        self.sim.spawn(land, f"request {context.idempotency_key} attempt {context.attempt}", after_seconds=seconds)
        with trio.CancelScope(shield=True):
            await landed.wait()
