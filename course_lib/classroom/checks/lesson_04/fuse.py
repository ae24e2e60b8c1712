"""`fuse_gate_up` of lesson 04: gate and up as one weight, cut so that no unit loses its gate.

What came back is read row by row: which rows of which weight a rank holds says what was thought.
Then it is trained with, on the ranks, and held against the dense layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_03 import kept
from course_lib.classroom.checks.lesson_04.rows import SAYS, Rows, look_at_rows
from course_lib.classroom.checks.looking import THREE, TOLERANCE, TWO, fresh_seed, refuse_changed
from course_lib.collectives.call import Group
from course_lib.layout import span
from course_lib.tensor_parallel.conjugates import copy, reduce

STEPS, RATE, BATCH, SEQUENCE = 2, 0.01, 5, 11
_NO_ROWS = ("raised", "not returned everywhere", "wrong numbers")


class Numbers(NamedTuple):
    """The checkpoint, what else the dense layer has, and what goes in at each step."""

    gate: Tensor  # (f, h)
    up: Tensor  # (f, h)
    gate_bias: Tensor  # (f,)
    up_bias: Tensor  # (f,)
    down: Tensor  # (h, f)
    xs: Tensor  # (step, b, s, h)
    dys: Tensor  # (step, b, s, h), the gradient that arrives at the output


def numbers(f: int, seed: int, more: int = 0) -> Numbers:
    """The same on every rank, and on the judge; with `more` others of the same size."""
    made, h = torch.Generator().manual_seed(seed + more), 8 + seed % 2
    step = (STEPS, BATCH, SEQUENCE, h)
    shapes = [(f, h), (f, h), (f,), (f,), (h, f), step, step]
    return Numbers(*(torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes))


def others(f: int, seed: int) -> list[list[Tensor]]:
    """A gate and an up of values far apart, with zeros below zero: what is computed with them, and
    not copied, differs; then the first ones in float32."""
    dense = numbers(f, seed, 1)
    far = [t * 10.0 ** torch.linspace(-200, 200, t.shape[1], dtype=t.dtype) for t in dense[:2]]
    for t in far:
        t[:, t.shape[1] // 2] = -0.0
    return [far, [t.float() for t in numbers(f, seed)[:2]]]


def tried(function: Callable, group: Group, f: int, seed: int, biases: bool) -> dict:
    """Call `function(gate, up, group)` for the weights, then for others and for float32 ones; with
    `biases` for those instead, and train."""
    dense = numbers(f, seed)
    weight, report = _fused(function, dense.gate, dense.up, group)
    if not biases:
        before = report["out"]
        report["others"] = [_fused(function, *other, group)[1] for other in others(f, seed)]
        report["still"] = before is None or torch.equal(weight.detach(), before)
        fresh = (t.clone() for t in (dense.gate, dense.up))
        report["kept"], _ = bench.watched(lambda: kept.call(function, fresh, group))
        return report
    bias, report = _fused(function, dense.gate_bias, dense.up_bias, group)
    own = slice(*span(f, group.size(), group.rank()))
    down = dense.down[:, own]  # (h, f/n)
    shapes = [getattr(t, "shape", ()) for t in (weight, bias)]
    if shapes == [(2 * down.shape[1], len(down)), (2 * down.shape[1],)]:
        report["trained"] = trained((weight, bias, down), dense, group)
    return report


def _fused(function: Callable, gate: Tensor, up: Tensor, group: Group) -> tuple[object, dict]:
    """What came back, and a description of it."""
    given = [gate.clone(), up.clone()]
    out, facts = bench.watched(lambda: function(*given, group))
    parts = list(out) if isinstance(out, (list, tuple)) else []
    report = {
        **bench.described(out),
        "ops": facts["ops"],
        "several": bool(parts) and all(isinstance(part, Tensor) for part in parts),
        "changed": not all(map(torch.equal, given, (gate, up))),
        "out": None,
    }
    if bench.plain(out):
        mine = out.detach()
        report["beside"] = mine.untyped_storage().nbytes() // mine.element_size() - mine.numel()
        # Nobody has more than the whole to give: what is larger is not looked at.
        report["out"] = mine.clone() if mine.numel() <= 2 * gate.numel() else None
    return out, report


def trained(parameters: Iterable[Tensor], dense: Numbers, group: Group | None) -> list[Tensor]:
    """What two steps of SGD with a fused weight, its bias and `down` give: outputs, gradients of x,
    then the three. Without a group it is the dense layer."""
    f, g = (copy, reduce) if group else (lambda x, _: x,) * 2
    seen: list[Tensor] = []
    for x, dy in zip(dense.xs, dense.dys, strict=True):
        leaves = [t.detach().clone().requires_grad_() for t in (x, *parameters)]
        x, weight, bias, down = leaves
        gate, up = F.linear(f(x, group), weight, bias).chunk(2, dim=-1)  # (b, s, f/tp)
        y = g(F.linear(F.silu(gate) * up, down), group)
        y.backward(dy)
        seen += [y.detach(), x.grad]
        parameters = [t.detach() - RATE * t.grad for t in leaves[1:]]
    return [*seen, *parameters]


def judge_fuse(answer: Answer, judge: Judge) -> None:
    """Try fuse_gate_up; raise the Finding that explains best what is wrong."""
    judge.take(answer, __name__)
    seed = fresh_seed()
    even, uneven, odd = 6 + 6 * (seed % 2), 10 + 3 * (seed % 2), 9 + 4 * (seed % 2)
    few = 2 + 2 * (seed // 2 % 2)
    # Sizes that divide come first: what is wrong there is the fusing, not the cut. 10 over 3 and 4
    # over 3 tell the course's cut from an even one; of 4 and of 2 rows the last rank has none.
    cases = [(THREE, even), (TWO, even), (THREE, uneven), (TWO, odd), (THREE, few)]
    results: list[Rows] = []
    for members, f in cases:
        when = f"{on(members)} with gate and up of {f} rows each"
        try:
            reports = judge.trial(answer, tried, f, seed, False, members=members, when=when)
            one = Rows(reports, *numbers(f, seed)[:2], when)
            _look_at_results(one)
        except Finding as finding:
            if f == few and results[2].right and finding.name in _NO_ROWS:
                raise SAYS("no rows for a rank", f=f, text=finding.text) from None
            raise
        results.append(one)
        if one.right:
            _look_at_others(one, others(f, seed))
    wrong = [one for one in results if not one.right]
    if wrong and all(one.n == 2 for one in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    for one in wrong:
        look_at_rows(one, [other for other in results if other.right])
    for one in results:
        _look_at_keeping(one)
    for k in (0, 3, 4):
        _try_biases(answer, judge, *cases[k], seed, results[k].when)


def _look_at_results(one: Rows, dtype: str = "float64") -> None:
    """Refuse what is no tensor, and changed weights, whatever the numbers are."""
    refuse_none(one.reports, one.when, "this rank's fused part")
    for rank, report in enumerate(one.reports):
        about = {"rank": rank, "when": one.when}
        if report["several"]:
            raise SAYS("not fused", kind=report["kind"], **about)
        if report["shape"] is None:
            raise SAYS("no tensor", kind=report["kind"], **about)
        if report["dtype"] != dtype:
            raise SAYS("another dtype", dtype=report["dtype"], given=dtype, **about)
    refuse_changed(one, "gate or up")


def _look_at_others(one: Rows, given: list[list[Tensor]]) -> None:
    """Other weights of the same size, then float32 ones: every bit is that of the checkpoint."""
    for k, (dtype, weights) in enumerate(zip(("float64", "float32"), given, strict=True)):
        again = Rows([report["others"][k] for report in one.reports], *weights, one.when)
        _look_at_results(again, dtype)
        if not again.right:
            raise SAYS("other training #1", dtype=dtype, when=one.when)
    if not all(report["still"] for report in one.reports):
        raise SAYS("one buffer for all", when=one.when)


def _look_at_keeping(one: Rows) -> None:
    """The right rows: do they hold no more memory than they need, and did they come by no wire?"""
    for rank, report in enumerate(one.reports):
        about = {"rank": rank, "when": one.when}
        if report["ops"]:
            raise SAYS("over the wire", ops=" and ".join(report["ops"]), **about)
        if report["beside"] and report["shape"][0] > 2:  # a unit or none may well be a view
            raise SAYS("keeps the whole #1", beside=report["beside"], **about)
        if report["kept"]:
            raise SAYS("keeps the whole #2", kept=report["kept"], **about)


def _try_biases(
    answer: Answer, judge: Judge, members: list[int], f: int, seed: int, when: str
) -> None:
    """The same function on biases, then two steps of training with both."""
    about = f"{on(members)} with the biases of gate and up, {f} numbers each"
    dense, n = numbers(f, seed), len(members)
    try:
        reports = judge.trial(answer, tried, f, seed, True, members=members, when=about)
        one = Rows(reports, dense.gate_bias[:, None], dense.up_bias[:, None], about)
        _look_at_results(one)
    except Finding as finding:
        raise SAYS("biases", text=finding.text.split("\n", 1)[-1]) from None
    look_at_rows(one, [])
    whole = [torch.cat(dense[:2]), torch.cat(dense[2:4]), dense.down]
    *seen, weight, bias, down = trained(whole, dense, None)
    for rank, report in enumerate(reports):
        own = slice(*span(f, n, rank))
        mine = [torch.cat([half[own] for half in t.chunk(2)]) for t in (weight, bias)]
        pairs = zip(report["trained"], (*seen, *mine, down[:, own]), strict=True)
        far = max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs if b.numel())
        if not far <= TOLERANCE:
            raise SAYS("other training #2", steps=STEPS, rank=rank, far=far, when=when)


FUSE_GATE_UP = Exercise(judge=judge_fuse, **SAYS.about)
