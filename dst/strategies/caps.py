"""Would counts that are told apart twice as far tell other states apart?"""

from __future__ import annotations


class Caps:
    """Behaviours of the same moments under one cap and under its double.  Mutable: those seen so far.

    As long as each of one kind goes with one of the other, an exploration with the double cap would make the very same
    runs: it need not be made.
    """

    def __init__(self) -> None:
        self.matter = False
        self._doubles: dict[str, str] = {}
        self._singles: dict[str, str] = {}

    def note(self, single: str, double: str) -> None:
        """Look at one moment's behaviour under both."""
        if self._doubles.setdefault(single, double) != double or self._singles.setdefault(double, single) != single:
            self.matter = True
            self._doubles.clear()
            self._singles.clear()
