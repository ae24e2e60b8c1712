"""What runs on the judge's ranks for `from_old_ranks`: files of other ranks, and three steps more.

The files are real ones, read by byte ranges and counted. What the answer returns is trained on.
Lesson 14.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_14.old_ranks import (
    BATCH,
    DECAY,
    KEYS,
    KINDS,
    MASTER,
    NEXT,
    STEP,
    Run,
    adam,
    corpus,
    drawn,
    files,
    loss_of,
    shard,
)
from course_lib.collectives import all_gather, all_reduce, reduce_scatter
from course_lib.collectives.call import Group

ITEM, STEPS = 8, 3
BEFORE = 2.0  # the run that is read first has each state so many times as large


class Old:
    """What the answer is given: the facts of the old run, and `read`."""

    def __init__(self, run: Run, folder: Path):
        self.world, self.step, self.samples, self.batch = run.m, run.step, run.samples, BATCH
        self.layout = run.sizes.layout(False)
        self._folder, self.ranges = folder, []
        for kind, pieces in files(run).items():
            for rank, piece in enumerate(pieces):
                piece.numpy().tofile(folder / f"{kind}-{rank}")

    def read(self, rank: int, kind: str, start: int, stop: int) -> Tensor:
        """Elements start to stop of an old rank's file."""
        path = self._folder / f"{kind}-{rank}"
        if kind not in KINDS or rank not in range(self.world):
            raise ValueError(f"there is no file {kind} of rank {rank}")
        held = path.stat().st_size // ITEM
        if not 0 <= start <= stop <= held:
            raise ValueError(f"{start} to {stop} of a file with {held} elements")
        self.ranges.append((rank, kind, start, stop))
        read = np.fromfile(path, dtype=np.float64, count=stop - start, offset=start * ITEM)
        return torch.from_numpy(read)


def run(function: Callable, group: Group, m: int, few: bool, seed: int) -> dict:
    """Two runs of the same sizes are read, one after the other; both results stay alive."""
    saved = drawn(m, group.size(), seed, few)
    layout, given = saved.sizes.layout(True), saved.sizes.layout(True)
    with tempfile.TemporaryDirectory() as folder:
        earlier = Old(saved.times(BEFORE), Path(folder))
        before, _ = bench.watched(lambda: function(earlier, saved.sizes.layout(True), group))
        kept = _values(before)
        old = Old(saved, Path(folder))
        out, facts = bench.watched(lambda: function(old, given, group))
    kind = "dict" if isinstance(out, Mapping) else type(out).__name__
    report = {"kind": kind, "lost": [], "values": {}, "sent": facts["bytes"]}
    if kind != "dict":
        return report
    report["changed"] = (given, old.layout) != (layout, saved.sizes.layout(False))
    report["shared"] = _overlap([out.get(kind) for kind in KINDS])
    report["kept"] = all(_alike(kept.get(key), value) for key, value in _values(before).items())
    report["lost"] = [key for key in KEYS if key not in out]
    report["values"] = _values(out)
    ranges = old.ranges
    cells = {(r, kind, k) for r, kind, start, stop in ranges for k in range(start, stop)}
    report["read"] = sum(stop - start for *_, start, stop in ranges)
    report["distinct"] = len(cells)
    report["losses"] = _trained(saved, layout, report["values"], group, seed)
    return report


def _values(out: object) -> dict[str, Tensor | int | float | str]:
    if not isinstance(out, Mapping):
        return {}
    return {key: _plain(out[key], key in KINDS) for key in KEYS if key in out}


def _plain(value: object, is_shard: bool) -> Tensor | int | float | str:
    if is_shard and _is_shard(value):
        return value.detach().clone()
    plain = None if is_shard else bench.number(value)
    if plain is not None:  # a whole number of any type as an int
        return int(plain) if hasattr(value, "__index__") and plain.is_integer() else plain
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    return f"a {type(value).__name__}"


def _is_shard(x: object) -> bool:
    return bench.plain(x) and x.dim() == 1 and x.dtype == torch.float64


def _alike(x: object, y: object) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.equal(x.nan_to_num(), y.nan_to_num())
    return type(x) is type(y) and x == y


def _overlap(shards: list) -> bool:
    """Whether two shards have an element of memory in common."""
    plain = [x for x in shards if _is_shard(x)]
    cells = [{x.data_ptr() + ITEM * x.stride(0) * k for k in range(len(x))} for x in plain]
    return any(mine & other for k, mine in enumerate(cells) for other in cells[:k])


def _trained(saved: Run, layout: list, values: dict, group: Group, seed: int) -> list[float]:
    """Losses of the next steps, each rank with the shard that it was given; none where one of them
    could not train."""
    n, sizes = group.size(), saved.sizes
    totals = [sum(size for _, size in each) for each in layout]
    pieces = [shard(total, n) for total in totals]
    shards = [values.get(kind) for kind in KINDS]
    fits = all(isinstance(x, Tensor) and len(x) == sum(pieces) for x in shards)
    fits = fits and all(type(values.get(key)) is int for key in (STEP, NEXT))
    if not all_reduce(torch.tensor([int(fits)]), group, "min").item():
        return []
    state = {kind: values[kind] for kind in KINDS}
    decay = torch.zeros(sum(pieces), dtype=torch.float64)
    decay[: pieces[0]] = DECAY  # the first group is the weights
    samples, losses = corpus(sizes, (saved.step + STEPS) * BATCH, seed), []
    for k in range(STEPS):
        first = values[NEXT] + k * BATCH
        own = samples[first : first + BATCH // n] if first >= 0 else samples[:0]
        leaves = _whole(state[MASTER], layout, pieces, group)
        loss = loss_of(sizes, leaves, own)
        grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        parts = []
        for each, total, piece in zip(layout, totals, pieces, strict=True):
            joined = torch.cat([grads[name] for name, _ in each]) / n
            padded = torch.nn.functional.pad(joined, (0, piece * n - total))
            parts.append(reduce_scatter(padded, group))
        state = adam(state, torch.cat(parts), values[STEP] + k + 1, decay)
        losses.append((all_reduce(loss.detach()[None], group) / n).item())
    return losses


def _whole(master: Tensor, layout: list, pieces: list[int], group: Group) -> dict[str, Tensor]:
    """Every parameter whole, by its name."""
    leaves = {}
    for each, piece in zip(layout, master.split(pieces), strict=True):
        flat, at = all_gather(piece.contiguous(), group), 0
        for name, size in each:
            leaves[name] = flat[at : at + size].clone().requires_grad_()
            at += size
    return leaves
