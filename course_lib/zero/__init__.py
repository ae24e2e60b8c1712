"""ZeRO: data-parallel ranks shard the optimizer's states, the gradients and the parameters.

Reading order: by_hand, partition, buckets, outside_changes, optimizer_home, shards, refusals, ddp,
stage1, stage2, stage3, precision, optimizer_parts, offload, gradient_pieces, micro_batches,
gradient_guard, module_interface, training_state, engine, inference, holdings. Lesson 12.
"""

from course_lib.zero.ddp import DataParallel
from course_lib.zero.engine import Engine, engine
from course_lib.zero.holdings import holdings
from course_lib.zero.inference import Inference, inference
from course_lib.zero.partition import Partition, partition
from course_lib.zero.precision import LossScale, Precision
from course_lib.zero.shards import Copies, Shards
from course_lib.zero.stage3 import UnitShards

__all__ = [
    "Copies",
    "DataParallel",
    "Engine",
    "Inference",
    "LossScale",
    "Partition",
    "Precision",
    "Shards",
    "UnitShards",
    "engine",
    "holdings",
    "inference",
    "partition",
]
