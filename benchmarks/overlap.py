"""The gain from overlapping the sum of dX with the weight's gradient: one column-parallel layer.

`course bench overlap` runs the same layer, forward and backward, once waiting for the sum before it
computes the weight's gradient, and once after. Messages, bytes and losses are equal; only the order
differs. The layer is narrow, so that its message takes a fair part of the time on one machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _ranks

WORKLOAD = {"ranks": 2, "tokens": 2048, "hidden": 1024, "outputs": 256, "dtype": "float32"}
RUNS = 61
as_text = _ranks.as_text


def measure(workload: dict | None = None, runs: int = RUNS, limit: float = _ranks.LIMIT) -> dict:
    workload = {**WORKLOAD, **(workload or {})}
    every = _ranks.run(
        workload["ranks"], __file__, "steps", limit=limit, workload=workload, runs=runs
    )
    return {
        "name": "overlap",
        "workload": {**workload, "runs": runs},
        "machine": _ranks.machine(),
        "methods": every[0],
    }


def steps(me, workload: dict, runs: int) -> list[dict]:
    from course_lib.tensor_parallel import ColumnParallelLinear

    tokens, hidden, outputs = (workload[name] for name in ("tokens", "hidden", "outputs"))
    made = torch.Generator(me.device).manual_seed(1)
    x = torch.randn(tokens, hidden, generator=made, device=me.device)

    def method(overlap: bool):
        torch.manual_seed(0)
        dense = nn.Linear(hidden, outputs, device=me.device)
        layer = ColumnParallelLinear(dense, dist.group.WORLD, overlap=overlap)

        def step() -> float:
            layer.zero_grad(set_to_none=True)
            inputs = x.clone().requires_grad_()
            loss = layer(inputs).square().mean()
            loss.backward()
            return loss.item()

        return _ranks.Method(step, holds=(layer,))

    return _ranks.compare(me, {"synchronous": method(False), "overlapped": method(True)}, runs)
