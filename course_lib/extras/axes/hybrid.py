"""Hybrid sharding: ZeRO inside a node, copies of it across nodes.

Inside, over fast links, shards are gathered and gradients reduce-scattered. Across, over slow ones,
go the gradients of a shard alone, 1/n of the model, in an all-reduce. Appendix E4.
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
    """An engine over the ranks of `inside`, kept alike over those of `across`: in each of these
    groups are the ranks that hold the same shard, one of each node.

    Loss and step are an engine's: the mean of all ranks' means, or, with `tokens=`, of all tokens.
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
            """A bucket's sums inside are there: first add up those of the other nodes."""
            receive(i, all_reduce(result, across, donated=True))

        self.gradients.receive = receive_sum

    def backward(self, loss: Tensor, tokens: float | None = None) -> None:
        if tokens is None:
            super().backward(loss / self.across.size())
            return
        count = torch.tensor(float(tokens), dtype=torch.float64, device=device_of(self.across))
        with labelled("scalars"):  # the engine adds up over `inside` what each rank passes on here
            count = all_reduce(count, self.across, donated=True)
        super().backward(loss, tokens=count.item())


def check_crossing(inside: Group, across: Group) -> None:
    """Refuse two groups that share more than this rank: they are no rows and columns of a mesh."""
    both = [set(dist.get_process_group_ranks(group)) for group in (inside, across)]
    rank, shared = dist.get_rank(), both[0] & both[1]
    if shared != {rank}:
        raise ValueError(
            f"rank {rank}: inside={sorted(both[0])} and across={sorted(both[1])} share ranks "
            f"{sorted(shared)} and have to share this one alone: inside are the ranks of a node, "
            "across the ranks with the same place on each node"
        )
