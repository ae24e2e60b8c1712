"""Tensor parallelism, from conjugate pairs of messages to a decoder sharded over many ranks.

Each file holds one idea, in the order in which lessons 03 to 08 derive them: conjugates, products,
rank_module, linear, mlp, qkv_layout, randomness, attention, sequence, sequence_plan, embedding,
loss_checks, loss_kernels, kernel_choice, cross_entropy, fused_cross_entropy, parallelize, extents,
resize, uncompiled. Groups are always passed explicitly, and no state is global. The file
`cross_entropy` has the function that is exported under its usual name,
`vocabulary_parallel_cross_entropy`. Lesson 08.
"""

from course_lib.tensor_parallel import conjugates, uncompiled
from course_lib.tensor_parallel.attention import shard_attention
from course_lib.tensor_parallel.cross_entropy import (
    cross_entropy as vocabulary_parallel_cross_entropy,
)
from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
    padded_vocabulary,
)
from course_lib.tensor_parallel.extents import Extent, extents
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from course_lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from course_lib.tensor_parallel.mlp import shard_mlp
from course_lib.tensor_parallel.parallelize import check_replicas, parallelize, shard_vocabulary
from course_lib.tensor_parallel.products import column_products, row_product
from course_lib.tensor_parallel.resize import resize
from course_lib.tensor_parallel.sequence import (
    Tokens,
    gathered_products,
    scattered_product,
    shared_once,
)
from course_lib.tensor_parallel.sequence_plan import scatter_block, scatter_model

__all__ = [
    "ColumnParallelLinear",
    "Extent",
    "RowParallelLinear",
    "Tokens",
    "VocabularyParallelEmbedding",
    "VocabularyParallelHead",
    "check_replicas",
    "column_products",
    "conjugates",
    "extents",
    "gathered_products",
    "head_cross_entropy",
    "padded_vocabulary",
    "parallelize",
    "resize",
    "row_product",
    "scatter_block",
    "scatter_model",
    "scattered_product",
    "shard_attention",
    "shard_mlp",
    "shard_vocabulary",
    "shared_once",
    "uncompiled",
    "vocabulary_parallel_cross_entropy",
]
