"""A mixture of experts: a router gives each token to k of E small MLPs, and weighs what they say.

Parameters grow with E, work with k alone. This is the whole layer in one process, which expert
parallelism is held against. Appendix E4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Routing(NamedTuple):
    """Where tokens go: for each of its k choices a token's expert and the weight of its answer."""

    experts: Tensor  # (tokens, k)
    weights: Tensor  # (tokens, k)

    def by_expert(self, experts: int) -> tuple[Tensor, Tensor]:
        """Choices in the order of their experts, as places in the flat (tokens·k,); and how many
        each expert has."""
        flat = self.experts.flatten()
        return flat.argsort(stable=True), flat.bincount(minlength=experts)


class Expert(nn.Module):
    """An MLP as in a dense block, without biases."""

    def __init__(self, hidden: int, inner: int):
        super().__init__()
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    """Router and all experts on one rank. No token is dropped, however many an expert gets."""

    def __init__(self, hidden: int, inner: int, experts: int, top: int):
        super().__init__()
        if not 1 <= top <= experts:
            raise ValueError(
                f"top={top} of {experts} experts: a token goes to one of them or more, and to no "
                "more than there are"
            )
        self.top = top
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleDict({str(i): Expert(hidden, inner) for i in range(experts)})

    def forward(self, x: Tensor) -> Tensor:  # (tokens, h)
        routing = route(self.router, x, self.top)
        order, counts = routing.by_expert(len(self.experts))
        rows = x[order // self.top]  # (tokens·k, h), those of one expert together
        answers = run_experts(self.experts.values(), rows, counts.tolist())
        return combine(answers, order, routing)


def route(router: nn.Module, x: Tensor, top: int) -> Routing:
    """The experts with the highest probabilities for each token (tokens, h). The probabilities are
    the weights of their answers: through them the router learns."""
    weights, experts = router(x).softmax(-1).topk(top, dim=-1)
    return Routing(experts, weights)


def run_experts(experts, rows: Tensor, counts: list[int]) -> Tensor:
    """Each expert on its rows, which lie one expert's after the other's."""
    parts = rows.split(counts)
    return torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])


def combine(answers: Tensor, order: Tensor, routing: Routing) -> Tensor:
    """The weighted sum of each token's k answers, (tokens, h), from answers in experts' order."""
    tokens, top = routing.experts.shape
    back = torch.empty_like(answers).index_copy(0, order, answers)  # (tokens·k, h)
    return (back.view(tokens, top, answers.shape[1]) * routing.weights[..., None]).sum(1)
