"""A measurement of this machine with one single-threaded process per core, probe by probe.

The probes time a product, a small model's step, and messages. They give figures without a fit: the
rate of products, the speed at which the rest of a step moves bytes, and α and β of an all-reduce
and of its halves, while all ranks work. Medians of several turns count. Lesson 15.
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
LIMIT = 300.0  # seconds for the full calibration
SECONDS = "seconds.json"  # the file that the first rank writes
MOST_RANKS = 8  # processes, which are enough for machines with more cores too
CONFIG = Config.gpt2(vocabulary=1024, length=64, hidden=192, layers=2, heads=4)
LAYERS, TOKENS = 2, 512  # of the model whose step is timed
MOST = 2e11  # flops of that step, which take a core some seconds
TIMES = 8  # repetitions of a product and of a message
SMALL, LARGE = 1 << 10, 1 << 20  # elements of a message


def calibrate(world: int = 0, *, like: Config | None = None, turns: int = TURNS) -> Machine:
    """Measure this machine's processors with `world` single-threaded processes (0 means one per
    core, at most 8) and the widths of the model `like`. This takes some seconds. Other programs
    that run meanwhile change the result."""
    if not hasattr(os, "fork"):
        raise ValueError("--calibrate needs Linux or macOS, because ranks are forked")
    cores = cores_here()
    world = world or max(2, min(MOST_RANKS, cores))
    with tempfile.TemporaryDirectory(prefix="course-calibrate-") as folder:
        started = mp.spawn(_rank, (world, like, folder, turns), world, join=False, daemon=True)
        end = time.monotonic() + LIMIT
        try:
            while not started.join(max(0.0, end - time.monotonic())):
                if time.monotonic() > end:
                    raise TimeoutError(f"it did not end within {LIMIT:.0f} s")
        except (mp.ProcessRaisedException, mp.ProcessExitedException, TimeoutError) as error:
            raise ValueError(
                f"a process that measures this machine failed: {error}. Name a machine with "
                "--machine instead"
            ) from error
        finally:
            for process in started.processes:
                process.kill()
        seconds = json.loads((Path(folder) / SECONDS).read_text())
    return machine(seconds, world, cores, memory_here() // cores, like)


def cores_here() -> int:
    """Count the cores that this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_here() -> int:
    """Return the bytes of the host's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _rank(rank: int, world: int, like: Config | None, folder: str, turns: int) -> None:
    # Set before CUDA is used, because this measures processors and must not claim a GPU.
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


# ---- the timed functions
def sample(config: Config | None) -> tuple[Config, int]:
    """Return (config, rows) to time: two layers with the model's own widths, or a small model if
    two such layers would take too long on one core."""
    if config is not None:
        layers, length = min(LAYERS, config.layers), min(config.length, TOKENS)
        few = config.changed(layers=layers, length=length, dropout=0.0, recompute=False)
        if passes(few, TOKENS // length, length).flops <= MOST:
            return few, TOKENS // length
    return CONFIG, TOKENS // CONFIG.length


class Probe(NamedTuple):
    """A function `run` to time. The first `ranks` ranks call it at once while the others sleep."""

    name: str
    run: Callable[[], object]
    ranks: int


def probes(together: int, like: Config | None = None) -> list[Probe]:
    """Make the probes for one rank and for `together` ranks, with the widths of the model `like`.
    All ranks of the default group must call this."""
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
    """Measure the seconds from all ranks' start to their end; idle ranks sleep in gloo's wait."""
    dist.all_reduce(torch.zeros(1))
    began = time.perf_counter()
    if dist.get_rank() < probe.ranks:
        probe.run()
    dist.all_reduce(torch.zeros(1))
    return time.perf_counter() - began


def machine(
    seconds: Mapping[str, float], world: int, cores: int, memory: int, like: Config | None = None
) -> Machine:
    """Derive a machine from the probes' seconds, measured while `world` ranks worked."""
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
    """Compute α and β from a small and a large message, of an all-reduce or of its two halves. In a
    step each message follows work, and the ranks do not arrive together. Therefore the extra time
    of a small message between products is counted as its wait."""
    small, large = (seconds[f"{name}, {size}"] / TIMES for size in ("small", "large"))
    rounds = 2 if name == "sum" else 1
    sent = [rounds * forms.all_gather(world, 4 * (size // world)) for size in (SMALL, LARGE)]
    beta = max(large - small, 1e-9) / (sent[1] - sent[0])
    alpha = max(0.0, small - beta * sent[0]) / (rounds * (world - 1))
    between = (seconds[f"{name}, after work"] - seconds["product, together"]) / TIMES
    return Link(1 / beta, min(alpha, 0.5), min(max(0.0, between - small), 0.5))


def _rate(seconds: Mapping[str, float], when: str, ranks: int, config: Config, rows: int) -> Rate:
    """Compute the products' rate, and the speed at which the rest of the step moves its bytes."""
    product = TIMES * 2 * rows * config.length * config.hidden * config.inner
    work, params = passes(config, rows, config.length), shape_of(config).params
    moved = work.forward.moved + work.backward.moved
    moved += update_bytes(params, width=4, master=False)
    took = seconds[f"step, {when}"]
    left = took - work.flops / product * seconds[f"product, {when}"]
    # A separate product may be slower than those of a step, so at least a tenth is left.
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
    """Make a function that repeats the calls `TIMES` times, in turn."""

    def several() -> None:
        for i in range(TIMES):
            if before is not None:
                before()
            calls[i % len(calls)]()

    return several
