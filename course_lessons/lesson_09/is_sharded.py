"""`is_sharded` of lesson 09: a test that distinguishes sharded optimizers from others.

The answer is tried on many boxes. Some are sharded, some are unsharded, and some train wrongly, but
all losses fall. The boxes that it wrongly accepts reveal the missing checks.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, fresh_seed
from course_classroom.judge.words import Page
from course_lessons.lesson_09.each import value_of
from course_lib.collectives import all_gather, all_reduce
from course_lib.collectives.call import Group
from course_lib.layout import flat

SAYS = Page(__file__, "is_sharded")
# The entry if a box of a kind wrongly passes. The first match counts, so the most general is first.
PASSED = {
    "replicas": "replicated states pass",
    "one shard": "wrong training passes",
    "own rows": "agreement taken for training",
    "never gathered": "never gathered",
    "forgets": "only one step checked",
    "parameters averaged": "parameters averaged",
    "whole on the others": "one rank asked",
    "all on the last": "the sum of all ranks",
    "views of the whole": "numel believed",
    "above": "more than two thirds pass",
    "whole later": "counted too early",
    "idle": "not all weights compared",
    "exchanged": "sums compared",
    "rounded": "loose comparison",
    "one rank old": "one rank compared",
}
REFUSED = {
    "uneven": "uneven shards refused",
    "owners": "owners refused",
    "two thirds": "owners refused",
    "momentum": "different optimizer refused",
    "even": "ZeRO-1 rejected",
}
# Kinds for two ranks; three ranks test all kinds.
OF_TWO = (*REFUSED, "replicas", "all on the last", "own rows", "never gathered", "forgets")
IN, WIDE, OUT, ROWS = 3, 5, 2, 7
IDLE = slice(20, 24)  # in the flat buffer: no other gradient depends on these elements
NUMBERS = 41  # parameters of a net without spare ones
SPARE = 1  # so that three divides them
# Elements of the rank with most: below two thirds of the states' bytes, exactly that, and above.
LARGEST = {"owners": 26, "two thirds": (NUMBERS + SPARE) * 2 // 3, "above": 29}


class Net(nn.Module):
    """A network of two layers, whose number of parameters neither 2 nor 3 divides.

    `idle` does not affect the loss, so its gradient is zero and only AdamW's decay changes it.
    """

    def __init__(self, seed: int, spare: int = 0):
        super().__init__()
        made = torch.Generator().manual_seed(seed)
        shapes = {"up": (WIDE, IN), "bias": (WIDE,), "idle": (4,), "down": (OUT, WIDE)}
        for name, shape in {**shapes, "last": (OUT,), "scale": (WIDE + spare,)}.items():
            value = torch.randn(shape, generator=made, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:  # (b, IN) -> (b, OUT)
        hidden = torch.tanh(F.linear(x, self.up, self.bias)) * self.scale[:WIDE]
        more = 0.1 * self.scale.sin().sum() + 0.0 * self.idle.sum()
        return F.linear(hidden, self.down, self.last) + more


class Box:
    """A model that all ranks of a group train together.

    `model` and `optimizer` are torch objects. `train(step)` takes a step with this rank's rows,
    which are `rows(step, rank)`. The loss is `loss(model, x, y)`, a mean over equally many rows on
    each rank. One process would use the optimizer `whole(parameters)`.
    """

    def __init__(self, kind: str, seed: int, group: Group):
        self._kind, self._seed, self._group, self._taken = kind, seed, group, 0
        n, rank = group.size(), group.rank()
        self.model = Net(
            seed, spare=SPARE if kind == "two thirds" else -NUMBERS % n * (kind == "even")
        )
        parameters = list(self.model.parameters())
        sizes = [p.numel() for p in parameters]
        total = sum(sizes)
        cut = flat(total, n)
        self._flat = torch.zeros(cut.padded, dtype=torch.float64)
        for p, place in zip(parameters, self._flat[:total].split(sizes), strict=True):
            p.data = place.view(p.shape).copy_(p.detach())
        edge = total - LARGEST.get(kind, 0)  # the last has most, and the middle one nothing
        owned = ((0, edge), *[(edge, edge)] * (n - 2), (edge, total))[rank]
        everything, nothing = (0, total), (0, 0)
        self._own = {
            "replicas": everything,
            "parameters averaged": everything,
            "whole on the others": everything if rank else cut.span(0),
            "all on the last": everything if rank == n - 1 else nothing,
            "one shard": cut.span(0),
            **dict.fromkeys(LARGEST, owned),
        }.get(kind, cut.span(rank))
        start, stop = self._own
        count = {"replicas": 2, "two thirds": 4}.get(kind, 1)  # each part also has a step counter
        edges = [start + (stop - start) * i // count for i in range(count + 1)]
        self._parts = [(nn.Parameter(self._flat[a:b]), a, b) for a, b in itertools.pairwise(edges)]
        self.optimizer = self.whole([{"params": [part]} for part, _, _ in self._parts])

    def whole(self, parameters: list) -> torch.optim.Optimizer:
        """Return the optimizer that one process would use for all parameters."""
        if self._kind == "momentum":
            return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        return torch.optim.AdamW(parameters, lr=0.05)

    def rows(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return a rank's data for a step: x (ROWS, IN) and y (ROWS, OUT)."""
        made = torch.Generator().manual_seed(self._seed * 97 + 13 * step + rank)
        x = torch.randn(ROWS, IN, generator=made, dtype=torch.float64)
        return x, torch.stack((x.sum(1), x[:, 0] * x[:, 1]), 1)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - y).square().mean()

    def train(self, step: int) -> None:
        """Take one step; every rank of the group must call this."""
        n, rank, kind = self._group.size(), self._group.rank(), self._kind
        self.model.zero_grad()
        self.loss(self.model, *self.rows(step, rank)).backward()
        mean = torch.zeros_like(self._flat)
        grads = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        mean[: len(grads)] = grads
        self.model.zero_grad()
        if kind not in ("own rows", "parameters averaged"):
            mean = all_reduce(mean, self._group) / n  # traffic is not judged here
        if kind == "forgets":
            self.optimizer.state.clear()
        with torch.no_grad():
            before = self._flat.clone()
            for part, start, stop in self._parts:
                part.grad = mean[start:stop].clone()
            self.optimizer.step()
            for part, _, _ in self._parts:
                part.grad = None
            if kind == "views of the whole" or (kind == "whole later" and self._taken):
                self._hide()
            if kind == "idle":
                self._flat.copy_(torch.where(mean == 0, before, self._flat))
            self._taken += 1
            self._share(n, rank)
            if kind == "exchanged" and self._taken == 1:
                self._flat[IDLE] = self._flat[IDLE].flip(0)

    def _share(self, n: int, rank: int) -> None:
        """Give every rank the parameters that the other ranks have updated."""
        if self._kind in ("replicas", "never gathered", "one shard"):
            return
        if self._kind == "parameters averaged":
            self._flat.copy_(all_reduce(self._flat, self._group) / n)
            return
        spans = all_gather(torch.tensor(self._own)[None], self._group).tolist()
        flats = all_gather(self._flat[None].clone(), self._group)  # (n, padded)
        every = self._flat.clone()
        for (start, stop), values in zip(spans, flats, strict=True):
            every[start:stop] = values[start:stop]  # the last rank that updates an element counts
        if self._kind == "rounded":
            every[IDLE] = every[IDLE].float().double()
        if self._kind == "one rank old" and rank == n - 1:
            every[IDLE] = self._flat[IDLE]
        self._flat.copy_(every)

    def _hide(self) -> None:
        """Make each moment a view of storage as large as all parameters."""
        for state in self.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if state[name].untyped_storage().nbytes() < self._flat.numel() * 8:
                    room = torch.zeros_like(self._flat)[slice(*self._own)]
                    state[name] = room.copy_(state[name])


def ask(function: Callable, group: Group, seed: int, kinds: list[str]) -> dict:
    """Return the answer's verdict on each box."""
    verdicts = {}
    for number, kind in enumerate(kinds):
        box = Box(kind, seed + number, group)
        out, _ = bench.watched(lambda box=box: function(box, group))
        verdict = value_of(out)
        verdicts[kind] = verdict if isinstance(verdict, bool) else bench.kind(out)
    return verdicts


def judge_it(answer: Answer, judge: Judge) -> None:
    """Test all boxes on three ranks, and some boxes on two ranks, in random order."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    for members, asked in ((THREE, (*REFUSED, *PASSED)), (TWO, OF_TWO)):
        kinds = random.Random(seed).sample(asked, len(asked))
        when, reports = on(members), [{} for _ in members]
        for some in (kinds[::2], kinds[1::2]):  # all in one trial take too long on a slow machine
            more = judge.trial(answer, ask, seed, some, members=members, when=when)
            reports = [report | new for report, new in zip(reports, more, strict=True)]
        look(reports, when)


def look(reports: list[dict], when: str) -> None:
    verdicts = {kind: [report[kind] for report in reports] for kind in reports[0]}
    wrong = [kind for kind, said in verdicts.items() if set(said) != {kind in REFUSED}]
    if not wrong:
        return
    looks = {
        "nothing returned": lambda r: r["got"] == "NoneType",
        "no verdict": lambda r: not isinstance(r["got"], bool),
    }
    for said in verdicts.values():
        SAYS.refuse_each([{"got": got} for got in said], looks, when=when)
    all_said = {verdict for said in verdicts.values() for verdict in said}
    SAYS.refuse({"always true": all_said == {True}, "always false": all_said == {False}}, when=when)
    agreed = [kind for kind in wrong if len(set(verdicts[kind])) == 1]
    for kind, entry in (PASSED | REFUSED).items():
        if kind in agreed:
            passed = kind in PASSED
            what = "accepts an unsharded optimizer" if passed else "rejects a sharded optimizer"
            name, text = SAYS.of(entry)
            raise Finding(name, f"Your test {what}, {when}. {text}")
    raise SAYS("ranks disagree", divided=len(wrong), count=len(verdicts), when=when)


PROOF = Exercise(judge=judge_it, **SAYS.about)
