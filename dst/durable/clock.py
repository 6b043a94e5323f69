"""The kernel's clock over virtual time: each worker has a wall clock of its own, which may be wrong.

Where a scenario declares faults of time, each sleep is a point `timer:<worker>:<task>`.  Virtual time itself never
goes back: a clock that jumps is off from then on, for all lives of its worker, and who sleeps on it looks again.
"""

from __future__ import annotations

import trio

from dst.durable.faults import CLOCK_JUMP, TIMER_EARLY, TIMER_LATE
from dst.faults import Options, menu
from dst.simulation import Simulation

EPOCH_MS = 1_700_000_000_000
"""The wall clock at the start of each simulation."""

LATE_MS = 60_000
"""How late a late timer is."""

JUMP_MS = 3 * 3600 * 1000
"""How far a clock jumps."""

_TIMER: Options = (
    ("late", TIMER_LATE),
    ("early", TIMER_EARLY),
    ("forward", CLOCK_JUMP),
    ("back", CLOCK_JUMP),
)


class SimClock:
    """One worker's clock.  Mutable: `off_ms` is how far it is from the truth."""

    def __init__(self, sim: Simulation, worker: str = "worker") -> None:
        self._sim = sim
        self._worker = worker
        self._menu = menu(sim.faults, _TIMER)
        self._jumped = trio.Event()
        self.off_ms = 0
        self.sleeping: dict[str, float] = {}  # tasks of the worker's present life, and when they will wake

    def now_ms(self) -> int:
        """Return milliseconds since the epoch, as this clock has them."""
        return EPOCH_MS + self.off_ms + self._sim.scheduler.now_ns // 1_000_000

    def seconds(self, due_ms: int) -> float:
        """Return the virtual time, in seconds, at which this clock will show `due_ms` if it does not jump."""
        return (due_ms - self.off_ms - EPOCH_MS) / 1000

    async def sleep_until(self, due_ms: int) -> None:
        """Sleep until this clock says so.  An early timer goes when half of the time has passed."""
        name = trio.lowlevel.current_task().name
        if len(self._menu.options) == 1:
            await self._sleep(name, due_ms)
            return
        point, act = self._sim.enter(f"timer:{self._worker}:{name}", self._menu)
        if act or self._sim.crowded():
            await self._sim.approach(point, act)
        if act == "late":
            due_ms = max(due_ms, self.now_ms()) + LATE_MS
        elif act == "early":
            due_ms -= max(0, due_ms - self.now_ms()) // 2
        elif act:
            self._jump(JUMP_MS if act == "forward" else -JUMP_MS)
        await self._sleep(name, due_ms)
        self._sim.happened(point)

    async def _sleep(self, name: str, due_ms: int) -> None:
        sleeping = self.sleeping
        try:
            while True:
                sleeping[name] = self.seconds(due_ms)
                with trio.CancelScope(deadline=sleeping[name]):
                    await self._jumped.wait()
                    continue
                return
        finally:
            sleeping.pop(name, None)

    def _jump(self, by_ms: int) -> None:
        self.off_ms += by_ms
        self._sim.note("jumped", self._worker, by_ms)
        self._jumped.set()
        self._jumped = trio.Event()
