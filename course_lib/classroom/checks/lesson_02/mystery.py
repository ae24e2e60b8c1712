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
    with ledger() as book:
        if layer.cut == COLUMNS:
            seen = _columns(book, layer, x, weight[:, own], dy, own, group)
        elif layer.cut == ROWS:
            seen = _rows(book, layer, x, weight[own], dy, own, group)
        else:
            seen = _batch(book, x[own], weight, dy[own], group)
    shapes = "  ".join(f"{name} {list(tensor.shape)}" for name, tensor in seen.items())
    sent = [
        f"  {phase:8} {record.op} of {record.elements} elements, "
        f"{round(record.must, 1):g} bytes to send"
        for phase in ("forward", "backward")
        for record in book.records
        if record.phase == phase
    ]
    return "\n".join([f"layer {case}: {shapes}", *(sent or ["  nothing sent"])])


def _columns(book, layer, x, weight, dy, own, group) -> dict:
    with book.phase("forward"):
        y = x @ weight  # (b, f/n)
        if layer.whole_ends:
            y = all_gather(y, group, 1, cut(layer.f, group.size()))  # (b, f)
    with book.phase("backward"):
        all_reduce(dy[:, own] @ weight.T, group)  # (b, h)
    return {"X": x, "W": weight, "Y": y}


def _rows(book, layer, x, weight, dy, own, group) -> dict:
    with book.phase("forward"):
        y = all_reduce(x[:, own] @ weight, group)  # (b, f)
    with book.phase("backward"):
        dx = dy @ weight.T  # (b, h/n)
        if layer.whole_ends:
            all_gather(dx, group, 1, cut(layer.h, group.size()))  # (b, h)
    return {"X": x if layer.whole_ends else x[:, own], "W": weight, "Y": y}


def _batch(book, x, weight, dy, group) -> dict:
    with book.phase("backward"):
        all_reduce(x.T @ dy, group)  # (h, f)
    return {"X": x, "W": weight, "Y": x @ weight}


def _numbers(layers: Mapping[str, Layer]) -> dict[str, float]:
    """The cut and the elements of the whole weight, for every layer."""
    found: dict[str, float] = {}
    for case, layer in layers.items():
        found[f"{case}: cut"], found[f"{case}: weight"] = layer.cut, layer.h * layer.f
    return found


RIGHT = _numbers(LAYERS)
CUTS = FIELDS[::2]


def judge_mystery(given: Mapping) -> None:
    """Hold cuts and sizes against the layers, and name the sign that was misread."""
    odd = [name for name in CUTS if given[name] not in (COLUMNS, ROWS, BATCH)]
    if odd:
        raise Finding("wrong number", f"In {odd[0]!r}: the cuts are numbered from 1 to 3.")
    compare(given, RIGHT, _mistakes(), apart=True)


def _cuts(name: str, text: str, **codes: int) -> Mistake:
    return Mistake(name, text, {f"{case}: cut": code for case, code in codes.items()})


def _mistakes() -> tuple[Mistake, ...]:
    weights = {f"{case}: weight" for case in LAYERS}
    local = {name: 4 * 4 for name in weights if RIGHT[name] != 4 * 4}
    return (
        Mistake(
            "one rank's part",
            "That is what one rank holds of the weight. If the layer is cut by columns or rows, "
            "the other ranks hold the rest.",
            local,
        ),
        Mistake(
            "three times the weight",
            "Where each rank has other rows of X, all ranks hold the same whole weight: it is not "
            "cut, and counts once.",
            {name: 3 * 4 * 4 for name in weights if RIGHT[name] == 4 * 4},
        ),
        Mistake(
            "cut both ways",
            "That would be cut by columns and by rows at once. Three ranks hold three parts, and "
            "each part has the size that is shown.",
            dict.fromkeys(weights, 9 * 4 * 4),
        ),
        Mistake(
            "the sum, not the weight",
            "That is how many elements are all-reduced. What is summed is X's gradient or Y here, "
            "and neither has the size of W.",
            dict.fromkeys(local, 24),
        ),
        Mistake(
            "bytes, not elements",
            "Those are bytes. How many elements has the weight?",
            {name: 4 * RIGHT[name] for name in weights},
        ),
        Mistake(
            "bytes, not elements",
            "Those are the bytes of one rank's part. How many elements has the full weight?",
            {name: 4 * count for name, count in local.items()},
        ),
        _cuts(
            "forward and backward swapped",
            "By columns the partial sum is in the backward, dX; by rows it is in the forward, Y.",
            A=COLUMNS,
            C=ROWS,
        ),
        _cuts(
            "misled by the ends",
            "The all-gather is about the end of the layer, where a full tensor is handed over. "
            "Look at the sum: is it taken forward or backward, and has it the shape of Y or of X?",
            D=COLUMNS,
            E=ROWS,
        ),
        _cuts(
            "forward and backward swapped",
            "By columns the partial sum is in the backward, dX; by rows it is in the forward, Y.",
            A=COLUMNS,
            C=ROWS,
            D=COLUMNS,
            E=ROWS,
        ),
        _cuts(
            "a sum of another size",
            "Count the elements of the sum: as many as X, Y or W has? A gradient of W is summed "
            "where b is cut.",
            A=BATCH,
            B=COLUMNS,
            C=BATCH,
            D=BATCH,
            E=BATCH,
        ),
        _cuts(
            "nothing sent forward",
            "Nothing is sent forward in either of the other two. What is summed backward tells "
            "them apart: count its elements.",
            B=ROWS,
        ),
    )


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
