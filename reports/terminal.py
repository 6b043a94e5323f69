"""Report lines on a terminal in colour, and anywhere else as plain text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from reports.summary import Line, Style


def show(lines: Iterable[Line], stream: TextIO, *, color: bool) -> None:
    """Write lines; `color` is a wish, for a stream that is a terminal."""
    if color and stream.isatty():
        _show_styled(lines, stream)
        return
    for line in lines:
        stream.write(line.text + "\n")


def _show_styled(lines: Iterable[Line], stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(Text(line.text, style=line.style.value), soft_wrap=True)


__all__ = ["Line", "Style", "show"]
