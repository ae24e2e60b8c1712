"""Common parts of lesson 12's trials: a small GPT, an engine, and the measured memory of a step on
the rank that needs most."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

from course_lib import zero
from course_lib.collectives import all_reduce
from course_lib.estimate import states
from course_lib.gpt import GPT, Config
from course_lib.memory import budget
from course_lib.zero import Engine

LENGTH = 10
BOTH = {"optimizer": "cpu", "parameters": "cpu"}


def config_of(seed: int, **keys) -> Config:
    """Return a config with indivisible sizes that depend on the seed."""
    sizes = {"vocabulary": 29 + seed % 5, "hidden": 16 + 8 * (seed % 2), "inner": 43 + seed % 7}
    return Config.llama(length=LENGTH, layers=1, heads=4, kv_heads=2, **{**sizes, **keys})


def warm() -> None:
    states(config_of(0), stage=1, n=2)


def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))


def engine_of(config: Config, mesh: DeviceMesh, **settings) -> Engine:
    torch.manual_seed(1)
    model = GPT(config)
    adamw = torch.optim.AdamW(model.parameters(), lr=0.003, foreach=False)
    if settings["stage"] == 3:
        settings["persist"] = 0
    return zero.engine(model, adamw, mesh=mesh, check=False, **settings)


def backward(engine: Engine, config: Config, step: int, rows: int) -> None:
    made = torch.Generator().manual_seed(step)
    ids = torch.randint(config.vocabulary, (rows, LENGTH + 1), generator=made)
    logits = engine(ids[:, :-1]).flatten(0, 1)
    engine.backward(F.cross_entropy(logits, ids[:, 1:].flatten()))


def step_needs(config: Config, mesh: DeviceMesh, rows: int, accumulate: int, **settings) -> int:
    """Measure a step's peak device bytes, all included, on the rank with the highest peak."""
    with engine_of(config, mesh, accumulate=accumulate, **settings) as engine:
        for step in range(2):  # the first one creates the optimizer's states
            here = zero.holdings(engine)["device"]
            with budget(from_now=True) as inner:
                for micro in range(accumulate):
                    backward(engine, config, 10 * step + micro, rows)
                    engine.step()
                most = here + inner.most("device")
    return int(all_reduce(torch.tensor(most), mesh.get_group(), "max"))
