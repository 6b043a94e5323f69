"""Deviations in plain sentences: "crash worker-1 after it appended STEP_COMPLETED charge of order-1".

Labels are read by their first word, each kind by one small function.  Of a point that a scenario has defined for itself
only the name is known, as `kind:who:what`: it is said with its words, in quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from dst.choices import IDLE_AFTER
from dst.schedule import Deviation
from dst.trace import Record

_APPEND = re.compile(r"(?P<execution>.+?):(?P<type>[A-Z][A-Z0-9_]*)(?::(?P<about>.*))?", re.DOTALL)
_EMIT = re.compile(r"(?P<execution>.+?):(?P<segment>\d+)/(?P<type>.+)/[0-9a-f]+", re.DOTALL)
_CALL = re.compile(r"(?P<call>[a-z]+):(?P<execution>.+?):(?:/(?P<branch>[0-9./]+))?(?::(?P<what>.+))?", re.DOTALL)
_MEANWHILE = {
    "compact": "compact the log",
    "cancel": "cancel the execution",
    "fork": "fork the execution",
    "recover-twice": "recover twice at once",
}
_TIMES = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}
_HIDDEN = {"hide-1": "event", "hide-2": "two events", "hide-3": "three events"}
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


@attrs.frozen
class _Act:
    """What is done at a point, in the forms that sentences need."""

    thing: str  # "STEP_COMPLETED charge of order-1"
    before: str  # crash worker-1 before ... "it appends STEP_COMPLETED charge of order-1"
    after: str  # crash worker-1 after ... "it appended STEP_COMPLETED charge of order-1"
    happens: str  # hold ... until "STEP_COMPLETED charge of order-1 is appended"
    held: str  # hold ... "the append of STEP_COMPLETED charge of order-1"
    own: bool = False  # at a point that a scenario has defined for itself


def sentence(deviation: Deviation, node: str = "") -> str:
    """Return the deviation in words; `node` is who died of it, as in "worker.1"."""
    kind, _, rest = deviation.site.partition(":")
    who = said_node(node) if node else "the worker"
    act = _act(kind, rest)
    if act is None:
        return _plain(deviation)
    again = nth(deviation.occurrence)
    if act.own and deviation.do == kind:
        return f"let {_spaced(rest)} {kind}{again}"  # `stall` at `stall:ann`
    match deviation.do:
        case "crash-before":
            return f"crash {who} before {act.before}{again}"
        case "crash-after":
            return f"crash {who} after {act.after}{again}"
        case "hold":
            return f"hold {act.held}{again} until {happening(deviation.until)}"
        case "stall":
            return f"let {who} stand still before {act.before}{again}"
        case _ if kind == "effect" or deviation.do == "answer-lost":  # "do X for the second time, but ..."
            return _other(kind, deviation.do, attrs.evolve(act, thing=f"{act.thing}{again}")) or _plain(deviation)
        case _:
            said = f"choose '{deviation.do}' at {act.thing}" if act.own else _other(kind, deviation.do, act)
            return f"{said}{again}" if said else _plain(deviation)


def sentences(deviations: Sequence[Deviation], records: Sequence[Record] = ()) -> tuple[str, ...]:
    """Return each deviation in words; the trace of the run tells who crashed where."""
    crashed = crashes(records)
    return tuple(sentence(deviation, crashed.get(deviation.at, "")) for deviation in deviations)


def crashes(records: Sequence[Record]) -> Mapping[str, str]:
    """Return who crashed, or stood still, at which point."""
    return {str(record[2]): str(record[1]) for record in records if record[0] in ("crash", "stall") and len(record) > 2}


def happening(point: str) -> str:
    """Return what a hold waits for, in words."""
    if point in ("idle", ""):
        return "nothing else can run"
    if point.startswith(IDLE_AFTER):
        return f"{happening(point.removeprefix(IDLE_AFTER))} and nothing else can run"
    at = Deviation(at=point, do="")
    kind, _, rest = at.site.partition(":")
    act = _act(kind, rest)
    return f"{point} has happened" if act is None else f"{act.happens}{nth(at.occurrence)}"


def act(label: str) -> str:
    """Return what is done at a point, as a noun: "the append of STEP_COMPLETED charge of order-1"."""
    at = Deviation(at=label, do="")
    kind, _, rest = at.site.partition(":")
    act = _act(kind, rest)
    if act is None:
        return label
    return f"{'the turn of ' if kind == 'task' else ''}{act.held}{nth(at.occurrence)}"


def said_crash(deviation: Deviation, node: str = "") -> str:
    """Return a crash as a noun: "the crash of worker-1 after ...", "" for what is no crash or cannot be said."""
    said = sentence(deviation, node)
    return f"the crash of {said.removeprefix('crash ')}" if said.startswith("crash ") else ""


def point(label: str) -> str:
    """Return a point in words: what is done there."""
    at = Deviation(at=label, do="")
    kind, _, rest = at.site.partition(":")
    act = _act(kind, rest)
    return label if act is None else f"{act.thing}{nth(at.occurrence)}"


def said_node(incarnation: str) -> str:
    """Return an incarnation as it is said: "worker.1" is worker-1."""
    name, dot, number = incarnation.rpartition(".")
    return f"{name}-{number}" if dot else incarnation


def nth(occurrence: int) -> str:
    """Return "" for the first time, " for the second time" and so on."""
    if occurrence <= 1:
        return ""
    ending = "th" if occurrence // 10 % 10 == 1 else _ENDINGS.get(occurrence % 10, "th")
    return f" for the {_TIMES.get(occurrence, f'{occurrence}{ending}')} time"


def _plain(deviation: Deviation) -> str:
    until = f" until {happening(deviation.until)}" if deviation.do == "hold" else ""
    return f"do {deviation.do} at {deviation.at}{until}"


def _act(kind: str, rest: str) -> _Act | None:
    """Return what happens at a site of that kind, None if nobody knows."""
    if kind == "entries":
        return _reading("the catalogue")
    if not rest:
        return None
    match kind:
        case "append":
            return _append(rest)
        case "emit":
            return _emit(rest)
        case "effect":
            return _effect(rest)
        case "deliver":
            return _deliver(rest)
        case "observe":
            execution, _, type = rest.rpartition(":")
            thing = f"{type} of {execution}"
            return _Act(
                thing,
                f"the supervisor sees {thing}",
                f"the supervisor saw {thing}",
                f"the supervisor sees {thing}",
                f"the word to the supervisor of {thing}",
            )
        case "claim":
            return _Act(
                f"claim on {rest}",
                f"it claims {rest}",
                f"it claimed {rest}",
                f"{rest} is claimed",
                f"the claim on {rest}",
            )
        case "acquire" | "renew":
            return _lease(kind, rest)
        case "timer":
            return _timer(rest)
        case "put":
            return _put(rest)
        case "remove":
            return _remove(rest)
        case "snapshot":
            thing = f"a snapshot of {rest}"
            return _Act(thing, f"it saves {thing}", f"it saved {thing}", f"{thing} is saved", f"the saving of {thing}")
        case "truncate":
            thing = f"the log of {rest}"
            return _Act(thing, f"it cuts {thing}", f"it cut {thing}", f"{thing} is cut", f"the cutting of {thing}")
        case "read" | "entry" | "load":
            what = {"read": "log", "entry": "catalogue entry", "load": "snapshot"}[kind]
            return _reading(f"the {what} of {rest}")
        case "content" | "resolve":
            thing = f"the payload {rest} that is kept apart"
            if kind == "resolve":
                return _reading(thing)
            return _Act(
                thing, f"it stores {thing}", f"it stored {thing}", f"{thing} is stored", f"the storing of {thing}"
            )
        case "notify":
            execution, _, number = rest.rpartition(":")
            thing = f"a wake-up of subscriber {number} of {execution}"
            return _Act(thing, f"it sends {thing}", f"it sent {thing}", f"{thing} is sent", f"the sending of {thing}")
        case "deploy":
            thing = f"the start of {rest}"
            return _Act(thing, f"{rest} starts", f"{rest} started", f"{rest} starts", thing)
        case "send":
            thing = f"message {rest!r}"
            return _Act(thing, f"it sends {thing}", f"it sent {thing}", f"{thing} is sent", f"the sending of {thing}")
        case "task":
            thing = f"task {rest}"
            return _Act(thing, f"{thing} goes on", f"{thing} went on", f"{thing} goes on", thing)
        case "call":
            return _call(rest)
        case _:
            return _of_ones_own(kind, rest)


def _reading(thing: str) -> _Act:
    return _Act(thing, f"it reads {thing}", f"it read {thing}", f"{thing} is read", f"the reading of {thing}")


def _appended(thing: str) -> _Act:
    return _Act(thing, f"it appends {thing}", f"it appended {thing}", f"{thing} is appended", f"the append of {thing}")


def _append(rest: str) -> _Act | None:
    found = _APPEND.fullmatch(rest)
    if found is None:
        execution, colon, type = rest.rpartition(":")
        return _appended(f"the emit {type} of {execution}") if colon else None
    about = f" {found['about']}" if found["about"] else ""
    return _appended(f"{found['type']}{about} of {found['execution']}")


def _emit(rest: str) -> _Act | None:
    found = _EMIT.fullmatch(rest)
    if found is None:
        return None
    segment = f", past gate {found['segment']}" if found["segment"] != "0" else ""
    return _appended(f"the emit {found['type']} of {found['execution']}{segment}")


def _effect(rest: str) -> _Act | None:
    execution, slash, step = rest.partition("/")
    thing = f"{step} of {execution}"
    return (
        _Act(thing, f"{thing} is done", f"{thing} was done", f"{thing} is done", f"the request for {thing}")
        if slash
        else None
    )


def _deliver(rest: str) -> _Act | None:
    on, _, rest = rest.partition(":")
    execution, colon, delivery = rest.rpartition(":")
    thing = f"{on} {delivery!r} to {execution}"
    sent = f"{thing} is delivered"
    return _Act(thing, sent, f"{thing} was delivered", sent, f"the delivery of {thing}") if colon else None


def _put(rest: str) -> _Act:
    execution, _, delivery = rest.partition(":")
    thing = f"delivery {delivery!r} for {execution}"
    return _Act(
        thing, f"it accepts {thing}", f"it accepted {thing}", f"{thing} is accepted", f"the accepting of {thing}"
    )


def _remove(rest: str) -> _Act:
    execution, _, delivery = rest.partition(":")
    thing = f"delivery {delivery!r} of {execution}"
    where = "from the mailbox"
    return _Act(
        thing,
        f"it removes {thing} {where}",
        f"it removed {thing} {where}",
        f"{thing} is removed {where}",
        f"the removing of {thing} {where}",
    )


def _lease(kind: str, rest: str) -> _Act:
    thing = f"the lease on {rest}"
    past = "acquired" if kind == "acquire" else "renewed"
    return _Act(
        thing,
        f"it {kind}s {thing}",
        f"it {past} {thing}",
        f"{thing} is {past}",
        f"the {'acquisition' if kind == 'acquire' else 'renewal'} of {thing}",
    )


def _call(rest: str) -> _Act | None:
    """A place where nothing is done: a syscall of a flow that is about to be made, or to end."""
    found = _CALL.fullmatch(rest)
    if found is None:
        thing = f"the call of {_spaced(rest)}"
    else:
        branch = f" in branch {found['branch']}" if found["branch"] else ""
        what = f" {found['what']}" if found["what"] else ""
        thing = f"the call of {found['call']}{what}{branch} of {found['execution']}"
    return _Act(thing, f"{thing} is made", f"{thing} was made", f"{thing} is made", thing)


def _of_ones_own(kind: str, rest: str) -> _Act:
    thing = f"'{kind} {_spaced(rest)}'"
    return _Act(thing, thing, thing, f"{thing} has happened", thing, own=True)


def _spaced(label: str) -> str:
    return label.replace(":", " ")


def _timer(rest: str) -> _Act | None:
    worker, colon, task = rest.partition(":")
    thing = f"the timer of '{task}' of {worker}"
    return _Act(thing, f"{thing} goes", f"{thing} went", f"{thing} goes", thing) if colon else None


def _other(kind: str, do: str, act: _Act) -> str:
    """Return what else can be done at a site of that kind, "" if nobody knows."""
    match kind, do:
        case (("acquire" | "renew"), "refused"):
            return f"refuse that {act.happens}"
        case "timer", "late" | "early":
            return f"let {act.thing} go {'a minute late' if do == 'late' else 'at half the time'}"
        case "timer", "forward" | "back":
            return f"set its worker's clock {do} by hours when {act.thing} is set"
        case (("append" | "emit"), "answer-lost"):
            return f"append {act.thing}, but lose the store's answer"
        case (("append" | "emit"), "refused"):
            return f"refuse the append of {act.thing}"
        case (("append" | "emit"), _):
            return _MEANWHILE.get(do, f"do '{do}'") + f" while {act.thing} is appended"
        case (("claim" | "put" | "remove" | "snapshot" | "truncate"), "refused"):
            return f"refuse {act.held}"
        case "read", ("hide-1" | "hide-2" | "hide-3"):
            return f"read {act.thing} without its last {_HIDDEN[do]}"
        case "read", ("by-pages" | "by-slow-pages"):
            return f"read {act.thing} event by event{', slowly' if do == 'by-slow-pages' else ''}"
        case "content", "refused":
            return f"refuse {act.held}"
        case "resolve", "missing":
            return f"do not find {act.thing}"
        case "notify", "lost":
            return f"lose {act.thing}"
        case "notify", ("twice" | "again-later" | "late"):
            return f"send {act.thing} {do.replace('-', ' ')}"
        case "observe", "missed":
            return f"do not tell the supervisor of {act.thing}"
        case "observe", ("late" | "twice"):
            return f"tell the supervisor {do} of {act.thing}"
        case "deploy", "next":
            return f"start {act.thing.removeprefix('the start of ')} with the next version of the flows"
        case (("entry" | "entries"), "stale"):
            return f"read {act.thing} as it was before its last change"
        case "load", "lost":
            return f"find no {act.thing.removeprefix('the ')}"
        case "load", "late":
            return f"read the one before {act.thing}"
        case "load", "unreadable":
            return f"read half of {act.thing}"
        case "load", "reordered":
            return f"read {act.thing} with its keys in another order"
        case "effect", "hung":
            return f"never answer the request for {act.thing}, and do nothing"
        case "effect", "answer-lost":
            return f"do {act.thing}, but lose the answer"
        case "effect", "refused":
            return f"refuse {act.thing}: nothing is done"
        case "effect", "slow":
            return f"do {act.thing} only after its deadline"
        case "effect", _:
            return f"answer {act.thing} with '{do}'"
        case "send", "lost":
            return f"lose {act.thing}"
        case "send", ("late" | "twice"):
            return f"send {act.thing}, and it comes {do}"
        case "deliver", "twice":
            return f"deliver {act.thing} twice"
        case "deliver", "again-later":
            return f"deliver {act.thing}, and once more later"
        case "deliver", "swapped":
            return f"deliver {act.thing} only after the next delivery"
        case "deliver", "late":
            return f"deliver {act.thing} late"
        case "deliver", "lost":
            return f"lose {act.thing}: it is sent again later"
        case "deliver", "unannounced":
            return f"deliver {act.thing} by another process, and wake nobody"
        case _:
            return ""
