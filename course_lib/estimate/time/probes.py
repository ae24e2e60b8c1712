"""What is timed of a machine whose ranks are processes: a product, a small model's step, sums.

Three figures come of it, none of them fitted: what products reach, what the rest of a step moves,
and α and β of a sum, each while as many ranks work as there are cores. Lesson 15.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib import collectives
from course_lib.estimate.time.machine import Link, Machine, Rate
from course_lib.estimate.time.work import passes, update_bytes
from course_lib.gpt import GPT, Config
from course_lib.ledger import forms
from course_lib.step.losses import loss_sum

CONFIG = Config.gpt2(vocabulary=1024, length=64, hidden=192, layers=2, heads=4)
ROWS = 8
TOKENS, TIMES = ROWS * CONFIG.length, 8  # of the product, and how often it is made
SMALL, LARGE = 1 << 10, 1 << 20  # elements of a sum


class Probe(NamedTuple):
    """`run` is timed: by the first `ranks` at once, while the others sleep."""

    name: str
    run: Callable[[], object]
    ranks: int


def probes(together: int) -> list[Probe]:
    """For one rank alone and for as many `together`; all ranks of the default group call this."""
    step, product = _step(), _product()
    found = []
    for when, ranks in (("alone", 1), ("together", together)):
        found += [Probe(f"product, {when}", product, ranks), Probe(f"step, {when}", step, ranks)]
    if together > 1:
        group = dist.new_group(list(range(together)))
        for name, size in (("small", SMALL), ("large", LARGE)):
            x = torch.zeros(size)
            found.append(Probe(f"sum, {name}", lambda x=x: _sums(x, group), together))
    return found


def timed(probe: Probe) -> float:
    """Seconds from when all ranks are ready to when all are done; gloo's wait sleeps meanwhile."""
    dist.all_reduce(torch.zeros(1))
    began = time.perf_counter()
    if dist.get_rank() < probe.ranks:
        probe.run()
    dist.all_reduce(torch.zeros(1))
    return time.perf_counter() - began


def machine(seconds: Mapping[str, float], world: int, cores: int, memory: int) -> Machine:
    """What the probes' seconds say of a machine on which `world` ranks were at work."""
    rates = [_rate(seconds, "alone", 1)]
    if world > 1:
        rates.append(_rate(seconds, "together", world))
    link = Link(1e12)
    if world > 1:
        small, large = (seconds[f"sum, {name}"] / TIMES for name in ("small", "large"))
        sent = [forms.all_reduce(world, 4 * size) for size in (SMALL, LARGE)]
        beta = max(large - small, 1e-9) / (sent[1] - sent[0])
        alpha = max(0.0, small - beta * sent[0]) / (2 * (world - 1))
        link = Link(1 / beta, min(alpha, 0.5))
    moved = rates[-1].moved
    return Machine(
        "this machine", cores, memory, tuple(rates), link, host=moved, host_moved=moved * cores,
        host_memory=memory * cores, cores=cores, overlaps=False, precision="float32",
        source="measured by course_lib.estimate.time.calibrate",
    )  # fmt: skip


def _rate(seconds: Mapping[str, float], when: str, ranks: int) -> Rate:
    """Products' rate, and with it how fast the rest of the step went through its bytes."""
    h, inner = CONFIG.hidden, CONFIG.inner
    flops = TIMES * 2 * TOKENS * h * inner / seconds[f"product, {when}"]
    work = passes(CONFIG, ROWS, CONFIG.length)
    params = sum(p.numel() for p in GPT(CONFIG).parameters())
    moved = work.forward.moved + work.backward.moved
    moved += update_bytes(params, width=4, master=False)
    took = seconds[f"step, {when}"]
    left = took - work.flops / flops
    # A product of its own may be slower than those of a step: what is left is a tenth at least.
    left = max(left, 0.1 * took)
    return Rate(ranks, work.flops / (took - left), moved / left)


def _product() -> Callable[[], None]:
    made = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, CONFIG.hidden, generator=made)
    w = torch.randn(CONFIG.inner, CONFIG.hidden, generator=made)

    def product() -> None:
        for _ in range(TIMES):
            F.linear(x, w)

    return product


def _step() -> Callable[[], None]:
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(CONFIG.vocabulary, (ROWS, CONFIG.length + 1), generator=made)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (loss_sum(model, ids[:, :-1], ids[:, 1:]) / TOKENS).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _sums(x: Tensor, group: dist.ProcessGroup) -> None:
    for _ in range(TIMES):
        collectives.all_reduce(x, group)
