"""Random trainings with disturbances, each beside one process.

Between, before and after the calls of a step: evaluation, loading, gathering, a backward that is
dropped, an exception, a step that is begun anew; with frozen and unused parts, recomputed and
compiled blocks, at every stage and offload. The numbers stay those of one process.
"""

from __future__ import annotations

import contextlib
import copy
import random

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import ranks, zero
from tests.course_lib.zero.parts import OPTIMIZERS, close, made, match, randomized

SEEDS = 300
OFTEN = 8  # of them in a normal run


class Net(nn.Module):
    """Uneven, with a part that nobody calls, a buffer, and blocks that may be recomputed."""

    def __init__(self, chosen: random.Random):
        super().__init__()
        wide = chosen.choice((3, 7, 8))
        self.recomputed = chosen.random() < 0.25
        self.first = nn.Linear(5, wide, bias=chosen.random() < 0.8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, wide), nn.Tanh())
            for _ in range(chosen.randint(1, 3))
        )
        self.never = nn.Linear(2, 3)
        self.last = nn.Linear(wide, 3)
        if chosen.random() < 0.3:
            self.blocks[0].requires_grad_(False)
        if chosen.random() < 0.3:
            self.first.weight.requires_grad_(False)

    def forward(self, x, fail=False):
        x = self.first(x)
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.recomputed else block(x))
        if fail:
            raise KeyError("a forward that breaks off")
        return self.last(x)


def options_of(chosen: random.Random, folder) -> dict:
    """How an engine is to be: its stage, its offload and its knobs."""
    stage = chosen.choice((0, 1, 2, 3, 3))
    options = {"stage": stage, "accumulate": chosen.choice((1, 1, 2, 3))}
    options["clip"] = chosen.choice((None, None, 0.05))
    files = {"optimizer": "nvme", "folder": folder}
    if stage == 3:
        options["persist"] = chosen.choice((0, 60, 1 << 20))
        options["prefetch"] = chosen.choice((0, 1, 2))
        options["keep"] = chosen.choice((0, 1 << 30))
        places = [None, None, "cpu", {"optimizer": "cpu", "parameters": "cpu"}]
        places += [files, {**files, "parameters": "nvme"}]
        options["offload"] = chosen.choice(places)
    else:
        options["bucket_bytes"] = chosen.choice((300, 1 << 20))
        options["offload"] = chosen.choice((None, "cpu", files)) if stage else None
    return options


class Run:
    """An engine and a plain model that are treated alike."""

    def __init__(self, me, seed: int, folder):
        self.me, self.seed = me, seed
        chosen = self.chosen = random.Random(seed)
        self.model = randomized(Net(random.Random(seed)), seed).double()
        self.plain = copy.deepcopy(self.model)
        self.tokens = chosen.random() < 0.3
        options = options_of(chosen, folder)
        make = OPTIMIZERS[chosen.choice(sorted(OPTIMIZERS))]
        self.optimizer = make([p for p in self.plain.parameters() if p.requires_grad])
        own = make([p for p in self.model.parameters() if p.requires_grad])
        mesh = ranks.mesh(me, dp=me.world, tp=1)
        self.engine = zero.engine(self.model, own, mesh=mesh, **options)
        self.k, self.clip = options["accumulate"], options["clip"]
        if chosen.random() < 0.1:
            for block in self.model.blocks:
                block.compile(backend="aot_eager")
        self.said = f"seed {seed}, {options}"
        self.kept: list[tuple[dict, dict]] = []  # what was taken, and what it was then

    def loss(self, model, step, rank, micro, **keys):
        rows = (rank + micro) % 3 if self.tokens else 4
        x = made((self.seed, step, rank, micro), rows, 5).double()
        each = model(x, **keys).square().sum(1)
        return (each.sum() if self.tokens else each.mean()), rows

    def all_micros(self, step: int) -> None:
        """One process's gradients of a whole step."""
        self.optimizer.zero_grad()
        tokens = 0
        for micro in range(self.k):
            for rank in range(self.me.world):
                loss, rows = self.loss(self.plain, step, rank, micro)
                tokens += rows
                (loss if self.tokens else loss / (self.me.world * self.k)).backward()
        trained = [p for p in self.plain.parameters() if p.grad is not None]
        if self.tokens:
            for p in trained:
                p.grad.div_(max(tokens, 1))
        if self.clip is not None:
            nn.utils.clip_grad_norm_(trained, self.clip)

    # ---- disturbances
    def evaluate(self) -> None:
        context = self.chosen.choice((torch.no_grad, torch.inference_mode))
        x = made((self.seed, "eval"), 2, 5).double()
        with context():
            close(f"{self.said}: evaluation", self.engine(x).clone(), self.plain(x).clone(), 1e-9)

    def forward_alone(self) -> None:
        self.engine(made((self.seed, "alone"), 2, 5).double())

    def whole(self) -> contextlib.AbstractContextManager:
        at_3 = self.engine.stage == 3
        return self.engine.gathered(self.model) if at_3 else contextlib.nullcontext()

    def look(self) -> None:
        with self.whole():
            state = self.model.state_dict()
            state = state if self.engine.stage == 3 else copy.deepcopy(state)
            self.kept.append((state, copy.deepcopy(self.plain.state_dict())))

    def load(self) -> None:
        fresh = randomized(Net(random.Random(self.seed)), (self.seed, self.chosen.random()))
        state = fresh.double().state_dict()
        how = self.chosen.choice(("engine", "model", "data"))
        if how == "engine":
            self.engine.load_state_dict(state)
        else:
            with self.whole():
                if how == "model":
                    self.model.load_state_dict(state)
                else:
                    for name, p in self.model.named_parameters():
                        p.data = state[name].clone()
        self.plain.load_state_dict(state)

    def fail_in_forward(self) -> None:
        with contextlib.suppress(KeyError):
            self.loss(self.engine, 99, self.me.rank, 0, fail=True)

    def fail_in_block(self) -> None:
        with contextlib.suppress(KeyError), self.whole():
            raise KeyError("inside gathered")

    def drop(self) -> None:
        """A backward past the engine, and the way on."""
        self.loss(self.engine, 98, self.me.rank, 0)[0].backward()
        self.engine.zero_grad()

    def disturb(self, *more: str) -> None:
        calls = ("evaluate", "forward_alone", "look", "fail_in_forward", "fail_in_block", *more)
        for _ in range(self.chosen.choice((0, 0, 1, 2))):
            getattr(self, self.chosen.choice(calls))()

    def step(self, step: int) -> None:
        again = self.chosen.random() < 0.2  # begun, dropped and begun anew
        stops = self.chosen.randrange(self.k) if again else None
        self.disturb("load", "drop")
        for turn in range(2 if again else 1):
            for micro in range(self.k):
                loss, rows = self.loss(self.engine, step, self.me.rank, micro)
                self.disturb()
                self.engine.backward(loss, tokens=rows if self.tokens else None)
                if turn == 0 and micro == stops:
                    self.engine.zero_grad()
                    break
                if micro == self.k - 1:
                    self.all_micros(step)
                    self.disturb()
                    self.optimizer.step()
                assert self.engine.step() == (micro == self.k - 1)
        self.disturb()


def disturbed(me, seeds, folder):
    for seed in seeds:
        own = folder / str(seed)
        if me.rank == 0:
            own.mkdir(exist_ok=True)
        torch.distributed.barrier()
        run = Run(me, seed, own)
        for step in range(3):
            run.step(step)
        match(run.said, run.engine, run.plain, 1e-9)
        run.engine.close()
        for taken, then in run.kept:
            for name, x in then.items():
                close(f"{run.said}: taken, {name}", taken[name], x, 1e-9)
        after = run.engine.state_dict()
        for name, x in run.plain.state_dict().items():
            close(f"{run.said}: after the end, {name}", after[name], x, 1e-9)


def lots(count: int, of: int) -> list[tuple[int, range]]:
    """(world, seeds): worlds 2 and 3 by turns, and 1 now and then."""
    return [(2 + i % 2 if i % 6 else 1, range(i * of, (i + 1) * of)) for i in range(count // of)]


@pytest.mark.parametrize(("world", "seeds"), lots(OFTEN, 4))
def test_disturbed_trainings_are_those_of_one_process(pool, world, seeds, tmp_path):
    pool.run(world, disturbed, list(seeds), tmp_path, timeout=90)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "seeds"), lots(SEEDS, 10))
def test_300_disturbed_trainings(pool, world, seeds, tmp_path):
    pool.run(world, disturbed, list(seeds), tmp_path, timeout=280)
