"""The kernel's parts: what a commit, a step, an execution and a snapshot cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import trio
from emits import emitted
from journals import new_journal
from measuring import Ratios, Sizes, Times, each, each_async, without_collector
from runs import STOCK, answering

from kernel import Context, Flow, Json, flow, open_runtime, step
from kernel.adapters.memory import MemoryStore
from kernel.events import EXECUTION_STARTED, GENESIS_HASH, STEP_COMPLETED, STEP_STARTED, quoted, seal
from kernel.fold import FoldPass
from kernel.jsonform import encode
from kernel.lifecycle import decode_snapshot, encode_snapshot
from kernel.state import FlowState

_PAYLOAD = encode(
    {
        "attempt": 1,
        "input": {"id": "o-17", "items": ["tea", "pot"], "total": 4200},
        "inputDigest": "0123456789abcdef",
        "kind": "step",
        "step": "quote",
        "toolId": "quote",
    }
)


def _steps(calls: int, deadline: float | None) -> float:
    plain = step("quote", answering(1), deadline=deadline)
    times: list[float] = []

    @flow
    async def stepping(ctx: Context, _input: Json) -> Json:
        keys = iter(range(calls))

        async def once() -> None:
            number = next(keys)
            await ctx.run(plain, {"n": number}, key=str(number))

        times.append(await each_async(once, calls))
        return None

    async def main() -> None:
        async with open_runtime(stores=MemoryStore().stores, flows=[stepping], incarnation="worker") as runtime:
            await (await runtime.start(stepping, execution_id="e-1")).result()

    trio.run(main)
    return times[0]


def _commits(calls: int) -> float:
    async def main() -> float:
        journal = new_journal(MemoryStore(), "e-1")
        await journal.commit(EXECUTION_STARTED, '{"flowId":"f","flowVersion":null,"input":null}')
        return await each_async(lambda: journal.commit(STEP_STARTED, _PAYLOAD), calls)

    return trio.run(main)


def _one_flow(calls: int) -> float:
    @flow
    async def nothing(_ctx: Context, _input: Json) -> Json:
        return None

    flows: Sequence[Flow] = [nothing]

    async def main() -> float:
        async with open_runtime(stores=MemoryStore().stores, flows=flows, incarnation="worker") as runtime:
            ids = iter(range(calls))

            async def once() -> None:
                await (await runtime.start(nothing, execution_id=f"e-{next(ids)}")).result()

            return await each_async(once, calls)

    return trio.run(main)


def parts(sizes: Sizes) -> Times:
    """Commit, step, step with a deadline, whole execution: over a memory store, on stock trio."""
    measured: dict[str, Callable[[], float]] = {
        "commit": lambda: _commits(sizes.calls),
        "step": lambda: _steps(sizes.calls, None),
        "step with a deadline": lambda: _steps(sizes.calls, 30.0),
        "execution of an empty flow": lambda: _one_flow(sizes.calls // 4),
    }
    times: Times = {}
    for name, measure in measured.items():
        with without_collector():
            times[name] = measure()
    return times


def _large_state(sizes: Sizes) -> FlowState:
    fold = FoldPass()
    records = [(EXECUTION_STARTED, '{"flowId":"f","flowVersion":null,"input":null}')]
    for number in range(sizes.steps_in_snapshot):
        name = quoted(f"step[{number}]")
        records += [
            (STEP_STARTED, _PAYLOAD.replace('"quote"', name, 1)),
            (STEP_COMPLETED, f'{{"attempt":1,"output":{{"receipt":"r-{number}"}},"step":{name}}}'),
        ]
    for sequence, (type, payload) in enumerate(records):
        fold.apply(
            seal(
                execution_id="e-1",
                sequence=sequence,
                type=type,
                payload_text=payload,
                timestamp_ms=1_700_000_000_000,
                append_id=f"worker/{sequence}",
                previous_hash=GENESIS_HASH,
            )
        )
    for number in range(sizes.emits_in_snapshot):
        fold.apply(emitted(len(records) + number))
    return fold.release()


def snapshots(sizes: Sizes) -> Times:
    """Encoding and decoding the snapshot of a large state, beside plain `json`."""
    state = _large_state(sizes)
    stored = encode_snapshot(state, {})
    with without_collector():
        return {
            "snapshot, encode": each(lambda: encode_snapshot(state, {}), 3),
            "snapshot, json.dumps with sorted keys": each(lambda: json.dumps(state, sort_keys=True), 3),
            "snapshot, decode": each(lambda: decode_snapshot(stored), 3),
            "snapshot, json.loads": each(lambda: json.loads(stored.text), 3),
        }


def ratios(_sizes: Sizes) -> Ratios:
    """Parts against a scheduling step, snapshots against plain `json`."""
    return [
        *((part, STOCK) for part in ("commit", "step", "step with a deadline", "execution of an empty flow")),
        ("snapshot, encode", "snapshot, json.dumps with sorted keys"),
        ("snapshot, decode", "snapshot, json.loads"),
    ]
