"""Large payloads by reference (K-LOG-6): an event store that keeps them in a content store.

Above it nobody sees a reference: what is read is what was appended, byte for byte, and its hash says so.  Below it, a
payload that is large is `{"__loomContent": {"bytes", "hash"}}`, and one of a user's that has that key of its own is
`{"__loomContent": {"escaped": <the payload>}}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import attrs

from kernel.errors import ContentMissingError, CorruptLog
from kernel.events import Envelope, StoredEvent, hash_of, quoted
from kernel.jsonform import DEPTH_MAX_STORED, Json, decode_canonical, encode
from kernel.ports import CatalogueEntry, ContentStore, EventStore, Status, Stores
from kernel.transactions import FormedTransactions

KEY = "__loomContent"

INLINE_BYTES_MAX = 65_536
"""What stays in the log by default."""


def with_content(stores: Stores, contents: ContentStore, *, inline_bytes_max: int = INLINE_BYTES_MAX) -> Stores:
    """Return `stores` with payloads above that size kept in `contents`."""
    events = ContentEvents(inner=stores.events, contents=contents, inline_bytes_max=inline_bytes_max)
    transactions = stores.transactions
    return attrs.evolve(
        stores,
        events=events,
        transactions=transactions and FormedTransactions(inner=transactions, form=events.stubs),
    )


@attrs.frozen(kw_only=True)
class ContentEvents:
    """See `with_content`.  The content is durable before the event that refers to it."""

    inner: EventStore
    contents: ContentStore
    inline_bytes_max: int

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
        """Append with large payloads by reference."""
        stubs = await self.stubs(batch)
        await self.inner.append(
            execution_id, expected, stubs, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms
        )

    async def stubs(self, batch: Sequence[Envelope]) -> Sequence[Envelope]:
        """Return what is stored in place of a batch, when the content it refers to is."""
        return [await self._stub(envelope) for envelope in batch]

    async def _stub(self, envelope: Envelope) -> Envelope:
        payload, large = envelope.payload, _bytes(envelope.text) > self.inline_bytes_max
        taken = isinstance(payload, dict) and KEY in payload
        if not large and not taken:
            return envelope
        text = encode(payload, depth_max=DEPTH_MAX_STORED)
        if not large:
            return attrs.evolve(envelope, text=_with_payload(envelope.text, f'{{"{KEY}":{{"escaped":{text}}}}}'))
        content = hash_of(text)
        await self.contents.put_content(content, text)
        reference = f'{{"{KEY}":{{"bytes":{_bytes(text)},"hash":{quoted(content)}}}}}'
        return attrs.evolve(envelope, text=_with_payload(envelope.text, reference))

    async def read_from(self, execution_id: str, sequence: int) -> Sequence[StoredEvent]:
        """Read with references resolved.  Raises `ContentMissingError`; `CorruptLog` if content was edited."""
        return [await self._resolve(execution_id, e) for e in await self.inner.read_from(execution_id, sequence)]

    async def _resolve(self, execution_id: str, stored: StoredEvent) -> StoredEvent:
        if f'"{KEY}"' not in stored.text:
            return stored
        envelope = decode_canonical(stored.text)
        payload = envelope.get("payload") if isinstance(envelope, dict) else None
        marked = payload.get(KEY) if isinstance(payload, dict) else None
        if not isinstance(marked, dict):
            return stored  # somewhere within a payload it means nothing
        if "escaped" in marked:
            text = encode(marked["escaped"], depth_max=DEPTH_MAX_STORED)
        else:
            text = await self._content(execution_id, stored.sequence, cast(str, marked["hash"]))
        whole = StoredEvent(stored.sequence, _with_payload(stored.text, text), stored.hash)
        if hash_of(whole.text) != stored.hash:
            raise CorruptLog(f"event {stored.sequence} of {execution_id!r}: its content is not what was appended")
        return whole

    async def _content(self, execution_id: str, sequence: int, hash: str) -> str:
        text = await self.contents.content(hash)
        if text is None:
            raise ContentMissingError(
                f"event {sequence} of {execution_id!r} refers to content {hash}, which is not stored: restore it from "
                "a backup of the content store"
            )
        return text

    async def truncate_prefix(self, execution_id: str, through: int) -> None:
        """As the port says; content stays, for forks share it."""
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


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _with_payload(envelope_text: str, payload_text: str) -> str:
    """Return a canonical envelope with another payload: whatever else it holds stays, in canonical order."""
    fields = cast("dict[str, Json]", decode_canonical(envelope_text))
    inner = ",".join(
        f"{quoted(name)}:{payload_text if name == 'payload' else encode(value, depth_max=DEPTH_MAX_STORED)}"
        for name, value in fields.items()
    )
    return f"{{{inner}}}"
