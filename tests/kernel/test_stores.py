"""The stores that ship with the kernel pass the conformance kit, and every check of the kit can fail (K-LOG-5)."""

# The broken stores below override one method each, with the port's signature:
# mypy: allow-untyped-defs

import contextlib
import functools
import json
import tempfile
import unicodedata
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from kernel import conformance
from kernel.adapters.memory import MemoryStore
from kernel.adapters.sqlite import SqliteStore, open_sqlite
from kernel.conformance import CHECKS, Check, ConformanceFailure, MakeStore, check_all
from kernel.conformance_flows import FLOW_CHECKS
from kernel.errors import ConcurrencyConflict, Fenced, LogTruncated, UnknownExecution
from kernel.events import StoredEvent
from kernel.jsonform import decode, encode
from kernel.ports import Stores


@contextlib.asynccontextmanager
async def memory() -> AsyncIterator[Stores]:
    yield MemoryStore().stores


@contextlib.asynccontextmanager
async def sqlite(*, inline: bool = False) -> AsyncIterator[Stores]:
    with tempfile.TemporaryDirectory() as directory:
        async with open_sqlite(Path(directory) / "store.db", inline=inline) as store:
            yield store.stores


@contextlib.asynccontextmanager
async def second_handle(stores: Stores) -> AsyncIterator[Stores]:
    store = stores.events
    if isinstance(store, SqliteStore):
        async with open_sqlite(store.path) as second:
            yield second.stores
    else:
        yield stores  # what is in memory has one handle, which all share


MAKERS: dict[str, MakeStore] = {
    "memory": memory,
    "sqlite": sqlite,
    "sqlite-inline": functools.partial(sqlite, inline=True),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("store", MAKERS)
def test_store_conforms(store: str, check: Check) -> None:
    trio.run(check.run, MAKERS[store], second_handle)


@pytest.mark.parametrize("check", FLOW_CHECKS, ids=lambda check: check.name)
def test_flows_run_on_each_store(open_store: Any, check: Check) -> None:
    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Stores]:
        async with open_store() as store:
            yield store.stores

    trio.run(check.run, make)


class NothingForNone(MemoryStore):
    """A snapshot loses what is false."""

    async def save(self, execution_id, snapshot):
        state = decode(snapshot.text)
        steps = state["state"]["steps"]
        steps = {
            name: {key: kept for key, kept in step.items() if kept or key != "output"} for name, step in steps.items()
        }
        state["state"]["steps"] = steps
        await super().save(execution_id, attrs.evolve(snapshot, text=encode(state)))


class RenumbersDecisions(MemoryStore):
    """A snapshot has its decisions in the order of their keys, and says so."""

    async def save(self, execution_id, snapshot):
        state = decode(snapshot.text)
        for seq, entry in enumerate(state["state"]["variables"]["_decisions"].values(), start=1):
            entry["seq"] = seq
        await super().save(execution_id, attrs.evolve(snapshot, text=encode(state)))


@pytest.mark.parametrize(("nth", "broken"), [(0, NothingForNone), (1, RenumbersDecisions)])
def test_flows_on_a_broken_store_fail_the_check(nth: int, broken: type[MemoryStore]) -> None:
    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Stores]:
        yield broken().stores

    with pytest.raises(ConformanceFailure, match=FLOW_CHECKS[nth].name):
        trio.run(FLOW_CHECKS[nth].run, make)


# ---- stores that are broken in one way each --------------------------------------------------------------------------
#
# Each is a mistake that somebody could make, and stands above the checks that must see it.

BREAKAGES: dict[str, type[MemoryStore]] = {}


def seen_by(*checks: str) -> Callable[[type[MemoryStore]], type[MemoryStore]]:
    """Say which checks a broken store must fail."""

    def register(store: type[MemoryStore]) -> type[MemoryStore]:
        for check in checks:
            assert check not in BREAKAGES, f"{check} has a broken store already"
            BREAKAGES[check] = store
        return store

    return register


@seen_by("unknown_execution_has_nothing")
class UnknownIsAnError(MemoryStore):
    async def read_from(self, execution_id, sequence):
        if await self.entry(execution_id) is None:
            raise UnknownExecution(execution_id)
        return await super().read_from(execution_id, sequence)


@seen_by("single_appends_read_back_in_order", "batch_lands_whole")
class NewestFirst(MemoryStore):
    async def read_from(self, execution_id, sequence):
        return [*reversed(await super().read_from(execution_id, sequence))]


@seen_by("text_and_hash_come_back_exactly")
class KeepsJsonNotText(MemoryStore):
    async def read_from(self, execution_id, sequence):
        events = await super().read_from(execution_id, sequence)
        return [attrs.evolve(event, text=json.dumps(json.loads(event.text))) for event in events]


@seen_by("read_from_every_position_gives_the_rest")
class ReadsAfterThePosition(MemoryStore):
    async def read_from(self, execution_id, sequence):
        return (await super().read_from(execution_id, sequence))[1 if sequence else 0 :]


@seen_by("what_was_read_stays_as_it_was")
class GivesItsOwnListAway(MemoryStore):
    async def read_from(self, execution_id, sequence):
        await super().read_from(execution_id, sequence)
        return self._executions[execution_id].events


@seen_by("logs_do_not_mix")
class CutsByPrefixOfTheId(MemoryStore):
    async def truncate_prefix(self, execution_id, through):
        for other in self._executions:
            if other.startswith(execution_id):
                await super().truncate_prefix(other, through)


@seen_by("stale_expectation_writes_nothing")
class CatalogueBeforeTheCheck(MemoryStore):
    async def append(self, execution_id, expected, batch, *, fence, flow_id, status, due_ms):
        if execution_id in self._executions:
            self._executions[execution_id].status = status
        await super().append(execution_id, expected, batch, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms)


@seen_by("second_start_conflicts")
class SecondStartIsIgnored(MemoryStore):
    async def append(self, execution_id, expected, batch, **catalogue):
        with contextlib.suppress(ConcurrencyConflict):
            await super().append(execution_id, expected, batch, **catalogue)


@seen_by("first_append_must_expect_zero")
class RowBeforeTheCheck(MemoryStore):
    async def append(self, execution_id, expected, batch, *, flow_id, status, due_ms, **fence):
        if execution_id not in self._executions:
            first = attrs.evolve(batch[0], sequence=0)
            catalogue = {"flow_id": flow_id, "status": status, "due_ms": due_ms}
            await super().append(execution_id, 0, [first], **catalogue, **fence)
            self._executions[execution_id].events.clear()
        await super().append(execution_id, expected, batch, flow_id=flow_id, status=status, due_ms=due_ms, **fence)


@seen_by("stale_fence_writes_nothing")
class NoFences(MemoryStore):
    async def append(self, execution_id, expected, batch, *, fence, **catalogue):
        await super().append(execution_id, expected, batch, fence=2**31, **catalogue)


@seen_by("stale_fence_is_told_before_the_position")
class PositionBeforeFence(MemoryStore):
    async def append(self, execution_id, expected, batch, **catalogue):
        execution = self._executions.get(execution_id)
        if execution is not None and execution.next != expected:
            raise ConcurrencyConflict(execution_id)
        await super().append(execution_id, expected, batch, **catalogue)


@seen_by("newest_fence_appends")
class OnlyTheFirstOwner(MemoryStore):
    async def append(self, execution_id, expected, batch, *, fence, **catalogue):
        if fence > 1:
            raise Fenced(execution_id)
        await super().append(execution_id, expected, batch, fence=fence, **catalogue)


@seen_by("claims_count_up")
class SameOwnerSameFence(MemoryStore):
    async def claim(self, execution_id, owner):
        execution = self._executions.get(execution_id)
        if execution is not None and execution.owner == owner:
            return execution.fence
        return await super().claim(execution_id, owner)


@seen_by("claim_of_an_unknown_execution_is_refused")
class ClaimOfAnything(MemoryStore):
    async def claim(self, execution_id, owner):
        return 1 if execution_id not in self._executions else await super().claim(execution_id, owner)


@seen_by("append_updates_the_catalogue")
class DueTimeStays(MemoryStore):
    async def append(self, execution_id, expected, batch, *, due_ms, **catalogue):
        if due_ms is None and execution_id in self._executions:
            due_ms = self._executions[execution_id].due_ms
        await super().append(execution_id, expected, batch, due_ms=due_ms, **catalogue)


@seen_by("entries_are_filtered_and_in_order_of_id")
class OrderByUtf16(MemoryStore):
    async def entries(self, *statuses):
        return sorted(await super().entries(*statuses), key=lambda entry: entry.execution_id.encode("utf-16-be"))


@seen_by("truncation_cuts_at_every_position")
class SilentGap(MemoryStore):
    async def read_from(self, execution_id, sequence):
        with contextlib.suppress(LogTruncated):
            return await super().read_from(execution_id, sequence)
        return self._executions[execution_id].events[:]


@seen_by("truncation_past_the_end_keeps_the_position")
class CutsPastTheEnd(MemoryStore):
    async def truncate_prefix(self, execution_id, through):
        await super().truncate_prefix(execution_id, through)
        self._executions[execution_id].first = through + 1


@seen_by("append_goes_on_after_truncation")
class ForgetsThePosition(MemoryStore):
    async def truncate_prefix(self, execution_id, through):
        await super().truncate_prefix(execution_id, through)
        if not self._executions[execution_id].events:
            self._executions[execution_id].first = 0


@seen_by("newest_snapshot_wins")
class LastSnapshotWins(MemoryStore):
    async def save(self, execution_id, snapshot):
        self._snapshots[execution_id] = snapshot


@seen_by("snapshot_at_the_same_position_replaces")
class FirstSnapshotOfAPositionWins(MemoryStore):
    async def save(self, execution_id, snapshot):
        stored = await self.load(execution_id)
        if stored is None or stored.sequence < snapshot.sequence:
            await super().save(execution_id, snapshot)


@seen_by("snapshot_round_trips_any_json")
class DropsNul(MemoryStore):
    async def save(self, execution_id, snapshot):
        await super().save(execution_id, attrs.evolve(snapshot, text=snapshot.text.replace("\\u0000", "")))


@seen_by("snapshot_and_log_are_independent")
class TruncationDropsTheSnapshot(MemoryStore):
    async def truncate_prefix(self, execution_id, through):
        await super().truncate_prefix(execution_id, through)
        self._snapshots.pop(execution_id, None)


@seen_by("deliveries_wait_in_order_of_arrival")
class MailInOrderOfId(MemoryStore):
    async def pending(self, execution_id):
        return sorted(await super().pending(execution_id), key=lambda delivery: delivery.delivery_id)


@seen_by("duplicate_delivery_changes_nothing")
class DuplicateReplaces(MemoryStore):
    async def put(self, execution_id, delivery):
        new = await super().put(execution_id, delivery)
        self._mail[execution_id][delivery.delivery_id] = delivery
        return new


@seen_by("log_can_be_read_one_event_at_a_time")
class ReadsFromTheMiddleOfNothing(MemoryStore):
    """Begins every read at an even position, as one with pages of two might."""

    async def read_from(self, execution_id, sequence):
        return await super().read_from(execution_id, max(sequence - sequence % 2, self._first(execution_id)))

    def _first(self, execution_id):
        return self._executions[execution_id].first if execution_id in self._executions else 0


@seen_by("falsy_values_are_kept")
class NoDueTimeAtZero(MemoryStore):
    async def append(self, execution_id, expected, batch, *, due_ms, **catalogue):
        await super().append(execution_id, expected, batch, due_ms=due_ms or None, **catalogue)


@seen_by("deliveries_come_back_exactly")
class NoKeyIsAnEmptyKey(MemoryStore):
    async def put(self, execution_id, delivery):
        return await super().put(execution_id, attrs.evolve(delivery, correlation_key=delivery.correlation_key or ""))


@seen_by("executions_with_mail_are_listed")
class EmptyMailboxesAreListed(MemoryStore):
    async def remove(self, execution_id, delivery_ids):
        await super().remove(execution_id, delivery_ids)
        self._mail.setdefault(execution_id, {})


@seen_by("odd_ids_are_kept_apart")
class NormalisesIds(MemoryStore):
    async def put(self, execution_id, delivery):
        return await super().put(unicodedata.normalize("NFC", execution_id), delivery)


@seen_by("payloads_of_5_mb_are_kept")
class CutsLongTexts(MemoryStore):
    async def read_from(self, execution_id, sequence):
        events = await super().read_from(execution_id, sequence)
        return [StoredEvent(event.sequence, event.text[:65_535], event.hash) for event in events]


@seen_by("one_of_concurrent_appenders_wins_each_position", "one_of_two_handles_wins_each_position")
class ChecksThenWrites(MemoryStore):
    async def append(self, execution_id, expected, batch, **catalogue):
        execution = self._executions.get(execution_id)
        if execution is None:
            return await super().append(execution_id, expected, batch, **catalogue)
        if execution.next != expected:
            raise ConcurrencyConflict(execution_id)
        await trio.lowlevel.checkpoint()
        execution.events += [StoredEvent(event.sequence, event.text, event.hash) for event in batch]
        return None


@seen_by("concurrent_claims_differ")
class ReadsThenClaims(MemoryStore):
    async def claim(self, execution_id, owner):
        fence = self._executions[execution_id].fence + 1
        await trio.lowlevel.checkpoint()
        self._executions[execution_id].fence = fence
        return fence


@seen_by("one_of_concurrent_duplicates_is_accepted")
class LooksThenPuts(MemoryStore):
    async def put(self, execution_id, delivery):
        new = delivery.delivery_id not in self._mail.get(execution_id, {})
        await trio.lowlevel.checkpoint()
        await super().put(execution_id, delivery)
        return new


@seen_by("cancelled_append_is_whole_or_absent")
class EventByEvent(MemoryStore):
    async def append(self, execution_id, expected, batch, **catalogue):
        for i, event in enumerate(batch):
            await trio.lowlevel.checkpoint()
            await super().append(execution_id, expected + i, [event], **catalogue)


@seen_by("two_handles_see_each_others_writes")
class CachesReads(MemoryStore):
    """Its second handle, a `MemoryStore` as well, is another store altogether."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_check_sees_a_broken_store(check: Check) -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[Stores]:
        yield BREAKAGES[check.name]().stores

    @contextlib.asynccontextmanager
    async def second(stores: Stores) -> AsyncIterator[Stores]:
        yield MemoryStore().stores if isinstance(stores.events, CachesReads) else stores

    with pytest.raises(ConformanceFailure) as failure:
        trio.run(check.run, broken, second)
    message = str(failure.value)
    assert message.startswith(f"{check.name} ({check.rule}): ")
    assert "wanted" in message, "a failure says what was wanted"


# ---- the kit itself --------------------------------------------------------------------------------------------------


def test_report_names_every_check() -> None:
    report = trio.run(check_all, memory)
    assert {check.name for check in CHECKS} == {*report.passed, *report.not_run}
    assert [check.name for check in CHECKS if check.handles == 2] == list(report.not_run)


def test_all_failures_are_in_one_message() -> None:
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[Stores]:
        yield attrs.evolve(MemoryStore().stores, mailbox=MailInOrderOfId(), snapshots=LastSnapshotWins())

    with pytest.raises(ConformanceFailure) as failure:
        trio.run(check_all, broken)
    assert "newest_snapshot_wins (K-RUN-6)" in str(failure.value)
    assert "deliveries_wait_in_order_of_arrival (K-RUN-2)" in str(failure.value)


def test_store_that_raises_has_failed() -> None:
    class Raises(MemoryStore):
        async def load(self, execution_id):
            raise KeyError(execution_id)

    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[Stores]:
        yield Raises().stores

    check = next(check for check in CHECKS if check.name == "newest_snapshot_wins")
    with pytest.raises(ConformanceFailure, match=r"\(K-RUN-6\): raised KeyError: 'e', wanted no error"):
        trio.run(check.run, broken)


def test_store_that_hangs_has_failed() -> None:
    class Hangs(MemoryStore):
        async def load(self, execution_id):
            await trio.sleep_forever()

    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[Stores]:
        yield Hangs().stores

    check = next(check for check in CHECKS if check.name == "newest_snapshot_wins")
    with pytest.raises(ConformanceFailure, match=f"no answer within {conformance.SECONDS_MAX} s"):
        trio.run(check.run, broken, clock=trio.testing.MockClock(autojump_threshold=0))


def test_two_handles_need_a_second() -> None:
    check = next(check for check in CHECKS if check.handles == 2)
    with pytest.raises(ValueError, match="make_second"):
        trio.run(check.run, memory)
