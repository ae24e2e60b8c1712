"""The Megatron MLP: the first weight is sharded by columns, and the second by rows.

GELU and SwiGLU act on each element, so a rank applies them to its own columns without a message.
SwiGLU's gate and up form one weight, and each half is split separately, because a column of up
needs the same column of gate. Lesson 04 derives it.
"""

from __future__ import annotations

from course_lib.collectives.call import Group, size_and_rank
from course_lib.gpt import MLP
from course_lib.layout import span
from course_lib.tensor_parallel.linear import Columns, Plan, RowParallelLinear, Rows, lay


def mlp_plan(mlp: MLP, group: Group) -> Plan:
    """Return this rank's part of each weight, with the same inner elements in both."""
    if isinstance(mlp.down, RowParallelLinear):
        raise ValueError("this MLP is sharded already; apply a plan to a dense MLP")
    inner = mlp.down.in_features
    start, stop = span(inner, *size_and_rank(group))
    down = Rows([(start, stop)])
    if mlp.activation == "swiglu":  # the same span of gate and up
        return {"gate_up": Columns([(start, stop), (inner + start, inner + stop)]), "down": down}
    return {"up": Columns([(start, stop)]), "down": down}


def shard_mlp(mlp: MLP, group: Group, *, overlap: bool = True) -> MLP:
    """Apply the plan to a dense MLP, in place; it keeps its code but has two sharded layers.

    There is one all-reduce in the forward pass, after `down`, and one in the backward pass, of dX.
    """
    lay(mlp_plan(mlp, group), mlp, group, overlap=overlap)
    return mlp
