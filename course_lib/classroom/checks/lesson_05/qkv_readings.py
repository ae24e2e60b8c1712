"""What `shard_qkv` of lesson 05 is asked for, and which rows each misreading would give a rank.

Each of the judge's ranks makes the same weights from one seed and asks for some of the pieces. A
row is named by its place in [all q | all k | all v]; a piece is read back into names by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, permutations
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group
from course_lib.layout import kv_heads, span
from course_lib.tensor_parallel.qkv_layout import joined_rows, shares

Rows = list[int]


class Case(NamedTuple):
    """A model's attention cut over n ranks; `layout` is "gpt2" or "llama"."""

    layout: str
    heads: int
    kv_heads: int
    size: int  # of a head
    n: int
    dtype: str = "float64"

    @property
    def hidden(self) -> int:
        return self.heads * self.size

    @property
    def parts(self) -> dict[str, int]:
        """How many heads each part has."""
        return {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}

    @property
    def rows(self) -> int:
        return sum(self.parts.values()) * self.size

    @property
    def words(self) -> str:
        kv = "" if self.kv_heads == self.heads else f" and {self.kv_heads} key/value heads"
        name = {"gpt2": "GPT-2's layout", "llama": "Llama's layout"}[self.layout]
        return f"{name}, {self.heads} heads{kv} over {self.n} ranks"

    def of(self, part: str, wanted: Iterable[int]) -> Rows:
        """The rows of these heads of "q", "k" or "v"."""
        first = {"q": 0, "k": self.heads, "v": self.heads + self.kv_heads}[part]
        return [(first + head) * self.size + i for head in wanted for i in range(self.size)]

    def joined(self, q: Iterable[int], kv: Iterable[int]) -> Rows:
        """The rows of these query heads, then k and v of these key/value heads."""
        return self.of("q", q) + self.of("k", kv) + self.of("v", kv)

    def readers(self, kv: Iterable[int]) -> list[int]:
        """The query heads that read these key/value heads."""
        each = self.heads // self.kv_heads
        return [each * head + i for head in kv for i in range(each)]


def right(case: Case, rank: int) -> Rows:
    """A rank's key/value heads, and the query heads that read them: q first, then k, then v."""
    share = shares(case.heads, case.kv_heads, case.n)[rank]
    spans = joined_rows(share, case.heads, case.kv_heads, case.size)
    return [row for span_ in spans for row in range(*span_)]


def misreadings(case: Case, rank: int) -> Iterator[tuple[str, Rows]]:
    """The rows that each misreading gives a rank, by the entry that speaks of it."""
    n, every, each = case.n, range(case.rows), case.kv_heads // case.n
    kv, evenly = (range(*kv_heads(count, n)[rank]) for count in (case.kv_heads, case.heads))
    q = case.readers(kv)
    filled, left = range(*span(case.kv_heads, n, rank)), range(rank * each, (rank + 1) * each)
    yield "nothing cut", list(every)
    yield "straight across", list(every[slice(*span(case.rows, n, rank))])
    nth = (range(rank, count, n) for count in (case.heads, case.kv_heads))
    yield "every n-th head", case.joined(*nth)
    by_head = [case.joined(case.readers([head]), [head]) for head in kv]
    yield "head by head", list(chain(*by_head))
    through = [
        case.of(part, range(count))[slice(*span(count * case.size, n, rank))]
        for part, count in case.parts.items()
    ]
    yield "through a head", list(chain(*through))
    yield "an idle rank", case.joined(case.readers(filled), filled)
    yield "heads left over", case.joined(case.readers(left), left)
    yield "q without its k and v", case.joined(evenly, kv)
    for theirs in (q, evenly):
        yield "k and v cut like q", case.joined(theirs, [h for h in theirs if h < case.kv_heads])
    yield "k and v whole", case.joined(q, range(case.kv_heads))
    for other in set(range(n)) - {rank}:
        yield "another rank's heads", right(case, other)
    for order in permutations((case.of("q", q), case.of("k", kv), case.of("v", kv))):
        yield "parts in another order", list(chain(*order))


def names(piece: Tensor, whole: Tensor) -> list[int | None]:
    """For each row (or number) of a piece, which of the whole it is; None where it is none."""
    places = {_key(row): number for number, row in enumerate(whole)}
    return [places.get(_key(row)) for row in piece]


def _key(row: Tensor) -> bytes:
    return row.detach().contiguous().numpy().tobytes()


def whole(case: Case, seed: int) -> tuple[Tensor, Tensor | None]:
    """The fused weight (rows, h) in the order of nn.Linear, and its bias where there is one."""
    made = torch.Generator().manual_seed(seed * 1013 + case.heads * 31 + case.n)
    weight = torch.randn(case.rows, case.hidden, generator=made, dtype=torch.float64)
    bias = torch.randn(case.rows, generator=made, dtype=torch.float64)
    weight, bias = (t.to(getattr(torch, case.dtype)) for t in (weight, bias))
    return weight, bias if case.layout == "gpt2" else None


def published(case: Case, seed: int) -> dict[str, Tensor]:
    """The same numbers as the model's checkpoint has them: Conv1D's (h, 3h), or three weights."""
    weight, bias = whole(case, seed)
    if case.layout == "gpt2":
        return {"c_attn.weight": weight.t().contiguous(), "c_attn.bias": bias}
    parts = weight.split([count * case.size for count in case.parts.values()])
    return {f"{name}_proj.weight": part.clone() for name, part in zip("qkv", parts, strict=True)}


def pieces(function: Callable, group: Group, cases: list[tuple], seed: int) -> list[dict]:
    """This rank's share of the pieces that are asked for: every third one."""
    mine = asked([Case(*case) for case in cases])[group.rank() :: group.size()]
    return [_piece(function, case, seed, rank) for case, rank in mine]


def asked(cases: list[Case]) -> list[tuple[Case, int]]:
    """All pieces of all cases, as (case, rank)."""
    return [(case, rank) for case in cases for rank in range(case.n)]


def _piece(function: Callable, case: Case, seed: int, rank: int) -> dict:
    """What comes back for one piece, after the same piece of another checkpoint."""

    def call(weights: dict) -> tuple[object, list, dict]:
        """What came back, its parts, and what went over the wire."""
        args = (weights, case.heads, case.kv_heads, rank, case.n)
        out, facts = bench.watched(lambda: function(*args))
        return out, list(out) if isinstance(out, (tuple, list)) else [], facts["ops"]

    _, earlier, _ = call(published(case, seed + 1))
    earlier = [(t.detach(), t.detach().clone()) for t in earlier if bench.plain(t)]
    given, before = published(case, seed), published(case, seed)
    own = dict(given)
    out, pair, ops = call(own)
    return {
        "overwritten": not all(torch.equal(t, was) for t, was in earlier),
        "emptied": sorted(set(given) - set(own)),
        "changed": not all(torch.equal(given[name], before[name]) for name in given),
        "kind": bench.kind(out),
        "ops": ops,
        "pair": [_told(t, given, 3 * case.rows * case.hidden) for t in pair[:3]],
    }


def _told(value: object, given: dict[str, Tensor], most: int) -> dict:
    """What one returned thing is; its numbers only where they are few enough to be a piece."""
    if not bench.plain(value):
        return {**bench.described(value), "values": None}
    return {
        **bench.described(value),
        "values": value.detach().clone() if value.numel() <= most else None,
        "nbytes": value.nbytes,
        "holds": value.untyped_storage().nbytes(),
        "shared": bool(value.numel() and bench.shares([value], given.values())),
    }
