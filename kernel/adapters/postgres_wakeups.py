"""Hearing of appends by whatever process, from a PostgreSQL server (K-LOG-5): the port `Notifications`.

An append notifies in its own transaction, so nobody hears of one that did not happen.  All subscribers of a store share
one connection.  No task stands behind it: one of those who wait reads it for all, and passes that on when it leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import attrs
import psycopg
import trio
from psycopg import sql

from kernel.adapters.postgres_pool import Connection, Place, connect, refusals
from kernel.digest import fnv1a64
from kernel.errors import StoreUnavailable

PAYLOAD_BYTES_MAX = 7_000  # the server takes 7999


def channel_of(schema: str) -> str:
    """Return the name under which a store's appends are notified; the server's names have 63 bytes at most."""
    return f"loom_{fnv1a64(schema)}"


def payload_of(execution_id: str) -> str:
    """Return what to notify for an append: the id, or nothing if it does not fit, which wakes everybody."""
    return execution_id if len(execution_id.encode()) <= PAYLOAD_BYTES_MAX else ""


@attrs.define(slots=True, eq=False)
class Subscriber:
    """One subscriber's side.  Mutable: once rung it stays so until a wait returns: nothing comes too early."""

    _listener: Listener
    execution_id: str
    rung: bool = attrs.field(default=False, init=False)
    _stirred: trio.Event = attrs.field(factory=trio.Event, init=False)

    def ring(self) -> None:
        """Have the next wait, or the one under way, return."""
        self.rung = True
        self.stir()

    def stir(self) -> None:
        """Have the wait under way look again: it may be rung, or be the one to read."""
        self._stirred.set()

    async def wait(self) -> None:
        """Return when the log may have grown since the last return.  Raises `StoreUnavailable`; wait again then."""
        await trio.lowlevel.checkpoint()
        try:
            while not self.rung:
                if self._listener.is_read:
                    self._stirred = trio.Event()
                    await self._listener.wait_beside(self, self._stirred)
                else:
                    await self._listener.read_for_all(self)
            self.rung = False
        finally:
            self._listener.pass_on()  # whoever was to read next may be leaving here, rung or cancelled


@attrs.define(slots=True, eq=False, kw_only=True)
class Listener:
    """The connection that hears, for all subscribers of a store.  Mutable: it comes and goes with them."""

    place: Place
    is_read: bool = attrs.field(default=False, init=False)  # does one of the subscribers read?
    _closed: bool = attrs.field(default=False, init=False)
    _connection: Connection | None = attrs.field(default=None, init=False)  # None: nobody subscribes, or it broke
    _opening: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _subscribers: dict[Subscriber, None] = attrs.field(factory=dict, init=False)
    _beside: dict[Subscriber, None] = attrs.field(factory=dict, init=False)  # who waits and does not read

    @contextlib.asynccontextmanager
    async def subscribe(self, execution_id: str) -> AsyncIterator[Subscriber]:
        """Listen for the length of the block.  Raises `StoreUnavailable` if the server cannot be reached."""
        subscriber = Subscriber(self, execution_id)
        self._subscribers[subscriber] = None
        try:
            await self._open()
            yield subscriber
        finally:
            del self._subscribers[subscriber]
            if not self._subscribers:
                self._disconnect()

    def close(self) -> None:
        """Close the connection for good; who reads it is told."""
        self._closed = True
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            trio.lowlevel.notify_closing(connection.fileno())
            connection.close()

    async def wait_beside(self, subscriber: Subscriber, stirred: trio.Event) -> None:
        """Wait until stirred by who reads."""
        self._beside[subscriber] = None
        try:
            await stirred.wait()
        finally:
            self._beside.pop(subscriber, None)

    async def read_for_all(self, subscriber: Subscriber) -> None:
        """Ring for everybody whom what arrives concerns, until `subscriber` is among them."""
        self.is_read = True
        try:
            while not subscriber.rung:
                await self._hear()
        finally:
            self.is_read = False

    def pass_on(self) -> None:
        """Have one of those who wait read, if nobody does."""
        if not self.is_read and self._beside:
            after = next(iter(self._beside))
            del self._beside[after]
            after.stir()

    async def _hear(self) -> None:
        """Take what has arrived, or wait for more."""
        if self._connection is None:
            await self._open()
            for subscriber in self._subscribers:
                subscriber.ring()  # while nobody listened, anything may have happened
            return
        try:
            heard = _arrived(self._connection)
            if not heard:
                await trio.lowlevel.wait_readable(self._connection.fileno())
        except psycopg.Error:
            self._disconnect()  # and connect again, which tells why if it cannot be
            return
        except trio.ClosedResourceError:
            return  # `_open` says so
        for subscriber in self._subscribers:
            if subscriber.execution_id in heard or "" in heard:
                subscriber.ring()

    async def _open(self) -> None:
        async with self._opening:
            if self._closed:
                raise StoreUnavailable(f"the store in {self.place} is closed; open it again")
            if self._connection is None:
                self._connection = await trio.to_thread.run_sync(_listening, self.place)


def _arrived(connection: Connection) -> set[str]:
    """Return the payloads of what has arrived, without waiting.  Raises `psycopg.Error` if the connection broke."""
    payloads: set[str] = set()
    connection.pgconn.consume_input()
    while (notification := connection.pgconn.notifies()) is not None:
        payloads.add(notification.extra.decode())
    return payloads


def _listening(place: Place) -> Connection:
    with refusals(place):
        connection = connect(place)
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel_of(place.schema))))
        except psycopg.Error:
            connection.close()
            raise
        return connection
