"""Lesson 05's harness: a sharded block held against the dense one, parameter by parameter.

`places` reads off which elements of a dense parameter a rank holds; `hold_against_dense` compares
the output, the input's gradient and every parameter's gradient over three steps.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.collectives.call import Group, size_and_rank
from course_lib.gpt import Block, Config
from course_lib.layout import cut
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.randomness import logical_masks, seed_all

BOUND = 1e-10  # of float64


def random_block(config: Config, seed: int, device: torch.device | str = "cpu") -> Block:
    """A dense float64 block, the same on every rank, with no bias at 0 and no norm at 1."""
    torch.manual_seed(seed)
    block = Block(config).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return block.to(device)


def places(dense: Block, mesh: DeviceMesh) -> dict[str, Tensor]:
    """For each parameter the flat indices of the dense elements that this rank holds.

    They are read off a twin whose parameters are their own indices.
    """
    twin = deepcopy(dense)
    with torch.no_grad():
        for p in twin.parameters():
            p.copy_(torch.arange(p.numel(), dtype=p.dtype).view_as(p))
    return {name: p.long() for name, p in parallelize(twin, mesh).named_parameters()}


class Step(NamedTuple):
    """One step of SGD: what came out, and the gradients."""

    out: Tensor
    dx: Tensor
    gradients: dict[str, Tensor]


def train(
    block: Block, length: int = 7, sizes: list[int] | None = None, rank: int = 0
) -> list[Step]:
    """Three steps on all tokens, or with `sizes` on this rank's. The loss is the sum of this rank's
    squared errors over the element count of *all* tokens, so that the ranks' losses add up."""
    weight = block.norm_1.weight
    data = torch.Generator().manual_seed(8)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.02, momentum=0.9)
    done = []
    seed_all(9)  # where the block has dropout
    for _ in range(3):
        x, y = torch.randn(2, 2, length, weight.numel(), generator=data).to(weight)
        count = y.numel()
        if sizes:
            x, y = (t.split(sizes, 1)[rank].clone() for t in (x, y))
        with logical_masks():
            out = block(x.requires_grad_())
            loss = ((out - y) ** 2).sum() / count
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        gradients = {name: p.grad for name, p in block.named_parameters()}
        done.append(Step(out.detach(), x.grad, gradients))
    return done


def hold_against_dense(
    config: Config, mesh: DeviceMesh, device: torch.device | str, run: Callable = train
) -> int:
    """Train the block dense and sharded over tp; raise where they differ. How many gradients."""
    dense = random_block(config, 7, device)
    where, sharded = places(dense, mesh), parallelize(deepcopy(dense), mesh)
    return compare(sharded, run(sharded), dense, run(dense), where)


def compare(
    own: Block, received: list[Step], dense: Block, expected: list[Step], where: dict[str, Tensor]
) -> int:
    """Hold a block and its steps against the dense ones; how many gradients were compared."""
    compared = 0
    for step, right in zip(received, expected, strict=True):
        same(step.out, right.out, "the output")
        same(step.dx, right.dx, "the gradient of x")
        for name, gradient in step.gradients.items():
            same(gradient, right.gradients[name].flatten()[where[name]], f"{name}'s gradient")
            compared += 1
    after = dict(dense.named_parameters())
    for name, parameter in own.named_parameters():
        same(parameter, after[name].flatten()[where[name]], name)
    return compared


def same(mine: Tensor, right: Tensor, what: str) -> None:
    """Raise AssertionError where a tensor is not that of one process, to BOUND."""
    if mine.shape != right.shape:
        raise AssertionError(f"{what} has shape {tuple(mine.shape)}, not {tuple(right.shape)}")
    gap = (mine.double() - right.double()).abs().max().item() if mine.numel() else 0.0
    if not gap < BOUND:
        raise AssertionError(f"{what} is off by {gap:.2g} from that of one process")


def parts_of(block: Block, *after_attention: str) -> dict[str, nn.Module]:
    """The parts of a block in the order in which they run, named for `schedule`; `after_attention`
    are more of them, such as "dropout"."""
    up = "mlp.gate_up" if hasattr(block.mlp, "gate_up") else "mlp.up"
    names = ["norm_1", "attention.qkv", "attention.core", "attention.out", *after_attention]
    names += ["norm_2", up, "mlp.down"]
    return {name.replace("core", "heads"): block.get_submodule(name) for name in names}


def steps_of_adam(
    block: Block, steps: int = 40, *, length: int = 7, group: Group | None = None
) -> list[float]:
    """The losses of AdamW on one random batch, the same on every rank; on a `group` those of this
    rank's tokens, each in the size of a mean over all tokens."""
    weight, data = block.norm_1.weight, torch.Generator().manual_seed(14)
    x, y = torch.randn(2, 8, length, weight.numel(), generator=data).to(weight)
    n, rank, count = *(size_and_rank(group) if group is not None else (1, 0)), y.numel()
    x, y = (t.split(cut(length, n), 1)[rank] for t in (x, y))
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = ((block(x) - y) ** 2).sum() / count  # this rank's share
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(n * loss.item())
    return losses
