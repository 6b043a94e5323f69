"""The conformance kit: what any store must do to carry the kernel (K-LOG-5).  Run it on a store of your own:

    @contextlib.asynccontextmanager
    async def make_store():
        async with my_store(fresh_place()) as store:
            yield Stores(events=store, snapshots=store, mailbox=store)

    trio.run(check_all, make_store)

Each check gets a fresh, empty store.  `make_second(stores)` opens another handle on a store that is open already, as a
second process would; without it the checks that need two handles do not run, and `check_all` says so.

There is more, by what it needs, each a tuple of checks for `run_each`: `NOTIFICATION_CHECKS` below, `LEASE_CHECKS` in
`kernel.conformance_leases`, `DISPOSAL_CHECKS` in `kernel.conformance_disposal`, `CONTENT_CHECKS` in
`kernel.conformance_content`, `FLOW_CHECKS`, which run flows, in `kernel.conformance_flows`,
`kernel.conformance_transactions`; and `kernel.conformance_processes`, where threads and processes race and are killed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, get_args

import attrs
import trio

from kernel.errors import ConcurrencyConflict, Fenced, LogTruncated, UnknownExecution
from kernel.events import GENESIS_HASH, Envelope, StoredEvent, hash_of, seal
from kernel.ids import ID_BYTES_MAX
from kernel.jsonform import MalformedJson, decode, encode
from kernel.ports import CatalogueEntry, Delivery, Notifications, Status, StoredSnapshot, Stores, Wakeups

MakeStore = Callable[[], AbstractAsyncContextManager[Stores]]
MakeSecond = Callable[[Stores], AbstractAsyncContextManager[Stores]]
Body = Callable[[Stores, Stores], Awaitable[None]]

SECONDS_MAX = 60
"""A check that takes longer has failed: the store hangs."""


class ConformanceFailure(AssertionError):
    """A store broke a rule: what was seen, what was wanted, and which check and rule say so."""


@attrs.frozen(kw_only=True, slots=True)
class Check:
    """One thing a store must do.  `body` gets two handles, the same one twice unless `handles` is 2."""

    name: str
    rule: str
    handles: int
    body: Body

    async def run(self, make_store: MakeStore, make_second: MakeSecond | None = None) -> None:
        """Run on a fresh store.  Raises `ConformanceFailure`, for what the store raises unasked too."""
        if self.handles == 1:
            make_second = contextlib.nullcontext
        if make_second is None:
            raise ValueError(f"{self.name} needs `make_second`, which opens another handle on a store")
        try:
            with trio.fail_after(SECONDS_MAX):
                async with make_store() as stores, make_second(stores) as second:
                    await self.body(stores, second)
        except Exception as error:
            raise ConformanceFailure(f"{self.name} ({self.rule}): {_verdict(error)}") from error


@attrs.frozen(kw_only=True, slots=True)
class Report:
    """Which checks a store passed, and which did not run for want of a second handle."""

    passed: tuple[str, ...]
    not_run: tuple[str, ...]


async def check_all(make_store: MakeStore, make_second: MakeSecond | None = None) -> Report:
    """Run every check.  Raises one `ConformanceFailure` that lists all that failed."""
    runnable = [check for check in CHECKS if check.handles == 1 or make_second is not None]
    return Report(
        passed=await run_each(runnable, make_store, make_second),
        not_run=tuple(check.name for check in CHECKS if check not in runnable),
    )


class Runnable(Protocol):
    """A check, of whatever port."""

    @property
    def name(self) -> str:
        """The claim."""

    def run(self, *what: Any) -> Awaitable[None]:
        """Run on what the check needs.  Raises `ConformanceFailure`."""


async def run_each(checks: Sequence[Runnable], *what: Any) -> tuple[str, ...]:
    """Run each check on what it needs and return their names.  Raises one `ConformanceFailure` that lists all."""
    failures: list[str] = []
    for check in checks:
        try:
            await check.run(*what)
        except ConformanceFailure as failure:
            failures.append(str(failure))
    if failures:
        raise ConformanceFailure("\n".join([f"{len(failures)} of {len(checks)} checks failed", *failures]))
    return tuple(check.name for check in checks)


_checks: list[Check] = []


def _check(rule: str, *, handles: int = 1) -> Callable[[Body], Body]:
    """Register a check; its name is the function's, which states the claim."""

    def register(body: Body) -> Body:
        _checks.append(Check(name=body.__name__, rule=rule, handles=handles, body=body))
        return body

    return register


# ---- the log ---------------------------------------------------------------------------------------------------------


@_check("K-LOG-1")
async def unknown_execution_has_nothing(stores: Stores, _: Stores) -> None:
    await _append(stores, chain("known", 1))
    await stores.events.truncate_prefix("unknown", 5)
    await stores.mailbox.remove("unknown", ["d"])
    _want([], await _log(stores, "unknown"), "events of an unknown execution")
    _want([], await _log(stores, "unknown", 3), "events from 3 of an unknown execution")
    _want(None, await stores.events.entry("unknown"), "entry of an unknown execution")
    _want(None, await stores.snapshots.load("unknown"), "snapshot of an unknown execution")
    _want([], list(await stores.mailbox.pending("unknown")), "deliveries of an unknown execution")
    _want(["known"], [e.execution_id for e in await stores.events.entries()], "executions in the catalogue")


@_check("K-LOG-1")
async def single_appends_read_back_in_order(stores: Stores, _: Stores) -> None:
    events = chain("e", 7)
    for i, event in enumerate(events):
        await _append(stores, [event])
        _want(_stored(events[: i + 1]), await _log(stores, "e"), f"the log after append {i}")


@_check("K-LOG-1")
async def text_and_hash_come_back_exactly(stores: Stores, _: Stores) -> None:
    event = attrs.evolve(chain("e", 1)[0], text=ODD_JSON, hash="f" * 64)
    await _append(stores, [event])
    _want([StoredEvent(0, ODD_JSON, "f" * 64)], await _log(stores, "e"), "an event whose keys are in no order")


@_check("K-LOG-2")
async def batch_lands_whole(stores: Stores, _: Stores) -> None:
    events = chain("e", 9)
    await _append(stores, events[:4])
    await _append(stores, events[4:5])
    await _append(stores, events[5:])
    _want(_stored(events), await _log(stores, "e"), "the log after batches of 4, 1 and 4")
    _want(8, (await _entry(stores, "e")).head, "head")


@_check("K-LOG-1")
async def read_from_every_position_gives_the_rest(stores: Stores, _: Stores) -> None:
    events = chain("e", 6)
    await _append(stores, events)
    for k in range(9):
        _want(_stored(events[k:]), await _log(stores, "e", k), f"events from {k} of 6")


@_check("K-LOG-1")
async def log_can_be_read_one_event_at_a_time(stores: Stores, _: Stores) -> None:
    # The port has no pages: a reader that wants some of the events takes the first of them, and asks again after them.
    events = chain("e", 24)
    seen: list[StoredEvent] = []
    for first, size in ((0, 1), (1, 2), (3, 7), (10, 1), (11, 13)):
        await _append(stores, events[first : first + size])
        for _step in range(size - 1 if first else 0):  # always one behind, so that it begins within batches
            seen += (await _log(stores, "e", len(seen)))[:1]
        await stores.events.truncate_prefix("e", len(seen) - 1)
    while page := (await _log(stores, "e", len(seen)))[:1]:
        seen += page
    _want(_stored(events), seen, "a log that was read one event at a time, and dropped behind")


@_check("K-LOG-4")
async def what_was_read_stays_as_it_was(stores: Stores, _: Stores) -> None:
    events = chain("e", 5)
    await _append(stores, events[:3])
    early = await stores.events.read_from("e", 0)
    await _append(stores, events[3:])
    await stores.events.truncate_prefix("e", 2)
    _want(_stored(events[:3]), list(early), "events read before an append and a truncation")


@_check("K-LOG-1")
async def logs_do_not_mix(stores: Stores, _: Stores) -> None:
    logs = {name: chain(name, 4) for name in ("a", "a::b", "b")}
    for i in range(4):
        for events in logs.values():
            await _append(stores, events[i : i + 1])
    await stores.events.truncate_prefix("a", 2)
    for name, events in logs.items():
        first = 3 if name == "a" else 0
        _want(_stored(events[first:]), await _log(stores, name, first), f"log of {name!r}")


@_check("K-LOG-2")
async def stale_expectation_writes_nothing(stores: Stores, _: Stores) -> None:
    events, rival = chain("e", 4), chain("e", 12, note="rival")
    await _append(stores, events, due_ms=17)
    before = await stores.events.entry("e")
    for expected in (0, 1, 3, 5, 8):
        for size in (1, 3):
            async with _refused(ConcurrencyConflict, f"append of {size} at {expected}, the next position is 4"):
                await _append(stores, rival[expected : expected + size], status="failed", flow_id="other")
            _want(_stored(events), await _log(stores, "e"), f"the log after a refused append at {expected}")
            _want(before, await stores.events.entry("e"), f"the entry after a refused append at {expected}")


@_check("K-LOG-2")
async def first_append_must_expect_zero(stores: Stores, _: Stores) -> None:
    async with _refused(ConcurrencyConflict, "append at 1 to an unknown execution"):
        await _append(stores, chain("e", 2)[1:])
    _want(None, await stores.events.entry("e"), "the entry after a refused first append")
    _want([], await _log(stores, "e"), "the log after a refused first append")


@_check("K-LOG-2")
async def second_start_conflicts(stores: Stores, _: Stores) -> None:
    events = chain("e", 1)
    await _append(stores, events)
    async with _refused(ConcurrencyConflict, "the very same append again"):
        await _append(stores, events)
    _want(_stored(events), await _log(stores, "e"), "the log after a second start")


@_check("K-LOG-2")
async def stale_fence_writes_nothing(stores: Stores, _: Stores) -> None:
    events = chain("e", 3)
    await _append(stores, events[:2])
    newest = [await stores.events.claim("e", owner) for owner in ("a", "b")][-1]
    before = await stores.events.entry("e")
    for fence in range(newest):
        async with _refused(Fenced, f"append with fence {fence} after a claim of {newest}"):
            await _append(stores, events[2:], fence=fence, status="completed")
        _want(_stored(events[:2]), await _log(stores, "e"), "the log after a fenced append")
        _want(before, await stores.events.entry("e"), "the entry after a fenced append")


@_check("K-LOG-2")
async def stale_fence_is_told_before_the_position(stores: Stores, _: Stores) -> None:
    events = chain("e", 5)
    await _append(stores, events[:2])
    await stores.events.claim("e", "a")
    for expected in (0, 1, 4):
        async with _refused(Fenced, f"append with a stale fence at {expected}, the next position is 2"):
            await _append(stores, events[expected : expected + 1], fence=0)


@_check("K-LOG-2")
async def newest_fence_appends(stores: Stores, _: Stores) -> None:
    events = chain("e", 3)
    await _append(stores, events[:1])
    for i in (1, 2):
        fence = await stores.events.claim("e", f"owner {i}")
        await _append(stores, events[i : i + 1], fence=fence)
        _want(fence, (await _entry(stores, "e")).fence, "the fence after an append with it")
    _want(_stored(events), await _log(stores, "e"), "the log of two owners")


@_check("K-LOG-2")
async def claims_count_up(stores: Stores, _: Stores) -> None:
    await _append(stores, chain("e", 2), status="suspended", due_ms=5)
    before = await _entry(stores, "e")
    _want(0, before.fence, "fence of a new execution")
    for i in range(3):
        fence = await stores.events.claim("e", "the same owner")
        if fence <= before.fence:
            raise ConformanceFailure(f"claim {i} returned {fence}, wanted more than {before.fence}")
        after = await _entry(stores, "e")
        _want(attrs.evolve(before, fence=fence), after, "the entry after a claim")
        before = after


@_check("K-LOG-2")
async def claim_of_an_unknown_execution_is_refused(stores: Stores, _: Stores) -> None:
    async with _refused(UnknownExecution, "claim of an unknown execution"):
        await stores.events.claim("e", "a")
    _want(None, await stores.events.entry("e"), "the entry after a refused claim")


# ---- the catalogue ---------------------------------------------------------------------------------------------------


@_check("K-LOG-5")
async def append_updates_the_catalogue(stores: Stores, _: Stores) -> None:
    statuses: tuple[Status, ...] = get_args(Status)
    dues = (None, 0, 1, None, 1_700_000_000_000, 2**53 - 1)
    events = chain("e", len(statuses))
    for i, (status, due_ms) in enumerate(zip(statuses, dues, strict=True)):
        await _append(stores, events[i : i + 1], status=status, due_ms=due_ms, flow_id=f"flow {i}")
        wanted = CatalogueEntry(execution_id="e", flow_id=f"flow {i}", status=status, head=i, due_ms=due_ms, fence=0)
        _want(wanted, await stores.events.entry("e"), f"the entry after append {i}")
        _want([wanted], list(await stores.events.entries(status)), f"the entries that are {status}")


@_check("K-LOG-5")
async def entries_are_filtered_and_in_order_of_id(stores: Stores, _: Stores) -> None:
    # The last two are in the opposite order by UTF-16 code units; "a" and "B" by most languages' rules.
    names = ["B", "a", "a::b", "b", "\uff5e", "\U0001f600"]
    statuses: tuple[Status, ...] = ("running", "suspended", "completed", "running", "suspended", "completed")
    wanted = list(zip(names, statuses, strict=True))
    for name, status in reversed(wanted):
        await _append(stores, chain(name, 1), status=status)
    asked: tuple[tuple[Status, ...], ...] = ((), ("running",), ("suspended", "running"), ("failed",))
    for among in asked:
        seen = [(entry.execution_id, entry.status) for entry in await stores.events.entries(*among)]
        _want([pair for pair in wanted if not among or pair[1] in among], seen, f"entries{among}")


# ---- truncation ------------------------------------------------------------------------------------------------------


@_check("K-LOG-1")
async def truncation_cuts_at_every_position(stores: Stores, _: Stores) -> None:
    for through in range(5):
        name = f"cut through {through}"
        events = chain(name, 5)
        await _append(stores, events, due_ms=3)
        before = await stores.events.entry(name)
        for again in (through, through, through - 1, 0):  # what is already gone is no error
            await stores.events.truncate_prefix(name, again)
        for k in range(through + 1):
            async with _refused(LogTruncated, f"read from {k} of events {through + 1} to 4"):
                await stores.events.read_from(name, k)
        for k in range(through + 1, 7):
            _want(_stored(events[k:]), await _log(stores, name, k), f"events from {k} of {name!r}")
        _want(before, await stores.events.entry(name), f"the entry after {name!r}")


@_check("K-LOG-1")
async def truncation_past_the_end_keeps_the_position(stores: Stores, _: Stores) -> None:
    events = chain("e", 5)
    await _append(stores, events[:3])
    await stores.events.truncate_prefix("e", 99)
    async with _refused(LogTruncated, "read from 2 of a log that was dropped through 99, its head is 2"):
        await stores.events.read_from("e", 2)
    await _append(stores, events[3:])
    _want(_stored(events[3:]), await _log(stores, "e", 3), "events after a truncation past the end")


@_check("K-LOG-1")
async def append_goes_on_after_truncation(stores: Stores, _: Stores) -> None:
    for through in (0, 1, 2):
        name = f"cut through {through}"
        events = chain(name, 6)
        await _append(stores, events[:3])
        await stores.events.truncate_prefix(name, through)
        for expected in (0, through, 2, 4):
            async with _refused(ConcurrencyConflict, f"append at {expected} to {name!r}, the next position is 3"):
                await _append(stores, events[expected : expected + 1])
        await _append(stores, events[3:4])
        await _append(stores, events[4:])
        _want(_stored(events[through + 1 :]), await _log(stores, name, through + 1), f"events of {name!r}")
        async with _refused(LogTruncated, f"read from 0 of {name!r}"):
            await stores.events.read_from(name, 0)


# ---- snapshots -------------------------------------------------------------------------------------------------------


@_check("K-RUN-6")
async def newest_snapshot_wins(stores: Stores, _: Stores) -> None:
    await _append(stores, chain("e", 9))
    _want(None, await stores.snapshots.load("e"), "snapshot before the first")
    for position, newest in ((3, 3), (7, 7), (5, 7), (0, 7), (8, 8)):
        await stores.snapshots.save("e", _snapshot(position))
        _want(newest, (await _load(stores, "e")).sequence, f"position of the snapshot after saving one at {position}")
        _want({"at": newest}, decode((await _load(stores, "e")).text), f"snapshot after saving one at {position}")


@_check("K-RUN-6")
async def snapshot_at_the_same_position_replaces(stores: Stores, _: Stores) -> None:
    # How one that turned out unreadable is repaired from the log.
    await _append(stores, chain("e", 4))
    await stores.snapshots.save("e", StoredSnapshot(sequence=3, text='{"unreadable":true}'))
    await stores.snapshots.save("e", _snapshot(3))
    _want({"at": 3}, decode((await _load(stores, "e")).text), "snapshot saved again at its position")


@_check("K-RUN-6")
async def snapshot_round_trips_any_json(stores: Stores, _: Stores) -> None:
    await _append(stores, chain("e", 1))
    deep = "[" * 200 + "]" * 200
    for i, text in enumerate((ODD_JSON, deep, "null", '"a text"', "0", "[]", "{}", '{"":{"":""}}')):
        await stores.snapshots.save("e", StoredSnapshot(sequence=i, text=text))
        _want_json(text, (await _load(stores, "e")).text, f"snapshot {i}")


@_check("K-RUN-6")
async def snapshot_and_log_are_independent(stores: Stores, _: Stores) -> None:
    events = chain("e", 3)
    await _append(stores, events)
    await _append(stores, chain("other", 1))
    before = await stores.events.entry("e")
    await stores.snapshots.save("e", _snapshot(2))
    _want(_stored(events), await _log(stores, "e"), "the log after a snapshot")
    _want(before, await stores.events.entry("e"), "the entry after a snapshot")
    _want(None, await stores.snapshots.load("other"), "snapshot of another execution")
    await stores.events.truncate_prefix("e", 2)
    _want(2, (await _load(stores, "e")).sequence, "position of the snapshot after a truncation")


# ---- the mailbox -----------------------------------------------------------------------------------------------------


@_check("K-RUN-2")
async def deliveries_wait_in_order_of_arrival(stores: Stores, _: Stores) -> None:
    # The execution need not exist yet: an early delivery waits.
    sent = [_delivery(name) for name in ("z", "a", "m", "é", "A")]
    for delivery in sent:
        _want(True, await stores.mailbox.put("e", delivery), f"put of {delivery.delivery_id!r}")
    _want(sent, list(await stores.mailbox.pending("e")), "pending deliveries")
    await stores.mailbox.remove("e", ["a", "A", "unknown"])
    _want([sent[0], sent[2], sent[3]], list(await stores.mailbox.pending("e")), "pending after removing two")
    _want(True, await stores.mailbox.put("e", sent[1]), "put of a delivery that was removed")
    _want(
        [sent[0], sent[2], sent[3], sent[1]], list(await stores.mailbox.pending("e")), "pending after putting it again"
    )


@_check("K-RUN-2")
async def duplicate_delivery_changes_nothing(stores: Stores, _: Stores) -> None:
    first, other = _delivery("d"), _delivery("d", on="other", correlation_key=None, payload_text="[2]")
    await stores.mailbox.put("e", first)
    await stores.mailbox.put("e", _delivery("later"))
    for again in (first, other):
        _want(False, await stores.mailbox.put("e", again), "put of a delivery id that is pending")
        _want([first, _delivery("later")], list(await stores.mailbox.pending("e")), "pending after a duplicate")
    _want(True, await stores.mailbox.put("f", other), "put of the same delivery id for another execution")
    _want([other], list(await stores.mailbox.pending("f")), "pending of the other execution")


@_check("K-RUN-2")
async def deliveries_come_back_exactly(stores: Stores, _: Stores) -> None:
    sent = [
        _delivery(f"d{i}", on=on, correlation_key=key, payload_text=text)
        for i, (on, key, text) in enumerate(((" on", None, "null"), ("", "", ODD_JSON), ("ON", "é😀'\"", '"x"')))
    ]
    for delivery in sent:
        await stores.mailbox.put("e", delivery)
    _want(sent, list(await stores.mailbox.pending("e")), "pending deliveries")


@_check("K-RUN-2")
async def executions_with_mail_are_listed(stores: Stores, _: Stores) -> None:
    await _append(stores, chain("without mail", 1))
    for name in ("b", "\U0001f600", "\uff5e", "a", "B"):
        for delivery_id in ("d1", "d2"):
            await stores.mailbox.put(name, _delivery(delivery_id))
    _want(["B", "a", "b", "\uff5e", "\U0001f600"], list(await stores.mailbox.executions()), "executions with mail")
    await stores.mailbox.remove("a", ["d1"])
    await stores.mailbox.remove("b", ["d1", "d2"])
    await stores.mailbox.remove("B", [])
    _want(["B", "a", "\uff5e", "\U0001f600"], list(await stores.mailbox.executions()), "executions with mail left")
    _want([], list(await stores.mailbox.pending("b")), "pending of an emptied mailbox")


# ---- names and sizes -------------------------------------------------------------------------------------------------


@_check("K-LOG-1")
async def odd_ids_are_kept_apart(stores: Stores, _: Stores) -> None:
    for i, name in enumerate(ODD_IDS):
        await _append(stores, chain(name, 1, note=f"note {i}"), flow_id=name)
        await stores.snapshots.save(name, _snapshot(i))
        await stores.mailbox.put("all", _delivery(name, payload_text=str(i)))
        await stores.mailbox.put(name, _delivery(name, payload_text=str(i)))
        await stores.events.claim(name, name)
    _want(sorted(ODD_IDS), [entry.execution_id for entry in await stores.events.entries()], "ids in the catalogue")
    _want(list(ODD_IDS), [d.delivery_id for d in await stores.mailbox.pending("all")], "delivery ids")
    for i, name in enumerate(ODD_IDS):
        _want(_stored(chain(name, 1, note=f"note {i}")), await _log(stores, name), f"log of {name!r:.80}")
        _want(name, (await _entry(stores, name)).flow_id, "flow id")
        _want(i, (await _load(stores, name)).sequence, f"snapshot of {name!r:.80}")
        _want([str(i)], [d.payload_text for d in await stores.mailbox.pending(name)], f"mail of {name!r:.80}")


@_check("K-LOG-6")
async def payloads_of_5_mb_are_kept(stores: Stores, _: Stores) -> None:
    text = large_json()
    big = _event("e", 0, GENESIS_HASH, text)
    events = [big, _event("e", 1, big.hash, text)]
    await _append(stores, events)
    await stores.snapshots.save("e", StoredSnapshot(sequence=0, text=text))
    await stores.mailbox.put("e", _delivery("d", payload_text=text))
    _want(_stored(events), await _log(stores, "e"), "a log with two payloads of 5 MB")
    _want_json(text, (await _load(stores, "e")).text, "a snapshot of 5 MB")
    _want([text], [d.payload_text for d in await stores.mailbox.pending("e")], "a delivery of 5 MB")


@_check("K-LOG-4")
async def falsy_values_are_kept(stores: Stores, _: Stores) -> None:
    # None of them is nothing, and no two are the same.
    for i, text in enumerate(FALSY_JSON):
        event = _event(text, 0, GENESIS_HASH, text)
        await _append(stores, [event], flow_id="", due_ms=0)
        await stores.snapshots.save(text, StoredSnapshot(sequence=0, text=text))
        sent = [_delivery("", on="", correlation_key="", payload_text=text), _delivery(f"d{i}", correlation_key=None)]
        for delivery in sent:
            await stores.mailbox.put(text, delivery)
        wanted = CatalogueEntry(execution_id=text, flow_id="", status="running", head=0, due_ms=0, fence=0)
        _want(wanted, await stores.events.entry(text), f"the entry of an execution with {text}")
        _want(_stored([event]), await _log(stores, text), f"a log with {text}")
        _want(text, encode(decode((await _load(stores, text)).text)), "a snapshot")
        _want(sent, list(await stores.mailbox.pending(text)), f"deliveries, one with {text}")


# ---- concurrency -----------------------------------------------------------------------------------------------------


@_check("K-LOG-2")
async def one_of_concurrent_appenders_wins_each_position(stores: Stores, _: Stores) -> None:
    await _race([stores] * 6)


@_check("K-LOG-2")
async def concurrent_claims_differ(stores: Stores, _: Stores) -> None:
    await _append(stores, chain("e", 1))
    fences: list[int] = []

    async def claim(owner: str) -> None:
        fences.append(await stores.events.claim("e", owner))

    async with trio.open_nursery() as nursery:
        for i in range(6):
            nursery.start_soon(claim, f"owner {i}")
    _want(6, len(set(fences)), "different fences of 6 claims at once")
    _want(max(fences), (await _entry(stores, "e")).fence, "the fence after 6 claims at once")


@_check("K-RUN-2")
async def one_of_concurrent_duplicates_is_accepted(stores: Stores, _: Stores) -> None:
    accepted: list[bool] = []

    async def put(i: int) -> None:
        accepted.append(await stores.mailbox.put("e", _delivery("d", payload_text=str(i))))

    async with trio.open_nursery() as nursery:
        for i in range(6):
            nursery.start_soon(put, i)
    _want(1, accepted.count(True), "accepted puts of one delivery id at once")
    _want(1, len(await stores.mailbox.pending("e")), "pending deliveries")


@_check("K-LOG-2")
async def cancelled_append_is_whole_or_absent(stores: Stores, _: Stores) -> None:
    for checkpoints in range(6):
        name = f"cancelled after {checkpoints}"
        events = chain(name, 3)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if checkpoints == 0:
                    scope.cancel()
                nursery.start_soon(_cancel_after, scope, checkpoints)
                await _append(stores, events)
        entry = await stores.events.entry(name)
        _want([] if entry is None else _stored(events), await _log(stores, name), f"log, {name}; entry {entry}")
        if entry is not None:
            _want(2, entry.head, f"head, {name}")
        if entry is None:
            await _append(stores, events)


@_check("K-LOG-5", handles=2)
async def two_handles_see_each_others_writes(stores: Stores, second: Stores) -> None:
    events = chain("e", 6)
    for i, (writer, reader) in enumerate(((stores, second), (second, stores)) * 2):
        await _append(writer, events[i : i + 1], due_ms=i)
        _want(_stored(events[: i + 1]), await _log(reader, "e"), f"the log on the other handle after append {i}")
        _want(i, (await _entry(reader, "e")).due_ms, f"due time on the other handle after append {i}")
        async with _refused(ConcurrencyConflict, f"the same position {i} on the other handle"):
            await _append(reader, events[i : i + 1])
    fence = await second.events.claim("e", "second")
    async with _refused(Fenced, "append after a claim on the other handle"):
        await _append(stores, events[4:5], fence=fence - 1)
    await second.snapshots.save("e", _snapshot(3))
    _want(3, (await _load(stores, "e")).sequence, "snapshot saved on the other handle")
    await second.events.truncate_prefix("e", 2)
    async with _refused(LogTruncated, "read after a truncation on the other handle"):
        await stores.events.read_from("e", 0)
    _want(True, await second.mailbox.put("e", _delivery("d")), "put")
    _want(False, await stores.mailbox.put("e", _delivery("d")), "put of the same delivery on the other handle")
    _want([_delivery("d")], list(await stores.mailbox.pending("e")), "mail put on the other handle")


@_check("K-LOG-2", handles=2)
async def one_of_two_handles_wins_each_position(stores: Stores, second: Stores) -> None:
    await _race([stores, second] * 3)


CHECKS: tuple[Check, ...] = tuple(_checks)
"""All checks, in the order they are read."""

ODD_JSON = (
    r'{"z":1,"a":[0.1,1e21,-5e-324,9007199254740991,true,null],"\u0000":"\u0000\ud800\\","B":"\"é😀\u2028","":{}}'
)
"""JSON with its keys in no order and with what databases stumble over: NUL, a lone surrogate, extreme numbers."""

FALSY_JSON = ("0", '""', "false", "null", "[]", "{}")
"""JSON of what Python takes for false."""


@functools.cache
def large_json() -> str:
    """Return 5 MB of JSON: some that no store can compress, some that hardly fits its encoding, many numbers."""
    noise = hashlib.shake_256(b"noise").hexdigest(2_250_000)
    return encode({"noise": noise, "odd": "é😀\0\x1b" * 30_000, "numbers": [0.5] * 3_000})


ODD_IDS = (
    "",
    " ",
    "x",
    "X",
    "x ",
    "é",
    "e\u0301",  # the same letter in two code points
    "😀",
    "order/7",
    "../up",
    "it's",
    'say "hi"',
    "back\\slash",
    "50%",
    "under_score",
    "parent::child",
    "parent::child::grandchild",
    "charge#compensate:0",
    "line\nbreak\ttab",
    "\x01\x7f\u202e",
    "NULL",
    "0",
    "007",
    "; DROP TABLE events; --",
    "".join(hash_of(str(i)) for i in range(16))[:ID_BYTES_MAX],  # as long as may be, and no index can compress it
)


# ---- notifications ---------------------------------------------------------------------------------------------------
#
# A port of its own: a store need not notify to carry the kernel.  What appends and what is subscribed to may be two
# handles on one store; give a handle of another process as `Stores` to check that wake-ups cross over.

MakeNotifying = Callable[[], AbstractAsyncContextManager[tuple[Stores, Notifications]]]
NotificationBody = Callable[[Stores, Notifications], Awaitable[None]]


@attrs.frozen(kw_only=True, slots=True)
class NotificationCheck:
    """One thing that `Notifications` must do."""

    name: str
    rule: str
    body: NotificationBody

    async def run(self, make: MakeNotifying) -> None:
        """Run on a fresh store.  Raises `ConformanceFailure`, for what the store raises unasked too."""
        try:
            with trio.fail_after(SECONDS_MAX):
                async with make() as (stores, notifications):
                    await self.body(stores, notifications)
        except Exception as error:
            raise ConformanceFailure(f"{self.name} ({self.rule}): {_verdict(error)}") from error


_notification_checks: list[NotificationCheck] = []


def _notification_check(rule: str) -> Callable[[NotificationBody], NotificationBody]:
    def register(body: NotificationBody) -> NotificationBody:
        _notification_checks.append(NotificationCheck(name=body.__name__, rule=rule, body=body))
        return body

    return register


@_notification_check("K-LOG-5")
async def append_wakes_every_subscriber(stores: Stores, notifications: Notifications) -> None:
    await _append(stores, chain("e", 1))
    async with notifications.subscribe("e") as one, notifications.subscribe("e") as other, trio.open_nursery() as both:
        both.start_soon(_wait_until_at, stores, one, 1)
        both.start_soon(_wait_until_at, stores, other, 1)
        await _append(stores, chain("e", 2)[1:])


@_notification_check("K-LOG-5")
async def wake_up_waits_for_its_subscriber(stores: Stores, notifications: Notifications) -> None:
    events = chain("e", 4)
    await _append(stores, events[:1])
    async with notifications.subscribe("e") as wakeups:
        for event in events[1:]:
            await _append(stores, [event])
            await wakeups.wait()


@_notification_check("K-LOG-5")
async def newest_of_a_burst_wakes(stores: Stores, notifications: Notifications) -> None:
    events = chain("e", 30)
    await _append(stores, events[:1])
    async with notifications.subscribe("e") as wakeups, trio.open_nursery() as nursery:
        nursery.start_soon(_wait_until_at, stores, wakeups, 29)
        for event in events[1:]:
            await _append(stores, [event])
            await trio.lowlevel.checkpoint()


@_notification_check("K-LOG-5")
async def execution_to_come_may_be_followed(stores: Stores, notifications: Notifications) -> None:
    async with notifications.subscribe("e") as wakeups:
        await _append(stores, chain("other", 3))
        await _append(stores, chain("e", 1))
        await _wait_until_at(stores, wakeups, 0)


@_notification_check("K-LOG-5")
async def subscriber_who_leaves_disturbs_nobody(stores: Stores, notifications: Notifications) -> None:
    events = chain("e", 3)
    await _append(stores, events[:1])
    async with notifications.subscribe("e") as stays:
        async with notifications.subscribe("e"):
            await _append(stores, events[1:2])
            await _wait_until_at(stores, stays, 1)
        await _append(stores, events[2:])
        await _wait_until_at(stores, stays, 2)
    async with notifications.subscribe("e") as again:
        await _append(stores, chain("e", 4)[3:])
        await _wait_until_at(stores, again, 3)


@_notification_check("K-LIVE-1")
async def cancelled_wait_loses_nothing(stores: Stores, notifications: Notifications) -> None:
    events = chain("e", 12)
    await _append(stores, events[:1])
    async with notifications.subscribe("e") as wakeups:
        for sequence, event in enumerate(events[1:], start=1):
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    nursery.start_soon(_cancel_after, scope, sequence)
                    await wakeups.wait()
            await _append(stores, [event])
            await _wait_until_at(stores, wakeups, sequence)


NOTIFICATION_CHECKS: tuple[NotificationCheck, ...] = tuple(_notification_checks)
"""Every check of the port `Notifications`, by itself; `check_notifications` runs them all."""


async def check_notifications(make: MakeNotifying) -> tuple[str, ...]:
    """Run every check of the port `Notifications` and return their names.  Raises as `check_all`."""
    return await run_each(NOTIFICATION_CHECKS, make)


async def _wait_until_at(stores: Stores, wakeups: Wakeups, head: int) -> None:
    """Wait, as often as it takes, to be woken when the log's head is at `head`.  One that is not woken hangs."""
    while True:
        await wakeups.wait()
        entry = await stores.events.entry("e")
        if entry is not None and entry.head >= head:
            return


# ---- parts of checks -------------------------------------------------------------------------------------------------


def chain(execution_id: str, count: int, *, note: str = "") -> list[Envelope]:
    """Return a log of `count` events."""
    events: list[Envelope] = []
    for sequence in range(count):
        previous = events[-1].hash if events else GENESIS_HASH
        events.append(_event(execution_id, sequence, previous, encode({"i": sequence, "note": note})))
    return events


def _event(execution_id: str, sequence: int, previous: str, payload_text: str) -> Envelope:
    return seal(
        execution_id=execution_id,
        sequence=sequence,
        type="CHECKED",
        payload_text=payload_text,
        timestamp_ms=1_700_000_000_000 + sequence,
        append_id=f"conformance/{sequence}",
        previous_hash=previous,
    )


def _stored(events: Sequence[Envelope]) -> list[StoredEvent]:
    return [StoredEvent(event.sequence, event.text, event.hash) for event in events]


async def _append(
    stores: Stores,
    batch: Sequence[Envelope],
    *,
    fence: int = 0,
    flow_id: str = "flow",
    status: Status = "running",
    due_ms: int | None = None,
) -> None:
    """Append `batch` at the position its first event has."""
    first = batch[0]
    await stores.events.append(
        first.execution_id, first.sequence, batch, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms
    )


async def _log(stores: Stores, execution_id: str, sequence: int = 0) -> list[StoredEvent]:
    return list(await stores.events.read_from(execution_id, sequence))


async def _entry(stores: Stores, execution_id: str) -> CatalogueEntry:
    entry = await stores.events.entry(execution_id)
    if entry is None:
        raise ConformanceFailure(f"no catalogue entry for {execution_id!r}, wanted one")
    return entry


async def _load(stores: Stores, execution_id: str) -> StoredSnapshot:
    snapshot = await stores.snapshots.load(execution_id)
    if snapshot is None:
        raise ConformanceFailure(f"no snapshot of {execution_id!r}, wanted one")
    return snapshot


def _snapshot(sequence: int) -> StoredSnapshot:
    return StoredSnapshot(sequence=sequence, text=encode({"at": sequence}))


def _delivery(
    delivery_id: str, *, on: str = "PAID", correlation_key: str | None = "key", payload_text: str = '{"a":1}'
) -> Delivery:
    return Delivery(delivery_id=delivery_id, on=on, correlation_key=correlation_key, payload_text=payload_text)


async def _race(handles: Sequence[Stores]) -> None:
    """Let one appender on each handle fill a log; exactly one must win each position, and the log be the winners'."""
    length = 12
    await _append(handles[0], chain("e", 1))
    won: dict[int, list[Envelope]] = {}

    async def fill(stores: Stores, name: str) -> None:
        for _ in range(length):  # enough: whoever is told of a conflict has seen another win a position
            tail = (await _log(stores, "e"))[-1]
            if tail.sequence == length:
                return
            event = _event("e", tail.sequence + 1, tail.hash, encode(name))
            await trio.lowlevel.checkpoint()  # a store that never awaits must be raced as well
            with contextlib.suppress(ConcurrencyConflict):
                await _append(stores, [event])
                won.setdefault(event.sequence, []).append(event)

    async with trio.open_nursery() as nursery:
        for i, stores in enumerate(handles):
            nursery.start_soon(fill, stores, f"appender {i}")
    for position in range(1, length + 1):
        _want(1, len(won.get(position, [])), f"winners of position {position}")
    winners = [won[position][0] for position in range(1, length + 1)]
    for stores in handles:
        _want(_stored(winners), await _log(stores, "e", 1), "the log after the race")


async def _cancel_after(scope: trio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()


# ---- verdicts --------------------------------------------------------------------------------------------------------


def _want(wanted: object, seen: object, what: str) -> None:
    """Fail unless what was seen is what was wanted."""
    if seen == wanted:
        return
    if isinstance(seen, list) and isinstance(wanted, list) and len(seen) == len(wanted):
        where = next(i for i, pair in enumerate(zip(seen, wanted, strict=True)) if pair[0] != pair[1])
        what, seen, wanted = f"{what}, item {where} of {len(wanted)}", seen[where], wanted[where]
    raise ConformanceFailure(f"{what}: saw {_short(seen)}, wanted {_short(wanted)}")


def _want_json(wanted: str, seen: str, what: str) -> None:
    """Fail unless both texts are the same JSON; the keys of an object may be in another order (K-RUN-6)."""
    try:
        same = encode(decode(seen)) == encode(decode(wanted))
    except MalformedJson:
        same = False
    if not same:
        raise ConformanceFailure(f"{what}: saw {_short(seen)}, wanted the same JSON as {_short(wanted)}")


@contextlib.asynccontextmanager
async def _refused(error: type[Exception], what: str) -> AsyncIterator[None]:
    """Fail unless the block raises `error`."""
    try:
        yield
    except error:
        return
    except Exception as other:
        raise ConformanceFailure(f"{what}: raised {_told(other)}, wanted {error.__name__}") from other
    raise ConformanceFailure(f"{what}: raised nothing, wanted {error.__name__}")


def _verdict(error: Exception) -> str:
    """Return in one line what ended a check, out of the groups that nurseries wrap it in."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConformanceFailure):
        return str(error)
    if isinstance(error, trio.TooSlowError):
        return f"saw no answer within {SECONDS_MAX} s, wanted one"
    return f"raised {_told(error)}, wanted no error"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _short(value: object) -> str:
    """Return a value's repr, cut where it would hide the rest of the message."""
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:450]} … {text[-100:]} ({len(text)} characters)"
