"""What a store may give back in place of a snapshot."""

from __future__ import annotations

import json


def reordered(text: str) -> str:
    """Return a JSON text with the keys of every object in the reverse of their order, as a jsonb column may have it."""
    return json.dumps(_reversed(json.loads(text)), separators=(",", ":"))


def _reversed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _reversed(inner) for key, inner in sorted(value.items(), reverse=True)}
    if isinstance(value, list):
        return [_reversed(inner) for inner in value]
    return value


def garbled(text: str) -> str:
    """Return what is left of a text that was cut off in its middle."""
    return text[: len(text) // 2]
