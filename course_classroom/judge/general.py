"""Mistakes that can occur in any exercise, recognised by their effect, without declarations.

They are rounding through a narrower type, right results only on some ranks, and a mean instead of a
sum or the reverse. `general.md` has their texts. From lesson 00 on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from course_classroom.judge.finding import Finding
from course_classroom.judge.words import Page

SAYS = Page(__file__, "general")
ROUNDED = "rounded on the way"
# Maximum error relative to the largest value if that type was used on the way.
_SINGLE, _HALF = 2e-6, 2e-2
_MANY = 12  # elements; fewer could round alike by chance
_HALVES = (torch.bfloat16, torch.float16)

Alike = Callable[[Tensor | float | None, Tensor | float], bool]


def narrower(seen: Tensor, wanted: Tensor) -> list[str]:
    """Return the narrower types through which the values passed, if that explains all errors."""
    if not (seen.dtype == wanted.dtype == torch.float64) or not seen.numel():
        return []
    finite = wanted.isfinite()
    if not torch.equal(seen[~finite], wanted[~finite]):
        return []
    seen, wanted = seen[finite], wanted[finite]
    if torch.equal(seen, seen.round()) and torch.equal(wanted, wanted.round()):
        return []  # counts, which rounding does not change
    if _lopsided((seen - wanted)[wanted != 0] / wanted[wanted != 0]):
        return []
    off, largest = (seen - wanted).abs(), float(wanted.abs().max()) if wanted.numel() else 0.0
    if not largest or not bool(off.isfinite().all()):
        return []
    if float(off.max()) <= _SINGLE * largest:
        return ["float32"]
    for kind in _HALVES:
        if float(off.max()) <= _HALF * largest and torch.equal(seen.to(kind).double(), seen):
            return [str(kind).removeprefix("torch.")]
    return []


def _lopsided(errors: Tensor) -> bool:
    """Return True if all relative errors have one sign but different sizes, as after a small change
    of a denominator. Rounding errors have both signs, or come from one rounded factor."""
    errors = errors[errors != 0]
    if len(errors) < _MANY or len(set(errors.sign().tolist())) > 1:
        return False
    return float(errors.abs().max()) > 1.01 * float(errors.abs().min())


def rounding(met: Sequence[str], said: str) -> Finding:
    """Return the Finding for rounding; `said` is the message of the exercise's own look."""
    kinds = " or ".join(dict.fromkeys(met))
    return SAYS(ROUNDED, kinds=kinds, what=said.split("\n", 1)[0])


def recognised(
    seen: Sequence[Tensor | None],
    right: Sequence[Tensor | float],
    sizes: Mapping[str, int],
    alike: Alike,
    what: str,
) -> Finding | None:
    """Return the Finding of the general mistake that explains the error, or None."""
    n = len(right)
    if len(seen) != n or any(one is None for one in seen):
        return None
    fine = [rank for rank in range(n) if alike(seen[rank], right[rank])]
    same = all(alike(a, b) for a, b in pairwise(right))
    if n > 1 and len(fine) == 1 and same:
        return SAYS("on one rank only", what=what, rank=fine[0])
    if fine:
        return None
    told_apart = [name for name in sizes if list(sizes.values()).count(sizes[name]) == 1]
    for name in told_apart:
        size = sizes[name]
        for entry, factor in {"a mean over the": 1 / size, "a sum over the": size}.items():
            if size > 1 and all(alike(s, r * factor) for s, r in zip(seen, right, strict=True)):
                _, text = SAYS.of(entry, what=what, size=size, over=name)
                return Finding(f"{entry} {name}", text)
    return None
