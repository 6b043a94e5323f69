"""Command lines that reproduce: a run, a failure, a campaign."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dst.executors.assignment import Assignment
from dst.run import Limits
from dst.strategies.portfolio import DEFAULT


def replay_seed(assignment: Assignment, reference: str, seed: int | None) -> str:
    """Return the command for one run of a campaign, by its seed."""
    words = ["dst", "replay", reference, "--seed", str(seed), *_made_of(assignment)]
    return shlex.join(words)


def replay_token(token: str, reference: str | None) -> str:
    """Return the command for one run by its schedule; `reference` as for `replay_id`."""
    return shlex.join(["dst", "replay", token, *(["--scenario", reference] if reference else [])])


def replay_id(id: str, reference: str | None, home: str | None) -> str:
    """Return the command for a failure that is kept, in `home` if that is not where everybody looks.

    `reference` is that of a scenario that is not known by its name alone.
    """
    words = ["dst", "replay", id]
    words += ["--scenario", reference] if reference else []
    words += ["--home", home] if home else []
    return shlex.join(words)


def repeat(assignment: Assignment, names: Sequence[str], schedules: int | None) -> str:
    """Return the command for the campaign; `schedules` as far as it got, if it went on as long as there was time."""
    words = ["dst", "fuzz", *names]
    if assignment.seeds is not None:
        words += ["--seeds", f"{assignment.seeds[0]}:{assignment.seeds[1]}"]
    else:
        words += ["--seed", str(assignment.seed), "-n", str(assignment.schedules if schedules is None else schedules)]
    words += _made_of(assignment)
    if assignment.shard[1] > 1:
        words += ["--shard", f"{assignment.shard[0] + 1}/{assignment.shard[1]}"]
    if assignment.failures_max is None:
        words.append("--continue-on-failure")
    elif assignment.failures_max != 1:
        words += ["--max-failures", str(assignment.failures_max)]
    return shlex.join(words)


def _made_of(assignment: Assignment) -> list[str]:
    """Return the flags that change what a run does."""
    words = []
    if assignment.strategy != DEFAULT:
        words += ["--strategy", assignment.strategy]
    if assignment.mutant:
        words += ["--mutant", assignment.mutant]
    if assignment.faults is not None:
        words += ["--faults", ",".join(sorted(assignment.faults))]
    if assignment.fault_rate is not None:
        words += ["--fault-rate", str(assignment.fault_rate)]
    if assignment.steps_max != Limits().steps:
        words += ["--max-steps", str(assignment.steps_max)]
    return words
