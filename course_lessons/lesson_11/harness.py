"""A GPT at stage 3 compared with one process: losses, gradients, norms and parameters, to 1e-10.

Lesson 11 compares three sizes of unit, with and without prefetch, lean and fast.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lessons.lesson_05.harness import same
from course_lib import zero
from course_lib.gpt import GPT, Config

STEPS, CLIP = 3, 0.5


def rows(config: Config, step: int, micro: int, rank: int, device: torch.device) -> Tensor:
    """Return the (3, 9) token ids of a rank in a micro-batch; they differ between ranks."""
    drawn = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    return torch.randint(config.vocabulary, (3, 9), generator=drawn).to(device)


def loss_of(model: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
    """(b, s+1) ids → the mean loss of predicting each next id."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def hold_against_one_process(
    mesh: DeviceMesh,
    device: torch.device,
    config: Config,
    units: Callable[[GPT], list[nn.Module]],
    accumulate: int,
    **options: int,
) -> int:
    """Train a GPT at stage 3, and a dense copy on all ranks' rows, in float64 with clipping. Raise
    AssertionError on a difference; return the number of gradient pieces compared."""
    n, rank = mesh["dp"].size(), mesh.get_local_rank("dp")
    torch.manual_seed(5)
    dense = GPT(config).double().to(device)
    model = deepcopy(dense)
    plain = torch.optim.AdamW(dense.parameters(), lr=0.01)
    engine = zero.engine(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        stage=3,
        mesh=mesh,
        units=units(model),
        accumulate=accumulate,
        clip=CLIP,
        persist=0,
        **options,
    )
    compared = 0
    for step in range(STEPS):
        plain.zero_grad()
        for micro in range(accumulate):
            batches = [rows(config, step, micro, r, device) for r in range(n)]
            losses = [loss_of(dense, ids) for ids in batches]
            (sum(losses) / (n * accumulate)).backward()
            loss = loss_of(engine, batches[rank])
            same(loss.detach(), losses[rank].detach(), "a loss")
            engine.backward(loss)
            if micro < accumulate - 1:
                engine.step()
        right = {name: p.grad.flatten() for name, p in dense.named_parameters()}
        for piece, part in engine.shards.parts():
            name = piece.slot.name
            same(part.grad, right[name][piece.start : piece.stop], f"{name}'s gradient")
            compared += 1
        norm = nn.utils.clip_grad_norm_(dense.parameters(), CLIP)
        plain.step()
        engine.step()
        same(torch.tensor(engine.norm, dtype=torch.float64), norm.cpu(), "the gradient's norm")
        with engine.gathered(model), torch.no_grad():
            for (name, p), q in zip(model.named_parameters(), dense.parameters(), strict=True):
                same(p, q, name)
    engine.close()
    return compared
