"""Memory in use and peak memory: `held`, `peak`, and budgets per tier.

Reading order: storages, tiers, lifetimes, blocks, release_wait, meter, inventory, budget. The meter
is used from the first collective on. Lessons 09 to 12 compare all memory formulas with it.
Lesson 01.
"""

from __future__ import annotations

from course_lib.memory.budget import Budget, Charge, OutOfMemory, budget, charge
from course_lib.memory.inventory import KINDS, Held, held
from course_lib.memory.meter import Peak, peak
from course_lib.memory.tiers import TIERS, tier, tier_of

__all__ = [
    "KINDS", "TIERS", "Budget", "Charge", "Held", "OutOfMemory", "Peak",
    "budget", "charge", "held", "peak", "tier", "tier_of",
]  # fmt: skip
