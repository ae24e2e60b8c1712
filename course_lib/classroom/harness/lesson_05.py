"""Lesson 05's harness: a sharded block held against the dense one, parameter by parameter.

`piece` says which part of a dense parameter a rank should hold; `hold_against_dense` compares the
output, the input's gradient and every parameter's gradient over three steps.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib.gpt import Block, Config
from course_lib.layout import span
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.qkv_layout import joined_rows, shares

BOUND = 1e-10  # of float64


def piece(config: Config, name: str, full: Tensor, rank: int, n: int) -> Tensor:
    """A rank's part of a dense block's parameter (or gradient), by the parameter's name."""
    layer, kind = name.rsplit(".", 1)
    share = shares(config.heads, config.kv_heads, n)[rank]
    d, (a, z) = config.head_size, span(config.inner, n, rank)
    if layer == "attention.qkv":
        taken = joined_rows(share, config.heads, config.kv_heads, d)
    elif layer in ("mlp.up", "mlp.gate_up"):
        taken = [(a, z)] if layer == "mlp.up" else [(a, z), (config.inner + a, config.inner + z)]
    elif kind == "weight" and layer in ("attention.out", "mlp.down"):
        start, stop = (share.q[0] * d, share.q[1] * d) if layer == "attention.out" else (a, z)
        return full[:, start:stop]
    else:
        return full
    return torch.cat([full[start:stop] for start, stop in taken])


def random_block(config: Config, seed: int, device: torch.device | str = "cpu") -> Block:
    """A dense float64 block, the same on every rank, with no bias at 0 and no norm at 1."""
    torch.manual_seed(seed)
    block = Block(config).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return block.to(device)


def train(block: Block, steps: int = 3) -> list[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Steps of SGD with momentum; of each: the output, dx, and every gradient by its name."""
    data, weight = torch.Generator().manual_seed(8), block.norm_1.weight
    optimizer = torch.optim.SGD(block.parameters(), lr=0.02, momentum=0.9)
    seen = []
    for _ in range(steps):
        pair = torch.randn(2, 2, 7, weight.numel(), generator=data).double()
        x, y = pair.to(weight.device)
        out = block(x.requires_grad_())
        optimizer.zero_grad()
        ((out - y) ** 2).mean().backward()
        optimizer.step()
        seen.append((out.detach(), x.grad, {k: p.grad for k, p in block.named_parameters()}))
    return seen


def hold_against_dense(
    config: Config, mesh: DeviceMesh, device: torch.device | str, run: Callable = train
) -> int:
    """Train the block dense and sharded over tp; raise where they differ. How many gradients."""
    rank, n = mesh["tp"].get_local_rank(), mesh["tp"].size()
    dense = random_block(config, 7, device)
    sharded = parallelize(deepcopy(dense), mesh)
    expected, received, compared = run(dense), run(sharded), 0
    for (out, dx, gradients), (right, right_dx, rights) in zip(received, expected, strict=True):
        _same("the output", out, right)
        _same("dx", dx, right_dx)
        for name, gradient in gradients.items():
            _same(f"the gradient of {name}", gradient, piece(config, name, rights[name], rank, n))
            compared += 1
    after = dict(dense.named_parameters())
    for name, parameter in sharded.named_parameters():
        _same(name, parameter, piece(config, name, after[name], rank, n))
    return compared


def _same(what: str, mine: Tensor, right: Tensor) -> None:
    off = (mine - right).abs().max().item()
    if not off < BOUND:
        raise AssertionError(f"{what} is off by {off:.3g}; the bound is {BOUND:g}")


def parts_of(block: Block) -> dict[str, nn.Module]:
    """The parts of a block in the order in which they run, named for `schedule`."""
    wide = "gate_up" if hasattr(block.mlp, "gate_up") else "up"
    inside = {"qkv": "qkv", "core": "heads", "out": "out"}
    return {
        "norm_1": block.norm_1,
        **{f"attention.{name}": getattr(block.attention, part) for part, name in inside.items()},
        "norm_2": block.norm_2,
        f"mlp.{wide}": getattr(block.mlp, wide),
        "mlp.down": block.mlp.down,
    }


def steps_of_adam(block: Block, steps: int = 40, seed: int = 14) -> list[float]:
    """The losses of AdamW on one random batch, the same on every rank."""
    weight, data = block.norm_1.weight, torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 8, 7, weight.numel(), generator=data).double().to(weight.device)
    optimizer = torch.optim.AdamW(block.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = (block(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
