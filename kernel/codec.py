"""A codec between kernel and stores: encryption, compression (K-USER-3).

It sees whole texts: of events, snapshots and deliveries' payloads.  Digests and hashes are over the plain form, so a
log can be verified by who can read it, and changing the codec changes neither.  What was stored before there was a
codec is read as it is.  Ids, flow ids, statuses and times stay readable: stores need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from kernel.events import Envelope, StoredEvent
from kernel.jsonform import decode, encode
from kernel.ports import CatalogueEntry, Delivery, EventStore, Mailbox, SnapshotStore, Status, StoredSnapshot, Stores
from kernel.transactions import FormedTransactions

KEY = "__loomCoded"


class Codec(Protocol):
    """Two inverse functions on texts."""

    def encode(self, text: str) -> str:
        """Return what is stored."""

    def decode(self, text: str) -> str:
        """Return what `encode` was given."""


def with_codec(stores: Stores, codec: Codec) -> Stores:
    """Return `stores` with every text they keep passed through `codec`."""
    events, transactions = CodedEvents(inner=stores.events, codec=codec), stores.transactions
    return attrs.evolve(
        stores,
        events=events,
        transactions=transactions and FormedTransactions(inner=transactions, form=events.coded),
        snapshots=CodedSnapshots(inner=stores.snapshots, codec=codec),
        mailbox=CodedMailbox(inner=stores.mailbox, codec=codec),
    )


def _wrap(codec: Codec, text: str) -> str:
    return f'{{"{KEY}":{encode(codec.encode(text))}}}'


def _unwrap(codec: Codec, text: str) -> str:
    if not text.lstrip().startswith("{") or KEY not in text[: len(KEY) + 8]:
        return text
    wrapped = decode(text)
    coded = wrapped.get(KEY) if isinstance(wrapped, dict) and len(wrapped) == 1 else None
    return codec.decode(coded) if isinstance(coded, str) else text


@attrs.frozen(kw_only=True)
class CodedEvents:
    """See `with_codec`."""

    inner: EventStore
    codec: Codec

    async def append(
        self,
        execution_id: str,
        expected: int,
        batch: Sequence[Envelope],
        *,
        fence: int,
        flow_id: str,
        status: Status,
        due_ms: int | None,
    ) -> None:
        """Append what the codec makes of the texts; the hashes stay."""
        coded = await self.coded(batch)
        await self.inner.append(
            execution_id, expected, coded, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms
        )

    async def coded(self, batch: Sequence[Envelope]) -> Sequence[Envelope]:
        """Return what is stored in place of a batch."""
        return [attrs.evolve(envelope, text=_wrap(self.codec, envelope.text)) for envelope in batch]

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Read the plain texts."""
        return [
            StoredEvent(stored.sequence, _unwrap(self.codec, stored.text), stored.hash)
            for stored in await self.inner.read_from(execution_id, sequence)
        ]

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """As the port says."""
        await self.inner.truncate_prefix(execution_id, through)

    async def claim(self, execution_id: str, owner: str) -> int:
        """As the port says."""
        return await self.inner.claim(execution_id, owner)

    async def entry(self, execution_id: str) -> CatalogueEntry | None:
        """As the port says."""
        return await self.inner.entry(execution_id)

    async def entries(self, *statuses: Status) -> Sequence[CatalogueEntry]:
        """As the port says."""
        return await self.inner.entries(*statuses)


@attrs.frozen(kw_only=True)
class CodedSnapshots:
    """See `with_codec`."""

    inner: SnapshotStore
    codec: Codec

    async def save(self, execution_id: str, snapshot: StoredSnapshot) -> None:
        """Save what the codec makes of it."""
        await self.inner.save(execution_id, attrs.evolve(snapshot, text=_wrap(self.codec, snapshot.text)))

    async def load(self, execution_id: str) -> StoredSnapshot | None:
        """Return the plain snapshot."""
        stored = await self.inner.load(execution_id)
        return None if stored is None else attrs.evolve(stored, text=_unwrap(self.codec, stored.text))


@attrs.frozen(kw_only=True)
class CodedMailbox:
    """See `with_codec`."""

    inner: Mailbox
    codec: Codec

    async def put(self, execution_id: str, delivery: Delivery) -> bool:
        """Put what the codec makes of the payload."""
        coded = attrs.evolve(delivery, payload_text=_wrap(self.codec, delivery.payload_text))
        return await self.inner.put(execution_id, coded)

    async def pending(self, execution_id: str) -> Sequence[Delivery]:
        """Return deliveries with their plain payloads."""
        return [
            attrs.evolve(delivery, payload_text=_unwrap(self.codec, delivery.payload_text))
            for delivery in await self.inner.pending(execution_id)
        ]

    async def remove(self, execution_id: str, delivery_ids: Sequence[str]) -> None:
        """As the port says."""
        await self.inner.remove(execution_id, delivery_ids)

    async def executions(self) -> Sequence[str]:
        """As the port says."""
        return await self.inner.executions()
