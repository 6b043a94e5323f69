"""Broken leases: the harness sees what is no kernel's too."""

from __future__ import annotations

from dst.mutant import Mutant, exchange
from scenarios.leader_lease import Lock, Register, Version


class WithoutFence(Register):
    """Takes whatever comes."""

    def is_newer(self, version: Version) -> bool:
        """Do not look at the token."""
        return True


class ReusesTokens(Lock):
    """Counts how often a lease is renewed, and hands the last token on with it."""

    def next_token(self, who: str) -> int:
        """Count only what the holder asks for again."""
        return self.token + 1 if who == self.holder else max(self.token, 1)


LEASE = (
    Mutant(
        name="lease-without-fence",
        breaks="the register does not look at tokens",
        scenario="leader_lease",
        expected=("fenced",),
        apply=exchange(register=WithoutFence),
    ),
    Mutant(
        name="lease-token-reused",
        breaks="a lease that has run out is granted to another under the same token",
        scenario="leader_lease",
        expected=("one-holder",),
        apply=exchange(lock=ReusesTokens),
    ),
)
