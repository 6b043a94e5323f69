"""The emit rule alone, against an independent model: it knows the logical emits, the rule does not (K-EMIT-6).

A model flow is a program over facts that are logged once they are settled; a run interprets it from the top and may
die anywhere.  The model gives every emit call a logical identity of its own (the path that led to it) and counts, for
each content, how many distinct logical emits were acknowledged and how many events the log holds.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.emit_rule import EmitRule, Ruling

EMIT, INSIDE, STEP, FLAKY, GATE = "emit", "inside", "step", "flaky", "gate"


class Died(Exception):
    """The process of the model is dead."""


class World:
    """What is durable in the model, and its ground truth.  Mutable: it outlives the runs."""

    def __init__(self) -> None:
        self.stamps: Counter[str] = Counter()
        self.settled: set[int] = set()  # steps, by place in the program
        self.gates = 0
        self.logical: dict[tuple[int, str], set[object]] = {}  # content -> the distinct emits acknowledged
        self.events: Counter[tuple[int, str]] = Counter()  # content -> events in the log

    def lost(self) -> list[tuple[int, str]]:
        return [content for content, made in self.logical.items() if len(made) > self.events[content]]


class Run:
    """One run of the model's program, from the top, dying after `budget` durable writes."""

    def __init__(self, world: World, rule: type[EmitRule], number: int, budget: int, fails: frozenset[int]) -> None:
        self.world = world
        self.rule = rule(lambda digest: world.stamps[digest])
        self.number = number
        self.budget = budget
        self.fails = fails
        self.path: tuple[object, ...] = ()  # outcomes seen so far: with the place, an emit's logical identity
        self.gates = 0

    def write(self) -> None:
        if self.budget == 0:
            raise Died
        self.budget -= 1

    def emit(self, content: str, identity: object) -> None:
        digest = self.rule.identity('"e"', f'"{content}"')
        assert digest is not None
        left_the_log, logged = self.rule.live, self.world.stamps[digest]
        ruling = self.rule.rule(digest)
        key = (self.gates, content)
        if ruling is Ruling.SERVED:
            assert not left_the_log, "served after a live syscall of the segment"
            assert logged > 0, "served without a stamp"
        else:
            self.write()
            self.world.events[key] += 1
            self.world.stamps[digest] += ruling is Ruling.STAMPED
        self.world.logical.setdefault(key, set()).add(identity)

    def step(self, place: int, inner: str | None, untyped: bool) -> None:
        if place in self.world.settled:
            self.path += ((place, "done"),)
            return
        self.rule.went_live()
        self.write()
        self.rule.effect_began()
        try:
            if inner is not None:
                self.emit(inner, ("inside", place, self.number))
        finally:
            self.rule.effect_settled()
        if untyped:
            self.rule.ended_unsettled()
            self.write()
            self.path += ((place, "failed"),)
            return
        self.write()
        self.world.settled.add(place)
        self.path += ((place, "done"),)

    def gate(self) -> None:
        if self.gates == self.world.gates:
            self.write()
            self.world.gates += 1
        self.gates += 1
        self.rule.gate_passed()

    def go(self, program: list[tuple[str, str]]) -> None:
        for place, (kind, content) in enumerate(program):
            if kind == EMIT:
                self.emit(content, (place, self.path))
            elif kind == GATE:
                self.gate()
            else:
                self.step(place, content if kind == INSIDE else None, kind == FLAKY and place in self.fails)
                if self.path[-1] == (place, "failed"):
                    self.emit(content, (place, "handler", self.path))


programs = st.lists(
    st.tuples(st.sampled_from([EMIT, EMIT, INSIDE, STEP, FLAKY, GATE]), st.sampled_from("xy")), max_size=9
)
schedules = st.lists(st.tuples(st.integers(0, 9), st.frozensets(st.integers(0, 8))), max_size=5)


def play(program: list[tuple[str, str]], schedule: list[tuple[int, frozenset[int]]], rule: type[EmitRule]) -> World:
    """Play runs that die as scheduled, and a last one that does not."""
    world = World()
    for number, (budget, fails) in enumerate([*schedule, (1_000, frozenset[int]())]):
        try:
            Run(world, rule, number, budget, fails).go(program)
        except Died:
            continue
    return world


@settings(max_examples=600, deadline=None)
@given(programs, schedules)
def test_no_emit_is_lost_under_any_schedule_of_crashes(program, schedule):
    # K-EMIT-2
    assert [] == play(program, schedule, EmitRule).lost()


@settings(max_examples=300, deadline=None)
@given(programs, st.lists(st.integers(0, 9), max_size=5))
def test_without_live_effects_and_unsettled_outcomes_nothing_is_appended_twice(program, budgets):
    # K-EMIT-2: emits and gates alone are proven whole
    calm = [(kind, content) for kind, content in program if kind in (EMIT, GATE)]
    world = play(calm, [(budget, frozenset()) for budget in budgets], EmitRule)
    assert {content: len(made) for content, made in world.logical.items()} == dict(world.events)


@settings(max_examples=300, deadline=None)
@given(programs, schedules)
def test_a_run_whose_syscalls_are_all_served_appends_nothing_more(program, schedule):
    # K-EMIT-2: after one run in which every step has settled, and one more, the log is stable
    world = play(program, [*schedule, (1_000, frozenset())], EmitRule)
    before = Counter(world.events)
    Run(world, EmitRule, -1, 0, frozenset()).go(program)
    assert before == world.events


class ServesWhileLive(EmitRule):
    def went_live(self) -> None:
        pass


class StampsUnsettled(EmitRule):
    def ended_unsettled(self) -> None:
        pass


class StampsInFlight(EmitRule):
    def effect_began(self) -> None:
        pass

    def effect_settled(self) -> None:
        pass


def test_the_model_sees_the_loss_when_the_unsettled_flag_is_missing():
    # K-EMIT-3: a flaky step's handler emits, its success is followed by equal content
    program = [(FLAKY, "x"), (EMIT, "x")]
    schedule = [(3, frozenset({0})), (2, frozenset[int]())]
    assert ([], [(0, "x")]) == tuple(play(program, schedule, rule).lost() for rule in (EmitRule, StampsUnsettled))


def test_the_model_sees_the_loss_when_the_in_flight_window_is_missing():
    # K-EMIT-3
    program, schedule = [(INSIDE, "x"), (EMIT, "x")], [(3, frozenset[int]())]
    assert ([], [(0, "x")]) == tuple(play(program, schedule, rule).lost() for rule in (EmitRule, StampsInFlight))


def test_an_emit_after_a_live_syscall_of_its_segment_is_never_served():
    # K-EMIT-2 (b), K-EMIT-5
    def rulings(rule):
        rule.went_live()
        live = rule.rule("0" * 16)
        rule.gate_passed()
        return live, rule.rule("1" * 16)

    assert (Ruling.UNSTAMPED, Ruling.SERVED) == rulings(EmitRule(lambda _digest: 1))
    assert (Ruling.SERVED, Ruling.SERVED) == rulings(ServesWhileLive(lambda _digest: 1))


def test_every_call_of_an_identity_consumes_a_number():
    # K-EMIT-2: served, unstamped and in flight alike
    rule = EmitRule(lambda _digest: 2)
    first = rule.rule("0" * 16)
    rule.went_live()
    second = rule.rule("0" * 16)
    rule.effect_began()
    third = rule.rule("0" * 16)
    rule.effect_settled()
    assert [Ruling.SERVED, Ruling.UNSTAMPED, Ruling.UNSTAMPED, Ruling.STAMPED] == [
        first,
        second,
        third,
        rule.rule("0" * 16),
    ]


def test_unsettled_is_sticky_over_segments_and_live_is_not():
    # K-EMIT-5
    rule = EmitRule(lambda _digest: 0)
    rule.went_live()
    rule.ended_unsettled()
    rule.gate_passed()
    assert (1, False, True, Ruling.UNSTAMPED) == (rule.segment, rule.live, rule.unsettled, rule.rule("0" * 16))


def test_an_emit_without_a_digest_is_appended_unstamped_every_time():
    # K-JSON-3, ADR 0102 D3
    rule = EmitRule(lambda _digest: 9)
    assert [Ruling.UNSTAMPED] * 3 == [rule.rule(None) for _ in range(3)]


def test_an_identity_is_the_digest_of_segment_type_and_payload():
    # K-EMIT-4
    rule = EmitRule(lambda _digest: 0)
    first = rule.identity('"note"', '{"a":1}')
    rule.gate_passed()
    expected = [fnv1a64('0|["note",{"a":1}]'), fnv1a64('1|["note",{"a":1}]')]
    assert expected == [first, rule.identity('"note"', '{"a":1}')]


def fnv1a64(text: str) -> str:
    """FNV-1a by its definition, not the kernel's."""
    digest = 0xCBF29CE484222325
    for byte in text.encode():
        digest = ((digest ^ byte) * 0x100000001B3) % 2**64
    return f"{digest:016x}"
