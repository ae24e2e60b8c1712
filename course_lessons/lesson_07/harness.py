"""A model with tied weights, dense and sharded, and batches to train it.

The lesson writes the lookup, the head and the loss. This file compares them with one process over
several steps and on groups of other sizes. Lesson 07.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives.call import Group
from course_lib.layout import span
from course_lib.ledger import ledger
from course_lib.memory import peak
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.embedding import VocabularyParallelEmbedding, VocabularyParallelHead

VOCABULARY, HIDDEN = 53, 12
Loss = Callable[..., Tensor]


class Dense(nn.Module):
    """tanh(E[ids] A + a) Eᵀ in one process: (b, s) ids -> (b, s, v) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.mix = nn.Linear(HIDDEN, HIDDEN)

    def loss(self, ids: Tensor, targets: Tensor, **how) -> Tensor:
        logits = torch.tanh(self.mix(self.embedding(ids))) @ self.embedding.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), **how)


class Sharded(nn.Module):
    """The same model with a sharded table: (b, s) ids -> (b, s, v/tp) local logits."""

    def __init__(self, dense: Dense, group: Group, multiple_of: int = 1):
        super().__init__()
        self.group = group
        self.embedding = VocabularyParallelEmbedding(
            dense.embedding, group, multiple_of=multiple_of
        )
        self.head = VocabularyParallelHead(self.embedding.weight, group)  # the same parameter
        self.mix = deepcopy(dense.mix)  # replicated

    def logits(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embedding(ids))))

    def loss(self, ids: Tensor, targets: Tensor, **how) -> Tensor:
        how |= {"vocabulary": VOCABULARY, "padded": self.embedding.padded}
        return cross_entropy(self.logits(ids), targets, self.group, **how)


def dense_model(device: torch.device) -> Dense:
    """Return a float64 model, which is equal on every rank."""
    torch.manual_seed(10)
    return Dense().double().to(device)


def batch(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and targets (4, 11); two sequences are shorter and padded, with targets of -100.

    Each entry is always followed by the same entry, so the model can learn this order.
    """
    follows = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(11))
    ids = torch.randint(VOCABULARY, (4, 11), generator=torch.Generator().manual_seed(step))
    targets = follows[ids]
    ids[2:, 6:], targets[2:, 6:] = 0, -100
    return ids.to(device), targets.to(device)


def train(model: nn.Module, loss: Loss, steps: int, device: torch.device, **how) -> Tensor:
    """Train with SGD and momentum; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(loss(*batch(step, device), **how))
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach()


class Counted(NamedTuple):
    """One loss and its backward pass: collectives, bytes sent, peak bytes, logits shard bytes."""

    collectives: int
    sent: float
    peak: int
    shard: int


def sent_and_held(tokens: int, vocabulary: int, group: Group, device: torch.device) -> Counted:
    """Run the sharded loss on this group, forward and backward, under ledger and meter."""
    start, stop = span(vocabulary, group.size(), group.rank())
    drawn = torch.Generator().manual_seed(7)
    targets = torch.randint(vocabulary, (tokens,), generator=drawn).to(device)
    for _ in range(2):  # the first time, torch loads code
        logits = torch.randn(tokens, stop - start, device=device).requires_grad_()
        with ledger() as book, peak() as memory:
            cross_entropy(logits, targets, group, vocabulary=vocabulary).backward()
    return Counted(book.count(), book.bytes(), memory.bytes, logits.numel() * 4)
