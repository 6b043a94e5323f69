"""The comparison with peers: what `dst` comes to on its bugs, and what the page says.  No peer is run here."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of the comparison by its name."""
    monkeypatch.syspath_prepend(HERE)
    return lambda name: importlib.import_module(f"compared.{name}")


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Run the program that tries `dst`, as the command does, with two seeds."""
    limits = ["--seeds", "2", "--runs-max", "2000", "--seconds-max", "300", "--rate-seconds", "0.01"]
    program = [sys.executable, str(HERE / "compared" / "by_dst.py"), *limits]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    head, *said = map(json.loads, done.stdout.splitlines())
    assert "dst" == head["tool"]
    return {row["row"]: row for row in said}


def test_dst_finds_every_bug_from_every_seed_by_its_default_and_by_exploring(rows: dict[str, dict[str, Any]]) -> None:
    for name in ("order-of-5", "starvation", "lost-update", "crash-done-twice", "crash-in-recovery"):
        ways = {way["name"]: way["tries"] for way in rows[name]["ways"]}
        explored = next(tries for way, tries in ways.items() if way.startswith("explore"))
        for each in (*ways["portfolio"], *explored):
            assert (True, True) == (each["found"], each["replayed"])
            assert each["size"] <= 5


def test_dst_closes_every_space(rows: dict[str, dict[str, Any]]) -> None:
    said = {name: row["exhausted"][0] for name, row in rows.items()}
    assert all(each["ended"] and each["whole"] for each in said.values())
    assert {"closed (any number of crashes)", "closed (all port orders)"} == {each["says"] for each in said.values()}
    assert 120 == said["order-of-5"]["runs"]  # each order once


def test_a_tool_without_an_interpreter_is_not_run_and_says_why(compared: Any, tmp_path: Path) -> None:
    environments = compared("environments")
    with pytest.raises(environments.NotInstalled, match=r"needs Python 3\.12: there is none"):
        environments.prepare("simloom", tmp_path, {(3, 11): sys.executable}, print)


def test_an_interpreter_that_is_named_has_to_be_one(compared: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="it does not run, or is no Python"):
        compared("environments").interpreters([str(tmp_path / "python")])


def test_every_tool_but_ours_is_pinned(compared: Any) -> None:
    peers = compared("environments").PEERS
    assert ["dst"] == [name for name, peer in peers.items() if "==" not in peer.requirement]
    assert all((HERE / "compared" / peer.program).exists() for peer in peers.values())


# ---- the page --------------------------------------------------------------------------------------------------------


def _tool(name: str, runs: list[int | None], exhausted: int, rate: int) -> dict[str, Any]:
    tries = [
        {"seed": seed, "found": each is not None, "runs": each or 500, "seconds": 1.0, "size": 2, "replayed": True}
        for seed, each in enumerate(runs)
    ]
    way = {"name": "walk", "size_of": "steps", "draws": True, "tries": tries, "rate_runs": rate, "rate_seconds": 1.0}
    all_of_it = {"way": "walk", "runs": exhausted, "seconds": 1.0, "ended": True, "says": "exhausted", "whole": True}
    row = {"row": "lost-update", "ways": [way], "exhausted": [all_of_it]}
    return {"name": name, "tool": name, "version": "1", "python": "3.11", "not_run": "", "rows": [row]}


def _record(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"arguments": ["--seeds", "3"], "processors": 2, "load": [0.1, 0.2], "tools": tools, "repeat": "python x.py"}


def test_the_page_says_a_loss_as_plainly_as_a_win(compared: Any) -> None:
    ours, other = _tool("dst", [9, 12, 60], 10, 900), _tool("other", [4, 3, 5], 21, 1000)
    page = compared("standings").page(_record(ours, other))
    assert "| lost-update | **2 of 2**: other is 3.0 times as good | first | level with other | first |" in page
    assert "| dst | walk | 12 / 60 | 1.000 / 1.000 | 900 | 3 of 3 | 2 / 2 steps | 10 runs: exhausted |" in page


def test_the_page_says_from_how_many_seeds_nothing_was_found(compared: Any) -> None:
    page = compared("standings").page(_record(_tool("dst", [9, None, 60], 10, 900), _tool("never", [None, None], 5, 9)))
    assert "| dst | walk | 34.5 / 60; not found from 1 of 3 |" in page
    assert "| never | none of its ways | not found in 500 |" in page


def test_a_tool_that_was_not_run_is_on_the_page(compared: Any) -> None:
    absent = {"name": "simloom", "not_run": "needs Python 3.12", "rows": []}
    assert "- simloom: not run: needs Python 3.12" in compared("standings").page(_record(absent))


# ---- what is published -----------------------------------------------------------------------------------------------

PUBLISHED = ROOT / "reports" / "published"


@pytest.fixture
def published() -> dict[str, Any]:
    """Read the record that is kept."""
    record: dict[str, Any] = json.loads((PUBLISHED / "peers.json").read_text(encoding="utf-8"))
    return record


def test_the_published_page_is_what_its_record_gives(compared: Any, published: dict[str, Any]) -> None:
    assert (PUBLISHED / "peers.md").read_text(encoding="utf-8") == compared("standings").page(published)


def test_every_tool_was_run_to_its_end_in_the_version_that_is_pinned(compared: Any, published: dict[str, Any]) -> None:
    peers, stories = compared("environments").PEERS, compared("standings").STORIES
    assert list(peers) == [tool["name"] for tool in published["tools"]]
    for tool in published["tools"]:
        assert "" == tool["not_run"]
        assert list(stories) == [row["row"] for row in tool["rows"]]
        assert peers[tool["name"]].requirement in ("", f"{tool['name']}=={tool['version']}")


def test_dst_alone_closes_the_crash_rows_as_published(published: dict[str, Any]) -> None:
    for name in ("crash-done-twice", "crash-in-recovery"):
        closed = [
            tool["name"]
            for tool in published["tools"]
            for row in tool["rows"]
            if row["row"] == name and any(each["ended"] and each["whole"] for each in row["exhausted"])
        ]
        assert ["dst"] == closed
