"""Conformance of `Leases`, a port of its own: a store need not have it to carry one worker (K-RUN-3).

Each check gets a fresh store and two handles on it, the same one twice where there is only one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import attrs
import trio

from kernel.conformance import (
    SECONDS_MAX,
    ConformanceFailure,
    MakeSecond,
    MakeStore,
    _append,
    _entry,
    _refused,
    _stored,
    _verdict,
    _want,
    chain,
)
from kernel.errors import Fenced, UnknownExecution
from kernel.ports import Lease, Leases, Stores

Body = Callable[[Stores, Leases, Leases], Awaitable[None]]


@attrs.frozen(kw_only=True, slots=True)
class LeaseCheck:
    """One thing that `Leases` must do."""

    name: str
    rule: str
    body: Body

    async def run(self, make_store: MakeStore, make_second: MakeSecond = contextlib.nullcontext) -> None:
        """Run on a fresh store.  Raises `ConformanceFailure`, for what the store raises unasked too."""
        try:
            with trio.fail_after(SECONDS_MAX):
                async with make_store() as stores, make_second(stores) as second:
                    if stores.leases is None or second.leases is None:
                        raise ConformanceFailure("the store has no `leases`")
                    await self.body(stores, stores.leases, second.leases)
        except Exception as error:
            raise ConformanceFailure(f"{self.name} ({self.rule}): {_verdict(error)}") from error


_checks: list[LeaseCheck] = []


def _check(body: Body) -> Body:
    _checks.append(LeaseCheck(name=body.__name__, rule="K-RUN-3", body=body))
    return body


@_check
async def lease_is_a_claim(stores: Stores, leases: Leases, other: Leases) -> None:
    events = chain("e", 3)
    await _append(stores, events[:1])
    _want(None, await other.lease("e"), "the lease of an execution nobody has claimed")
    before = await _entry(stores, "e")
    fence = await leases.acquire("e", "a", until_ms=5_000, after=0)
    _want(Lease(owner="a", until_ms=5_000, fence=fence), await other.lease("e"), "the lease")
    _want(attrs.evolve(before, fence=fence), await _entry(stores, "e"), "the entry after a lease")
    async with _refused(Fenced, "append with the fence before the lease"):
        await _append(stores, events[1:2], fence=fence - 1)
    await _append(stores, events[1:2], fence=fence)


@_check
async def lease_goes_to_whoever_knows_the_newest_fence(stores: Stores, leases: Leases, other: Leases) -> None:
    await _append(stores, chain("e", 1))
    first = await leases.acquire("e", "a", until_ms=5_000, after=0)
    for after in (0, first - 1, first + 1):
        if after != first:
            async with _refused(Fenced, f"a lease after {after}, the newest claim is {first}"):
                await other.acquire("e", "b", until_ms=9_000, after=after)
    _want(Lease(owner="a", until_ms=5_000, fence=first), await other.lease("e"), "the lease after refused ones")
    second = await other.acquire("e", "b", until_ms=9_000, after=first)
    _want(Lease(owner="b", until_ms=9_000, fence=second), await leases.lease("e"), "the second lease")


@_check
async def lease_is_renewed_by_its_owner_only(stores: Stores, leases: Leases, other: Leases) -> None:
    await _append(stores, chain("e", 1))
    first = await leases.acquire("e", "a", until_ms=5_000, after=0)
    await leases.renew("e", fence=first, until_ms=6_000)
    _want(Lease(owner="a", until_ms=6_000, fence=first), await other.lease("e"), "the renewed lease")
    second = await other.acquire("e", "b", until_ms=9_000, after=first)
    async with _refused(Fenced, "the renewal of a lease that was taken over"):
        await leases.renew("e", fence=first, until_ms=99_000)
    _want(Lease(owner="b", until_ms=9_000, fence=second), await leases.lease("e"), "the lease after a refused renewal")


@_check
async def plain_claim_ends_a_lease(stores: Stores, leases: Leases, other: Leases) -> None:
    await _append(stores, chain("e", 1))
    fence = await leases.acquire("e", "a", until_ms=5_000, after=0)
    newer = await stores.events.claim("e", "b")
    async with _refused(Fenced, "a renewal after a claim"):
        await other.renew("e", fence=fence, until_ms=9_000)
    async with _refused(Fenced, "a lease after a claim by who has not seen it"):
        await other.acquire("e", "a", until_ms=9_000, after=fence)
    await leases.acquire("e", "a", until_ms=9_000, after=newer)


@_check
async def lease_on_an_unknown_execution_is_refused(stores: Stores, leases: Leases, other: Leases) -> None:
    async with _refused(UnknownExecution, "a lease on an unknown execution"):
        await leases.acquire("e", "a", until_ms=5_000, after=0)
    _want(None, await other.lease("e"), "the lease of an unknown execution")


@_check
async def one_of_concurrent_takers_gets_the_lease(stores: Stores, leases: Leases, other: Leases) -> None:
    await _append(stores, chain("e", 1))
    won: list[str] = []

    async def take(leases: Leases, owner: str) -> None:
        with contextlib.suppress(Fenced):
            await leases.acquire("e", owner, until_ms=5_000, after=0)
            won.append(owner)

    async with trio.open_nursery() as nursery:
        for i, handle in enumerate([leases, other] * 3):
            nursery.start_soon(take, handle, f"owner {i}")
    _want(1, len(won), "owners of one lease taken by 6 at once")
    lease = await leases.lease("e")
    _want(won, [] if lease is None else [lease.owner], "the owner the store names")
    _want(_stored(chain("e", 1)), list(await stores.events.read_from("e", 0)), "the log")


LEASE_CHECKS: tuple[LeaseCheck, ...] = tuple(_checks)
"""All checks, in the order they are read."""
