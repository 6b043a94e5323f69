"""Leases of one worker: which executions it may drive, and for how long (K-RUN-3).

Without a length there are none: the worker is the only one on its store, and whatever it finds unfinished is its own.
Every clock here is some worker's own.  A wrong one makes a lease end early or late; it never lets two workers append,
which the fences see to.
"""

from __future__ import annotations

import attrs
import trio

from kernel.errors import AppendUnknown, Fenced, LeaseHeld, StoreUnavailable, UnknownExecution
from kernel.ports import CatalogueEntry, Clock, Leases, Stores
from kernel.state import TERMINAL

_RENEWALS = 3  # in the length of a lease: one may fail, and one more
_ATTEMPTS = 16

LOOK_MS = 250
LOOK_MS_MAX = 8_000
"""How long a caller waits before it looks for an end that came elsewhere: at first, and doubled up to the second."""


@attrs.frozen(kw_only=True)
class Owner:
    """A worker as leases name it.  Its name outlives it: an older incarnation of the same name is dead."""

    incarnation: str
    worker: str | None = None

    def __str__(self) -> str:
        """Return what is stored."""
        return self.incarnation if self.worker is None else f"{self.worker}@{self.incarnation}"

    def outlives(self, owner: str) -> bool:
        """Is that this worker, now or before it was started again?"""
        return owner == str(self) or (self.worker is not None and owner.startswith(f"{self.worker}@"))


@attrs.frozen(kw_only=True)
class Ownership:
    """How one worker comes by executions."""

    stores: Stores
    clock: Clock
    owner: Owner
    lease_ms: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.lease_ms is not None and (self.stores.leases is None or self.lease_ms <= 0):
            raise ValueError(
                f"leases of {self.lease_ms} ms: wanted more than none, and `Stores.leases` to keep them in"
            )

    @property
    def _leases(self) -> Leases:
        assert self.stores.leases is not None
        return self.stores.leases

    async def claim(self, execution_id: str, *, overtaken: bool = False) -> int:
        """Become the owner and return the fence.  Raises `LeaseHeld`, `UnknownExecution`, `StoreUnavailable`.

        Who was `overtaken` leaves the execution to whoever did it, parked or not.  Otherwise: 1. a timer is due on two
        workers, 2. both claim, the second with the newer fence, 3. the first is refused, and claims again, 4. the
        second is refused, and so on.
        """
        if self.lease_ms is None:
            return await self.stores.events.claim(execution_id, str(self.owner))
        for _ in range(_ATTEMPTS):
            entry = await self.stores.events.entry(execution_id)
            if entry is None:
                raise UnknownExecution(f"no execution {execution_id!r} in this store")
            if await self.is_held(entry, parked_too=overtaken):
                raise LeaseHeld(f"execution {execution_id!r} is driven by another worker")
            until_ms = self.clock.now_ms() + self.lease_ms
            try:
                return await self._leases.acquire(execution_id, str(self.owner), until_ms=until_ms, after=entry.fence)
            except Fenced:
                overtaken = True  # another worker was faster: look again
        raise LeaseHeld(f"execution {execution_id!r} was claimed by others {_ATTEMPTS} times in a row")

    async def is_held(self, entry: CatalogueEntry, *, parked_too: bool = False) -> bool:
        """Does another worker that is alive drive the execution?  One that is parked is nobody's.

        With `parked_too`, until the newest lease has run out it is taken to be at work on that one as well.
        """
        if self.lease_ms is None or (entry.status != "running" and not parked_too):
            return False
        lease = await self._leases.lease(entry.execution_id)
        return (
            lease is not None
            and lease.fence == entry.fence
            and lease.until_ms > self.clock.now_ms()
            and not self.owner.outlives(lease.owner)
        )

    @property
    def renewal_ms(self) -> int:
        """How long to wait between renewals, and between looks at what others drive."""
        return max(1, (self.lease_ms or 0) // _RENEWALS)

    async def renew(self, execution_id: str, fence: int) -> bool:
        """Prolong the lease; False if another worker owns the execution.  A store that is silent is asked later."""
        assert self.lease_ms is not None
        try:
            await self._leases.renew(execution_id, fence=fence, until_ms=self.clock.now_ms() + self.lease_ms)
        except Fenced:
            return False
        except (StoreUnavailable, AppendUnknown):
            return True
        return True

    async def wait_for_end(self, execution_id: str, told: trio.Event) -> None:
        """Return when this process tells of the execution's end, or the catalogue shows that it has come to one.

        Another process may bring it about, by leases or by an operator's command, so the catalogue is looked at now
        and then, less often as time goes on.
        """
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                pause_ms = LOOK_MS if self.lease_ms is None else min(LOOK_MS, self.renewal_ms)
                while True:
                    await self.clock.sleep_until(self.clock.now_ms() + pause_ms)
                    pause_ms = min(2 * pause_ms, LOOK_MS_MAX)
                    try:
                        entry = await self.stores.events.entry(execution_id)
                    except StoreUnavailable:
                        continue  # the next look may tell
                    if entry is None or entry.status in TERMINAL or entry.status == "blocked":
                        nursery.cancel_scope.cancel()

            nursery.start_soon(look)
            await told.wait()
            nursery.cancel_scope.cancel()
