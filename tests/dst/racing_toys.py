"""Flows with a race planted in each: calm runs hold, some orders of operations do not, no crash is needed.

What they do to the world is registers of a service of their own, without the kernel's help; they say what they touch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import trio

from dst.durable import faults
from dst.durable.scenario import DurableScenario
from dst.faults import HOLDING, Fault
from dst.footprints import READ, WRITE
from dst.invariants import AnyInvariant, Broken, Invariant
from dst.simulation import Simulation
from dst.trace import Record
from kernel import Context, Effect, Flow, Json, flow, step

look = step("look")
think = step("think")
write = step("write")
free = step("free")
book = step("book")
open_shop = step("open")
announce = step("announce")
say_working = step("say-working")
say_done = step("say-done")
pack = step("pack")
label = step("label")


class Ends(Invariant[Json]):
    """A register ends as it should."""

    name = "register-ends"
    says = "each register ends as it should"
    kinds = ("register",)
    initial: Json = None

    def __init__(self, wanted: Mapping[str, Json]) -> None:
        self.wanted = wanted

    def key(self, record: Record) -> tuple[object, object]:
        """Keyed by register."""
        return "registers", record[1]

    def advance(self, state: Json, record: Record) -> Json:
        """Keep the register's name and value."""
        return (record[1], record[2])  # type: ignore[return-value]

    def at_end(self, state: Json) -> None:
        """Compare."""
        name, value = cast("tuple[str, Json]", state)
        if value != self.wanted[name]:
            raise Broken(f"{name} is {value!r}", repr(self.wanted[name]))


class AtMost(Invariant[int]):
    """No register goes beyond a number."""

    name = "register-bounded"
    says = "no register goes beyond what there is"
    kinds = ("register",)
    initial = 0

    def __init__(self, most: int) -> None:
        self.most = most

    def key(self, record: Record) -> tuple[object, object]:
        """Keyed by register."""
        return "registers", record[1]

    def advance(self, state: int, record: Record) -> int:
        """Look at each value."""
        if record[2] > self.most:
            raise Broken(f"{record[1]} is {record[2]}", f"at most {self.most}")
        return cast("int", record[2])


class Racing(DurableScenario):
    """One flow, and registers."""

    faults: ClassVar[Sequence[Fault]] = (*faults.CRASHES, HOLDING)
    initial: ClassVar[Mapping[str, Any]] = {}

    def build(self, sim: Simulation) -> None:
        """Fill the registers."""
        self.registers = dict(self.initial)
        super().build(sim)

    def get(self, name: str) -> Any:
        """Read a register."""
        self.sim.touch(f"register:{name}", READ)
        return self.registers[name]

    def put(self, name: str, value: Any) -> None:
        """Set a register."""
        self.sim.touch(f"register:{name}", WRITE)
        self.registers[name] = value
        self.sim.note("register", name, value)

    def asks(self) -> Mapping[str, Callable[[Any], object]]:
        """Return what its service does, by operation."""
        raise NotImplementedError

    def world(self, sim: Simulation) -> Mapping[str, Effect]:
        """One service."""
        service = self.service("registers")
        return {name: service.effect(name, answer) for name, answer in self.asks().items()}


class LostUpdate(Racing):
    """Two branches look and then write what they saw and one more; the second has something to think about first."""

    name = "lost_update"
    story = "two branches count up one register, and look before they write"
    initial: ClassVar[Mapping[str, Any]] = {"count": 0}
    invariants: ClassVar[Sequence[AnyInvariant]] = (Ends({"count": 2}),)

    def asks(self) -> Mapping[str, Callable[[Any], object]]:
        """A register that anybody may set."""
        return {
            "look": lambda _: self.get("count"),
            "think": lambda _: None,
            "write": lambda value: self.put("count", value),
        }

    def flows(self) -> Sequence[Flow]:
        """The flow."""
        return (counting,)

    async def drive(self, sim: Simulation) -> None:
        """Start it."""
        await self.start("counting", execution_id="count-1")


@flow
async def counting(ctx: Context, _: Json) -> Json:
    """Count up twice."""
    async with ctx.branches() as both:
        both.start(_count_up, ctx, "first", 0)
        both.start(_count_up, ctx, "second", 4)
    await ctx.emit("counted")
    return None


async def _count_up(ctx: Context, who: str, thoughts: int) -> None:
    for thought in range(thoughts):
        await ctx.run(think, {"of": thought}, key=str(thought))
    seen = cast("int", await ctx.run(look, key=who))
    await ctx.emit("seen", {"by": who})
    await ctx.run(write, seen + 1, key=who)


class Oversold(Racing):
    """Two executions ask what is free, and book it; the second begins when the first should have booked."""

    name = "oversold"
    story = "two buyers, one seat"
    initial: ClassVar[Mapping[str, Any]] = {"sold": 0}
    invariants: ClassVar[Sequence[AnyInvariant]] = (AtMost(1),)

    def asks(self) -> Mapping[str, Callable[[Any], object]]:
        """A seat, which is sold to whoever books it."""
        return {
            "free": lambda _: self.get("sold") == 0,
            "think": lambda _: None,
            "book": lambda _: self.put("sold", self.get("sold") + 1),
        }

    def flows(self) -> Sequence[Flow]:
        """The flow."""
        return (buying,)

    async def drive(self, sim: Simulation) -> None:
        """Two come in at once, one of them slower."""
        sim.spawn(lambda: self.start("buying", {"thoughts": 3}, execution_id="buyer-2"), "the second buyer")
        await self.start("buying", {"thoughts": 0}, execution_id="buyer-1")


@flow
async def buying(ctx: Context, buyer: Json) -> Json:
    """Look, then book."""
    wanted = cast("dict[str, int]", buyer)
    for thought in range(wanted["thoughts"]):
        await ctx.run(think, key=str(thought))
    is_free = await ctx.run(free)
    if not is_free:
        await ctx.emit("sorry")
        return "nothing"
    await ctx.emit("found")
    await ctx.run(book)
    return "a seat"


class EarlyNews(Racing):
    """One branch opens the shop, another announces it, and does not wait for that."""

    name = "early_news"
    story = "a shop is announced, which is to be open by then"
    initial: ClassVar[Mapping[str, Any]] = {"open": 0, "announced closed": 0}
    invariants: ClassVar[Sequence[AnyInvariant]] = (Ends({"open": 1, "announced closed": 0}),)

    def asks(self) -> Mapping[str, Callable[[Any], object]]:
        """A shop."""
        return {
            "open": lambda _: self.put("open", 1),
            "think": lambda _: None,
            "announce": lambda _: self.put("announced closed", 1 - self.get("open")),
        }

    def flows(self) -> Sequence[Flow]:
        """The flow."""
        return (opening,)

    async def drive(self, sim: Simulation) -> None:
        """Start it."""
        await self.start("opening", execution_id="shop-1")


@flow
async def opening(ctx: Context, _: Json) -> Json:
    """Open and announce."""
    async with ctx.branches() as both:
        both.start(_open, ctx)
        both.start(_announce, ctx)
    return None


async def _open(ctx: Context) -> None:
    await ctx.emit("opening")
    await ctx.run(open_shop)


async def _announce(ctx: Context) -> None:
    drafts = 3
    for draft in range(drafts):
        await ctx.run(think, key=str(draft))
        await ctx.emit("drafted", {"draft": draft})
    await ctx.run(announce)


class LastWord(Racing):
    """One branch says that work goes on, another that it is done; nothing says which is to be last."""

    name = "last_word"
    story = "two branches set one state, the later one is to win"
    initial: ClassVar[Mapping[str, Any]] = {"state": "new"}
    invariants: ClassVar[Sequence[AnyInvariant]] = (Ends({"state": "done"}),)

    def asks(self) -> Mapping[str, Callable[[Any], object]]:
        """A state that anybody may set."""
        return {
            "say-working": lambda _: self.put("state", "working"),
            "think": lambda _: None,
            "say-done": lambda _: self.put("state", "done"),
        }

    def flows(self) -> Sequence[Flow]:
        """The flow."""
        return (working,)

    async def drive(self, sim: Simulation) -> None:
        """Start it."""
        await self.start("working", execution_id="work-1")


@flow
async def working(ctx: Context, _: Json) -> Json:
    """Work, and say so."""
    async with ctx.branches() as both:
        both.start(_do, ctx)
        both.start(_tell, ctx)
    return None


async def _do(ctx: Context) -> None:
    rounds = 3
    for turn in range(rounds):
        await ctx.run(think, key=str(turn))
    await ctx.run(say_done)


async def _tell(ctx: Context) -> None:
    await ctx.emit("working")
    await ctx.run(say_working)


class Shared(Racing):
    """Two branches share a box in plain memory: what goes into it is looked at before and used after a step."""

    name = "shared_box"
    story = "a box is packed by one branch and labelled by another, which looks into it too late"
    initial: ClassVar[Mapping[str, Any]] = {"label": ""}
    invariants: ClassVar[Sequence[AnyInvariant]] = (Ends({"label": "tea"}),)

    def asks(self) -> Mapping[str, Callable[[Any], object]]:
        """A label."""
        return {
            "pack": lambda _: None,
            "think": lambda _: None,
            "label": lambda content: self.put("label", content),
        }

    def flows(self) -> Sequence[Flow]:
        """The flow."""
        return (packing,)

    async def drive(self, sim: Simulation) -> None:
        """Start it."""
        await self.start("packing", execution_id="box-1")


@flow
async def packing(ctx: Context, _: Json) -> Json:
    """Pack and label."""
    box: list[str] = []
    async with ctx.branches() as both:
        both.start(_pack, ctx, box)
        both.start(_label, ctx, box)
    await ctx.emit("packed", {"things": len(box)})
    return None


async def _pack(ctx: Context, box: list[str]) -> None:
    await ctx.run(pack)
    box.append("tea")
    await ctx.emit("closed")
    await trio.lowlevel.checkpoint()


async def _label(ctx: Context, box: list[str]) -> None:
    for side in range(3):
        await ctx.run(think, key=str(side))
    content = box[0] if box else "nothing"
    await ctx.run(label, content)


TOYS: Mapping[str, type[Racing]] = {toy.name: toy for toy in (LostUpdate, Oversold, EarlyNews, LastWord, Shared)}
