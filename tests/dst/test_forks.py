"""Runs that leave a failing one, and the passing one that is nearest, over a toy whose cause is known."""

from __future__ import annotations

from dst.cause import Search
from dst.choices import Calm, Written
from dst.explain import cause_of
from dst.faults import CRASH_AFTER, CRASH_BEFORE, GO, HOLD, HOLDING, menu
from dst.forks import Failing, Forked, failing_run, forks, watched
from dst.judging import run_one
from dst.nearest import Nearby, changes, likeness
from dst.run import host
from dst.schedule import Deviation
from dst.transparency import Transparency
from tests.dst.toy_scenarios import Forgetful, Steady

SITE = "append:box-1:WRITTEN:item"
AFTER_1 = Deviation(at=f"{SITE} 1#1", do="crash-after")  # what was written before is written again
BEFORE_0 = Deviation(at=f"{SITE} 0#1", do="crash-before")  # nothing was: this does no harm


def failing(*deviations: Deviation) -> Failing:
    found = host(lambda h: failing_run(h, Transparency(h), Forgetful, None, deviations))
    assert found is not None
    return found


def test_watching_changes_nothing():
    async def body(h):
        plain = await h.run(Forgetful, Written([AFTER_1]))
        seen, passed = await watched(h, Forgetful, Written([AFTER_1]))
        return plain, seen, passed

    plain, seen, passed = host(body)
    assert plain.digest == seen.digest
    assert ["go", "crash-after", "go"] == [point.did for point in passed][:3]


def test_a_schedule_that_passes_is_no_failing_one():
    assert host(lambda h: failing_run(h, Transparency(h), Steady, None, [AFTER_1])) is None


def test_the_points_before_it_fails_are_its_moments():
    found = failing(BEFORE_0, AFTER_1)
    assert (1, 3) == found.deviations
    assert (0, 1, 2, 3, 4) == found.moments(found.faults)
    assert found.last < len(found.passed)


def test_a_point_where_nothing_can_be_done_is_no_moment():
    found = failing(AFTER_1)
    assert (0, 2) == found.moments([HOLDING])


def test_a_run_that_is_followed_to_its_end_is_the_same():
    found = failing(BEFORE_0, AFTER_1)
    choices = Forked(found.result.deviations, len(found.passed), Calm())
    assert found.result.digest == host(lambda h: h.run(Forgetful, choices)).digest


def test_a_run_that_is_not_followed_is_another():
    choices = Forked([AFTER_1], 0, Calm())
    assert () == host(lambda h: h.run(Forgetful, choices)).deviations


def test_the_crash_after_a_write_is_the_cause_and_not_the_one_before_it():
    found = failing(BEFORE_0, AFTER_1)

    async def body(h):
        fork = forks(h, Transparency(h), found, [CRASH_BEFORE])  # which can come too late alone
        moments = found.moments([CRASH_BEFORE])
        search = Search(fork, moments=moments, deviations=found.deviations, times=12, budget=1_000)
        await search.run()
        return search.turn

    turn = host(body)
    assert (3, 12, True) == (turn.at.followed, turn.at.failing, turn.certain)
    assert turn.before.failing < 12


def test_the_cause_is_one_sentence_and_the_same_each_time():
    first, second = (host(lambda h: cause_of(h, Transparency(h), Forgetful, None, [AFTER_1])) for _ in range(2))
    assert first == second
    assert first.startswith("the crash of writer-1 after it appended WRITTEN item 1 of box-1 decides it: 16 of 16 runs")


def test_what_does_not_fail_has_no_cause():
    assert "" == host(lambda h: cause_of(h, Transparency(h), Steady, None, [AFTER_1]))


# ---- the nearest passing run -----------------------------------------------------------------------------------------

MENU = menu((CRASH_BEFORE, CRASH_AFTER, HOLDING), ((HOLD, HOLDING), ("a", CRASH_BEFORE), ("b", CRASH_AFTER)))


def test_each_deviation_is_left_out_or_changed_and_at_last_all_are():
    one, other = Deviation(at="x#1", do="a"), Deviation(at="y#1", do="b")
    tried = list(changes((one, other), {"x#1": MENU, "x#2": MENU, "y#1": MENU}))
    said = [sorted((d.at, d.do) for d in change.deviations) for change in tried]
    assert [
        [("y#1", "b")],
        [("x#1", "b"), ("y#1", "b")],
        [("x#2", "a"), ("y#1", "b")],
        [("x#1", "a")],
        [("x#1", "a"), ("y#1", "a")],
        [],
    ] == said
    assert GO not in {d.do for change in tried for d in change.deviations}


def test_where_calm_runs_fail_something_is_added_the_latest_first():
    tried = [(change.index, change.to, change.deviations) for change in changes((), {"x#1": MENU, "y#1": MENU})]
    added = [Deviation(at=at, do=do) for at in ("y#1", "x#1") for do in ("a", "b")]
    assert [*((None, one, (one,)) for one in added), (None, None, ())] == tried


def test_two_deviations_never_come_to_one_point():
    pair = (Deviation(at="x#1", do="a"), Deviation(at="x#2", do="a"))
    assert all(2 >= len(c.deviations) == len({d.at for d in c.deviations}) for c in changes(pair, {"x#1": MENU}))


def test_likeness_is_the_records_from_the_beginning_and_then_those_in_any_order():
    records = [b'[["a"]]', b'[["b"]]', b'[["c"]]', b'[["d"]]']
    assert (1, 2) == likeness(records, [("a",), ("d",), ("x",), ("c",)])
    assert (4, 0) == likeness(records, [("a",), ("b",), ("c",), ("d",)])
    assert (2, 0) == likeness(records, [("a",), ("b",)])


def nearby(found: Failing, budget: int = 100) -> Nearby:
    async def body(h):
        async def passes(deviations):
            result, wrong = await run_one(h, Transparency(h), Forgetful, Written(deviations))
            return result if wrong is None else None

        looking = Nearby(found.result, {p.label: p.menu for p in found.passed}, passes, budget)
        await looking.run()
        return looking

    return host(body)


def test_the_nearest_passing_run_parts_at_the_crash():
    found = failing(AFTER_1)
    looking = nearby(found)
    assert ("fault", AFTER_1.at, "crash-after") == found.result.records[looking.nearest.at]
    assert ((), 0) == (looking.nearest.result.deviations, looking.nearest.change.index)


def test_the_latest_addition_with_which_it_passes_is_the_nearest_and_none_before_it_is_tried():
    async def body(h):
        calm = await h.run(Steady, Calm())
        _, passed = await watched(h, Steady, Calm())
        ran = []

        async def passes(deviations):
            ran.append(deviations)
            return await h.run(Steady, Written(deviations))

        looking = Nearby(calm, {p.label: p.menu for p in passed}, passes, 100)
        assert await looking.run()
        return passed, looking, ran

    passed, looking, ran = host(body)
    latest = [p.label for p in passed if set(p.menu.names) - {GO, HOLD}][-1]
    assert {latest} == {looking.nearest.change.to.at} == {d.at for (d,) in ran}


def test_without_runs_there_is_no_nearest():
    looking = nearby(failing(AFTER_1), budget=0)
    assert (None, 0) == (looking.nearest, looking.tried)
