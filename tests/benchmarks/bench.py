"""What the harness and the kernel cost, measured against each other and against stock trio in one run.

    .venv/bin/python tests/benchmarks/bench.py [--quick] [--json]

Every number is process CPU time.  A round measures every variant once, one after the other, so that whatever else the
machine does meets all of them alike; a time is the median over rounds, and a ratio is the median of the rounds' ratios.
Ratios carry over to other machines; times do not.  The garbage collector is off while the kernel's parts are timed,
since a collection inside one window and not in another says nothing of either; whole runs are timed with it on, and
the harness collects between simulations as it always does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import attrs
import trio

from dst import scheduler
from dst.choices import Calm, Choices, Random
from dst.run import Host, host
from kernel import SURFACES, Context, Effect, EffectContext, Envelope, Flow, Json, flow, fold_events, open_runtime, step
from kernel import digest as kernel_digest
from kernel.adapters.memory import MemoryStore
from kernel.adapters.system import SystemClock
from kernel.digest import fnv1a64
from kernel.events import EXECUTION_STARTED, GENESIS_HASH, STEP_COMPLETED, STEP_STARTED, quoted, seal
from kernel.fold import FoldPass
from kernel.journal import AppendIds, Journal
from kernel.jsonform import encode
from kernel.lifecycle import Loaded, decode_snapshot, encode_snapshot
from kernel.state import FlowState
from scenarios.order_saga import ORDER, OrderSaga

Times = dict[str, float]
"""Seconds for one operation, by variant."""


@attrs.frozen(kw_only=True)
class Sizes:
    """How much is measured."""

    rounds: int
    runs: int  # whole runs of the order flow, in each variant
    switches: int  # scheduling steps
    calls: int  # of what takes microseconds
    emits: tuple[int, ...]  # at how many stamped emits the next one is timed
    window: int  # over the last so many before each
    steps_in_snapshot: int
    emits_in_snapshot: int


FULL = Sizes(
    rounds=5,
    runs=300,
    switches=40_000,
    calls=4_000,
    emits=(1_000, 10_000, 50_000),
    window=1_000,
    steps_in_snapshot=2_000,
    emits_in_snapshot=20_000,
)
QUICK = Sizes(
    rounds=2,
    runs=20,
    switches=2_000,
    calls=200,
    emits=(200, 400, 800),
    window=100,
    steps_in_snapshot=50,
    emits_in_snapshot=500,
)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Collect, then keep the garbage collector off for the block."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def each(call: Callable[[], object], times: int) -> float:
    """Return the seconds that one call takes."""
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times


async def each_async(call: Callable[[], Awaitable[object]], times: int) -> float:
    """Return the seconds that one awaited call takes."""
    began = time.process_time()
    for _ in range(times):
        await call()
    return (time.process_time() - began) / times


# ---- whole runs ------------------------------------------------------------------------------------------------------


def _answering(answer: object) -> Effect:
    async def effect(_context: EffectContext, _input: Json) -> object:
        return answer

    return effect


_ANSWERS: dict[str, Effect] = {
    "quote": _answering({"price": 590}),
    "reserve": _answering({"order": ORDER, "shelf": ("B", 4)}),
    "charge": _answering({"receipt": "r-1"}),
    "ship": _answering({"parcel": "p-9"}),
    "refund": _answering(None),
    "release": _answering(None),
}


def _bare(runs: int) -> float:
    """The order flow over a memory store on stock trio: no simulation at all."""
    flows = OrderSaga().flows()

    async def once() -> None:
        store = MemoryStore()
        async with open_runtime(
            stores=store.stores, flows=flows, effects=_ANSWERS, incarnation="worker", projections=[SURFACES]
        ) as runtime:
            await (await runtime.start("order", ORDER, execution_id="order-1")).result()

    async def main() -> float:
        await each_async(once, max(1, runs // 10))
        return await each_async(once, runs)

    return trio.run(main)


def _simulated(runs: int, choices: Callable[[int], Choices], *, judged: bool) -> float:
    async def body(simulations: Host) -> float:
        seeds = iter(range(runs + runs))

        async def once() -> None:
            await simulations.run(OrderSaga, choices(next(seeds)), judged=judged)

        await each_async(once, max(1, runs // 10))
        return await each_async(once, runs)

    return host(body)


def whole_runs(sizes: Sizes) -> Times:
    """Runs of order_saga, simulated and bare."""

    def calm(_seed: int) -> Choices:
        return Calm()

    def chance(seed: int) -> Choices:
        return Random(seed, OrderSaga.faults)

    return {
        "run, bare kernel on stock trio": _bare(sizes.runs),
        "run, simulated, calm, no monitors": _simulated(sizes.runs, calm, judged=False),
        "run, simulated, calm, all monitors": _simulated(sizes.runs, calm, judged=True),
        "run, simulated, random faults, no monitors": _simulated(sizes.runs, chance, judged=False),
        "run, simulated, random faults, all monitors": _simulated(sizes.runs, chance, judged=True),
    }


# ---- scheduling ------------------------------------------------------------------------------------------------------


async def _spin(times: int) -> None:
    for _ in range(times):
        await trio.lowlevel.checkpoint()


def _stock_switches(tasks: int, switches: int) -> float:
    async def main() -> float:
        began = time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(_spin, switches // tasks)
        return (time.process_time() - began) / switches

    return trio.run(main)


def _our_switches(tasks: int, switches: int, pick: Callable[[list[trio.lowlevel.Task]], int] | None) -> float:
    async def main(ours: scheduler.Scheduler) -> float:
        ours.pick = pick
        began = time.process_time()
        async with ours.simulation() as nursery:
            for _ in range(tasks):
                nursery.start_soon(_spin, switches // tasks)
            await ours.wait_idle()
        return (time.process_time() - began) / switches

    return scheduler.run(main)


def scheduling(sizes: Sizes) -> Times:
    """One scheduling step."""
    return {
        "step of 1 task, stock trio": _stock_switches(1, sizes.switches),
        "step of 1 task, simulated": _our_switches(1, sizes.switches, None),
        "step of 8 tasks, stock trio": _stock_switches(8, sizes.switches),
        "step of 8 tasks, simulated, arrival order": _our_switches(8, sizes.switches, None),
        "step of 8 tasks, simulated, chosen": _our_switches(8, sizes.switches, lambda options: len(options) - 1),
    }


# ---- emits -----------------------------------------------------------------------------------------------------------


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


def _emitted(number: int) -> Envelope:
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
    events = [_emitted(number) for number in range(sizes.emits[-1])]
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


# ---- the kernel's parts ----------------------------------------------------------------------------------------------

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


def _journal() -> Journal:
    return Journal.resume(
        Loaded(execution_id="e-1", fold=FoldPass(), projected={}, snapshot_sequence=-1),
        stores=MemoryStore().stores,
        clock=SystemClock(),
        append_ids=AppendIds("worker"),
        fence=0,
        projections=(),
        observers=(),
        snapshot_every=None,
    )


def _steps(calls: int, deadline: float | None) -> float:
    plain = step("quote", _answering(1), deadline=deadline)
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
        journal = _journal()
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
        fold.apply(_emitted(len(records) + number))
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


# ---- the whole -------------------------------------------------------------------------------------------------------

SECTIONS: tuple[Callable[[Sizes], Times], ...] = (whole_runs, scheduling, digests, emits, parts, snapshots)


def ratios(sizes: Sizes) -> list[tuple[str, str]]:
    """Return what is set against what: (dividend, divisor)."""
    bare, stock = "run, bare kernel on stock trio", "step of 8 tasks, stock trio"
    kinds = [f"run, simulated, {how}, {judged}" for how in ("calm", "random faults") for judged in _JUDGED]
    least, *more = sizes.emits
    return [
        *((kind, bare) for kind in kinds),
        ("step of 1 task, simulated", "step of 1 task, stock trio"),
        ("step of 8 tasks, simulated, arrival order", stock),
        ("step of 8 tasks, simulated, chosen", stock),
        ("digest of 300 bytes, definition", "digest of 300 bytes, as loaded"),
        *(
            (f"{what}, at {k:,}", f"{what}, at {least:,}")
            for what in ("emit, whole", "fold, in a pass", "fold, one event on a kept state")
            for k in more
        ),
        *((part, stock) for part in ("commit", "step", "step with a deadline", "execution of an empty flow")),
        ("snapshot, encode", "snapshot, json.dumps with sorted keys"),
        ("snapshot, decode", "snapshot, json.loads"),
    ]


_JUDGED = ("no monitors", "all monitors")


def measure(sizes: Sizes) -> dict[str, object]:
    """Return the report as plain values."""
    rounds: list[Times] = []
    for _ in range(sizes.rounds):
        times: Times = {}
        for section in SECTIONS:
            times |= section(sizes)
        rounds.append(times)
    return {
        "python": platform.python_version(),
        "trio": trio.__version__,
        "fast_digest": importlib.util.find_spec("fnv_c") is not None,
        "rounds": sizes.rounds,
        "ratios": [
            {
                "of": above,
                "to": below,
                "ratio": round(statistics.median(r[above] / max(r[below], 1e-9) for r in rounds), 4),
            }
            for above, below in ratios(sizes)
        ],
        "microseconds": {name: round(statistics.median(r[name] for r in rounds) * 1e6, 3) for name in rounds[0]},
    }


def show(report: dict[str, object]) -> Iterator[str]:
    """Yield the report's lines: ratios first."""
    fast = "with fnv-c" if report["fast_digest"] else "without fnv-c"
    yield f"Python {report['python']}, trio {report['trio']}, {fast}; medians of {report['rounds']} rounds, CPU time"
    yield ""
    yield "ratio"
    for row in _rows(report["ratios"]):
        yield f"{row['ratio']:9.2f}  {row['of']}  /  {row['to']}"
    yield ""
    yield "microseconds       a second"
    times = report["microseconds"]
    assert isinstance(times, dict)
    for name, microseconds in times.items():
        yield f"{microseconds:12,.2f}  {1e6 / max(microseconds, 1e-3):13,.0f}  {name}"


def _rows(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure the harness and the kernel; ratios first.")
    parser.add_argument("--quick", action="store_true", help="little of everything: a test of the benchmark itself")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    report = measure(QUICK if arguments.quick else FULL)
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(show(report)))


if __name__ == "__main__":
    main()
