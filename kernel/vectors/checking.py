"""Running the fold vectors against a program in any language: one line of JSON in, one line of JSON out (K-FOLD-7)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import cast

import attrs

from kernel.errors import MalformedJson
from kernel.jsonform import Json, decode, encode


@attrs.frozen(kw_only=True)
class Outcome:
    """What a fold has made of one vector; `difference` is "" if it came to the wanted state."""

    name: str
    difference: str


class FoldDidNotAnswer(Exception):
    """The program ended, or was silent, before every vector had its answer."""


def requests() -> list[tuple[str, str, Json]]:
    """Return (name, request line, wanted state) of every vector.

    A request is `{"events": [...], "initial": STATE or null}`; null is the empty state.
    """
    text = resources.files("kernel.vectors").joinpath("fold_vectors.json").read_text(encoding="utf-8")
    vectors = cast("list[dict[str, Json]]", decode(text))
    return [
        (cast(str, v["name"]), json.dumps({"events": v["events"], "initial": v.get("initial")}), v["state"])
        for v in vectors
    ]


def check_program(command: Sequence[str], *, timeout_seconds: float) -> Iterator[Outcome]:
    """Run `command`, send it every request on stdin, and compare the states it prints, one a line.

    Raises `FoldDidNotAnswer`, `OSError` if the program cannot be started.
    """
    vectors = requests()
    sent = "".join(f"{line}\n" for _, line, _ in vectors)
    try:
        done = subprocess.run(
            command, input=sent, capture_output=True, encoding="utf-8", timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise FoldDidNotAnswer(
            f"{command[0]} has not ended after {timeout_seconds:g} s: it is to end with its input, or give it more time"
        ) from None
    except UnicodeDecodeError as error:
        raise FoldDidNotAnswer(f"{command[0]} printed what is not UTF-8: {error}") from None
    answers = done.stdout.splitlines()
    if done.returncode or len(answers) != len(vectors):
        last = done.stderr.strip().splitlines()[-1:] or ["nothing on stderr"]
        raise FoldDidNotAnswer(
            f"{command[0]} ended with exit code {done.returncode} after {len(answers)} answers, wanted 0 after "
            f"{len(vectors)}, a line for each vector; its stderr ends with: {last[0]}"
        )
    for (name, _, wanted), answer in zip(vectors, answers, strict=True):
        yield Outcome(name=name, difference=_difference(answer, wanted))


def _difference(answer: str, wanted: Json) -> str:
    try:
        seen = decode(answer)
    except MalformedJson as error:
        return f"saw no JSON: {error}"
    return first_difference(seen, wanted, "state")


def first_difference(seen: Json, wanted: Json, at: str) -> str:
    """Return where two values first differ, "" if they are equal; the order of an object's keys is nothing."""
    if isinstance(seen, dict) and isinstance(wanted, dict):
        for key in sorted({*seen, *wanted}):
            if key not in seen or key not in wanted:
                return f"{at}.{key}: {'not wanted' if key in seen else 'missing'}"
            if found := first_difference(seen[key], wanted[key], f"{at}.{key}"):
                return found
        return ""
    if isinstance(seen, list) and isinstance(wanted, list) and len(seen) == len(wanted):
        pairs = enumerate(zip(seen, wanted, strict=True))
        return next((found for i, (a, b) in pairs if (found := first_difference(a, b, f"{at}[{i}]"))), "")
    one, other = encode(seen, at=at), encode(wanted, at=at)
    return "" if one == other else f"{at}: saw {one[:200]}, wanted {other[:200]}"
