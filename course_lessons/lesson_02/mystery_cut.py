"""`mystery_cut` of lesson 02: five layers on three ranks, to be identified by shapes and ledger.

`run` executes one layer on a rank and describes the visible facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from course_classroom.judge.thought import Thought, compare, named
from course_classroom.judge.words import Page
from course_lib.collectives import all_gather, all_reduce
from course_lib.layout import cut, span
from course_lib.ledger import ledger

COLUMNS, ROWS, BATCH = 1, 2, 3
RANKS = 3


class Layer(NamedTuple):
    """A product X[b, h] W[h, f] on three ranks: the cut, the sizes, and the layouts of the ends."""

    cut: int
    b: int
    h: int
    f: int
    whole_ends: bool = False  # takes the full X, or gives the full Y, where it is cut inside


LAYERS = {
    "A": Layer(ROWS, 6, 12, 4),
    "B": Layer(BATCH, 18, 4, 4),
    "C": Layer(COLUMNS, 6, 4, 12),
    "D": Layer(ROWS, 6, 12, 4, whole_ends=True),
    "E": Layer(COLUMNS, 6, 4, 12, whole_ends=True),
}
FIELDS = tuple(f"{case}: {what}" for case in LAYERS for what in ("cut", "weight"))


def run(case: str, group: dist.ProcessGroup) -> str:
    """Run a layer forward and backward on this rank; return the visible facts as text."""
    layer = LAYERS[case]
    n, rank = group.size(), group.rank()
    made = torch.Generator().manual_seed(ord(case))
    x, weight, dy = (
        torch.randn(shape, generator=made)
        for shape in ((layer.b, layer.h), (layer.h, layer.f), (layer.b, layer.f))
    )
    own = slice(*span({COLUMNS: layer.f, ROWS: layer.h, BATCH: layer.b}[layer.cut], n, rank))
    whole = x
    if layer.cut == COLUMNS:
        weight, dy = weight[:, own], dy[:, own]
    elif layer.cut == ROWS:
        x, weight = x[:, own], weight[own]
    else:
        x, dy = x[own], dy[own]
    with ledger() as book:
        with book.phase("forward"):
            y = x @ weight
            if layer.cut == ROWS:
                y = all_reduce(y, group)  # (b, f)
            elif layer.cut == COLUMNS and layer.whole_ends:
                y = all_gather(y, group, 1, cut(layer.f, n))
        with book.phase("backward"):
            dx = dy @ weight.T
            if layer.cut == COLUMNS:
                all_reduce(dx, group)  # (b, h)
            elif layer.cut == BATCH:
                all_reduce(x.T @ dy, group)  # (h, f)
            elif layer.whole_ends:
                all_gather(dx, group, 1, cut(layer.h, n))
    seen = {"X": whole if layer.whole_ends else x, "W": weight, "Y": y}
    shapes = "  ".join(f"{name} {list(tensor.shape)}" for name, tensor in seen.items())
    sent = [
        f"  {one.phase:8} {one.op} of {one.elements} elements, {round(one.must, 1):g} bytes to send"
        for one in book.records
    ]
    return "\n".join([f"layer {case}: {shapes}", *(sent or ["  nothing sent"])])


RIGHT = {
    f"{case}: {what}": number
    for case, layer in LAYERS.items()
    for what, number in (("cut", layer.cut), ("weight", layer.h * layer.f))
}
SAYS = Page(__file__, "mystery_cut")


WEIGHTS = {name: RIGHT[name] for name in FIELDS[1::2]}
PART = 4 * 4  # of every weight, on a rank
WHOLE = [name for name, count in WEIGHTS.items() if count == PART]
LOCAL = dict.fromkeys(WEIGHTS.keys() - WHOLE, PART)


def _cuts(**codes: int) -> dict[str, int]:
    return {f"{case}: cut": code for case, code in codes.items()}


MISREADINGS = (
    ("one rank's part", LOCAL),
    ("three times the weight", dict.fromkeys(WHOLE, RANKS * PART)),
    ("cut both ways", dict.fromkeys(WEIGHTS, RANKS**2 * PART)),
    ("the sum, not the weight", dict.fromkeys(LOCAL, 24)),
    ("bytes, not elements", {name: 4 * count for name, count in WEIGHTS.items()}),
    ("bytes, not elements", dict.fromkeys(LOCAL, 4 * PART)),
    ("forward and backward swapped", _cuts(A=COLUMNS, C=ROWS)),
    ("misled by the all-gather", _cuts(D=COLUMNS, E=ROWS)),
    ("forward and backward swapped", _cuts(A=COLUMNS, C=ROWS, D=COLUMNS, E=ROWS)),
    ("wrong size of the sum", _cuts(A=BATCH, B=COLUMNS, C=BATCH, D=BATCH, E=BATCH)),
    ("nothing sent forward", _cuts(B=ROWS)),
)


def judge_mystery(given: Mapping) -> None:
    """Compare the cuts and sizes with the layers, and name the misread evidence."""
    for name in FIELDS[::2]:
        if given[name] not in (COLUMNS, ROWS, BATCH):
            raise SAYS("wrong number", name=name)
    compare(given, RIGHT, named(SAYS, MISREADINGS), apart=True)


MYSTERY_CUT = Thought(fields=FIELDS, judge=judge_mystery, **SAYS.about)
