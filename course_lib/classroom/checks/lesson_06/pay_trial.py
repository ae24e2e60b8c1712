"""What runs on the judge's ranks for `pay_sums`: three steps of the decoder beside one process.

Each rank works out its own gradients, the answer settles them, and the ranks go on with what it
returned. What is right, and what one idea or another would give, is worked out here. Lesson 06.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.classroom.checks import bench, general
from course_lib.classroom.checks.lesson_06 import decoder
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group
from course_lib.layout import cut

STEPS, RATE, BATCH, TOLERANCE = 3, 0.002, 8, 1e-10
RIGHT, ALONE, TIMES, MEAN, OTHER = "right", "alone", "times n", "mean", "other"
ROUNDED = "rounded"
OWED = ("positions", "norm.weight", "norm.bias", "q_norm.weight", "out.bias")


def agreed(fine: bool, group: Group) -> bool:
    """Whether all ranks can go on; where one cannot, none does, and none waits for it."""
    return bool(all_gather(torch.tensor([int(fine)]), group).all())


def numbers(length: int, seed: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Parameters, inputs and the gradients of the logits: the same on all ranks."""
    made = torch.Generator().manual_seed(seed * 31 + length)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64)

    parameters = {name: some(*shape) for name, shape in decoder.SHAPES.items()}
    xs = some(STEPS, BATCH, length, decoder.HIDDEN)
    return parameters, xs, some(STEPS, BATCH, length, decoder.CLASSES)


def dense_logits(x: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """The decoder in one process, without a message: (b, s, h) to (b, s, c)."""
    size = decoder.SIZE
    x = x + p["positions"][: x.shape[1]]
    normed = F.layer_norm(x, x.shape[-1:], p["norm.weight"], p["norm.bias"])
    wide = normed @ p["qkv.weight"].flatten(0, 2).t() + p["qkv.bias"].flatten()
    q, k, v = wide.unflatten(-1, (3, -1, size)).permute(2, 0, 3, 1, 4)  # (b, heads, s, d) each
    q = F.rms_norm(q, (size,), p["q_norm.weight"], 1e-5)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + y @ p["out.weight"].flatten(1).t() + p["out.bias"]
    return x @ p["readout.weight"].t() + p["readout.bias"]


def gradients(parameters: Mapping[str, Tensor], logits: Callable, pull: Tensor) -> dict:
    """Of each parameter, where `logits(leaves)` gets `pull` from behind."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    logits(leaves).backward(pull)
    return {name: leaf.grad for name, leaf in leaves.items()}


def run(function: Callable, group: Group, length: int, seed: int) -> dict:
    """Three steps of `function(gradients, group)`; what it gave for each parameter, in words."""
    n, rank = group.size(), group.rank()
    dense, xs, pulls = numbers(length, seed)
    mine = {name: decoder.own(name, p, n, rank) for name, p in dense.items()}
    steps: list[dict] = []
    earlier: list[tuple[Tensor, Tensor]] = []  # what came back, and its elements at that time
    for x, pull in zip(xs, pulls, strict=True):
        own_x = x.split(cut(length, n), 1)[rank]
        right = gradients(dense, lambda p, x=x: dense_logits(x, p), pull)
        part = gradients(mine, lambda p, x=own_x: decoder.forward(x, p, length, group), pull)
        given = {name: g.clone() for name, g in part.items()}
        out, facts = bench.watched(lambda given=given: function(given, group))
        step = {**facts, "kind": type(out).__name__, "problem": _problem(out, part)}
        step["found"], step["off"], step["mixed"] = {}, {}, False
        step["emptied"] = sorted(set(part) - set(given))
        step["overwritten"] = not all(torch.equal(g, was) for g, was in earlier)
        steps.append(step)
        if not step["problem"]:
            for name, g in right.items():
                here = decoder.own(name, g, n, rank)
                step["found"][name] = named(out[name], part[name], here, n)
                step["off"][name] = float((out[name] - here).norm() / here.norm())
            step["mixed"] = _total(out).isclose(_total(right)).item()
            earlier += [(g, g.detach().clone()) for g in out.values() if isinstance(g, Tensor)]
        if not agreed(not step["problem"], group):
            break
        dense = {name: p - RATE * right[name] for name, p in dense.items()}
        mine = {name: p - RATE * out[name].detach() for name, p in mine.items()}
    return {"steps": steps}


def _total(gradients: Mapping[str, Tensor]) -> Tensor:
    """Of all elements that needed a sum, whatever their order."""
    return torch.stack([gradients[name].detach().double().sum() for name in OWED]).sum()


def _problem(out: object, part: Mapping[str, Tensor]) -> str:
    if out is None:
        return "none"
    if not isinstance(out, Mapping):
        return "no dictionary"
    missing = [name for name in part if not isinstance(out.get(name), Tensor)]
    if missing:
        return f"missing {missing[0]}"
    strange = [
        name
        for name, g in part.items()
        if (out[name].shape, out[name].dtype, out[name].device, out[name].layout)
        != (g.shape, g.dtype, g.device, g.layout)
    ]
    return f"shape {strange[0]}" if strange else ""


def named(got: Tensor, part: Tensor, right: Tensor, n: int) -> str:
    """Whether a gradient is right, and if not, what it is instead."""
    readings = {RIGHT: right, ALONE: part, TIMES: n * right, MEAN: right / n}
    for name, wanted in readings.items():
        if bool(((got - wanted).abs() <= TOLERANCE * max(1.0, float(wanted.abs().max()))).all()):
            return name
    return ROUNDED if general.narrower(got.detach(), right) else OTHER
