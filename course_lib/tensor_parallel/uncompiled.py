"""Functions that torch.compile leaves uncompiled, because they communicate with other ranks.

A compiled graph ends before such a function and a new graph begins after it, so that every rank
sends the same messages in the same order, compiled or not. Their files need no change. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from course_lib.tensor_parallel import conjugates, embedding, products, sequence, sequence_plan
from course_lib.tensor_parallel.attention import PrivateHeads
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from course_lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear

REASON = (
    "it exchanges messages with other ranks, so a graph of torch.compile ends there. Call "
    "torch.compile(model) without fullgraph=True"
)

STEPS: list[Callable] = [
    *(conjugates.copy, conjugates.reduce, conjugates.split, conjugates.gather),
    *(conjugates.reduce_scatter, conjugates.copy_rows),
    *(products.column_products, products.row_product),
    *(sequence.gathered_products, sequence.scattered_product, sequence.shared_once),
    *(cross_entropy, head_cross_entropy),
]
LAYERS: list[type] = [
    *(ColumnParallelLinear, RowParallelLinear, PrivateHeads),
    *(embedding.VocabularyParallelEmbedding, embedding.VocabularyParallelHead),
    *(sequence_plan.SharedNorm, sequence_plan.PrivateDropout, sequence_plan.SplitPositions),
]


def leave_uncompiled(function: Callable) -> None:
    """Mark the function so that torch.compile calls it without looking inside.

    torch.compiler.disable would also mark it, but it loads the compiler, which takes seconds even
    without compilation, and wraps every call.
    """
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = REASON
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP  # this frame, and the frames called from it
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


for step in [*STEPS, *(layer.forward for layer in LAYERS)]:
    leave_uncompiled(step)
