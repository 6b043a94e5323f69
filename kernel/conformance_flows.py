"""Conformance seen from above: flows must run on a store as they do on any other (K-LOG-5, K-RUN-6).

    trio.run(run_each, FLOW_CHECKS, make_store)

The other checks ask for each promise by itself; these run the kernel on the store, through a restart and a compaction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from kernel.conformance import FALSY_JSON, Check, _entry, _log, _want
from kernel.context import Context
from kernel.definitions import EffectContext, Flow, flow, step
from kernel.jsonform import Json, decode, encode
from kernel.learning import load_evidence, trajectories
from kernel.ports import Stores
from kernel.runtime import open_runtime

ORDER = ("route-b", "route-a", "10", "2")
"""Decision ids in an order that no sorting gives: not by text, nor by length, nor integers first."""


async def _to_its_gate(stores: Stores, flow: Flow, execution_id: str, input: Json, *, compacting: bool) -> None:
    async with open_runtime(stores=stores, flows=[flow]) as runtime:
        await runtime.start(flow, input, execution_id=execution_id)
        await runtime.wait_idle()
        if compacting:
            await runtime.compact(execution_id)


async def _through_it(stores: Stores, flow: Flow, execution_id: str, payload: Json) -> Json:
    """Open the gate in another runtime, and return the result."""
    async with open_runtime(stores=stores, flows=[flow]) as runtime:
        await runtime.deliver(execution_id, "GO", payload, correlation_key="", delivery_id="0")
        return await runtime.wait_result(execution_id)


# ---- falsy values ----------------------------------------------------------------------------------------------------


def _handing_on(called: Callable[[str, Json], Json]) -> Flow:
    """Return a flow whose input is what a step, a decider and an emit are about; its output is what opened its gate."""

    async def give(effect: EffectContext, input: Json) -> Json:
        return called("effect", input)

    given = step("given", give)

    @flow(id="conformance.handing-on")
    async def handing_on(ctx: Context, input: Json) -> Json:
        output = await ctx.execute(given, input)
        choice = await ctx.decide("chosen", partial(called, "decider", input))
        await ctx.emit("SAID", input)
        came = await ctx.suspend("GO", "")
        await ctx.emit("SEEN", [input, output, choice, came])
        return came

    return handing_on


async def falsy_values_pass_through_flows(stores: Stores, _: Stores) -> None:
    calls: list[tuple[str, str]] = []

    def called(what: str, value: Json) -> Json:
        calls.append((what, encode(value)))
        return value

    flow = _handing_on(called)
    for text in FALSY_JSON:
        for name in (text, f"{text} compacted"):
            await _to_its_gate(stores, flow, name, decode(text), compacting=name != text)
            _want(text, encode(await _through_it(stores, flow, name, decode(text))), f"the result of {name!r}")
            [seen, ended] = await _log(stores, name, (await _entry(stores, name)).head - 1)
            seen_payload, end = (cast("dict[str, Json]", decode(event.text))["payload"] for event in (seen, ended))
            _want(f"[{text},{text},{text},{text}]", encode(seen_payload), f"what {name!r} was handed")
            _want(f'{{"output":{text}}}', encode(end), f"the end of {name!r}")
        _want([("effect", text), ("decider", text)] * 2, calls, f"calls on {text}, each once an execution")
        calls.clear()


# ---- the order of keys -----------------------------------------------------------------------------------------------


@flow(id="conformance.deciding")
async def _deciding(ctx: Context, input: Json) -> Json:
    """Decide in an order that no sorting gives, and emit the same before the gate and after it."""
    choices = [await ctx.decide(name, partial(dict, z=name, aa=1)) for name in ORDER]
    await ctx.emit("DECIDED", {"b": 1, "aa": 2})
    told = await ctx.suspend("GO", "")
    await ctx.emit("DECIDED", {"b": 1, "aa": 2})
    return [choices, told]


async def order_of_keys_changes_nothing(stores: Stores, _: Stores) -> None:
    input: Json = {"z": 1, "b": 2, "aa": 3}
    payload: Json = {"y": 1, "é": 2, "b": [3]}
    for name in ("whole", "compacted"):
        await _to_its_gate(stores, _deciding, name, input, compacting=name == "compacted")
        result = await _through_it(stores, _deciding, name, payload)
        choices: list[Json] = [{"z": key, "aa": 1} for key in ORDER]
        _want(encode([choices, payload]), encode(result), f"the result of {name!r}")
        head = (await _entry(stores, name)).head
        # start, decisions, emit, gate, resume, emit, end: nothing was appended twice, nor left out
        _want(len(ORDER) + 5, head, f"the head of {name!r}")
    async with open_runtime(stores=stores, flows=[_deciding]) as runtime:
        await runtime.compact("compacted")
    whole, compacted = [await load_evidence(stores, name) for name in ("whole", "compacted")]
    _want(list(ORDER), [event.payload.get("decisionId") for event in compacted[:-1]], "decisions, after a compaction")
    _want(whole, compacted, "evidence of the same run, compacted")
    for discount in (0.0, 0.5, 0.9, 1.0):
        _want(trajectories(whole, discount), trajectories(compacted, discount), f"credit with discount {discount}")


FLOW_CHECKS: tuple[Check, ...] = (
    Check(name="falsy_values_pass_through_flows", rule="K-LOG-4", handles=1, body=falsy_values_pass_through_flows),
    Check(name="order_of_keys_changes_nothing", rule="K-RUN-6", handles=1, body=order_of_keys_changes_nothing),
)
"""All checks, in the order they are read."""
