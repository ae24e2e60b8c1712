"""Plans for a model on a cluster: plans that fit, the seconds of a step, and files to run plans.

Reading order: task, search, report. The modules emit and fsdp2_file write the files. Lesson 15.
"""

from course_lib.estimate.model import Model
from course_lib.plan.search import Plan, Search, search
from course_lib.plan.task import Task

__all__ = ["Model", "Plan", "Search", "Task", "search"]
