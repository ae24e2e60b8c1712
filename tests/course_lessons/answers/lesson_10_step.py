"""Answers to lesson 10's step on all ranks: right ones, and wrong ones by their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

STEP = '''
import math
import torch.distributed as dist


def agreed_step(parts, optimizer, scale, most, group):
    """A flag and a sum of squares in one message."""
    told = torch.zeros(2, dtype=torch.float64)
    for p in parts:
        p.grad /= scale
        told[0] += (~p.grad.isfinite()).sum()
        told[1] += p.grad.nan_to_num(0.0, 0.0, 0.0).square().sum()
    dist.all_reduce(told, group=group)
    bad, norm = bool(told[0] > 0), math.sqrt(told[1])
    if not bad:
        if norm > most:
            for p in parts:
                p.grad *= most / (norm + 1e-6)
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return (not bad, scale * 0.5 if bad else scale)
'''
# Another style: the library's norm, on what is still scaled; torch's own unscaling.
BY_LIBRARY = """
from course_lib.norms import Piece, norm


def agreed_step(parts, optimizer, scale, most, group):
    length = norm([Piece(p.grad, (group,)) for p in parts], [group]) / scale
    good = bool(torch.isfinite(length))
    if good:
        factor = (most / (length + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([p.grad for p in parts], float(factor / scale))
        optimizer.step()
    for p in parts:
        p.grad = None
    return good, torch.tensor(scale if good else scale / 2)
"""


def step(*changes: tuple[str, str]) -> str:
    return changed(STEP, *changes)


REDUCE = "    dist.all_reduce(told, group=group)\n"
ZERO = "    optimizer.zero_grad(set_to_none=True)\n"
BAD = "    bad, norm = bool(told[0] > 0), math.sqrt(told[1])\n"
# gloo's maximum drops a NaN that is not the first rank's.
MAXIMUM = """
import math
from course_lib.collectives import all_reduce


def agreed_step(parts, optimizer, scale, most, group):
    worst = torch.tensor(max([float(p.grad.abs().max()) for p in parts if p.numel()] or [0.0]))
    total = torch.tensor(sum(float(p.grad.div_(scale).square().sum()) for p in parts))
    worst = all_reduce(worst, group, "max")
    total = all_reduce(total, group)
    if not math.isfinite(worst):
        optimizer.zero_grad()
        return False, scale / 2
    norm = total.item() ** 0.5
    if norm > most:
        for p in parts:
            p.grad *= most / (norm + 1e-6)
    optimizer.step()
    optimizer.zero_grad()
    return True, scale
"""
WRONG_STEP = {
    "the largest of all": (MAXIMUM, "NaN let through"),
    "at least 1": (step(("scale * 0.5 if", "max(scale / 2, 1.0) if")), "scale not halved"),
    "a whole number": (step(("scale * 0.5 if", "scale // 2 if")), "scale not halved"),
    "without the optimizer": (
        step(
            (
                "        optimizer.step()\n",
                "        for p in parts:\n"
                "            p.data -= optimizer.param_groups[0]['lr'] * p.grad\n",
            )
        ),
        "not by the optimizer",
    ),
    "the first group alone": (
        step(
            (
                "            for p in parts:\n",
                "            for p in optimizer.param_groups[0]['params']:\n",
            )
        ),
        "wrong factor",
    ),
    "plus infinity alone": (
        step(("(~p.grad.isfinite())", "(p.grad.isnan() | (p.grad == math.inf))")),
        "stepped despite an inf",
    ),
    "norms of the parts": (
        step((".square().sum()", ".norm()"), ("math.sqrt(told[1])", "float(told[1])")),
        "norms added up",
    ),
    "each for itself": (
        step(
            (REDUCE, "    own = told[0].clone()\n" + REDUCE), ("bool(told[0] > 0)", "bool(own > 0)")
        ),
        "no agreement",
    ),
    "nothing sent": (step((REDUCE, "")), "no agreement"),
    "an inf is no NaN": (step(("(~p.grad.isfinite())", "p.grad.isinf()")), "NaN let through"),
    "larger than the largest": (
        step(("(~p.grad.isfinite())", "(p.grad.abs() > 1e300)")),
        "NaN let through",
    ),
    "never": (step(("bool(told[0] > 0)", "False")), "stepped despite an inf"),
    "always": (step(("bool(told[0] > 0)", "bool(told[0] >= 0)")), "skipped without reason"),
    "a step of zeros": (
        step(
            (
                "    if not bad:\n",
                "    if bad:\n        for p in parts:\n            p.grad.zero_()\n"
                "        kept = [p.detach().clone() for p in parts]\n"
                "        optimizer.step()\n"
                "        for p, old in zip(parts, kept):\n            p.data.copy_(old)\n"
                "    if not bad:\n",
            )
        ),
        "a step of zeros",
    ),
    "clipped first": (
        step(
            ("        p.grad /= scale\n", ""),
            (
                "        optimizer.step()\n",
                "        for p in parts:\n            p.grad /= scale\n        optimizer.step()\n",
            ),
        ),
        "clipped before unscaling",
    ),
    "scaled for ever": (step(("        p.grad /= scale\n", "")), "not unscaled"),
    "the norm alone unscaled": (
        step(
            ("        p.grad /= scale\n", ""), ("math.sqrt(told[1])", "math.sqrt(told[1]) / scale")
        ),
        "not unscaled",
    ),
    "twice": (
        step(
            (
                "        optimizer.step()\n",
                "        for p in parts:\n            p.grad /= scale\n        optimizer.step()\n",
            )
        ),
        "unscaled twice",
    ),
    "no clipping": (step(("        if norm > most:\n", "        if False:\n")), "not clipped"),
    "always as long": (step(("        if norm > most:\n", "        if True:\n")), "made longer"),
    "its own length": (
        step(
            (REDUCE, "    own = told[1].clone()\n" + REDUCE),
            ("math.sqrt(told[1])", "math.sqrt(own)"),
        ),
        "shard norm",
    ),
    "half the length": (step(("most / (norm", "0.5 * most / (norm")), "wrong factor"),
    "a scale of its own": (
        step(
            (REDUCE, "    own = bool(told[0] > 0)\n" + REDUCE),
            ("scale * 0.5 if bad", "scale * 0.5 if own"),
        ),
        "ranks with different scales",
    ),
    "never halved": (step(("scale * 0.5 if bad else scale", "scale")), "scale not halved"),
    "always halved": (step(("scale * 0.5 if bad else scale", "scale * 0.5")), "wrong scale"),
    "the gradients stay": (step((ZERO, "")), "gradients left"),
    "everybody's shard": (
        step(
            (
                BAD,
                BAD + "    flat = [p.grad.flatten() for p in parts]\n"
                "    whole = torch.cat(flat + [torch.zeros(64).double()])\n"
                "    every = [torch.zeros(64).double() for _ in range(group.size())]\n"
                "    dist.all_gather(every, whole[:64].clone(), group=group)\n",
            )
        ),
        "too much sent",
    ),
    "away before the message": (
        step((REDUCE, "    if told[0] > 0:\n        return False, scale * 0.5\n" + REDUCE)),
        "deadlock",
    ),
    "over all ranks": (step((REDUCE, "    dist.all_reduce(told)\n")), "group left out"),
    "a yes alone": (
        step(("    return (not bad, scale * 0.5 if bad else scale)", "    return not bad")),
        "not a pair",
    ),
    "nothing": (
        step(("    return (not bad, scale * 0.5 if bad else scale)", "    return")),
        "nothing returned",
    ),
}

RIGHT: dict = {"agreed_step": {"one message": STEP, "by library": BY_LIBRARY}}
WRONG: dict = {"agreed_step": WRONG_STEP}
