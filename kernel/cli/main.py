"""The command line: its commands, and what becomes of errors."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from kernel.cli import errors
from kernel.cli.changing import cancel, compact, fork, recover, resolve, resume
from kernel.cli.errors import WrongUsage, exit_code_of, nearest
from kernel.cli.output import note, put_json
from kernel.cli.reading import list_, log, state, verify, watch
from kernel.cli.stores import Where, without_password

PROGRAM = "python -m kernel"


class _ReaderGone(Exception):
    """Whoever read stdout has left."""


class Commands(click.Group):
    """The group: unknown commands are answered with the nearest one, errors with the exit codes of the help text."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        name, store = args[0], str(ctx.params.get("store"))
        if self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        if store in self.commands:  # `list --help`, with the store left out
            if name in ctx.help_option_names:
                return super().resolve_command(ctx, [store, name])
            raise WrongUsage(f"the store comes first: {PROGRAM} STORE {store}")
        near = nearest(name, self.list_commands(ctx))
        hint = f": did you mean {near!r}?" if near else f"; there are {', '.join(self.list_commands(ctx))}"
        raise WrongUsage(f"no command {name!r}{hint}")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would make it an exit code 1, which here means something else
            raise _ReaderGone from error

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]  # never standalone
        """Run a command and leave with its exit code."""
        extra.pop("standalone_mode", None)
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(args=given, prog_name=PROGRAM, standalone_mode=False, **extra)
            sys.stdout.flush()
        except (click.exceptions.Abort, KeyboardInterrupt):
            code = _told("interrupted; nothing that was recorded is lost", errors.INTERRUPTED, given)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            code = errors.WRONG_USAGE
        except click.ClickException as error:
            code = _usage(error, given)
        except (_ReaderGone, BrokenPipeError):
            code = _closed()
        except BaseExceptionGroup as group:
            if group.split(KeyboardInterrupt)[1] is None:
                code = _told("interrupted; nothing that was recorded is lost", errors.INTERRUPTED, given)
            else:
                code = _broke(group, given)
        except Exception as error:
            code = exit_code_of(error)
            code = _broke(error, given) if code == errors.UNEXPECTED else _told(str(error), code, given)
        sys.exit(code if isinstance(code, int) else 0)


def _told(text: str, code: int, given: Sequence[str]) -> int:
    """Say what went wrong; with `--json`, stdout says it too."""
    for i, line in enumerate(text.splitlines() or [""]):
        note(f"kernel: {line}" if i == 0 else line)
    if "--json" in given:
        put_json({"error": text, "exit_code": code})
    return code


def _usage(error: click.ClickException, given: Sequence[str]) -> int:
    context = getattr(error, "ctx", None)
    hint = f"\nTry: {context.command_path} --help" if context is not None else ""
    return _told(error.format_message() + hint, errors.WRONG_USAGE, given)


def _broke(error: BaseException, given: Sequence[str]) -> int:
    """Say what nobody has expected: of the kernel's own errors their text is enough."""
    if type(error).__module__ != "kernel.errors":
        for line in "".join(traceback.format_exception(error)).splitlines():
            note(line)
    command = shlex.join([without_password(part) for part in given])
    text = f"{type(error).__name__}: {error}"
    return _told(f"{text}\nThis was: {PROGRAM} {command}", errors.UNEXPECTED, given)


def _closed() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at exit
    return errors.PIPE_CLOSED


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("store")
@click.option("--schema", default="loom", show_default=True, help="Where in a PostgreSQL database the store is.")
@click.option("--codec", metavar="MODULE:ATTR", help="The codec that the texts in the store have gone through.")
@click.pass_context
def cli(ctx: click.Context, store: str, schema: str, codec: str | None) -> None:
    """Look into a store of durable executions, and set right what is stuck.

    STORE is the file of a SQLite store, or postgresql://user@host/database.  It is there already: none is made.

    \b
    Start with:
      python -m kernel orders.db list --status blocked     what waits for an operator
      python -m kernel orders.db log order-17              what has happened
      python -m kernel orders.db resolve order-17 charge --retry
      python -m kernel orders.db verify --all              is every log what was appended?

    \b
    Exit codes:
      0  done                        2  usage: an unknown id, not a store, a newer store
      1  a fault was found, or       3  unexpected: the store cannot be reached, a defect
         the execution is not in     130  interrupted
         the wanted state
    """
    ctx.obj = Where(store=store, schema=schema, codec=codec)


for _command in (list_, log, state, verify, resume, recover, resolve, cancel, compact, fork, watch):
    cli.add_command(_command)


def main() -> NoReturn:
    """Run the command line."""
    cli.main()
