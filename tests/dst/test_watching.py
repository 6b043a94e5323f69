"""Who asks for something real, and who is said to have asked."""

from __future__ import annotations

import importlib
import logging
import random
import secrets
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from datetime import date
from pathlib import Path
from time import time as renamed

import pytest

from dst.choices import Calm
from dst.run import host
from dst.watching import Source, Watcher
from tests.dst.toy_scenarios import Steady


def seen(function: Callable[[], object], *own: str) -> list[Source]:
    watcher = Watcher(own)
    with watcher.on():
        function()
    time.time()  # nobody watches any more
    return list(watcher.seen)


def library(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a module `borrowed` among the libraries."""
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "borrowed.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.delitem(sys.modules, "borrowed", raising=False)


ASKED = [
    (time.monotonic, "time", "time.monotonic"),
    (renamed, "time", "time.time"),
    (date.today, "time", "datetime.date.today"),
    (lambda: random.randint(1, 6), "chance", "random.randint"),
    (lambda: random.Random(7).seed(), "chance", "random.seed"),
    (lambda: random.SystemRandom().random(), "chance", "random.SystemRandom.random"),
    (lambda: random.Random(), "chance", "random.Random"),
    (lambda: secrets.token_hex(4), "chance", "secrets.token_hex"),
    (uuid.uuid1, "chance", "uuid.uuid1"),
    (uuid.uuid4, "chance", "uuid.uuid4"),
]


@pytest.mark.parametrize(("asks", "kind", "called"), ASKED, ids=[called for *_, called in ASKED])
def test_a_source_is_seen_under_whatever_name_it_is_called(asks: Callable[[], object], kind: str, called: str) -> None:
    found = seen(lambda: asks())
    assert (kind, called) in [(source.kind, source.called) for source in found]
    assert {Path(__file__)} == {Path(source.file) for source in found}


def test_chance_from_a_seed_is_none() -> None:
    assert [] == seen(lambda: random.Random(7).sample(range(9), 3))


def test_a_place_is_noted_once_and_a_scenario_at_most_twenty_times() -> None:
    assert 1 == len(seen(lambda: [time.time() for _ in range(9)]))
    lines = compile("\n".join(["time.time()"] * 50), __file__, "exec")
    assert 20 == len(seen(lambda: exec(lines, {"time": time, "__name__": "mine"})))


def test_a_log_line_has_a_time_that_is_its_own() -> None:
    assert [] == seen(lambda: logging.getLogger("mine").error("it is late"))


def test_what_the_harness_does_itself_is_not_told() -> None:
    async def body(h):
        for _ in range(65):  # it collects garbage meanwhile
            await h.run(Steady, Calm())

    assert [] == seen(lambda: host(body))


def test_what_a_library_asks_for_is_put_down_to_who_called_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path, "import time\ndef now():\n    return time.time()\n", monkeypatch)
    borrowed = importlib.import_module("borrowed")
    (source,) = seen(lambda: borrowed.now())
    assert ("time.time", Path(__file__)) == (source.called, Path(source.file))
    (source,) = seen(lambda: borrowed.now(), "borrowed")
    assert "now" == source.function, "an installed package that is looked at answers for itself"


def test_what_a_library_asks_for_while_it_is_imported_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path, "import random\nDRAWN = random.random()\n", monkeypatch)
    assert [] == seen(lambda: importlib.import_module("borrowed"))
    monkeypatch.delitem(sys.modules, "borrowed")
    (source,) = seen(lambda: importlib.import_module("borrowed"), "borrowed")
    assert ("random.random", "<module>") == (source.called, source.function)
