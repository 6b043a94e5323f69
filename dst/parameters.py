"""Parameters: how big a scenario's story is, in whole numbers that a person sets and that shrinking makes smaller.

    class ChatSession(Scenario):
        name = "chat_session"
        turns = Parameter(3, least=1, most=9, says="turns of the session")

`turns` is a number, of the class and of its objects.  The scenario in another size is a class of its own, which says in
its name what differs: `chat_session@turns=1`.  So names are all that has to travel: in schedules, tokens and settings,
to other processes, on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from dst.errors import WrongUsage, unknown

if TYPE_CHECKING:
    from dst.scenario import Scenario

_SIZE = re.compile(r"@([^@=]+)=(-?\d{1,9})", re.ASCII)
_NAMED = re.compile(rf"(.*?)((?:{_SIZE.pattern})*)", re.ASCII | re.DOTALL)


@attrs.define(slots=False)
class Parameter:
    """A class attribute of a scenario: a whole number from `least` to `most`, `default` unless somebody says otherwise.

    Raises `ValueError` if the default is not among them.
    """

    default: int
    least: int = attrs.field(kw_only=True)
    most: int = attrs.field(kw_only=True)
    says: str = attrs.field(kw_only=True)  # what there are so many of
    name: str = attrs.field(init=False, default="")

    def __attrs_post_init__(self) -> None:
        if not self.least <= self.default <= self.most:
            raise ValueError(f"a parameter of {self.default}: wanted one from {self.least} to {self.most}")

    def __set_name__(self, owner: type, name: str) -> None:
        """Learn what it is called."""
        self.name = name

    def __get__(self, instance: object, owner: type[Scenario]) -> int:
        """Return how many there are in this class."""
        return owner.sizes.get(self.name, self.default)

    @property
    def range(self) -> str:
        """What is allowed, in words."""
        return f"{self.least} to {self.most}"


def parameters_of(scenario: type[Scenario]) -> Mapping[str, Parameter]:
    """Return a scenario's parameters by name, in the order of their declaration."""
    found: dict[str, Parameter] = {}
    for cls in reversed(scenario.__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, Parameter):
                found[name] = value
            elif name in found:
                del found[name]  # a subclass has settled it
    return found


def sized(scenario: type[Scenario], /, **values: int) -> type[Scenario]:
    """Return the scenario in this size; what is not named stays as it is.  Raises `WrongUsage`."""
    known = parameters_of(scenario)
    for name, value in values.items():
        if name not in known:
            raise unknown(f"parameter of {bare_name(scenario.name)}", name, known, "" if known else "it has none")
        if type(value) is not int or not known[name].least <= value <= known[name].most:
            raise WrongUsage(f"{scenario.name}: {name}={value!r}, wanted a whole number from {known[name].range}")
    wanted = {**scenario.sizes, **values}
    sizes = {name: wanted[name] for name, p in known.items() if wanted.get(name, p.default) != p.default}
    if sizes == scenario.sizes:
        return scenario
    own: dict[str, Any] = {
        "name": bare_name(scenario.name) + suffix(sizes),
        "sizes": sizes,
        "__module__": scenario.__module__,
        "__doc__": scenario.__doc__,
    }
    return type(scenario.__name__, (scenario,), own)


def resized(scenario: type[Scenario], name: str) -> type[Scenario]:
    """Return the scenario in the size that a name says, by which it is called.  Raises `WrongUsage`."""
    as_declared = {p.name: p.default for p in parameters_of(scenario).values()}
    return sized(scenario, **{**as_declared, **split_name(name)[1]})


def declared(scenario: type[Scenario]) -> type[Scenario]:
    """Return the class that somebody wrote, whatever size this one has."""
    return next(cls for cls in scenario.__mro__ if "sizes" not in vars(cls))


def split_name(name: str) -> tuple[str, dict[str, int]]:
    """Return the name of a scenario, or a reference to it, without its size, and the size."""
    found = _NAMED.fullmatch(name)
    assert found is not None, "it matches every text"
    return found[1], {size[1]: int(size[2]) for size in _SIZE.finditer(found[2])}


def bare_name(name: str) -> str:
    """Return the name of a scenario without its size."""
    return split_name(name)[0]


def suffix(sizes: Mapping[str, int]) -> str:
    """Return what a size adds to a name: nothing if all is as declared."""
    return "".join(f"@{name}={value}" for name, value in sizes.items())


def smaller(scenario: type[Scenario]) -> Iterator[type[Scenario]]:
    """Yield the scenario with one parameter smaller, for each: the least first, then halfway nearer, one less last."""
    for name, parameter in parameters_of(scenario).items():
        low, value = parameter.least, getattr(scenario, name)
        while low < value:
            yield sized(scenario, **{name: low})
            low = max(low + 1, (low + value) // 2)
