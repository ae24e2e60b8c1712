"""What runs on the judge's ranks for `take_stock`: a model whose weights come and go, silently.

Between uses a parameter is of size 0, as under DeepSpeed's stage 3, and computing with it is no
error. When a block ends, what was whole in it is overwritten. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group

KEYS = PLACEHOLDERS, DECAY, NUMEL, NORM = ("placeholders", "decay", "numel", "norm")
SMALL = 16  # elements: a parameter of as many at most stays whole


class Sizes(NamedTuple):
    v: int  # vocabulary
    h: int  # hidden
    f: int  # inner


class Small(nn.Module):
    """A table that is a head too, two layers, a weight of three dims, a large vector, what is small
    and stays whole, also with two dims, and buffers: one without elements, one that no file gets.
    """

    def __init__(self, sizes: Sizes, seed: int):
        super().__init__()
        v, h, f = sizes
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
    """The large parameters of a model, cut over a group; `gathered` has some of them whole."""

    def __init__(self, model: nn.Module, group: Group):
        self.group, self.names = group, {p: name for name, p in model.named_parameters()}
        self.shards: dict[nn.Parameter, Tensor] = {}
        self.shapes = {p: p.shape for p in self.names}
        self.whole: dict[nn.Parameter, int] = {}  # and in how many blocks
        self.counts: dict[str, int] = {}
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
            self._gather(p)
        try:
            yield
        finally:
            for p in mine:
                self._free(p)

    def _gather(self, p: nn.Parameter) -> None:
        self.whole[p] = self.whole.get(p, 0) + 1
        if self.whole[p] > 1:
            return
        name = self.names[p]
        self.counts[name] = self.counts.get(name, 0) + 1
        shape = self.shapes[p]
        p.data = all_gather(self.shards[p], self.group)[: shape.numel()].view(shape)
        held = sum(self.shapes[each].numel() for each, blocks in self.whole.items() if blocks)
        self.most = max(self.most, held)

    def _free(self, p: nn.Parameter) -> None:
        self.whole[p] -= 1
        if not self.whole[p]:
            p.data.fill_(torch.nan)
            p.data = p.new_empty(0)


class Written:
    """`write(name, tensor)`: keeps what it is given, and looks at it in the end."""

    def __init__(self):
        self.tensors: list[tuple[str, object]] = []

    def __call__(self, name: str, tensor: Tensor) -> None:
        self.tensors.append((name, tensor))

    def seen(self) -> list[dict]:
        copies = [x.detach().clone() if bench.plain(x) else None for _, x in self.tensors]
        return [
            {"name": str(name), "kind": type(x).__name__, "tensor": copy}
            for (name, x), copy in zip(self.tensors, copies, strict=True)
        ]


def run(function: Callable, group: Group, sizes: Sizes, seed: int) -> dict:
    """Call `function` on a model, and on another one before the first one's writer has read."""
    model = Small(Sizes(*sizes), seed)
    cut, written = Cut(model, group), Written()
    out, facts = bench.watched(lambda: function(model, cut.gathered, written, group))
    at_once, later = written.seen(), Small(Sizes(*sizes), seed + 1)
    bench.watched(lambda: function(later, Cut(later, group).gathered, Written(), group))
    pairs = zip(at_once, written.seen(), strict=True)
    is_dict = isinstance(out, Mapping)
    values = {key: _plain(out[key]) for key in KEYS if key in out} if is_dict else {}
    return {
        "kind": "dict" if is_dict else type(out).__name__,
        "lost": [key for key in KEYS if key not in values],
        "values": values,
        "written": at_once,
        "overwritten": [old["name"] for old, now in pairs if _moved(old, now)],
        "counts": cut.counts,
        "most": cut.most,
        "sent": facts,
    }


def _moved(before: dict, now: dict) -> bool:
    a, b = before["tensor"], now["tensor"]
    return a is not None and not torch.equal(a.nan_to_num(), b.nan_to_num())


def _plain(value: object) -> list[str] | float | str:
    plain = bench.number(value)
    if plain is not None:
        return plain
    if isinstance(value, list | tuple | Set) and all(isinstance(x, str) for x in value):
        return sorted(value)
    return f"a {type(value).__name__}"
