"""`dst list`: what there is to run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from dst.cli.scope import everywhere, scope
from dst.lookup import all_invariants, shipped_mutants
from dst.mutant import Mutant
from dst.parameters import parameters_of
from dst.scenario import Scenario
from reports.summary import Line, Style, line


@click.command("list", short_help="What there is to run.")
@everywhere
def list_(**values: Any) -> None:
    """List scenarios with their faults, marks, sizes and invariants, and the mutants.

    \b
    Examples:
      dst list
      dst list --json
    """
    around = scope(values)
    scenarios, mutants = around.known.scenarios, shipped_mutants()
    if around.json:
        around.answer(
            {
                "scenarios": [_scenario(s, around.known.reference(name)) for name, s in scenarios.items()],
                "mutants": [_mutant(mutant) for mutant in mutants.values()],
            }
        )
        return
    around.show(_lines(list(scenarios.values()), list(mutants.values())))


def _scenario(scenario: type[Scenario], reference: str) -> dict[str, object]:
    return {
        "name": scenario.name,
        "reference": reference,
        "story": scenario.story,
        "version": scenario.version,
        "faults": [{"name": f.name, "budget": f.budget, "environmental": f.environmental} for f in scenario.faults],
        "invariants": [{"name": name, "says": says} for name, says in all_invariants(scenario)],
        "marks": list(scenario.marks),
        "parameters": [
            {"name": p.name, "says": p.says, "default": p.default, "least": p.least, "most": p.most}
            for p in parameters_of(scenario).values()
        ],
    }


def _mutant(mutant: Mutant) -> dict[str, object]:
    return {
        "name": mutant.name,
        "breaks": mutant.breaks,
        "scenario": mutant.scenario,
        "expected": list(mutant.expected),
        "equivalent": mutant.equivalent,
    }


def _lines(scenarios: list[type[Scenario]], mutants: list[Mutant]) -> Iterator[Line]:
    yield line("Scenarios", Style.HEAD)
    for scenario in scenarios:
        yield line("")
        yield line(f"  {scenario.name}", Style.HEAD)
        yield line(f"    {scenario.story}")
        yield line(f"    faults: {', '.join(fault.name for fault in scenario.faults) or 'none'}")
        yield line(f"    marks:  {', '.join(scenario.marks) or 'none'}")
        for name, p in parameters_of(scenario).items():
            size = f"{scenario.name}@{name}={p.default}"
            yield line(f"    size:   {size}, from {p.range}: {p.says}")
        yield line("    invariants:")
        width = max((len(name) for name, _ in all_invariants(scenario)), default=0)
        for name, says in all_invariants(scenario):
            yield line(f"      {name:{width}}  {says}")
    if mutants:
        yield line("")
        yield line("Mutants: broken kernels, to see that they are caught", Style.HEAD)
        width = max(len(mutant.name) for mutant in mutants)
        for mutant in mutants:
            yield line(f"  {mutant.name:{width}}  {mutant.breaks}")
            must = f"must break {' or '.join(mutant.expected)}"
            if mutant.equivalent:
                must = "equivalent: nothing can tell it from the true kernel"
            yield line(f"  {'':{width}}  on {mutant.scenario}, {must}", Style.FAINT)
    yield line("")
    yield line("Next:  dst fuzz    dst run order_saga    dst fuzz --mutant NAME", Style.FAINT)
