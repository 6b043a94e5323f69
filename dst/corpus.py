"""The corpus of `--strategy guided`: schedules that reached something new, one file a scenario, kept between campaigns.

It is a cache: deleting it loses nothing but time.  Only that strategy reads it, since a campaign that does is no
function of its seed alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from dst.errors import WrongUsage
from dst.home import Home, read
from dst.records import printable
from dst.schedule import BadSchedule, Deviation, Schedule, parse

KEPT_MAX = 256
"""Schedules of one scenario; the newest stay."""

_SIZE_MAX = 16_000_000

Corpus = tuple[tuple[Deviation, ...], ...]


def _path(home: Home, scenario: str) -> Path:
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", scenario)[:60]
    return home.path / "corpus" / f"{readable}-{hashlib.blake2b(scenario.encode(), digest_size=4).hexdigest()}.ndjson"


def read_corpus(home: Home, scenario: str) -> Corpus:
    """Return what is kept for a scenario, oldest first.  Raises `WrongUsage` if it cannot be read."""
    path = _path(home, scenario)
    try:
        lines = read(path, _SIZE_MAX).splitlines()
        return tuple(parse(line, f"line {n}").deviations for n, line in enumerate(lines, 1))[-KEPT_MAX:]
    except FileNotFoundError:
        return ()
    except (BadSchedule, OSError, UnicodeDecodeError) as error:
        raise WrongUsage(
            f"cannot read the corpus {printable(str(path))}: {error}; it is only a cache: delete it"
        ) from None


def write_corpus(home: Home, scenario: str, kept: Iterable[tuple[Deviation, ...]]) -> None:
    """Keep the newest of these schedules, each once.  Raises `HomeUnusable`."""
    newest = list(dict.fromkeys(kept))[-KEPT_MAX:]
    texts = (Schedule(scenario=scenario, deviations=deviations).to_text() for deviations in newest)
    home.write_under("corpus", _path(home, scenario).name, "".join(json.dumps(json.loads(t)) + "\n" for t in texts))
