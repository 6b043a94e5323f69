"""Runs a campaign in several processes: pieces of work go out, rows come back and are counted in order.

A worker that dies loses its piece, which is given out again, a bounded number of times.  Workers are spawned, ignore
Ctrl-C (the command itself sees to it), and end when their pipe does: none outlives the command, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import attrs

from dst.errors import HarnessBroke, WorkersLost
from dst.executors.assignment import CHUNK, Assignment, Chunk
from dst.executors.chunk import ChunkRunner, Row
from dst.executors.tally import Tally
from dst.run import Host, Limits, host

Progress = Callable[[], None]

_TRIES = 3  # for one piece of work
_TICK_SECONDS = 0.5


@attrs.frozen(kw_only=True)
class _Done:
    """A worker's answer: the rows of one piece; `whole` unless time was out."""

    start: int
    rows: tuple[Row, ...]
    whole: bool


@attrs.frozen(kw_only=True)
class _Broken:
    """A worker's answer: a run broke the harness."""

    scenario: str
    seed: int
    details: str


@attrs.define(kw_only=True, eq=False)
class _Worker:
    """A process and the piece it is at.  Mutable: `start` is None while it waits for one."""

    process: SpawnProcess
    pipe: Connection
    start: int | None = None


def run_processes(
    assignment: Assignment, tally: Tally, seconds_max: float | None, progress: Progress, workers: int
) -> bool:
    """Add every row to `tally`, in order; False if time was out before the end.

    Raises `HarnessBroke`, `WorkersLost`, KeyboardInterrupt; what had arrived by then is counted, and no worker is left.
    """
    pool = _Pool(assignment, tally, seconds_max, progress)
    try:
        pool.run(min(workers, len(assignment.chunks())))
    finally:
        pool.close()
    return pool.in_time


class _Pool:
    """The parent's side.  Mutable: what is out, what has come back and waits for its turn."""

    def __init__(self, assignment: Assignment, tally: Tally, seconds_max: float | None, progress: Progress) -> None:
        self.in_time = True
        self._assignment = assignment
        self._tally = tally
        self._ends_at = None if seconds_max is None else time.monotonic() + seconds_max
        self._progress = progress
        self._fresh: Iterator[int] = iter(assignment.chunks())
        self._again: list[int] = []  # pieces whose worker died
        self._tries: dict[int, int] = {}
        self._arrived: dict[int, _Done] = {}
        self._next = 0  # the piece whose turn it is to be counted
        self._enough_at: int | None = None  # the first piece known to hold as many failures as are wanted
        self._workers: list[_Worker] = []
        self._context = multiprocessing.get_context("spawn")

    def run(self, workers: int) -> None:
        """Give out work until it is all counted, or enough is."""
        for _ in range(workers):
            self._add_worker()
        while self._workers and not self._tally.done:
            for worker in [w for w in self._workers if w.start is None]:
                self._give(worker)
            busy = [w for w in self._workers if w.start is not None]
            if not busy:
                return
            for ready in wait([w.pipe for w in busy], timeout=_TICK_SECONDS):
                self._receive(next(w for w in busy if w.pipe is ready))
            self._progress()

    def close(self) -> None:
        """Count what has arrived, gaps or not, and end all workers."""
        for start in sorted(self._arrived):
            self._count(self._arrived.pop(start))
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _add_worker(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(self._assignment, theirs), daemon=True)
        with interrupt_kept_back():
            process.start()
        theirs.close()
        self._workers.append(_Worker(process=process, pipe=ours))

    def _give(self, worker: _Worker) -> None:
        """Give the worker its next piece, or let it go if there is none."""
        left = None if self._ends_at is None else self._ends_at - time.monotonic()
        if left is not None and left <= 0:
            self.in_time = False
        start = self._take() if self.in_time else None
        if start is None:
            return
        chunk = Chunk(
            start=start,
            stop=min(start + CHUNK, self._assignment.runs),
            seconds_left=left,
            known=self._tally.known,
        )
        worker.start = start
        with suppress(BrokenPipeError, ConnectionResetError):  # it is dead: `_receive` finds out
            worker.pipe.send(chunk)

    def _take(self) -> int | None:
        start = self._again.pop(0) if self._again else next(self._fresh, None)
        return None if start is None or (self._enough_at is not None and start > self._enough_at) else start

    def _receive(self, worker: _Worker) -> None:
        assert worker.start is not None
        try:
            answer = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._lost(worker)
            return
        worker.start = None
        if isinstance(answer, _Broken):
            raise HarnessBroke(answer.scenario, answer.seed, answer.details)
        assert isinstance(answer, _Done)
        self.in_time = self.in_time and answer.whole
        wanted = self._assignment.failures_max
        if wanted is not None and sum(row.failure is not None for row in answer.rows) >= wanted:
            self._enough_at = answer.start if self._enough_at is None else min(answer.start, self._enough_at)
        self._arrived[answer.start] = answer
        while self._next in self._arrived:
            self._count(self._arrived.pop(self._next))
            self._next += CHUNK

    def _count(self, done: _Done) -> None:
        for row in done.rows:
            if not self._tally.add(row):
                return

    def _lost(self, worker: _Worker) -> None:
        """The worker died: its piece is given out again, to a new one."""
        start = worker.start
        assert start is not None
        worker.pipe.close()
        worker.process.join()
        self._workers.remove(worker)
        self._tries[start] = self._tries.get(start, 0) + 1
        if self._tries[start] >= _TRIES:
            names = ", ".join(self._assignment.scenarios)
            raise WorkersLost(
                f"{_TRIES} workers died, one after another, over runs {start} to {start + CHUNK - 1} of {names} "
                f"(the last with exit code {worker.process.exitcode}): too little memory, or code that ends its process"
            )
        self._again.append(start)
        self._add_worker()


def _work(assignment: Assignment, pipe: Connection) -> None:
    """The worker's side: answer pieces of work until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        host(lambda simulations: _serve(simulations, assignment, pipe), Limits(steps=assignment.steps_max))


async def _serve(simulations: Host, assignment: Assignment, pipe: Connection) -> None:
    runner = ChunkRunner(simulations, assignment)
    while True:
        chunk = pipe.recv()
        assert isinstance(chunk, Chunk)
        try:
            rows = tuple([row async for row in runner.rows(chunk)])
        except HarnessBroke as broke:
            pipe.send(_Broken(scenario=broke.scenario, seed=broke.seed, details=broke.details))
            return
        pipe.send(_Done(start=chunk.start, rows=rows, whole=_whole(assignment, chunk, rows)))


def _whole(assignment: Assignment, chunk: Chunk, rows: tuple[Row, ...]) -> bool:
    """Was the piece done, or ended for a reason other than time?"""
    if chunk.start + len(rows) == chunk.stop:
        return True
    wanted = assignment.failures_max
    return (
        rows[-1].divergence is not None
        or (wanted is not None and len({r.signature for r in rows if r.signature} - chunk.known) >= wanted)
        if rows
        else False
    )


@contextmanager
def interrupt_kept_back() -> Iterator[None]:
    """Keep Ctrl-C from a process that is being started, which inherits this, for as long as it lives."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.getfd()  # starting it would undo the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def count_workers(wanted: str) -> int:
    """Return how many workers `auto` or a number means."""
    if wanted == "auto":
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return int(wanted)
