"""The other axes: pipeline stages, context (ring and heads), experts, sharding inside a node.

In the order of reading: schedule, stages, pipeline; places, ring_attention, head_exchange;
experts, expert_parallel; hybrid. Each is the smallest form that is exact: appendix E4 measures one
after the other and holds it against one process. Lesson 15.
"""

from course_lib.extras.axes.pipeline import Pipeline
from course_lib.extras.axes.schedule import Step, Timed, gpipe, one_f_one_b
from course_lib.extras.axes.stages import Stage, cut_into_stages

__all__ = [
    "Pipeline",
    "Stage",
    "Step",
    "Timed",
    "cut_into_stages",
    "gpipe",
    "one_f_one_b",
]
