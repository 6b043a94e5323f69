"""Projections: what the log says beyond the kernel's own state, kept beside it in snapshots (K-FOLD-6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import attrs

from kernel.errors import SurfaceConflict
from kernel.events import SURFACE_PATCH, Envelope
from kernel.jsonform import SAFE_INTEGER_MAX, Json, decode_canonical, encode

Apply = Callable[[Json, Envelope], Json]


@attrs.frozen(kw_only=True)
class Projection:
    """A named pure fold of its own: `apply(value, event)` returns the next value and changes nothing."""

    name: str
    initial: Json
    apply: Apply


def patch_surface(value: Json, patch: dict[str, Json]) -> Json:
    """Return a surface's value after one patch: `set`, `append` or `increment`.  Raises `SurfaceConflict`."""
    operand = patch.get("value")
    match patch.get("op"):
        case "set":
            return operand
        case "append":
            if value is not None and not isinstance(value, list):
                raise SurfaceConflict(f"append to surface {patch.get('surface')!r}: it holds {value!r}, not a list")
            return [*(value or []), operand]
        case "increment":
            amount = 0 if value is None else value
            if isinstance(amount, bool) or not isinstance(amount, int | float):
                raise SurfaceConflict(
                    f"increment of surface {patch.get('surface')!r}: it holds {value!r}, not a number"
                )
            if isinstance(operand, bool) or not isinstance(operand, int | float):
                raise SurfaceConflict(f"increment of surface {patch.get('surface')!r} by {operand!r}, not a number")
            return _sum(amount, operand)
        case other:
            raise SurfaceConflict(
                f"surface {patch.get('surface')!r}: unknown patch {other!r}, wanted set, append, increment"
            )


def _sum(amount: int | float, operand: int | float) -> Json:
    """Return the sum as it will be read back from a snapshot: a large one as a float, one that overflows as null."""
    total = amount + operand
    return decode_canonical(encode(total if abs(total) <= SAFE_INTEGER_MAX else float(total)))


def _apply_surfaces(value: Json, event: Envelope) -> Json:
    """A patch that does not fit changes nothing: it is in the log for ever, and the log must stay readable."""
    if event.type != SURFACE_PATCH:
        return value
    surfaces, patch = cast("dict[str, Json]", value), event.payload
    name = patch.get("surface") if isinstance(patch, dict) else None
    if not isinstance(patch, dict) or not isinstance(name, str):
        return value
    try:
        return {**surfaces, name: patch_surface(surfaces.get(name), patch)}
    except SurfaceConflict:
        return value


SURFACES = Projection(name="surfaces", initial={}, apply=_apply_surfaces)
"""The surfaces a flow has built with `ctx.ui`."""
