"""Likely answers to `fuse_gate_up` of lesson 04: right ones, and wrong ones with the name that each
is refused by. Rarer ones, and those to the lesson's other exercises, stand in `lesson_04_tried.py`.
"""

from __future__ import annotations

from tests.course_lessons.answers import changed

HEAD = """import torch

from course_lib.collectives import broadcast
from course_lib.layout import cut, span


"""
FUSE = (
    HEAD
    + '''def fuse_gate_up(gate, up, group):
    """Own rows of both."""
    start, stop = span(len(gate), group.size(), group.rank())
    return torch.cat((gate[start:stop], up[start:stop]))
'''
)


def fuse(*pairs: tuple[str, str]) -> str:
    return changed(FUSE, *pairs)


def body(text: str) -> str:
    """An answer written from nothing."""
    return f"{HEAD}def fuse_gate_up(gate, up, group):\n{text}"


STACKED = body(
    "    n, r = group.size(), group.rank()\n"
    "    a, b = span(gate.shape[0], n, r)\n"
    "    return torch.stack((gate, up))[:, a:b].flatten(0, 1)\n"
)
IN_A_ROW = body(
    "    n, r = group.size(), group.rank()\n"
    "    sizes = cut(len(gate), n)\n"
    "    parts = [p for pair in zip(gate.split(sizes), up.split(sizes)) for p in pair]\n"
    "    return torch.cat(parts).split([2 * s for s in sizes])[r]{}\n"
)
# Only after all trials of weights alone they are other ones: in training.
ONLY_AT_FIRST = "ASKED = []\n" + fuse(
    (
        "    return",
        "    ASKED.extend([0] * (gate.dim() - 1))\n"
        "    gate = gate * 2 if len(ASKED) > 20 and gate.dim() == 2 else gate\n"
        "    return",
    )
)
RIGHT_FUSE = {
    "slices": FUSE,
    "stacked, cut and flattened": STACKED,
    "reordered, cut and copied": IN_A_ROW.format(".clone()"),
    "as a parameter": fuse(
        ("return torch.cat", "return torch.nn.Parameter(torch.cat"),
        ("up[start:stop]))", "up[start:stop])))"),
    ),
}
SLICES = "torch.cat((gate[start:stop], up[start:stop]))"
SPLIT = "torch.cat([t.tensor_split(group.size(), {})[group.rank()] for t in (gate, up)])"
STRAIGHT = "torch.cat(({})).split(cut(2 * len(gate), group.size()))[group.rank()].clone()"
WRONG_FUSE = {
    "split straight across": (fuse((SLICES, STRAIGHT.format("gate, up"))), "split straight across"),
    "cut straight across, up first": (
        fuse((SLICES, STRAIGHT.format("up, gate"))),
        "split straight across",
    ),
    "row by row": (
        fuse((SLICES, "torch.stack((gate[start:stop], up[start:stop]), 1).flatten(0, 1)")),
        "interleaved",
    ),
    "up first": (
        fuse((SLICES, "torch.cat((up[start:stop], gate[start:stop]))")),
        "gate and up swapped",
    ),
    "view of the full bucket": (IN_A_ROW.format(""), "keeps the full tensors alive"),
    "the whole": (fuse((SLICES, "torch.cat((gate, up))")), "not sharded"),
    "a pair": (fuse((SLICES, "gate[start:stop], up[start:stop]")), "not fused"),
    "gate alone": (fuse((SLICES, "gate[start:stop].clone()")), "one of the two"),
    "the remainder dropped": (
        fuse(
            (
                "start, stop = span(len(gate), group.size(), group.rank())",
                "own = len(gate) // group.size()\n"
                "    start, stop = own * group.rank(), own * (group.rank() + 1)",
            )
        ),
        "remainder dropped",
    ),
    "the remainder to the last": (
        fuse(
            (
                "    return",
                "    own = len(gate) // group.size()\n"
                "    start = own * group.rank()\n"
                "    stop = start + own if group.rank() < group.size() - 1 else len(gate)\n"
                "    return",
            )
        ),
        "wrong split rule",
    ),
    "shared out as evenly as can be": (fuse((SLICES, SPLIT.format(0))), "wrong split rule"),
    "dealt out": (
        fuse((SLICES, "torch.cat([t[group.rank() :: group.size()] for t in (gate, up)])")),
        "dealt out",
    ),
    "the gates of others": (
        fuse(("up[start:stop]", "up.flip(0)[start:stop]")),
        "gates of other units",
    ),
    "along the inputs": (fuse((SLICES, SPLIT.format(-1))), "wrong dim"),
    "joined along the inputs": (
        fuse((SLICES, "torch.cat((gate[start:stop], up[start:stop]), -1)")),
        "wrong dim",
    ),
    "their sum": (fuse((SLICES, "gate[start:stop] + up[start:stop]")), "wrong values"),
    "the first ranks' part everywhere": (fuse(("group.rank()", "0")), "one part for all"),
    "the notebook's rank": (fuse(("group.rank()", "rank")), "uses world numbers"),
    "sent between ranks": (
        fuse((SLICES, "torch.cat([broadcast(t, group)[start:stop] for t in (gate, up)])")),
        "needless message",
    ),
    "good for two dims alone": (
        fuse((SLICES, "torch.cat((gate[start:stop, :], up[start:stop, :]))")),
        "biases",
    ),
    "biases whole": (
        fuse((SLICES, SLICES + " if gate.dim() == 2 else torch.cat((gate, up))")),
        "not sharded",
    ),
    "another weight at the next call": (ONLY_AT_FIRST, "different training"),
    "half the precision": (fuse((SLICES, SLICES + ".float()")), "wrong dtype"),
    "nothing returned": (fuse(("return torch", "torch")), "nothing returned"),
    "a list of numbers": (fuse((SLICES, SLICES + ".tolist()")), "no tensor"),
    "in place": (fuse(("    return", "    up.zero_()\n    return")), "input changed"),
}
RIGHT: dict = {"fuse_gate_up": RIGHT_FUSE}
WRONG: dict = {"fuse_gate_up": WRONG_FUSE}
