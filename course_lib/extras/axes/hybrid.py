"""Hybrid sharding: ZeRO inside a node, replicas across nodes.

Inside a node, over fast links, parameters are gathered and gradients reduce-scattered. Across
nodes, over slow links, only a shard's gradients (1/n of all) are all-reduced. Appendix E4.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.collectives import all_reduce, labelled
from course_lib.collectives.call import Group, check_member, device_of
from course_lib.zero import Engine
from course_lib.zero.ddp import same_everywhere


class Hybrid(Engine):
    """An engine over the ranks of `inside`, replicated over the ranks of `across`.

    Each `across` group has the ranks that hold the same shard, one per node. As in any engine, the
    loss is the mean of the ranks' mean losses, or, with `tokens=`, the mean over all tokens.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, *, inside: Group, across: Group, **options
    ):
        for group in (inside, across):
            check_member(group)
        check_crossing(inside, across)
        self.across = across
        if not any(p.is_meta for p in model.parameters()):
            same_everywhere(model, across)
        mesh = DeviceMesh.from_group(inside, device_of(inside).type, mesh_dim_names=("dp",))
        super().__init__(model, optimizer, mesh=mesh, **options)
        receive = self.gradients.receive

        def receive_sum(i: int, result: Tensor) -> None:
            """Add the other nodes' sums to a bucket's sums of this node."""
            receive(i, all_reduce(result, across, donated=True))

        self.gradients.receive = receive_sum

    def backward(self, loss: Tensor, tokens: float | None = None) -> None:
        if tokens is None:
            super().backward(loss / self.across.size())
            return
        count = torch.tensor(float(tokens), dtype=torch.float64, device=device_of(self.across))
        with labelled("scalars"):  # the engine sums this count over `inside`
            count = all_reduce(count, self.across, donated=True)
        super().backward(loss, tokens=count.item())


def check_crossing(inside: Group, across: Group) -> None:
    """Raise if the groups share more than this rank, because they must be a row and a column."""
    both = [set(dist.get_process_group_ranks(group)) for group in (inside, across)]
    rank, shared = dist.get_rank(), both[0] & both[1]
    if shared != {rank}:
        raise ValueError(
            f"rank {rank}: inside={sorted(both[0])} and across={sorted(both[1])} share ranks "
            f"{sorted(shared)} but may share only this one. Put the ranks of a node in inside, "
            "and the ranks with the same position on each node in across"
        )
