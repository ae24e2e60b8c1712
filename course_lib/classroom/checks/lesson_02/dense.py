"""What one process draws for `sharded_init` of lesson 02, and how numbers of another origin show.

The whole layer and its parts, two tensors with one factor between them, a seed for each rank.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from course_lib.classroom.checks.lesson_02.results import Owed
from course_lib.classroom.checks.lesson_02.trial import COLUMNS
from course_lib.layout import span


def dense(h: int, f: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What one process has: weight, bias, and what the generator gives after them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(h, f)
        following = torch.rand(3, dtype=torch.float64)
    return layer.weight.detach(), layer.bias.detach(), following


def parts(weight: Tensor, bias: Tensor, way: str, n: int, rank: int) -> list[Owed]:
    """What one rank holds, in torch.nn.Linear's shapes: weight[f, h]."""
    f, h = weight.shape
    if way == COLUMNS:
        own = slice(*span(f, n, rank))
        return [Owed("weight", weight[own], weight), Owed("bias", bias[own], bias)]
    own = slice(*span(h, n, rank))
    return [Owed("weight", weight[:, own], weight), Owed("bias", bias, bias)]


def same(a: Tensor, b: Tensor) -> bool:
    """Drawn by the same generator in the same order: equal but for the last bit of a scaling."""
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-6, atol=1e-9)


def own_seeds(whole_h: int, whole_f: int, way: str, seed: int, got: list[Tensor]) -> bool:
    """Whether each rank drew a layer of its part's size, or the whole, from the seed plus r."""
    for step, plus in itertools.product((1, 10, 100, 1000), (0, 1)):
        drawn = []
        for rank in range(len(got)):
            f, h = got[rank].shape
            small, _, _ = dense(h, f, seed + step * rank + plus)
            weight, bias, _ = dense(whole_h, whole_f, seed + step * rank + plus)
            large = parts(weight, bias, way, len(got), rank)[0].part
            drawn.append((small, large))
        if any(
            all(same(one, pair[kind]) for one, pair in zip(got, drawn, strict=True))
            for kind in (0, 1)
        ):
            return True
    return False


def ratio(got: Tensor, right: Tensor) -> float | None:
    """How many times `right` a tensor is, where it is that throughout."""
    if got.shape != right.shape or not right.numel():
        return None
    scale = float(got.double().norm() / right.double().norm())
    for signed in (scale, -scale):
        if torch.allclose(got.double(), signed * right.double(), rtol=1e-5, atol=1e-8):
            return signed
    return None
