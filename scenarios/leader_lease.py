"""A leader by lease: three nodes, a lock service that grants leases with fencing tokens, and a register that fences.

Nothing of it is the kernel's: it is plain trio, driven by the harness's core, as any trio system can be.  A holder that
is stalled goes on in the belief that it leads; its write is older than the new leader's, and the register refuses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import trio

from dst import messages
from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLDING, Fault, Strength, menu
from dst.footprints import WRITE
from dst.invariants import AnyInvariant, Broken, Invariant, Key
from dst.messages import Network
from dst.node import Incarnation
from dst.parameters import Parameter
from dst.scenario import Scenario
from dst.simulation import Simulation

T = TypeVar("T")

NODES = ("ann", "bob", "cleo")
GOAL = 4
"""How far the register is to be counted: each leader goes on from where it finds it."""

LEASE_SECONDS, TIMEOUT_SECONDS, PATIENCE_SECONDS = 10, 3, 4
HOLDER_STALLS = Fault(name="holder-stalls", strength=Strength.STILL)

Version = tuple[int, int]  # the token, and which write under it


class Lock:
    """The lock service: one lease at a time, each with a token of its own.  Mutable: it never crashes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.token, self.holder = 0, ""
        self._until = 0.0

    def acquire(self, who: str) -> int | None:
        """Grant the lease and return its token, or None while somebody else has it."""
        now = trio.current_time()
        if self.holder != who and now < self._until:
            return None
        self.token, self.holder, self._until = self.next_token(who), who, now + LEASE_SECONDS
        self._sim.note("granted", self.token, who)
        return self.token

    def next_token(self, who: str) -> int:
        """Return a token that is newer than every other."""
        return self.token + 1


class Register:
    """One number, and the version of the write it is from.  Mutable: it never crashes."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.value = 0
        self.version: Version = (0, 0)

    def read(self) -> int:
        """Return the number."""
        return self.value

    def write(self, version: Version, value: int, who: str) -> bool:
        """Take a write, or refuse it if it is older than the last one that was taken."""
        taken = self.is_newer(version)
        self._sim.note("write", *version, who, taken)
        if taken:
            self.version, self.value = version, value
        return taken

    def is_newer(self, version: Version) -> bool:
        """Compare by token, then by number under it: messages come late, and twice."""
        return version > self.version


class Fenced(Invariant[Version]):
    """What a token is for."""

    name = "fenced"
    says = "the register takes no write that is older than one it has taken"
    kinds = ("write",)
    initial = (0, 0)

    def key(self, record: tuple[Any, ...]) -> Key:
        """There is one register."""
        return "register", "register"

    def advance(self, state: Version, record: tuple[Any, ...]) -> Version:
        """Compare versions."""
        _, token, number, who, taken = record
        if not taken:
            return state
        if (token, number) <= state:
            raise Broken(f"write {number} of {who} under token {token} was taken after {state}", "a newer one")
        return token, number


class OneHolder(Invariant[str]):
    """What a lease is for."""

    name = "one-holder"
    says = "a token is granted once, and what is taken under it is its holder's"
    kinds = ("granted", "write")
    initial = ""

    def key(self, record: tuple[Any, ...]) -> Key:
        """Keyed by token."""
        return record[1], record[1]

    def advance(self, state: str, record: tuple[Any, ...]) -> str:
        """Remember the holder."""
        if record[0] == "granted":
            if state:
                raise Broken(f"token {record[1]} went to {record[2]} after {state}", "a token of its own")
            return str(record[2])
        if record[4] and record[3] != state:
            raise Broken(f"{record[3]} wrote under token {record[1]}, which {state or 'nobody'} holds", "its holder")
        return state


class SomeoneLeads(Invariant[int]):
    """What all of it is for."""

    name = "someone-leads"
    says = "when all is quiet the register has been counted to its goal: there was always a leader in the end"
    kinds = ("counted",)
    initial = 0

    def key(self, record: tuple[Any, ...]) -> Key:
        """There is one register."""
        return "register", "register"

    def advance(self, state: int, record: tuple[Any, ...]) -> int:
        """Look at how far it has come."""
        if record[1] < GOAL:
            raise Broken(f"it stands at {record[1]}, and nobody goes on", f"{GOAL}")
        return int(record[1])


class LeaderLease(Scenario):
    """A few nodes count one register up, one at a time."""

    name = "leader_lease"
    story = "a lock service with fencing tokens on plain trio: crashes, stalls, messages lost, late, and twice"
    faults: ClassVar[Sequence[Fault]] = (CRASH_BEFORE, CRASH_AFTER, HOLDING, *messages.ALL, HOLDER_STALLS)
    invariants: ClassVar[Sequence[AnyInvariant]] = (Fenced(), OneHolder(), SomeoneLeads())
    marks: ClassVar[Sequence[str]] = ("led by more than one", "a stale write was refused")
    lock: ClassVar[type[Lock]] = Lock
    register: ClassVar[type[Register]] = Register
    nodes = Parameter(3, least=1, most=len(NODES), says="nodes that may lead")

    def build(self, sim: Simulation) -> None:
        """Start the nodes."""
        self._sim, self._network = sim, Network(sim)
        self._lock, self._register = self.lock(sim), self.register(sim)
        self._stalls = menu(sim.faults, (("stall", HOLDER_STALLS),))
        for name in NODES[: self.nodes]:
            sim.add_node(name, self._work)

    async def drive(self, sim: Simulation) -> None:
        """Nobody has to ask them."""

    async def _work(self, me: Incarnation) -> None:
        """Lead whenever there is something left to do and nobody else does it."""
        value = 0
        while value < GOAL:
            try:
                value = await self._try_to_lead(me)
            except trio.TooSlowError:
                await trio.sleep(PATIENCE_SECONDS)

    async def _try_to_lead(self, me: Incarnation) -> int:
        """Return how far the register is known to be when this node does not lead, or not any more."""
        until = trio.current_time() + LEASE_SECONDS  # from before it is asked for: it lasts longer, not shorter
        token = await self._ask(me, "lock", "acquires", functools.partial(self._lock.acquire, me.name))
        value = await self._ask(me, "register", "reads", self._register.read)
        if token is None:
            await trio.sleep(PATIENCE_SECONDS)
            return value
        number = 0
        while value < GOAL and trio.current_time() < until:
            await self._stall(me)
            number += 1
            write = functools.partial(self._register.write, (token, number), value + 1, me.name)
            if not await self._ask(me, "register", "writes", write):
                return value  # somebody else leads, and knows better
            value += 1
            await trio.sleep(1)
        return value

    async def _ask(self, me: Incarnation, whom: str, what: str, serve: Callable[[], T]) -> T:
        return await self._network.ask(f"{me.node.name} {what}", serve, timeout_seconds=TIMEOUT_SECONDS, to=whom)

    async def _stall(self, me: Incarnation) -> None:
        """Between the look at the clock and the write, at a point `stall:<node>`: the lease may be over after it."""
        point, act = self._sim.enter(f"stall:{me.node.name}", self._stalls)
        if act:
            await trio.sleep(1.5 * LEASE_SECONDS)
        self._sim.touch(f"time of {me.node.name}", WRITE)
        self._sim.happened(point)

    def finish(self, sim: Simulation) -> None:
        """Note how far it was counted, and mark how."""
        sim.note("counted", self._register.value)
        leaders = {record[3] for record in sim.records if record[0] == "write" and record[4]}
        sim.sometimes("led by more than one", len(leaders) > 1)
        sim.sometimes("a stale write was refused", any(r[0] == "write" and not r[4] for r in sim.records))
