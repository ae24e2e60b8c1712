"""`shard_qkv` of lesson 05: a rank's rows of the q, k, v product, from two published layouts.

Every piece is read back row by row and held against the rows that the rank should hold, the cuts
that people make instead, and the memory that a piece may keep alive.
"""

from __future__ import annotations

import os
import random

import torch
from torch import Tensor

from course_lib.classroom.checks import general
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_05 import qkv_readings as readings
from course_lib.classroom.checks.lesson_05 import qkv_trial
from course_lib.classroom.checks.lesson_05.qkv_readings import Case

ALL = [0, 1, 2]


def judge_shard_qkv(answer: Answer, judge: Judge) -> None:
    """Ask for the pieces of both layouts: head counts that divide, then some that do not."""
    judge.take(answer, qkv_trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
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
    for report in _try(answer, judge, even, seed, "for head counts that divide"):
        _look_at(Case(*report["of"]), report, seed)
    for report in _uneven(answer, judge, uneven, seed):
        _look_at(Case(*report["of"]), report, seed)


def _uneven(answer: Answer, judge: Judge, cases: list[Case], seed: int) -> list[dict]:
    try:
        return _try(answer, judge, cases, seed, "for head counts that do not divide")
    except Finding as finding:
        if finding.name != "raised":
            raise
        raise Finding(
            "uneven heads",
            "Head counts that divide by the number of ranks come out right, others do not come "
            f"out at all. {finding.text}",
        ) from None


def _try(answer: Answer, judge: Judge, cases: list[Case], seed: int, when: str) -> list[dict]:
    asked = [tuple(case) for case in cases]
    when = f"{on(ALL)}, {when}"
    found = judge.trial(answer, qkv_trial.pieces, asked, seed, members=ALL, when=when)
    reports = sorted((one for some in found for one in some), key=lambda r: (r["case"], r["rank"]))
    return [{**report, "of": asked[report["case"]]} for report in reports]


def _look_at(case: Case, report: dict, seed: int) -> None:
    rank, where = report["rank"], f"for rank {report['rank']} of {case.n} ({case.words})"
    _look_at_result(case, report, where)
    if report["ops"]:
        raise Finding(
            "asked the others",
            f"A collective was called {where}. The whole weights are at hand and rank and n say "
            "which piece is wanted: no rank needs to be asked.",
        )
    weight, bias = qkv_trial.whole(case, seed)
    if report["overwritten"]:
        raise Finding(
            "one buffer for all calls",
            f"After the call {where} the result of the call before it holds other numbers: both "
            "share one buffer. One process may ask for all parts, and keep them.",
        )
    former, _ = qkv_trial.whole(case, seed + 1)
    _refuse_remembered(report["weight"]["values"], former, weight, where)
    _look_at_weight(case, rank, report["weight"]["values"], weight, where)
    _look_at_bias(case, rank, report["bias"], bias, where)
    for name in ("weight", "bias"):
        piece = report[name]
        if piece["values"] is None:
            continue
        if piece["shared"] and case.n == 1:
            raise Finding(
                "still holds the whole",
                f"The {name} is right {where}, and it is the checkpoint's own tensor, or a view of "
                "it: the full weight stays alive, and what is written into one is in the other. "
                "Make a copy.",
            )
        if piece["holds"] > piece["nbytes"] and case.n > 1:
            raise Finding(
                "still holds the whole",
                f"The {name} is right {where}, and it is a view: of {piece['nbytes']} bytes, and "
                f"it keeps {piece['holds']} alive. A rank that keeps every rank's rows has not "
                "been cut. Make a copy of the piece.",
            )


def _look_at_result(case: Case, report: dict, where: str) -> None:
    """Refuse what is no piece at all, whatever its values are."""
    if report["kind"] == "NoneType":
        raise Finding(
            "nothing returned",
            f"None came back {where}; wanted are a weight and a bias. Did you forget `return`?",
        )
    if report["emptied"]:
        raise Finding(
            "input changed",
            f"{report['emptied'][0]!r} is gone from the caller's dictionary {where}. Other ranks "
            "are cut from the same weights: read them, and leave them there.",
        )
    if report["changed"]:
        raise Finding(
            "input changed",
            f"Your function changed the weights that it was given, {where}. Other ranks are cut "
            "from the same ones.",
        )
    if not report["pair"] or report["weight"]["kind"] != "Tensor":
        raise Finding(
            "not a pair",
            f"A {report['kind']} came back {where}; wanted is a pair, (weight, bias), of which the "
            "weight is a tensor and the bias a tensor or None.",
        )
    shape, dtype = report["weight"]["shape"], report["weight"]["dtype"]
    if len(shape) != 2 or dtype != case.dtype:
        raise Finding(
            "wrong shape",
            f"The weight that came back {where} has shape {shape} and dtype {dtype}. Wanted is a "
            f"matrix of the dtype that came in, {case.dtype}, [rows of this rank, {case.hidden}].",
        )
    if report["weight"]["values"] is None:
        raise Finding("wrong shape", f"The weight {where} has more rows than all ranks together.")


def _look_at_weight(case: Case, rank: int, piece: Tensor, weight: Tensor, where: str) -> None:
    wanted = readings.right(case, rank)
    if piece.shape[1] == case.hidden:
        rows = readings.names(piece, weight)
        if rows == wanted:
            return
        _refuse_rows(case, rank, rows, where)
    if piece.shape[0] == case.hidden and readings.names(piece.t(), weight) == wanted:
        raise Finding(
            "not transposed",
            f"The right numbers {where}, as [h, rows]. GPT-2's Conv1D keeps its weight as (in, "
            "out); wanted is nn.Linear's order, (out, in).",
        )
    flat = weight.t().reshape(weight.shape)
    if piece.shape[1] == case.hidden and None not in readings.names(piece, flat):
        raise Finding(
            "reshaped, not transposed",
            f"The weight {where} has the right shape and scrambled numbers: (h, 3h) was *reshaped* "
            "into (3h, h). That reads the same memory in other lines; a transpose swaps the dims.",
        )
    along_h = weight[:, readings.columns_of(case, rank)]
    if any(_same(piece, one) for one in (along_h, along_h.t())):
        raise Finding(
            "cut along h",
            f"The weight {where} is cut along h, the dim over which the product sums. Each rank "
            "would hold a partial sum of every head; wanted are all of h for some heads.",
        )
    if piece.shape[1] != case.hidden:
        raise Finding(
            "wrong shape",
            f"The weight that came back {where} has shape {list(piece.shape)}; wanted is "
            f"[rows of this rank, {case.hidden}].",
        )
    for kind in ("float32", "bfloat16", "float16"):
        narrow = weight.to(getattr(torch, kind)).to(weight.dtype)
        if readings.names(piece, narrow) == wanted:
            raise Finding(
                general.ROUNDED,
                f"The right rows {where}, rounded: they went through {kind}. A checkpoint is cut "
                "and not computed: every element stays as it is, in the dtype that came in.",
            )
    raise Finding("wrong rows", f"The weight {where} holds numbers that are no rows of the whole.")


def _refuse_remembered(piece: Tensor, former: Tensor, weight: Tensor, where: str) -> None:
    """A Finding where rows of the checkpoint before this one come back."""
    alike = piece.shape[1:] == weight.shape[1:] and len(piece)
    if alike and None not in readings.names(piece, former):
        raise Finding(
            "weights of an earlier call",
            f"The rows {where} are of the checkpoint that the call before this one was given. "
            "Does your function keep something between calls?",
        )


def _refuse_rows(case: Case, rank: int, rows: list[int | None], where: str) -> None:
    """A Finding for rows of the whole weight that are not the ones wanted."""
    if None in rows:
        return  # not rows at all: the caller looks at what else they could be
    known = [(name, text, read(case, rank)) for name, text, read in readings.READINGS]
    for name, text, reading in [*known, *readings.others(case, rank)]:
        if rows == reading:
            raise Finding(name, f"Not right {where}. {text}")
    wanted = readings.right(case, rank)
    at = next((i for i, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b), None)
    if at is None:
        raise Finding(
            "wrong rows",
            f"{len(rows)} rows came back {where}; this rank's heads have {len(wanted)}.",
        )
    raise Finding(
        "wrong rows",
        f"Not right {where}: its row {at} is {case.told(rows[at])}. Which heads does this rank "
        "hold, and which rows are theirs?",
    )


def _look_at_bias(case: Case, rank: int, told: dict, bias: Tensor | None, where: str) -> None:
    if bias is None:
        if told["kind"] != "NoneType":
            raise Finding(
                "a bias from nowhere",
                f"A bias came back {where}, and these weights have none: return None for it. "
                "Zeros would be trained.",
            )
        return
    if told["kind"] == "NoneType":
        raise Finding(
            "bias left out",
            f"The weight is right {where}, and its bias is missing. A column-parallel product "
            "adds each rank's part of it.",
        )
    values, wanted = told["values"], readings.right(case, rank)
    if values is None or told["kind"] != "Tensor" or values.dim() != 1:
        raise Finding(
            "wrong shape", f"The bias that came back {where} is not a vector of {len(wanted)}."
        )
    if values.dtype != bias.dtype:
        raise Finding(
            "wrong shape",
            f"The weight is right {where}, and the bias has dtype {told['dtype']}; wanted is that "
            f"of the bias that came in, {case.dtype}.",
        )
    rows = readings.names(values, bias)
    if rows == wanted:
        return
    if readings.names(values, bias.float().to(bias.dtype)) == wanted:
        raise Finding(
            general.ROUNDED,
            f"The weight is right {where}, and the bias is rounded: it went through float32.",
        )
    if rows == list(range(case.rows)):
        raise Finding(
            "bias whole",
            f"The weight is right {where}, and the bias is that of all ranks. It is cut as the "
            "rows of the weight are, number for number.",
        )
    raise Finding(
        "bias of other rows",
        f"The weight is right {where}, and the bias is cut differently: {len(rows)} numbers, where "
        f"this rank has {len(wanted)} rows. Each row keeps its own.",
    )


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


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
