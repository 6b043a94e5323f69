"""Do kept schedules outlive edits?  Failing schedules, replayed over scenarios whose code was edited elsewhere.

    .venv/bin/python tests/benchmarks/across_versions.py [--why] [--search] [--json]

Each schedule of `across_versions.txt` fails on its scenario as it is, over a mutant's kernel or with a race that is
planted in its flow.  Each edit is made to the source of the scenario's module, which is then a module of its own; the
edits have nothing to do with what is wrong.  A schedule *reproduces* if its lenient replay breaks the same invariant
about the same instance, whatever else breaks: a branch that is added may suffer from the same bug, and sooner.  It
reproduces *strictly* if every deviation took place as well.  `--why` says for each that is lost which deviations did
not take place, `--search` whether a campaign finds the failure in the edited scenario: if not, the edit may have hidden
it.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from dst.choices import Written
from dst.errors import HarnessBroke
from dst.executors.assignment import Assignment, Chunk
from dst.executors.chunk import ChunkRunner
from dst.judging import run_one
from dst.lookup import find_mutant, shipped_scenarios
from dst.parameters import bare_name, resized
from dst.replaying import Looked, Noting, missed, settle
from dst.run import Host, host
from dst.scenario import Scenario
from dst.schedule import Schedule, token
from dst.sentences import sentence
from dst.signature import Signature, signature_of
from dst.transparency import Transparency

HERE = Path(__file__).parent
FILE = HERE / "across_versions.txt"
_SEARCHED = 300  # runs in which a failure is looked for in an edited scenario

# ---- edits -----------------------------------------------------------------------------------------------------------

_AIDS = """
from dst.durable import faults as _edit_faults
from dst.invariants import Broken as _EditBroken, Invariant as _EditInvariant
from kernel import step as _edit_step

async def _edit_effect(call, input):
    return {"ready": True}

_edit_prepare = _edit_step("prepare-edit", _edit_effect)

async def _edit_side(ctx, number):
    await ctx.emit("side.begun", {"side": number})
    await ctx.run(_edit_prepare, key=str(number))
    await ctx.emit("side.ended", {"side": number})

class _EditFirst(_EditInvariant):
    name = "edit-first"
    says = "a log begins once"
    kinds = ("EXECUTION_STARTED",)
    initial = 0
    def key(self, record):
        return record[1], record[1]
    def advance(self, state, record):
        if state:
            raise _EditBroken("another beginning", "one")
        return state + 1
"""
"""What the edits use; in every edited module, since a module has more in it than what is called."""


@attrs.frozen(kw_only=True)
class Edit:
    """A change to a scenario's module; `change` is given its tree and the name of the scenario's class."""

    name: str
    change: Callable[[ast.Module, str], None]


def _flows(tree: ast.Module) -> Iterator[tuple[ast.AsyncFunctionDef, str]]:
    """Yield the flows of a module, each with the name of its context."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and any(_called(d) == "flow" for d in node.decorator_list):
            yield node, node.args.args[0].arg


def _called(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.id if isinstance(node, ast.Name) else ""


def _parts(tree: ast.Module) -> Iterator[tuple[ast.AsyncFunctionDef, str]]:
    """Yield the functions that flows are made of, branches for example, each with the name of its context."""
    flows = [flow for flow, _ in _flows(tree)]
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and node not in flows:
            for arg in node.args.args:
                if isinstance(arg.annotation, ast.Name) and arg.annotation.id == "Context":
                    yield node, arg.arg


def _begin(function: ast.AsyncFunctionDef, source: str) -> None:
    """Put statements at the beginning of a function."""
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    function.body[int(documented) : int(documented)] = ast.parse(source).body


def _emit_first(tree: ast.Module, _: str) -> None:
    for flow, ctx in _flows(tree):
        _begin(flow, f"async def _():\n await {ctx}.emit('audit.noted', {{'edit': 1}})")
        _unwrap(flow)


def _unwrap(function: ast.AsyncFunctionDef) -> None:
    """Put in the place of functions called `_` what is in them: an await is parsed in a function only."""
    for at in range(len(function.body) - 1, -1, -1):
        node = function.body[at]
        if isinstance(node, ast.AsyncFunctionDef) and node.name == "_":
            function.body[at : at + 1] = node.body


def _emit_later(tree: ast.Module, _: str) -> None:
    for flow, ctx in _flows(tree):
        waits = [i for i, node in enumerate(flow.body) if any(isinstance(n, _WAITS) for n in ast.walk(node))]
        after = waits[0] + (not isinstance(flow.body[waits[0]], ast.Return))
        flow.body[after:after] = ast.parse(f"async def _():\n await {ctx}.emit('audit.noted', {{'edit': 2}})").body
        _unwrap(flow)


def _emit_in_parts(tree: ast.Module, _: str) -> None:
    for part, ctx in list(_parts(tree)):
        _begin(part, f"async def _():\n await {ctx}.emit('audit.noted', {{'edit': 3}})")
        _unwrap(part)


_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def _branch(tree: ast.Module, _: str) -> None:
    """One more branch in the blocks of branches that there are, and a block of two where a flow has none."""
    for flow, ctx in _flows(tree):
        blocks = [n for n in ast.walk(flow) if isinstance(n, ast.AsyncWith) and _is_branches(n)]
        for number, block in enumerate(blocks):
            name = block.items[0].optional_vars
            assert isinstance(name, ast.Name)
            block.body += ast.parse(f"{name.id}.start(_edit_side, {ctx}, {number})").body
        if not blocks:
            source = f"async with {ctx}.branches() as sides:\n  sides.start(_edit_side, {ctx}, 0)\n"
            _begin(flow, f"async def _():\n {source}  sides.start(_edit_side, {ctx}, 1)")
            _unwrap(flow)


def _is_branches(node: ast.AsyncWith) -> bool:
    call = node.items[0].context_expr
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "branches"


def _renamed(tree: ast.Module, _: str) -> None:
    """Rename every local name that a flow, or a function that it is made of, assigns."""
    for function, _ctx in (*_flows(tree), *_parts(tree)):
        bound = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bound -= {n for node in ast.walk(function) if isinstance(node, ast.Nonlocal | ast.Global) for n in node.names}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in bound:
                node.id = f"{node.id}_renamed"


def _scenario(tree: ast.Module, cls: str) -> None:
    source = f"class Another({cls}):\n  name = 'another'\n  story = 'another'\n  marks = ()"
    tree.body += ast.parse(source).body


def _step_first(tree: ast.Module, _: str) -> None:
    for flow, ctx in _flows(tree):
        _begin(flow, f"async def _():\n await {ctx}.run(_edit_prepare)")
        _unwrap(flow)


def _gate_first(tree: ast.Module, _: str) -> None:
    for flow, ctx in _flows(tree):
        _begin(flow, f"async def _():\n await {ctx}.sleep(2)")
        _unwrap(flow)


def _invariant(tree: ast.Module, cls: str) -> None:
    tree.body += ast.parse(f"{cls}.invariants = (_EditFirst(), *{cls}.invariants)").body


def _faults(tree: ast.Module, cls: str) -> None:
    kinds = "(k for k in (*_edit_faults.READS, *_edit_faults.REFUSALS, *_edit_faults.EFFECTS)"
    tree.body += ast.parse(f"{cls}.faults = (*{kinds} if k not in {cls}.faults), *{cls}.faults)").body


EDITS = (
    Edit(name="an emit before", change=_emit_first),
    Edit(name="an emit in the middle", change=_emit_later),
    Edit(name="an emit in each part", change=_emit_in_parts),
    Edit(name="a branch", change=_branch),
    Edit(name="locals renamed", change=_renamed),
    Edit(name="a scenario added", change=_scenario),
    Edit(name="a step before", change=_step_first),
    Edit(name="a gate before", change=_gate_first),
    Edit(name="an invariant added", change=_invariant),
    Edit(name="kinds of faults added", change=_faults),
)


@functools.cache
def edited(scenario: type[Scenario], edit: Edit) -> type[Scenario]:
    """Return the scenario as it is in its module after the edit."""
    module = sys.modules[scenario.__module__]
    tree = ast.parse(inspect.getsource(module))
    edit.change(tree, scenario.__name__)
    imports = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    at = tree.body.index(imports[-1]) + 1 if imports else 0
    tree.body[at:at] = ast.parse(_AIDS).body
    name = f"{module.__name__}_edited_{EDITS.index(edit)}"
    fresh = types.ModuleType(name)
    fresh.__file__ = module.__file__
    sys.modules[name] = fresh
    exec(compile(ast.fix_missing_locations(tree), f"<{name}>", "exec"), fresh.__dict__)
    found: type[Scenario] = getattr(fresh, scenario.__name__)
    return found


# ---- schedules -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Kept:
    """A schedule that fails, and how it does so on its scenario as it is."""

    kind: str
    schedule: Schedule
    scenario: type[Scenario]
    signature: Signature


def scenarios() -> dict[str, type[Scenario]]:
    """Return the scenarios that schedules are kept of."""
    sys.path.insert(0, str(HERE.parent / "dst"))
    try:
        toys = importlib.import_module("racing_toys")
    finally:
        del sys.path[0]
    return {**shipped_scenarios(), **toys.TOYS}


def read(file: Path = FILE) -> list[tuple[str, Schedule]]:
    """Return the schedules of a file, one token a line, each with its kind, which is said above it."""
    found, kind = list[tuple[str, Schedule]](), ""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            kind = line.removeprefix("# ")
        else:
            found.append((kind, token(line)))
    return found


def _over(scenario: type[Scenario], schedule: Schedule) -> type[Scenario]:
    scenario = resized(scenario, schedule.scenario)
    return find_mutant(schedule.mutant).apply(scenario) if schedule.mutant else scenario


async def _look(
    h: Host, t: Transparency, schedule: Schedule, scenario: type[Scenario]
) -> tuple[list[Signature], Looked]:
    """Return the signatures of all that is wrong with a lenient replay, the first one first, and the run."""
    over = _over(scenario, schedule)
    noting = Noting(Written(await settle(h, over, schedule.deviations)))
    result, violation = await run_one(h, t, over, noting)
    wrong = [signature_of(result, schedule.mutant, v) for v in (violation, *result.judgement.violations) if v]
    return wrong, Looked(result=result, violation=violation, why="", again=result, points=noting.points)


# ---- measuring -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Replayed:
    """What one schedule came to after one edit."""

    edit: str
    kept: Kept
    alike: bool  # the same failure
    lost: tuple[str, ...]  # what did not take place
    instead: str  # what was wrong instead, if it is not the same
    found_after: int | None = None  # runs of a campaign that found it in the edited scenario


async def _measure(
    h: Host, schedules: Sequence[tuple[str, Schedule]], edits: Sequence[Edit], search: bool
) -> list[Replayed]:
    known, t, rows = scenarios(), Transparency(h), []
    for kind, schedule in schedules:
        scenario = known[bare_name(schedule.scenario)]
        wrong, looked = await _look(h, t, schedule, scenario)
        if not wrong or missed(schedule.deviations, looked):
            raise AssertionError(f"{schedule!r} does not fail as it is: {missed(schedule.deviations, looked)}")
        kept = Kept(kind=kind, schedule=schedule, scenario=scenario, signature=wrong[0])
        for edit in edits:
            rows.append(await _replay(h, t, kept, edit, search))
    return rows


async def _replay(h: Host, t: Transparency, kept: Kept, edit: Edit, search: bool) -> Replayed:
    scenario = edited(kept.scenario, edit)
    wrong, looked = await _look(h, t, kept.schedule, scenario)
    alike = any(signature.resembles(kept.signature) for signature in wrong)
    return Replayed(
        edit=edit.name,
        kept=kept,
        alike=alike,
        lost=tuple(f"{sentence(d)}: {d.at}: {why}" for d, why in missed(kept.schedule.deviations, looked)),
        instead="" if alike else wrong[0].text if wrong else "nothing",
        found_after=await _search(h, kept, scenario) if search and not alike else None,
    )


async def _search(h: Host, kept: Kept, scenario: type[Scenario]) -> int | None:
    """Return after how many runs of a campaign the failure is found in the edited scenario, None if it is not."""
    plan = Assignment(
        scenarios=(scenario.name,),
        mutant=kept.schedule.mutant,
        schedules=_SEARCHED,
        seed=1,
        failures_max=None,
        recheck_one_in=0,
        explaining=False,
        shrinking=False,
    )
    runner = ChunkRunner(h, plan, find=lambda *_: _over(scenario, kept.schedule))
    wanted, done = attrs.evolve(kept.signature, place="").text.rstrip("|"), 0
    try:
        async for row in runner.rows(Chunk(start=0, stop=_SEARCHED, seconds_left=None, known=frozenset())):
            done += 1
            if row.signature.startswith(wanted):
                return done
    except HarnessBroke:  # the scenario does not bear the edit in every run
        return None
    return None


def measure(
    schedules: Sequence[tuple[str, Schedule]] | None = None, edits: Sequence[Edit] = EDITS, *, search: bool = False
) -> list[Replayed]:
    """Replay schedules, by default all that are kept, after each edit."""
    wanted = read() if schedules is None else schedules
    return host(lambda h: _measure(h, wanted, edits, search))


# ---- the table -------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Share:
    """How many of some replays reproduced."""

    of: int
    alike: int
    strictly: int

    def __str__(self) -> str:
        """Say it: reproduced of all (strictly)."""
        return f"{self.alike} of {self.of} ({self.strictly})"


def share(rows: Iterable[Replayed]) -> Share:
    """Count."""
    taken = list(rows)
    return Share(
        of=len(taken),
        alike=sum(row.alike for row in taken),
        strictly=sum(row.alike and not row.lost for row in taken),
    )


def show(rows: Sequence[Replayed]) -> Iterator[str]:
    """Yield the table."""
    kinds = list(dict.fromkeys(row.kept.kind for row in rows))
    yield f"{'edit':24}" + "".join(f" {kind:>18}" for kind in kinds) + "     reproduced of all (strictly)"
    for edit in dict.fromkeys(row.edit for row in rows):
        yield _line(edit, kinds, [row for row in rows if row.edit == edit])
    yield _line("all", kinds, rows)
    total = share(rows)
    alike, strictly = (f"{100 * count / total.of:.1f} %" for count in (total.alike, total.strictly))
    yield f"{alike} of {total.of} replays reproduce, {strictly} strictly"


def _line(name: str, kinds: Sequence[str], rows: Sequence[Replayed]) -> str:
    return f"{name:24}" + "".join(f" {share(row for row in rows if row.kept.kind == kind)!s:>18}" for kind in kinds)


def _why(rows: Sequence[Replayed], searched: bool) -> Iterator[str]:
    for row in rows:
        if not row.alike or row.lost:
            yield f"{row.edit}: {row.kept.schedule!r} {'reproduces' if row.alike else 'is lost'}"
            yield from (f"    {lost}" for lost in row.lost)
            if not row.alike:
                yield f"    instead: {row.instead}"
                found = f"after {row.found_after} runs" if row.found_after else f"not in {_SEARCHED} runs"
                yield from [f"    a campaign finds it {found}"] if searched else []


def main(words: Sequence[str]) -> int:
    """Print the table, or the whole as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for flag in ("--why", "--search", "--json"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args(words)
    rows = measure(search=asked.search)
    if asked.json:
        answer = [
            {
                "edit": row.edit,
                "token": row.kept.schedule.to_token(),
                "kind": row.kept.kind,
                "reproduces": row.alike,
                "lost": row.lost,
                "instead": row.instead,
                "found_after": row.found_after,
            }
            for row in rows
        ]
        print(json.dumps(answer, indent=2))
        return 0
    if asked.why or asked.search:
        print("\n".join(_why(rows, asked.search)))
    print("\n".join(show(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
