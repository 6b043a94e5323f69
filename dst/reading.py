"""A trace to be read by a person: one line for each record, with the virtual time at which it was made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import attrs

from dst import trace
from dst.sentences import point, said_node
from dst.trace import Record

_SECOND_NS = 1_000_000_000
_PAYLOAD_MAX = 100
_ABOUT = ("step", "decisionId", "on")


@attrs.frozen(kw_only=True)
class Moment:
    """A record in words, and when it was made."""

    when_ns: int
    says: str


def lines(records: Sequence[Record], start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Yield a line for each record from `start` up to `stop`, but the clock's own."""
    for number, (now_ns, record) in enumerate(_timed(records[:stop])):
        if number >= start and record[0] != "clock":
            yield f"{number:5} {said_time(now_ns):>12}  {said(record)}"


def moment(records: Sequence[Record], at: int) -> Moment:
    """Return when the record at that index was made, and what it says; past the last one is the end of the run."""
    now_ns, says = 0, "the end of the run"
    for index, (now, record) in enumerate(_timed(records)):
        now_ns = now
        if index == at:
            says = said(record, payloads=False)
            break
    return Moment(when_ns=now_ns, says=says)


def said_time(now_ns: int) -> str:
    """Return virtual time in words: 61.500 s, 2 d 03:00:00.000."""
    seconds, rest = divmod(now_ns, _SECOND_NS)
    if seconds < 3600:
        return f"{seconds}.{rest // 1_000_000:03} s"
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 1_000_000:03}"
    return f"{days} d {clock}" if days else clock


def said(record: Record, *, payloads: bool = True) -> str:
    """Return one record in words, events with or without their payloads; an unknown kind is shown as it is."""
    plain = cast("list[object]", json.loads(trace.encode([record]))[0])
    kind, rest = str(plain[0]), plain[1:]
    try:
        words = _known(kind, rest, _event if payloads else _event_name)
    except (IndexError, TypeError, ValueError, KeyError):  # a record of the same name and another shape
        words = ""
    return words or _shown(plain)


def _timed(records: Sequence[Record]) -> Iterator[tuple[int, Record]]:
    now_ns = 0
    for record in records:
        if record[0] == "clock" and isinstance(record[1], int):
            now_ns = record[1]
        yield now_ns, record


def _shown(plain: list[object]) -> str:
    return " ".join([str(plain[0]), *(json.dumps(value, ensure_ascii=False) for value in plain[1:])])


def _known(kind: str, rest: list[object], event: Callable[[str], str]) -> str:
    """Return the record in words, "" if nobody knows its kind."""
    match kind, rest:
        case "clock", [int(now_ns)]:
            return f"time goes on to {said_time(now_ns)}"
        case "start", [str(name)]:
            return f"{said_node(name)} starts"
        case "crash", [str(name), str(at)]:
            return f"{said_node(name)} CRASHES at: {point(at)}"
        case "fault", [str(at), str(do)]:
            return f"FAULT {do} at: {point(at)}"
        case "node-failed", [str(name), error]:
            return f"{said_node(name)} ENDS by {error}"
        case "healed", []:
            return "the faults stop; everything heals"
        case "run", [execution, number]:
            return f"{execution}: run {number} of the flow"
        case "emit", [execution, _, identity, logical]:
            return f"{execution}: emits {identity}, from {logical}"
        case "acked", [execution, _, identity, _, _]:
            return f"{execution}: the emit {identity} is acknowledged"
        case "emitted", [execution, _, _, _, _, str(text)]:
            return f"{execution}: appends {event(text)}"
        case "handed", [execution, what, about, form]:
            return f"{execution}: the flow gets {what} {about}" + (f", WRONG: {form}" if form else "")
        case "performed", [service, operation, key, attempt]:
            return f"{service} does {operation} for {key}, attempt {attempt}"
        case "claimed", [execution, str(owner), fence, *of]:
            more = f", TAKEN from {said_node(str(of[0]))}" if of and of[0] else ""
            return f"{execution}: claimed by {said_node(owner)}, fence {fence}{more}"
        case "renewed", [execution, fence, late]:
            return f"{execution}: lease with fence {fence} renewed" + (", after it had run out" if late else "")
        case "stall", [str(name), str(at)]:
            return f"{said_node(name)} STANDS STILL at: {point(at)}"
        case "goes on", [str(name)]:
            return f"{said_node(name)} goes on"
        case "jumped", [name, int(by_ms)]:
            return f"the clock of {name} is set {'forward' if by_ms > 0 else 'back'} by {abs(by_ms) // 1000} s"
        case "told", [execution, text]:
            return f"{execution}: a client is told that it has started, with {text}"
        case "acknowledged", [execution, delivery, on, _]:
            return f"{execution}: a client is told that delivery {delivery!r} on {on} is accepted"
        case "accepted", [execution, delivery, on, _, fresh]:
            return f"{execution}: delivery {delivery!r} on {on} is {'accepted' if fresh else 'known already'}"
        case "snapshot", [execution, sequence]:
            return f"{execution}: snapshot through event {sequence}"
        case "truncated", [execution, through]:
            return f"{execution}: log cut through event {through}"
        case "folded", [execution, sequence, fault]:
            return (
                f"{execution}: the snapshot at {sequence} {f'is WRONG: {fault}' if fault else 'is the fold of the log'}"
            )
        case "replayed", [execution, _, upto, fault]:
            return f"{execution}: replayed up to {upto}" + (f", WRONG: {fault}" if fault else "")
        case "final", [execution, status, folded, waiting, deliverable]:
            more = f", waits for {waiting}" if waiting else ""
            more += f", although {deliverable!r} could resume it" if deliverable else ""
            return f"{execution}: ends {folded}" + (f" (catalogue: {status})" if status != folded else "") + more
        case _, [execution, str(text)] if text.startswith("{"):
            return f"{execution}: appends {event(text)}"
        case _:
            return ""


def _event(text: str) -> str:
    """Return an event, from its stored text."""
    payload = json.loads(text)["payload"]
    if isinstance(payload, dict):
        payload = {key: value for key, value in payload.items() if key not in (*_ABOUT, "inputDigest")}
    said = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    return f"{_event_name(text)} {said if len(said) <= _PAYLOAD_MAX else said[: _PAYLOAD_MAX - 1] + '…'}"


def _event_name(text: str) -> str:
    """Return an event's position, type and what it is about."""
    event = json.loads(text)
    payload = event["payload"] if isinstance(event["payload"], dict) else {}
    about = "".join(f" {payload[key]}" for key in _ABOUT if isinstance(payload.get(key), str))
    return f"{event['sequence']} {event['type']}{about}"
