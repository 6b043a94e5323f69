"""`dst run`: one run, with its trace."""

from __future__ import annotations

import shlex
from typing import Any, cast

import click

from dst.choices import Calm, Choices
from dst.cli.scope import everywhere, scope, setting
from dst.cli.single import Story, as_json, build, chosen_faults, chosen_strategy, exit_code, lines, look_at, trace_lines
from dst.config import KEYS
from dst.errors import WrongUsage
from dst.judging import choices_of
from dst.reading import lines as trace_texts
from dst.run import Limits
from dst.strategies.portfolio import DEFAULT
from reports.summary import line


@click.command(short_help="Run a scenario once and show its trace.")
@click.argument("scenario")
@click.option("--seed", metavar="N", help="Faults as this run seed draws them. Default: no faults, the calm run.")
@click.option("--mutant", metavar="NAME", help="Run over this broken kernel; see `dst list`.")
@setting("faults", metavar="A,B", help="Only these kinds of faults; with --seed.")
@setting("fault-rate", metavar="SHARE", help="How often a site that is on fires; with --seed.")
@setting("strategy", metavar="NAME", help=f"The strategy that draws; with --seed. Default: {DEFAULT}.")
@setting("max-steps", metavar="N", help=f"Steps after which the run is inconclusive. Default: {Limits().steps}.")
@click.option("-q", "--quiet", is_flag=True, help="The verdict without the trace.")
@everywhere
def run(scenario: str, mutant: str | None, seed: str | None, **values: Any) -> int:
    """Run SCENARIO once and show what happened.

    SCENARIO is a name from `dst list`, or package.module:Class for one of your own; either may say a size,
    as in chat_session@turns=6.

    \b
    Examples:
      dst run order_saga
      dst run order_saga --seed 7
      dst run shop.scenarios:Checkout --json
    """
    around = scope(values)
    number = read_seed(seed)
    cls = build(around, scenario, mutant)
    faults, rate = chosen_faults(around, cls)
    words = ["dst", "run", scenario]
    words += ["--mutant", mutant] if mutant else []
    words += ["--seed", str(number)] if number is not None else []
    words += ["--faults", ",".join(sorted(faults))] if faults and number is not None else []
    words += ["--fault-rate", str(rate)] if rate is not None and number is not None else []
    strategy = chosen_strategy(around)
    words += ["--strategy", strategy] if strategy != DEFAULT and number is not None else []

    def choices() -> Choices:
        return Calm() if number is None else choices_of(cls, number, faults, rate, strategy)

    story = Story(scenario=cls, mutant=mutant, seed=number, choices=choices, command=shlex.join(words))
    looked = look_at(around, story)
    if around.json:
        around.answer({**as_json(story, looked), "trace": list(trace_texts(looked.result.records))})
    else:
        if not around.quiet:
            around.show([*trace_lines(looked), line("")])
        around.show(lines(story, looked))
    return exit_code(looked)


def read_seed(text: str | None) -> int | None:
    """Return a run's seed.  Raises `WrongUsage`."""
    if text is None:
        return None
    try:
        number = KEYS["seed"](text)
    except ValueError as error:
        raise WrongUsage(f"--seed: wanted {error}, saw {text[:80]!r}") from None
    if number == "last":
        raise WrongUsage("--seed last is a campaign's: `dst fuzz --seed last`; one run needs its own number")
    return cast(int, number)
