"""What it is worth to send the sum of dX under the weight's gradient: one layer cut by columns.

`course bench overlap`: the same layer, forward and backward, once waiting for the sum before the
gradient of the weight is computed, once after. Messages, bytes and losses are equal; only the order
differs. The layer is narrow, so that its message is a fair part of its time on one machine too.
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
