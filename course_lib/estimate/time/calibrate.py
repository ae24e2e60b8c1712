"""Measures this machine: as many processes as it has cores, one thread each, every probe in turn.

A product, a small model's step, and messages are timed. Figures come of it, none of them fitted:
what products reach, what the rest of a step moves, and α and β of a sum and of its halves, each
while as many ranks work as there are cores. Of several turns the median counts. Lesson 15.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from course_lib import collectives, ranks
from course_lib.estimate.shape import shape_of
from course_lib.estimate.time.machine import Link, Machine, Rate
from course_lib.estimate.time.work import passes, update_bytes
from course_lib.gpt import GPT, Config
from course_lib.ledger import forms
from course_lib.step.losses import loss_sum

TURNS = 9
LIMIT = 300.0  # seconds for all of it
SECONDS = "seconds.json"  # what the first rank leaves
MOST_RANKS = 8  # processes: what more cores than that have in common with as many is enough
CONFIG = Config.gpt2(vocabulary=1024, length=64, hidden=192, layers=2, heads=4)
LAYERS, TOKENS = 2, 512  # of the model whose step is timed
MOST = 2e11  # flops of that step: some seconds of a core
TIMES = 8  # how often a product, and a message, is made
SMALL, LARGE = 1 << 10, 1 << 20  # elements of a message


def calibrate(world: int = 0, *, like: Config | None = None, turns: int = TURNS) -> Machine:
    """This machine's processors as ranks of one thread each; `world` processes measure, 0 for one
    a core, with the widths of the model that it is to be `like`. Takes some seconds; other programs
    that run meanwhile are measured along."""
    if not hasattr(os, "fork"):
        raise ValueError("--calibrate needs Linux or macOS: ranks are processes here")
    cores = cores_here()
    world = world or max(2, min(MOST_RANKS, cores))
    with tempfile.TemporaryDirectory(prefix="course-calibrate-") as folder:
        started = mp.spawn(_rank, (world, like, folder, turns), world, join=False, daemon=True)
        end = time.monotonic() + LIMIT
        try:
            while not started.join(max(0.0, end - time.monotonic())):
                if time.monotonic() > end:
                    raise TimeoutError(f"it is not done after {LIMIT:.0f} s")
        except (mp.ProcessRaisedException, mp.ProcessExitedException, TimeoutError) as error:
            raise ValueError(
                f"a process that measures this machine failed: {error}; or name a machine with "
                "--machine"
            ) from error
        finally:
            for process in started.processes:
                process.kill()
        seconds = json.loads((Path(folder) / SECONDS).read_text())
    return machine(seconds, world, cores, memory_here() // cores, like)


def cores_here() -> int:
    """That this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_here() -> int:
    """Bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rank(rank: int, world: int, like: Config | None, folder: str, turns: int) -> None:
    # Before CUDA is asked for anything: this measures processors, and a GPU would be claimed.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    ranks.start(rank, world, rendezvous=Path(folder) / "rendezvous", timeout=120, backend="gloo")
    try:
        every = probes(world, like)
        took = [[timed(probe) for probe in every] for _ in range(turns + 1)]
        del took[0]  # the first turn loads libraries
        if rank == 0:
            medians = map(statistics.median, zip(*took, strict=True))
            found = {probe.name: median for probe, median in zip(every, medians, strict=True)}
            (Path(folder) / SECONDS).write_text(json.dumps(found))
    finally:
        ranks.stop()


# ---- what is timed
def sample(config: Config | None) -> tuple[Config, int]:
    """(what is timed of a model: two layers in its own widths; rows), or of a small one where two
    such layers take a core too long."""
    if config is not None:
        layers, length = min(LAYERS, config.layers), min(config.length, TOKENS)
        few = config.changed(layers=layers, length=length, dropout=0.0, recompute=False)
        if passes(few, TOKENS // length, length).flops <= MOST:
            return few, TOKENS // length
    return CONFIG, TOKENS // CONFIG.length


class Probe(NamedTuple):
    """`run` is timed: by the first `ranks` at once, while the others sleep."""

    name: str
    run: Callable[[], object]
    ranks: int


def probes(together: int, like: Config | None = None) -> list[Probe]:
    """For one rank alone and for as many `together`, with the widths of the model that it is to be
    `like`; all ranks of the default group call this."""
    config, rows = sample(like)
    step = _step(config, rows)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows * config.length, config.hidden, generator=generator)
    w = torch.randn(config.inner, config.hidden, generator=generator)
    product, found = partial(F.linear, x, w), []
    for when, count in (("alone", 1), ("together", together)):
        found.append(Probe(f"product, {when}", _times(product), count))
        found.append(Probe(f"step, {when}", step, count))
    if together > 1:
        group = dist.new_group(list(range(together)))
        for size, numel in (("small", SMALL), ("large", LARGE)):
            whole, part = (torch.zeros(numel // together * n) for n in (together, 1))
            halves = (
                partial(collectives.reduce_scatter, whole, group),
                partial(collectives.all_gather, part, group),
            )
            total = (partial(collectives.all_reduce, whole, group),)
            for name, messages in (("sum", total), ("halves", halves)):
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
    host = {"host": moved, "host_moved": moved * cores, "host_memory": memory * cores}
    host |= {"cores": cores, "overlaps": False, "precision": "float32", "halves": halves}
    source, rates = "measured by course_lib.estimate.time.calibrate", tuple(rates)
    return Machine("this machine", cores, memory, rates, inside, **host, source=source)


def _link(seconds: Mapping[str, float], name: str, world: int) -> Link:
    """α and β from a small message and a large one, one after the other: a sum, or a scatter and a
    gather. In a step each comes after work, and the ranks do not come to it together: what a small
    message takes longer between products is its wait."""
    small, large = (seconds[f"{name}, {size}"] / TIMES for size in ("small", "large"))
    rounds = 2 if name == "sum" else 1
    sent = [rounds * forms.all_gather(world, 4 * (size // world)) for size in (SMALL, LARGE)]
    beta = max(large - small, 1e-9) / (sent[1] - sent[0])
    alpha = max(0.0, small - beta * sent[0]) / (rounds * (world - 1))
    between = (seconds[f"{name}, after work"] - seconds["product, together"]) / TIMES
    return Link(1 / beta, min(alpha, 0.5), min(max(0.0, between - small), 0.5))


def _rate(seconds: Mapping[str, float], when: str, ranks: int, config: Config, rows: int) -> Rate:
    """Products' rate, and with it how fast the rest of the step went through its bytes."""
    product = TIMES * 2 * rows * config.length * config.hidden * config.inner
    work, params = passes(config, rows, config.length), shape_of(config).params
    moved = work.forward.moved + work.backward.moved
    moved += update_bytes(params, width=4, master=False)
    took = seconds[f"step, {when}"]
    left = took - work.flops / product * seconds[f"product, {when}"]
    # A product of its own may be slower than those of a step: what is left is a tenth at least.
    left = max(left, 0.1 * took)
    return Rate(ranks, work.flops / (took - left), moved / left)


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
