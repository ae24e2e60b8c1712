"""Closed forms of the bytes that a rank holds, needs and sends, tested with ledger and meter.

Reading order: shape, deepspeed, memory, over_tp, activations, peak, traffic, setting, fit, ladder.
Lesson 12.
"""

from course_lib.estimate.activations import ActivationBytes, kept
from course_lib.estimate.memory import RULES, Rule, States, per_parameter, states
from course_lib.estimate.over_tp import generation_bytes, tensor_parallel_bytes
from course_lib.estimate.peak import PeakEstimate, step_peak
from course_lib.estimate.shape import Shape, shape_of, sketch
from course_lib.estimate.traffic import must_bytes, offload_bytes

__all__ = [
    "RULES",
    "ActivationBytes",
    "PeakEstimate",
    "Rule",
    "Shape",
    "States",
    "generation_bytes",
    "kept",
    "must_bytes",
    "offload_bytes",
    "per_parameter",
    "shape_of",
    "sketch",
    "states",
    "step_peak",
    "tensor_parallel_bytes",
]
