"""The exchangeable parts of a kernel.

A runtime is put together from these.  The defaults are the kernel; a test bench puts a rejected design in the place of
one, or a subclass that notes what goes by.  There is no other switch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from kernel.emit_rule import EmitRule
from kernel.fold import FoldPass

if TYPE_CHECKING:
    from kernel.context import Context
    from kernel.driving import Driver
    from kernel.leases import Ownership


def _context() -> type[Context]:
    from kernel.context import Context

    return Context


def _driver() -> type[Driver]:
    from kernel.driving import Driver

    return Driver


def _ownership() -> type[Ownership]:
    from kernel.leases import Ownership

    return Ownership


@attrs.frozen(kw_only=True)
class Parts:
    """One choice of parts."""

    context: type[Context] = attrs.field(factory=_context)
    emit_rule: type[EmitRule] = EmitRule
    fold: type[FoldPass] = FoldPass
    driver: type[Driver] = attrs.field(factory=_driver)
    ownership: type[Ownership] = attrs.field(factory=_ownership)
