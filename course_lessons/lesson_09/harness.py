"""The memory of a stage-0 or stage-1 engine on a rank, by kind, exact to the byte.

Lesson 09 measures its model with `bytes_of`, and groups of extra ranks with `bytes_by_stage`.
"""

from __future__ import annotations

import torch
from torch import nn

from course_lib import ranks, zero
from course_lib.memory import held

STATES = ("parameters", "gradients", "master weights", "moments")
BETWEEN, ALIVE = "between steps", "gradients alive"


def bytes_of(engine: zero.Engine) -> dict[str, int]:
    """Count this rank's bytes by kind; a storage counts once, under its first kind."""
    parts = [part for _, part in engine.shards.parts()]
    states = list(engine.optimizer.state.values())
    master = parts if engine.precision.master else []
    kinds = {
        "parameters": list(engine.model.parameters()),
        "gradients": engine.gradients.buffers,
        "master weights": [part.detach() for part in master],
        "moments": [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")],
        "step counters": [state["step"] for state in states],
        "float32 gradients": [part.grad for part in master if part.grad is not None],
    }
    found = held(kinds=kinds)
    everything = held(engine.model, engine.optimizer, kinds, engine.gradients.buffers)
    if everything.total != found.total:
        raise AssertionError(
            f"the engine holds {everything.total} bytes, but the kinds sum to {found.total}"
        )
    return {kind: found.by_kind.get(kind, 0) for kind in kinds}


def small_model(device: torch.device) -> nn.Module:
    """Return a model (rows, 40) → (rows, 60), whose 6,120 parameters 1 to 4 ranks divide."""
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 60)).to(device)


def bytes_by_stage(me: ranks.Me, precision: str = "bfloat16") -> dict[int, dict[str, dict]]:
    """Train two steps on all ranks at stages 0 and 1. Return this rank's bytes per parameter by
    kind, as `found[stage]["between steps"]` and, after a backward pass, `["gradients alive"]`."""
    mesh, found = ranks.mesh(me, dp=me.world, tp=1), {}
    for stage in (0, 1):
        model = small_model(me.device)
        optimizer = torch.optim.AdamW(model.parameters())
        engine = zero.engine(model, optimizer, stage=stage, mesh=mesh, precision=precision)
        parameters = sum(p.numel() for p in model.parameters())
        looks = {}
        for _ in range(2):
            x = torch.ones(2, 40, device=me.device, dtype=next(engine.model.parameters()).dtype)
            engine.backward(engine(x).float().square().mean())
            looks[ALIVE] = bytes_of(engine)
            engine.step()
        looks[BETWEEN] = bytes_of(engine)
        engine.close()
        found[stage] = {
            when: {kind: nbytes / parameters for kind, nbytes in kinds.items()}
            for when, kinds in looks.items()
        }
    return found
