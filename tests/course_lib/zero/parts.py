"""What the tests of ZeRO share: a small uneven model, its training in one process, and a rank's.

The oracle is a plain model with torch's own optimizer that sees every rank's data in one process;
it knows nothing of shards. Each rank has data of its own, in every step and micro-batch.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from course_lib import ranks, zero
from tests.course_lib.tensor_parallel.parts import BOUND, close, made, randomized

__all__ = [
    *("BOUND", "Case", "Net", "close", "made", "match", "net", "randomized"),
    *("train", "trains", "zeros"),
]

IN, WIDE, OUT = 5, 7, 3


class Part(nn.Module):
    """A norm, a product and the way past them."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDE), nn.Linear(WIDE, WIDE)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(nn.Module):
    """Blocks of which a call may leave some out, and two last layers that may share a weight."""

    def __init__(self, blocks=3, tied=False):
        super().__init__()
        self.first = nn.Linear(IN, WIDE)
        self.blocks = nn.ModuleList(Part() for _ in range(blocks))
        self.never = nn.Linear(2, 2)  # nobody calls it
        self.last = nn.Linear(WIDE, OUT)
        self.back = nn.Linear(WIDE, OUT, bias=False)
        if tied:
            self.back.weight = self.last.weight

    def forward(self, x, skip=()):
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            if i not in skip:
                x = block(x)
        return self.last(x) + self.back(torch.sin(x))


def net(label="net", **options) -> Net:
    return randomized(Net(**options), label)


@dataclass(frozen=True)
class Case:
    """One way to train: what the engine is told, and what the data and the model are like."""

    stage: int = 1
    steps: int = 4
    accumulate: int = 1
    clip: float | None = None
    optimizer: str = "adamw"
    tokens: bool = False  # a sum and its count, unequal, and none at all on the last rank
    decay: bool = False  # two groups: what is decayed and what is not
    frozen: tuple[str, ...] = ()
    skips: str = ""  # which blocks are left out where: see `skipped`
    schedule: bool = False
    tied: bool = False
    dtype: torch.dtype = torch.float64
    bucket_bytes: int = 600  # several buckets, and none of them divides by the ranks
    stage3: dict = field(default_factory=dict)

    def but(self, **changes) -> Case:
        return replace(self, **changes)


# The step has to be large enough that a wrong gradient shows, Adam's in particular.
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
}


def made_for(case: Case, label="net") -> Net:
    model = net(label, tied=case.tied).to(case.dtype)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(case.frozen) if case.frozen else True)
    return model


def optimizer_of(case: Case, model: nn.Module):
    """The optimizer and, where there is one, its schedule."""
    parameters = list(model.parameters())
    if case.decay:
        wide = [p for p in parameters if p.dim() > 1]
        flat = [p for p in parameters if p.dim() == 1]
        only = [{"params": wide, "weight_decay": 0.3}, {"params": flat, "weight_decay": 0.0}]
        made = OPTIMIZERS[case.optimizer](only)
    else:
        made = OPTIMIZERS[case.optimizer](parameters)
    schedule = None
    if case.schedule:
        schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1.0, step / 3))
    return made, schedule


def skipped(case: Case, step: int, rank: int, world: int, micro: int) -> tuple[int, ...]:
    if case.skips == "one rank":  # in every step another
        return (step % 3,) if rank == step % world else ()
    if case.skips == "all ranks":
        return (1,)
    if case.skips == "one micro-batch":
        return (0,) if micro == 0 else (2,)
    if case.skips == "now and then":  # states of a block that rests for a step stay as they are
        return (1,) if step % 2 else ()
    return ()


def rows(case: Case, rank: int, world: int, micro: int) -> int:
    """How many tokens: as many everywhere, or unequal, and on the last of several ranks none."""
    if not case.tokens:
        return 4
    return 0 if rank == world - 1 > 0 else 2 + 3 * rank + micro


def loss_of(case: Case, model, step: int, rank: int, world: int, micro: int):
    """A micro-batch's loss, a mean or a sum, and its tokens."""
    n = rows(case, rank, world, micro)
    x = made((step, rank, micro, "x"), n, IN).to(case.dtype)
    y = made((step, rank, micro, "y"), n, OUT).to(case.dtype)
    off = model(x, skipped(case, step, rank, world, micro)) - y  # (n, out)
    return (off.square().sum() if case.tokens else off.square().sum(1).mean()), n


def by_one_process(case: Case, world: int):
    """The model after every rank's data, and the norms before clipping."""
    model = made_for(case)
    optimizer, schedule = optimizer_of(case, model)
    losses, norms = [], []
    for step in range(case.steps):
        optimizer.zero_grad()
        tokens = 0
        for micro in range(case.accumulate):
            for rank in range(world):
                loss, n = loss_of(case, model, step, rank, world, micro)
                tokens += n
                (loss if case.tokens else loss / (world * case.accumulate)).backward()
                losses.append(loss.detach())
        trained = [p for p in model.parameters() if p.grad is not None]
        if case.tokens:
            for p in trained:
                p.grad.div_(tokens)
        norms.append(nn.utils.clip_grad_norm_(trained, case.clip or math.inf).item())
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return model, losses, norms


def engine_of(me, case: Case, model=None, optimizer=None, mesh=None, **options):
    model = made_for(case) if model is None else model
    optimizer = optimizer_of(case, model)[0] if optimizer is None else optimizer
    if case.stage != 3:
        options.setdefault("bucket_bytes", case.bucket_bytes)
    else:
        options = {"persist": 0, **case.stage3, **options}
    return zero.engine(
        model,
        optimizer,
        stage=case.stage,
        mesh=mesh or ranks.mesh(me, dp=me.world, tp=1),
        accumulate=case.accumulate,
        clip=case.clip,
        **options,
    )


def train(me, case: Case, engine, schedule=None, steps=None):
    """The losses and norms of training with the engine."""
    if engine.precision.dtype is not None:  # what the model's layers take
        case = case.but(dtype=engine.precision.dtype)
    losses, norms = [], []
    for step in range(case.steps) if steps is None else steps:
        for micro in range(case.accumulate):
            loss, n = loss_of(case, engine, step, me.rank, me.world, micro)
            engine.backward(loss, tokens=n if case.tokens else None)
            losses.append(loss.detach())
            assert engine.step() == (micro == case.accumulate - 1)
        norms.append(engine.norm)
        if schedule is not None:
            schedule.step()
    return losses, norms


def match(label, engine, want: nn.Module, bound=BOUND):
    """Every parameter of the engine's model as the other's."""
    whole = dict(want.named_parameters())
    with engine.gathered(engine.model) if engine.stage == 3 else contextlib.nullcontext():
        for name, p in engine.model.named_parameters():
            close(f"{label}: {name}", p.data, whole[name], bound)


def same_as_one_process(me, case: Case, bound=BOUND):
    """Train both ways; the same losses, norms and weights. Returns the engine."""
    want, losses, norms = by_one_process(case, me.world)
    model = made_for(case)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer, schedule = optimizer_of(case, model)
    engine = engine_of(me, case, model, optimizer)
    mine, seen = train(me, case, engine, schedule)
    for i, loss in enumerate(mine):
        close(f"{case}: loss {i}", loss, losses[i * me.world + me.rank], bound)
    close(f"{case}: norms", torch.tensor(seen), torch.tensor(norms), max(bound, 1e-12))
    match(f"{case}", engine, want, bound)
    moved = [name for name, p in want.named_parameters() if not torch.equal(p, start[name])]
    rests = {"never.weight", "never.bias"}
    asleep = {f"blocks.1.{n}" for n in ("norm.weight", "norm.bias", "linear.weight", "linear.bias")}
    rests |= asleep if case.skips == "all ranks" else set()
    assert set(moved) == {n for n in start if not n.startswith(case.frozen or "-")} - rests
    return engine


def over_dp(me, model, optimizer, stage, **options):
    """An engine over all ranks, which keeps nothing whole at stage 3."""
    options = {"persist": 0, **options} if stage == 3 else options
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    return zero.engine(model, optimizer, stage=stage, mesh=mesh, **options)


def trains(me, make, stage, evaluate=True, wrap=lambda engine: engine, **options):
    """A module in an engine, beside one process."""
    model, plain = (randomized(make(), "module").double() for _ in range(2))
    mine, step = (torch.optim.AdamW(one.parameters(), lr=0.02) for one in (model, plain))
    engine = over_dp(me, model, mine, stage, **options)
    call = wrap(engine)
    for turn in range(3):
        step.zero_grad()
        for rank in range(me.world):
            (plain(made((turn, rank), 3, 4, 5).double()).square().mean() / me.world).backward()
        step.step()
        engine.backward(call(made((turn, me.rank), 3, 4, 5).double()).square().mean())
        engine.step()
        if evaluate:
            x = made((turn, "eval"), 2, 4, 5).double()
            engine.eval(), plain.eval()
            with torch.no_grad():
                close("evaluation", engine(x), plain(x), 1e-10)
            engine.train(), plain.train()
    match(f"{make.__name__} at stage {stage}", engine, plain, 1e-10)
    engine.close()


def zeros(x) -> bool:
    return bool((x == 0).all())
