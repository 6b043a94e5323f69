"""Runs a campaign in this process."""

from __future__ import annotations

import time
from collections.abc import Callable

from dst.executors.assignment import CHUNK, Assignment, Chunk
from dst.executors.chunk import ChunkRunner
from dst.executors.tally import Tally
from dst.lookup import Find, find_scenario
from dst.run import Host, Limits, host

Progress = Callable[[], None]


def run_inline(
    assignment: Assignment,
    tally: Tally,
    seconds_max: float | None,
    progress: Progress,
    find: Find = find_scenario,
) -> bool:
    """Add every row to `tally`; False if time was out before the end.  Raises `HarnessBroke`, KeyboardInterrupt."""

    async def body(simulations: Host) -> bool:
        runner, began = ChunkRunner(simulations, assignment, find), time.monotonic()
        for start in assignment.chunks():
            stop = min(start + CHUNK, assignment.runs)
            left = None if seconds_max is None else seconds_max - (time.monotonic() - began)
            if left is not None and left <= 0:
                return False
            done = start
            async for row in runner.rows(Chunk(start=start, stop=stop, seconds_left=left, known=tally.known)):
                done += 1
                wanted = tally.add(row)
                progress()
                if not wanted:
                    return True
            if done < stop:
                return False
        return True

    return host(body, Limits(steps=assignment.steps_max))
