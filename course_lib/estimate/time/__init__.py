"""The seconds of a step on a machine: compute, rings, overlap, and two fitted constants.

Reading order: work, machine, costs, step, bars, presets, calibrate. Lesson 15.
"""

from course_lib.estimate.time.costs import Costs, ModelCounts, costs, costs_of_model
from course_lib.estimate.time.machine import Constants, Link, Machine, Place, Rate, Ring, slowest
from course_lib.estimate.time.step import Seconds, step_seconds
from course_lib.estimate.time.work import Passes, Work, passes, update_bytes

__all__ = [
    "Constants",
    "Costs",
    "Link",
    "Machine",
    "ModelCounts",
    "Passes",
    "Place",
    "Rate",
    "Ring",
    "Seconds",
    "Work",
    "costs",
    "costs_of_model",
    "passes",
    "slowest",
    "step_seconds",
    "update_bytes",
]
