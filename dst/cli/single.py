"""One run on the command line: what `dst run` and `dst replay` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import attrs

from dst import reading
from dst.choices import Choices
from dst.cli.scope import Scope
from dst.config import known_among, texts
from dst.executors.tally import ALL_HELD, FAILED, INCONCLUSIVE, NONDETERMINISM
from dst.findings import describe, remembered
from dst.judging import diverged
from dst.lookup import find_mutant
from dst.records import FailureRecord, to_json
from dst.replaying import Looked, look
from dst.run import Limits, RunResult, host
from dst.scenario import Scenario
from dst.sentences import sentences
from dst.signature import Signature, signature_of
from dst.strategies.portfolio import DEFAULT, STRATEGIES
from dst.verdict import Verdict, Violation
from reports.summary import Line, Style, failure, line


@attrs.frozen(kw_only=True)
class Story:
    """What is to be run once: a scenario, perhaps over a mutant, and what makes its choices, made anew for each run."""

    scenario: type[Scenario]
    mutant: str | None
    seed: int | None
    choices: Callable[[], Choices]
    command: str  # the line that does this again
    recorded: FailureRecord | None = None  # what is known of it since it was found


def build(around: Scope, name: str, mutant: str | None) -> type[Scenario]:
    """Return the scenario of that name, over the mutant's kernel if there is one.  Raises `WrongUsage`."""
    scenario = around.known.find(name)[1]
    return find_mutant(mutant).apply(scenario) if mutant else scenario


def chosen_faults(around: Scope, scenario: type[Scenario]) -> tuple[frozenset[str] | None, float | None]:
    """Return (kinds of faults, rate) as set.  Raises `WrongUsage`."""
    faults = texts(around.settings.get("faults"))
    known_among("fault", faults, [fault.name for fault in scenario.faults])
    return frozenset(faults) or None, cast("float | None", around.settings.get("fault-rate"))


def chosen_strategy(around: Scope) -> str:
    """Return the strategy as set.  Raises `WrongUsage`."""
    strategy = str(around.settings.get("strategy") or DEFAULT)
    known_among("strategy", [strategy], STRATEGIES)
    return strategy


def limits_of(around: Scope) -> Limits:
    """Return the limits of a run as set."""
    return Limits(steps=cast("int | None", around.settings.get("max-steps")) or Limits().steps)


def look_at(around: Scope, story: Story) -> Looked:
    """Run it, twice."""
    return host(lambda h: look(h, story.scenario, story.choices(), story.choices()), limits_of(around))


def failure_of(story: Story, looked: Looked) -> FailureRecord | None:
    """Return the record of what is wrong with a run, None if nothing is."""
    if looked.violation is None:
        return None
    signature = signature_of(looked.result, story.mutant, looked.violation)
    return described(story, looked.result, looked.violation, signature, same=looked.same)


def described(
    story: Story, result: RunResult, violation: Violation, signature: Signature, *, same: bool
) -> FailureRecord:
    """Return the record of what is wrong with a run, and what is known of it since it was found."""
    found = describe(
        story.scenario,
        result,
        violation,
        signature,
        seed=story.seed,
        deviations=result.deviations,
        found_with=len(result.deviations),
        minimal=False,
        shrunk=None,
        replays=same,
        replay=story.command,
    )
    return remembered(found, story.recorded)


def exit_code(looked: Looked) -> int:
    """Return the exit code of one run."""
    if not looked.same:
        return NONDETERMINISM
    if looked.violation is not None:
        return FAILED
    return INCONCLUSIVE if looked.why or looked.result.verdict is Verdict.UNKNOWN else ALL_HELD


def verdict(looked: Looked) -> str:
    """Return "pass", "unknown" or "fail"."""
    return {ALL_HELD: "pass", INCONCLUSIVE: "unknown"}.get(exit_code(looked), "fail")


def as_json(story: Story, looked: Looked) -> dict[str, object]:
    """Return a run as plain JSON values."""
    result, found = looked.result, failure_of(story, looked)
    return {
        "scenario": result.scenario,
        "mutant": story.mutant,
        "seed": story.seed,
        "verdict": verdict(looked),
        "ending": result.ending.value,
        "inconclusive": looked.why,
        "failure": None if found is None else to_json(found),
        "digest": result.digest,
        "same_digest_again": looked.same,
        "deviations": [{"at": d.at, "do": d.do, "until": d.until} for d in result.deviations],
        "sentences": list(sentences(result.deviations, result.records)),
        "fired": dict(sorted(result.fired.items())),
        "judged": dict(result.judgement.judged),
        "marks": dict(sorted(result.marks.items())),
        "steps": result.steps,
        "operations": result.operations,
        "records": len(result.records),
        "outcome": None if result.outcome is None else str(result.outcome),
        "exit_code": exit_code(looked),
    }


def lines(story: Story, looked: Looked) -> Iterator[Line]:
    """Yield a run for a person: what was done to it, what is wrong, how it ended."""
    result, found = looked.result, failure_of(story, looked)
    if not looked.same:
        yield from _differing(looked)
    if found is not None:
        yield from failure(found)
        return
    if result.deviations:
        yield line(f"what was done to it: {len(result.deviations)} of {result.operations} choices")
    for number, sentence in enumerate(sentences(result.deviations, result.records), 1):
        yield line(f"  {number}. {sentence}")
    if looked.why:
        yield line(f"UNKNOWN  {result.scenario}: {looked.why}", Style.DOUBT)
    elif looked.same:
        yield line(f"PASS  {result.scenario}: {said_judged(looked)}", Style.GOOD)
    yield line(f"  ended {result.ending.value} after {result.operations} operations, {len(result.records)} records")
    if result.outcome is not None:
        yield line(f"  outcome: {result.outcome}")
    if result.marks:
        yield line(f"  marks: {', '.join(sorted(result.marks))}")
    yield line(f"  digest {result.digest}{', the same when run again' if looked.same else ''}")


def said_judged(looked: Looked) -> str:
    """Return how much was judged, in words."""
    judged = [name for name, count in looked.result.judgement.judged if count]
    total = len(looked.result.judgement.judged)
    return f"all held; {len(judged)} of {total} invariants were judged where they could fail"


def _differing(looked: Looked) -> Iterator[Line]:
    found = diverged(looked.result, looked.again)
    name = looked.result.scenario
    yield line(f"NONDETERMINISM  {name}: the same run twice parts at record {found.record}", Style.BAD)
    yield line(f"  first:  {found.first}")
    yield line(f"  second: {found.second}")


def trace_lines(looked: Looked) -> Iterator[Line]:
    """Yield the trace."""
    for text in reading.lines(looked.result.records):
        yield line(text, Style.BAD if " CRASHES at" in text else Style.DOUBT if "  FAULT " in text else Style.PLAIN)
