"""The Megatron MLP: the first weight by columns, the second by rows, and nothing between them.

GELU and SwiGLU act on each number alone, so a rank bends the columns it has without asking. Gate
and up of a SwiGLU are one weight, cut inside each half: a column of up needs its own gate. Lesson
04 derives it.
"""

from __future__ import annotations

from course_lib.collectives.call import Group, size_and_rank
from course_lib.gpt import MLP
from course_lib.layout import span
from course_lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear


def shard_mlp(mlp: MLP, group: Group, *, overlap: bool = True) -> MLP:
    """Lay the plan over a dense MLP, in place: it keeps its code and gets two cut layers.

    One all-reduce forward, after `down`; one backward, of the gradient of the MLP's input.
    """
    n, rank = size_and_rank(group)
    if isinstance(mlp.down, RowParallelLinear):
        raise ValueError("this MLP is cut already; a plan is laid over a dense one")
    inner = mlp.down.in_features
    start, stop = span(inner, n, rank)
    if mlp.activation == "swiglu":
        rows = [(start, stop), (inner + start, inner + stop)]  # of gate, and of up the same
        mlp.gate_up = ColumnParallelLinear.from_dense(
            mlp.gate_up, group, rows=rows, overlap=overlap
        )
    else:
        mlp.up = ColumnParallelLinear.from_dense(mlp.up, group, overlap=overlap)
    mlp.down = RowParallelLinear.from_dense(mlp.down, group)
    return mlp
