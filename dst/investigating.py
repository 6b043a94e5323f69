"""A failing run investigated: its schedule shrunk, its story made smaller, and what is left replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dst.choices import Random, Written
from dst.judging import run_one
from dst.parameters import smaller
from dst.passings import Looking, Passing
from dst.prng import derive
from dst.replaying import alike_but_for_numbers, settle
from dst.run import Host, RunResult
from dst.scenario import Scenario
from dst.schedule import Deviation, Schedule
from dst.shrink import Shrunk, shrink
from dst.signature import Signature, signature_of
from dst.transparency import Transparency
from dst.verdict import Verdict, Violation
from dst.versions import versions_of

SHORT = 3
"""A shrunk schedule of more deviations than this makes it worth while to look for another."""

_OTHERS_TRIED = 200  # runs in which another is looked for
_SIMPLER = 7  # the stream they are drawn from


@attrs.frozen(kw_only=True)
class Failure:
    """One failure, shrunk and replayed."""

    signature: Signature
    violation: Violation
    scenario: type[Scenario]  # which its schedule is of: that of the run that found it, or a smaller one
    schedule: Schedule
    found_in: str  # the name of the scenario of the run that found it
    found_with: int  # deviations of the run that found it
    choices: int  # points that run passed
    minimal: bool
    digest: str
    replays: bool  # the shrunk schedule, run again, gave the same digest


async def investigate(
    host: Host,
    transparency: Transparency,
    scenario: type[Scenario],
    result: RunResult,
    violation: Violation,
    signature: Signature,
    *,
    seed: int | None,
    mutant: str | None,
    budget: int,
    progress: Callable[[int, int], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Failure:
    """Shrink a failing run, and replay what is left; once `stopped()` is true, that is the best so far.

    Each part of it takes at most `budget` runs; with none, the run is replayed as it is.
    """
    work = _Work(host, transparency, scenario, signature, mutant, budget, progress, stopped)
    await work.shrink(result.deviations)
    if budget:
        await work.find_shorter()
        await work.find_smaller_story()
    found_in, deviations, scenario = scenario.name, work.found.deviations, work.scenario
    final, wrong = await run_one(host, transparency, scenario, Written(deviations))
    again = await host.run(scenario, Written(deviations))
    return Failure(
        signature=signature,
        violation=wrong or violation,
        scenario=scenario,
        schedule=Schedule(
            scenario=scenario.name,
            mutant=mutant,
            seed=seed if found_in == scenario.name else None,
            deviations=deviations,
            versions=versions_of(scenario),
        ),
        found_in=found_in,
        found_with=len(result.deviations),
        choices=result.operations,
        minimal=work.found.minimal and not stopped(),
        digest=final.digest,
        replays=wrong is not None and final.digest == again.digest,
    )


class _Work:
    """Mutable: the smallest schedule so far, the scenario it is of, and the runs used."""

    def __init__(
        self,
        host: Host,
        transparency: Transparency,
        scenario: type[Scenario],
        signature: Signature,
        mutant: str | None,
        budget: int,
        progress: Callable[[int, int], None] | None,
        stopped: Callable[[], bool],
    ) -> None:
        self.scenario = scenario
        self.found = Shrunk(deviations=(), runs=0, minimal=False)
        self._host = host
        self._transparency = transparency
        self._signature = signature
        self._mutant = mutant
        self._budget = budget
        self._progress = progress
        self._stopped = stopped
        self._runs = 0

    async def shrink(self, deviations: Sequence[Deviation]) -> None:
        """Take the best that shrinking makes of these."""
        before = self._runs

        def told(runs: int, size: int) -> None:
            self._runs = before + runs
            if self._progress is not None:
                self._progress(self._runs, size)

        self.found = await shrink(deviations, self._fails, self._budget, told, self._look, self._stopped)

    async def _fails(self, deviations: tuple[Deviation, ...]) -> tuple[Deviation, ...] | None:
        return await self._fails_in(self.scenario, deviations)

    async def _fails_in(
        self, scenario: type[Scenario], deviations: tuple[Deviation, ...]
    ) -> tuple[Deviation, ...] | None:
        again, wrong = await run_one(self._host, self._transparency, scenario, Written(deviations))
        if wrong is None or signature_of(again, self._mutant, wrong) != self._signature:
            return None
        return again.deviations

    async def _look(self, deviations: tuple[Deviation, ...]) -> Sequence[Passing]:
        looking = Looking(deviations)
        await self._host.run(self.scenario, looking, judged=False)
        return looking.passings()

    # ---- what shrinking does not come to -----------------------------------------------------------------------------

    async def find_shorter(self) -> None:
        """Take a shorter schedule that fails alike, if one is met soon among runs with the kinds of faults of this one.

        Removing deviations one or two at a time can end where a shorter story needs one that is not among them, as
        where a crash stands for a request that was refused.
        """
        if len(self.found.deviations) <= SHORT:
            return
        best = self.found
        final = await self._host.run(self.scenario, Written(best.deviations), judged=False)
        kinds = [fault for fault in self.scenario.faults if fault.name in final.fired]
        for number in range(_OTHERS_TRIED):
            if self._stopped() or len(best.deviations) <= SHORT:
                break
            drawn = await self._host.run(self.scenario, Random(derive(number, _SIMPLER), kinds, subset=False))
            failing = await self._fails(drawn.deviations) if drawn.verdict is Verdict.FAIL else None
            if failing is None:
                continue
            other = await shrink(failing, self._fails, self._budget, stopped=self._stopped)
            if len(other.deviations) < len(best.deviations):
                best = other
        if best is not self.found:
            await self.shrink(best.deviations)

    async def find_smaller_story(self) -> None:
        """Take the scenario with smaller parameters, one after the other, as long as no more has to go wrong in it."""
        candidates = smaller(self.scenario)
        while (scenario := next(candidates, None)) is not None and not self._stopped():
            if await self._goes_on_in(scenario):
                candidates = smaller(scenario)

    async def _goes_on_in(self, scenario: type[Scenario]) -> bool:
        """Take the scenario if it fails alike; points that it does not come to are looked for where they are now."""
        deviations = self.found.deviations
        failing = await self._fails_in(scenario, deviations)
        if failing is None:
            moved = await settle(self._host, scenario, deviations, alike_but_for_numbers)
            failing = await self._fails_in(scenario, moved) if moved != deviations else None
        if failing is None or len(failing) > len(deviations):
            return False
        self.scenario = scenario
        await self.shrink(failing)
        return True
