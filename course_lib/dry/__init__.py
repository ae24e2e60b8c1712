"""A dry run: the very code of `course train` as any rank of any world, without memory or network.

In the order of reading: alone, as_on_cpu, shapes, step, command. The model
is made of shapes on torch's meta device, the other ranks of torch's fake group; ledger and meter
count what the code does, at sizes that no test machine has. Lesson 15.
"""

from course_lib.dry.alone import alone
from course_lib.dry.shapes import Sized, parse, sized
from course_lib.dry.step import DryRun, run

__all__ = ["DryRun", "Sized", "alone", "parse", "run", "sized"]
