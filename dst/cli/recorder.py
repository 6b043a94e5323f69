"""Writes down a campaign while it runs.  A disk that is full or read-only is told once and never stops the campaign."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

import attrs

from dst.corpus import write_corpus
from dst.executors.chunk import Row
from dst.executors.tally import Tally
from dst.findings import schedule_of
from dst.home import CampaignFolder, Home, HomeUnusable
from dst.parameters import bare_name
from dst.records import CampaignRecord, FailureRecord, to_line
from dst.schedule import Versions
from dst.strategies.strategy import Deviations

_EVERY_SECONDS = 1.0


class Recorder:
    """Mutable: the open files, and `trouble`, what could not be written ("" if all could)."""

    def __init__(
        self,
        home: Home,
        *,
        name: str,
        last_seed: str,
        runs: bool,
        versions: Mapping[str, Versions],
        by_run: Callable[[FailureRecord], str],
        by_id: Callable[[FailureRecord], str],
    ) -> None:
        self.trouble = ""
        self.folder: CampaignFolder | None = None
        self._home = home
        self._versions = versions
        self._by_run = by_run
        self._by_id = by_id
        self._files = contextlib.ExitStack()
        self._records: TextIO | None = None
        self._runs: TextIO | None = None
        self._began = self._told = time.monotonic()
        with self._trying():
            home.write_last_seed(last_seed)
            self.folder = home.new_campaign(name)
            self._records = self._files.enter_context(self.folder.lines("records.ndjson"))
            if runs:
                self._runs = self._files.enter_context(self.folder.lines("runs.ndjson"))

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        """Remember the first thing that cannot be written; after it nothing more is tried."""
        if self.trouble:
            yield
            return
        try:
            yield
        except (HomeUnusable, OSError) as error:
            self.trouble = str(error)

    def failure(self, found: FailureRecord) -> FailureRecord:
        """Keep a failure; return it with the command that reproduces it."""
        by_run = attrs.evolve(found, replay=self._by_run(found))
        if not found.replays or self.trouble:
            self._line("failure", by_run)
            return by_run
        kept = attrs.evolve(found, replay=self._by_id(found))
        with self._trying():
            self._home.file(kept, schedule_of(kept, self._versions[bare_name(kept.scenario)]))
        self._line("failure", kept)
        return by_run if self.trouble else kept

    def row(self, row: Row) -> None:
        """Write one run, if asked to."""
        if self._runs is not None and not self.trouble:
            with self._trying():
                self._runs.write(json.dumps(_run(row), separators=(",", ":")) + "\n")

    def progress(self, tally: Tally) -> None:
        """Write how far it has come, now and then."""
        now = time.monotonic()
        if now - self._told >= _EVERY_SECONDS:
            self._told = now
            seconds = round(now - self._began, 3)
            self._write({"kind": "progress", "seconds": seconds, "schedules": tally.schedules})

    def keep(self, scenario: str, kept: list[Deviations]) -> None:
        """Write what later campaigns are to know of a scenario."""
        with self._trying():
            write_corpus(self._home, scenario, kept)

    def finish(self, record: CampaignRecord) -> None:
        """Write the end."""
        for diverged in record.divergences:
            self._line("divergence", diverged)
        self._line("campaign", record)
        with self._trying():
            self._files.close()
            if self.folder is not None:
                self.folder.finish(record)

    def _line(self, kind: str, record: object) -> None:
        if self._records is not None and not self.trouble:
            with self._trying():
                self._records.write(to_line(kind, record))

    def _write(self, value: dict[str, object]) -> None:
        if self._records is not None and not self.trouble:
            with self._trying():
                self._records.write(json.dumps(value, separators=(",", ":")) + "\n")


def _run(row: Row) -> dict[str, object]:
    return {
        "kind": "run",
        "index": row.index,
        "scenario": row.scenario,
        "seed": row.seed,
        "strategy": row.strategy,
        "verdict": "fail" if row.signature or row.divergence else "unknown" if row.why else "pass",
        "signature": row.signature,
        "digest": row.digest,
        "seconds": round(row.seconds, 6),
        "fired": dict(row.fired),
        "marks": dict(row.marks),
    }
