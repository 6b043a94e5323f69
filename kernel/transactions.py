"""Transactions of steps where events are stored in another form, by a codec or by reference (K-USER-2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import attrs

from kernel.events import Envelope
from kernel.ports import Sql, Status, Transaction, Transactions

Form = Callable[[Sequence[Envelope]], Awaitable[Sequence[Envelope]]]
"""Return what is stored in place of a batch."""


@attrs.frozen(kw_only=True)
class FormedTransactions:
    """`inner`, with what is appended put into `form` first; what effects execute is not touched."""

    inner: Transactions
    form: Form

    async def begin(self) -> Transaction:
        """As the port says."""
        return _Formed(inner=await self.inner.begin(), form=self.form)


@attrs.frozen(kw_only=True)
class _Formed:
    inner: Transaction
    form: Form

    @property
    def sql(self) -> Sql:
        """As the port says."""
        return self.inner.sql

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
        """As the port says."""
        formed = await self.form(batch)
        await self.inner.append(
            execution_id, expected, formed, fence=fence, flow_id=flow_id, status=status, due_ms=due_ms
        )

    async def rollback(self) -> None:
        """As the port says."""
        await self.inner.rollback()
