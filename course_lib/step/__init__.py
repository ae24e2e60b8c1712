"""One optimizer step on a (dp, tp) mesh: the reference for all training in the course.

Reading order: decay_groups, pieces, losses, buckets, step. The stages of lessons 09 to 12 are
compared with it. Lesson 08.
"""

from course_lib.step.decay_groups import groups
from course_lib.step.losses import loss_sum
from course_lib.step.pieces import gradient_pieces
from course_lib.step.step import NotFinite, StepResult, step

__all__ = ["NotFinite", "StepResult", "gradient_pieces", "groups", "loss_sum", "step"]
