"""What the commands print: lines for people, one JSON object for programs; nothing that a terminal would obey."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence

import click

from kernel.jsonform import Json
from kernel.state import FlowState

ABOUT_MAX = 120
"""How many characters of a payload a line shows."""

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return `text` safe for a terminal: control characters and direction marks are written out, as in JSON."""
    return _UNPRINTABLE.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", text)


def say(line: str) -> None:
    """Print one line."""
    click.echo(printable(line))


def note(line: str) -> None:
    """Print one line beside the answer."""
    click.echo(printable(line), err=True)


def put_json(record: Json) -> None:
    """Print one JSON object, on one line and in ASCII."""
    click.echo(json.dumps(record, sort_keys=True))


def put_pretty(value: Json) -> None:
    """Print a JSON value for people, which is JSON all the same."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    for line in text.split("\n"):
        say(line)


def put_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, the first one being their names."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]))]
    for row in shown:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def at(milliseconds: int) -> str:
    """Return a time as people and programs read it, in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shortened(text: str, length: int = ABOUT_MAX) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= length else text[: length - 1] + "…"


_FIRST = ("step", "flowId", "decisionId", "on", "surface", "attempt", "reason", "resolution", "steps")
_NOISE = ("inputDigest", "toolId", "seq", "ordinal", "deliveryId")


def about(payload: Json) -> str:
    """Return what an event is about, on one line: what names it first, then the rest of its payload."""
    if not isinstance(payload, dict):
        return "" if payload is None else shortened(_brief(payload))
    names = [name for name in _FIRST if name in payload]
    names += [name for name in payload if name not in _FIRST and name not in _NOISE]
    return shortened(" ".join(f"{name}={_brief(payload[name])}" for name in names if payload[name] is not None))


def _brief(value: Json) -> str:
    if isinstance(value, str) and value and value.isprintable() and not any(c in value for c in ' "='):
        return value
    return json.dumps(value, ensure_ascii=False)


def summary(execution_id: str, state: FlowState) -> dict[str, Json]:
    """Return what matters most of a state."""
    gate = state["gate"]
    record: dict[str, Json] = {
        "execution": execution_id,
        "flow": state["flowId"],
        "sequence": state["lastSequence"],
        "status": state["status"],
    }
    if state["status"] == "suspended" and gate is not None:
        members = gate.get("members", [{"correlationKey": gate["correlationKey"], "on": gate["on"]}])
        record["waits_for"] = [{"key": member["correlationKey"], "on": member["on"]} for member in members]
        record["due"] = None if gate["due"] is None else at(gate["due"])
    for name in ("blocked", "output", "error"):
        value: Json = state[name]
        if value is not None:
            record[name] = value
    return record


def summary_line(record: dict[str, Json]) -> str:
    """Return a summary as a line for people."""
    rest = {
        name: value
        for name, value in record.items()
        if name not in ("execution", "flow", "sequence", "status") and value is not None
    }
    more = shortened(" ".join(f"{name}={_brief(value)}" for name, value in rest.items()))
    return f"{record['execution']}  {record['sequence']}  {record['status']}  {more}".rstrip()
