"""The command `dst`: its commands, and what becomes of errors."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click
import trio

from dst.cli.doctoring import doctor
from dst.cli.explain import explain
from dst.cli.explore import explore_
from dst.cli.fuzz import fuzz
from dst.cli.listing import list_
from dst.cli.mutants import mutants
from dst.cli.replay import replay
from dst.cli.run import run
from dst.cli.shrink import shrink
from dst.errors import WrongUsage, unknown
from dst.executors.tally import BROKE, INTERRUPTED, WRONG_USAGE
from dst.home import HomeUnusable
from dst.records import BadRecords, printable
from dst.schedule import BadSchedule
from dst.scheduler import UnknownTrio

_PIPE_CLOSED = 141  # who was reading went away: as if a signal had said so


class _ReaderGone(Exception):
    """Whoever read stdout has left."""


class Commands(click.Group):
    """The group: unknown commands are answered with the nearest one, errors with the exit codes of the help text."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise unknown("command", name, self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (
            BrokenPipeError
        ) as error:  # click would make it an exit code 1, which here means that an invariant failed
            raise _ReaderGone from error

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]  # never standalone
        """Run a command and leave with its exit code."""
        extra.pop("standalone_mode", None)
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(args=given, prog_name=prog_name or "dst", standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.exceptions.Abort:
            code = _told("interrupted", INTERRUPTED, given)
        except KeyboardInterrupt:
            code = _told("interrupted", INTERRUPTED, given)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = WRONG_USAGE
        except click.ClickException as error:
            code = _usage(error, given)
        except (WrongUsage, BadSchedule, BadRecords, HomeUnusable, UnknownTrio) as error:
            code = _told(str(error), WRONG_USAGE, given)
        except (_ReaderGone, BrokenPipeError):
            code = _closed()
        except Exception:
            code = _broke(given)
        sys.exit(code if isinstance(code, int) else 0)


def _told(text: str, code: int, given: Sequence[str]) -> int:
    """Say what went wrong; with `--json`, stdout says it too."""
    head, *more = text.splitlines() or [""]
    click.echo("\n".join(printable(part) for part in (f"dst: {head}", *more)), err=True)
    if "--json" in given:
        click.echo(json.dumps({"verdict": "unknown", "error": text, "exit_code": code}, indent=2))
    return code


def _usage(error: click.ClickException, given: Sequence[str]) -> int:
    text = error.format_message()
    context = getattr(error, "ctx", None)
    hint = f"\nTry: {context.command_path} --help" if context is not None else ""
    return _told(text + hint, WRONG_USAGE, given)


def _broke(given: Sequence[str]) -> int:
    click.echo(traceback.format_exc(), err=True)
    command = shlex.join(["dst", *given])
    return _told(f"the harness itself broke: this is no verdict on what is tested\nReproduce:  {command}", BROKE, given)


def _closed() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at exit
    return _PIPE_CLOSED


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        try:
            number = importlib.metadata.version("loom-dst")
        except importlib.metadata.PackageNotFoundError:
            number = "from a checkout"
        click.echo(f"dst {number}, Python {platform.python_version()}, trio {trio.__version__}")
        ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """Find the schedule that breaks a durable workflow, shrink it, and replay it.

    \b
    Start with:
      dst list                      what there is to run
      dst fuzz                      every scenario, under faults, from a new seed
      dst explore order_saga        every crash schedule, with any number of crashes
      dst replay K7Q2MD             a failure that was found, again
      dst explain K7Q2MD            and which moment decided it

    \b
    Exit codes:
      0  all held                          4  nondeterminism
      1  an invariant failed               5  vacuous: what was asked for never happened
      2  usage or configuration            6  inconclusive: out of budget, workers lost
      3  the harness itself broke        130  interrupted; a partial report is written
    """


for _command in (list_, run, fuzz, explore_, replay, shrink, explain, mutants, doctor):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line."""
    cli.main()
