"""What runs on the judge's ranks for `take_stock`: a model whose weights come and go, silently.

Between uses a parameter is of size 0, as under DeepSpeed's stage 3, and computing with it is no
error. When a block ends, what was whole in it is overwritten. Lesson 14.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from course_classroom.judge import bench
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group

KEYS = PLACEHOLDERS, DECAY, NUMEL, NORM = ("placeholders", "decay", "numel", "norm")
SMALL = 16  # elements: a parameter of as many at most stays whole


class Small(nn.Module):
    """A table that is a head too, two layers, a weight of three dims, a large vector, what is small
    and stays whole, also with two dims, and buffers: one without elements, one that no file gets.

    Of a vocabulary v, h hidden, f within.
    """

    def __init__(self, v: int, h: int, f: int, seed: int):
        super().__init__()
        self.tokens = nn.Embedding(v, h)
        self.up, self.down = nn.Linear(h, f), nn.Linear(f, h, bias=False)
        self.norm = nn.LayerNorm(h)
        self.temperature = nn.Parameter(torch.ones(1))
        self.shift, self.mix = nn.Parameter(torch.ones(v)), nn.Parameter(torch.ones(2, 3))
        self.mixer = nn.Conv1d(h, 2, 3)
        self.register_buffer("positions", torch.zeros(3, h))
        self.register_buffer("history", torch.zeros(0, h))
        self.register_buffer("mask", torch.zeros(3, 3), persistent=False)
        self.head = nn.Linear(h, v, bias=False, device="meta")
        self.head.weight = self.tokens.weight
        self.double()
        made = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for x in (*self.parameters(), *self.buffers()):
                if x is not self.temperature:  # it is 1., and no placeholder
                    x.copy_(torch.randn(x.shape, generator=made, dtype=torch.float64))


class Cut:
    """The large parameters of a model, cut over a group; `gathered` has some of them whole, and
    overwrites them when its block ends."""

    def __init__(self, model: nn.Module, group: Group):
        self.group, self.names = group, {p: name for name, p in model.named_parameters()}
        self.shards: dict[nn.Parameter, Tensor] = {}
        self.shapes = {p: p.shape for p in self.names}
        self.blocks: Counter = Counter()  # in which a parameter is whole now
        self.counts: Counter = Counter()  # gathers, by name
        self.most = 0  # elements that were whole at once
        for p in self.names:
            if p.numel() > SMALL:
                flat = nn.functional.pad(p.detach().flatten(), (0, -p.numel() % group.size()))
                self.shards[p] = flat.chunk(group.size())[group.rank()].clone()
                p.data = p.new_empty(0)

    @contextmanager
    def gathered(self, *what: nn.Module | Tensor) -> Iterator[None]:
        """Have these parameters whole in here; every rank of the group comes."""
        lists = (x.parameters() if isinstance(x, nn.Module) else [x] for x in what)
        mine = [p for p in dict.fromkeys(chain.from_iterable(lists)) if p in self.shards]
        for p in mine:
            if not self.blocks[p]:
                shape = self.shapes[p]
                p.data = all_gather(self.shards[p], self.group)[: shape.numel()].view(shape)
                self.counts[self.names[p]] += 1
            self.blocks[p] += 1
        self.most = max(self.most, sum(self.shapes[p].numel() for p in +self.blocks))
        try:
            yield
        finally:
            for p in mine:
                self.blocks[p] -= 1
                if not self.blocks[p]:
                    p.data.fill_(torch.nan)
                    p.data = p.new_empty(0)


def run(function: Callable, group: Group, sizes: Sequence[int], seed: int) -> dict:
    """Call `function` on a model, and on another one before the first one's writer has read."""
    model, later = Small(*sizes, seed), Small(*sizes, seed + 1)
    cut, cut_later = Cut(model, group), Cut(later, group)
    given: list[dict] = []

    def write(name: str, tensor: Tensor) -> None:
        given.append({"name": str(name), "kind": type(tensor).__name__, "tensor": tensor})

    out, facts = bench.watched(lambda: function(model, cut.gathered, write, group))
    written = [{**each, "tensor": _copy(each["tensor"])} for each in given]
    bench.watched(lambda: function(later, cut_later.gathered, write, group))
    for each, held in zip(written, given, strict=False):  # the later model's are beyond them
        copy, now = each["tensor"], _copy(held["tensor"])
        same = copy is None or torch.equal(copy.nan_to_num(), now.nan_to_num())
        each["overwritten"] = not same
    is_dict = isinstance(out, Mapping)
    values = {key: _plain(out[key]) for key in KEYS if key in out} if is_dict else {}
    return {
        "kind": "dict" if is_dict else type(out).__name__,
        "lost": ", ".join(key for key in KEYS if key not in values),
        "values": values,
        "written": written,
        "writes": len(written),
        "counts": dict(cut.counts),
        "most": cut.most,
        "others": sum(facts["ops"].values()) - cut.counts.total(),
    }


def _copy(x: object) -> Tensor | None:
    return x.detach().clone() if bench.plain(x) else None


def _plain(value: object) -> list[str] | float | str:
    plain = bench.number(value)
    if plain is not None:
        return plain
    if isinstance(value, list | tuple | Set) and all(isinstance(x, str) for x in value):
        return sorted(value)
    return f"a {type(value).__name__}"
