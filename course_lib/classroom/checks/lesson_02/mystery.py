"""`mystery_cut` of lesson 02: five layers on three ranks, known by their shapes and their ledger.

`run` really runs one of them on a rank and says what can be seen of it; what is right follows from
how the layer was made. The exercise shows both to a learner who has to tell the cut from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.classroom.checks.words import Words
from course_lib.collectives import all_gather, all_reduce
from course_lib.layout import cut, span
from course_lib.ledger import ledger

COLUMNS, ROWS, BATCH = 1, 2, 3
RANKS = 3


class Layer(NamedTuple):
    """A product X[b, h] W[h, f] on three ranks: which dim is cut, and what is done to the ends."""

    cut: int
    b: int
    h: int
    f: int
    whole_ends: bool = False  # takes a whole X, or gives a whole Y, where that is cut inside


LAYERS = {
    "A": Layer(ROWS, 6, 12, 4),
    "B": Layer(BATCH, 18, 4, 4),
    "C": Layer(COLUMNS, 6, 4, 12),
    "D": Layer(ROWS, 6, 12, 4, whole_ends=True),
    "E": Layer(COLUMNS, 6, 4, 12, whole_ends=True),
}
FIELDS = tuple(f"{case}: {what}" for case in LAYERS for what in ("cut", "weight"))


def run(case: str, group: dist.ProcessGroup) -> str:
    """Run a layer forward and backward on this rank; what can be seen from outside, as text."""
    layer = LAYERS[case]
    n, rank = group.size(), group.rank()
    made = torch.Generator().manual_seed(ord(case))
    x, weight, dy = (
        torch.randn(shape, generator=made)
        for shape in ((layer.b, layer.h), (layer.h, layer.f), (layer.b, layer.f))
    )
    own = slice(*span({COLUMNS: layer.f, ROWS: layer.h, BATCH: layer.b}[layer.cut], n, rank))
    seen = {"X": x}
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
    seen |= {"W": weight, "Y": y} if layer.whole_ends else {"X": x, "W": weight, "Y": y}
    shapes = "  ".join(f"{name} {list(tensor.shape)}" for name, tensor in seen.items())
    sent = [
        f"  {phase:8} {record.op} of {record.elements} elements, "
        f"{round(record.must, 1):g} bytes to send"
        for phase in ("forward", "backward")
        for record in book.records
        if record.phase == phase
    ]
    return "\n".join([f"layer {case}: {shapes}", *(sent or ["  nothing sent"])])


RIGHT = {
    f"{case}: {what}": number
    for case, layer in LAYERS.items()
    for what, number in (("cut", layer.cut), ("weight", layer.h * layer.f))
}
SAYS = Words("""
no such cut: In {name!r}: the cuts are numbered from 1 to 3.
one rank's part: That is what one rank holds of the weight. If the layer is cut by columns or rows,
  the other ranks hold the rest.
three times the weight: Where each rank has other rows of X, all ranks hold the same whole weight:
  it is not cut, and counts once.
cut both ways: That would be cut by columns and by rows at once. Three ranks hold three parts, and
  each part has the size that is shown.
the sum, not the weight: That is how many elements are all-reduced. What is summed is X's gradient
  or Y here, and neither has the size of W.
bytes, not elements: Those are bytes. How many elements has the full weight?
forward and backward swapped: By columns the partial sum is in the backward, dX; by rows it is in
  the forward, Y.
misled by the ends: The all-gather is about the end of the layer, where a full tensor is handed
  over. Look at the sum: is it taken forward or backward, and has it the shape of Y or of X?
a sum of another size: Count the elements of the sum: as many as X, Y or W has? A gradient of W is
  summed where b is cut.
nothing sent forward: Nothing is sent forward in either of the other two. What is summed backward
  tells them apart: count its elements.
""")


def judge_mystery(given: Mapping) -> None:
    """Hold cuts and sizes against the layers, and name the sign that was misread."""
    for name in FIELDS[::2]:
        if given[name] not in (COLUMNS, ROWS, BATCH):
            raise Finding("wrong number", SAYS.of("no such cut", name=name)[1])
    weights = {name: RIGHT[name] for name in FIELDS[1::2]}
    part = 4 * 4  # of every weight, on a rank
    whole = [name for name, count in weights.items() if count == part]
    local = {name: part for name in weights if name not in whole}
    wrong = (
        ("one rank's part", local),
        ("three times the weight", dict.fromkeys(whole, RANKS * part)),
        ("cut both ways", dict.fromkeys(weights, RANKS**2 * part)),
        ("the sum, not the weight", dict.fromkeys(local, 24)),
        ("bytes, not elements", {name: 4 * count for name, count in weights.items()}),
        ("bytes, not elements", dict.fromkeys(local, 4 * part)),
        ("forward and backward swapped", _cuts(A=COLUMNS, C=ROWS)),
        ("misled by the ends", _cuts(D=COLUMNS, E=ROWS)),
        ("forward and backward swapped", _cuts(A=COLUMNS, C=ROWS, D=COLUMNS, E=ROWS)),
        ("a sum of another size", _cuts(A=BATCH, B=COLUMNS, C=BATCH, D=BATCH, E=BATCH)),
        ("nothing sent forward", _cuts(B=ROWS)),
    )
    mistakes = tuple(Mistake(*SAYS.of(entry), values) for entry, values in wrong)
    compare(given, RIGHT, mistakes, apart=True)


def _cuts(**codes: int) -> dict[str, int]:
    return {f"{case}: cut": code for case, code in codes.items()}


MYSTERY_CUT = Thought(
    name="mystery_cut",
    title="A layer known by what it sends",
    points=3,
    fields=FIELDS,
    judge=judge_mystery,
    when_right=(
        "The shapes of one rank say little: W has the same in all five. When a sum is taken, and "
        "of how many elements, says which dim was cut; an all-gather says only that an end was "
        "joined. That is how to read the profile of a program that you have not written."
    ),
    hints=(
        "There are three dims, and so three cuts. For each: which of Y, dX and dW is a sum over "
        "the dim that is cut? That result is summed over the ranks, Y forward, the others "
        "backward.",
        "Compare the number of elements in the all-reduce with those of X, of Y and of W.",
        "An all-gather joins pieces and adds nothing up: it tells that a full tensor was wanted, "
        "not where W is cut.",
        "For the size: where W is cut, every rank holds other rows or columns of it, and they are "
        "all as many here. Where b is cut, every rank holds the same W.",
    ),
)
