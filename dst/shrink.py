"""Shrinking: a failing schedule loses deviations while it keeps its signature, and is then said as well as may be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import attrs

from dst.faults import CRASH_AFTER, CRASH_BEFORE, HOLD
from dst.passings import Passing
from dst.racing import races
from dst.schedule import Deviation

Fails = Callable[[tuple[Deviation, ...]], Awaitable["tuple[Deviation, ...] | None"]]
"""Runs deviations; returns those that took place if the run fails with the wanted signature, else None."""

Look = Callable[[tuple[Deviation, ...]], Awaitable[Sequence[Passing]]]
"""Runs deviations; returns what the run came to."""

BUDGET = 400
_CRASHES = (CRASH_BEFORE.name, CRASH_AFTER.name)
_PAIRS_OF = 8  # deviations of which every two are tried together


@attrs.frozen(kw_only=True)
class Shrunk:
    """The smallest schedule found; `minimal` says that nothing that could be done to it still fails: all was tried."""

    deviations: tuple[Deviation, ...]
    runs: int
    minimal: bool


async def shrink(
    deviations: Sequence[Deviation],
    fails: Fails,
    budget: int = BUDGET,
    progress: Callable[[int, int], None] | None = None,
    look: Look | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Shrunk:
    """Return a 1-minimal schedule that fails alike, or the best one found within `budget` runs.

    `progress(runs, deviations)` is told after each run; once `stopped()` is true, the best so far is returned.
    Without `look` faults stay as strong as they are, crashes where they are, and holds as they are.
    """
    shrinker = _Shrinker(tuple(deviations), fails, budget, progress, look, stopped)
    while not shrinker.spent:
        before = shrinker.best
        await shrinker.remove_chunks()
        await shrinker.remove_each()
        await shrinker.remove_pairs()
        await shrinker.move_earlier()
        if shrinker.best == before:
            await shrinker.weaken()
            await shrinker.crash_earlier()
            await shrinker.pair_holds()
        if shrinker.best == before:
            break
    minimal = not shrinker.spent and not await shrinker.remove_each()
    return Shrunk(deviations=shrinker.best, runs=shrinker.runs, minimal=minimal)


class _Shrinker:
    """Mutable: the best schedule so far, and the runs used."""

    def __init__(
        self,
        best: tuple[Deviation, ...],
        fails: Fails,
        budget: int,
        progress: Callable[[int, int], None] | None,
        look: Look | None,
        stopped: Callable[[], bool],
    ) -> None:
        self.best = best
        self.runs = 0
        self._fails = fails
        self._budget = budget
        self._progress = progress
        self._look = look
        self._stopped = stopped
        self._seen: dict[tuple[Deviation, ...], Sequence[Passing]] = {}
        self._tried: set[tuple[Deviation, ...]] = {best}

    @property
    def spent(self) -> bool:
        """Is the budget used up, or is it to end now?"""
        return self.runs >= self._budget or self._stopped()

    async def _try(self, candidate: tuple[Deviation, ...], *, better: bool = False) -> bool:
        """Take the candidate if it still fails and is smaller: as what took place in it, which may be less.

        One that is known to be better is taken if all of it took place.
        """
        if candidate in self._tried or self.spent:
            return False
        self._tried.add(candidate)
        took_place = await self._fails(candidate)
        taken = took_place is not None and (
            _size(took_place) < _size(self.best) or (better and sorted(took_place) == sorted(candidate))
        )
        if took_place is not None and taken:
            self.best = took_place
            self._tried.add(took_place)
        self._count()
        return taken

    def _count(self) -> None:
        self.runs += 1
        if self._progress is not None:
            self._progress(self.runs, len(self.best))

    async def _passings(self, deviations: tuple[Deviation, ...]) -> Sequence[Passing]:
        """Return what a run comes to, nothing if that is not to be known."""
        if deviations not in self._seen and self._look is not None and not self.spent:
            self._seen[deviations] = await self._look(deviations)
            self._count()
        return self._seen.get(deviations, ())

    async def remove_chunks(self) -> None:
        """Delta debugging: remove ever smaller parts."""
        size = len(self.best) // 2
        while size >= 2:
            start = 0
            while start < len(self.best):
                if not await self._try(self.best[:start] + self.best[start + size :]):
                    start += size
            size //= 2

    async def remove_each(self) -> bool:
        """Remove single deviations, as they stand and with later occurrences counted down; True if any could go.

        Without the counting down, removing what happened the first time makes `#2` never happen, and an empty pass
        looks like progress.
        """
        removed = False
        index = 0
        while index < len(self.best):
            without = self.best[:index] + self.best[index + 1 :]
            if await self._try_any(_renumberings(without, index, self.best[index])):
                removed = True
            else:
                index += 1
        return removed

    async def remove_pairs(self) -> None:
        """Remove two that can only go together, such as a crash and what it took to get as far a second time."""
        first = 0
        while 2 < len(self.best) <= _PAIRS_OF and first < len(self.best) - 1:
            for second in range(first + 1, len(self.best)):
                without = tuple(d for i, d in enumerate(self.best) if i not in (first, second))
                if await self._try_any(_renumberings(without, first, self.best[first])):
                    break
            else:
                first += 1

    async def _try_any(self, candidates: Sequence[tuple[Deviation, ...]]) -> bool:
        for candidate in candidates:
            if await self._try(candidate):
                return True
        return False

    async def move_earlier(self) -> None:
        """Have things happen at an earlier occurrence of their site."""
        for index in range(len(self.best)):
            if index >= len(self.best):
                return
            deviation = self.best[index]
            for occurrence in range(1, deviation.occurrence):
                earlier = attrs.evolve(deviation, at=f"{deviation.site}#{occurrence}")
                if await self._try((*self.best[:index], earlier, *self.best[index + 1 :])):
                    break

    async def weaken(self) -> None:
        """Have less go wrong at the same point."""
        for deviation in self.best:
            rest = self._without(deviation)
            here = [passing.menu for passing in await self._passings(self.best) if passing.at == deviation.at]
            for name in here[0].weaker(deviation.do) if here else ():
                if await self._try((*rest, attrs.evolve(deviation, do=name)), better=True):
                    break

    async def crash_earlier(self) -> None:
        """Have a node die as early in its life as still fails."""
        for crash in [deviation for deviation in self.best if deviation.do in _CRASHES]:
            rest = self._without(crash)
            for earlier in _sooner(crash, await self._passings(self.best)):
                if await self._try((*rest, earlier), better=True):
                    break

    def _without(self, deviation: Deviation) -> tuple[Deviation, ...]:
        return tuple(other for other in self.best if other != deviation)

    async def pair_holds(self) -> None:
        """Have what is held be one of two operations that race, and wait for the other one."""
        for hold in [deviation for deviation in self.best if deviation.do == HOLD]:
            rest = self._without(hold)
            without, held = await self._passings(rest), await self._passings(self.best)
            for pair in races(hold, without, held):
                if pair == hold or await self._try((*rest, pair), better=True):
                    break


def _sooner(crash: Deviation, passings: Sequence[Passing]) -> list[Deviation]:
    """Return the crashes that come before this one in the same life of its node, from the earliest on.

    They come after each operation.  Before the next one is the same but for what others did meanwhile, and is asked of
    the first operation and of the one of this crash only.
    """
    here = next((passing for passing in passings if passing.at == crash.at), None)
    if here is None:
        return []
    life = [passing for passing in passings if passing.node == here.node and passing.came <= here.came]
    first = next((passing for passing in life if passing.menu.index(CRASH_BEFORE.name) is not None), here)
    befores = [(p.came, p.at, CRASH_BEFORE) for p in (first, here) if p.menu.index(CRASH_BEFORE.name) is not None]
    afters = [(p.done, p.at, CRASH_AFTER) for p in life if p.done and p.menu.index(CRASH_AFTER.name) is not None]
    when = here.done if crash.do == CRASH_AFTER.name and here.done else here.came
    sooner = sorted((time, at, fault.name) for time, at, fault in {*befores, *afters} if time < when)
    return [Deviation(at=at, do=name) for _, at, name in sooner]


def _size(deviations: tuple[Deviation, ...]) -> tuple[int, int]:
    return len(deviations), sum(deviation.occurrence for deviation in deviations)


def _renumberings(deviations: tuple[Deviation, ...], index: int, removed: Deviation) -> list[tuple[Deviation, ...]]:
    """Return the schedule as it stands, and with occurrences counted down: all from `index` on, or the same site's."""
    counted = tuple(
        attrs.evolve(d, at=f"{d.site}#{d.occurrence - 1}") if i >= index and d.occurrence > 1 else d
        for i, d in enumerate(deviations)
    )
    alone = tuple(
        attrs.evolve(d, at=f"{d.site}#{d.occurrence - 1}")
        if d.site == removed.site and d.occurrence > removed.occurrence
        else d
        for d in deviations
    )
    return list(dict.fromkeys((deviations, counted, alone)))
