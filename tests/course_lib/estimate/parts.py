"""What the tests of the estimates share: small models, and engines on them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from course_lib import ranks, zero
from course_lib.gpt import GPT, Config

GPT2 = Config.gpt2(vocabulary=47, length=12, hidden=20, layers=3, heads=4, inner=33)
LLAMA = Config.llama(
    vocabulary=53, length=12, hidden=24, layers=2, heads=4, kv_heads=2, inner=29, recompute=True
)
SMALL = {"bucket_bytes": 9_000}  # several buckets, none of which divides by the ranks
# Options of `course train` for a run of a few seconds.
SHORT = "--steps 2 --corpus-bytes 60000 --peak-tflops 0.01 --validate-every 0"
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.001, foreach=False),
}


def engine_of(me, config, stage, *, optimizer="adamw", mesh=None, model=None, **options):
    torch.manual_seed(7)
    model = GPT(config) if model is None else model
    mesh = ranks.mesh(me, dp=me.world, tp=1) if mesh is None else mesh
    made = OPTIMIZERS[optimizer](model.parameters())
    return zero.engine(model, made, stage=stage, mesh=mesh, **options)


def backward(me, engine, config, step, micro=0, rows=2, length=8):
    """One micro-batch, of each rank its own."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + me.rank)
    ids = torch.randint(config.vocabulary, (rows, length + 1), generator=generator)
    loss = F.cross_entropy(engine(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
    engine.backward(loss)


def step_of(me, engine, config, step, **sizes):
    for micro in range(engine.accumulate):
        backward(me, engine, config, step, micro, **sizes)
        engine.step()
