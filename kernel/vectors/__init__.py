"""The fold vectors: what any implementation of the fold must come to (K-FOLD-7).

`fold_vectors.json` is a list of `{name, events, state}`; one that begins from a snapshot has `initial` too.  An event
has the fields of a stored envelope and its `hash`.
"""

from __future__ import annotations

from importlib import resources
from typing import cast

import attrs

from kernel.events import Envelope, StoredEvent, parse
from kernel.jsonform import Json, decode, encode
from kernel.state import EMPTY, FlowState


@attrs.frozen(kw_only=True)
class FoldVector:
    """One vector: folding `events` on `initial` gives `state`."""

    name: str
    initial: FlowState
    events: tuple[Envelope, ...]
    state: FlowState


def load_fold_vectors() -> list[FoldVector]:
    """Return the vectors of this kernel's event schema."""
    text = resources.files(__name__).joinpath("fold_vectors.json").read_text(encoding="utf-8")
    return [_vector(cast("dict[str, Json]", fields)) for fields in cast("list[Json]", decode(text))]


def _vector(fields: dict[str, Json]) -> FoldVector:
    return FoldVector(
        name=cast(str, fields["name"]),
        initial=cast(FlowState, {**EMPTY, **cast("dict[str, Json]", fields.get("initial", {}))}),
        events=tuple(_event(cast("dict[str, Json]", event)) for event in cast("list[Json]", fields["events"])),
        state=cast(FlowState, fields["state"]),
    )


def _event(fields: dict[str, Json]) -> Envelope:
    without_hash = {name: value for name, value in fields.items() if name != "hash"}
    return parse(StoredEvent(cast(int, fields["sequence"]), encode(without_hash), cast(str, fields["hash"])))
