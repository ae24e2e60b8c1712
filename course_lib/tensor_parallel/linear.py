"""Linear layers sharded over ranks: W[h, f] of the formula is split by columns (f) or rows (h).

torch.nn.Linear keeps its weight as [f, h], so a column of W is a row of that weight.
Column-parallel layers map the full X[b, h] to Y[b, f@tp]. Row-parallel layers map X[b, h@tp] to a
partial sum, which is all-reduced. Lessons 02, 03 (messages) and 04 derive them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.collectives.call import Group, size_and_rank
from course_lib.layout import cut, span
from course_lib.tensor_parallel.conjugates import REPLICATED, copy_rows, gather, split
from course_lib.tensor_parallel.products import AllTokens
from course_lib.tensor_parallel.rank_module import RankModule, check_activations

Spans = Sequence[tuple[int, int]]
Shared = tuple[int, int, Group]  # rows from, rows to, and the ranks that also hold them
WHOLE = (
    "Is it sharded over the ranks already? Join it with conjugates.gather, or let the layer before "
    "do so (gather_output=True)"
)
PART = (
    "If that is the full input, pass split_input=True, or split it with conjugates.split; if not, "
    "split it by the same rule as this layer's weight"
)
CUT = "If that is sharded already, leave split_input out"


class CutLinear(RankModule):
    """A dense linear layer's weight, sharded along one dim over the ranks of a group.

    Every rank passes the full layer with the same weights and keeps its `spans`, joined in order,
    or with None its piece by torch.chunk's rule. `self.way` sends the messages of the product:
    lesson 04's `AllTokens`, or lesson 06's `OwnTokens`.
    """

    def __init__(self, dense: nn.Linear, group: Group, dim: int, spans: Spans | None):
        if isinstance(dense, CutLinear):
            raise ValueError(f"this layer is sharded already: {dense}. Pass a dense layer")
        if not isinstance(dense, nn.Linear):
            raise TypeError(f"this shards a torch.nn.Linear, not a {type(dense).__name__}")
        super().__init__()
        n, rank = size_and_rank(group)
        length = dense.weight.shape[dim]
        self.group, self.training = group, dense.training
        self.inputs, self.outputs = dense.in_features, dense.out_features
        self.sizes = cut(length, n) if spans is None else None  # of all ranks' pieces
        self.spans = [span(length, n, rank)] if spans is None else list(spans)
        self.weight = pieces(dense.weight, self.spans, dim)

    def check_width(self, x: Tensor, width: int, takes: str, hint: str) -> None:
        if x.shape[-1] != width:
            raise ValueError(
                f"rank {self.group.rank()}: {takes}, {width} wide, but got {x.shape[-1]}. {hint}"
            )

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return (
            f"inputs={inputs} of {self.inputs}, outputs={outputs} of {self.outputs}, "
            f"bias={self.bias is not None}, rank={self.group.rank()} of {self.group.size()}"
        )


class ColumnParallelLinear(CutLinear):
    """Y[b, f@tp] = X[b, h] W[h, f@tp] + bias[f@tp]. Only backward sends, to sum dX.

    `rows` are the spans of the dense weight's rows on this rank; a fused weight is split inside
    each of its parts. `shared` gives the local rows, counted from 0, that other ranks hold too, and
    the group of the ranks with these rows. The gradients of these rows are summed over that group.
    `gather_output` joins Y on every rank.
    """

    sharded = ("weight", "bias")

    def __init__(
        self,
        dense: nn.Linear,
        group: Group,
        *,
        rows: Spans | None = None,
        shared: Shared | None = None,
        gather_output: bool = False,
        overlap: bool = True,
        sum_in: torch.dtype | None = None,
    ):
        super().__init__(dense, group, 0, rows)
        if gather_output and rows is not None:
            raise ValueError("gather_output needs pieces in rank order; with rows=, join them here")
        self.gather_output, self.shared = gather_output, shared
        self.bias = None if dense.bias is None else pieces(dense.bias, self.spans)  # (f/tp,)
        self.way = AllTokens(group, overlap=overlap, sum_in=sum_in)

    def forward(self, x: Tensor) -> Tensor:  # (…, h) -> (…, f/tp)
        check_activations(x, self.weight, "a column-parallel layer")
        self.check_width(x, self.inputs, "a column-parallel layer takes the full input", WHOLE)
        weight, bias = self.weight, self.bias
        if self.shared is not None:
            weight = copy_rows(weight, *self.shared, sum_in=self.way.sum_in)
            if bias is not None:
                bias = copy_rows(bias, *self.shared, sum_in=self.way.sum_in)
        (y,) = self.way.columns(x, [weight], [bias])
        return gather(y, self.group, -1, self.sizes, after=REPLICATED) if self.gather_output else y


class RowParallelLinear(CutLinear):
    """Y[b, f] = X[b, h@tp] W[h@tp, f] summed over the ranks, + bias[f], which is added once.

    The bias is replicated. It is added after the sum, so its gradient is the same everywhere
    without a message. `columns` are the spans of the dense weight's columns on this rank, which
    match the outputs of the previous layer on this rank. With `split_input`, the layer takes the
    full X and splits it.
    """

    sharded = ("weight",)

    def __init__(
        self,
        dense: nn.Linear,
        group: Group,
        *,
        columns: Spans | None = None,
        split_input: bool = False,
        sum_in: torch.dtype | None = None,
    ):
        super().__init__(dense, group, 1, columns)
        if split_input and columns is not None:
            raise ValueError("split_input splits as torch.chunk does; with columns=, split it here")
        self.split_input = split_input
        self.bias = None if dense.bias is None else pieces(dense.bias, [(0, self.outputs)])  # (f,)
        self.way = AllTokens(group, sum_in=sum_in)

    def forward(self, x: Tensor) -> Tensor:  # (…, h/tp) -> (…, f)
        check_activations(x, self.weight, "a row-parallel layer")
        if self.split_input:
            self.check_width(x, self.inputs, "this layer splits a full input", CUT)
            x = split(x, self.group, -1, self.sizes)
        width = self.weight.shape[1]
        self.check_width(x, width, "a row-parallel layer takes this rank's part of the input", PART)
        return self.way.rows(x, self.weight, self.bias)


def pieces(whole: Tensor, spans: Spans, dim: int = 0) -> nn.Parameter:
    parts = [whole.detach().narrow(dim, start, stop - start) for start, stop in spans]
    return nn.Parameter(torch.cat(parts, dim), requires_grad=whole.requires_grad)


class Columns(NamedTuple):
    """An entry of a plan: this rank's rows of a dense weight [f, h], which are columns of W."""

    rows: Spans
    shared: Shared | None = None


class Rows(NamedTuple):
    """An entry of a plan: this rank's columns of a dense weight [f, h], which are rows of W."""

    columns: Spans


Plan = dict[str, Columns | Rows]  # a dense layer's path in a module -> this rank's part of it


def lay(plan: Plan, module: nn.Module, group: Group, *, overlap: bool = True) -> None:
    """Replace each dense layer that the plan names by a sharded layer."""
    for path, part in plan.items():
        dense = module.get_submodule(path)
        if isinstance(part, Columns):
            layer = ColumnParallelLinear(dense, group, **part._asdict(), overlap=overlap)
        else:
            layer = RowParallelLinear(dense, group, columns=part.columns)
        module.set_submodule(path, layer)
