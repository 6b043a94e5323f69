"""What stands in for the real world in a run: I/O, sockets and threads are refused, instruments cost nothing."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import outcome
import trio
import trio._core._run as trio_run
import trio._core._thread_cache as trio_threads

from dst.scheduler.errors import RealIO, RealThread
from dst.scheduler.tasks import name_of_current

if TYPE_CHECKING:
    from dst.scheduler.core import Scheduler


class NullIO:
    """An I/O manager for a world without I/O: trio's loop gets its turn from it, and simulated code an error."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._real = scheduler._real_io
        self._wakeup_sock = scheduler._runner.entry_queue.wakeup.wakeup_sock
        self.get_events = scheduler._turn
        self.process_events = operator.not_  # gets what _turn returned; does nothing, in C
        self.statistics = self._real.statistics
        self.force_wakeup = self._real.force_wakeup

    async def wait_readable(self, fd: object) -> None:
        if fd is not self._wakeup_sock:  # trio's own callback task sleeps on that one until the run is over
            self._refuse("wait_readable", fd)
        await self._real.wait_readable(self._wakeup_sock)

    async def wait_writable(self, fd: object) -> None:
        self._refuse("wait_writable", fd)

    def notify_closing(self, fd: object) -> None:
        """Nobody waits for `fd`."""

    def __getattr__(self, name: str) -> NoReturn:  # what trio has on other systems: kevents, completion ports
        self._refuse(name)

    def _refuse(self, name: str, *fds: object) -> NoReturn:
        on = " and ".join(str(fd) if isinstance(fd, int) else type(fd).__name__ for fd in fds) or "the operating system"
        self._scheduler._refuse(
            RealIO(f"{name_of_current()} called {name} on {on} in a simulation; simulated code must go through ports")
        )


class NoInstruments(dict[str, object]):
    """An empty dictionary in place of trio's own kind, which costs 0.3 us a step to be asked five times if it is empty.

    The first instrument that someone adds brings trio's own back.
    """

    def __init__(self, runner: trio_run.Runner) -> None:
        super().__init__()
        self._runner = runner
        self._real = runner.instruments

    def add_instrument(self, instrument: trio.abc.Instrument) -> None:
        self._runner.instruments = self._real
        self._real.add_instrument(instrument)

    def remove_instrument(self, instrument: trio.abc.Instrument) -> None:
        self._real.remove_instrument(instrument)  # not there: the right KeyError


class NoSockets(trio.abc.SocketFactory):
    """Refuses trio sockets where they are made: an operation that succeeds at once never gets to the I/O manager."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def socket(self, family: object = None, type: object = None, proto: object = None) -> NoReturn:
        self._scheduler._refuse(
            RealIO(f"{name_of_current()} opened a socket in a simulation; simulated code must go through ports")
        )


class NoThreads:
    """Stands in for trio's thread cache, which is one for the process: other threads still get what they ask for."""

    def __init__(self, scheduler: Scheduler, real: trio_threads.ThreadCache) -> None:
        self._scheduler = scheduler
        self._real = real
        self._thread: int | None = threading.get_ident()

    def start_thread_soon(
        self, fn: Callable[[], object], deliver: Callable[[outcome.Outcome[object]], object], name: str | None = None
    ) -> None:
        if threading.get_ident() != self._thread:
            self._real.start_thread_soon(fn, deliver, name)
            return
        self._scheduler._refuse(
            RealThread(f"{name_of_current()} wanted a thread in a simulation; simulated code must go through ports")
        )

    def uninstall(self) -> None:
        self._thread = None
        if trio_threads.THREAD_CACHE is self:  # type: ignore[comparison-overlap]  # see _in_charge
            trio_threads.THREAD_CACHE = self._real
