"""A larger vocabulary for a model: new rows of table and head, the same on every layout.

Splits depend on the vocabulary, so the table is gathered, resized and sharded again. Appendix E1.
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

NEAR = 1e-3  # distance of new rows from the mean, relative to the spread of the old ones


@torch.no_grad()
def resize(
    model: GPT, vocabulary: int, *, used: int | None = None, seed: int = 0, multiple_of: int = 1
) -> None:
    """Resize table and head of a dense or tensor-parallel model to `vocabulary` rows, in place.

    Old rows stay the same. New rows are drawn near the old rows' mean, depending only on `seed` and
    position, so they are the same on every layout. Fewer rows are refused unless `used` states how
    many of the first ids are in use. Create optimizer and engine afterwards, because the parameters
    are new and moments belong to old ones. All tp ranks must call this.
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
        which = "used= is not set" if used is None else f"{used} of them are in use"
        raise ValueError(
            f"vocabulary={vocabulary} is smaller than the {old} entries of this model, and "
            f"{which}: an id from {vocabulary} on would have no row. Pass len(tokenizer), or "
            "used=, the highest id in any text plus 1"
        )
    if n > 1:
        mine = torch.tensor([[vocabulary, seed]], device=device)
        every = all_gather(mine, group).tolist()
        if len(set(map(tuple, every))) > 1:
            raise ValueError(
                f"rank {group.rank()}: the ranks request different sizes or seeds. By rank, "
                f"(vocabulary, seed) is {every}. Pass the same tokenizer on every rank"
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
    """Return this rank's rows of a table with `new` entries, with rows of zeros as padding."""
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
