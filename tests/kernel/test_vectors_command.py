"""The command that runs the fold vectors against any fold (K-FOLD-7)."""

from __future__ import annotations

import json
import subprocess
import sys

from kernel.vectors import load_fold_vectors

N = len(load_fold_vectors())

RIGHT = """
import json, sys
from kernel.fold import fold_events
from kernel.jsonform import decode, encode
from kernel.vectors import _vector
for line in sys.stdin:
    asked = json.loads(line)
    initial = {} if asked["initial"] is None else {"initial": asked["initial"]}
    vector = _vector({"name": "", "state": None, "events": asked["events"], **initial})
    print(encode(fold_events(vector.events, vector.initial)))
"""
WITHOUT_STAMPS = RIGHT.replace("asked = json.loads(line)", "asked = json.loads(line.replace('flowEmit', 'x'))")


def vectors(*args):
    return subprocess.run(
        [sys.executable, "-m", "kernel.vectors", *args], capture_output=True, text=True, timeout=120, check=False
    )


def program(tmp_path, source):
    path = tmp_path / "fold.py"
    path.write_text(source, encoding="utf-8")
    return f"'{sys.executable}' '{path}'"


def test_this_kernels_own_fold_holds():
    done = vectors()
    assert (0, f"{N} of {N} vectors hold\n") == (done.returncode, done.stdout)


def test_a_program_with_the_right_fold_passes(tmp_path):
    done = vectors("--fold", program(tmp_path, RIGHT))
    assert (0, f"{N} of {N} vectors hold\n") == (done.returncode, done.stdout), done.stderr


def test_a_program_that_ignores_metadata_is_told_where_it_differs(tmp_path):
    done = vectors("--json", "--fold", program(tmp_path, WITHOUT_STAMPS))
    failed = {row["name"]: row["difference"] for row in json.loads(done.stdout)["failed"]}
    assert done.returncode == 1
    assert failed["a stamp is counted on a snapshot's trie"].startswith("state.variables._flowEmits")
    assert 0 < len(failed) < N


def test_a_program_that_stops_answering_is_no_pass(tmp_path):
    done = vectors("--fold", program(tmp_path, "print('{}')"))
    assert done.returncode == 2
    assert f"after 1 answers, wanted 0 after {N}" in done.stderr


def test_a_program_that_cannot_be_started_is_named():
    done = vectors("--fold", "/no/such/program")
    assert done.returncode == 2
    assert "/no/such/program" in done.stderr
