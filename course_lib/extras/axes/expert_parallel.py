"""Expert parallelism: each rank has its own tokens and some experts, to which tokens are sent.

A step has four all-to-alls of uneven sizes: tokens to their experts and outputs back, then their
gradients along the same routes. The router determines the sizes in each step. Appendix E4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.autograd import Function

from course_lib.collectives import all_reduce, all_to_all, labelled
from course_lib.collectives.call import Group, size_and_rank
from course_lib.extras.axes.experts import Mixture, combine, route, run_experts


class ExpertParallel(nn.Module):
    """A module with the router and this rank's share of the experts of a full mixture.

    It replaces the full mixture. After a forward pass, `sent[r]` and `received[r]` are the numbers
    of rows sent to and received from rank r.
    """

    def __init__(self, mixture: Mixture, group: Group):
        super().__init__()
        n, rank = size_and_rank(group)
        total = len(mixture.experts)
        if total < n:
            raise ValueError(
                f"{total} experts are too few for {n} ranks: each rank needs at least one. Take "
                f"{total} ranks for this axis or fewer, or more experts"
            )
        self.group, self.top = group, mixture.top
        self.shares = [total // n + (r < total % n) for r in range(n)]
        first = sum(self.shares[:rank])
        self.router = mixture.router
        own = range(first, first + self.shares[rank])
        self.experts = nn.ModuleDict({str(i): mixture.experts[str(i)] for i in own})
        self.sent: list[int] = []
        self.received: list[int] = []

    def forward(self, x: Tensor) -> Tensor:  # (own tokens, h)
        n, rank = size_and_rank(self.group)
        routing = route(self.router, x, self.top)
        order, counts = routing.by_expert(sum(self.shares))
        parts = counts.split(self.shares)  # for each rank, the rows of each of its experts
        with labelled("scalars"):
            like = [parts[rank]] * n
            coming = torch.stack(all_to_all(parts, self.group, like=like))  # (rank, own expert)
        self.sent = [int(part.sum()) for part in parts]
        self.received = coming.sum(1).tolist()
        rows = exchange_rows(x[order // self.top], self.sent, self.received, self.group)
        # The rows are sorted by rank and then by expert, but each expert needs its rows together.
        kinds = torch.arange(coming.shape[1], device=x.device).repeat(n)
        kinds = kinds.repeat_interleave(coming.flatten())
        by_expert = kinds.argsort(stable=True)
        answers = run_experts(self.experts.values(), rows[by_expert], coming.sum(0).tolist())
        answers = torch.empty_like(answers).index_copy(0, by_expert, answers)
        answers = exchange_rows(answers, self.received, self.sent, self.group)
        return combine(answers, order, routing)

    def sum_router(self) -> None:
        """Sum the router's gradient over the ranks, because each rank saw only its own tokens. An
        expert has seen all tokens sent to it, so its gradient is complete."""
        weight = self.router.weight
        grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = all_reduce(grad, self.group)


def exchange_rows(x: Tensor, sent: Sequence[int], received: Sequence[int], group: Group) -> Tensor:
    """Send the first sent[0] rows of x (rows, h) to rank 0, and so on; return the received rows in
    rank order. Gradients are sent back along the same routes."""
    return _Rows.apply(x, tuple(sent), tuple(received), group)


class _Rows(Function):
    @staticmethod
    def forward(ctx, x: Tensor, sent: tuple, received: tuple, group: Group) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        like = [x.new_empty((count, x.shape[1])) for count in received]
        return torch.cat(all_to_all(x.split(list(sent)), group, like=like))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        back = exchange_rows(gradient.contiguous(), ctx.received, ctx.sent, ctx.group)
        return back, None, None, None
