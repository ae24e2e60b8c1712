"""`fuse_gate_up` of lesson 04: gate and up as one weight, cut so that no unit loses its gate.

Rows are identified bit by bit, so a wrong order reveals its cause. Then the weight is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from course_classroom.judge import bench, looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import THREE, TOLERANCE, TWO
from course_classroom.judge.words import Page
from course_lessons.lesson_03 import kept
from course_lib.collectives.call import Group
from course_lib.layout import cut, span
from course_lib.tensor_parallel.conjugates import copy, reduce

SAYS = Page(__file__, "fuse_gate_up")
STEPS, RATE = 2, 0.01
_NO_ROWS = ("raised", "not returned everywhere", "wrong values")
Held = list[int]  # a rank's rows: of gate's f, then of up's


def numbers(f: int, seed: int) -> list[Tensor]:
    """Draw gate, up, their biases, down, and each step's x and dy, all equal on all ranks."""
    made, h = torch.Generator().manual_seed(seed), 8 + seed % 2
    step = (STEPS, 5, 11, h)
    shapes = [(f, h), (f, h), (f,), (f,), (h, f), step, step]
    return [torch.randn(shape, generator=made, dtype=torch.float64) for shape in shapes]


def tried(function: Callable, group: Group, f: int, seed: int) -> dict:
    """Call `function(gate, up, group)`, then with widely spread values, including -0 and infinity,
    which arithmetic would change but copying preserves, then in float32."""
    first, others = numbers(f, seed)[:2], numbers(f, seed + 2)[:2]
    far = [t * 10.0 ** torch.linspace(-200, 200, t.shape[1], dtype=t.dtype) for t in others]
    for t in far:
        t[:, t.shape[1] // 2], t[0, 0] = -0.0, float("inf")
    out, report = _fused(function, *first, group)
    pairs = (far, [t.float() for t in first])
    report["others"] = [_fused(function, *pair, group)[1] for pair in pairs]
    report["still"] = report["rows"] is None or report["rows"] == _rows(out.detach(), *first)
    fresh = (t.clone() for t in first)
    report["kept"], _ = bench.watched(lambda: kept.call(function, fresh, group))
    return report


def with_biases(function: Callable, group: Group, f: int, seed: int) -> dict:
    """Call `function` for weights and biases, train, and report the distance to the dense layer."""
    gate, up, gate_bias, up_bias, down, *steps = numbers(f, seed)
    weight, _ = _fused(function, gate, up, group)
    bias, report = _fused(function, gate_bias, up_bias, group)
    own = slice(*span(f, group.size(), group.rank()))
    parts = [torch.cat([t[own] for t in pair]) for pair in ((gate, up), (gate_bias, up_bias))]
    report["far"] = float("inf")
    if [getattr(t, "shape", ()) for t in (weight, bias)] == [part.shape for part in parts]:
        mine = trained((weight, bias, down[:, own]), *steps, group)
        dense = [torch.cat((gate, up)), torch.cat((gate_bias, up_bias)), down]
        *right, weight, bias, down = trained(dense, *steps, None)
        right += [torch.cat([half[own] for half in t.chunk(2)]) for t in (weight, bias)]
        pairs = [(a, b) for a, b in zip(mine, [*right, down[:, own]], strict=True) if b.numel()]
        report["far"] = max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs)
    return report


def trained(parameters: Iterable, xs: Tensor, dys: Tensor, group: Group | None) -> list[Tensor]:
    """Run two steps of SGD with a fused weight, its bias and `down`; return outputs, gradients of
    x, and the three parameters. Without a group, this trains the dense layer."""
    f, g = (copy, reduce) if group else (lambda x, _: x,) * 2
    seen: list[Tensor] = []
    for x, dy in zip(xs, dys, strict=True):
        leaves = [t.detach().clone().requires_grad_() for t in (x, *parameters)]
        x, weight, bias, down = leaves
        gate, up = F.linear(f(x, group), weight, bias).chunk(2, dim=-1)  # (b, s, f/tp)
        y = g(F.linear(F.silu(gate) * up, down), group)
        y.backward(dy)
        seen += [y.detach(), x.grad]
        parameters = [t.detach() - RATE * t.grad for t in leaves[1:]]
    return [*seen, *parameters]


def _fused(function: Callable, gate: Tensor, up: Tensor, group: Group) -> tuple[object, dict]:
    """Return the result, and a report with its description and its rows of gate and up."""
    given = [gate.clone(), up.clone()]
    out, facts = bench.watched(lambda: function(*given, group))
    parts = list(out) if isinstance(out, (list, tuple)) else []
    report = {
        **bench.described(out),
        "ops": " and ".join(facts["ops"]),
        "several": bool(parts) and all(isinstance(part, Tensor) for part in parts),
        "changed": not all(map(torch.equal, given, (gate, up))),
        "right": list(gate.shape),
        "rows": None,
        "wanted": wanted(len(gate), group.size(), group.rank()),
    }
    if bench.plain(out):
        mine = out.detach()
        report["beside"] = mine.untyped_storage().nbytes() // mine.element_size() - mine.numel()
        report["rows"] = _rows(mine, gate, up)
        report |= _strange(mine, gate, up) if report["rows"] is None else {}
    return out, report


def wanted(f: int, n: int, rank: int) -> Held:
    own = range(*span(f, n, rank))
    return [*own, *(f + i for i in own)]


def _rows(out: Tensor, gate: Tensor, up: Tensor) -> Held | None:
    """Return the rows that a rank holds; None if any row is unknown."""
    alike = out.dim() == gate.dim() and out.shape[1:] == gate.shape[1:] and out.dtype == gate.dtype
    if not alike or len(out) > 2 * len(gate):
        return None
    bits = torch.int64 if gate.dtype == torch.float64 else torch.int32  # tells -0.0 from 0.0
    pair = (out, torch.cat((gate, up)))
    mine, both = (t.reshape(len(t), gate[0].numel()).view(bits) for t in pair)
    same = (mine[:, None] == both).all(-1)  # (rows, 2f)
    return same.int().argmax(1).tolist() if bool(same.any(1).all()) else None


def _strange(out: Tensor, gate: Tensor, up: Tensor) -> dict:
    """Return the entry for content other than rows of gate and up, and its placeholders."""
    f, h, shape, both = len(gate), gate[0].numel(), list(out.shape), torch.cat((gate, up))
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    narrow = [k for k in kinds if _rows(out, *(t.to(k).to(t.dtype) for t in (gate, up)))]
    whole = len(shape) == 2 and (shape[0] in (f, 2 * f) or shape[1] == 2 * h)
    fits = shape[1:] == [h] and shape[0] <= 2 * f
    off = [float((row - both).abs().amax(1).min()) for row in out] if fits else []
    holds = {
        "rounded on the way": narrow,
        "wrong dim": whole and shape[1] != h,
        "computed, not copied": fits and max(off, default=1) < 1e-6,
        "padded": fits and any(not row.any() for row in out),
        "wrong values": True,
    }
    strange = next(entry for entry, so in holds.items() if so)
    return {
        "strange": strange,
        "narrow": " or ".join(str(k).removeprefix("torch.") for k in narrow),
    }


def _right(reports: list[dict]) -> bool:
    return all(report["rows"] == report["wanted"] for report in reports)


def judge_fuse(answer: Answer, judge: Judge) -> None:
    """Try divisible sizes first, because their errors come from fusing and not from the cut. 10 and
    4 over 3 distinguish the course's cut from an even cut; 4 and 2 leave one rank empty."""
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    even, uneven, odd = 6 + 6 * (seed % 2), 10 + 3 * (seed % 2), 9 + 4 * (seed % 2)
    few = 2 + 2 * (seed // 2 % 2)
    cases = [(THREE, even), (TWO, even), (THREE, uneven), (TWO, odd), (THREE, few)]
    results: list[tuple[list[dict], str]] = []
    for members, f in cases:
        when = f"{on(members)} with gate and up of {f} rows each"
        try:
            reports = judge.trial(answer, tried, f, seed, members=members, when=when)
            _look_at_results(reports, when)
        except Finding as finding:
            if f == few and _right(results[2][0]) and finding.name in _NO_ROWS:
                raise SAYS("no rows for a rank", f=f, text=finding.text) from None
            raise
        results.append((reports, when))
        for k, dtype in enumerate(("float64", "float32") if _right(reports) else ()):
            others = [report["others"][k] for report in reports]
            _look_at_results(others, when, dtype)
            SAYS.refuse({"different training #1": not _right(others)}, dtype=dtype, when=when)
            SAYS.refuse_each(reports, {"one buffer for all": lambda r: not r["still"]}, when=when)
    fine = [reports for reports, _ in results if _right(reports)]
    for reports, when in results:
        _look_at_rows(reports, when, fine)
    looks = {  # the rows are right: check the communication and the memory kept alive
        "needless message": lambda r: r["ops"],
        "keeps the full tensors alive #1": lambda r: (
            r["beside"] and r["shape"][0] > 2
        ),  # 1 may be a view
        "keeps the full tensors alive #2": lambda r: r["kept"],
    }
    for reports, when in results:
        SAYS.refuse_each(reports, looks, when=when)
    for k in (0, 3, 4):
        (members, f), (_, when) = cases[k], results[k]
        about = f"{on(members)} with the biases of gate and up, {f} elements each"
        try:
            reports = judge.trial(answer, with_biases, f, seed, members=members, when=about)
            _look_at_results(reports, about)
        except Finding as finding:
            raise SAYS("biases", text=finding.text.split("\n", 1)[-1]) from None
        _look_at_rows(reports, about, [])
        far = {"different training #2": lambda r: not r["far"] <= TOLERANCE}
        SAYS.refuse_each(reports, far, steps=STEPS, when=when)


def _look_at_results(reports: list[dict], when: str, dtype: str = "float64") -> None:
    """Refuse changed weights, or a result that is not a tensor, regardless of values."""
    refuse_none(reports, when, "this rank's part of the fused tensor")
    looks = {
        "not fused": lambda r: r["several"],
        "no tensor": lambda r: r["shape"] is None,
        "wrong dtype": lambda r: r["dtype"] != dtype,
        "input changed": lambda r: r["changed"],
    }
    SAYS.refuse_each(reports, looks, when=when, given=dtype)


def _look_at_rows(reports: list[dict], when: str, right: Sequence[list[dict]]) -> None:
    """Refuse rows other than a rank's own rows; `right` holds the trials without errors."""
    for report in reports:
        if report["rows"] is None:
            raise SAYS(report["strange"], when=when, **report)
    if _right(reports):
        return
    f, n, everything = reports[0]["right"][0], len(reports), wanted(reports[0]["right"][0], 1, 0)
    found = [report["rows"] for report in reports]
    held = [(r["rows"], r["wanted"], len(r["wanted"]) // 2) for r in reports]
    gates = [[i for i in rows if i < f] for rows in found]
    ups = [[i - f for i in rows if i >= f] for rows in found]
    joined = [row for rows in found for row in rows]
    missing = sorted(set(range(f)) - {i for own in gates for i in own})
    together = gates == ups
    complete = together and sorted(i for own in gates for i in own) == list(range(f))
    signs = {
        "not sharded": len(everything) in map(len, found),
        "one part for all": n > 1 and all(rows == found[0] for rows in found),
        "kept from an earlier call": n == 2 and found == [wanted(f, 3, rank) for rank in (1, 2)],
        "split straight across": joined == everything
        or (joined == everything[f:] + everything[:f] and gates[0] != ups[0]),
        "one of the two": not any(ups) or not any(gates),
        "interleaved": any(
            k > 1 and rows == [i for pair in zip(own[:k], own[k:], strict=True) for i in pair]
            for rows, own, k in held
        ),
        "gate and up swapped": any(k and rows == own[k:] + own[:k] for rows, own, k in held),
        "gates of other units": not together and [*map(len, gates)] == [*map(len, ups)],
        "remainder dropped": together and f % n > 0 and missing == list(range(f - f % n, f)),
        "dealt out": complete and gates == [list(range(rank, f, n)) for rank in range(n)],
        "wrong split rule": complete and [*map(len, gates)] != cut(f, n),
        "uneven rows": f % n and right and all(one[0]["right"][0] % len(one) == 0 for one in right),
    }
    entry = next((entry for entry, shown in signs.items() if shown), "wrong rows")
    name, text = SAYS.of(entry, f=f, n=n, sizes=cut(f, n))
    rank, rows = next((r, rows) for r, (rows, own, _) in enumerate(held) if rows != own)
    raise Finding(name, f"{text} Rank {rank} holds {_listed(rows, f)}, {when}.")


def _listed(rows: Held, f: int) -> str:
    """Describe rows of gate and up, with adjacent rows joined."""
    told = []
    for _, run in groupby(enumerate(rows), lambda one: (one[1] - one[0], one[1] >= f)):
        first, *rest = [row for _, row in run]
        more = f" to {rest[-1] % f}" if rest else ""
        told.append(f"{'up' if first >= f else 'gate'} {first % f}{more}")
    more = " and more" if len(told) > 6 else ""
    return f"the rows {', '.join(told[:6])}{more}" if rows else "no rows"


FUSE_GATE_UP = Exercise(judge=judge_fuse, **SAYS.about)
