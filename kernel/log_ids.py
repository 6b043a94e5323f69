"""Which execution and step a log record comes from (K-USER-4).

The runtime keeps the place of the code it runs in a context variable, which tasks and `trio.to_thread` inherit.
`LogIds` writes it into records; nothing of it reaches an event log, an emit or a flow.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import attrs


@attrs.frozen(slots=True)
class Place:
    """Where running code is.  The runtime sets it while it drives an execution, and while an effect runs."""

    execution_id: str
    flow_id: str | None  # None: the log has not been read yet
    incarnation: str  # of the process
    step_id: str | None = None  # as in the log: with its key, if it has one; None outside effects
    attempt: int | None = None  # of the step


PLACE: contextvars.ContextVar[Place | None] = contextvars.ContextVar("place", default=None)
"""Set outright by tasks that the runtime starts: such a task inherits the place of whoever caused it."""

_FLOWS = logging.getLogger("kernel.flow")
_IDS = tuple(field.name for field in attrs.fields(Place))


@contextlib.contextmanager
def placed(place: Place) -> Iterator[None]:
    """Be at this place for the length of the block."""
    token = PLACE.set(place)
    try:
        yield
    finally:
        PLACE.reset(token)


class LogIds(logging.Filter):
    """Gives each record `execution_id`, `flow_id`, `incarnation`, `step_id` and `attempt`; None where not known.

    The loggers of the kernel have it.  For records of your own code put it on a *handler*, since a logger's filters do
    not see what its children log: `handler.addFilter(LogIds())`.  What a record has already is left as it is: it may
    have been made in another thread.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids; every record passes."""
        place = PLACE.get()
        for name in _IDS:
            record.__dict__.setdefault(name, getattr(place, name, None))
        return True


class FlowLog(logging.LoggerAdapter[logging.Logger]):
    """A flow's own log, silent while the flow only does again what an earlier run of it has done: see `Context.log`."""

    def __init__(self, is_repeating: Callable[[], bool]) -> None:
        super().__init__(_FLOWS)
        self._is_repeating = is_repeating

    def isEnabledFor(self, level: int) -> bool:  # the name is that of `logging`
        """Would a record of this level be logged now?"""
        return self.logger.isEnabledFor(level) and not self._is_repeating()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave message and `extra` to the caller; `LogIds` adds the rest."""
        return msg, kwargs
