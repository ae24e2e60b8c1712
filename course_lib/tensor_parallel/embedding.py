"""The embedding table sharded over the vocabulary: a rank adds zeros for entries it lacks.

One all-reduce completes the lookup. The head uses the same table as its weight, so a rank with the
rows of some entries computes their logits too, and a tied table stays one parameter. Lesson 07
derives it.
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

Loss = Callable[[Tensor, Tensor], Tensor]  # (last states, head's weight) -> loss


def padded_vocabulary(vocabulary: int, multiple_of: int = 1) -> int:
    """Round up to a multiple. Rows beyond the vocabulary have no entry and stay zero."""
    if multiple_of < 1:
        raise ValueError(f"multiple_of={multiple_of} must be 1 or more")
    return -(-vocabulary // multiple_of) * multiple_of


class VocabularyParallelEmbedding(RankModule):
    """(b, s) ids -> (b, s, h), with rows `start` to `stop` of the padded table on this rank.

    Every rank passes the full table with the same weights. `check` refuses ids out of range.
    """

    sharded = ("weight",)

    def __init__(
        self, dense: nn.Embedding, group: Group, *, multiple_of: int = 1, check: bool = True
    ):
        if isinstance(dense, VocabularyParallelEmbedding):
            raise ValueError(f"this table is sharded already: {dense}. Pass a dense table")
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
        """Return this rank's partial sum of the lookup, with zeros for other ranks' entries."""
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
            f"entries {self.start} to {self.stop} of {self.vocabulary} (padded to {self.padded}), "
            f"hidden={self.hidden}, rank={self.group.rank()} of {self.group.size()}"
        )


class VocabularyParallelHead(RankModule):
    """(b, s, h) -> this rank's logits (b, s, v/tp); its weight is a shard of a table."""

    sharded = ("weight",)

    def __init__(self, weight: nn.Parameter, group: Group, *, overlap: bool = True):
        super().__init__()
        check_member(group)
        self.weight, self.group = weight, group
        self.register_parameter("bias", None)
        self.way = AllTokens(group, overlap=overlap)

    def forward(self, x: Tensor, loss: Loss | None = None) -> Tensor:
        """Return the logits, or `loss(x, weight)` if `loss` fuses head and loss."""
        if loss is not None:
            return loss(x, self.weight)
        (logits,) = self.way.columns(x, [self.weight], [None])
        return logits


def check_vocabulary(vocabulary: int, n: int) -> None:
    """Raise if there are more ranks than vocabulary entries."""
    if vocabulary < n:
        raise ValueError(
            f"a vocabulary of {vocabulary} entries cannot be sharded over {n} ranks, because "
            f"{n - vocabulary} would have none. Use at most {vocabulary} ranks on this axis"
        )


def check_kind(ids: Tensor, group: Group) -> None:
    """Raise before the lookup if the tensor cannot be ids. Ids without values are allowed only if
    the group sends no values, as in a dry run."""
    kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
    if kind not in (torch.int64, torch.int32):
        raise TypeError(f"token ids are a tensor of int64 (or int32), but these are {kind}")
    if ids.is_meta and computes_on(group).type != "meta":
        raise RuntimeError(
            "these ids are on torch's meta device, where there are no values. Give the model its "
            "memory first, by model.to_empty(device=…), then load its values"
        )


def check_ids(ids: Tensor, vocabulary: int, rank: int) -> None:
    """Raise for an id without an entry, because no rank has its row and its lookup would be 0."""
    wrong = (ids < 0) | (ids >= vocabulary)
    if numbers(wrong.any(), False):
        raise ValueError(
            f"rank {rank}: {int(wrong.sum())} ids are out of range, the first of them "
            f"{int(ids[wrong][0])}, but entries are 0 to {vocabulary - 1}"
        )
