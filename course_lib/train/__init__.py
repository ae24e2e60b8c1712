"""Training over a (dp, tp) mesh: one optimizer step, and the program that runs many of them.

The step, in the order of reading: groups, pieces, losses, buckets, step. Lesson 08 derives it;
`python -m course_lib.train --help` shows the program.
"""

from course_lib.train.groups import groups
from course_lib.train.losses import loss_sum
from course_lib.train.pieces import gradient_pieces
from course_lib.train.step import NotFinite, StepResult, step

__all__ = ["NotFinite", "StepResult", "gradient_pieces", "groups", "loss_sum", "step"]
