"""A mixture of experts: a router sends each token to k of E small MLPs and weights their outputs.

Parameters grow with E, but work grows only with k. This full layer in one process is the reference
for expert parallelism. Appendix E4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Routing(NamedTuple):
    """The routes of tokens: for each of a token's k choices, the expert and its output's weight."""

    experts: Tensor  # (tokens, k)
    weights: Tensor  # (tokens, k)

    def by_expert(self, experts: int) -> tuple[Tensor, Tensor]:
        """Return the choices sorted by expert, as positions in the flat (tokens·k,), and the number
        of choices of each expert."""
        flat = self.experts.flatten()
        return flat.argsort(stable=True), flat.bincount(minlength=experts)


class Expert(nn.Module):
    """A GELU MLP without biases, as in a dense block."""

    def __init__(self, hidden: int, inner: int):
        super().__init__()
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    """The router and all experts on one rank. No token is dropped, even if an expert gets many."""

    def __init__(self, hidden: int, inner: int, experts: int, top: int):
        super().__init__()
        if not 1 <= top <= experts:
            raise ValueError(
                f"top={top} of {experts} experts: a token goes to at least one expert and at most "
                "to all of them"
            )
        self.top = top
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleDict({str(i): Expert(hidden, inner) for i in range(experts)})

    def forward(self, x: Tensor) -> Tensor:  # (tokens, h)
        routing = route(self.router, x, self.top)
        order, counts = routing.by_expert(len(self.experts))
        rows = x[order // self.top]  # (tokens·k, h), sorted by expert
        answers = run_experts(self.experts.values(), rows, counts.tolist())
        return combine(answers, order, routing)


def route(router: nn.Module, x: Tensor, top: int) -> Routing:
    """Choose the experts with the highest probabilities for each token (tokens, h). Their outputs
    are weighted by these probabilities, so the router gets a gradient."""
    weights, experts = router(x).softmax(-1).topk(top, dim=-1)
    return Routing(experts, weights)


def run_experts(experts, rows: Tensor, counts: list[int]) -> Tensor:
    """Run each expert on its rows, which are sorted by expert."""
    parts = rows.split(counts)
    return torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])


def combine(answers: Tensor, order: Tensor, routing: Routing) -> Tensor:
    """Outputs in experts' order -> (tokens, h), the weighted sum of each token's k outputs."""
    tokens, top = routing.experts.shape
    back = torch.empty_like(answers).index_copy(0, order, answers)  # (tokens·k, h)
    return (back.view(tokens, top, answers.shape[1]) * routing.weights[..., None]).sum(1)
