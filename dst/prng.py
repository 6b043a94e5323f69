"""A small generator of our own, so that a seed means the same under every Python (SplitMix64)."""

from __future__ import annotations

_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """Scramble 64 bits; a bijection."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def derive(seed: int, *parts: int) -> int:
    """Return the seed of a stream of its own: the run `parts` of a campaign, the settings of a run."""
    for part in parts:
        seed = mix((mix(seed & _MASK) + _GOLDEN * (part + 1)) & _MASK)
    return seed


class SplitMix64:
    """A stream of numbers.  Mutable: each draw moves it on."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def next64(self) -> int:
        """Return the next 64 bits."""
        self._state = value = (self._state + _GOLDEN) & _MASK
        # `mix`, written out: a run draws at every point it passes.
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def below(self, bound: int) -> int:
        """Return a number in [0, bound), for a small `bound`."""
        return (self.next64() * bound) >> 64

    def chance(self, one_in: int) -> bool:
        """Return True once in `one_in` times."""
        return self.below(one_in) == 0
