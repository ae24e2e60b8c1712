"""Dry run of `course train`'s code as any rank of any world size, without memory or network.

Reading order: `alone`, `as_on_cpu`, `shapes`, `step`, `command`. The model consists of shapes on
torch's meta device, and torch's fake group replaces the other ranks. The ledger and the meter count
bytes at sizes that no test machine has. Lesson 15.
"""

from course_lib.dry.alone import alone
from course_lib.dry.shapes import Sized, parse, sized
from course_lib.dry.step import DryRun, run

__all__ = ["DryRun", "Sized", "alone", "parse", "run", "sized"]
