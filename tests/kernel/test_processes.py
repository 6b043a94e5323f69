"""Stores pass the checks in which threads and processes race and die, and every one of these can fail (K-LOG-2)."""

from __future__ import annotations

import json
import os

import pytest
import trio

from kernel import conformance_processes
from kernel.conformance import ConformanceFailure
from kernel.conformance_processes import LEASE_PROCESS_CHECKS, PROCESS_CHECKS, Shared

KILLS = int(os.environ.get("LOOM_STORE_KILLS", "20"))
"""How many writers are killed: 20 by default, more at night."""

CHECKS = (*PROCESS_CHECKS, *LEASE_PROCESS_CHECKS)


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request, tmp_path, schema):
    if request.param == "sqlite":
        place = str(tmp_path / "store.db")
    else:
        place = json.dumps([request.getfixturevalue("server").dsn, schema])
    return Shared(opener=f"tests.kernel.openers:{request.param}", make_place=lambda: place, kills=KILLS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_store_conforms(shared, check):
    # K-LOG-2, K-LOG-5, K-RUN-3
    trio.run(check.run, shared)


# ---- stores that are broken in one way each --------------------------------------------------------------------------

BROKEN = {
    "one_process_wins_each_position": "unchecked",
    "one_thread_wins_each_position": "unchecked",
    "killed_writers_lose_nothing_they_acknowledged": "write_behind",
    "overtaken_process_appends_nothing": "unfenced",
    "one_process_gets_each_lease": "leases_for_all",
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_check_sees_a_broken_store(tmp_path, check, monkeypatch):
    # K-LOG-5
    monkeypatch.setattr(conformance_processes, "SECONDS_MAX", 12)  # until a writer that nobody overtakes is killed
    opener = f"tests.kernel.openers:{BROKEN[check.name]}"
    with pytest.raises(ConformanceFailure, match=rf"{check.name} .*wanted"):
        trio.run(check.run, Shared(opener=opener, make_place=lambda: str(tmp_path / "store.db"), kills=5))
