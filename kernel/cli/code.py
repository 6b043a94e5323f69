"""Finding what an operator names in Python code."""

from __future__ import annotations

import contextlib
import importlib
import operator
import os
import sys

from kernel.cli.errors import WrongUsage


def find(name: str) -> object:
    """Return what `package.module:attribute` names, seen from the current directory too.  Raises `WrongUsage`."""
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise WrongUsage(f"{name!r} names no code: wanted is package.module:attribute")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = importlib.import_module(module_name)
    except Exception as error:
        raise WrongUsage(f"importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    try:
        return operator.attrgetter(path)(module)
    except AttributeError as error:
        raise WrongUsage(f"module {module_name!r} has no {path!r}") from error
