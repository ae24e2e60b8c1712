"""`shard_qkv` of lesson 05: a rank's rows of the q, k, v product, from two published layouts.

Every piece is read back row by row and held against the rows that the rank should hold, the cuts
that people make instead, and the memory that a piece may keep alive.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_05 import qkv_readings as readings
from course_lib.classroom.checks.lesson_05.qkv_readings import Case
from course_lib.classroom.checks.looking import THREE, fresh_seed
from course_lib.classroom.checks.words import Words
from course_lib.layout import span

SAYS = Words("""
uneven heads: Head counts that divide by the number of ranks come out right, others do not come out
  at all. {text}
asked the others: A collective was called {where}. The whole weights are at hand and rank and n say
  which piece is wanted: no rank needs to be asked.
one buffer for all calls: After the call {where} the result of the call before it holds other
  numbers: both share one buffer. One process may ask for all parts, and keep them.
weights of an earlier call: The rows {where} are of the checkpoint that the call before this one was
  given. Does your function keep something between calls?
still holds the whole #1: The {name} is right {where}, and it is the checkpoint's own tensor, or a
  view of it: the full weight stays alive, and what is written into one is in the other. Make a
  copy.
still holds the whole #2: The {name} is right {where}, and it is a view: of {nbytes} bytes, and it
  keeps {holds} alive. A rank that keeps every rank's rows has not been cut. Make a copy of the
  piece.
nothing returned: None came back {where}; wanted are a weight and a bias. Did you forget `return`?
input changed #1: {name!r} is gone from the caller's dictionary {where}. Other ranks are cut from
  the same weights: read them, and leave them there.
input changed #2: Your function changed the weights that it was given, {where}. Other ranks are cut
  from the same ones.
not a pair: A {kind} came back {where}; wanted is a pair, (weight, bias), of which the weight is a
  tensor and the bias a tensor or None.
wrong shape #1: The weight that came back {where} has shape {shape} and dtype {dtype}. Wanted is a
  matrix of the dtype that came in, {wanted}, [rows of this rank, {hidden}].
wrong shape #2: The weight {where} has more rows than all ranks together.
wrong shape #3: The bias that came back {where} is not a vector of {count}.
wrong shape #4: The weight is right {where}, and the bias has dtype {dtype}; wanted is that of the
  bias that came in, {wanted}.
not transposed: The right numbers {where}, as [h, rows]. GPT-2's Conv1D keeps its weight as (in,
  out); wanted is nn.Linear's order, (out, in).
reshaped, not transposed: The weight {where} has the right shape and scrambled numbers: (h, 3h) was
  *reshaped* into (3h, h). That reads the same memory in other lines; a transpose swaps the dims.
cut along h: The weight {where} is cut along h, the dim over which the product sums. Each rank would
  hold a partial sum of every head; wanted are all of h for some heads.
rounded on the way #1: The right rows {where}, rounded: they went through {kind}. A checkpoint is
  cut and not computed: every element stays as it is, in the dtype that came in.
rounded on the way #2: The weight is right {where}, and the bias is rounded: it went through {kind}.
wrong rows #1: The weight {where} holds numbers that are no rows of the whole.
wrong rows #2: Not right {where}: {count} rows came back, of which the first {fine} are among the
  {wanted} of this rank's heads. Which heads does it hold, and which rows are theirs?
a bias from nowhere: A bias came back {where}, and these weights have none: return None for it.
  Zeros would be trained.
bias left out: The weight is right {where}, and its bias is missing. A column-parallel product adds
  each rank's part of it.
bias whole: The weight is right {where}, and the bias is that of all ranks. It is cut as the rows of
  the weight are, number for number.
bias of other rows: The weight is right {where}, and the bias is cut differently: {count} numbers,
  where this rank has {wanted} rows. Each row keeps its own.
nothing cut: Not right {where}. That is the whole weight, on every rank. A rank keeps the rows of
  its own heads.
straight across: Not right {where}. The fused weight is cut straight across, as if it were one
  matrix. It is three of them side by side: the first rank gets nothing but queries that way, the
  last one nothing but values. Cut each of the three, then join the pieces.
every n-th head: Not right {where}. Each rank takes every n-th head. Heads stay in order: the first
  ranks hold the first heads, as the rows of the output projection expect.
head by head: Not right {where}. The right rows, joined head by head. The product is split into all
  of this rank's q, then all of its k, then all of its v.
through a head: Not right {where}. The rows of q, k and v are cut as evenly as rows go, which runs
  through the middle of a head. Cut by whole heads: count heads first, rows after.
an idle rank: Not right {where}. Heads are handed out by ceiling division, which leaves a last rank
  with fewer than it could have, or none. They are spread evenly: counts differ by one at most.
heads left over: Not right {where}. The same whole number of heads for each rank: those left over
  belong to no rank, or to the last ones. The first ranks take one more.
q without its k and v: Not right {where}. The query heads are spread by themselves, the key/value
  heads by themselves, and on some rank a query no longer finds the key/value head that it reads.
  Place the key/value heads; the queries that read them follow.
k and v cut like q: Not right {where}. k and v are cut with the sizes of q. With grouped queries
  they have fewer heads, and so fewer rows: they need a cut of their own.
k and v whole: Not right {where}. q is cut and k and v are not. Each rank needs the key/value heads
  that its own queries read, and no others.
another rank's heads: Not right {where}. Those are another rank's rows. Rank 0 holds the first
  heads.
parts in another order: Not right {where}. The right rows, but q, k and v do not stand in this
  order.
""")


def judge_shard_qkv(answer: Answer, judge: Judge) -> None:
    """Ask for the pieces of both layouts: head counts that divide, then some that do not."""
    judge.take(answer, readings.__name__)
    seed = fresh_seed()
    chance = random.Random(seed)
    size = chance.choice([3, 5, 7])
    even = [Case("gpt2", 6, 6, size, 2), Case("llama", 6, 3, size, 3)]
    chance.shuffle(even)
    uneven = [
        Case("gpt2", 4, 4, size, 3),
        Case("llama", 8, 4, size, 3),
        Case("llama", 9, 3, size, 2, "float32"),
        Case("gpt2", 5, 5, size, 4),
        Case("gpt2", 7, 7, size, 3),
        Case("llama", 4, 2, size, 1),
        Case("gpt2", 2, 2, size, 1),
    ]
    _try(answer, judge, even, seed, "for head counts that divide")
    try:
        _try(answer, judge, uneven, seed, "for head counts that do not divide")
    except Finding as finding:
        if finding.name != "raised":
            raise
        raise SAYS("uneven heads", text=finding.text) from None


def _try(answer: Answer, judge: Judge, cases: list[Case], seed: int, when: str) -> None:
    plain, when = [tuple(case) for case in cases], f"{on(THREE)}, {when}"
    reports = judge.trial(answer, readings.pieces, plain, seed, members=THREE, when=when)
    for number, (case, rank) in enumerate(readings.asked(cases)):
        where = f"for rank {rank} of {case.n} ({case.words})"
        report = reports[number % len(THREE)][number // len(THREE)]
        _look_at_result(case, report, where)
        _look_at_weight(case, rank, report["pair"][0]["values"], seed, where)
        _look_at_bias(case, rank, report["pair"][1], readings.whole(case, seed)[1], where)
        for name, piece in zip(("weight", "bias"), report["pair"], strict=True):
            if piece["values"] is None:
                continue
            if case.n == 1 and piece["shared"]:
                raise SAYS("still holds the whole #1", name=name, where=where)
            if case.n > 1 and piece["holds"] > piece["nbytes"]:
                about = {"nbytes": piece["nbytes"], "holds": piece["holds"]}
                raise SAYS("still holds the whole #2", name=name, where=where, **about)


def _look_at_result(case: Case, report: dict, where: str) -> None:
    """Refuse what is no piece at all, and what an answer did besides."""
    if report["kind"] == "NoneType":
        raise SAYS("nothing returned", where=where)
    if report["emptied"]:
        raise SAYS("input changed #1", where=where, name=report["emptied"][0])
    if report["changed"]:
        raise SAYS("input changed #2", where=where)
    pair = report["pair"]
    if len(pair) != 2 or pair[0]["shape"] is None:
        raise SAYS("not a pair", where=where, kind=report["kind"])
    shape, dtype = pair[0]["shape"], pair[0]["dtype"]
    if len(shape) != 2 or dtype != case.dtype:
        about = {"shape": shape, "dtype": dtype, "wanted": case.dtype, "hidden": case.hidden}
        raise SAYS("wrong shape #1", where=where, **about)
    if pair[0]["values"] is None:
        raise SAYS("wrong shape #2", where=where)
    if report["ops"]:
        raise SAYS("asked the others", where=where)
    if report["overwritten"]:
        raise SAYS("one buffer for all calls", where=where)


def _look_at_weight(case: Case, rank: int, piece: Tensor, seed: int, where: str) -> None:
    weight, wanted = readings.whole(case, seed)[0], readings.right(case, rank)
    if piece.shape[1] == case.hidden:
        rows = readings.names(piece, weight)
        if rows == wanted:
            return
        former = readings.whole(case, seed + 1)[0]
        if rows and None not in readings.names(piece, former):
            raise SAYS("weights of an earlier call", where=where)
        if None not in rows:
            _refuse_rows(case, rank, rows, where)
        if None not in readings.names(piece, weight.t().reshape(weight.shape)):
            raise SAYS("reshaped, not transposed", where=where)
    if piece.shape[0] == case.hidden and readings.names(piece.t(), weight) == wanted:
        raise SAYS("not transposed", where=where)
    along_h = weight[:, slice(*span(case.hidden, case.n, rank))]
    if torch.equal(piece, along_h) or torch.equal(piece, along_h.t()):
        raise SAYS("cut along h", where=where)
    if piece.shape[1] != case.hidden:
        about = {"shape": list(piece.shape), "dtype": case.dtype, "wanted": case.dtype}
        raise SAYS("wrong shape #1", where=where, hidden=case.hidden, **about)
    kind = _rounded(piece, weight, wanted)
    if kind:
        raise SAYS("rounded on the way #1", where=where, kind=kind)
    raise SAYS("wrong rows #1", where=where)


def _rounded(piece: Tensor, full: Tensor, wanted: readings.Rows) -> str:
    """The narrower type through which the wanted rows went; "" where that is not what happened."""
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        if readings.names(piece, full.to(kind).to(full.dtype)) == wanted:
            return str(kind).removeprefix("torch.")
    return ""


def _refuse_rows(case: Case, rank: int, rows: readings.Rows, where: str) -> None:
    """Raise the Finding for rows of the whole weight that are not the ones wanted."""
    for entry, reading in readings.misreadings(case, rank):
        if rows == reading:
            raise SAYS(entry, where=where)
    wanted = readings.right(case, rank)
    fine = next((i for i, row in enumerate(rows) if row not in wanted), len(rows))
    raise SAYS("wrong rows #2", where=where, count=len(rows), fine=fine, wanted=len(wanted))


def _look_at_bias(case: Case, rank: int, piece: dict, bias: Tensor | None, where: str) -> None:
    nothing = piece["kind"] == "NoneType"
    if bias is None and not nothing:
        raise SAYS("a bias from nowhere", where=where)
    if bias is None:
        return
    if nothing:
        raise SAYS("bias left out", where=where)
    values, wanted = piece["values"], readings.right(case, rank)
    if values is None or values.dim() != 1:
        raise SAYS("wrong shape #3", where=where, count=len(wanted))
    if values.dtype != bias.dtype:
        raise SAYS("wrong shape #4", where=where, dtype=piece["dtype"], wanted=case.dtype)
    rows = readings.names(values, bias)
    if rows == wanted:
        return
    kind = _rounded(values, bias, wanted)
    if kind:
        raise SAYS("rounded on the way #2", where=where, kind=kind)
    if rows == list(range(case.rows)):
        raise SAYS("bias whole", where=where)
    raise SAYS("bias of other rows", where=where, count=len(rows), wanted=len(wanted))


SHARD_QKV = Exercise(
    name="shard_qkv",
    title="A rank's rows of q, k and v",
    points=4,
    judge=judge_shard_qkv,
    when_right=(
        "Both layouts, head counts that divide and that do not, one rank to four: whole heads, the "
        "queries beside the key/value head that they read, the bias cut like its rows, and nothing "
        "kept alive that belongs to another rank."
    ),
    hints=(
        "Bring both layouts to one first: three matrices q, k, v, each [rows, h], as nn.Linear "
        "keeps them. In which order, and along which dim, does GPT-2's c_attn hold the three?",
        "Place the key/value heads: `course_lib.layout.kv_heads(kv_heads, n)` gives (start, stop) "
        "for each rank. How many query heads read one of them, and which are they?",
        "A head is `size` rows that follow each other, so heads start to stop are the rows "
        "start·size to stop·size. How large is a head?",
        "The bias goes the way of the rows: the same three parts, the same cuts, one number a row. "
        "Joining copies makes a new tensor; a slice alone is a view of the whole.",
    ),
)
