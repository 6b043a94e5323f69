"""Fault kinds, and the menus of what can be done at a point."""

from __future__ import annotations

import enum
import functools

import attrs
from attrs.validators import and_, gt, le, optional

GO = "go"
HOLD = "hold"
STALL = "stall"


class Strength(enum.IntEnum):
    """How much goes wrong, from the least on: a failure is said with the weakest fault that makes it."""

    UNTIMELY = 1  # all is done, but late, early, twice, in parts or in another order
    REFUSED = 2  # something is not done or not there, and who asked for it is told
    UNTOLD = 3  # something is lost or wrong, and nobody is told
    STILL = 4  # somebody stands still
    DEAD = 5  # a process dies


@attrs.frozen(kw_only=True, eq=False)
class Fault:
    """One kind of fault.

    `budget` is how often a strategy may use it in one run.  An `environmental` fault is one that a calm world may do
    too, such as a declined card: a run with it is compared with calm runs that have it as well.  What has no `strength`
    is neither weaker nor stronger than anything, as what an operator does.  `rate` is how often it fires where it can,
    for points that few runs come to; without one that is drawn for each run.  Compared by identity.
    """

    name: str
    budget: int = 3
    environmental: bool = False
    strength: Strength | None = Strength.REFUSED
    rate: float | None = attrs.field(default=None, validator=optional(and_(gt(0), le(1))))
    alike: str = ""  # environmental faults of one such group may stand for each other in the comparison


@attrs.frozen(kw_only=True)
class Option:
    """One thing that can be done at a point, and the fault it is; `GO` is no fault."""

    name: str
    fault: Fault | None = None


@attrs.frozen(eq=False)
class Menu:
    """What can be done at the points of one kind.  Compared by identity.

    Option 0 is always the calm one; those of one fault go from the weakest on.
    """

    options: tuple[Option, ...]
    names: tuple[str, ...] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(option.name for option in self.options))

    def alike(self, option: Option) -> tuple[str, ...]:
        """Return the option's name, and those of options here that may stand for it in a calm run."""
        group = option.fault.alike if option.fault is not None else ""
        others = [o.name for o in self.options if group and o is not option and o.fault and o.fault.alike == group]
        return (option.name, *others)

    def weaker(self, name: str) -> tuple[str, ...]:
        """Return the names of the options that are weaker than that one, from the weakest on."""
        index = self.index(name)
        than = self.options[index].fault if index else None
        if index is None or than is None or than.strength is None:
            return ()
        ranked = [
            (option.fault.strength, number, option.name)
            for number, option in enumerate(self.options)
            if option.fault is not None and option.fault.strength is not None
            if option.fault.strength < than.strength or (option.fault is than and number < index)
        ]
        return tuple(name for _, _, name in sorted(ranked))

    def index(self, name: str) -> int | None:
        """Return the index of the option of that name, or None."""
        return self.names.index(name) if name in self.names else None


Options = tuple[tuple[str, Fault], ...]


@functools.cache
def menu(allowed: tuple[Fault, ...], options: Options) -> Menu:
    """Return the menu of those `options` whose fault is allowed, after `GO`; the same object for the same arguments."""
    return Menu((Option(name=GO), *(Option(name=name, fault=fault) for name, fault in options if fault in allowed)))


CRASH_BEFORE = Fault(name="crash-before", strength=Strength.DEAD)
CRASH_AFTER = Fault(name="crash-after", strength=Strength.DEAD)
HOLDING = Fault(name="hold", budget=6, strength=None)
STALLING = Fault(name="stall", strength=Strength.STILL)
