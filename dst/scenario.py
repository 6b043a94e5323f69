"""Scenarios: a story to be driven under faults, and what must hold of it."""

from __future__ import annotations

import abc
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

from dst.faults import Fault
from dst.invariants import AnyInvariant
from dst.simulation import Simulation
from dst.trace import Record


class Scenario(abc.ABC):
    """One story.  An object of it is made for each run, so that it may keep what happens in its attributes."""

    name: ClassVar[str]
    story: ClassVar[str]  # one line, for `dst list`
    faults: ClassVar[Sequence[Fault]]
    invariants: ClassVar[Sequence[AnyInvariant]]
    marks: ClassVar[Sequence[str]] = ()  # cases that a campaign must reach, or it is vacuous
    version: ClassVar[str] = "1"
    sizes: ClassVar[Mapping[str, int]] = {}  # its parameters that are not as declared: see `dst.parameters`

    @abc.abstractmethod
    def build(self, sim: Simulation) -> None:
        """Make the world and start its nodes; nothing has run yet."""

    @abc.abstractmethod
    async def drive(self, sim: Simulation) -> None:
        """Do what the outside does: start things, send messages.  Runs in the world, which never crashes."""

    @classmethod
    def built_on(cls) -> Mapping[str, str]:
        """Return the versions of what it is built on, by name: schedules say what they were written for."""
        return {}

    @classmethod
    def has_orders(cls, site: str) -> bool:
        """May exploration of orders hold what comes to this site, to let others go first?

        Not where nobody else could, since they wait for what is held.
        """
        return True

    def heal(self, sim: Simulation) -> None:  # noqa: B027  # to be overridden where there is something to heal
        """The faults have stopped: see to it that everything goes on."""

    def look_back(self, sim: Simulation) -> None:  # noqa: B027  # likewise
        """All is quiet: have tasks of the world read what is left, where reading takes some; nothing is to change."""

    def finish(self, sim: Simulation) -> None:  # noqa: B027  # likewise
        """All is quiet: note what invariants need to know of the end, last records of the trace."""

    def behaviour(self, sim: Simulation, cap: int) -> str:
        """Return the digest of the durable world as its readers see it, growing counts up to `cap`; for exploration.

        Equal digests must behave equally from here on, if the node that is running crashed now: what other nodes have
        in mind counts.  Nobody can look into tasks, so that unless a subclass knows better no two moments are taken
        for alike: each is its whole way there, and exploration a tree that ends at its bounds.
        """
        way = [(deviation.at, deviation.do, deviation.until) for deviation in sim.deviations]
        return json.dumps([way, len(sim.records), sim.operations, sim.scheduler.steps])

    @classmethod
    def landmark(cls, record: Record) -> Hashable | None:
        """Return what a record is one of, for strategies that look for new pairs of them; None for none."""
        kind: str = record[0]
        return kind

    def outcome(self, sim: Simulation) -> Hashable | None:
        """What a faulty run must have in common with some calm run; None if this run cannot be compared."""
        return None
