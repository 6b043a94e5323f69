"""Lists, deletion, size limits, payloads by reference, codecs (K-USER, K-LOG-6)."""

from __future__ import annotations

import base64
import contextlib
import json
import zlib

import pytest
import trio

from kernel import ExecutionFailed, NoJsonForm, TooLarge, TypedFailure, flow, step
from kernel.adapters.memory import MemoryStore
from kernel.codec import with_codec
from kernel.conformance import CHECKS, ConformanceFailure
from kernel.conformance_content import CONTENT_CHECKS
from kernel.conformance_disposal import DISPOSAL_CHECKS
from kernel.content import with_content
from kernel.errors import ContentMissingError, CorruptLog, NotEnded, UnknownExecution
from kernel.ports import Delivery
from kernel.verify import verify


@flow
async def parked(ctx, input):
    return await ctx.suspend("go")


@flow
async def short(ctx, input):
    return input


# ---- lists and deletion ----------------------------------------------------------------------------------------------


def test_executions_are_listed_by_status_flow_and_id(bench):
    # K-USER-1
    async def story():
        async with bench.process(parked, short) as runtime:
            for name, which in (("a1", parked), ("a2", short), ("b1", parked), ("b2", short)):
                await runtime.start(which, execution_id=name)
            await bench.settle()
            filters = [((), {}), (("suspended",), {}), ((), {"flow_id": "short"}), (("completed",), {"id_prefix": "b"})]
            return [[e.execution_id for e in await runtime.executions(*s, **more)] for s, more in filters]

    assert [["a1", "a2", "b1", "b2"], ["a1", "b1"], ["a2", "b2"], ["b2"]] == trio.run(story)


def test_what_is_deleted_is_gone_and_its_id_is_free(make_bench, open_store):
    # K-USER-1
    async def story(bench):
        async with bench.process(parked) as runtime:
            await runtime.delete("x")
            await runtime.start(parked, 1, execution_id="x")
            await runtime.start(parked, execution_id="y")
            await runtime.wait_idle()
            with pytest.raises(NotEnded, match="suspended"):
                await runtime.delete("x")
            await runtime.deliver("x", "go", delivery_id="d")
            await runtime.wait_result("x")
            await runtime.deliver("x", "go", delivery_id="late")
            await runtime.compact("x")
            await runtime.delete("x")
            assert ["y"] == [e.execution_id for e in await runtime.executions()]
            left = [await bench.store.read_from("x", 0), await bench.store.load("x"), await bench.store.pending("x")]
            assert [[], None, []] == [kept if kept is None else list(kept) for kept in left]
            with pytest.raises(UnknownExecution):
                await runtime.state("x")
            await runtime.start(parked, 2, execution_id="x")
            await runtime.wait_idle()
            assert ["EXECUTION_STARTED", "EXECUTION_SUSPENDED"] == [event.type for event in await bench.envelopes()]

    async def on_a_store():
        async with open_store() as store:
            await story(make_bench(store=store))

    trio.run(on_a_store)


@pytest.mark.parametrize("check", DISPOSAL_CHECKS, ids=lambda check: check.name)
def test_stores_conform_in_deleting(open_store, check):
    # K-USER-1
    @contextlib.asynccontextmanager
    async def handle(_stores=None):
        async with open_store() as store:
            yield store.stores

    trio.run(check.run, handle, handle)


class KeepsTheMail(MemoryStore):
    async def delete(self, execution_id):
        mail = self._mail.get(execution_id, {})
        await super().delete(execution_id)
        if mail:
            self._mail[execution_id] = mail


class DeletesWhatItHas(MemoryStore):
    async def delete(self, execution_id):
        assert execution_id in self._executions
        await super().delete(execution_id)


class RemembersTheOwner(MemoryStore):
    async def claim(self, execution_id, owner):
        return 1 if execution_id not in self._executions else await super().claim(execution_id, owner)


class KeepsTheSnapshot(MemoryStore):
    """Hidden, but a newer one has to be newer than it."""

    async def save(self, execution_id, snapshot):
        self.newest = max(getattr(self, "newest", -1), snapshot.sequence)
        if snapshot.sequence == self.newest:
            await super().save(execution_id, snapshot)


class DeletesBitByBit(MemoryStore):
    async def delete(self, execution_id):
        execution = self._executions.get(execution_id)
        if execution is not None:
            await trio.lowlevel.checkpoint()
            del execution.events[:2]
            await trio.lowlevel.checkpoint()
        kept = execution is not None and execution.events
        await super().delete(execution_id)
        if kept and len(kept) < 4:
            self._executions[execution_id] = execution


NOT_DELETING = {
    "deleted_execution_is_forgotten_whole": KeepsTheMail,
    "deletion_of_what_is_not_there_is_no_error": DeletesWhatItHas,
    "who_worked_on_a_deleted_execution_is_refused": RemembersTheOwner,
    "id_of_a_deleted_execution_begins_anew": KeepsTheSnapshot,
    "deletion_and_append_at_once_leave_nothing": DeletesBitByBit,
}


@pytest.mark.parametrize("check", DISPOSAL_CHECKS, ids=lambda check: check.name)
def test_a_store_that_deletes_badly_does_not_conform(check):
    # K-USER-1
    @contextlib.asynccontextmanager
    async def make():
        yield NOT_DELETING[check.name]().stores

    with pytest.raises(ConformanceFailure, match=check.name):
        trio.run(check.run, make, contextlib.nullcontext)


# ---- size limits -----------------------------------------------------------------------------------------------------


class Declined(TypedFailure):
    pass


def text_of(size):
    """A text whose JSON has that many bytes."""
    return "é" + "x" * (size - 4)


PLACES = {  # and what the error calls them
    "input of step 's'": lambda ctx, value: ctx.execute(step("s", _give(None)), value),
    "output of step 's'": lambda ctx, value: ctx.execute(step("s", _give(value))),
    "data of Declined of step 's'": lambda ctx, value: ctx.execute(step("s", _fail(value), failures=(Declined,))),
    "choice of decision 'd'": lambda ctx, value: ctx.decide("d", lambda: value),
    "payload": lambda ctx, value: ctx.emit("note", value),
    "payload ": lambda ctx, value: ctx.execute(step("s", _say(value))),
    "input": lambda ctx, value: ctx.continue_as_new(value),
}


def _give(value):
    async def effect(_ectx, _input):
        return value

    return effect


def _fail(value):
    async def effect(_ectx, _input):
        raise Declined(value)

    return effect


def _say(value):
    async def effect(ectx, _input):
        await ectx.emit("said", value)

    return effect


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("size", "fits"), [(99, True), (100, True), (101, False)])
def test_a_value_that_is_too_large_names_its_place_and_can_be_caught(bench, place, size, fits):
    # K-LOG-6, B97
    caught = []

    @flow
    async def careful(ctx, input):
        if input == "begin":
            with contextlib.suppress(Declined):
                try:
                    await PLACES[place](ctx, text_of(size))
                except TooLarge as error:
                    caught.append(error.path)

    async def story():
        async with bench.process(careful, payload_bytes_max=100) as runtime:
            handle = await runtime.start(careful, "begin", execution_id="x")
            await handle.result()

    trio.run(story)
    assert ([] if fits else [place.strip()]) == caught


def test_an_output_that_is_too_large_fails_the_execution_and_an_input_is_the_callers_error(bench):
    # K-LOG-6
    @flow
    async def big(ctx, input):
        return "x" * 200

    async def story():
        async with bench.process(big, parked, payload_bytes_max=100) as runtime:
            with pytest.raises(TooLarge, match="input: its JSON has 202 bytes, 100 is the most"):
                await runtime.start(big, "x" * 200, execution_id="x")
            handle = await runtime.start(big, execution_id="x")
            with pytest.raises(ExecutionFailed, match="output: its JSON has 202 bytes"):
                await handle.result()
            await runtime.start(parked, execution_id="y")
            with pytest.raises(TooLarge, match="payload of delivery 'd'"):
                await runtime.deliver("y", "go", "x" * 200, delivery_id="d")

    trio.run(story)
    assert issubclass(TooLarge, NoJsonForm)  # nothing is appended then, and a step is not retried


# ---- content by reference --------------------------------------------------------------------------------------------


@flow
async def carrying(ctx, input):
    await ctx.emit("small", {"__loomContent": {"hash": "of my own"}})
    await ctx.emit("nested", {"mine": {"__loomContent": {"hash": "h"}}})
    await ctx.emit("large", {"__loomContent": input})
    out = await ctx.execute(step("s", _give(["é" * 500, None])))
    return [out, await ctx.suspend("go"), input]


async def carried(make_bench, inner, stores, *, compacting):
    """Run `carrying` over `stores`; return the bench, the result, and what the inner store holds."""
    bench = make_bench(store=inner)
    raw = []
    async with bench.process(carrying, stores=stores) as runtime:
        await runtime.start(carrying, "y" * 500, execution_id="x")
        await runtime.wait_idle()
        raw += [stored.text for stored in await inner.read_from("x", 0)]
        if compacting:
            await runtime.compact("x")
    async with bench.process(carrying, stores=stores) as runtime:
        await runtime.deliver("x", "go", "z" * 500, delivery_id="d")
        result = await runtime.wait_result("x")
        state = await runtime.state("x")
    return result, state, raw


WANTED = [["é" * 500, None], "z" * 500, "y" * 500]


@pytest.mark.parametrize("compacting", [False, True])
def test_large_payloads_are_kept_by_reference_and_nobody_sees_one(make_bench, open_store, compacting):
    # K-LOG-6, K-LIVE-3
    async def story():
        async with open_store() as inner:
            return await carry(inner)

    async def carry(inner):
        stores = with_content(inner.stores, inner, inline_bytes_max=400)
        result, state, raw = await carried(make_bench, inner, stores, compacting=compacting)
        if not compacting:
            log = await stores.events.read_from("x", 0)
            assert verify("x", log) is None
            plain = {json.loads(stored.text)["type"]: json.loads(stored.text)["payload"] for stored in log}
            assert {"__loomContent": {"hash": "of my own"}} == plain["small"]
            assert {"mine": {"__loomContent": {"hash": "h"}}} == plain["nested"]
            assert {"__loomContent": "y" * 500} == plain["large"]
        return result, json.dumps(state), raw

    result, state, raw = trio.run(story)
    assert WANTED == result
    assert "__loomContent" not in state
    assert all(len(text) < 700 for text in raw)
    assert 3 == sum('{"__loomContent":{"bytes"' in text for text in raw)


def test_content_that_is_missing_or_was_edited_is_an_error_and_no_state(make_bench):
    # K-LOG-6
    async def story():
        inner = MemoryStore()
        stores = with_content(inner.stores, inner, inline_bytes_max=400)
        await carried(make_bench, inner, stores, compacting=False)
        some = next(iter(inner._contents))
        inner._contents[some] = '"something else"'
        with pytest.raises(CorruptLog, match="not what was appended"):
            await stores.events.read_from("x", 0)
        del inner._contents[some]
        with pytest.raises(ContentMissingError, match=some):
            await stores.events.read_from("x", 0)
        bench = make_bench(store=inner)
        async with bench.process(carrying, stores=stores) as runtime:
            with pytest.raises(ContentMissingError):
                await runtime.state("x")

    trio.run(story)


@pytest.mark.parametrize("check", CONTENT_CHECKS, ids=lambda check: check.name)
def test_content_stores_conform(open_store, check):
    # K-LOG-6
    @contextlib.asynccontextmanager
    async def make():
        async with open_store() as store, open_store() as other:
            yield store.stores, store, other

    trio.run(check.run, make)


class KeepsTheFirstLine(MemoryStore):
    async def content(self, hash):
        text = await super().content(hash)
        return text and text[:100_000]


class NothingIsEmpty(MemoryStore):
    async def content(self, hash):
        return await super().content(hash) or ""


class RefusesAgain(MemoryStore):
    async def put_content(self, hash, text):
        assert hash not in self._contents
        await super().put_content(hash, text)


class DeletesContent(MemoryStore):
    async def delete(self, execution_id):
        await super().delete(execution_id)
        self._contents.clear()


class Forgets(MemoryStore):
    async def put_content(self, hash, text):
        self._contents[hash] = text if len(text) < 1_000 or "__loom" in text else '"forgotten"'


BREAKAGES = {
    "unknown_content_is_none": NothingIsEmpty,
    "content_comes_back_exactly": KeepsTheFirstLine,
    "content_may_be_put_again": RefusesAgain,
    "content_outlives_the_executions_that_refer_to_it": DeletesContent,
    "flow_with_large_payloads_sees_no_reference": Forgets,
}


def test_each_content_check_but_the_kernels_own_has_a_broken_store():
    # `content_that_is_missing_is_an_error` is about the layer above the port
    assert {*BREAKAGES, "content_that_is_missing_is_an_error"} == {check.name for check in CONTENT_CHECKS}


@pytest.mark.parametrize("check", [c for c in CONTENT_CHECKS if c.name in BREAKAGES], ids=lambda check: check.name)
def test_a_broken_content_store_does_not_conform(check):
    # K-LOG-6
    broken = BREAKAGES[check.name]()

    @contextlib.asynccontextmanager
    async def make():
        yield broken.stores, broken, broken

    with pytest.raises(ConformanceFailure, match=check.name):
        trio.run(check.run, make)


# ---- codecs ----------------------------------------------------------------------------------------------------------


class Zipped:
    def encode(self, text):
        return base64.b64encode(zlib.compress(text.encode())).decode()

    def decode(self, text):
        return zlib.decompress(base64.b64decode(text)).decode()


@pytest.mark.parametrize("compacting", [False, True])
def test_a_codec_sees_everything_that_is_stored_and_nobody_sees_it(make_bench, compacting):
    # K-USER-3
    async def story():
        plain_store, inner = MemoryStore(), MemoryStore()
        coded = with_codec(inner.stores, Zipped())
        plain, _, _ = await carried(make_bench, plain_store, plain_store.stores, compacting=compacting)
        result, _, raw = await carried(make_bench, inner, coded, compacting=compacting)
        assert plain == result == WANTED
        if not compacting:
            assert verify("x", await coded.events.read_from("x", 0)) is None
            hashes = [[stored.hash for stored in await s.read_from("x", 0)][:6] for s in (plain_store, inner)]
            assert len(set(map(str, hashes))) == 1  # over the plain form
        await coded.mailbox.put("x", (await _some_delivery()))
        stored = [*raw, *(d.payload_text for d in await inner.pending("x"))]
        if compacting:
            stored.append((await inner.load("x")).text)
        return stored

    for text in trio.run(story):
        assert text.startswith('{"__loomCoded":')
        assert "yyyy" not in text


async def _some_delivery():

    return Delivery(delivery_id="q", on="on", correlation_key=None, payload_text='"yyyyyyyy"')


def test_what_was_stored_before_there_was_a_codec_is_read_as_it_is(make_bench):
    # K-USER-3
    async def story():
        inner = MemoryStore()
        bench = make_bench(store=inner)
        await bench.run(parked)
        async with bench.process(parked, stores=with_codec(inner.stores, Zipped())) as runtime:
            await runtime.deliver("x", "go", 5, delivery_id="d")
            return await runtime.wait_result("x")

    assert 5 == trio.run(story)


WRAPPERS = {
    "codec": lambda store: with_codec(store.stores, Zipped()),
    "content": lambda store: with_content(store.stores, store, inline_bytes_max=2_000),
    "both": lambda store: with_content(with_codec(store.stores, Zipped()), store, inline_bytes_max=2_000),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapped_stores_conform(wrapper, check):
    # K-LOG-5, K-LOG-6, K-USER-3
    @contextlib.asynccontextmanager
    async def make():
        yield WRAPPERS[wrapper](MemoryStore())

    @contextlib.asynccontextmanager
    async def second(stores):
        yield stores

    trio.run(check.run, make, second)
