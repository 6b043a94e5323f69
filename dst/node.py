"""Nodes: a worker process is a task tree with an incarnation, which a crash freezes."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable

import attrs
import trio

NodeMain = Callable[["Incarnation"], Awaitable[None]]


@attrs.define(kw_only=True, eq=False)
class Node:
    """A named process that is started again after each crash.  Mutable: `current` is the life it has, if any."""

    name: str
    main: NodeMain
    starts: int = 0
    current: Incarnation | None = None
    _up: trio.Event = attrs.field(factory=trio.Event)

    async def wait_up(self) -> Incarnation:
        """Return the current incarnation when it says that it serves."""
        while self.current is None or not self.current.up:
            await self._up.wait()
        return self.current

    def served(self) -> None:
        """The current incarnation serves from now on."""
        self._up.set()
        self._up = trio.Event()


@attrs.define(kw_only=True, eq=False)
class Incarnation:
    """One life of a node.  Mutable: filled in as it comes up."""

    node: Node
    number: int
    up: bool = False
    recovering: bool = False  # from the start of a later life until its first own durable event
    service: object = None  # what `main` offers to requests
    context: contextvars.Context = attrs.field(factory=contextvars.copy_context)
    nursery: trio.Nursery | None = None
    on_death: list[trio.Event] = attrs.field(factory=list)

    @property
    def name(self) -> str:
        """Node and number: `worker.2`."""
        return f"{self.node.name}.{self.number}"

    def serve(self, service: object) -> None:
        """Say that requests are served from now on."""
        self.service = service
        self.up = True
        self.node.served()

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Start a task as part of this node: it dies with it."""
        assert self.nursery is not None
        self.context.copy().run(self.nursery.start_soon, function)

    def died(self) -> None:
        """Tell those who wait for an answer that there will be none."""
        self.up = False
        for event in self.on_death:
            event.set()
