"""Broken kernels and other systems, each made by exchanging one part: the harness's own proof."""

from __future__ import annotations

from dst.mutant import Mutant
from scenarios.mutants.children import CHILDREN
from scenarios.mutants.emit import EMIT
from scenarios.mutants.gates import GATES
from scenarios.mutants.lease import LEASE
from scenarios.mutants.lifecycle import LIFECYCLE
from scenarios.mutants.live import LIVE
from scenarios.mutants.runtime import RUNTIME
from scenarios.mutants.saga import SAGA
from scenarios.mutants.steps import STEPS
from scenarios.mutants.workers import WORKERS

_FAMILIES = (EMIT, SAGA, STEPS, RUNTIME, LIFECYCLE, CHILDREN, LIVE, WORKERS, GATES, LEASE)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for family in _FAMILIES for mutant in family}
