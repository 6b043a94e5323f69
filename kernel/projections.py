"""Projections: what the log says beyond the kernel's own state, kept beside it in snapshots (K-FOLD-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import attrs

from kernel.errors import ProjectionFailed, SurfaceConflict
from kernel.events import SURFACE_PATCH, Envelope
from kernel.jsonform import SAFE_INTEGER_MAX, Json, decode_canonical, encode

Apply = Callable[[Json, Envelope], Json]
Owned = set[str]
"""Which containers of a value only the pass that folds it can see, by names that a projection chooses."""
Update = Callable[[Json, Envelope, Owned], Json]


@attrs.frozen(kw_only=True)
class Projection:
    """A named pure fold of its own: `apply(value, event)` returns the next value and changes nothing.

    `update(value, event, owned)`, if there is one, comes to the same value, and may change in place what it has put
    into `owned`: a list that grows by an item is not copied for each (K-FOLD-6).

    It takes every event of every flow and raises at none, or the execution cannot be read (`ProjectionFailed`).
    """

    name: str
    initial: Json
    apply: Apply
    update: Update | None = None


class ProjectionPass:
    """Folds events into the values of projections, owning what it has copied, as a `FoldPass` does for the state.

    Mutable: between calls `values` are those after the last event, by name: to be read, not kept.
    """

    def __init__(self, projections: Sequence[Projection], values: Mapping[str, Json] | None = None) -> None:
        self._projections = projections
        self.values = {p.name: p.initial for p in projections} if values is None else dict(values)
        self._owned: dict[str, Owned] = {p.name: set() for p in projections}

    def apply(self, event: Envelope) -> None:
        """Fold one event.

        Raises `ProjectionFailed`: a value that misses an event is none, and nothing is read of it or stored with it.
        """
        for projection in self._projections:
            try:
                self.values[projection.name] = self._next(projection, event)
            except Exception as error:
                raise ProjectionFailed(
                    f"projection {projection.name!r} cannot take event {event.sequence} ({event.type}) of "
                    f"{event.execution_id!r}: {type(error).__name__}: {error}; the event is in the log, and the log is "
                    "whole: mend the projection so that it takes any event, then recover"
                ) from error

    def _next(self, projection: Projection, event: Envelope) -> Json:
        value = self.values[projection.name]
        if projection.update is None:
            return projection.apply(value, event)
        return projection.update(value, event, self._owned[projection.name])


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


def _update_surfaces(value: Json, event: Envelope, owned: Owned) -> Json:
    """A patch that does not fit changes nothing: it is in the log for ever, and the log must stay readable."""
    if event.type != SURFACE_PATCH:
        return value
    surfaces, patch = cast("dict[str, Json]", value), event.payload
    name = patch.get("surface") if isinstance(patch, dict) else None
    if not isinstance(patch, dict) or not isinstance(name, str):
        return value
    held, place, is_append = surfaces.get(name), f"list:{name}", patch.get("op") == "append"
    if is_append and place in owned:
        cast("list[Json]", held).append(patch.get("value"))
        return value
    try:
        patched = patch_surface(held, patch)
    except SurfaceConflict:
        return value
    if is_append:
        owned.add(place)  # it was copied just now
    else:
        owned.discard(place)  # what was set is the event's own
    if "map" not in owned:
        owned.add("map")
        surfaces = surfaces.copy()
    surfaces[name] = patched
    return surfaces


def _apply_surfaces(value: Json, event: Envelope) -> Json:
    return _update_surfaces(value, event, set())


SURFACES = Projection(name="surfaces", initial={}, apply=_apply_surfaces, update=_update_surfaces)
"""The surfaces a flow has built with `ctx.ui`."""
