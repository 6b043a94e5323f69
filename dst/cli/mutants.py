"""`dst mutants`: the harness, measured on broken kernels."""

from __future__ import annotations

import multiprocessing
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, cast

import attrs
import click

from dst.cli.scope import Scope, everywhere, scope, setting
from dst.config import known_among
from dst.executors.processes import count_workers
from dst.executors.tally import ALL_HELD, FAILED, INTERRUPTED
from dst.home import write
from dst.killing import EXPLORE, Attempt, attempt, explained
from dst.lookup import shipped_mutants
from dst.mutant import Mutant
from dst.records import ExplanationRecord, KillRecord, MutantRecord, MutantsRecord, to_json, to_text
from dst.strategies.portfolio import DEFAULT, STRATEGIES
from reports import explanations
from reports.mutants import cell, matrix, page, shortest

_SCHEDULES, _SECONDS, _SEEDS = 5_000, 60.0, "1:6"
_TOLD_EVERY_SECONDS = 0.2


@click.command("mutants", short_help="How soon each broken kernel is found.")
@click.argument("names", nargs=-1, metavar="[MUTANT]...")
@setting("strategy", metavar="NAME|all", help=f"How to search, {EXPLORE} among them. Default: {DEFAULT}.")
@setting("seeds", metavar="A:B", help=f"Campaign seeds from A up to and without B. Default: {_SEEDS}.")
@setting("schedules", "-n", "--schedules", metavar="N", help=f"Give up after N schedules. Default: {_SCHEDULES}.")
@setting("max-time", metavar="TIME", help=f"Give up after this long, each time. Default: {_SECONDS:g}s.")
@setting("workers", "-w", "--workers", metavar="N|auto", help="Processes. Default: 1.")
@click.option("--write", "folder", metavar="DIR", help="Write mutants.json, mutants.md and explanations.md there.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@everywhere
def mutants(names: tuple[str, ...], folder: str | None, **values: Any) -> int:
    """Search for the bug in each MUTANT, all without, and say how soon an expected invariant broke.

    Each is tried from several seeds. Its shrunk schedule is run on the true kernel as well, where it must break
    nothing. Exit code 0 if each was killed from each seed or is said to be equivalent, 1 if one survived.

    \b
    Examples:
      dst mutants
      dst mutants emit-ordinal --seeds 1:2
      dst mutants --strategy all -w auto --write reports/published
    """
    around = scope(values)
    known = shipped_mutants()
    known_among("mutant", names, known)
    strategy = str(around.settings.get("strategy") or DEFAULT)
    known_among("strategy", [strategy], ["all", EXPLORE, *STRATEGIES])
    seeds = cast("tuple[int, int] | None", around.settings.get("seeds")) or (1, 6)
    plan = _Plan(
        mutants=[known[name] for name in dict.fromkeys(names)] or list(known.values()),
        strategies=(*STRATEGIES, EXPLORE) if strategy == "all" else (strategy,),
        seeds=tuple(range(*seeds)),
        schedules_max=cast("int | None", around.settings.get("schedules")) or _SCHEDULES,
        seconds_max=cast("float | None", around.settings.get("max-time")) or _SECONDS,
        workers=count_workers(str(around.settings.get("workers") or "1")),
        repeat=_repeat(names, around, folder),
    )
    return _Matrix(around, plan).run(None if folder is None else Path(folder))


def _repeat(names: Sequence[str], around: Scope, folder: str | None) -> str:
    words = ["dst", "mutants", *names]
    for flag in ("strategy", "seeds", "schedules", "max-time"):
        value = around.settings.get(flag)
        if value is not None:
            shown = (
                f"{value[0]}:{value[1]}" if isinstance(value, tuple) else f"{value:g}s" if flag == "max-time" else value
            )
            words += [f"--{flag}", str(shown)]
    return shlex.join(words + (["--write", folder] if folder else []))


@attrs.frozen(kw_only=True)
class _Plan:
    """What is tried."""

    mutants: Sequence[Mutant]
    strategies: tuple[str, ...]
    seeds: tuple[int, ...]
    schedules_max: int
    seconds_max: float
    workers: int
    repeat: str

    def attempts(self) -> Iterator[Attempt]:
        """Yield every try; exploring draws nothing, and what is equivalent is not found: one seed is enough."""
        for mutant in self.mutants:
            for strategy in self.strategies:
                for seed in self.seeds[:1] if strategy == EXPLORE or mutant.equivalent else self.seeds:
                    yield Attempt(
                        mutant=mutant.name,
                        strategy=strategy,
                        seed=seed,
                        schedules_max=self.schedules_max,
                        seconds_max=self.seconds_max,
                    )


class _Matrix:
    """The matrix as it fills.  Mutable: the tries that are done."""

    def __init__(self, around: Scope, plan: _Plan) -> None:
        self._around = around
        self._plan = plan
        self._done: dict[Attempt, KillRecord] = {}
        self._wanted = list(plan.attempts())
        self._told = 0.0
        self._interrupted = False

    def run(self, folder: Path | None) -> int:
        """Fill it, report it, return the exit code."""
        try:
            if self._plan.workers == 1:
                for wanted in self._wanted:
                    self._add(wanted, attempt(wanted))
            else:
                self._run_processes()
        except KeyboardInterrupt:
            self._interrupted = True
        self._tell("")
        record = self.record()
        if folder is not None and not self._interrupted:
            folder.mkdir(parents=True, exist_ok=True)
            write(folder / "mutants.json", to_text(record))
            write(folder / "mutants.md", page(record))
            write(folder / "explanations.md", explanations.page(self._explained(record), record.repeat))
        if self._around.json:
            self._around.answer(to_json(record))
        else:
            self._around.show(matrix(record))
        return record.exit_code

    def _explained(self, record: MutantsRecord) -> list[tuple[MutantRecord, ExplanationRecord]]:
        """Explain the shortest kill of each mutant."""
        kills = [(mutant, kill) for mutant in record.mutants if (kill := shortest(mutant)) is not None]
        wanted = [kill for _, kill in kills]
        if self._plan.workers == 1:
            found = list(map(explained, wanted))
        else:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(self._plan.workers, mp_context=context) as pool:
                found = list(pool.map(explained, wanted))
        return [(mutant, record) for (mutant, _), record in zip(kills, found, strict=True)]

    def _run_processes(self) -> None:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._plan.workers, mp_context=context, initializer=_ignore_ctrl_c) as pool:
            futures = {pool.submit(attempt, wanted): wanted for wanted in self._wanted}
            try:
                for future in as_completed(futures):
                    self._add(futures[future], future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise

    def _add(self, wanted: Attempt, kill: KillRecord) -> None:
        self._done[wanted] = kill
        if time.monotonic() - self._told > _TOLD_EVERY_SECONDS:
            self._told = time.monotonic()
            where = f"{wanted.mutant}, {wanted.strategy}, seed {wanted.seed}"
            self._tell(f"{len(self._done)} of {len(self._wanted)}  {where}: {cell([kill])}")

    def _tell(self, text: str) -> None:
        if sys.stderr.isatty() and not self._around.quiet:
            sys.stderr.write(f"\r\x1b[K{text[:110]}")
            sys.stderr.flush()

    # ---- the record --------------------------------------------------------------------------------------------------

    def record(self) -> MutantsRecord:
        """Return what is known so far."""
        rows = tuple(self._row(mutant) for mutant in self._plan.mutants)
        held = not self._interrupted and all(row.killed or row.equivalent for row in rows)
        return MutantsRecord(
            strategies=self._plan.strategies,
            seeds=self._plan.seeds,
            schedules_max=self._plan.schedules_max,
            seconds_max=self._plan.seconds_max,
            mutants=rows,
            verdict="pass" if held else "fail",
            interrupted=self._interrupted,
            repeat=self._plan.repeat,
            exit_code=INTERRUPTED if self._interrupted else ALL_HELD if held else FAILED,
        )

    def _row(self, mutant: Mutant) -> MutantRecord:
        kills = tuple(self._done[w] for w in self._wanted if w.mutant == mutant.name and w in self._done)
        first = [kill for kill in kills if kill.strategy == self._plan.strategies[0]]
        done = [kill for kill in first if kill.killed]
        wanted = sum(w.mutant == mutant.name and w.strategy == self._plan.strategies[0] for w in self._wanted)
        return MutantRecord(
            name=mutant.name,
            breaks=mutant.breaks,
            scenario=mutant.scenario,
            expected=mutant.expected,
            equivalent=mutant.equivalent,
            killed=len(done) == wanted and all(kill.true_kernel_holds for kill in kills if kill.killed),
            invariant=done[0].invariant if done else "",
            schedules=round(statistics.median(kill.schedules for kill in done)) if done else None,
            seconds=statistics.median(kill.seconds for kill in done) if done else None,
            deviations=max((kill.deviations or 0 for kill in done), default=None),
            kills=kills,
        )


def _ignore_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command itself sees to it
