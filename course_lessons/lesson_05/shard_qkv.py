"""`shard_qkv` of lesson 05: a rank's rows of the joined q, k, v weight, from two layouts.

Rows, including each misreading's rows, are numbered in [all q | all k | all v].
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, permutations, starmap, zip_longest

import torch
from torch import Tensor

from course_classroom.judge import bench, looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.words import Page
from course_lib.collectives.call import Group
from course_lib.layout import kv_heads, span
from course_lib.tensor_parallel.qkv_layout import joined_rows, shares

Rows = list[int]
SAYS = Page(__file__, "shard_qkv")


class Case:
    """A model's attention sharded over n ranks, in the layout of "GPT-2" or "Llama"."""

    def __init__(
        self,
        layout: str,
        heads: int,
        kv_heads: int,
        size: int,
        n: int,
        dtype: str = "float64",
        hidden: int = 0,
    ):
        self.layout, self.heads, self.kv_heads, self.n = layout, heads, kv_heads, n
        self.size, self.dtype = size, getattr(torch, dtype)  # size: of a head
        self.parts = {"q": heads, "k": kv_heads, "v": kv_heads}  # number of heads of each
        self.hidden = hidden or heads * size
        self.rows = (heads + 2 * kv_heads) * size
        kv = "" if kv_heads == heads else f" and {kv_heads} key/value heads"
        self.words = f"{layout}'s layout, {heads} heads{kv} over {n} ranks"
        if hidden:
            self.words += f", each head of {size} rows, and h = {hidden}"

    def of(self, part: str, wanted: Iterable[int]) -> Rows:
        """Return the rows of these heads of "q", "k" or "v"."""
        first = {"q": 0, "k": self.heads, "v": self.heads + self.kv_heads}[part]
        return [(first + head) * self.size + i for head in wanted for i in range(self.size)]

    def joined(self, q: Iterable[int], kv: Iterable[int]) -> Rows:
        """Return the rows of these query heads, then k and v of these key/value heads."""
        return self.of("q", q) + self.of("k", kv) + self.of("v", kv)

    def readers(self, kv: Iterable[int]) -> list[int]:
        """Return the query heads that read these key/value heads."""
        each = self.heads // self.kv_heads
        return [each * head + i for head in kv for i in range(each)]


def right(case: Case, rank: int) -> Rows:
    """Return the rows of a rank's key/value heads and their query heads: q, then k, then v."""
    share = shares(case.heads, case.kv_heads, case.n)[rank]
    spans = joined_rows(share, case.heads, case.kv_heads, case.size)
    return [row for span_ in spans for row in range(*span_)]


def misreadings(case: Case, rank: int) -> Iterator[tuple[str, Rows]]:
    """Yield (entry, rows) of each misreading for a rank."""
    n, every, each = case.n, range(case.rows), case.kv_heads // case.n
    kv, evenly = (range(*kv_heads(count, n)[rank]) for count in (case.kv_heads, case.heads))
    q = case.readers(kv)
    filled, left = range(*span(case.kv_heads, n, rank)), range(rank * each, (rank + 1) * each)
    by_h = case.hidden // case.heads
    for parts in ("qkv", "kv", "q") if by_h != case.size else ():
        rows = []
        for part, mine in (("q", q), ("k", kv), ("v", kv)):
            of_head = by_h if part in parts else case.size
            cut = slice(mine[0] * of_head, (mine[-1] + 1) * of_head)
            rows += case.of(part, range(case.parts[part]))[cut]
        yield "size of a head from h", rows
    yield "nothing sharded", list(every)
    yield "straight across", list(every[slice(*span(case.rows, n, rank))])
    nth = (range(rank, count, n) for count in (case.heads, case.kv_heads))
    yield "every n-th head", case.joined(*nth)
    by_head = (case.joined(case.readers([head]), [head]) for head in kv)
    yield "head by head", list(chain(*by_head))
    cuts = {part: span(count * case.size, n, rank) for part, count in case.parts.items()}
    through = (case.of(part, range(case.parts[part]))[slice(*cuts[part])] for part in "qkv")
    yield "through a head", list(chain(*through))
    yield "ceiling division", case.joined(case.readers(filled), filled)
    yield "heads left over", case.joined(case.readers(left), left)
    yield "q without its k and v", case.joined(evenly, kv)
    for theirs in (q, evenly):
        yield (
            "k and v sharded like q",
            case.joined(theirs, [h for h in theirs if h < case.kv_heads]),
        )
    yield "k and v not sharded", case.joined(q, range(case.kv_heads))
    for other in set(range(n)) - {rank}:
        yield "wrong rank's heads", right(case, other)
    for order in permutations((case.of("q", q), case.of("k", kv), case.of("v", kv))):
        yield "parts in the wrong order", list(chain(*order))


def names(piece: Tensor, whole: Tensor) -> list[int | None]:
    """Return the index in the full tensor, or None, of each row (or number) of a piece."""
    places = {_key(row): number for number, row in enumerate(whole)}
    return [places.get(_key(row)) for row in piece]


def _key(row: Tensor) -> bytes:
    return row.detach().contiguous().numpy().tobytes()


def whole(case: Case, seed: int) -> tuple[Tensor, Tensor | None]:
    """Return the fused weight (rows, h) in nn.Linear's order, and its bias if there is one."""
    made = torch.Generator().manual_seed(seed * 1013 + case.heads * 31 + case.n)
    shapes = ((case.rows, case.hidden), (case.rows,))
    weight, bias = (torch.randn(s, generator=made, dtype=torch.float64) for s in shapes)
    return weight.to(case.dtype), bias.to(case.dtype) if case.layout == "GPT-2" else None


def published(case: Case, seed: int) -> dict[str, Tensor]:
    """Return the weights in the checkpoint's form: Conv1D's (h, 3h), or three weights."""
    weight, bias = whole(case, seed)
    if case.layout == "GPT-2":
        return {"c_attn.weight": weight.t().contiguous(), "c_attn.bias": bias}
    parts = weight.split([count * case.size for count in case.parts.values()])
    return {f"{name}_proj.weight": part.clone() for name, part in zip("qkv", parts, strict=True)}


def pieces(function: Callable, group: Group, cases: list[tuple], seed: int) -> list:
    """Request this rank's part of the pieces; return the Finding's parts for each wrong piece."""
    asked = [(case, rank) for case in starmap(Case, cases) for rank in range(case.n)]
    return [_tried(function, *one, seed) for one in asked[group.rank() :: group.size()]]


def _tried(function: Callable, case: Case, rank: int, seed: int) -> tuple[str, str] | None:
    """Request a piece, after a request for the same piece of a different checkpoint; examine it."""

    def call(weights: dict) -> tuple[object, list, dict]:
        """Return the result, its parts, and the messages sent."""
        args = (weights, case.heads, case.kv_heads, rank, case.n)
        out, facts = bench.watched(lambda: function(*args))
        return out, list(out) if isinstance(out, (tuple, list)) else [], facts["ops"]

    _, earlier, _ = call(published(case, seed + 1))
    earlier = [(t, t.detach().clone()) for t in earlier if bench.plain(t)]
    given, before = published(case, seed), published(case, seed)
    own = dict(given)
    out, pair, ops = call(own)
    kept = given.keys() == own.keys() and all(own[k] is given[k] for k in given)
    kept = kept and all(torch.equal(given[k], before[k]) for k in given)
    refuse = partial(
        SAYS.refuse,
        where=f"for rank {rank} of {case.n} ({case.words})",
        kind=bench.kind(out),
        wanted=str(case.dtype).removeprefix("torch."),
        hidden=case.hidden,
        rows=len(right(case, rank)),
    )
    try:
        refuse(
            {
                "nothing returned": out is None,
                "input changed": not kept,
                "not a pair": len(pair) != 2 or not bench.plain(pair[0]),
                "collective called": ops,
                "one buffer for all calls": not all(starmap(torch.equal, earlier)),
            }
        )
        weight, bias = pair
        _look_at_weight(refuse, case, rank, weight, seed)
        _look_at_bias(refuse, case, rank, bias, whole(case, seed)[1])
        for name, piece in ("weight", weight), ("bias", bias):
            if piece is not None:
                keeps, has = piece.untyped_storage().nbytes(), piece.nbytes
                shared = piece.numel() and bench.shares([piece], given.values())
                more = keeps > has if case.n > 1 else shared
                refuse({"keeps the checkpoint alive": more}, name=name, keeps=keeps, has=has)
    except Finding as finding:
        return finding.name, finding.text
    return None


def _look_at_weight(refuse: Callable, case: Case, rank: int, piece: Tensor, seed: int) -> None:
    got, most = looking.came_back(bench.described(piece)), 3 * case.rows * case.hidden
    (weight, _), wanted = whole(case, seed), right(case, rank)
    plain = piece.dim() == 2 and piece.dtype == weight.dtype and piece.numel() <= most
    refuse({"wrong shape #1": not plain}, got=got)
    rows, fits = names(piece, weight), piece.shape[1] == case.hidden
    if fits and rows == wanted:
        return
    read = fits and None not in rows
    misread = [entry for entry, theirs in misreadings(case, rank) if read and rows == theirs]
    reshaped = weight.t().reshape(weight.shape)
    along_h = weight[:, slice(*span(case.hidden, case.n, rank))]
    kind = _rounded(piece, weight, wanted)
    holds = {
        "weights of an earlier call": rows and None not in names(piece, whole(case, seed + 1)[0]),
        **dict.fromkeys(misread, True),
        "wrong rows #1": read,
        "reshaped, not transposed": fits and None not in names(piece, reshaped),
        "not transposed": names(piece.t(), weight) == wanted,
        "sharded along h": torch.equal(piece, along_h) or torch.equal(piece, along_h.t()),
        "wrong shape #1": not fits,
        "rounded on the way": kind,
        "wrong rows #2": True,
    }
    fine = next((i for i, row in enumerate(rows) if row not in wanted), len(rows))
    refuse(holds, name="weight", kind=kind, count=len(rows), fine=fine, got=got)


def _look_at_bias(
    refuse: Callable, case: Case, rank: int, piece: object, bias: Tensor | None
) -> None:
    refuse({"unexpected bias": bias is None and piece is not None})
    if bias is None:
        return
    flat = bench.plain(piece) and piece.dim() == 1 and piece.dtype == bias.dtype
    got = looking.came_back(bench.described(piece))
    refuse({"bias left out": piece is None, "wrong shape #2": not flat}, got=got)
    rows, wanted = names(piece, bias), right(case, rank)
    kind = _rounded(piece, bias, wanted)
    holds = {
        "rounded on the way": kind,
        "bias not sharded": rows == list(range(case.rows)),
        "bias of other rows": True,
    }
    if rows != wanted:
        refuse(holds, name="bias", kind=kind, count=len(rows))


def _rounded(piece: Tensor, full: Tensor, wanted: Rows) -> str:
    """Return the narrower type to which the right rows were rounded, or "" for other errors."""
    for kind in ("float32", "bfloat16", "float16"):
        if names(piece, full.to(getattr(torch, kind)).to(full.dtype)) == wanted:
            return kind
    return ""


def judge_shard_qkv(answer: Answer, judge: Judge) -> None:
    """Request the pieces of both layouts, first for divisible head counts, then for others."""
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    chance = random.Random(seed)
    first, size = chance.sample([3, 5, 8], 2)
    even = [("GPT-2", 6, 6, first, 2), ("Llama", 6, 3, first, 3), ("Llama", 6, 6, first, 3)]
    chance.shuffle(even)
    uneven = [
        ("GPT-2", 4, 4, size, 3),
        ("Llama", 8, 4, size, 3, "float64", 8 * (size - 1) + chance.randint(0, 7)),
        ("Llama", 9, 3, size, 2, "float32"),
        ("GPT-2", 5, 5, size, 4),
        ("GPT-2", 7, 7, size, 3),
        ("Llama", 4, 2, size, 1),
        ("GPT-2", 2, 2, size, 1),
    ]
    for cases, what in ((even, "divide"), (uneven, "do not divide")):
        when = f"{on(looking.THREE)}, for head counts that {what}"
        try:
            reports = judge.trial(answer, pieces, cases, seed, members=looking.THREE, when=when)
        except Finding as finding:
            if cases is even or finding.name != "raised":
                raise
            raise SAYS("uneven heads", text=finding.text) from None
        for found in chain(*zip_longest(*reports)):  # in the order of the requests
            if found:
                raise Finding(*found)


SHARD_QKV = Exercise(judge=judge_shard_qkv, **SAYS.about)
