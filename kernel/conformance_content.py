"""Conformance of `ContentStore`, a port of its own: large payloads by reference need it, nothing else does (K-LOG-6).

    @contextlib.asynccontextmanager
    async def make():
        async with my_store(place := fresh_place()) as store, my_store(place) as other:
            yield store.stores, store, other

    trio.run(run_each, CONTENT_CHECKS, make)

Each check gets a fresh store, and two handles on its content, the same one twice where there is only one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import attrs
import trio

from kernel.conformance import (
    FALSY_JSON,
    ODD_JSON,
    SECONDS_MAX,
    ConformanceFailure,
    _append,
    _refused,
    _verdict,
    _want,
    chain,
    large_json,
)
from kernel.content import with_content
from kernel.context import Context
from kernel.definitions import EffectContext, flow, step
from kernel.errors import ContentMissingError
from kernel.jsonform import Json
from kernel.ports import ContentStore, Stores
from kernel.runtime import open_runtime

MakeContent = Callable[[], AbstractAsyncContextManager[tuple[Stores, ContentStore, ContentStore]]]
Body = Callable[[Stores, ContentStore, ContentStore], Awaitable[None]]


@attrs.frozen(kw_only=True, slots=True)
class ContentCheck:
    """One thing that a `ContentStore` must do."""

    name: str
    rule: str
    body: Body

    async def run(self, make: MakeContent) -> None:
        """Run on a fresh store.  Raises `ConformanceFailure`, for what the store raises unasked too."""
        try:
            with trio.fail_after(SECONDS_MAX):
                async with make() as (stores, content, other):
                    await self.body(stores, content, other)
        except Exception as error:
            raise ConformanceFailure(f"{self.name} ({self.rule}): {_verdict(error)}") from error


_checks: list[ContentCheck] = []


def _check(body: Body) -> Body:
    _checks.append(ContentCheck(name=body.__name__, rule="K-LOG-6", body=body))
    return body


# ---- the port --------------------------------------------------------------------------------------------------------


@_check
async def unknown_content_is_none(stores: Stores, content: ContentStore, other: ContentStore) -> None:
    await content.put_content("known", "1")
    _want(None, await content.content("unknown"), "content that nobody has put")
    _want(None, await other.content(""), "content under no hash")


@_check
async def content_comes_back_exactly(stores: Stores, content: ContentStore, other: ContentStore) -> None:
    texts = {f"hash {i}": text for i, text in enumerate((*FALSY_JSON, ODD_JSON, large_json()))}
    for hash, text in texts.items():
        await content.put_content(hash, text)
    for hash, text in texts.items():
        _want(text, await other.content(hash), f"content of {len(text)} characters")


@_check
async def content_may_be_put_again(stores: Stores, content: ContentStore, other: ContentStore) -> None:
    await content.put_content("h", "[1]")
    async with trio.open_nursery() as nursery:
        for handle in (content, other) * 3:
            nursery.start_soon(handle.put_content, "h", "[1]")
            nursery.start_soon(handle.put_content, "another", "[2]")
    _want(("[1]", "[2]"), (await content.content("h"), await other.content("another")), "what was put again")


@_check
async def content_outlives_the_executions_that_refer_to_it(
    stores: Stores, content: ContentStore, other: ContentStore
) -> None:
    # A fork refers to it too, and whoever is deleted does not know of its forks.
    await _append(stores, chain("e", 3))
    await content.put_content("h", "[1]")
    await stores.events.truncate_prefix("e", 2)
    _want("[1]", await other.content("h"), "content after a truncation")
    if stores.disposal is not None:
        await stores.disposal.delete("e")
    _want("[1]", await other.content("h"), "content after a deletion")


# ---- under flows -----------------------------------------------------------------------------------------------------

_LIMIT_BYTES = 1_000
_LARGE = "é" * _LIMIT_BYTES


async def _echo(effect: EffectContext, input: Json) -> Json:
    return [input]


_ECHO = step("echo", _echo)


@flow(id="conformance.carrying")
async def _carrying(ctx: Context, input: Json) -> Json:
    await ctx.emit("CARRIED", input)
    output = await ctx.execute(_ECHO, input)
    return [output, await ctx.suspend("MORE"), {"__loomContent": input}]


@_check
async def flow_with_large_payloads_sees_no_reference(
    stores: Stores, content: ContentStore, other: ContentStore
) -> None:
    wanted = [[_LARGE], [_LARGE, 2], {"__loomContent": _LARGE}]
    for name in ("e", "compacted"):
        await _carry(stores, content, name, compacting=name == "compacted")
        layered = with_content(stores, other, inline_bytes_max=_LIMIT_BYTES)
        async with open_runtime(stores=layered, flows=[_carrying]) as runtime:
            await runtime.deliver(name, "MORE", [_LARGE, 2], delivery_id="d")
            _want(wanted, await runtime.wait_result(name), f"the result of {name!r}, by the other handle")
            _want(wanted, (await runtime.state(name))["output"], f"the output in the state of {name!r}")
    stored = await stores.events.read_from("e", 0)
    _want([], [event.sequence for event in stored if _LARGE in event.text], "events that hold a large payload")


@_check
async def content_that_is_missing_is_an_error(stores: Stores, content: ContentStore, other: ContentStore) -> None:
    await _carry(stores, content, "e", compacting=False)
    empty = with_content(stores, _Empty(), inline_bytes_max=_LIMIT_BYTES)
    async with _refused(ContentMissingError, "a read of a log whose content is gone"):
        await empty.events.read_from("e", 0)
    async with (
        open_runtime(stores=empty, flows=[_carrying]) as runtime,
        _refused(ContentMissingError, "the state of an execution whose content is gone"),
    ):
        await runtime.state("e")


async def _carry(stores: Stores, content: ContentStore, execution_id: str, *, compacting: bool) -> None:
    """Run the flow to its gate."""
    layered = with_content(stores, content, inline_bytes_max=_LIMIT_BYTES)
    async with open_runtime(stores=layered, flows=[_carrying]) as runtime:
        await runtime.start(_carrying, _LARGE, execution_id=execution_id)
        await runtime.wait_idle()
        if compacting:
            await runtime.compact(execution_id)


class _Empty:
    """A content store that was lost."""

    async def put_content(self, hash: str, text: str) -> None:
        raise AssertionError("nothing is to be put here")

    async def content(self, hash: str) -> str | None:
        return None


CONTENT_CHECKS: tuple[ContentCheck, ...] = tuple(_checks)
"""All checks, in the order they are read."""
