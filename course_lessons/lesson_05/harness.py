"""Lesson 05's harness: a sharded block compared with the dense block, parameter by parameter.

`places` returns the elements of a dense parameter that a rank holds. `hold_against_dense` compares
the output, the input gradient and every parameter gradient over three steps.
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

BOUND = 1e-10  # for float64


def random_block(config: Config, seed: int, device: torch.device | str = "cpu") -> Block:
    """Return a dense float64 block, equal on every rank, without biases at 0 or norms at 1."""
    torch.manual_seed(seed)
    block = Block(config).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return block.to(device)


def places(dense: Block, mesh: DeviceMesh) -> dict[str, Tensor]:
    """Return for each parameter the flat indices of the dense elements that this rank holds.

    The indices come from a copy of the model whose parameters are their own indices.
    """
    twin = deepcopy(dense)
    with torch.no_grad():
        for p in twin.parameters():
            p.copy_(torch.arange(p.numel(), dtype=p.dtype).view_as(p))
    return {name: p.long() for name, p in parallelize(twin, mesh).named_parameters()}


class Step(NamedTuple):
    """The results of a step of SGD: the output, dx and the gradients."""

    out: Tensor
    dx: Tensor
    gradients: dict[str, Tensor]


def train(
    block: Block, length: int = 7, sizes: list[int] | None = None, rank: int = 0
) -> list[Step]:
    """Train three steps on all tokens or, with `sizes`, on this rank's tokens. The loss is the sum
    of these squared errors divided by the count of *all* elements, so ranks' losses add up."""
    weight = block.norm_1.weight
    data = torch.Generator().manual_seed(8)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.02, momentum=0.9)
    done = []
    seed_all(9)  # if the block has dropout
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
    """Train the block dense and sharded over tp; compare both, and return the gradient count."""
    dense = random_block(config, 7, device)
    where, sharded = places(dense, mesh), parallelize(deepcopy(dense), mesh)
    return compare(sharded, run(sharded), dense, run(dense), where)


def compare(
    own: Block, received: list[Step], dense: Block, expected: list[Step], where: dict[str, Tensor]
) -> int:
    """Compare a block and its steps with the dense block; return the number of gradients."""
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
    """Raise AssertionError if a tensor differs from one process's tensor by more than BOUND."""
    if mine.shape != right.shape:
        raise AssertionError(f"{what} has shape {tuple(mine.shape)}, not {tuple(right.shape)}")
    gap = (mine.double() - right.double()).abs().max().item() if mine.numel() else 0.0
    if not gap < BOUND:
        raise AssertionError(f"{what} is off by {gap:.2g} from that of one process")


def parts_of(block: Block, *after_attention: str) -> dict[str, nn.Module]:
    """Return the parts of a block in execution order, named for `schedule`; `after_attention` are
    additional parts, such as "dropout"."""
    up = "mlp.gate_up" if hasattr(block.mlp, "gate_up") else "mlp.up"
    names = ["norm_1", "attention.qkv", "attention.core", "attention.out", *after_attention]
    names += ["norm_2", up, "mlp.down"]
    return {name.replace("core", "heads"): block.get_submodule(name) for name in names}


def steps_of_adam(
    block: Block, steps: int = 40, *, length: int = 7, group: Group | None = None
) -> list[float]:
    """Return the losses of AdamW on one random batch, which is equal on every rank. With `group`,
    they are of this rank's tokens, each scaled as a mean over all tokens."""
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
