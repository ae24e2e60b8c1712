"""The table of words cut over the vocabulary: who does not have a word contributes zeros.

One all-reduce completes the lookup. The head is the same table used as a weight, so a rank that
holds some words' rows also computes those words' logits, and a tied table stays one parameter.
Lesson 07 derives it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives.call import Group, check_member, computes_on, size_and_rank
from course_lib.layout import span
from course_lib.meta import numbers
from course_lib.tensor_parallel.products import AllTokens
from course_lib.tensor_parallel.rank_module import RankModule

Loss = Callable[[Tensor, Tensor], Tensor]  # of the last states and the head's weight


def padded_vocabulary(vocabulary: int, multiple_of: int = 1) -> int:
    """The next multiple: rows beyond the vocabulary are no words, and stay zero."""
    if multiple_of < 1:
        raise ValueError(f"multiple_of={multiple_of} has to be 1 or more")
    return -(-vocabulary // multiple_of) * multiple_of


class VocabularyParallelEmbedding(RankModule):
    """(b, s) ids to (b, s, h): this rank holds rows `start` to `stop` of the padded table.

    Every rank brings the whole table with the same weights. `check` looks for ids out of range.
    """

    sharded = ("weight",)

    def __init__(
        self, dense: nn.Embedding, group: Group, *, multiple_of: int = 1, check: bool = True
    ):
        if isinstance(dense, VocabularyParallelEmbedding):
            raise ValueError(f"this table is cut already: {dense}; a plan is laid over a dense one")
        super().__init__()
        n, rank = size_and_rank(group)
        self.vocabulary, self.hidden = dense.num_embeddings, dense.embedding_dim
        check_vocabulary(self.vocabulary, n)
        self.group, self.check, self.training = group, check, dense.training
        self.padded = padded_vocabulary(self.vocabulary, multiple_of)
        self.start, self.stop = span(self.padded, n, rank)
        real = dense.weight.detach()[self.start : min(self.stop, self.vocabulary)]
        missing = self.stop - self.start - real.shape[0]
        rows = torch.cat((real, real.new_zeros((missing, self.hidden))))  # (v/tp, h)
        self.weight = nn.Parameter(rows, requires_grad=dense.weight.requires_grad)
        self.way = AllTokens(group)

    def forward(self, ids: Tensor) -> Tensor:  # (b, s) -> (b, s, h)
        return self.way.embedded(self.own_rows(ids))

    def own_rows(self, ids: Tensor) -> Tensor:
        """This rank's part of the lookup, a sum still owed: zeros for others' words."""
        check_kind(ids, self.group)
        if self.check:
            check_ids(ids, self.vocabulary, self.group.rank())
        local = ids - self.start
        here = (local >= 0) & (local < self.weight.shape[0])  # (b, s)
        if not self.weight.shape[0]:
            return self.weight.new_zeros((*ids.shape, self.hidden)) + self.weight.sum()
        rows = F.embedding(torch.where(here, local, 0), self.weight)  # (b, s, h)
        return torch.where(here[..., None], rows, 0.0)

    def extra_repr(self) -> str:
        return (
            f"words {self.start} to {self.stop} of {self.vocabulary} (padded to {self.padded}), "
            f"hidden={self.hidden}, rank={self.group.rank()} of {self.group.size()}"
        )


class VocabularyParallelHead(RankModule):
    """(b, s, h) to this rank's logits (b, s, v/tp), with the rows of a cut table as its weight."""

    sharded = ("weight",)

    def __init__(self, weight: nn.Parameter, group: Group, *, overlap: bool = True):
        super().__init__()
        check_member(group)
        self.weight, self.group = weight, group
        self.register_parameter("bias", None)
        self.way = AllTokens(group, overlap=overlap)

    def forward(self, x: Tensor, loss: Loss | None = None) -> Tensor:
        """The logits, or `loss(x, weight)` of whoever computes the two as one."""
        if loss is not None:
            return loss(x, self.weight)
        (logits,) = self.way.columns(x, [self.weight], [None])
        return logits


def check_vocabulary(vocabulary: int, n: int) -> None:
    """Refuse more ranks than words."""
    if vocabulary < n:
        raise ValueError(
            f"a vocabulary of {vocabulary} words cannot be cut over {n} ranks: {n - vocabulary} of "
            f"them would have no word. Use at most {vocabulary} ranks on this axis"
        )


def check_kind(ids: Tensor, group: Group) -> None:
    """Refuse what cannot be ids, before anything is looked up. Ids without numbers are for a group
    that carries none, in a dry run."""
    kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
    if kind not in (torch.int64, torch.int32):
        raise TypeError(f"token ids are a tensor of int64 (or int32), and these are {kind}")
    if ids.is_meta and computes_on(group).type != "meta":
        raise RuntimeError(
            "these ids are on torch's meta device, where there are no numbers. Give the model its "
            "memory first, by model.to_empty(device=…), then load its numbers"
        )


def check_ids(ids: Tensor, vocabulary: int, rank: int) -> None:
    """Refuse an id that is no word: it would be nobody's row, and come back as zeros."""
    wrong = (ids < 0) | (ids >= vocabulary)
    if numbers(wrong.any(), False):
        raise ValueError(
            f"rank {rank}: {int(wrong.sum())} ids are out of range, the first of them "
            f"{int(ids[wrong][0])}: words are 0 to {vocabulary - 1}"
        )
