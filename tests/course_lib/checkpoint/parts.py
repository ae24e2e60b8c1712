"""What the tests of checkpoints share: a small uneven model, its engine at any layout, steps."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks, zero
from course_lib.gpt import GPT, Config
from course_lib.step import groups as parameter_groups
from course_lib.step.losses import loss_sum
from course_lib.tensor_parallel import parallelize
from tests.course_lib.tensor_parallel.parts import randomized

ROWS, LENGTH = 5, 7
SIZES = {"vocabulary": 23, "length": 9, "hidden": 24, "layers": 2, "heads": 4, "inner": 14}
FAMILIES = {
    "gpt2": Config.gpt2(**SIZES),
    "llama": Config.llama(**SIZES, kv_heads=2),
    "one-kv": Config.llama(**SIZES, kv_heads=1),
}
MESHES = {"1x1": (1, 1), "2x1": (2, 1), "1x2": (1, 2), "3x1": (3, 1), "2x2": (2, 2), "4x1": (4, 1)}
STAGES = (0, 1, 2, 3)
OFFLOADS = (None, "cpu", "nvme")


@dataclass(frozen=True)
class Layout:
    """dp × tp, a stage, an offload and a precision: all that a checkpoint must not depend on."""

    mesh: str
    stage: int
    offload: str | None = None
    precision: str = "as is"

    @property
    def world(self) -> int:
        dp, tp = MESHES[self.mesh]
        return dp * tp

    @property
    def name(self) -> str:
        return f"{self.mesh}-{self.stage}-{self.offload}-{self.precision}".replace(" ", "-")


def every_layout() -> list[Layout]:
    return [Layout(mesh, stage) for mesh, stage in itertools.product(MESHES, STAGES)]


@contextlib.contextmanager
def engine_of(
    me: ranks.Me,
    layout: Layout,
    folder: str,
    family: str = "gpt2",
    dtype=torch.float64,
    seed="start",
) -> Iterator[tuple[zero.Engine, DeviceMesh]]:
    dp, tp = MESHES[layout.mesh]
    mesh = ranks.mesh(me, dp=dp, tp=tp)
    model = randomized(GPT(FAMILIES[family]), seed).to(dtype)
    if tp > 1:
        parallelize(model, mesh)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=0.01, betas=(0.9, 0.95))
    offload: object = layout.offload
    if offload == "nvme":
        home = Path(folder) / "offload"
        home.mkdir(exist_ok=True)
        offload = {"optimizer": "nvme", "folder": home}
        if layout.stage == 3:
            offload["parameters"] = "nvme"
    with zero.engine(
        model, optimizer, stage=layout.stage, mesh=mesh, precision=layout.precision,
        offload=offload, clip=0.8,
    ) as engine:  # fmt: skip
        yield engine, mesh


def losses(engine: zero.Engine, mesh: DeviceMesh, first: int, count: int) -> list[float]:
    """The mean loss of the global batch at each of the steps; every replica has its own rows."""
    dp = mesh.get_group("dp")
    found = []
    for step in range(first, first + count):
        draw = torch.Generator().manual_seed(step)
        ids = torch.randint(0, SIZES["vocabulary"], (ROWS, LENGTH + 1), generator=draw)
        own = ids[dp.rank() :: dp.size()]
        loss = loss_sum(engine.module, own[:, :-1], own[:, 1:])
        tokens = own[:, 1:].numel()
        engine.backward(loss, tokens=tokens)
        engine.step()
        total = torch.stack((loss.detach().double(), torch.tensor(float(tokens)).double()))
        torch.distributed.all_reduce(total, group=dp)
        found.append((total[0] / total[1]).item())
    return found
