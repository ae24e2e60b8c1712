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
from course_lib.classroom.checks.words import Page
from course_lib.layout import span

SAYS = Page("lesson_05/shard_qkv")


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


SHARD_QKV = Exercise(judge=judge_shard_qkv, **SAYS.about)
