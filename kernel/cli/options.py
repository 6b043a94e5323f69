"""What several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from kernel.cli.stores import Where

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "json_", is_flag=True, help="Print one JSON object, and nothing else, on stdout.")
execution = click.argument("execution_id", metavar="ID")
pass_where = click.make_pass_decorator(Where)


def code(function: F) -> F:
    """Add the options that name the code of flows."""
    for option in (
        click.option(
            "--effects",
            metavar="MODULE:ATTR",
            help="A mapping of tool ids to effects, for steps that carry none. A step without its effect FAILS.",
        ),
        click.option(
            "--flows",
            multiple=True,
            metavar="MODULE:ATTR",
            help="A flow, or a list of flows, to go on with here. May be given several times.",
        ),
    ):
        function = option(function)
    return function
