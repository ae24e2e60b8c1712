"""`clip_as_one` of lesson 08: a sharded model's gradient norm, each logical element once.

An answer clips a sharded GPT in three training steps and is compared with torch's clipping of the
dense model. The right norm is stored with the numbers of known wrong ideas.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_classroom.judge import bench, looking
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import refuse_none
from course_classroom.judge.looking import ITEM, THREE, TWO
from course_classroom.judge.words import Page
from course_lessons.lesson_08 import model
from course_lib.collectives import all_gather, all_reduce
from course_lib.ledger import forms
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.parallelize import replicated

# most, relative to the norm: strong clipping, no clipping, slight clipping
PARTS = (0.2, 1.05, 0.95)
TIED = ("tokens.weight", "head.weight")
# float64; a sum in float32, which is off by digits but not by an idea
EXACT, ROUGHLY = 1e-9, 1e-5
ALONE = ", with gradients of no model, where rank 2 has empty shards"
EDGES = ", with gradients of no model, where first all are replicated, and then all are shards"
SAYS = Page(__file__, "clip_as_one")


def train(function: Callable, group: dist.ProcessGroup, seed: int) -> list[dict]:
    """Run three training steps; return the answer's results in each step."""
    config = model.GPT2.changed(layers=1, inner=4)  # on three ranks, one has no row of `up`
    whole = model.dense(config, seed)
    mine = model.cut_over(copy.deepcopy(whole), group)
    named = dict(mine.named_parameters(remove_duplicate=False))  # a tied weight has two names
    copies, steps = {id(p) for _, p in replicated(mine)}, []
    cut = {name for name, p in named.items() if id(p) not in copies}
    for k, part in enumerate(PARTS):
        ids, targets = model.tokens(config, seed + 7 * k)
        mine.zero_grad()
        whole.zero_grad()
        F.cross_entropy(whole(ids).flatten(0, 1), targets.flatten()).backward()
        cross_entropy(mine(ids), targets, group, vocabulary=config.vocabulary).backward()
        want = float(nn.utils.get_total_norm([p.grad for p in whole.parameters()]))
        nn.utils.clip_grad_norm_(whole.parameters(), part * want)
        gradients = {name: p.grad for name, p in named.items()}
        steps.append(_tried(function, gradients, cut, group, part * want) | {"want": want})
        with torch.no_grad():
            for p in (*whole.parameters(), *mine.parameters()):
                p -= 0.05 * p.grad
    return steps


def alone(function: Callable, group: dist.ProcessGroup, seed: int) -> list[dict]:
    """Try gradients without a model: 0 to 3 dims, float64 and float32, an empty last shard.

    Two different tensors have equal values, and a tied tensor's names are in the middle.
    """
    n, rank, steps = group.size(), group.rank(), []
    for step, (part, dtype) in enumerate(((0.4, torch.float64), (0.6, torch.float32))):
        made = torch.Generator().manual_seed(seed * 31 + step)
        same = [torch.randn(shape, generator=made).to(dtype) for shape in ((), (5,), (2, 4))]
        made = torch.Generator().manual_seed(seed * 31 + step + 7 * (rank + 1))
        rows = 0 if rank == n - 1 else rank + 2
        own = [torch.randn(rows, *rest, generator=made).to(dtype) for rest in ((3, 2), (6,))]
        gradients = {"scale": same[0], "experts": own[0], TIED[0]: own[1], TIED[1]: own[1]}
        gradients |= {"a": same[1], "b": same[1].clone(), "c": same[2]}
        cut = {"experts", *TIED}
        want = readings(gradients, cut, group)[0]
        steps.append(_tried(function, gradients, cut, group, part * want))
    return steps


def edges(function: Callable, group: dist.ProcessGroup, seed: int) -> list[dict]:
    """Try gradients of an untied head that are all replicated, then all sharded."""
    steps = []
    for step, cut in enumerate((set(), {"experts", "scale", *TIED})):
        made = torch.Generator().manual_seed(seed * 37 + step + 7 * (group.rank() + 1) * len(cut))
        shapes = {"experts": (3, 2), "scale": (), TIED[0]: (2, 4), TIED[1]: (2, 4)}
        gradients = {
            name: torch.randn(shape, generator=made, dtype=torch.float64)
            for name, shape in shapes.items()
        }
        if not cut:
            gradients[TIED[1]] = gradients[TIED[0]]
        want = readings(gradients, cut, group)[0]
        steps.append(_tried(function, gradients, cut, group, 0.5 * want))
    return steps


def _tried(
    function: Callable,
    gradients: dict[str, Tensor],
    cut: set[str],
    group: dist.ProcessGroup,
    most: float,
) -> dict:
    """Return the answer's result, its factor on each gradient, and its traffic."""
    before = {name: g.clone() for name, g in gradients.items()}
    tied = gradients[TIED[0]] is gradients[TIED[1]]
    want, wrong = readings(gradients, cut, group)
    given, given_cut = dict(gradients), set(cut)
    out, facts = bench.watched(lambda: function(given, given_cut, group, most))
    kept = given_cut == cut and list(given) == list(gradients)
    return {
        "kind": type(out).__name__,
        "norm": bench.number(out),
        "single": gradients[TIED[0]].dtype == torch.float32,
        "want": want,
        "most": most,
        "tied": tied,
        "cut": len(cut),
        "readings": wrong,
        "factors": {name: _factor(gradients[name], before[name]) for name in before},
        "changed": not (kept and all(given[name] is gradients[name] for name in given)),
        "bytes": facts["bytes"],
    }


def readings(
    gradients: dict[str, Tensor], cut: set[str], group: dist.ProcessGroup
) -> tuple[float, list[tuple[str, float]]]:
    """Return the right norm, and the norm under each known wrong idea, on this rank."""
    n, zero = group.size(), torch.zeros((), dtype=torch.float64)
    tied_to = {TIED[1]} if gradients[TIED[0]] is gradients[TIED[1]] else set()
    shards = [g.double() for name, g in gradients.items() if name in cut - tied_to]
    copies = [g.double() for name, g in gradients.items() if name not in cut | tied_to]

    def added(what: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Sum `what(tensor)` over this rank's shards, and over the replicated tensors."""
        return sum(map(what, shards), zero), sum(map(what, copies), zero)

    own, copied = added(lambda g: g.square().sum())
    tied = gradients[TIED[1]].double().square().sum()
    every = all_gather(torch.stack((own, tied))[None], group)  # (n, 2)
    cuts, ties = every.sum(0)
    norms, norms_of_copies = added(lambda g: g.norm())
    ones, ones_of_copies = added(lambda g: g.abs().sum())
    sums = all_reduce(torch.stack((norms, ones)), group)
    sizes = [g.abs().max() for g in (*shards, *copies) if g.numel()]
    roots = every[:, 0].sqrt().sum()
    squares = {
        "copies counted n times #1": [cuts + n * copied],
        "tied counted twice": [cuts + ties + copied],
        "copies counted n times #2": [cuts + ties + n * copied],
        "a rank's own norm": [own + copied, own + tied + copied],
        "head skipped by its name": [cuts - ties + copied],
        "replicated gradients left out": [cuts],
        "shards left out": [copied],
        "averaged": [cuts / n + copied],
        "norms added": [
            (sums[0] + norms_of_copies).square(),
            (every[:, 0] + copied).sqrt().sum().square(),
            roots.square() + copied,
            (roots + copied.sqrt()).square(),
            (cuts.sqrt() + copied.sqrt()).square(),
        ],
        "largest rank's norm": [every[:, 0].max() + copied],
        "no root": [(cuts + copied).square()],
        "a different norm": [
            (sums[1] + ones_of_copies).square(),
            all_reduce(torch.stack(sizes).max(), group, "max").square(),
        ],
    }
    wrong = [(entry, float(one.sqrt())) for entry, ways in squares.items() for one in ways]
    return float((cuts + copied).sqrt()), wrong


def _factor(after: Tensor, before: Tensor) -> float | None:
    """Return the factor that multiplied a gradient; None for a zero or empty gradient."""
    size = before.square().sum()
    if not before.numel() or not float(size):
        return None
    if (after.shape, after.dtype) != (before.shape, before.dtype):
        return math.nan
    factor = float((after * before).sum() / size)
    rtol = EXACT if before.dtype == torch.float64 else ROUGHLY
    same = torch.allclose(after, factor * before, rtol=rtol, atol=1e-14)
    return factor if same else math.nan


def look(reports: list[dict], where: str, step: int) -> None:
    refuse_none(reports, where, "the norm")
    SAYS.refuse_each(reports, {"not a number": lambda r: r["norm"] is None}, where=where)
    _look_at_norms(reports, where, step)
    for rank, report in enumerate(reports):
        _look_at_factors(report, f"{where}, rank {rank}")
    fair = forms.all_reduce(len(reports), ITEM * len(reports[0]["factors"]))
    looks = {"too much sent": lambda r: r["bytes"] > fair, "input changed": lambda r: r["changed"]}
    SAYS.refuse_each(reports, looks, where=where)


def _close(a: float, b: float, bound: float = EXACT) -> bool:
    return math.isclose(a, b, rel_tol=bound, abs_tol=1e-14)


def _look_at_norms(reports: Sequence[dict], where: str, step: int = 0) -> None:
    """Raise the Finding that explains all ranks' results, if a result is wrong."""
    # A float32 norm is also right, for logging; the factors show everything else.
    bound = ROUGHLY if reports[0].get("single") else 2.0**-23
    off = [k for k, r in enumerate(reports) if not _close(r["norm"], r["want"], bound)]
    if not off:
        return
    ratio = reports[off[0]]["norm"] / reports[off[0]]["want"]
    digits = 3 if abs(ratio - 1) > 0.01 else 9  # never say "1 times the correct value"
    head = f"The norm on rank {off[0]} is {ratio:.{digits}g} times the correct value {where}."
    _look_for_ideas(reports, head, EXACT)
    roughly = {
        "the norm after": all(
            _close(r["norm"], min(r["want"], r["most"]), ROUGHLY) for r in reports
        ),
        "rounded #1": all(_close(r["norm"], r["want"], ROUGHLY) for r in reports),
    }
    SAYS.refuse(roughly, head=head, where=where)
    _look_for_ideas(reports, head, ROUGHLY)
    found, right = ([report[key] for report in reports] for key in ("norm", "want"))
    looking.refuse_general(found, right, where, what="norm")
    no_model = {
        "nothing sharded": not reports[0]["cut"],
        "all sharded": reports[0]["cut"] == len(reports[0]["factors"]),
    }
    SAYS.refuse(no_model, head=head)
    raise SAYS("wrong second step" if step else "wrong norm", head=head)


def _look_for_ideas(reports: Sequence[dict], head: str, bound: float) -> None:
    """Raise a Finding if a single wrong idea gives every rank's number."""
    for k, (entry, _) in enumerate(reports[0]["readings"]):
        if all(_close(report["norm"], report["readings"][k][1], bound) for report in reports):
            name, text = SAYS.of(entry)
            raise Finding(name, f"{head} {text}")


def _look_at_factors(report: dict, where: str) -> None:
    """Check the factor on each gradient, if the norm is right."""
    most, norm = report["most"], report["want"]
    want, bound = min(1.0, most / (norm + 1e-6)), ROUGHLY if report["single"] else EXACT
    found = {name: factor for name, factor in report["factors"].items() if factor is not None}

    def not_scaled_by(factor: float, bound: float = bound) -> list[str]:
        return [name for name, f in found.items() if not _close(f, factor, bound)]

    wrong, changed = not_scaled_by(want), not_scaled_by(1.0)
    if not wrong:
        return
    short, left = want < 1, sorted(found.keys() - changed)
    others = short and report["tied"] and set(wrong) <= set(TIED)
    holds = {
        "wrong factor #1": short and not not_scaled_by(most / norm),
        "rounded #2": not not_scaled_by(want, 2.0**-22),
        "nothing scaled": short and not changed,
        "tied scaled twice": others and _close(found[TIED[0]], want * want, bound),
        "wrong factor #2": others,
        "made longer": not short,
        "only some scaled": left,
        "wrong factor #3": True,
    }
    SAYS.refuse(holds, where=where, name=wrong[0], want=want, left=left[0] if left else "")


TRIALS = (
    (train, THREE, [], ""),
    (alone, THREE, [2], ALONE),
    (edges, THREE, [], EDGES),
    (train, TWO, [], ""),
)
CLIP = Exercise(judge=model.judged(look, *TRIALS), **SAYS.about)
