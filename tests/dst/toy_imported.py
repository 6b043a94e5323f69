"""A scenario whose module draws a number when it is imported, before any seed is known."""

from __future__ import annotations

import random

from kernel import Context
from tests.dst.toy_scenarios import OneFlow

MACHINE = random.randrange(10**9)


class Imported(OneFlow):
    """It emits what was drawn when its module was imported: within one process always the same."""

    name = "imported"
    story = "emits a number that is as old as the process"

    @staticmethod
    async def emit_all(ctx: Context) -> None:
        """Tell."""
        await ctx.emit("drawn", MACHINE)
