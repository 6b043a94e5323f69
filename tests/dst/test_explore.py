"""Exploration: what it says of schedules that it never ran is what these do when they are run."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import attrs
import pytest

from dst.choices import Written
from dst.faults import Menu
from dst.invariants import Judge
from dst.run import Host, RunResult, host
from dst.scenario import Scenario
from dst.schedule import Deviation
from dst.simulation import Moment, Simulation
from dst.strategies.caps import Caps
from dst.strategies.explore import ROOT, Exploration, Explorer, explore
from dst.strategies.graph import Graph, Hold, Key, State, count_schedules
from dst.strategies.product import search
from dst.strategies.view import Bounds, segment_start
from dst.trace import Record
from dst.verdict import Verdict
from kernel.events import Envelope, stamp_of
from scenarios.catalogue import SCENARIOS
from scenarios.mutants import MUTANTS

Path_ = tuple[tuple[Key, Hold], ...]
ORDER, CHAT = SCENARIOS["order_saga"], SCENARIOS["chat_session"]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The toys, by the name under which the command line finds them as well."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return __import__("explored_toys")


STORY = frozenset({"append-answer-lost", "effect-refused", "effect-answer-lost", "step-timeout", "card-declined"})
"""The kinds of faults that mutants need: others at every append make many more states."""


def explored(scenario: type[Scenario], **bounds: float | frozenset[str]) -> Exploration:
    """Explore on a host of its own."""
    return host(lambda h: explore(h, scenario, Bounds(**bounds)))  # type: ignore[arg-type]


def with_explorer(scenario: type[Scenario], body: Callable[[Host, Explorer], Awaitable[None]], **bounds: float) -> None:
    """Explore with one cap, then go on with what was found out."""

    async def main(simulations: Host) -> None:
        explorer = Explorer(simulations, scenario, Bounds(**bounds))  # type: ignore[arg-type]
        await explorer.run()
        await body(simulations, explorer)

    host(main)


# ---- closing ---------------------------------------------------------------------------------------------------------


def test_an_order_closes_and_stands_for_more_schedules_than_anybody_runs() -> None:
    report = explored(ORDER)
    assert report.closed
    assert (0, 0, 0) == (len(report.found), len(report.spurious), len(report.inconclusive))
    assert report.schedules_covered[10] > 10**9
    assert report.schedules_covered == sorted(set(report.schedules_covered))
    assert report.runs < 200


def test_an_order_in_which_one_other_thing_goes_wrong_has_no_spurious_path() -> None:
    report = explored(ORDER, others=1, states_max=250)
    assert not report.closed
    assert ["250 states"] == report.cut_short
    assert (0, 0, 0) == (len(report.found), len(report.spurious), len(report.inconclusive))


@pytest.mark.slow
def test_a_chat_closes() -> None:
    report = explored(CHAT)
    assert report.closed
    assert report.states < 1000
    assert report.schedules_covered[10] > 10**14


def test_bounds_that_are_reached_are_named() -> None:
    assert ["5 states"] == explored(ORDER, states_max=5).cut_short
    assert ["0 s"] == explored(ORDER, seconds_max=0).cut_short


def test_what_was_explored_of_a_space_that_is_not_closed_is_counted() -> None:
    whole, part = explored(ORDER).schedules_covered, explored(ORDER, states_max=12).schedules_covered
    assert 1 < part[2] < whole[2]


def test_time_is_a_bound_of_the_search_of_paths_too(toys: ModuleType) -> None:
    """Its paths have no end, so that it ends at all is what is tested."""
    report = explored(toys.Boundless, seconds_max=0.5)
    assert ["0.5 s", "paths of the graph were not searched to the end for: performed-at-most"] == report.stopped
    assert (False, []) == (report.closed, report.found)


# ---- counting --------------------------------------------------------------------------------------------------------


def hold(child: str, *, crash: bool = True) -> Hold:
    """An edge of a graph made by hand."""
    return Hold(position=0, point="p#1", nth=1, option="o", crash=crash, child=(child,))


def graph(**edges: Sequence[Hold]) -> Graph:
    """A graph made by hand."""
    return {(name,): State(key=(name,), deviations=(), holds=holds) for name, holds in edges.items()}


GRAPHS = {
    "no edge": graph(a=()),
    "a loop": graph(a=(hold("a"),)),
    "two ways and a cycle": graph(a=(hold("a"), hold("b"), hold("b")), b=(hold("c"), hold("a")), c=()),
    "other faults": graph(a=(hold("f", crash=False), hold("b")), f=(hold("b"), hold("b")), b=(hold("b"), hold("a"))),
    "other faults in a row": graph(
        a=(hold("f", crash=False), hold("g", crash=False)),
        f=(hold("h", crash=False), hold("a")),
        g=(hold("h", crash=False), hold("h", crash=False), hold("b")),
        h=(hold("b"),),
        b=(hold("b"),),
    ),
}


def paths(graph: Graph, root: Key, crashes_max: int) -> Iterator[tuple[Path_, Key]]:
    """Yield every path of up to so many crashes, and where it ends."""
    stack: list[tuple[Path_, Key]] = [((), root)]
    while stack:
        path, key = stack.pop()
        yield path, key
        crashes = sum(hold.crash for _, hold in path)
        stack += [
            ((*path, (key, hold)), hold.child) for hold in graph[key].holds if crashes + hold.crash <= crashes_max
        ]


@pytest.mark.parametrize("name", GRAPHS)
def test_schedules_are_counted_as_paths(name: str) -> None:
    by_hand = [sum(1 for _ in paths(GRAPHS[name], ("a",), crashes)) for crashes in range(5)]
    assert by_hand == count_schedules(GRAPHS[name], ("a",), 4)


# ---- what is predicted is what happens -------------------------------------------------------------------------------


def predicted(graph: Graph, path: Path_, end: Key) -> list[Record]:
    """Return the trace that a path stands for: its segments, each up to where it is left."""
    records: list[Record] = []
    for key, hold in path:
        records += graph[key].records[: hold.position]
    return [*records, *graph[end].records]


_OCCURRENCE = re.compile(r"#\d+$")
_INCARNATION = re.compile(r"(worker)\D?\d+")
_OF_THE_HARNESS = ("folded", "clock", "fault", "crash", "replayed")
"""Counted over a whole trace, or how a state was come to, or of prefixes that the log's last hash picks."""


def shape(records: Sequence[Record]) -> list[object]:
    """Return a trace without what no reader orders by: positions, times, fences, attempts, incarnations."""
    return [tuple(map(_bare, record)) for record in records if record[0] not in _OF_THE_HARNESS]


def _bare(field: object) -> object:
    if isinstance(field, Envelope):
        payload = field.payload
        kept = {k: v for k, v in payload.items() if k != "attempt"} if isinstance(payload, dict) else payload
        return field.type, json.dumps(kept, sort_keys=True), stamp_of(field)
    if isinstance(field, str):
        return _INCARNATION.sub(r"\1", _OCCURRENCE.sub("", field))
    return "a number" if isinstance(field, int) and not isinstance(field, bool) else field


def sampled(graph: Graph, number: int, crashes: int) -> list[tuple[Path_, Key]]:
    """Return paths drawn at random: each of up to so many edges."""
    draws, found = random.Random(5), []
    for _ in range(number):
        path: Path_ = ()
        key: Key = ROOT
        for _ in range(draws.randint(1, crashes)):
            if not graph[key].holds:
                break
            hold = draws.choice(list(graph[key].holds))
            if not graph[hold.child].visited:
                break
            path, key = (*path, (key, hold)), hold.child
        found.append((path, key))
    return found


@pytest.mark.parametrize(
    ("scenario", "bounds"),
    [(ORDER, {}), (ORDER, {"others": 1, "states_max": 250}), (CHAT, {"states_max": 60})],
    ids=["order", "order with another fault", "chat"],
)
def test_paths_that_nobody_ran_do_what_the_graph_says(scenario: type[Scenario], bounds: dict[str, float]) -> None:
    async def compare(simulations: Host, explorer: Explorer) -> None:
        judge = Judge([i for i in scenario.invariants if i.composable])
        for path, end in sampled(explorer.graph, 30, 6):
            deviations = await explorer.schedule(path)
            assert deviations is not None
            result = await simulations.run(scenario, Written(deviations))
            foretold = predicted(explorer.graph, path, end)
            assert shape(foretold) == shape(result.records)
            assert judge.judge(foretold).verdict == judge.judge(result.records).verdict == Verdict.PASS

    with_explorer(scenario, compare, **bounds)


@pytest.mark.parametrize(
    ("scenario", "bounds"),
    [(ORDER, {}), (ORDER, {"others": 1, "states_max": 250}), (CHAT, {"states_max": 150})],
    ids=["order", "order with another fault", "chat"],
)
def test_different_logs_with_equal_digests_behave_alike(scenario: type[Scenario], bounds: dict[str, float]) -> None:
    async def compare(simulations: Host, explorer: Explorer) -> None:
        edges = [
            ((*state.deviations, Deviation(at=hold.point, do=hold.option)), explorer.graph[hold.child])
            for state in explorer.graph.values()
            for hold in state.holds
            if hold.crash and explorer.graph[hold.child].visited
        ]
        different = 0
        for deviations, child in random.Random(5).sample(edges, 60):
            one = await simulations.run(scenario, Written(deviations))
            other = await simulations.run(scenario, Written(child.deviations))
            ways = [result.records[segment_start(result.records, result.deviations) :] for result in (one, other)]
            assert shape(ways[0]) == shape(ways[1])
            different += last_hash(one) != last_hash(other)
        assert different > 10, "else nothing was compared"

    with_explorer(scenario, compare, **bounds)


def last_hash(result: RunResult) -> str:
    """Return the hash that stands for the whole log."""
    return [field.hash for record in result.records for field in record if isinstance(field, Envelope)][-1]


def test_an_answer_on_its_way_is_not_an_answer_still_to_come() -> None:
    """The world goes on otherwise after a crash, although the worker's log is the same."""
    first, last = (
        ("crash-before", "append:chat-1:DECISION_RECORDED:persona#1"),
        "append:chat-1:EXECUTION_RESUMED:message#1",
    )
    answered = [first, ("crash-before", "append:chat-1:EXECUTION_SUSPENDED:message#1")]
    asked = [first, ("crash-after", "append:chat-1:DECISION_RECORDED:persona#2")]
    seen: list[str] = []

    def spy(scenario: Scenario, sim: Simulation, point: str, menu: Menu, moment: Moment) -> None:
        if (point, moment) == (last, Moment.AFTER):
            seen.append(scenario.behaviour(sim, 1))

    async def main(simulations: Host) -> None:
        for deviations in (answered, asked):
            await simulations.run(CHAT, Written([Deviation(at=at, do=do) for do, at in deviations]), spy=spy)

    host(main)
    assert 2 == len(set(seen))


# ---- against brute force ---------------------------------------------------------------------------------------------


async def all_runs(simulations: Host, scenario: type[Scenario], crashes_max: int) -> tuple[list[RunResult], int]:
    """Run every schedule of up to so many crashes, each found by running the one before it.

    Also return how many there are with one crash more.
    """
    results: list[RunResult] = []
    more = 0
    stack: list[tuple[Deviation, ...]] = [()]
    while stack:
        deviations = stack.pop()
        further: list[Deviation] = []

        def spy(
            _: Scenario,
            sim: Simulation,
            point: str,
            menu: Menu,
            moment: Moment,
            depth: int = len(deviations),
            further: list[Deviation] = further,
        ) -> None:
            if sim.crashes == depth:
                further += [Deviation(at=point, do=o) for o in menu.names[1:] if o == f"crash-{moment.value}"]

        results.append(await simulations.run(scenario, Written(deviations), spy=spy))
        if len(deviations) < crashes_max:
            stack += [(*deviations, deviation) for deviation in further]
        else:
            more += len(further)
    return results, more


def test_an_order_has_as_many_schedules_as_brute_force_finds() -> None:
    async def compare(simulations: Host, explorer: Explorer) -> None:
        results, more = await all_runs(simulations, ORDER, 2)
        assert explorer.report.schedules_covered[2:4] == [len(results), len(results) + more]

    with_explorer(ORDER, compare)


def test_three_steps_explored_are_three_steps_by_brute_force(toys: ModuleType) -> None:
    async def compare(simulations: Host, explorer: Explorer) -> None:
        for crashes in range(3):
            raw, _ = await all_runs(simulations, toys.OftenPerformed, crashes)
            on_graph = [predicted(explorer.graph, *path) for path in paths(explorer.graph, ROOT, crashes)]
            assert len(raw) == len(on_graph) == explorer.report.schedules_covered[crashes]
            judge = Judge(toys.OftenPerformed.invariants)
            assert sorted(ends(result.records, judge) for result in raw) == sorted(ends(r, judge) for r in on_graph)

    with_explorer(toys.OftenPerformed, compare)


def ends(records: Sequence[Record], judge: Judge) -> tuple[list[int], list[int], Verdict]:
    """Return the final state of a run and its verdict."""
    performed = [record[1] for record in records if record[0] == "performed"]
    return performed, [record[1] for record in records if record[0] == "wrote"], judge.judge(records).verdict


# ---- violations ------------------------------------------------------------------------------------------------------


def test_a_violation_that_only_a_composed_path_shows_is_found_and_run(toys: ModuleType) -> None:
    report = explored(toys.OftenPerformed)
    assert ["performed-at-most"] == [found.violation.invariant for found in report.found]
    assert ["crash-before", "crash-before"] == [d.do for d in report.found[0].deviations]
    assert report.found[0].result.judgement.violations
    assert not report.closed
    assert not report.spurious


def of_words(*words: str) -> list[Record]:
    """Records of which one instance reads: how often a word came."""
    return [("performed", word) for word in words]


def cheapest(graph: Graph, most: int) -> tuple[list[str], tuple[int, int]]:
    """Return the path on which "it" is performed more than `most` times: its edges, and what it costs."""
    toy = __import__("explored_toys")
    (searched,) = search(graph, ("a",), [toy.AtMost(most)])
    (suspect,) = [s for s in searched.suspects if s.instance == "it"]
    return [hold.child[0] for _, hold in suspect.path], suspect.cost


def test_another_order_is_no_fault(toys: ModuleType) -> None:
    """Of two crashes, and of one crash between two orders that are not the calm one, which has more edges."""
    order = attrs.evolve(hold("a'"), crash=False, order=True)
    nodes = graph(
        a=(order, hold("b")),
        b=(hold("c"),),
        c=(),
        **{"a'": (hold("d"),), "d": (attrs.evolve(order, child=("d'",)),), "d'": ()},
    )
    nodes["c",].records = nodes["d'",].records = of_words("it", "it")
    assert (["a'", "d", "d'"], (1, 1)) == cheapest(nodes, 1)


def test_of_as_many_faults_the_way_with_fewer_records_is_taken(toys: ModuleType) -> None:
    nodes = graph(a=(hold("b"), attrs.evolve(hold("c"), position=5)), b=(), c=())
    nodes["a",].records = of_words(*"......")
    nodes["b",].records, nodes["c",].records = of_words(*".........", "it"), of_words("it")
    assert (["c"], (1, 5)) == cheapest(nodes, 0)


def test_a_failing_run_does_not_hide_a_path_with_fewer_faults(toys: ModuleType) -> None:
    report = explored(toys.Lived)
    assert ["performed-at-most", "two-lives"] == [found.violation.invariant for found in report.found]
    assert [1, 2] == [len(found.deviations) for found in report.found]


def test_what_is_not_looked_for_is_passed_by(toys: ModuleType) -> None:
    """Every second crash breaks `two-lives`, and hides what only a path of two crashes breaks."""

    async def look(simulations: Host) -> Exploration:
        return await Explorer(simulations, toys.Loud, wanted={"performed-at-most"}).run()

    assert {"two-lives"} == {found.violation.invariant for found in explored(toys.Loud).found}
    assert ["performed-at-most"] == [found.violation.invariant for found in host(look).found]


def test_a_behaviour_that_leaves_out_what_matters_is_caught(toys: ModuleType) -> None:
    report = explored(toys.Tired)
    assert ["performed-at-most"] == [suspect.invariant for suspect in report.spurious][:1]
    assert (False, []) == (report.closed, report.found)


def test_a_cap_that_matters_is_not_closed(toys: ModuleType) -> None:
    low, high = explored(toys.Counting, cap=1), explored(toys.Counting, cap=2)
    assert not low.closed
    assert "different schedules" in low.cut_short[0]
    assert high.closed


def test_a_cap_that_tells_nothing_apart_is_not_doubled(toys: ModuleType) -> None:
    """Up to four tells a third start from the second: there all is run once more."""
    ignored, high = explored(toys.Worker), explored(toys.Counting, cap=2)
    assert (True, ignored.states) == (ignored.closed, ignored.runs)
    assert high.runs > high.states


def test_behaviours_that_two_caps_tell_apart_alike_are_one_to_one() -> None:
    alike, finer, coarser = Caps(), Caps(), Caps()
    for single, double in (("a", "a"), ("b", "c"), ("a", "a")):
        alike.note(single, double)
    for single, double in (("a", "a1"), ("a", "a2")):
        finer.note(single, double)
    for single, double in (("a", "c"), ("b", "c")):
        coarser.note(single, double)
    assert (False, True, True) == (alike.matter, finer.matter, coarser.matter)


def test_a_scenario_that_is_not_deterministic_is_told(toys: ModuleType) -> None:
    report = explored(toys.Moody)
    assert "did not come there" in report.diverged
    assert not report.closed


@pytest.mark.parametrize(
    ("mutant", "others", "faults"),
    [
        ("emit-always-append", 0, 0),
        ("live-value-not-decoded", 0, 0),
        ("saga-outside-steps", 1, 1),
        ("append-without-expectation", 1, 1),
        ("emit-ordinal", 1, 2),
        ("lease-token-reused", 0, 1),
        ("emit-content-global", 1, 2),
        ("saga-resumes-forward", 1, 2),
        pytest.param("emit-no-unsettled", 1, 3, marks=pytest.mark.slow),
    ],
)
def test_a_mutant_gets_a_counterexample_with_no_more_faults_than_needed(mutant: str, others: int, faults: int) -> None:
    chosen = MUTANTS[mutant]
    scenario = chosen.apply(SCENARIOS[chosen.scenario])
    report = explored(scenario, others=others, kinds=STORY, states_max=400)
    found = report.found[0]
    assert found.violation.invariant in chosen.expected
    assert faults == len(found.deviations)
    assert not report.spurious

    async def fewer(simulations: Host) -> None:
        for left_out in range(len(found.deviations)):
            rest = found.deviations[:left_out] + found.deviations[left_out + 1 :]
            result = await simulations.run(scenario, Written(rest))
            assert found.violation.invariant not in [v.invariant for v in result.judgement.violations]

    host(fewer)
