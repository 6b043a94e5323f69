"""Whole simulated runs against bare ones, and scheduling steps against stock trio's."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio
from measuring import Ratios, Sizes, Times, each_async

from dst import scheduler
from dst.choices import Calm, Choices, Random
from dst.run import Host, host
from kernel import SURFACES, Effect, EffectContext, Json, open_runtime
from kernel.adapters.memory import MemoryStore
from scenarios.order_saga import ORDER, OrderSaga

BARE = "run, bare kernel on stock trio"
STOCK = "step of 8 tasks, stock trio"

# ---- whole runs ------------------------------------------------------------------------------------------------------


def answering(answer: object) -> Effect:
    """Return an effect that gives this answer."""

    async def effect(_context: EffectContext, _input: Json) -> object:
        return answer

    return effect


_ANSWERS: dict[str, Effect] = {
    "quote": answering({"price": 590}),
    "reserve": answering({"order": ORDER, "shelf": ("B", 4)}),
    "charge": answering({"receipt": "r-1"}),
    "ship": answering({"parcel": "p-9"}),
    "refund": answering(None),
    "release": answering(None),
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
        BARE: _bare(sizes.runs),
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
        STOCK: _stock_switches(8, sizes.switches),
        "step of 8 tasks, simulated, arrival order": _our_switches(8, sizes.switches, None),
        "step of 8 tasks, simulated, chosen": _our_switches(8, sizes.switches, lambda options: len(options) - 1),
    }


# ---- ratios ----------------------------------------------------------------------------------------------------------


def ratios(_sizes: Sizes) -> Ratios:
    """Runs against a bare one, steps against stock trio's."""
    kinds = [f"run, simulated, {how}, {judged}" for how in ("calm", "random faults") for judged in _JUDGED]
    return [
        *((kind, BARE) for kind in kinds),
        ("step of 1 task, simulated", "step of 1 task, stock trio"),
        ("step of 8 tasks, simulated, arrival order", STOCK),
        ("step of 8 tasks, simulated, chosen", STOCK),
    ]


_JUDGED = ("no monitors", "all monitors")
