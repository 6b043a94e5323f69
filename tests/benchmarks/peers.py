"""`dst` beside its peers, on the same planted bugs: runs and seconds to the bug, speed, replay, shrinking, exhaustion.

    .venv/bin/python tests/benchmarks/peers.py [--seeds N] [--quick] [--only NAME] [--envs DIR] [--python FILE]
                                               [--json] [--write DIR]

The bugs are in `compared/bodies.py`; every tool runs these very bodies, from a file of its own, in an environment of
its own, into which it is installed by its version: the network is needed.  Nothing that a tool remembers of old
failures is used.  A tool is tried by several ways of its own, and stands in the table with the one that did best.
Seconds are wall clock and mean something on a quiet machine; runs to a bug are the same anywhere, but for those of
stock trio, and where time was out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from compared.environments import PEERS, ROOT, NotInstalled, Peer, interpreters, prepare
from compared.standings import page

QUICK = ["--runs-max", "300", "--seconds-max", "2", "--rate-seconds", "0.1"]


def main() -> None:
    """Install, run, print."""
    parser = argparse.ArgumentParser(description="Compare dst with its peers on the same planted bugs.")
    parser.add_argument("--seeds", type=int, default=10, help="searches for each bug by each way (default: 10)")
    parser.add_argument(
        "--quick", action="store_true", help="two seeds and small limits: a test of the benchmark itself"
    )
    parser.add_argument("--only", action="append", choices=list(PEERS), metavar="NAME", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--envs", type=Path, metavar="DIR", help="keep the environments there, and use what is there")
    parser.add_argument("--python", action="append", default=[], metavar="FILE", help="one more interpreter to use")
    parser.add_argument("--json", action="store_true", help="the record on stdout, instead of the page")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write peers.json and peers.md there")
    asked = parser.parse_args()
    seeds = min(asked.seeds, 2) if asked.quick else asked.seeds
    arguments = ["--seeds", str(seeds), *(QUICK if asked.quick else [])]
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.envs or Path(scratch) / "environments"
        record = compare(asked.only or list(PEERS), folder.absolute(), asked.python, arguments, Path(scratch))
    record["repeat"] = " ".join(["python", "tests/benchmarks/peers.py", *_said(asked)])
    text = json.dumps(record, indent=2) + "\n"
    if asked.write is not None:
        asked.write.mkdir(parents=True, exist_ok=True)
        (asked.write / "peers.json").write_text(text, encoding="utf-8")
        (asked.write / "peers.md").write_text(page(record), encoding="utf-8")
    sys.stdout.write(text if asked.json else page(record))


def _said(asked: argparse.Namespace) -> Iterator[str]:
    yield from ["--quick"] if asked.quick else ["--seeds", str(asked.seeds)]
    for name in asked.only or ():
        yield from ("--only", name)


def compare(
    names: Sequence[str], folder: Path, pythons: Sequence[str], arguments: Sequence[str], scratch: Path
) -> dict[str, Any]:
    """Return the record of all tools, one after another."""
    known, began, tools = interpreters(pythons), os.getloadavg()[0], []
    for name in names:
        tools.append({"name": name, "requirement": PEERS[name].requirement, "not_run": "", "rows": []})
        try:
            python = prepare(name, folder, known, _tell)
            tools[-1] |= _run(name, PEERS[name], python, arguments, scratch)
        except NotInstalled as why:
            tools[-1]["not_run"] = str(why)
        _tell(f"{name}: {tools[-1]['not_run'] or 'done'}")
    load = [round(began, 1), round(os.getloadavg()[0], 1)]
    return {"arguments": list(arguments), "processors": os.cpu_count(), "load": load, "tools": tools}


def _run(name: str, peer: Peer, python: Path, arguments: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Run the program of a tool; return what it printed, and why it ended early if it did."""
    program = [str(python), str(Path(__file__).parent / "compared" / peer.program), *arguments]
    environ = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT) if peer.is_this_project else ""}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(program, cwd=scratch, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        assert child.stdout is not None
        head, rows = dict[str, Any](), []
        for line in child.stdout:
            said = json.loads(line)
            if "row" in said:
                rows.append(said)
                _tell(f"{name}: {said['row']}")
            else:
                head = said
        failed = child.wait() != 0
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["no word"])[-1]
    return {**head, "rows": rows, "not_run": f"ended after {len(rows)} rows: {last}" if failed else ""}


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    main()
