"""The `.dst` folder: the last seed, campaigns, and failures until they are healed.

Every file is written beside its place and then moved there, so that a reader or a crash never meets half of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import attrs

from dst.errors import WrongUsage, unknown
from dst.records import ID, BadRecords, CampaignRecord, FailureRecord, parse_failure, printable, to_text
from dst.schedule import BadSchedule, Schedule, parse

_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_READ_MAX = 64_000_000


class HomeUnusable(Exception):
    """The folder cannot be written: no permission, no space, not a folder."""


@attrs.frozen
class CampaignFolder:
    """Where one campaign's records go."""

    path: Path

    def finish(self, record: CampaignRecord) -> None:
        """Write `stats.json`, and say that this campaign is the latest."""
        write(self.path / "stats.json", to_text(record))
        write(self.path.parent / "latest", self.path.name + "\n")

    @contextlib.contextmanager
    def lines(self, name: str) -> Iterator[TextIO]:
        """Open a file that grows line by line."""
        with _told(self.path / name), (self.path / name).open("w", encoding="utf-8", buffering=1) as file:
            yield file


@attrs.frozen
class Home:
    """The folder at `path`; nothing is made before something is written."""

    path: Path

    def write_last_seed(self, text: str, name: str = "last-seed") -> None:
        """Remember what `--seed last` means."""
        self._make(self.path)
        write(self.path / name, text + "\n")

    def last_seed(self, name: str = "last-seed") -> str:
        """Return what the last campaign started from.  Raises `WrongUsage` if there was none."""
        try:
            text = read(self.path / name, 100).strip()
        except FileNotFoundError:
            raise WrongUsage(f"--seed last: no campaign has run here ({self.path}/{name} is not there)") from None
        if not re.fullmatch(r"\d{1,20}(:\d{1,20})?", text):
            raise WrongUsage(f"{self.path}/{name} holds {printable(text)!r}, wanted a seed")
        return text

    def new_campaign(self, name: str) -> CampaignFolder:
        """Make the folder of a campaign that starts now."""
        stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{_NAME.sub('-', name)[:60]}"
        self._make(self.path / "campaigns")
        for number in range(1, 1000):
            folder = self.path / "campaigns" / (stem if number == 1 else f"{stem}-{number}")
            with _told(folder), contextlib.suppress(FileExistsError):
                folder.mkdir()
                return CampaignFolder(folder)
        raise HomeUnusable(f"{self.path}/campaigns: a thousand campaigns in one second")

    def write_under(self, folder: str, name: str, text: str) -> None:
        """Write a file into one of the folder's own folders.  Raises `HomeUnusable`."""
        self._make(self.path / folder)
        write(self.path / folder / name, text)

    # ---- failures ----------------------------------------------------------------------------------------------------

    def file(self, failure: FailureRecord, schedule: Schedule) -> None:
        """Keep a failure under its id, in place of an earlier one."""
        folder = self._failure(failure.id)
        self._make(folder)
        write(folder / "schedule.json", schedule.to_text())
        write(folder / "failure.json", to_text(failure))

    def failures(self) -> list[str]:
        """Return the ids that are kept."""
        folder = self.path / "failures"
        return sorted(p.name for p in folder.iterdir() if ID.fullmatch(p.name)) if folder.is_dir() else []

    def schedule(self, id: str) -> Schedule:
        """Return the schedule of a kept failure.  Raises `WrongUsage`, `BadSchedule`."""
        path = self._failure(id) / "schedule.json"
        try:
            return read_schedule(path)
        except FileNotFoundError:
            kept = self.failures()
            if not kept:
                raise WrongUsage(f"no failure {id!r}: none is kept in {self.path}/failures") from None
            raise unknown("failure", id, kept) from None

    def failure(self, id: str) -> FailureRecord | None:
        """Return what was recorded of a kept failure; None if that file is missing or not to be read."""
        path = self._failure(id) / "failure.json"
        try:
            return parse_failure(read(path, _READ_MAX), str(path))
        except (OSError, UnicodeDecodeError, BadRecords):
            return None

    def heal(self, id: str) -> None:
        """Drop a failure that does not happen any more."""
        folder = self._failure(id)
        with _told(folder):
            shutil.rmtree(folder)

    def _failure(self, id: str) -> Path:
        if not ID.fullmatch(id):
            raise WrongUsage(f"{printable(id)[:60]!r} is no id: wanted six characters from A to Z and 2 to 7")
        return self.path / "failures" / id

    def _make(self, folder: Path) -> None:
        with _told(folder):
            folder.mkdir(parents=True, exist_ok=True)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                write(ignore, "*\n")


def read(path: Path, size_max: int) -> str:
    """Return a file's text.  Raises `OSError`, `UnicodeDecodeError`; `WrongUsage` if it is too long."""
    with path.open("rb") as file:
        content = file.read(size_max + 1)
    if len(content) > size_max:
        raise WrongUsage(f"{path}: more than {size_max} bytes")
    return content.decode("utf-8")


def read_schedule(path: Path) -> Schedule:
    """Return the schedule in a file.  Raises `BadSchedule`, `FileNotFoundError`, `WrongUsage`."""
    try:
        return parse(read(path, _READ_MAX), printable(str(path)))
    except UnicodeDecodeError:
        raise BadSchedule(
            f"{printable(str(path))} is not UTF-8 text: wanted a schedule as `dst fuzz` writes it"
        ) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WrongUsage(f"cannot read {printable(str(path))}: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Put `text` at `path`, whole or not at all.  Raises `HomeUnusable`."""
    with _told(path):
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the system says into a sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise HomeUnusable(f"cannot write {printable(str(path))}: {error.strerror or error}") from error
