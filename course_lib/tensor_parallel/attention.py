"""Attention by heads: heads are independent, so each rank computes only its own heads.

`qkv` is sharded by columns along the heads, and `out` by rows, so each pass has one all-reduce, as
in the MLP. If several ranks hold a key/value head, its gradients must be summed. Dropout inside
heads uses a separate random stream on each rank. Lesson 05 derives it.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from course_lib.collectives.call import Group, size_and_rank, timeout_of
from course_lib.gpt import Attention
from course_lib.tensor_parallel.linear import Columns, Plan, RowParallelLinear, Rows, lay
from course_lib.tensor_parallel.qkv_layout import joined_rows, shares
from course_lib.tensor_parallel.randomness import private
from course_lib.tensor_parallel.rank_module import RankModule


def attention_plan(attention: Attention, group: Group, holders: Group | None = None) -> Plan:
    """Return this rank's part of each weight: query heads and the key/value heads that they read.

    `holders` is the group of ranks with the same key/value heads, from `holders_of`. If it is
    omitted, a group is created if needed.
    """
    if isinstance(attention.out, RowParallelLinear):
        raise ValueError("this attention is sharded already; apply a plan to a dense attention")
    heads, kv_heads, size = attention.heads, attention.kv_heads, attention.head_size
    n, rank = size_and_rank(group)
    share = shares(heads, kv_heads, n)[rank]
    if holders is None:
        holders = holders_of(heads, kv_heads, group)
    shared = None
    if len(share.holders) > 1:
        start = share.heads * size  # this rank's rows of q are followed by those of k and v
        shared = (start, start + 2 * share.kv_heads * size, holders)
    return {
        "qkv": Columns(joined_rows(share, heads, kv_heads, size), shared),
        "out": Rows([(share.q[0] * size, share.q[1] * size)]),
    }


def shard_attention(
    attention: Attention, group: Group, *, holders: Group | None = None, overlap: bool = True
) -> Attention:
    """Apply the plan to a dense attention, in place; it keeps its code but has fewer heads."""
    lay(attention_plan(attention, group, holders), attention, group, overlap=overlap)
    compute_own_heads(attention, group)
    return attention


def compute_own_heads(attention: Attention, group: Group) -> None:
    """Set the number and the indices of the heads of an attention with sharded weights."""
    heads = attention.heads
    share = shares(heads, attention.kv_heads, group.size())[group.rank()]
    attention.heads, attention.kv_heads = share.heads, share.kv_heads
    attention.core = PrivateHeads(attention.core, group, start=share.q[0], whole=heads)


def holders_of(heads: int, kv_heads: int, group: Group) -> Group | None:
    """Return the group of ranks with this rank's key/value heads, or None if it is the only one.

    Every rank of the world must call this with its own group, because torch requires all ranks to
    create a group together. One group serves all layers.
    """
    n, rank = size_and_rank(group)
    holders = shares(heads, kv_heads, n)[rank].holders
    if len(holders) == 1:
        return None
    if len(holders) == n:
        return group
    members = dist.get_process_group_ranks(group)
    own = tuple(members[r] for r in holders)
    every: list[tuple[int, ...]] = [()] * dist.get_world_size()
    dist.all_gather_object(every, own)  # of the other replicas too
    made = {one: dist.new_group(list(one), timeout=timeout_of(group)) for one in sorted(set(every))}
    return made[own]


class PrivateHeads(RankModule):
    """The dense `Heads` for some of the heads, with random numbers that are unique to this rank."""

    def __init__(self, heads: nn.Module, group: Group, *, start: int, whole: int):
        super().__init__()
        self.inner, self.group = heads, group
        self.start, self.whole = start, whole
        self.training = heads.training

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Tensor:
        if not (self.training and self.inner.dropout):
            return self.inner(q, k, v, padding)
        with private(self.group, dim=1, start=self.start, whole=self.whole):
            return self.inner(q, k, v, padding)  # (b, heads/tp, s, d)
