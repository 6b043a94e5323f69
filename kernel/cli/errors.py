"""What the command line says in place of an answer, and the exit codes."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable

from kernel import errors

OK = 0
NOT_SO = 1
WRONG_USAGE = 2
UNEXPECTED = 3
INTERRUPTED = 130
PIPE_CLOSED = 141  # who was reading went away: as if a signal had said so

_NEAR_MAX = 20_000  # names that are compared, so that a large store is answered at once


class WrongUsage(Exception):
    """What was asked for makes no sense here: an unknown id, a file that is no store."""


class NotSo(Exception):
    """The execution is not in the state that the command wants."""


_NOT_SO = (
    NotSo,
    errors.ConcurrencyConflict,
    errors.ContentMissingError,
    errors.CorruptLog,
    errors.Fenced,
    errors.LeaseHeld,
    errors.LogTruncated,
    errors.NothingToResolve,
    errors.ProjectionFailed,
    errors.SnapshotUnreadable,
)
_WRONG_USAGE = (
    WrongUsage,
    errors.ExecutionMismatch,
    errors.InvalidId,
    errors.MalformedJson,
    errors.NoJsonForm,
    errors.NotAStore,
    errors.StoreVersion,
    errors.UnknownExecution,
)


def exit_code_of(error: Exception) -> int:
    """Return the exit code that an error stands for."""
    if isinstance(error, _NOT_SO):
        return NOT_SO
    return WRONG_USAGE if isinstance(error, _WRONG_USAGE) else UNEXPECTED


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`, or None if none is."""
    near = difflib.get_close_matches(name, itertools.islice(known, _NEAR_MAX), n=1, cutoff=0.5)
    return near[0] if near else None
