"""The whole library on shapes: no tensor of it is left on another device than it will meet.

On a CPU nothing else would say so. What is left there is refused where it meets another.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import dry, norms, ranks, step, zero
from course_lib.gpt import GPT, Config
from course_lib.ledger.torch_calls import LightMode
from course_lib.memory.storages import plain_tensors
from course_lib.pretrained.load import materialize
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from tests.course_lib.dry.parts import LARGE, shapes
from tests.course_lib.train.test_layouts import LAYOUTS, MORE

META = torch.device("meta")


class Astray(RuntimeError):
    """A tensor on the CPU meets one on meta."""


class OneDevice(LightMode):
    """Within it, no operation takes a tensor with dims on the CPU beside one on meta: most refuse
    it by themselves, `copy_` takes it without a word."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = list(plain_tensors((args, kwargs or {})))
        for x in tensors if any(x.is_meta for x in tensors) else ():
            if not x.is_meta and x.dim():
                raise Astray(f"{func}: a tensor of shape {tuple(x.shape)} on the {x.device}")
        return func(*args, **(kwargs or {}))


DROPOUT = ["--dropout", "0.1"]
RUNS = {name: ["--tp", "2", *argv] for name, argv in (LAYOUTS | MORE).items()} | LARGE
RUNS |= {
    "0-alone": [], "1-dropout": ["--tp", "2", "--stage", "1", *DROPOUT],
    "2-sequence-dropout": ["--tp", "4", "--stage", "2", "--sequence", *DROPOUT],
    "3-llama-shared-heads": ["--tp", "4", "--stage", "3", "--family", "llama", "--kv-heads", "2"],
}  # fmt: skip
SOME = ["2-sequence-dropout", "3-llama-shared-heads", "3-wide-lent"]
RUNS_TO_MAKE = [pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in RUNS]


@pytest.mark.parametrize("name", RUNS_TO_MAKE)
def test_every_layout_of_a_run_is_on_one_device(name):
    with OneDevice():
        for rank in (0, 3):
            run = shapes(RUNS[name], 4, rank)
            assert run.differences() == [] and run.held > 0
            known = run.estimate.get("peak", run.peak)  # none for dropout in attention
            assert run.peak == pytest.approx(known, rel=0.10)


def model_of(me, mesh, config: Config, *, sequence: bool = False) -> GPT:
    with torch.device("meta"):
        model = GPT(config)
    model = parallelize(model, mesh, sequence=sequence)
    materialize(model, me.device)
    return model


def batch_of(rows: int = 3, length: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.empty(rows, length, dtype=torch.long, device=META) for _ in range(2))


GPT2 = Config.gpt2(vocabulary=47, length=12, hidden=20, layers=2, heads=4, inner=33, dropout=0.1)
LLAMA = Config.llama(vocabulary=53, length=12, hidden=24, layers=2, heads=4, kv_heads=2, inner=29)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_so_is_the_step_of_lesson_08(config, sequence):
    with dry.alone(4) as me, OneDevice():
        mesh = ranks.mesh(me, dp=2, tp=2)
        model = model_of(me, mesh, config, sequence=sequence)
        optimizer = torch.optim.AdamW(step.groups(model, 0.1), lr=0.1)
        for fused in (False, True):
            result = step.step(model, optimizer, [batch_of()] * 2, mesh, clip=1.0, fused=fused)
        assert result.tokens == 60
        pieces = step.gradient_pieces(model, mesh)
        groups = [mesh.get_group(name) for name in ("tp", "dp")]
        for p in (1.0, 2.0, math.inf):
            assert norms.norm(pieces, groups, p).is_meta
        assert all(p.is_meta and p.grad.is_meta for p in model.parameters())


def test_so_is_the_loss_in_all_its_ways():
    with dry.alone(2, 1), OneDevice():
        group = dist.group.WORLD
        states = torch.empty(6, 5, device=META, requires_grad=True)
        head = torch.empty(23, 5, device=META, requires_grad=True)
        targets = torch.empty(6, dtype=torch.long, device=META)
        for more in ({}, {"label_smoothing": 0.1}, {"ignore_index": 3}):
            for reduction in ("mean", "sum", "none"):
                how = {"vocabulary": 47, "reduction": reduction, **more}
                logits = (states @ head.t()).bfloat16() if more else states @ head.t()
                whole = cross_entropy(logits, targets, group, **how)
                fused = head_cross_entropy(states, head, targets, group, tokens_at_once=4, **how)
                (whole.sum() + fused.sum()).backward()
        assert head.grad.is_meta and states.grad.is_meta


class Told(nn.Module):
    """A model that is no GPT, with numbers that it counts."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.inner(x)).sum()


def zeros(name: str, x: torch.Tensor) -> None:
    x.zero_()


def test_so_are_data_parallelism_and_the_engines_from_outside():
    with dry.alone(3, 1) as me, OneDevice():
        mesh, x = ranks.mesh(me, dp=3, tp=1), torch.empty(4, 8, device=META)
        parallel = zero.DataParallel(Told().to(META), mesh.get_group("dp"), bucket_bytes=100)
        parallel(x).backward()
        for stage in range(4):
            model = Told().to(META)
            more = {"persist": 0, "fill": zeros} if stage == 3 else {"bucket_bytes": 100}
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            engine = zero.engine(model, optimizer, stage=stage, mesh=mesh, clip=1.0, **more)
            for _ in range(2):
                engine.backward(engine(x))
                assert engine.step()
            state = engine.state_dict(device="meta")
            with engine.gathered(model):
                assert model.inner.weight.shape == (8, 8)
            engine.load_state_dict(state)
            engine.close(whole=True)
        weights = zero.inference(Told().to(META).eval(), mesh=mesh, fill=zeros)
        assert weights(x).is_meta
