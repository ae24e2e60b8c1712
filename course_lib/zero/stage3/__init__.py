"""ZeRO-3: parameters are sharded as well and gathered unit by unit. Reading order: branch_guard,
unit_choice, units, prefetch, hooks, options, unit_shards, gradients.
"""

from course_lib.zero.stage3.gradients import UnitGradients
from course_lib.zero.stage3.options import Stage3Options
from course_lib.zero.stage3.unit_choice import choose_units
from course_lib.zero.stage3.unit_shards import UnitShards
from course_lib.zero.stage3.units import Unit

__all__ = ["Stage3Options", "Unit", "UnitGradients", "UnitShards", "choose_units"]
