"""Watching code for what it asks of the real world: the clock, chance, new ids, threads.

`dst doctor` makes some of its runs with this on, and nothing else does.  It is a profile function, which is told of
every call of a C function under whatever name the code has it.  It cannot see C code that calls C code (extension
modules, `sorted(key=id)`), the order of a set, `hash`, or what other threads do.
"""

from __future__ import annotations

import _thread
import datetime
import gc
import os
import random
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType

import attrs

TIME, CHANCE, THREAD, COLLECTOR = "time", "chance", "thread", "collector"


@attrs.frozen(kw_only=True)
class Source:
    """A place in the code that asked for something real: `called` was called at `line` of `file`, in `function`."""

    kind: str
    called: str
    file: str
    line: int
    function: str


def _those(kind: str, module: ModuleType, names: str) -> dict[object, tuple[str, str]]:
    """Return (kind, name) of those functions of a module that this Python has."""
    return {getattr(module, n): (kind, f"{module.__name__}.{n}") for n in names.split() if hasattr(module, n)}


_SOURCES: dict[object, tuple[str, str]] = {
    **_those(TIME, time, "clock_gettime clock_gettime_ns ctime localtime monotonic monotonic_ns perf_counter"),
    **_those(TIME, time, "perf_counter_ns process_time process_time_ns sleep thread_time thread_time_ns time time_ns"),
    **{getattr(datetime.datetime, n): (TIME, f"datetime.datetime.{n}") for n in ("now", "today", "utcnow")},
    datetime.date.today: (TIME, "datetime.date.today"),
    **_those(CHANCE, random, "random getrandbits"),  # those of the one generator behind the module
    **_those(CHANCE, os, "urandom getrandom"),
    **_those(CHANCE, uuid, "_generate_time_safe _UuidCreate"),
    **_those(THREAD, _thread, "start_new_thread start_joinable_thread"),
    **_those(COLLECTOR, gc, "collect enable"),
}
_SEEDING = random.Random.seed.__code__

_HARNESS = frozenset({"dst", "__main__"})
_SILENT = frozenset({
    "hypothesis",  # times the garbage collector, in a callback
    "importlib",  # what a library does while it is imported
    "logging",  # reads the clock for its own lines
})  # fmt: skip
_INSTALLED = ("site-packages", "dist-packages")
_KEPT = 20


class Watcher:
    """Notes who asks.  Mutable: the notes, each place once, in the order in which they were come to, 20 at most.

    What the harness itself calls is not noted, nor what a library does while it is imported.

    A call is put down to the frame that answers for it: the innermost that is neither of the standard library, of the
    kernel, of the harness nor of an installed library; else the innermost that is not of the standard library.
    Packages in `own` count as code of one's own even where they are installed.
    """

    def __init__(self, own: Iterable[str] = ()) -> None:
        self._own = frozenset(own)
        self._seen: dict[Source, None] = {}

    @property
    def seen(self) -> tuple[Source, ...]:
        """What was noted."""
        return tuple(self._seen)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch this thread."""
        before = sys.getprofile()
        sys.setprofile(self._told)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _told(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call":
            known = _SOURCES.get(arg)
            if known is not None:
                self._note(*known, frame)
        elif event == "call" and frame.f_code is _SEEDING and frame.f_locals["a"] is None:
            self._note(CHANCE, "random.seed", frame)

    def _note(self, kind: str, called: str, frame: FrameType) -> None:
        """Find who answers for a call, and which function of the standard library they called."""
        fallback: FrameType | None = None
        asking: FrameType | None = frame
        while asking is not None:
            module = str(asking.f_globals.get("__name__", ""))
            root = module.partition(".")[0]
            if root in _SILENT:
                return
            if root in sys.stdlib_module_names:
                if fallback is None:
                    called = f"{module}.{asking.f_code.co_qualname}"
            elif root in self._own or not _is_foreign(asking, root):
                break
            elif fallback is None:
                if root in _HARNESS:
                    return  # the harness collects garbage between runs
                fallback = asking
            asking = asking.f_back
        place = asking or fallback
        if place is not None and len(self._seen) < _KEPT:
            self._seen[_source(kind, called, place)] = None


def _is_foreign(frame: FrameType, root: str) -> bool:
    file = frame.f_code.co_filename
    return root in _HARNESS or root == "kernel" or file.startswith("<") or any(part in file for part in _INSTALLED)


def _source(kind: str, called: str, frame: FrameType) -> Source:
    # The functions of the module `random` are methods of its one generator.
    shown = called.removesuffix(".__init__").replace("random.Random.", "random.")
    code = frame.f_code
    return Source(kind=kind, called=shown, file=code.co_filename, line=frame.f_lineno, function=code.co_qualname)
