"""More words than a model was made for: rows of its table and its head, the same on every layout.

A cut moves with the vocabulary: the whole table is gathered once, grown, and cut anew. Appendix E1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.collectives import all_gather
from course_lib.collectives.call import Group, size_and_rank
from course_lib.gpt import GPT
from course_lib.layout import cut, span
from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    check_vocabulary,
    padded_vocabulary,
)

NEAR = 1e-3  # of the old rows' spread: how far from their mean a new row is


@torch.no_grad()
def resize(
    model: GPT, vocabulary: int, *, used: int | None = None, seed: int = 0, multiple_of: int = 1
) -> None:
    """Give table and head `vocabulary` rows, in place: of a dense model or one that is cut over tp.

    Old rows stay to the bit. New ones are drawn near the mean of the old ones, from `seed` and the
    place of the row alone, so every layout has the same. Fewer rows are refused unless `used` says
    how many of the first ids are in use. Make optimizer and engine afterwards: the parameters are
    new, and moments belong to the old ones. All ranks of the tp group call this.
    """
    table, head = model.tokens, model.head
    is_cut = isinstance(table, VocabularyParallelEmbedding)
    group = table.group if is_cut else None
    old = table.vocabulary if is_cut else table.num_embeddings
    _check(vocabulary, old, used, seed, group, table.weight.device)
    sizes = cut(table.padded, group.size()) if is_cut else [old]
    padded = padded_vocabulary(vocabulary, multiple_of if is_cut else 1)
    start, stop = span(padded, *size_and_rank(group)) if is_cut else (0, padded)
    tied = head.weight is table.weight
    how = {"old": old, "new": vocabulary, "group": group, "sizes": sizes, "own_rows": (start, stop)}
    rows = _resized(table.weight, seed, **how)
    if tied:
        head.weight = rows
    else:
        head.weight = _resized(head.weight, seed + 1, **how)
    table.weight = rows
    if is_cut:
        table.vocabulary, table.padded, table.start, table.stop = vocabulary, padded, start, stop
    else:
        table.num_embeddings = head.out_features = vocabulary
    model.config = model.config.changed(vocabulary=vocabulary)


def _check(
    vocabulary: int,
    old: int,
    used: int | None,
    seed: int,
    group: Group | None,
    device: torch.device,
) -> None:
    n = 1 if group is None else group.size()
    check_vocabulary(vocabulary, n)
    if vocabulary < old and (used is None or used > vocabulary):
        which = "used= does not say which" if used is None else f"{used} of them are in use"
        raise ValueError(
            f"vocabulary={vocabulary} is smaller than the {old} words that this model has, and "
            f"{which}: an id from {vocabulary} on would have no row. Pass len(tokenizer), or "
            "used=, the highest id that any text has, plus 1"
        )
    if n > 1:
        mine = torch.tensor([[vocabulary, seed]], device=device)
        every = all_gather(mine, group).tolist()
        if len(set(map(tuple, every))) > 1:
            raise ValueError(
                f"rank {group.rank()}: the ranks ask for other sizes or seeds: (vocabulary, seed) "
                f"by rank is {every}. Every rank has to be given the same tokenizer"
            )


def _resized(
    weight: Tensor,
    seed: int,
    *,
    old: int,
    new: int,
    group: Group | None,
    sizes: list[int],
    own_rows: tuple[int, int],
) -> nn.Parameter:
    """This rank's rows of the table that has `new` words and, behind them, rows of zeros."""
    whole = weight.detach()
    if group is not None:
        whole = all_gather(whole, group, sizes=sizes)
    whole = whole[:old]
    if new > old:
        wide = whole.double()
        drawn = torch.Generator().manual_seed(seed)
        size = new - old, whole.shape[1]
        noise = torch.randn(size, generator=drawn, dtype=torch.float64, device="cpu")
        near = wide.mean(0) + NEAR * wide.std(0, correction=0) * noise.to(whole.device)
        whole = torch.cat((whole, near.to(whole.dtype)))
    start, stop = own_rows
    rows = whole[start : min(stop, new)]
    missing = stop - start - rows.shape[0]
    rows = torch.cat((rows, rows.new_zeros(missing, rows.shape[1])))
    return nn.Parameter(rows, requires_grad=weight.requires_grad)
