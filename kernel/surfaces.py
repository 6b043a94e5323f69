"""`ctx.ui`: surfaces, built by patches that are emits like any other (K-FLOW-7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel.events import SURFACE_PATCH
from kernel.jsonform import Json

if TYPE_CHECKING:
    from kernel.context import Context


class Ui:
    """Patches of named surfaces; `kernel.projections.SURFACES` folds them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def set(self, surface: str, value: Json) -> None:
        """Replace the surface's value."""
        await self._context.emit(SURFACE_PATCH, {"op": "set", "surface": surface, "value": value})

    async def append(self, surface: str, value: Json) -> None:
        """Add one item to the surface's list."""
        await self._context.emit(SURFACE_PATCH, {"op": "append", "surface": surface, "value": value})

    async def increment(self, surface: str, amount: int = 1) -> None:
        """Add to the surface's number."""
        await self._context.emit(SURFACE_PATCH, {"op": "increment", "surface": surface, "value": amount})
