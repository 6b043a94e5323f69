"""Messages: once on their way they outlive who sent them; they may be lost, come late, or come twice.

For systems whose nodes talk to each other, or to a service of the world; any of them may be plain trio.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Fault, Options, Strength, menu
from dst.footprints import WRITE
from dst.scheduler import NODE
from dst.simulation import Simulation

T = TypeVar("T")

MESSAGE_LOST = Fault(name="message-lost", strength=Strength.UNTOLD)
MESSAGE_LATE = Fault(name="message-late", strength=Strength.UNTIMELY)
MESSAGE_TWICE = Fault(name="message-twice", strength=Strength.UNTIMELY)
ALL = (MESSAGE_LOST, MESSAGE_LATE, MESSAGE_TWICE)

LATE_SECONDS = 7.0
"""How late a late message is, and the second of two copies."""

_ON_THE_WAY: Options = (("hold", HOLDING), ("lost", MESSAGE_LOST), ("late", MESSAGE_LATE), ("twice", MESSAGE_TWICE))
_FROM_A_NODE: Options = (("crash-before", CRASH_BEFORE), ("crash-after", CRASH_AFTER), *_ON_THE_WAY)


class Network:
    """Carries messages.  In a calm run each arrives at once."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._from_a_node = menu(sim.faults, _FROM_A_NODE)
        self._from_the_world = menu(sim.faults, _ON_THE_WAY)

    async def send(self, message: str, arrive: Callable[[], Awaitable[None]], *, to: str = "") -> None:
        """Send a message, at a point `send:<message>`; returns when it is on its way.

        `arrive` is what its arrival does.  It runs in the world, whatever has become of the sender meanwhile.  `to` is
        whom the message goes to, if its arrival reads and changes nothing but what is that receiver's: messages to two
        receivers can change places.
        """
        sim = self._sim
        point, act = sim.enter(f"send:{message}", self._from_the_world if NODE.get() is None else self._from_a_node)
        if act or sim.crowded():
            act = await sim.approach(point, act)
        if act == "crash-before":
            await sim.crash(point)
        if to:
            sim.touch(f"mailbox:{to}", WRITE)
        if act not in ("lost", "late"):
            sim.spawn(arrive, f"message {message}")
        if act in ("late", "twice"):
            sim.spawn(arrive, f"late message {message}", after_seconds=LATE_SECONDS)
        sim.happened(point)
        if act == "crash-after":
            await sim.crash(point)

    async def ask(self, request: str, serve: Callable[[], T], *, timeout_seconds: float, to: str = "") -> T:
        """Send a request, have it served in the world, and return what its answer says; both are messages.

        `to` says whose `serve` is, as for `send`; the answer is a message to whoever asks just this.  Raises
        `trio.TooSlowError`: nobody knows then whether it was served, or will be.
        """
        answers, answered = trio.open_memory_channel[T](math.inf)

        async def arrive() -> None:
            answer = serve()

            async def come_back() -> None:
                answers.send_nowait(answer)

            await self.send(f"answer to {request}", come_back, to=to and f"who asks {request}")

        await self.send(request, arrive, to=to)
        with trio.fail_after(timeout_seconds):
            return await answered.receive()
