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


def _context() -> type[Context]:
    from kernel.context import Context

    return Context


@attrs.frozen(kw_only=True)
class Parts:
    """One choice of parts."""

    context: type[Context] = attrs.field(factory=_context)
    emit_rule: type[EmitRule] = EmitRule
    fold: type[FoldPass] = FoldPass
