"""Concurrent branches of a flow: their outcome is a function of the log under every interleaving (K-FLOW-8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from kernel.errors import BlockingSignal, CancelRequested, ControlSignal
from kernel.signals import verdict

if TYPE_CHECKING:
    from kernel.context import Context

T = TypeVar("T")

_SETTLING = BlockingSignal | CancelRequested


class Branch(Generic[T]):
    """One branch.  Mutable: holds its outcome when it has settled."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.error: BaseException | None = None
        self._values: list[T] = []

    @property
    def result(self) -> T:
        """What the branch returned; to be asked for after the block, when every branch has settled."""
        if not self._values:
            raise RuntimeError(f"branch {self.path} has no result: ask after the `async with` block has ended")
        return self._values[0]

    def settle(self, value: T) -> None:
        """The branch has returned."""
        self._values.append(value)


class Branches:
    """A group of branches.  All settle before the block ends; then the body's error, else the first real error in
    branch order, else a control signal, is raised."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._path = context.branch_path()
        self._manager: AbstractAsyncContextManager[trio.Nursery] = trio.open_nursery()
        self._group = context.next_branch_group(self._path)
        self._branches: list[Branch[object]] = []

    async def __aenter__(self) -> Branches:
        self._nursery = await self._manager.__aenter__()
        self._context.count_branches(+1)
        return self

    def start(self, function: Callable[..., Awaitable[T]], *args: object) -> Branch[T]:
        """Start `function(*args)` as the next branch."""
        branch: Branch[T] = Branch(f"{self._path}/{self._group}.{len(self._branches)}")
        self._branches.append(branch)  # type: ignore[arg-type]  # only settled and read through its own type
        self._nursery.start_soon(self._run, branch, function, args, name=f"branch {branch.path}")
        return branch

    async def _run(self, branch: Branch[T], function: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> None:
        self._context.enter_branch(branch.path)
        try:
            branch.settle(await function(*args))
        except BaseException as raised:
            branch.error = verdict(raised)
            if isinstance(branch.error, _SETTLING):
                pass  # siblings settle first, and then come to the same (K-FLOW-8)
            elif isinstance(branch.error, ControlSignal):
                self._nursery.cancel_scope.cancel()  # the run is over: no sibling may begin another effect
            elif not isinstance(branch.error, Exception):
                raise
        finally:
            self._context.leave_branch()

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if raised is not None and not isinstance(raised, Exception | _SETTLING):  # blocked: siblings settle first
            self._nursery.cancel_scope.cancel()
        try:
            await self._manager.__aexit__(None, None, None)
        finally:
            self._context.count_branches(-1)
        if raised is not None:
            return False
        errors = [branch.error for branch in self._branches if branch.error is not None]
        for error in errors:
            if isinstance(error, Exception):
                raise error
        for error in errors:
            if isinstance(error, CancelRequested):
                self._context.cancelling.told.add(self._path)  # it comes to who opened the branches from here
            if isinstance(error, ControlSignal):
                raise error
        return None  # what is left are cancellations: those of this group are over, others are on their way already
