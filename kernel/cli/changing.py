"""The commands that change something: cancel, resolve, resume, recover, compact, fork."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import click

from kernel.cancelling import request
from kernel.cli.errors import NOT_SO, OK, NotSo, WrongUsage
from kernel.cli.going_on import (
    NEXT_WORKER,
    Code,
    drive,
    load_code,
    load_projections,
    outcome,
    overdue,
    record_only,
    recover_all,
)
from kernel.cli.options import as_json, code, execution, pass_where
from kernel.cli.output import put_json, say, summary_line
from kernel.cli.stores import Opened, Where, run
from kernel.doubt import UNSAID, Unsaid, in_doubt
from kernel.errors import SnapshotUnreadable, TypedFailure
from kernel.jsonform import Json, decode
from kernel.lifecycle import compact as compact_log
from kernel.lifecycle import decode_snapshot, load
from kernel.ports import CatalogueEntry
from kernel.projections import Projection
from kernel.runtime import Runtime
from kernel.state import TERMINAL


def _answer(record: dict[str, Json], said: str, json_: bool) -> int:
    """Print what was done to one execution, and return the exit code: 1 if it has stopped where nobody wants it."""
    if json_:
        put_json({**record, "done": said})
    else:
        say(said)
        say(summary_line(record))
    return NOT_SO if "interrupted" in record else OK


# ---- cancel ----------------------------------------------------------------------------------------------------------


@click.command(short_help="Ask for an execution to be cancelled.")
@execution
@click.option("--reason", default="cancelled by an operator", show_default=True, help="What the log will say.")
@code
@as_json
@pass_where
def cancel(
    where: Where, execution_id: str, reason: str, flows: tuple[str, ...], effects: str | None, json_: bool
) -> int:
    """Ask for an execution to be cancelled: its sagas roll back, then it has ended as cancelled.

    The request is durable when this returns.  Who drives the execution sees it when it next looks: a worker with leases
    within some seconds, another when the execution parks, or when it recovers.  With --flows a parked one, and one that
    nobody drives, is cancelled here and now.  A store without leases cannot tell whether somebody does: use --flows on
    one only when no worker is running.

    \b
    Example:
      python -m kernel orders.db cancel order-17 --reason "customer called"
    """
    named = load_code(flows, effects)

    async def body(opened: Opened) -> tuple[dict[str, Json], str]:
        entry = await opened.entry(execution_id)
        if entry.status == "cancelled":
            return await outcome(opened, execution_id), "it was cancelled before"
        if entry.status in TERMINAL:
            raise NotSo(f"execution {execution_id!r} has {entry.status}: there is nothing to cancel")
        if named is None:
            new = await opened.stores.mailbox.put(execution_id, request(reason))
            said = "the request is recorded" if new else "it was asked for before, and that request stands"
            return await outcome(
                opened, execution_id
            ), f"{said}; who drives it carries it out, else the next worker that recovers"
        named.check(entry)

        async def act(runtime: Runtime) -> list[str]:
            await runtime.cancel(execution_id, reason)
            await runtime.recover_all()
            return [execution_id]

        [record] = await drive(opened, named, act, {execution_id})
        return record, "the request is recorded"

    record, said = run(where, body)
    _answer(record, said, json_)
    return OK if named is None or record["status"] == "cancelled" else NOT_SO


# ---- after a block ---------------------------------------------------------------------------------------------------


@click.command(short_help="Say what has come of a step in doubt.")
@execution
@click.argument("step")
@click.option("--completed", metavar="JSON", help="It has happened, and this is its output.")
@click.option("--failed", metavar="TEXT", help="It has not and will not: the wire name of a failure the step declares.")
@click.option("--data", metavar="JSON", help="With --failed: the failure's data.")
@click.option("--retry", is_flag=True, help="It has not happened: try once more.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Say it of this attempt only.")
@code
@as_json
@pass_where
def resolve(
    where: Where,
    execution_id: str,
    step: str,
    completed: str | None,
    failed: str | None,
    data: str | None,
    retry: bool,
    attempt: int | None,
    flows: tuple[str, ...],
    effects: str | None,
    json_: bool,
) -> int:
    """Say what has come of a step that runs at most once and is in doubt, by its id in the log.

    Find out first whether its effect has happened: `state` shows what is in doubt, under `blocked`.  When no step is in
    doubt any more, the execution goes on: here with --flows, else in the next worker that recovers.

    \b
    Examples:
      python -m kernel orders.db resolve order-17 charge --completed '{"id": "ch_1"}'
      python -m kernel orders.db resolve order-17 charge --failed declined --data '{"code": 51}'
      python -m kernel orders.db resolve order-17 charge --retry
    """
    if (completed is not None) + (failed is not None) + retry != 1:
        raise WrongUsage("say one of --completed, --failed and --retry")
    if data is not None and failed is None:
        raise WrongUsage("--data goes with --failed")
    output: Json | Unsaid = UNSAID if completed is None else _json(completed, "--completed")
    failure: TypedFailure | None = None
    if failed is not None:
        failure = TypedFailure(None if data is None else _json(data, "--data"))
        failure.wire_name = failed
    named = load_code(flows, effects)

    async def act(runtime: Runtime) -> list[str]:
        await runtime.resolve(execution_id, step, completed=output, failed=failure, retry=retry, attempt=attempt)
        return [execution_id]

    async def body(opened: Opened) -> dict[str, Json]:
        entry = await opened.entry(execution_id)
        if named is None:
            await record_only(opened, act)
            record = await outcome(opened, execution_id)
        else:
            named.check(entry)
            [record] = await drive(opened, named, act, {execution_id})
        record["in_doubt"] = cast("Json", in_doubt((await load(opened.stores, execution_id)).fold.state))
        return record

    record = run(where, body)
    more = ""
    if record["in_doubt"]:
        more = f"; it stays blocked, still in doubt: {', '.join(cast('list[str]', record['in_doubt']))}"
    elif named is None and record["status"] == "running":
        more = f"; {NEXT_WORKER}"
    code_ = _answer(record, f"what has come of {step!r} is recorded{more}", json_)
    return NOT_SO if named is not None and record["status"] == "blocked" else code_


def _json(text: str, option: str) -> Json:
    try:
        return decode(text)
    except ValueError as error:
        raise WrongUsage(f"{option}: {error}; a text needs quotes of its own: '\"text\"'") from error


@click.command(short_help="Run a blocked execution again.")
@execution
@code
@as_json
@pass_where
def resume(where: Where, execution_id: str, flows: tuple[str, ...], effects: str | None, json_: bool) -> int:
    """Run a blocked execution again from its log, after a fix of its code for example.

    What blocked it may block it again: of a step in doubt say what has happened, with `resolve`.  It goes on here with
    --flows, else in the next worker that recovers.

    \b
    Example:
      python -m kernel orders.db resume order-17 --flows shop.flows:FLOWS
    """
    named = load_code(flows, effects)

    async def act(runtime: Runtime) -> list[str]:
        await runtime.resume_blocked(execution_id)
        return [execution_id]

    async def body(opened: Opened) -> dict[str, Json]:
        entry = await opened.entry(execution_id)
        if named is None:
            # Otherwise: 1. it runs again, 2. and blocks again, and until 2 it would take no word.
            doubts = in_doubt((await load(opened.stores, execution_id)).fold.state)
            if doubts and entry.status == "blocked":
                raise NotSo(f"in doubt are {', '.join(doubts)}: say what has come of each with `resolve`")
            await record_only(opened, act)
            return await outcome(opened, execution_id)
        named.check(entry)
        [record] = await drive(opened, named, act, {execution_id})
        return record

    record = run(where, body)
    code_ = _answer(record, "it is not blocked any more" if named is None else "it was run again", json_)
    if named is None and not json_:
        say(NEXT_WORKER)
    return NOT_SO if record["status"] == "blocked" else code_


# ---- recover ---------------------------------------------------------------------------------------------------------


@click.command(short_help="Take up what a dead worker has left.")
@click.argument("execution_ids", metavar="[ID]...", nargs=-1)
@code
@as_json
@pass_where
def recover(
    where: Where, execution_ids: tuple[str, ...], flows: tuple[str, ...], effects: str | None, json_: bool
) -> int:
    """Take up what a dead worker has left, all or these, of the flows that are named, until none goes on by itself.

    What another worker holds a lease on is left alone.  A store without leases, or with workers that use none, cannot
    tell whether an execution is being driven: recover there only when no worker is running.  Without --flows this
    shows what there is to take up, and changes nothing.  Ctrl-C stops it as a crash would: nothing is lost.

    \b
    Example:
      python -m kernel orders.db recover --flows shop.flows:FLOWS
    """
    named = load_code(flows, effects)

    async def body(opened: Opened) -> list[dict[str, Json]]:
        meant = [await opened.entry(execution_id) for execution_id in execution_ids]
        if named is None:
            return [await outcome(opened, e.execution_id) for e in await _unfinished(opened, execution_ids)]
        for entry in meant:
            named.check(entry)
        return await drive(opened, named, recover_all, set(execution_ids) or None)

    records = run(where, body, read_only=named is None)
    if json_:
        put_json({"executions": cast("Json", records), "recovered": named is not None})
    else:
        for record in records:
            say(summary_line(record))
        if named is None:
            say(f"{len(records)} to take up, nothing was changed: the next worker does, or --flows")
        else:
            say(f"{len(records)} taken up")
    stuck = named is not None and any(r["status"] in ("blocked", "running") or "interrupted" in r for r in records)
    return NOT_SO if stuck else OK


async def _unfinished(opened: Opened, execution_ids: Sequence[str]) -> list[CatalogueEntry]:
    """Return what a recovery would look at: runs under way, what has mail, what is overdue."""
    events = opened.stores.events
    waking = {*await opened.stores.mailbox.executions(), *overdue(await events.entries("suspended"))}
    return [
        entry
        for entry in await events.entries("running", "suspended", "blocked")
        if (not execution_ids or entry.execution_id in execution_ids)
        and (entry.status == "running" or entry.execution_id in waking)
    ]


# ---- compact and fork ------------------------------------------------------------------------------------------------


@click.command(short_help="Fold a log into a snapshot, and drop it.")
@execution
@click.option(
    "--projections",
    "names",
    multiple=True,
    metavar="MODULE:ATTR",
    help="Projections of the workers' own, which the snapshot has to hold too.",
)
@as_json
@pass_where
def compact(where: Where, execution_id: str, names: tuple[str, ...], json_: bool) -> int:
    """Fold the log of an execution into a snapshot, then drop the log.  The snapshot is durable before that.

    It cannot be undone.  The surfaces are kept; NAME WHAT OTHER PROJECTIONS YOUR WORKERS KEEP with --projections: once
    the log is gone they cannot be made again, and such workers could not go on.

    \b
    Example:
      python -m kernel orders.db compact order-17
    """
    projections = load_projections(names)

    async def body(opened: Opened) -> tuple[int, list[str], dict[str, Json]]:
        await opened.entry(execution_id)
        kept = await _projections_to_keep(opened, execution_id, projections)
        position = await compact_log(opened.stores, execution_id, projections=kept)
        return position, [p.name for p in kept], await outcome(opened, execution_id)

    position, kept, record = run(where, body)
    record["compacted_through"] = position
    record["projections"] = cast("Json", kept)
    return _answer(record, f"events 0 to {position} are in the snapshot now, with {', '.join(kept) or 'no'}", json_)


async def _projections_to_keep(opened: Opened, execution_id: str, known: Sequence[Projection]) -> Sequence[Projection]:
    """Return what the new snapshot is to hold: all that is known, or what the old one has if its log is gone.

    Raises `NotSo` if the old one holds something that is not known.
    """
    stored = await opened.stores.snapshots.load(execution_id)
    if stored is None:
        return known
    try:
        has = set(decode_snapshot(stored).projected)
    except SnapshotUnreadable:
        return known
    missing = sorted(has - {p.name for p in known})
    if missing:
        raise NotSo(
            f"the snapshot of {execution_id!r} holds the projections {missing}, which would be lost: name their code "
            "with --projections"
        )
    try:
        await load(opened.stores, execution_id, projections=known)
    except SnapshotUnreadable:
        return [p for p in known if p.name in has]
    return known


@click.command(short_help="Make a new execution of another's first events.")
@execution
@click.option("--upto", type=click.IntRange(min=0), metavar="N", help="The last event to take over; all by default.")
@click.option("--as", "new_id", required=True, metavar="NEW", help="The id of the fork.")
@code
@as_json
@pass_where
def fork(
    where: Where,
    execution_id: str,
    upto: int | None,
    new_id: str,
    flows: tuple[str, ...],
    effects: str | None,
    json_: bool,
) -> int:
    """Make a new execution of the first events of another, which stays as it is.

    The fork is served what it has inherited and goes on from there, EFFECTS INCLUDED: here with --flows, else in the
    next worker that recovers.

    \b
    Example:
      python -m kernel orders.db fork order-17 --upto 12 --as order-17-again
    """
    named = load_code(flows, effects)

    async def act(runtime: Runtime) -> list[str]:
        await runtime.fork(execution_id, upto=upto, new_id=new_id)
        return [new_id]

    async def body(opened: Opened) -> dict[str, Json]:
        entry = await opened.entry(execution_id)
        if upto is not None and upto > entry.head:
            raise WrongUsage(f"{execution_id!r} has events up to {entry.head}, wanted is a fork at {upto}")
        return await _fork(opened, entry, named)

    async def _fork(opened: Opened, entry: CatalogueEntry, named: Code | None) -> dict[str, Json]:
        if named is None:
            await record_only(opened, act)
            return await outcome(opened, new_id)
        named.check(entry)
        [record] = await drive(opened, named, act, {new_id})
        return record

    record = run(where, body)
    unfinished = named is None and record["status"] == "running"
    return _answer(record, f"{new_id!r} is there" + (f"; {NEXT_WORKER}" if unfinished else ""), json_)
