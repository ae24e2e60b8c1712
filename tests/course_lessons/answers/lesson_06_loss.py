"""Answers to `uneven_loss` of lesson 06."""

from tests.course_lessons.answers import changed

LOSS = '''
from course_lib.layout import cut, span
from course_lib.tensor_parallel.conjugates import copy, gather, reduce


def uneven_loss(x, table, target, length, group):
    """By f and g."""
    start, stop = span(length, group.size(), group.rank())
    y = x + copy(table, group)[start:stop]
    own = (y - target).square().sum()
    return reduce(own, group) / (x.shape[0] * length * x.shape[2])
'''
# The count travels along, and the places are looked up as an embedding's.
TWO_NUMBERS = """
import torch.nn.functional as F
from course_lib.layout import cut
from course_lib.tensor_parallel.conjugates import copy, reduce


def uneven_loss(x, table, target, length, group):
    sizes = cut(length, group.size())
    first = sum(sizes[: group.rank()])
    places = torch.arange(first, first + sizes[group.rank()])
    y = x + F.embedding(places, copy(table, group))
    total, count = reduce(
        torch.stack([(y - target).square().sum(), x.new_tensor(x.numel())]), group
    )
    return (total / count)[None]
"""
# Torch's own sum in place, which autograd takes for nothing: here that is what it should be.
IN_PLACE = """
from course_lib.layout import span


class Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, group):
        ctx.group = group
        return table.view_as(table)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def uneven_loss(x, table, target, length, group):
    start, stop = span(length, group.size(), group.rank())
    own = (x + Copies.apply(table, group)[start:stop] - target).square().sum() / (
        x.shape[0] * length * x.shape[2]
    )
    whole = own.detach().clone()
    dist.all_reduce(whole, group=group)
    return own + (whole - own.detach())
"""


def loss(*changes: tuple[str, str]) -> str:
    return changed(LOSS, *changes)


COUNT = " / (x.shape[0] * length * x.shape[2])"
RETURN = f"reduce(own, group){COUNT}"
WRONG_LOSS = {
    "mean of means": (
        loss((RETURN, "reduce(own / max(1, x.numel()), group) / group.size()")),
        "mean of means",
    ),
    "sum of means": (loss((RETURN, "reduce(own / max(1, x.numel()), group)")), "sum of means"),
    "rank times its own": (
        loss(
            ("    y = ", "    size = stop - start\n    start = group.rank() * size\n    y = "),
            ("[start:stop]", "[start : start + size]"),
        ),
        "places as if it divided",
    ),
    "tokens gathered": (
        loss(
            (
                f"return {RETURN}",
                "sizes = cut(length, group.size())\n    "
                'every = gather(y - target, group, 1, sizes, after="replicated")\n    '
                "return every.square().mean()",
            )
        ),
        "tokens on the way",
    ),
    "its own mean": (loss((RETURN, "own / max(1, x.numel())")), "own mean"),
    "its own share": (loss(("reduce(own, group)", "own")), "own share"),
    "torch's mean": (
        loss((".square().sum()", ".square().mean()"), (COUNT, " / group.size()")),
        "mean of means",
    ),
    "torch's mean, weighed": (
        loss((".square().sum()", ".square().mean() * x.numel()")),
        "no tokens",
    ),
    "not divided": (loss((COUNT, "")), "sum"),
    "divided twice": (loss((COUNT, COUNT + " / group.size()")), "divided by n"),
    "from 0": (loss(("[start:stop]", "[: stop - start]")), "from 0 everywhere"),
    "rank times the floor": (
        loss(
            (
                "    y = ",
                "    size = stop - start\n    start = group.rank() * (length // group.size())\n"
                "    y = ",
            ),
            ("[start:stop]", "[start : start + size]"),
        ),
        "places as if it divided",
    ),
    "wrong loss": (loss((".square()", ".abs()")), "wrong loss"),
    "summed backward too": (
        loss(("reduce(own", "reduce(copy(own, group)")),
        "n times the gradient",
    ),
    "a mean backward": (
        loss(
            (
                f"return {RETURN}",
                f"mean = {RETURN}\n    return mean / group.size() + "
                "(mean * (1 - 1 / group.size())).detach()",
            )
        ),
        "gradient divided by n",
    ),
    "through x twice": (
        loss(("    own = ", "    y = y + (x - x.detach())\n    own = ")),
        "wrong gradient",
    ),
    "table not summed": (loss(("copy(table, group)", "table")), "table gradient not summed"),
    "table summed twice": (
        loss(("copy(table, group)", "copy(copy(table, group), group)")),
        "wrong table",
    ),
    "without a graph": (loss(("reduce(own, group)", "reduce(own, group).detach()")), "no gradient"),
    "count sent by itself": (
        loss((COUNT, " / reduce(torch.tensor(float(x.numel())).double(), group)")),
        "two messages",
    ),
    "wide table backward": (
        loss(("copy(table, group)", "copy(table.repeat(2, 1), group)")),
        "over budget backward",
    ),
    "single precision": (loss((RETURN, f"({RETURN}).float()")), "not a loss"),
    "a number for each token": (loss((RETURN, "(y - target).square()")), "not a loss"),
    "in place": (
        loss(("    y = ", "    table.data *= 2\n    table = table / 2\n    y = ")),
        "input changed",
    ),
    "the notebook's rank": (
        loss(("group.size(), group.rank()", "group.size(), min(rank, group.size() - 1)")),
        "uses world numbers",
    ),
    "nothing": (loss(("    return ", "    ")), "nothing returned"),
    "the first step remembered": (
        loss(
            ("def uneven", "first = {}\n\n\ndef uneven"),
            ("    start", "    table = first.setdefault(group, table)\n    start"),
        ),
        "wrong second step",
    ),
    "the sum over its own count": (loss((COUNT, " / max(1, x.numel())")), "its own count"),
    "padding counted": (
        loss((" * length * ", " * cut(length, group.size())[0] * group.size() * ")),
        "padding counted",
    ),
    "n times its own": (loss((" * length * ", " * len(x[0]) * group.size() * ")), "its own count"),
    "divided by tokens": (
        loss((COUNT, " / (x.shape[0] * length)")),
        "a sum over the elements of a token",
    ),
    "sequences not counted": (
        loss((COUNT, " / (length * x.shape[2])")),
        "a sum over the sequences",
    ),
    "times n": (loss((COUNT, COUNT + " * group.size()")), "a sum over the ranks"),
    "spread evenly": (
        loss(
            (
                "start, stop = span(length, group.size(), group.rank())",
                "whole, rest = divmod(length, group.size())\n    "
                "start = group.rank() * whole + min(group.rank(), rest)\n    "
                "stop = start + x.shape[1]",
            )
        ),
        "even spread assumed",
    ),
    "on rank 0": (
        loss((f"return {RETURN}", f"return ({RETURN}) * (group.rank() == 0)")),
        "on one rank only",
    ),
    "through single precision": (
        loss(("reduce(own, group)", "reduce(own.float(), group).double()")),
        "rounded on the way",
    ),
    "a mean of the table's gradient": (
        loss(
            (
                "copy(table, group)",
                "(copy(table, group) / group.size() + table.detach() * (1 - 1 / group.size()))",
            )
        ),
        "the table's mean",
    ),
    "an empty rank leaves": (
        loss(
            (
                "    y = ",
                "    if not x.numel():\n        return x.sum() + 0 * table.sum()\n    y = ",
            )
        ),
        "left out by an empty rank",
    ),
    "a hook on the table": (
        loss(
            ("copy(table, group)", "table"),
            ("    start", "    table.register_hook(lambda g: reduce(g, group))\n    start"),
        ),
        "wrong second step",
    ),
    "the table's length": (
        loss((COUNT, COUNT.replace("length", "len(table)"))),
        "the table's length",
    ),
    "the first length remembered": (
        loss(
            ("def uneven", "first = {}\n\n\ndef uneven"),
            (
                "span(length, group.size(), group.rank())",
                "first.setdefault(group, span(length, group.size(), group.rank()))",
            ),
        ),
        "raised",
    ),
}

RIGHT = {"uneven_loss": {"by f and g": LOSS, "count along": TWO_NUMBERS, "in place": IN_PLACE}}
WRONG = {"uneven_loss": WRONG_LOSS}
