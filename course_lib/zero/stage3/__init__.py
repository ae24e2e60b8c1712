"""ZeRO-3: parameters cut as well, gathered unit by unit. In the order of reading: together,
choice, units, prefetch, hooks, options, cut, gradients.
"""

from course_lib.zero.stage3.choice import choose_units
from course_lib.zero.stage3.cut import UnitShards
from course_lib.zero.stage3.gradients import UnitGradients
from course_lib.zero.stage3.options import Stage3
from course_lib.zero.stage3.units import Unit

__all__ = ["Stage3", "Unit", "UnitGradients", "UnitShards", "choose_units"]
