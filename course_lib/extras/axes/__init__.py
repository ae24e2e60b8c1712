"""Other axes: pipeline stages, context (ring and heads), experts, and sharding inside a node.

Reading order: schedule, stages, pipeline, places, ring_attention, head_exchange, experts,
expert_parallel, hybrid. Each module is a minimal exact implementation. Appendix E4 measures them
one by one and compares each with one process. Lesson 15.
"""

from course_lib.extras.axes.pipeline import Pipeline
from course_lib.extras.axes.schedule import Step, Timed, gpipe, one_f_one_b
from course_lib.extras.axes.stages import Stage, cut_into_stages

__all__ = ["Pipeline", "Stage", "Step", "Timed", "cut_into_stages", "gpipe", "one_f_one_b"]
