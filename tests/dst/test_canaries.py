"""The harness's own proof: one thing is wrong in each toy, and the command line and `check` both notice which.

All are `Steady`, which passes, with one trait changed.  What shows only between processes is at the end.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator

import attrs
import pytest

from dst.testing import (
    HarnessBroke,
    Inconclusive,
    InvariantFailed,
    Nondeterminism,
    Vacuous,
    check,
)
from tests.dst.conftest import CommandLine

RUNS = 40


@attrs.frozen
class Canary:
    """What is wrong with a toy, and how it must be told."""

    wrong: str
    toy: str
    code: int
    error: type[Exception]
    said: str
    asked: dict[str, object] = attrs.field(factory=dict)  # of `check`, and as flags

    @property
    def flags(self) -> Iterator[str]:
        """What is asked for, as flags."""
        for name, value in {"schedules": RUNS, "seed": 1, **self.asked}.items():
            yield from (f"--{name.replace('_', '-')}", str(value))


CANARIES = [
    Canary("a fault that never fires", "Fireproof", 5, Vacuous, "fault fire of fireproof never fired"),
    Canary("a fault that is switched off", "Steady", 5, Vacuous, "crash-after of steady never", {"fault_rate": 0.0}),
    Canary("an invariant that is never judged", "Unjudged", 5, Vacuous, "read-once of unjudged was never judged"),
    Canary("a mark that is never reached", "Unmarked", 5, Vacuous, "mark 'burnt' of unmarked was never reached"),
    Canary("a checker that crashes", "Misjudged", 6, Inconclusive, "checker crashing broke: ZeroDivisionError"),
    Canary("an unseeded random call in a flow", "Diced", 4, Nondeterminism, '"rolled/'),
    Canary("state that one run leaves to the next", "Remembering", 4, Nondeterminism, '"counted/'),
    Canary("a run out of steps", "Endless", 6, Inconclusive, "out of steps after 30", {"max_steps": 300}),
    Canary("a run out of virtual time", "Far", 6, Inconclusive, "out of virtual time after"),
    Canary("a livelock", "Livelocked", 6, Inconclusive, "livelock after 30", {"max_steps": 300}),
    Canary("a drive that never returns", "Stuck", 6, Inconclusive, "stuck after"),
    Canary("real time is out", "Steady", 6, Inconclusive, "time was out", {"max_time": "0.001s", "schedules": 999}),
    Canary("a real thread", "Threaded", 1, InvariantFailed, "FAIL simulated-world"),
    Canary("real I/O", "Connected", 1, InvariantFailed, "FAIL simulated-world"),
    Canary("an error that nobody injected", "Erring", 1, InvariantFailed, "drive ended by LookupError"),
    Canary("an invariant that is broken", "Forgetful", 1, InvariantFailed, "FAIL written-once"),
    Canary("a scenario that breaks the harness", "Bug", 3, HarnessBroke, "broke the harness"),
]  # fmt: skip

each = pytest.mark.parametrize("canary", CANARIES, ids=[canary.wrong for canary in CANARIES])


@pytest.fixture
def alone(command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """An empty folder, and no test that the plugin would tell of."""
    monkeypatch.setattr("dst.ambient.current", None)
    return command


def toy(name: str) -> type:
    """The toy, as the command line finds it."""
    import toy_scenarios

    return getattr(toy_scenarios, name)


@each
def test_the_command_line_notices(canary: Canary, alone: CommandLine) -> None:
    done = alone.call("fuzz", f"toy_scenarios:{canary.toy}", *canary.flags)
    assert canary.code == done.code, done.out
    assert canary.said in done.out + done.err
    assert "PASS" not in done.out


@each
def test_check_notices(canary: Canary, alone: CommandLine) -> None:
    with pytest.raises(canary.error, match=re.escape(canary.said)) as noticed:
        check(toy(canary.toy), **{"schedules": RUNS, "seed": 1, **canary.asked})
    assert canary.code == getattr(noticed.value, "exit_code", 3), "the command's own code"


@pytest.mark.parametrize("toy", ["toy_scenarios:Scattered", "toy_imported:Imported"])
def test_what_differs_between_processes_only_is_noticed_before_a_campaign_passes(toy: str, alone: CommandLine) -> None:
    """The order of a set, a number drawn at import: runs that are made twice in one process cannot show them."""
    done = alone.run("fuzz", toy, "-n", "10", "--recheck", "1", "--json")
    (divergence,) = json.loads(done.out)["divergences"]
    assert (4, f"dst doctor {toy}") == (done.code, divergence["replay"])
    assert divergence["first"] != divergence["second"]
    assert 4 == alone.run("doctor", toy, "-n", "1", "--python", sys.executable).code
    assert 0 == alone.run("fuzz", toy, "-n", "10", "--recheck", "0").code, "it was told not to look"


def test_what_shows_under_one_seed_only_is_reproduced_with_it(alone: CommandLine) -> None:
    done = alone.run("fuzz", "toy_scenarios:Scarred", "-n", "40", "--seed", "1", "--recheck", "1", "--json")
    (divergence,) = json.loads(done.out)["divergences"]
    assert divergence["seed"] is not None
    program, *words = shlex.split(divergence["replay"])
    again = alone.run(*words, "-n", "1", "--python", sys.executable)
    assert ("dst", 4, 4) == (program, done.code, again.code)
    assert f"the run from seed {divergence['seed']}, under another hash seed, parts at record" in again.out


def test_with_nothing_wrong_it_passes(alone: CommandLine) -> None:
    assert 0 == alone.call("fuzz", "toy_scenarios:Steady", "--seed", "1", "-n", str(RUNS)).code
    assert "pass" == check(toy("Steady"), schedules=RUNS, seed=1).verdict
