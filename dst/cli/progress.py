"""How far a campaign has come: a bar on stderr, if that is a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from dst.cli.scope import Scope
from dst.executors.assignment import OPEN_END, Assignment
from dst.executors.tally import Tally

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_EVERY_SECONDS = 0.1


class Progress:
    """Mutable: when it was last shown.  Without a bar it keeps the time alone."""

    def __init__(self, bar: Bar | None, task: TaskID | None) -> None:
        self._bar = bar
        self._task = task
        self._began = time.monotonic()
        self._shown = 0.0

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._began

    def update(self, tally: Tally) -> None:
        """Show the count, not too often."""
        now = time.monotonic()
        if self._bar is None or self._task is None or now - self._shown < _EVERY_SECONDS:
            return
        self._shown = now
        self._bar.update(self._task, completed=tally.schedules, failures=len(tally.failures), rate=self._rate(tally))
        self._bar.refresh()

    def _rate(self, tally: Tally) -> str:
        return f"{tally.schedules / max(self.seconds, 1e-9):,.0f}/s"


@contextmanager
def progress_on(stream: TextIO, plan: Assignment, around: Scope) -> Iterator[Progress]:
    """Show progress while the block runs; nothing is left of it afterwards."""
    if around.quiet or not stream.isatty():
        yield Progress(None, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(file=stream, no_color=not around.color)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("schedules  {task.fields[rate]}  failures: {task.fields[failures]}"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:  # no thread beside the runs
        total = None if plan.schedules == OPEN_END and plan.seeds is None else plan.runs
        yield Progress(bar, bar.add_task("", total=total, failures=0, rate=""))


@contextmanager
def counting_on(stream: TextIO, total: int, around: Scope) -> Iterator[Callable[[int], None]]:
    """Show how many of at most `total` runs are made while the block runs, if that is a terminal."""
    if around.quiet or not stream.isatty():
        yield lambda runs: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(file=stream, no_color=not around.color)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs at most"), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task, shown = bar.add_task("", total=total), 0.0

        def show(runs: int) -> None:
            nonlocal shown
            if time.monotonic() - shown >= _EVERY_SECONDS:
                shown = time.monotonic()
                bar.update(task, completed=runs)
                bar.refresh()

        yield show
