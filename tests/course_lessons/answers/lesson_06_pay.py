"""Answers to `pay_sums` of lesson 06."""

from tests.course_lessons.answers import changed

PAY = '''
from course_lib.collectives import all_reduce

OWED = ["positions", "norm.weight", "norm.bias", "q_norm.weight", "out.bias"]


def pay_sums(gradients, group):
    """Joined into one message."""
    joined = torch.cat([gradients[name].flatten() for name in OWED])
    summed = all_reduce(joined, group)
    parts = summed.split([gradients[name].numel() for name in OWED])
    paid = {name: part.view_as(gradients[name]) for name, part in zip(OWED, parts)}
    return {**gradients, **paid}
'''
# In place, with torch's own call, by what is not owed.
IN_PLACE = """
def pay_sums(gradients, group):
    cut = ("qkv.weight", "qkv.bias", "out.weight")
    some = [g for k, g in sorted(gradients.items()) if k not in cut and "readout" not in k]
    flat = torch.nn.utils.parameters_to_vector(some)
    dist.all_reduce(flat, group=group)
    torch.nn.utils.vector_to_parameters(flat, some)
    return gradients
"""
# Without an all-reduce there are more messages; with one per dtype there would be one.
BY_SUM_OF_STACK = """
def pay_sums(gradients, group):
    names = ["out.bias", "norm.weight", "norm.bias", "q_norm.weight", "positions"]
    sizes = [gradients[name].numel() for name in names]
    flat = torch.empty(sum(sizes), dtype=gradients[names[0]].dtype)
    at = 0
    for name, size in zip(names, sizes):
        flat[at : at + size] = gradients[name].reshape(-1)
        at += size
    work = dist.all_reduce(flat, group=group, async_op=True)
    out = dict(gradients)
    work.wait()
    for name, part in zip(names, flat.split(sizes)):
        out[name] = part.reshape(gradients[name].shape).clone()
    return out
"""


def pay(*changes: tuple[str, str]) -> str:
    return changed(PAY, *changes)


EACH = """
from course_lib.collectives import all_reduce


def pay_sums(gradients, group):
    owed = ["positions", "norm.weight", "norm.bias", "q_norm.weight", "out.bias"]
    return {k: all_reduce(g, group) if k in owed else g for k, g in gradients.items()}
"""
WRONG_PAY = {
    "as they were": (
        "def pay_sums(gradients, group):\n    return dict(gradients)\n",
        "nothing summed",
    ),
    "norms alone": (pay(('"positions", ', ""), (', "out.bias"', "")), "partial sum left"),
    "readout summed": (
        pay(('"out.bias"', '"out.bias", "readout.weight", "readout.bias"')),
        "summed a complete gradient",
    ),
    "one by one": (EACH, "a message for each"),
    "not inside the heads": (pay(('"q_norm.weight", ', "")), "partial sum left"),
    "not the positions": (pay(('"positions", ', "")), "partial sum left"),
    "not the row bias": (pay((', "out.bias"', "")), "partial sum left"),
    "not the norm's bias": (pay(('"norm.bias", ', "")), "partial sum left"),
    "a bias of the readout": (
        pay(('"out.bias"', '"out.bias", "readout.bias"')),
        "summed a complete gradient",
    ),
    "a cut bias scaled": (
        pay(("{**gradients, ", '{**gradients, "qkv.bias": gradients["qkv.bias"] * 2, ')),
        "changed a sharded gradient",
    ),
    "a mean": (
        pay(("all_reduce(joined, group)", "all_reduce(joined, group) / group.size()")),
        "mean",
    ),
    "the largest": (
        pay(
            (
                "= all_reduce(joined, group)",
                "= joined.clone()\n    dist.all_reduce(summed, op=dist.ReduceOp.MAX, group=group)",
            )
        ),
        "wrong gradient",
    ),
    "gathered and added": (
        pay(
            ("import all_reduce", "import all_gather"),
            ("all_reduce(joined, group)", "all_gather(joined[None], group).sum(0)"),
        ),
        "wrong collective",
    ),
    "zeros along": (
        pay(
            (
                "for name in OWED])\n    summed",
                "for name in OWED] + [gradients[OWED[0]].new_zeros(50)])\n    summed",
            ),
            ("    parts = summed", "    parts = summed[:-50]"),
        ),
        "unneeded elements sent",
    ),
    "some of them": (pay(("return {**gradients, **paid}", "return paid")), "a gradient missing"),
    "a list": (
        pay(("return {**gradients, **paid}", "return list(gradients.values())")),
        "not a dictionary",
    ),
    "flat": (pay(("part.view_as(gradients[name])", "part")), "wrong shape"),
    "nothing": (pay(("    return {", "    {")), "nothing returned"),
    "the first step again": (
        pay(
            ("OWED = [", "first = {}\nOWED = ["),
            ("{**gradients, **paid}", "first.setdefault(group, {**gradients, **paid})"),
        ),
        "wrong later step",
    ),
    "summed and summed again": (
        pay(("all_reduce(joined, group)", "all_reduce(all_reduce(joined, group), group)")),
        "summed twice",
    ),
    "a set of names": (  # whose order differs from process to process, here by the rank
        pay(
            (
                '    """Joined into one message."""',
                "    OWED = sorted(NAMES, reverse=group.rank() % 2 == 1)",
            ),
            ("OWED = [", "NAMES = ["),
        ),
        "mixed up",
    ),
    "in single precision": (
        pay(("all_reduce(joined, group)", "all_reduce(joined.float(), group).to(joined.dtype)")),
        "rounded on the way",
    ),
    "to rank 0 of the world": (
        pay(
            (
                "= all_reduce(joined, group)",
                "= joined.clone()\n    dist.reduce(summed, 0, group=group)",
            )
        ),
        "on one rank only",
    ),
    "in bfloat16": (
        pay(("all_reduce(joined, group)", "all_reduce(joined.bfloat16(), group).to(joined.dtype)")),
        "rounded on the way",
    ),
    "to rank 0 of the group": (
        pay(
            (
                "= all_reduce(joined, group)",
                "= joined.clone()\n    "
                "dist.reduce(summed, dist.get_global_rank(group, 0), group=group)",
            )
        ),
        "on one rank only",
    ),
    "not waited for": (
        pay(
            (
                "= all_reduce(joined, group)",
                "= joined.clone()\n    dist.all_reduce(summed, group=group, async_op=True)",
            )
        ),
        "not waited for",
    ),
    "the dictionary emptied": (
        pay(
            (
                "return {**gradients, **paid}",
                "return {name: paid.get(name, gradients.pop(name)) for name in list(gradients)}",
            )
        ),
        "input changed",
    ),
    "one buffer": (
        pay(
            ("OWED = [", "buffers = {}\nOWED = ["),
            (
                "    parts = ",
                "    buffer = buffers.setdefault(summed.dtype, summed)\n"
                "    summed = buffer.copy_(summed)\n    parts = ",
            ),
        ),
        "one buffer for all calls",
    ),
    "an empty rank stays out": (
        pay(
            (
                "    joined",
                "    if not gradients['positions'].any():\n        return gradients\n    joined",
            )
        ),
        "left out by an empty rank",
    ),
}

RIGHT = {"pay_sums": {"joined": PAY, "in place": IN_PLACE, "in a buffer": BY_SUM_OF_STACK}}
WRONG = {"pay_sums": WRONG_PAY}
