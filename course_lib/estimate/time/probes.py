"""What is timed of a machine whose ranks are processes: a product, a small model's step, messages.

Figures come of it, none of them fitted: what products reach, what the rest of a step moves, and α
and β of a sum and of its halves, each while as many ranks work as there are cores. Lesson 15.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import collectives
from course_lib.estimate.time.machine import Link, Machine, Rate
from course_lib.estimate.time.work import passes, update_bytes
from course_lib.gpt import GPT, Config
from course_lib.ledger import forms
from course_lib.step.losses import loss_sum

CONFIG = Config.gpt2(vocabulary=1024, length=64, hidden=192, layers=2, heads=4)
LAYERS, TOKENS = 2, 512  # of the model whose step is timed
MOST = 2e11  # flops of that step: some seconds of a core
TIMES = 8  # how often a product, and a message, is made
SMALL, LARGE = 1 << 10, 1 << 20  # elements of a message


def sample(config: Config | None) -> tuple[Config, int]:
    """(what is timed of a model: two layers in its own widths; rows), or of a small one where two
    such layers take a core too long."""
    if config is not None:
        few = config.changed(
            layers=min(LAYERS, config.layers), length=min(config.length, TOKENS), dropout=0.0,
            recompute=False,
        )  # fmt: skip
        rows = TOKENS // few.length
        if passes(few, rows, few.length).flops <= MOST:
            return few, rows
    return CONFIG, TOKENS // CONFIG.length


class Probe(NamedTuple):
    """`run` is timed: by the first `ranks` at once, while the others sleep."""

    name: str
    run: Callable[[], object]
    ranks: int


def probes(together: int, like: Config | None = None) -> list[Probe]:
    """For one rank alone and for as many `together`, with the widths of the model that it is to be
    `like`; all ranks of the default group call this."""
    step, product = _step(*sample(like)), _product(*sample(like))
    found = []
    for when, ranks in (("alone", 1), ("together", together)):
        found.append(Probe(f"product, {when}", _times(product), ranks))
        found.append(Probe(f"step, {when}", step, ranks))
    if together > 1:
        group = dist.new_group(list(range(together)))
        for size, numel in (("small", SMALL), ("large", LARGE)):
            for name, messages in _messages(numel // together, together, group).items():
                found.append(Probe(f"{name}, {size}", _times(*messages), together))
                if size == "small":
                    worked = _times(*messages, before=product)
                    found.append(Probe(f"{name}, after work", worked, together))
    return found


def timed(probe: Probe) -> float:
    """Seconds from when all ranks are ready to when all are done; gloo's wait sleeps meanwhile."""
    dist.all_reduce(torch.zeros(1))
    began = time.perf_counter()
    if dist.get_rank() < probe.ranks:
        probe.run()
    dist.all_reduce(torch.zeros(1))
    return time.perf_counter() - began


def machine(
    seconds: Mapping[str, float], world: int, cores: int, memory: int, like: Config | None = None
) -> Machine:
    """What the probes' seconds say of a machine on which `world` ranks were at work."""
    rates = [_rate(seconds, "alone", 1, *sample(like))]
    inside, halves = Link(1e12), None
    if world > 1:
        rates.append(_rate(seconds, "together", world, *sample(like)))
        inside, halves = (_link(seconds, name, world) for name in ("sum", "halves"))
    moved = rates[-1].moved
    return Machine(
        "this machine", cores, memory, tuple(rates), inside, host=moved, host_moved=moved * cores,
        host_memory=memory * cores, cores=cores, overlaps=False, precision="float32",
        source="measured by course_lib.estimate.time.calibrate", halves=halves,
    )  # fmt: skip


def _link(seconds: Mapping[str, float], name: str, world: int) -> Link:
    """α and β from a small message and a large one, one after the other: a sum, or a scatter and a
    gather. In a step each comes after work, and the ranks do not come to it together: what a small
    message takes longer between products is its wait."""
    small, large = (seconds[f"{name}, {size}"] / TIMES for size in ("small", "large"))
    verb, rounds = (forms.all_reduce, 2) if name == "sum" else (_half, 1)
    sent = [verb(world, 4 * (size // world * world)) for size in (SMALL, LARGE)]
    beta = max(large - small, 1e-9) / (sent[1] - sent[0])
    alpha = max(0.0, small - beta * sent[0]) / (rounds * (world - 1))
    between = (seconds[f"{name}, after work"] - seconds["product, together"]) / TIMES
    return Link(1 / beta, min(alpha, 0.5), min(max(0.0, between - small), 0.5))


def _half(world: int, nbytes: int) -> float:
    return forms.all_gather(world, nbytes // world)


def _rate(seconds: Mapping[str, float], when: str, ranks: int, config: Config, rows: int) -> Rate:
    """Products' rate, and with it how fast the rest of the step went through its bytes."""
    flops = TIMES * 2 * rows * config.length * config.hidden * config.inner
    flops = flops / seconds[f"product, {when}"]
    work = passes(config, rows, config.length)
    params = sum(p.numel() for p in GPT(config).parameters())
    moved = work.forward.moved + work.backward.moved
    moved += update_bytes(params, width=4, master=False)
    took = seconds[f"step, {when}"]
    left = took - work.flops / flops
    # A product of its own may be slower than those of a step: what is left is a tenth at least.
    left = max(left, 0.1 * took)
    return Rate(ranks, work.flops / (took - left), moved / left)


def _product(config: Config, rows: int) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows * config.length, config.hidden, generator=generator)
    w = torch.randn(config.inner, config.hidden, generator=generator)

    return lambda: F.linear(x, w)


def _step(config: Config, rows: int) -> Callable[[], None]:
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocabulary, (rows, config.length + 1), generator=generator)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        (loss_sum(model, ids[:, :-1], ids[:, 1:]) / (rows * config.length)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _times(
    *calls: Callable[[], object], before: Callable[[], object] | None = None
) -> Callable[[], None]:
    """`TIMES` calls, of each in turn."""

    def several() -> None:
        for i in range(TIMES):
            if before is not None:
                before()
            calls[i % len(calls)]()

    return several


def _messages(
    own: int, ranks: int, group: dist.ProcessGroup
) -> dict[str, tuple[Callable[[], object], ...]]:
    """Of `own` elements for each of the ranks; a rank outside the group has them too."""
    x, part = torch.zeros(own * ranks), torch.zeros(own)
    return {
        "sum": (lambda: collectives.all_reduce(x, group),),
        "halves": (
            lambda: collectives.reduce_scatter(x, group),
            lambda: collectives.all_gather(part, group),
        ),
    }
