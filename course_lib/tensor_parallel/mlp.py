"""The Megatron MLP: the first weight by columns, the second by rows, and nothing between them.

GELU and SwiGLU act on each element, so a rank applies them to its own columns without a message.
Gate and up of a SwiGLU are one weight, cut inside each half: a column of up needs its own gate.
Lesson 04 derives it.
"""

from __future__ import annotations

from course_lib.collectives.call import Group, size_and_rank
from course_lib.gpt import MLP
from course_lib.layout import span
from course_lib.tensor_parallel.linear import Columns, Plan, RowParallelLinear, Rows, lay


def mlp_plan(mlp: MLP, group: Group) -> Plan:
    """This rank's part of each weight: the same inner elements of both."""
    if isinstance(mlp.down, RowParallelLinear):
        raise ValueError("this MLP is cut already; a plan is laid over a dense one")
    inner = mlp.down.in_features
    start, stop = span(inner, *size_and_rank(group))
    down = Rows([(start, stop)])
    if mlp.activation == "swiglu":  # of gate, and the same of up
        return {"gate_up": Columns([(start, stop), (inner + start, inner + stop)]), "down": down}
    return {"up": Columns([(start, stop)]), "down": down}


def shard_mlp(mlp: MLP, group: Group, *, overlap: bool = True) -> MLP:
    """Lay the plan over a dense MLP, in place: it keeps its code and gets two cut layers.

    One all-reduce forward, after `down`; one backward, of the gradient of the MLP's input.
    """
    lay(mlp_plan(mlp, group), mlp, group, overlap=overlap)
    return mlp
