"""ZeRO-3: parameters cut as well, gathered unit by unit. In the order of reading: together,
units, use, prefetch, hooks, build, cut.
"""

from course_lib.zero.stage3.cut import UnitGradients, UnitShards
from course_lib.zero.stage3.units import Unit, choose_units

__all__ = ["Unit", "UnitGradients", "UnitShards", "choose_units"]
