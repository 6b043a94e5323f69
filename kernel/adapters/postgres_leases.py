"""What claims and leases do within one transaction of a PostgreSQL store (K-RUN-3).

The catalogue row holds the newest fence, so whoever compares with it locks it first: appends, claims and leases of one
execution follow each other, in whatever processes they are.
"""

from __future__ import annotations

from kernel.adapters.memory import check_fence
from kernel.adapters.postgres_pool import Connection, Place
from kernel.errors import UnknownExecution

_LOCK = "SELECT head, fence, owner FROM executions WHERE execution_id = %s FOR UPDATE"


def locked(transaction: Connection, execution_id: str) -> tuple[int, int, str | None] | None:
    """Return head, fence and owner, which nobody else changes until the transaction ends; None if there is no row."""
    rows = transaction.execute(_LOCK, (execution_id,)).fetchall()
    if not rows:
        return None
    head, fence, owner = rows[0]
    return head, fence, owner


def acquire(execution_id: str, owner: str, until_ms: int, after: int, place: Place, transaction: Connection) -> int:
    """Claim with a lease if the fence is `after`, and return the new one.  Raises `Fenced`, `UnknownExecution`."""
    position = locked(transaction, execution_id)
    if position is None:
        raise UnknownExecution(f"{owner!r} claims {execution_id!r}, which is not in {place}; start it first")
    check_fence(execution_id, after, position[1])
    transaction.execute(
        "UPDATE executions SET fence = %s, owner = %s WHERE execution_id = %s", (after + 1, owner, execution_id)
    )
    transaction.execute(
        "INSERT INTO leases (execution_id, owner, until_ms, fence) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (execution_id) DO UPDATE "
        "SET owner = excluded.owner, until_ms = excluded.until_ms, fence = excluded.fence",
        (execution_id, owner, until_ms, after + 1),
    )
    return after + 1


def renew(execution_id: str, fence: int, until_ms: int, transaction: Connection) -> None:
    """Move the end of the lease with this fence.  Raises `Fenced`."""
    position = locked(transaction, execution_id)
    check_fence(execution_id, fence, 0 if position is None else position[1])
    transaction.execute("UPDATE leases SET until_ms = %s WHERE execution_id = %s", (until_ms, execution_id))
