"""From a model and a cluster to a plan: what fits, how long a step lasts, the files to run it.

In the order of reading: task, search, report; emit and fsdp2_file write the files. Lesson 15.
"""

from course_lib.estimate.model import Model
from course_lib.plan.search import Plan, Search, search
from course_lib.plan.task import Task

__all__ = ["Model", "Plan", "Search", "Task", "search"]
