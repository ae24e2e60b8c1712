"""The training of a GPT-2 sharded over ranks, compared with peers: `course bench tp`.

All use the same weights, data and optimizer. The methods are the dense model on one rank (with two
threads and with one), ours (with and without sequence parallelism), Megatron-core, and torch's
DTensor (both ways). Only rank 0 makes the dense steps, while the others sleep.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _dtensor
import _each
import _megatron
import _progress
import _ranks
from torch.distributed.tensor import DTensor

from course_lib import ranks
from course_lib.gpt import GPT, Config
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.cross_entropy import cross_entropy

WORKLOAD = {
    "ranks": 2,
    "hidden": 512,
    "heads": 8,
    "layers": 6,
    "sequence": 128,
    "batch": 4,
    "vocabulary": 8192,
    "dtype": "float32",
}
RUNS = 25
BATCHES = 8
# Sums over h or the vocabulary in different orders, followed by AdamW, which makes a full step even
# from a tiny gradient. Over some tens of steps the losses drift apart by this much.
BOUNDS = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 2e-2}
as_text = _ranks.as_text


def measure(workload: dict | None = None, runs: int = RUNS, limit: float = _ranks.LIMIT) -> dict:
    workload = {**WORKLOAD, **(workload or {})}
    _ranks.check_even(workload, "hidden", "heads", "vocabulary")
    return _each.document("tp", __file__, workload, runs, limit, **_megatron.note())


def steps(
    me: ranks.Me, workload: dict, runs: int, without: Sequence[str], measured: Sequence[str]
) -> None:
    dtype, vocabulary = getattr(torch, workload["dtype"]), workload["vocabulary"]
    names = ("vocabulary", "hidden", "layers", "heads")
    config = Config.gpt2(
        **{name: workload[name] for name in names}, length=workload["sequence"], tied=False
    )
    torch.manual_seed(0)  # the same weights and tokens on every rank
    dense = GPT(config).to(me.device, dtype)
    shape = (BATCHES, workload["batch"], workload["sequence"] + 1)
    words = torch.randint(vocabulary, shape).to(me.device)
    mesh = ranks.mesh(me, dp=1, tp=me.world)
    group = mesh.get_group("tp")

    def cut(sequence: bool) -> _ranks.Method:
        model = parallelize(copy.deepcopy(dense), mesh, sequence=sequence)

        def loss(ids: Tensor, targets: Tensor) -> Tensor:
            return cross_entropy(model(ids), targets, group, vocabulary=vocabulary)

        return trained(model, words, loss)

    def whole(threads: int) -> _ranks.Method:
        model = copy.deepcopy(dense) if me.rank == 0 else nn.Linear(1, 1)

        def loss(ids: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(model(ids).flatten(0, 1).float(), targets.flatten())

        return trained(model, words, loss, threads=threads, alone=True)

    def megatron() -> _ranks.Method:
        model = _megatron.model(dense, me, dtype)
        places = torch.arange(workload["sequence"], device=me.device).expand(*shape[1:2], -1)

        def loss(ids: Tensor, targets: Tensor) -> Tensor:
            return model(ids, places, None, labels=targets).mean()

        return trained(model, words, loss)

    def dtensor(sequence: bool) -> _ranks.Method:
        model = _dtensor.cut(copy.deepcopy(dense), mesh["tp"], sequence=sequence)

        def loss(ids: Tensor, targets: Tensor) -> Tensor:
            return _dtensor.loss(model(ids).flatten(0, 1), targets.flatten(), mesh["tp"])

        return trained(model, words, loss, around=_dtensor.loss_parallel)

    makers = {
        "dense-2-threads": lambda: whole(2),
        "dense-1-thread": lambda: whole(1),
        "course_lib": lambda: cut(False),
        "course_lib-sequence": lambda: cut(True),
        "megatron-core": megatron,
        "dtensor": lambda: dtensor(False),
        "dtensor-sequence": lambda: dtensor(True),
    }
    with ExitStack() as stack:
        without = _megatron.joined(me, stack, without)
        methods = _progress.made(makers, without)
        bound = BOUNDS[workload["dtype"]]
        rows = _ranks.compare(me, methods, runs, bound=bound, main="course_lib", limit=120)
        _progress.finished(rows)


def trained(
    model: nn.Module,
    words: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    around=nullcontext,
    **how,
) -> _ranks.Method:
    """Create a step function that trains on the same few batches with fused AdamW."""
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-4, weight_decay=0.01, fused=True)
    made = 0

    def step() -> float:
        nonlocal made
        batch = words[made % len(words)]  # (b, s + 1)
        made += 1
        with around():
            value = loss(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
            value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return _ranks.Method(step, holds=(model, optimizer), **how)


def groups_of(model: nn.Module) -> Sequence[dict]:
    """Group parameters by kind, since the fused optimizer needs DTensors separate from others."""
    kinds: dict[bool, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        kinds.setdefault(isinstance(parameter, DTensor), []).append(parameter)
    return [{"params": parameters} for parameters in kinds.values()]
