"""The commands that only look: list, log, state, verify, watch."""

from __future__ import annotations

from typing import cast, get_args

import click
import trio

from kernel.cli.checking import check
from kernel.cli.errors import NOT_SO, WrongUsage
from kernel.cli.options import as_json, execution, pass_where
from kernel.cli.output import about, at, note, put_json, put_pretty, put_table, say, summary, summary_line
from kernel.cli.stores import Opened, Where, run
from kernel.errors import ContentMissingError, CorruptLog, StoreUnavailable
from kernel.events import StoredEvent, parse
from kernel.jsonform import Json
from kernel.lifecycle import load
from kernel.live_query import LiveQuery
from kernel.ports import CatalogueEntry, Status
from kernel.state import TERMINAL

_ASK_AGAIN_SECONDS = 1


@click.command("list", short_help="List the executions.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(get_args(Status)), help="Only with this status.")
@click.option("--flow", "flow_id", help="Only of this flow.")
@click.option("--prefix", default="", help="Only ids that begin like this.")
@as_json
@pass_where
def list_(where: Where, statuses: tuple[Status, ...], flow_id: str | None, prefix: str, json_: bool) -> None:
    """List the executions: id, flow, status, head (the last event), due (when a timer or the deadline is).

    \b
    Example:
      python -m kernel orders.db list --status blocked --prefix order-
    """

    async def body(opened: Opened) -> list[CatalogueEntry]:
        return [
            entry
            for entry in await opened.stores.events.entries(*statuses)
            if flow_id in (None, entry.flow_id) and entry.execution_id.startswith(prefix)
        ]

    found = run(where, body, read_only=True)
    if json_:
        put_json({"executions": [_entry_record(entry) for entry in found]})
        return
    rows = [
        (e.execution_id, e.flow_id, e.status, str(e.head), "-" if e.due_ms is None else at(e.due_ms)) for e in found
    ]
    if rows:
        put_table([("ID", "FLOW", "STATUS", "HEAD", "DUE"), *rows])
    else:
        note("no such executions")


def _entry_record(entry: CatalogueEntry) -> dict[str, Json]:
    return {
        "due": None if entry.due_ms is None else at(entry.due_ms),
        "due_ms": entry.due_ms,
        "flow": entry.flow_id,
        "head": entry.head,
        "id": entry.execution_id,
        "status": entry.status,
    }


@click.command(short_help="Show the log of an execution.")
@execution
@click.option("--from", "start", type=click.IntRange(min=0), default=0, metavar="N", help="Begin with event N.")
@as_json
@pass_where
def log(where: Where, execution_id: str, start: int, json_: bool) -> None:
    """Show the log of an execution, a line an event: sequence, time, type, what it is about.

    With --json whole events.  What cannot be read is shown as that, and the rest all the same.

    \b
    Example:
      python -m kernel orders.db log order-17 --from 40
    """

    async def body(opened: Opened) -> list[dict[str, Json]]:
        await opened.entry(execution_id)
        rows = await opened.rows(execution_id, start)
        return [await _event_record(opened, execution_id, row) for row in rows]

    found = run(where, body, read_only=True)
    first = cast("int", found[0]["sequence"]) if found else None
    if json_:
        put_json({"events": cast("Json", found), "execution": execution_id, "first": first})
        return
    if first is None:
        note(f"no event from {start} on is stored; `state` shows what they have come to")
    elif first > start:
        note(f"events before {first} were compacted; `state` shows what they have come to")
    for record in found:
        say(_line(record))


async def _event_record(opened: Opened, execution_id: str, row: StoredEvent) -> dict[str, Json]:
    try:
        event = parse(await opened.whole(execution_id, row))
    except (CorruptLog, ContentMissingError) as error:
        return {
            "sequence": row.sequence,
            "unreadable": str(error),
        }
    return {
        "hash": event.hash,
        "metadata": event.metadata,
        "payload": event.payload,
        "sequence": event.sequence,
        "time": at(event.timestamp_ms),
        "timestamp_ms": event.timestamp_ms,
        "type": event.type,
    }


def _line(record: dict[str, Json]) -> str:
    if "unreadable" in record:
        return f"{record['sequence']:>5}  {'?':<24}  UNREADABLE           {record['unreadable']}"
    return f"{record['sequence']:>5}  {record['time']:<24}  {record['type']:<19}  {about(record['payload'])}".rstrip()


@click.command(short_help="Show the folded state of an execution.")
@execution
@as_json
@pass_where
def state(where: Where, execution_id: str, json_: bool) -> None:
    """Show the folded state of an execution as JSON, also after its log was compacted.

    \b
    Example:
      python -m kernel orders.db state order-17
    """

    async def body(opened: Opened) -> Json:
        await opened.entry(execution_id)
        return cast("Json", (await load(opened.stores, execution_id)).fold.release())

    found = run(where, body, read_only=True)
    if json_:
        put_json({"execution": execution_id, "state": found})
    else:
        put_pretty(found)


@click.command(short_help="Check logs against their hash chains.")
@click.argument("execution_id", metavar="[ID]", required=False)
@click.option("--all", "all_", is_flag=True, help="Verify every execution of the store.")
@as_json
@pass_where
def verify(where: Where, execution_id: str | None, all_: bool, json_: bool) -> int:
    """Check a log against its hash chain, its snapshot and the catalogue; name the first bad event.

    Exit code 1 says that a fault was found.

    \b
    Examples:
      python -m kernel orders.db verify order-17
      python -m kernel orders.db verify --all --json
    """
    if (execution_id is None) != all_:
        raise WrongUsage("name one execution, or all of them with --all")

    async def body(opened: Opened) -> tuple[int, list[dict[str, Json]]]:
        events = opened.stores.events
        entries = [await opened.entry(execution_id)] if execution_id is not None else await events.entries()
        faults: list[dict[str, Json]] = []
        for entry in entries:
            fault = await check(opened, entry)
            if fault is not None:
                faults.append({"execution": entry.execution_id, "sequence": fault.sequence, "what": fault.what})
        return len(entries), faults

    checked, faults = run(where, body, read_only=True)
    if json_:
        put_json({"checked": checked, "faults": cast("Json", faults), "ok": not faults})
    else:
        for fault in faults:
            say(f"{fault['execution']}: event {fault['sequence']}: {fault['what']}")
        say(f"{len(faults)} of {checked} executions have a fault" if faults else f"{checked} verified, no fault")
    return NOT_SO if faults else 0


@click.command(short_help="Follow an execution until it has ended.")
@execution
@as_json
@pass_where
def watch(where: Where, execution_id: str, json_: bool) -> None:
    """Follow an execution: a line for its state now and for each newer one, until it has ended, or Ctrl-C.

    States that follow each other fast come as one line, the newest.

    \b
    Example:
      python -m kernel orders.db watch order-17
    """

    async def body(opened: Opened) -> None:
        await opened.entry(execution_id)
        async with LiveQuery(opened.stores, opened.notifications).subscribe(execution_id) as states:
            while True:
                try:
                    newest = await anext(states)
                except StoreUnavailable as error:
                    note(f"asking again: {error}")
                    await trio.sleep(_ASK_AGAIN_SECONDS)
                    continue
                record = summary(execution_id, newest)
                put_json(record) if json_ else say(summary_line(record))
                if newest["status"] in TERMINAL:
                    return

    try:
        run(where, body, read_only=True)
    except KeyboardInterrupt:
        pass  # how one ends it
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
