"""ZeRO: data-parallel ranks share out the optimizer's states, the gradients, the parameters.

In the order of reading: partition, buckets, shards, ddp, stage1, stage2, stage3, precision,
elementwise, refusals, handover, offload, engine, holdings.
"""

from course_lib.zero.ddp import DataParallel
from course_lib.zero.engine import Engine, engine
from course_lib.zero.holdings import holdings
from course_lib.zero.partition import Partition, partition
from course_lib.zero.precision import LossScale, Precision

__all__ = [
    "DataParallel",
    "Engine",
    "LossScale",
    "Partition",
    "Precision",
    "engine",
    "holdings",
    "partition",
]
