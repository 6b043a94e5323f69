"""A stamped emit when there are many already, and the digest it is stamped with."""

from __future__ import annotations

import time

import trio
from measuring import Ratios, Sizes, Times, each, without_collector

from kernel import Context, Envelope, Json, flow, fold_events, open_runtime
from kernel import digest as kernel_digest
from kernel.adapters.memory import MemoryStore
from kernel.digest import fnv1a64
from kernel.events import GENESIS_HASH, seal
from kernel.fold import FoldPass
from kernel.jsonform import encode


def digests(sizes: Sizes) -> Times:
    """The digest of a payload of 300 bytes; no two are equal, so that no cache answers."""
    payloads = iter([encode({"n": f"{n:08}", "text": "x" * 274}) for n in range(4 * sizes.calls)])
    assert len(next(payloads)) == 300
    with without_collector():
        return {
            "digest of 300 bytes, definition": each(
                lambda: kernel_digest._fnv1a64_reference(next(payloads).encode()), sizes.calls
            ),
            "digest of 300 bytes, as loaded": each(lambda: fnv1a64(next(payloads)), sizes.calls),
            "canonical form of 300 bytes": each(lambda: encode({"n": "00000000", "text": "x" * 274}), sizes.calls),
        }


def _emit_times(sizes: Sizes) -> Times:
    """The seconds of one whole `ctx.emit`, over the last emits before each k."""
    times: Times = {}

    @flow
    async def emitting(ctx: Context, _input: Json) -> Json:
        done = 0
        for k in sizes.emits:
            for number in range(done, k - sizes.window):
                await ctx.emit("noted", {"n": number, "text": "hello world"})
            began = time.process_time()
            for number in range(k - sizes.window, k):
                await ctx.emit("noted", {"n": number, "text": "hello world"})
            times[f"emit, whole, at {k:,}"] = (time.process_time() - began) / sizes.window
            done = k
        return None

    async def main() -> None:
        async with open_runtime(stores=MemoryStore().stores, flows=[emitting], incarnation="worker") as runtime:
            await (await runtime.start(emitting, execution_id="e-1")).result()

    trio.run(main)
    return times


def emitted(number: int) -> Envelope:
    """Return a stamped emit; every number has a digest of its own."""
    return seal(
        execution_id="e-1",
        sequence=number,
        type="noted",
        payload_text='{"text":"hello world"}',
        timestamp_ms=1_700_000_000_000,
        append_id=f"worker/{number}",
        previous_hash=GENESIS_HASH,
        stamp=fnv1a64(str(number)),
    )


def _fold_times(sizes: Sizes) -> Times:
    """The seconds of folding one stamped emit, in a pass and on a kept state, before each k."""
    times: Times = {}
    events = [emitted(number) for number in range(sizes.emits[-1])]
    fold = FoldPass()
    done = 0
    for k in sizes.emits:
        for event in events[done : k - sizes.window]:
            fold.apply(event)
        kept = fold.release()
        last = events[k - sizes.window : k]
        began = time.process_time()
        for event in last:
            kept = fold_events((event,), kept)
        times[f"fold, one event on a kept state, at {k:,}"] = (time.process_time() - began) / sizes.window
        began = time.process_time()
        for event in last:
            fold.apply(event)
        times[f"fold, in a pass, at {k:,}"] = (time.process_time() - began) / sizes.window
        done = k
    return times


def emits(sizes: Sizes) -> Times:
    """A stamped emit when there are many already."""
    with without_collector():
        times = _emit_times(sizes)
    with without_collector():
        return times | _fold_times(sizes)


def ratios(sizes: Sizes) -> Ratios:
    """What an emit costs later against what it cost early: flat is 1."""
    least, *more = sizes.emits
    return [
        ("digest of 300 bytes, definition", "digest of 300 bytes, as loaded"),
        *(
            (f"{what}, at {k:,}", f"{what}, at {least:,}")
            for what in ("emit, whole", "fold, in a pass", "fold, one event on a kept state")
            for k in more
        ),
    ]
