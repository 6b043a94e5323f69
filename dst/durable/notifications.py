"""Simulated notifications: wake-ups that get lost, come late, twice, or all at once (K-LOG-5).

What the port promises is kept: after the newest change there is at least one.  A lost one is made up for by the next,
and by a reminder when there is none.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio

from dst.durable.faults import NOTIFICATION_DUPLICATED, NOTIFICATION_LATE, NOTIFICATION_LOST
from dst.faults import Options, menu
from dst.simulation import Simulation

_NOTIFY: Options = (
    ("lost", NOTIFICATION_LOST),
    ("twice", NOTIFICATION_DUPLICATED),
    ("again-later", NOTIFICATION_DUPLICATED),
    ("late", NOTIFICATION_LATE),
)
_LATE_SECONDS = 7.0
_REMINDER_SECONDS = 30.0  # a listener looks again after so long, whatever it has heard


class SimWakeups:
    """One subscriber's side.  Mutable: what came while nobody waited is kept, as one return."""

    def __init__(self) -> None:
        self._woken = trio.Event()

    async def wait(self) -> None:
        """Return when the log may have grown since the last return."""
        await self._woken.wait()
        self._woken = trio.Event()

    def wake(self) -> None:
        """The log may have grown."""
        self._woken.set()


class SimNotifications:
    """Mutable: the subscribers there are, by execution and in order."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._subscribers: dict[str, list[SimWakeups]] = {}
        self._menu = menu(sim.faults, _NOTIFY)

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id: str) -> AsyncIterator[SimWakeups]:
        """Wake the holder for every change of the log from the block's entry to its end."""
        wakeups = SimWakeups()
        self._subscribers.setdefault(execution_id, []).append(wakeups)
        try:
            yield wakeups
        finally:
            self._subscribers[execution_id].remove(wakeups)

    def changed(self, execution_id: str) -> None:
        """Tell each subscriber of a change, at a point `notify:<execution>:<number of the subscriber>`."""
        for number, wakeups in enumerate(self._subscribers.get(execution_id, ()), 1):
            site = f"notify:{execution_id}:{number}"
            point, act = self._sim.enter(site, self._menu)
            self._tell(wakeups, act, site)
            self._sim.happened(point)

    def remind(self, execution_id: str) -> None:
        """Have its subscribers look again after a while, as if they had not been told."""
        for wakeups in self._subscribers.get(execution_id, ()):
            self._sim.spawn(lambda w=wakeups: _wake(w), f"reminder {execution_id}", after_seconds=_REMINDER_SECONDS)  # type: ignore[misc]

    def _tell(self, wakeups: SimWakeups, act: str, name: str) -> None:
        if act in ("", "twice", "again-later"):
            wakeups.wake()
        if act:
            again = {"lost": _REMINDER_SECONDS, "twice": 0.0}.get(act, _LATE_SECONDS)
            self._sim.spawn(lambda: _wake(wakeups), name, after_seconds=again)


async def _wake(wakeups: SimWakeups) -> None:
    wakeups.wake()
