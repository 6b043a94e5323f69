"""`python -m kernel.vectors`: do the fold vectors hold of a fold, this kernel's or a program's?"""

from __future__ import annotations

import json
import shlex
import sys

import click

from kernel.fold import fold_events
from kernel.jsonform import Json, encode
from kernel.vectors import load_fold_vectors
from kernel.vectors.checking import FoldDidNotAnswer, Outcome, check_program, first_difference, requests

_DIFFERS, _WRONG_USAGE = 1, 2


def own_outcomes() -> list[Outcome]:
    """Return what this kernel's fold makes of its vectors."""
    return [
        Outcome(
            name=vector.name,
            difference=first_difference(
                _plain(fold_events(vector.events, vector.initial)), _plain(vector.state), "state"
            ),
        )
        for vector in load_fold_vectors()
    ]


def _plain(state: object) -> Json:
    plain: Json = json.loads(encode(state, at="state"))
    return plain


@click.command()
@click.option("--fold", metavar="COMMAND", help="A program to check. Default: this kernel's own fold.")
@click.option("--timeout", default=60.0, show_default=True, metavar="SECONDS", help="How long the program may take.")
@click.option("--requests", "print_requests", is_flag=True, help="Print the request lines and stop.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, and nothing else.")
def main(fold: str | None, timeout: float, print_requests: bool, as_json: bool) -> None:
    """Run the fold vectors against a fold, and tell each vector on which it differs.

    The program reads a line of JSON for each vector, {"events": [...], "initial": STATE or null}, and prints a line
    with the state that folding them gives.  A null is the empty state; the order of keys is nothing.

    \b
    Examples:
      python -m kernel.vectors
      python -m kernel.vectors --fold 'node fold.js'

    Exit codes: 0 all vectors hold, 1 some differ, 2 the program cannot be run or does not answer.
    """
    if print_requests:
        for _, line, _ in requests():
            click.echo(line)
        return
    try:
        command = shlex.split(fold) if fold is not None else None
        if command == []:
            raise ValueError("--fold: wanted a command, saw nothing")
        outcomes = own_outcomes() if command is None else list(check_program(command, timeout_seconds=timeout))
    except (FoldDidNotAnswer, OSError, ValueError) as error:
        click.echo(f"python -m kernel.vectors: {error}", err=True)
        sys.exit(_WRONG_USAGE)
    failed = [outcome for outcome in outcomes if outcome.difference]
    if as_json:
        told = [{"name": outcome.name, "difference": outcome.difference} for outcome in failed]
        click.echo(json.dumps({"vectors": len(outcomes), "failed": told}, indent=2))
    else:
        for outcome in failed:
            click.echo(f"FAIL {outcome.name}\n  {outcome.difference}")
        click.echo(f"{len(outcomes) - len(failed)} of {len(outcomes)} vectors hold")
    sys.exit(_DIFFERS if failed else 0)


if __name__ == "__main__":
    main(prog_name="python -m kernel.vectors")
