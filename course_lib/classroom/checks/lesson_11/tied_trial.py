"""What runs on the judge's ranks for `tied_head`: three steps at stage 3 with the learner's head.

Beside it runs a head of the check's own, whose messages are the budget. The meter's watch counts
what is in memory and as large as the whole table. Lesson 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import zero
from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_11.meter import Meter, is_plain
from course_lib.collectives.call import Group
from course_lib.memory.watch import Watch

STEPS, RATE, BLOCKS = 3, 0.05, 2
PROMISED = "gathered only while its unit runs"  # the library's words


class Sizes(NamedTuple):
    """Of one trial; b·s is smaller than h, so that logits are smaller than the table."""

    b: int
    s: int
    v: int
    h: int


class Numbers(NamedTuple):
    table: Tensor  # (v, h)
    blocks: Tensor  # (block, h, h)
    ids: Tensor  # (step, n, b, s)
    dys: Tensor  # (step, n, b, s, v)


def numbers(sizes: Sizes, n: int, seed: int) -> Numbers:
    """The same on every rank, and on the judge."""
    made = torch.Generator().manual_seed(seed)
    b, s, v, h = sizes

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64)

    table, blocks = random(v, h) / 2, random(BLOCKS, h, h) / 2
    ids = torch.randint(v, (STEPS, n, b, s), generator=made)
    return Numbers(table, blocks, ids, random(STEPS, n, b, s, v))


class Small(nn.Module):
    """A table, some blocks, and a head that is made of the table."""

    def __init__(self, given: Numbers, head: Callable[[nn.Embedding], nn.Module]):
        super().__init__()
        self.tokens = nn.Embedding(*given.table.shape, dtype=torch.float64)
        self.blocks = nn.ModuleList(nn.Linear(*w.shape, bias=False) for w in given.blocks)
        with torch.no_grad():
            self.tokens.weight.copy_(given.table)
            for block, weight in zip(self.blocks, given.blocks, strict=True):
                block.weight = nn.Parameter(weight.clone())
        self.head = head(self.tokens)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)  # (b, s, h)
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)  # (b, s, v)


def other_tables(given: Numbers) -> list[Tensor]:
    """Of two more models, whose heads are made before this one's and after it."""
    return [given.table + k for k in (1, 2)]


def in_float64(function: Callable, tokens: nn.Embedding) -> object:
    """Parameters that the answer makes have the table's dtype, as in a model of this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return function(tokens)
    finally:
        torch.set_default_dtype(before)


def our_head(tokens: nn.Embedding) -> nn.Module:
    head = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False, device="meta")
    head.weight = tokens.weight
    return head


def run(function: Callable, group: Group, sizes: Sequence[int], seed: int) -> dict:
    given = numbers(Sizes(*sizes), group.size(), seed)
    return {**_train(function, given, group), "ours": _train(our_head, given, group)["sent"]}


def _train(function: Callable, given: Numbers, group: Group) -> dict:
    rank, least = group.rank(), given.table.numel() * given.table.element_size()
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("dp",))
    report = {"steps": [], "sent": {}, "promise": False, "parameters": 0, "whole": {}}
    others = [nn.Embedding(*given.table.shape, dtype=torch.float64) for _ in range(2)]
    for other, table in zip(others, other_tables(given), strict=True):
        other.weight = nn.Parameter(table)
    with Watch() as watch:
        made: list = []

        def head(tokens: nn.Embedding) -> nn.Module:
            # Another model's head before this one and one after it: what is kept is met again.
            for each in (others[0], tokens, others[1]):
                out, _ = bench.watched(lambda each=each: in_float64(function, each))
                made.append(out)
            return made[1] if isinstance(made[1], nn.Module) else nn.Identity()

        model = Small(given, head)
        report["same"] = torch.equal(model.tokens.weight, given.table)
        report["shared"] = made[1] is not None and any(made[1] is made[k] for k in (0, 2))
        report["kind"] = type(made[1]).__name__
        report["module"] = isinstance(made[1], nn.Module)
        if not report["module"]:
            return report
        report["parameters"] = sum(p.numel() for p in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        options = {"units": list(model.blocks), "prefetch": 0, "persist": 0}
        engine = zero.engine(model, optimizer, stage=3, mesh=mesh, **options)
        meter = Meter(watch, least)
        in_blocks = [0]

        def inside(*_) -> None:
            in_blocks.append(meter.now(0))

        hooks = [block.register_forward_hook(inside) for block in model.blocks]
        try:
            for ids, dy in zip(given.ids, given.dys, strict=True):
                report["steps"].append(_step(engine, ids[rank], dy[rank], report, meter))
        except RuntimeError as error:
            report["promise"] = PROMISED in str(error)
            if not report["promise"]:
                raise
        finally:
            for hook in hooks:
                hook.remove()
        report["whole"]["in the blocks"] = max(in_blocks)
    engine.close()
    return report


def _step(engine: zero.Engine, ids: Tensor, dy: Tensor, report: dict, meter: Meter) -> dict:
    first = not report["steps"]
    if first:
        report["whole"]["before"] = meter.now(0)
    logits, there = bench.watched(lambda: engine(ids))
    good = is_plain(logits) and logits.shape == dy.shape
    found = {**bench.described(logits), "logits": logits.detach().clone() if good else None}
    if found["logits"] is None:
        return found
    # Behind the forward the unit that ends it may stay.
    whole = meter.now(1) if len(report["steps"]) == 1 else 0
    report["whole"]["kept"] = max(report["whole"].get("kept", 0), whole)
    _, back = bench.watched(lambda: engine.backward((logits * dy).sum()))
    sent = {op: there["ops"].get(op, 0) + back["ops"].get(op, 0) for op in GATHERS}
    report["sent"] = {**sent, "bytes": there["bytes"] + back["bytes"]}  # of the last step
    engine.step()
    with engine.gathered(engine.model):
        # In halves: a copy of the whole one would be found in the next step.
        found["table"] = [half.clone() for half in engine.model.tokens.weight.detach().chunk(2)]
    return found


GATHERS = ("all_gather", "reduce_scatter")
