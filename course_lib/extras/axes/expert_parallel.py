"""Expert parallelism: each rank has its own tokens and some of the experts; tokens travel.

Four all-to-alls of uneven sizes a step: tokens to their experts and answers back, gradients the
same ways. How uneven they are, the router decides anew each time. Appendix E4.
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
    """A mixture of which this rank keeps the router and its share of the experts, taken from a
    whole one, in its place.

    After a forward `sent[r]` and `received[r]` are the numbers of rows to and from rank r.
    """

    def __init__(self, mixture: Mixture, group: Group):
        super().__init__()
        n, rank = size_and_rank(group)
        total = len(mixture.experts)
        if total < n:
            raise ValueError(
                f"{total} experts and {n} ranks: a rank without an expert has nothing to do. Take "
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
        # They lie by rank and expert, and each expert wants its own together.
        kinds = torch.arange(coming.shape[1], device=x.device).repeat(n)
        kinds = kinds.repeat_interleave(coming.flatten())
        by_expert = kinds.argsort(stable=True)
        answers = run_experts(self.experts.values(), rows[by_expert], coming.sum(0).tolist())
        answers = torch.empty_like(answers).index_copy(0, by_expert, answers)
        answers = exchange_rows(answers, self.received, self.sent, self.group)
        return combine(answers, order, routing)

    def sum_router(self) -> None:
        """Add up the router's gradient over the ranks: each saw its own tokens. An expert has had
        all of its tokens, and its gradient is whole."""
        weight = self.router.weight
        grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = all_reduce(grad, self.group)


def exchange_rows(x: Tensor, sent: Sequence[int], received: Sequence[int], group: Group) -> Tensor:
    """The first sent[0] rows of x (rows, h) to rank 0, and so on; what comes, in rank order. The
    gradient takes the same ways back."""
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
