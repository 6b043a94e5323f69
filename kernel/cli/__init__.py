"""The operator's command line: what a person on call needs of a store, `python -m kernel STORE COMMAND`."""

from __future__ import annotations

from kernel.cli.main import cli, main

__all__ = ["cli", "main"]
