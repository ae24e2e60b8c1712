"""Which optimizers may be cut: those that treat every element for itself, so that a shard's update
is the whole's.

torch's own are known by name; any other is tried on a twin, whole and in shards. Lesson 09.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.zero.twin import device_of, twin_of

STEPS = 12
# Each step's gradients are so large, against those of the first.
SCALES = (1.0, 1.0, 0.1, 1.0, 100.0, 1.0, 0.001, 1.0, 10.0, 1.0, 1.0, 1.0)
ZERO_STEP = 8  # in which the first shard's gradients are zeros, and the second's are not
MOST_GROUPS = 16  # that are tried together
REMEDY = "Use an elementwise one, such as SGD, Adam or AdamW, or stage 0, which cuts nothing"


class Sizes(NamedTuple):
    """A group's parameters end to end, and where the flat cut goes through them; without one, each
    of them is cut into halves."""

    shapes: tuple[tuple[int, ...], ...]
    cut: int | None

    @property
    def numel(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes)


# A vector, a matrix, a kernel: the cut leaves 6 elements of the matrix on each side, in its row.
SMALL = Sizes(((5,), (3, 4), (2, 3, 2, 1)), 5 + 6)
LARGE = Sizes(((251,), (160, 251)), 251 + 20_000)  # 20,000 and 20,160 elements of a matrix
# Whatever size or length of a row or column an optimizer may ask for, some parameter here has more,
# and its halves have less.
HALVES = Sizes((*((2**i,) for i in range(1, 15)), (2**14, 2), (2, 2**14)), None)

ELEMENTWISE = {
    *("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop"),
    *("Rprop", "ASGD"),
}
FACTORS = "keeps the second moments of a matrix by its rows and columns"
NORMS = "scales the update of a parameter by that parameter's norm"
DISTANCE = "derives the length of its steps from sums over all parameters"
BLOCKS = "quantizes its states in blocks of elements, and a shard's blocks begin elsewhere"
MATRICES = "multiplies whole matrices"
TORCH_OTHERS = {
    "Adafactor": FACTORS,
    "Muon": "orthogonalizes whole matrices",
    "LBFGS": "takes its direction and its step from products over all gradients",
    "SparseAdam": "takes sparse gradients alone, and a shard's gradient is dense",
}
# Others, by their classes' names in lower case.
OTHERS = {
    # But for the base of all of bitsandbytes', those in 32 bits too.
    r"(?!optimizer8bit$).*(8|4)bit|.*fp8": BLOCKS,
    r"(distributed)?(fused)?(lamb|lars)": NORMS,
    r"prodigy.*|dadapt.*|dadaptation.*": DISTANCE,
    r"(distributed)?shampoo|soap": f"{MATRICES}: its preconditioners are those of rows and columns",
    r".*muon.*": TORCH_OTHERS["Muon"],
    r"adafactor|came": FACTORS,
    r"galore.*|.*galore": f"{MATRICES}: it projects gradients onto a few of their directions",
    r"adam_?mini": "keeps one second moment for a whole block of a parameter",
    r"zeroredundancyoptimizer": "cuts the optimizer's states over the ranks itself",
}


def check_elementwise(optimizer: Optimizer) -> None:
    """Refuse an optimizer that would update a shard otherwise than the same part of the whole.

    torch's own classes are answered by name, and so are some others that are known not to be
    elementwise. Of the rest, subclasses of torch's among them, twins make `STEPS` steps: one over
    whole parameters, and one for each of two ranks, with its shards alone; their weights have to
    agree after each step. Such a trial cannot see what begins after step 12, or with parameters of
    more than 40,160 elements, or in another group than the 16 that differ most in their options, or
    what only the user's own weights and gradients bring about: there the word of whoever wrote the
    optimizer is needed.
    """
    if is_known(optimizer):
        return
    name = type(optimizer).__name__
    cause = _known_cause(optimizer)
    if cause is not None:
        raise ValueError(
            f"{name} updates a shard otherwise than the whole: it {cause}, and a rank has its "
            f"shard alone. {REMEDY}"
        )
    with generators_kept(optimizer):
        for sizes in (SMALL, LARGE, HALVES):
            _try(optimizer, sizes)


def is_known(optimizer: Optimizer) -> bool:
    """Whether it is one of torch's own that are elementwise."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim") and kind.__name__ in ELEMENTWISE


def _known_cause(optimizer: Optimizer) -> str | None:
    """Why it is not elementwise, if that is known of its class. A subclass of one of torch's may
    differ from it, and is tried; one of another's is taken to be like it."""
    kind = type(optimizer)
    if getattr(getattr(optimizer, "args", None), "optim_bits", 32) == 8:  # one of bitsandbytes'
        return BLOCKS
    if kind.__module__.startswith("torch.optim"):
        return TORCH_OTHERS.get(kind.__name__)
    for base in kind.__mro__:
        if not base.__module__.startswith("torch.optim"):
            for pattern, cause in OTHERS.items():
                if re.fullmatch(pattern, base.__name__.lower()):
                    return cause
    return None


def _try(optimizer: Optimizer, sizes: Sizes) -> None:
    name, groups = type(optimizer).__name__, groups_to_try(optimizer)
    numbers = _numbers(sizes, len(groups))
    try:
        whole = _weights_after_each(optimizer, groups, numbers, [_as_whole(sizes)])
        shards = _weights_after_each(optimizer, groups, numbers, _shards(sizes))
    except Exception as error:
        raise ValueError(
            f"{name} does not step on a shard ({error}), and a rank has nothing else. {REMEDY}"
        ) from error
    start, moved, most = numbers[0], torch.zeros_like(numbers[0]), numbers[0].abs()
    before = start
    for step, (a, b) in enumerate(zip(whole, shards, strict=True), 1):
        moved, most = moved + (a - before).abs(), torch.maximum(most, a.abs())
        before = a
        # Rounding: of each step's update, and of the weight that it is added to.
        same = (a - b).abs() <= 1e-5 * moved + 2e-6 * most
        if not bool((same | (a == b) | (a.isnan() & b.isnan())).all()):
            large = "half of a parameter" if sizes.cut is None else f"{sizes.cut:,} elements"
            raise ValueError(
                f"{name} updates a shard otherwise than the whole, by step {step} of a trial with "
                f"{large} a shard: it looks at more than one number at a time (at a norm, a row, "
                "how large a parameter is, how many there are), or draws random numbers, and a "
                f"rank has its shard alone. {REMEDY}"
            )
    if groups and all(torch.equal(start, a) for a in whole):
        raise ValueError(
            f"{name} changed no weight in {STEPS} steps of a trial, so whether it updates a shard "
            "as it does the whole could not be seen: make it with options with which it works "
            f"from its first steps on. {REMEDY}"
        )


def groups_to_try(optimizer: Optimizer) -> list[dict]:
    """At most `MOST_GROUPS` groups: first those whose options differ in more than a number."""
    groups, by_options = optimizer.param_groups, {}
    for i, group in enumerate(groups):
        options = {k: v for k, v in group.items() if k not in ("params", "param_names", "lr")}
        for name, value in options.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                options[name] = value != 0
        by_options.setdefault(repr(options), i)
    first = dict.fromkeys([*by_options.values(), *range(len(groups))])
    return [groups[i] for i in sorted(list(first)[:MOST_GROUPS])]


def _numbers(sizes: Sizes, groups: int) -> Tensor:
    """(1 + STEPS, groups, elements): the weights to begin with, and each step's
    gradients, which have a direction in common, as in training."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn((1 + STEPS, groups, sizes.numel), generator=generator, device="cpu")
    common = torch.randn((groups, sizes.numel), generator=generator, device="cpu")
    numbers[1:] = (numbers[1:] + common) * numbers.new_tensor(SCALES).view(-1, 1, 1)
    numbers[1 + ZERO_STEP, :, : sizes.cut or 0] = 0
    return numbers


# Where a twin's parameters lie among a group's elements: their first, and their shape.
Place = list[tuple[int, tuple[int, ...]]]


def _weights_after_each(
    optimizer: Optimizer, groups: Sequence[dict], numbers: Tensor, places: Sequence[Place]
) -> Tensor:
    """(STEPS, groups, elements): the weights after each step of as many twins as there are
    `places`, made one after another."""
    found = numbers[:1].repeat(STEPS, 1, 1)
    for place in places:
        own = [
            [nn.Parameter(x.to(device_of(group), copy=True)) for x in _taken(start, place)]
            for group, start in zip(groups, numbers[0], strict=True)
        ]
        twin = twin_of(optimizer, groups, own)
        for gradients, weights in zip(numbers[1:], found, strict=True):
            for some, gradient in zip(own, gradients, strict=True):
                for p, g in zip(some, _taken(gradient, place), strict=True):
                    p.grad = g.to(p.device, copy=True)
            type(optimizer).step(twin)
            for some, into in zip(own, weights, strict=True):
                for p, x in zip(some, _taken(into, place), strict=True):
                    x.copy_(p.detach())
    return found


def _taken(flat: Tensor, place: Place) -> list[Tensor]:
    return [flat[a : a + torch.Size(shape).numel()].view(shape) for a, shape in place]


def _as_whole(sizes: Sizes) -> Place:
    ends = [0]
    for shape in sizes.shapes:
        ends.append(ends[-1] + torch.Size(shape).numel())
    return list(zip(ends[:-1], sizes.shapes, strict=True))


def _shards(sizes: Sizes) -> list[Place]:
    """The two ranks' shards."""
    if sizes.cut is not None:
        return [_between(sizes, 0, sizes.cut), _between(sizes, sizes.cut, sizes.numel)]
    halves = [(a, torch.Size(shape).numel() // 2) for a, shape in _as_whole(sizes)]
    return [[(a + rank * half, (half,)) for a, half in halves] for rank in range(2)]


def _between(sizes: Sizes, start: int, stop: int) -> Place:
    """A rank's shards: flat, as many as there are parameters that reach into its stretch."""
    found = []
    for first, shape in _as_whole(sizes):
        a, b = max(start, first), min(stop, first + torch.Size(shape).numel())
        if a < b:
            found.append((a, (b - a,)))
    return found


@contextlib.contextmanager
def generators_kept(optimizer: Optimizer) -> Iterator[None]:
    """Afterwards torch's and Python's generators are as they were, whoever drew from them."""
    every = {device_of(group) for group in optimizer.param_groups}
    devices = [device for device in every if device.type == "cuda"]
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(state)
