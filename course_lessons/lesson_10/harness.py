"""Gradient memory of an engine's rank, counted after each gradient of each backward pass.

Lesson 10 draws these counts at stages 0, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from course_lib import zero
from course_lib.memory import held, peak


def count_gradients(
    engine: zero.Engine, losses: Sequence[Callable[[], torch.Tensor]]
) -> tuple[list[list[int]], int]:
    """Run each loss's backward pass; return gradient bytes after each arrival and at the end.

    Each storage counts once: the buckets, the shards' sums, and new tensors that a backward pass
    still holds (full buckets, messages in progress). The optimizer does not step.
    """
    by = "allocator" if next(engine.model.parameters()).device.type == "cuda" else "watch"
    counts, alive = [], []

    def kept() -> tuple[list, list]:
        buffers = [buffer for buffer in engine.gradients.buffers if buffer is not None]
        return buffers, [part.grad for _, part in engine.shards.parts()]

    def note(parameter: torch.nn.Parameter) -> None:
        gradients = [kept(), list(alive[-1].made_and_alive())]
        counts[-1].append(held(kinds={"gradients": gradients}).total)

    hooks = [p.register_post_accumulate_grad_hook(note) for p in engine.model.parameters()]
    for i, loss_of in enumerate(losses):
        loss = loss_of()
        counts.append([])
        with peak(by=by) as region:
            alive.append(region)
            engine.backward(loss)
        if i < len(losses) - 1:
            engine.step()  # does nothing before an accumulation boundary
    for hook in hooks:
        hook.remove()
    return counts, held(kinds={"gradients": kept()}).total
