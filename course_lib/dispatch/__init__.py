"""Where torch is watched: its operations as they are dispatched, and Python's waits for a handle.

`mode.py` is the way in for the ledger, the memory meter and the referee of a notebook's cell;
`operations.py` the one table of torch's collectives; `waits.py` the one listener for `Work.wait`.
Lesson 01.
"""

from course_lib.dispatch.mode import LightMode
from course_lib.dispatch.operations import OPERATIONS, Operation, arguments
from course_lib.dispatch.waits import listening

__all__ = ["OPERATIONS", "LightMode", "Operation", "arguments", "listening"]
