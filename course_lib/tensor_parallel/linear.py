"""A linear layer cut over ranks: by columns of the math's W[h, f] (over f), or by rows (over h).

torch.nn.Linear keeps its weight as [f, h]: a column of the math is a row of that. Columns take the
whole X[b, h] and give Y[b, f@tp]; rows take X[b, h@tp] and give a sum, paid at once. Lesson 02
derives both, lesson 03 their messages, lesson 04 joins them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from course_lib.collectives.call import Group, check_member, size_and_rank
from course_lib.layout import cut
from course_lib.tensor_parallel.conjugates import REPLICATED, copy_rows, gather, split
from course_lib.tensor_parallel.on_ranks import OnRanks, check_activations
from course_lib.tensor_parallel.products import column_products, row_product

Spans = Sequence[tuple[int, int]]
WHOLE = (
    "Is it cut over the ranks already? Join it with conjugates.gather, or let the layer before do "
    "so (gather_output=True)"
)
PART = (
    "Is that the whole? Then pass split_input=True, or cut it with conjugates.split; if not, cut "
    "it by the same rule as this layer's weight"
)
CUT = "If that is cut already, leave split_input out"


class _Cut(OnRanks):
    """What both cuts of a linear layer share."""

    @classmethod
    def _of(cls, dense: nn.Linear, group: Group) -> _Cut:
        """A layer in the place of a dense one, which has its weight still to take."""
        if isinstance(dense, _Cut):
            raise ValueError(f"this layer is cut already: {dense}; a plan is laid over a dense one")
        if not isinstance(dense, nn.Linear):
            raise TypeError(f"a torch.nn.Linear can be cut here, not a {type(dense).__name__}")
        check_member(group)
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.training, layer.group = dense.training, group
        layer.inputs, layer.outputs = dense.in_features, dense.out_features
        return layer

    def _check_width(self, x: Tensor, width: int, takes: str, hint: str) -> None:
        if x.shape[-1] != width:
            raise ValueError(
                f"rank {self.group.rank()}: {takes}, {width} wide, and got {x.shape[-1]}. {hint}"
            )

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return (
            f"inputs={inputs} of {self.inputs}, outputs={outputs} of {self.outputs}, "
            f"bias={self.bias is not None}, rank={self.group.rank()} of {self.group.size()}"
        )


class ColumnParallelLinear(_Cut):
    """Y[b, f@tp] = X[b, h] W[h, f@tp] + bias[f@tp]: nothing is sent forward, dX is summed backward.

    The initial weights are those that nn.Linear would have drawn, for any number of ranks.
    `gather_output` joins Y on every rank.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        group: Group,
        *,
        bias: bool = True,
        gather_output: bool = False,
        overlap: bool = True,
        sum_in: torch.dtype | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        n, rank = size_and_rank(group)
        self.inputs, self.outputs, self.group = inputs, outputs, group
        self.sizes = cut(outputs, n)
        self.gather_output, self.overlap, self.sum_in = gather_output, overlap, sum_in
        # Drawn whole, so that the numbers do not depend on how many share them; then cut.
        dense = nn.Linear(inputs, outputs, bias, device=device, dtype=dtype)
        self._take(dense, [_span(self.sizes, rank)])

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear,
        group: Group,
        *,
        rows: Spans | None = None,
        shared: tuple[int, int, Group] | None = None,
        gather_output: bool = False,
        overlap: bool = True,
        sum_in: torch.dtype | None = None,
    ) -> ColumnParallelLinear:
        """This rank's part of a layer that every rank holds whole.

        `rows` are the spans of the dense weight's rows that it takes, one after another: a fused
        weight is cut inside each of its parts. `shared` says which of the rows taken, from start to
        stop, other ranks hold as well, and the group of those: their gradients are summed over it.
        """
        layer = cls._of(dense, group)
        if gather_output and rows is not None:
            raise ValueError("gather_output joins pieces in rank order; with rows=, join them here")
        layer.sizes = cut(layer.outputs, group.size()) if rows is None else None
        layer.gather_output, layer.overlap, layer.sum_in = gather_output, overlap, sum_in
        layer.shared = shared
        layer._take(dense, [_span(layer.sizes, group.rank())] if rows is None else rows)
        return layer

    def forward(self, x: Tensor) -> Tensor:  # (…, h) -> (…, f/tp)
        check_activations(x, self.weight, "a column-parallel layer")
        self._check_width(x, self.inputs, "a column-parallel layer takes the whole input", WHOLE)
        weight, bias = self.weight, self.bias
        if self.shared is not None:
            weight = copy_rows(weight, *self.shared, sum_in=self.sum_in)
            if bias is not None:
                bias = copy_rows(bias, *self.shared, sum_in=self.sum_in)
        y = self.product(x, weight, bias)
        if self.gather_output:
            y = gather(y, self.group, -1, self.sizes, after=REPLICATED)  # (…, f)
        return y

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The product with its messages; lesson 06 puts others in their place."""
        (y,) = column_products(
            x, [weight], [bias], self.group, overlap=self.overlap, sum_in=self.sum_in
        )
        return y

    def _take(self, dense: nn.Linear, rows: Spans) -> None:
        self.rows = list(rows)  # of the dense weight
        self.weight = _part(dense.weight, rows)  # (f/tp, h)
        self.bias = None if dense.bias is None else _part(dense.bias, rows)  # (f/tp,)


class RowParallelLinear(_Cut):
    """Y[b, f] = X[b, h@tp] W[h@tp, f] summed over the ranks, + bias[f], which is added once.

    The bias is whole on every rank: it is added after the sum, so its gradient is the same
    everywhere without a message. `split_input` takes the whole X and cuts it here.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        group: Group,
        *,
        bias: bool = True,
        split_input: bool = False,
        sum_in: torch.dtype | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        n, rank = size_and_rank(group)
        self.inputs, self.outputs, self.group = inputs, outputs, group
        self.sizes = cut(inputs, n)
        self.split_input, self.sum_in = split_input, sum_in
        dense = nn.Linear(inputs, outputs, bias, device=device, dtype=dtype)
        self._take(dense, [_span(self.sizes, rank)])

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear,
        group: Group,
        *,
        columns: Spans | None = None,
        split_input: bool = False,
        sum_in: torch.dtype | None = None,
    ) -> RowParallelLinear:
        """This rank's part of a layer that every rank holds whole.

        `columns` are the spans of the dense weight's columns that it takes: those that belong to
        the numbers which the layer before it leaves on this rank.
        """
        layer = cls._of(dense, group)
        if split_input and columns is not None:
            raise ValueError("split_input cuts as torch.chunk does; with columns=, cut it here")
        layer.sizes = cut(layer.inputs, group.size()) if columns is None else None
        layer.split_input, layer.sum_in = split_input, sum_in
        layer._take(dense, [_span(layer.sizes, group.rank())] if columns is None else columns)
        return layer

    def forward(self, x: Tensor) -> Tensor:  # (…, h/tp) -> (…, f)
        check_activations(x, self.weight, "a row-parallel layer")
        if self.split_input:
            self._check_width(x, self.inputs, "this layer cuts a whole input", CUT)
            x = split(x, self.group, -1, self.sizes)
        own = self.weight.shape[1]
        self._check_width(x, own, "a row-parallel layer takes this rank's part of the input", PART)
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """The product with its messages; lesson 06 puts others in their place."""
        return row_product(x, self.weight, self.bias, self.group, sum_in=self.sum_in)

    def _take(self, dense: nn.Linear, columns: Spans) -> None:
        self.columns = list(columns)  # of the dense weight
        self.weight = _part(dense.weight, columns, dim=1)  # (f, h/tp)
        self.bias = None
        if dense.bias is not None:
            self.bias = _part(dense.bias, [(0, self.outputs)])  # (f,), whole


def _part(whole: Tensor, spans: Spans, dim: int = 0) -> nn.Parameter:
    parts = [whole.detach().narrow(dim, start, stop - start) for start, stop in spans]
    return nn.Parameter(torch.cat(parts, dim), requires_grad=whole.requires_grad)


def _span(sizes: Sequence[int], rank: int) -> tuple[int, int]:
    return sum(sizes[:rank]), sum(sizes[: rank + 1])
