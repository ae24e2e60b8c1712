"""One layer, cut: from the conjugate pairs of a message to a block of a decoder over many ranks.

A file an idea, in the order in which lessons 03 to 08 derive them: conjugates, linear, mlp,
qkv_layout, randomness, attention, parallelize. A group is always passed; nothing is global.
"""

from course_lib.tensor_parallel.attention import shard_attention
from course_lib.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    column_products,
)
from course_lib.tensor_parallel.mlp import shard_mlp
from course_lib.tensor_parallel.parallelize import check_replicas, parallelize

__all__ = [
    "ColumnParallelLinear",
    "RowParallelLinear",
    "check_replicas",
    "column_products",
    "parallelize",
    "shard_attention",
    "shard_mlp",
]
