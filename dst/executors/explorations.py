"""Several explorations, one after another or each in a process of its own, within a time that they share.

A scenario that closes soon leaves its time to those that come after it: one that begins gets an equal part, among all
that have not begun, of the time that all processes have left and that is nobody's yet.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import attrs

from dst.errors import HarnessBroke
from dst.executors.exploring import Wanted, made
from dst.executors.processes import interrupt_kept_back
from dst.records import ExplorationRecord
from dst.strategies.explore import Exploration

Progress = Callable[[str, Exploration], None]
Done = Callable[[ExplorationRecord], None]

_LAST_WORDS_SECONDS = 10.0  # for what interrupted processes know so far


def explore_all(
    wanted: Sequence[Wanted], seconds_max: float | None, workers: int, progress: Progress, done: Done
) -> list[ExplorationRecord | None]:
    """Return a record for each; interrupted, what is known so far, and None for what had not begun.

    `progress` is told how far one has come that is explored in this process, `done` of each that has ended.
    """
    several = _Several(wanted, seconds_max, workers, done)
    with suppress(KeyboardInterrupt):
        if workers == 1:
            several.run_here(progress)
        else:
            several.run_processes()
    return several.records


@attrs.define(kw_only=True, eq=False)
class _At:
    """A process and the exploration it is at, until when."""

    index: int
    process: SpawnProcess
    pipe: Connection
    ends_at: float


class _Several:
    """Mutable: the records there are, and what has not begun."""

    def __init__(self, wanted: Sequence[Wanted], seconds_max: float | None, workers: int, done: Done) -> None:
        self.records: list[ExplorationRecord | None] = [None] * len(wanted)
        self._wanted = wanted
        self._ends_at = None if seconds_max is None else time.monotonic() + seconds_max
        self._workers = workers
        self._done = done
        self._left = deque(range(len(wanted)))
        self._busy: list[_At] = []

    def _next(self) -> tuple[int, Wanted]:
        """Return what comes next, with its share of the time."""
        seconds = None if self._ends_at is None else self._share(self._ends_at - time.monotonic())
        index = self._left.popleft()
        wanted = self._wanted[index]
        return index, attrs.evolve(wanted, bounds=attrs.evolve(wanted.bounds, seconds_max=seconds))

    def _share(self, left: float) -> float:
        taken = sum(max(at.ends_at - time.monotonic(), 0) for at in self._busy)
        share = min(left, (left * self._workers - taken) / len(self._left))
        return round(max(share, 0.1), 1)  # one state is always run

    def _add(self, index: int, record: ExplorationRecord) -> None:
        self.records[index] = record
        self._done(record)

    def run_here(self, progress: Progress) -> None:
        """Explore one after another."""
        while self._left:
            index, wanted = self._next()
            name = wanted.find().name
            record = made(wanted, lambda report, name=name: progress(name, report))  # type: ignore[misc]
            self._add(index, record)
            if record.interrupted:
                return

    def run_processes(self) -> None:
        """Explore in processes; interrupted, have them say what they know so far."""
        try:
            while self._left or self._busy:
                while self._left and len(self._busy) < self._workers:
                    self._begin()
                self._receive(None)
        except KeyboardInterrupt:
            for at in self._busy:
                assert at.process.pid is not None
                with suppress(ProcessLookupError):
                    os.kill(at.process.pid, signal.SIGINT)
            ends_at = time.monotonic() + _LAST_WORDS_SECONDS
            while self._busy and time.monotonic() < ends_at:
                self._receive(ends_at - time.monotonic())
            raise
        finally:
            for at in self._busy:
                at.process.kill()
                at.process.join()

    def _begin(self) -> None:
        index, wanted = self._next()
        context = get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(wanted, theirs), daemon=True)
        with interrupt_kept_back():
            process.start()
        theirs.close()
        ends_at = time.monotonic() + (wanted.bounds.seconds_max or 0)
        self._busy.append(_At(index=index, process=process, pipe=ours, ends_at=ends_at))

    def _receive(self, seconds: float | None) -> None:
        """Take what processes have to say, once one of them does."""
        for ready in wait([at.pipe for at in self._busy], timeout=seconds):
            at = next(at for at in self._busy if at.pipe is ready)
            try:
                said = at.pipe.recv()
            except EOFError:
                at.process.join()
                said = (
                    f"its process ended with exit code {at.process.exitcode}: too little memory, or code that ends it"
                )
            self._busy.remove(at)
            at.process.join()
            if not isinstance(said, ExplorationRecord):
                raise HarnessBroke(self._wanted[at.index].scenario, 0, str(said))
            self._add(at.index, said)


def _work(wanted: Wanted, pipe: Connection) -> None:
    """One exploration in a process of its own, which Ctrl-C reaches through the command alone."""
    os.setpgrp()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        pipe.send(made(wanted, lambda _: None))
    except Exception:
        pipe.send(traceback.format_exc())
