"""Answers to lesson 08's norm and mean: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

CLIP = '''
import torch.distributed as dist


def clip_as_one(gradients, cut, group, most):
    """Returns the norm before."""
    seen, own, copies = [], 0.0, 0.0
    for name, g in gradients.items():
        if any(g is other for other in seen):
            continue
        seen.append(g)
        square = float((g * g).sum())
        if name in cut:
            own += square
        else:
            copies += square
    total = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(total, group=group)
    norm = (total.item() + copies) ** 0.5
    if norm > most:
        for g in seen:
            g *= most / (norm + 1e-6)
    return norm
'''
# Another style: the library's pieces.
BY_PIECES = """
from course_lib.norms import Piece, clip


def clip_as_one(gradients, cut, group, most):
    pieces = [Piece(g, (group,) if name in cut else ()) for name, g in gradients.items()]
    return clip(pieces, [group], most)
"""
# And another: every square is summed over the ranks, the copies' divided again; one message.
BY_DIVISION = """
from course_lib.collectives import all_reduce


def clip_as_one(gradients, cut, group, most):
    names = [n for k, n in enumerate(gradients)
             if not any(gradients[n] is g for g in list(gradients.values())[:k])]
    squares = torch.stack([gradients[n].norm() ** 2 for n in names])
    share = torch.ones(len(names)).double()
    share[[n not in cut for n in names]] /= group.size()
    norm = all_reduce(squares * share, group).sum().sqrt()
    for name in names:
        gradients[name].mul_(torch.clamp(most / (norm + 1e-6), max=1))
    return norm
"""

# And another: two lists of tensors, and norms of norms.
BY_KINDS = """
from functools import reduce


def clip_as_one(gradients, cut, group, most):
    kinds = {True: {}, False: {}}
    for name, g in gradients.items():
        kinds[name in cut].setdefault(id(g), g)

    def length(tensors):
        return reduce(torch.hypot, (t.norm() for t in tensors), torch.zeros(1).double())

    shards, copies = (length(kinds[kind].values()) for kind in (True, False))
    every = [torch.empty_like(shards) for _ in range(group.size())]
    dist.all_gather(every, shards, group=group)
    norm = reduce(torch.hypot, every, copies)[0]
    if norm > most:
        for tensors in kinds.values():
            for g in tensors.values():
                g.copy_(g * (most / (norm + 1e-6)))
    return norm
"""


def clip(*changes: tuple[str, str]) -> str:
    return changed(CLIP, *changes)


REDUCE = "    dist.all_reduce(total, group=group)\n"
SKIP = "        if any(g is other for other in seen):\n            continue\n"
SCALE = "        for g in seen:\n"
WRONG_CLIP = {
    "everything summed": (
        clip(
            ("torch.tensor(own,", "torch.tensor(own + copies,"),
            ("(total.item() + copies)", "total.item()"),
        ),
        "copies counted n times",
    ),
    "by names": (
        clip((SKIP, ""), (SCALE, "        for g in {id(g): g for g in seen}.values():\n")),
        "tied counted twice",
    ),
    "by names, everything summed": (
        clip(
            (SKIP, ""),
            ("torch.tensor(own,", "torch.tensor(own + copies,"),
            ("(total.item() + copies)", "total.item()"),
        ),
        "copies counted n times",
    ),
    "nothing sent": (clip((REDUCE, "")), "a rank's own norm"),
    "torch's own": (
        "def clip_as_one(gradients, cut, group, most):\n"
        "    one = {id(g): g for g in gradients.values()}.values()\n"
        "    norm = torch.nn.utils.get_total_norm(one)\n"
        "    for g in one:\n        g.mul_((most / (norm + 1e-6)).clamp(max=1))\n"
        "    return norm\n",
        "a rank's own norm",
    ),
    "only shards": (
        clip(("(total.item() + copies)", "total.item()")),
        "replicated gradients left out",
    ),
    "only copies": (
        clip(("(total.item() + copies)", "(total.item() * 0 + copies)")),
        "shards left out",
    ),
    "a mean over the ranks": (
        clip(("(total.item() + copies)", "(total.item() / group.size() + copies)")),
        "averaged",
    ),
    "norms of ranks": (
        clip(
            ("torch.tensor(own,", "torch.tensor((own + copies) ** 0.5,"),
            ("(total.item() + copies) ** 0.5", "total.item()"),
        ),
        "norms added",
    ),
    "the largest": (
        clip(("group=group)\n    norm", "op=dist.ReduceOp.MAX, group=group)\n    norm")),
        "largest rank's norm",
    ),
    "squares": (clip((" ** 0.5\n", "\n")), "no root"),
    "the norm after": (clip(("    return norm", "    return min(norm, most)")), "the norm after"),
    "tied scaled twice": (
        clip((SCALE, "        for g in gradients.values():\n")),
        "tied scaled twice",
    ),
    "out of place": (clip(("            g *= most", "            g = g * most")), "nothing scaled"),
    "in the dictionary": (
        clip(
            (SCALE, "        for name, g in list(gradients.items()):\n"),
            ("            g *= most", "            gradients[name] = g * most"),
        ),
        "nothing scaled",
    ),
    "always": (clip(("    if norm > most:", "    if True:")), "made longer"),
    "only the shards scaled": (
        clip((SCALE, "        for g in {id(gradients[n]): gradients[n] for n in cut}.values():\n")),
        "only some scaled",
    ),
    "another factor": (clip(("most / (norm + 1e-6)", "most / norm**2")), "wrong factor"),
    "everybody's gradients": (
        clip(
            (
                REDUCE,
                REDUCE + "    for g in seen:\n        every = [torch.zeros_like(x) for x in seen]\n"
                "    for g in list(gradients.values()):\n"
                "        wide = torch.zeros(400, dtype=g.dtype)\n"
                "        wide[: g.numel()] = g.flatten()\n"
                "        dist.all_reduce(wide, group=group)\n",
            )
        ),
        "too much sent",
    ),
    "over all ranks": (clip((REDUCE, "    dist.all_reduce(total)\n")), "group left out"),
    "in float32": (clip(("dtype=torch.float64", "dtype=torch.float32")), "rounded"),
    "nothing": (clip(("    return norm", "    return")), "nothing returned"),
    "a list": (clip(("    return norm", "    return [norm, most]")), "not a number"),
}

MEAN = '''
import torch.distributed as dist
import torch.nn.functional as F


def token_mean_step(model, batches, group):
    """One step's gradients."""
    total = torch.zeros(2, dtype=torch.float64)
    for ids, targets in batches:
        per_token = F.cross_entropy(model(ids).transpose(1, 2), targets, reduction="none")
        loss = per_token.sum()
        loss.backward()
        count = (targets != -100).sum()
        total += torch.stack((loss.detach(), count.double()))
    dist.all_reduce(total, group=group)
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= total[1]
    return total[0] / total[1]
'''
# Another style: the count is agreed on first, and each loss divided by it before its backward.
COUNT_FIRST = """
from course_lib.collectives import all_reduce


def token_mean_step(model, batches, group):
    every = torch.cat([targets.flatten() for _, targets in batches])
    tokens = all_reduce((every >= 0).sum(), group)
    loss = torch.zeros(())
    for ids, targets in batches:
        logs = model(ids).log_softmax(-1)
        kept = targets >= 0
        own = -logs[kept].gather(-1, targets[kept][:, None]).sum() / tokens
        own.backward()
        loss = loss + own.detach()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    flat = all_reduce(torch.cat((flat, loss[None])), group)
    for p in model.parameters():
        p.grad, flat = flat[: p.numel()].view(p.shape).clone(), flat[p.numel() :]
    return flat.item()
"""


def mean(*changes: tuple[str, str]) -> str:
    return changed(MEAN, *changes)


OWN_MEANS = ("loss = per_token.sum()", "loss = per_token.sum() / (targets >= 0).sum().clamp(min=1)")
SUM_ALL = "        dist.all_reduce(p.grad, group=group)\n"
WRONG_MEAN = {
    "mean of means": (
        mean(
            OWN_MEANS,
            ("        p.grad /= total[1]\n", "        p.grad /= len(batches) * group.size()\n"),
            ("total[0] / total[1]", "total[0] / len(batches) / group.size()"),
        ),
        "mean of means",
    ),
    "a mean over the ranks, micro-means added": (
        mean(
            OWN_MEANS,
            ("        p.grad /= total[1]\n", "        p.grad /= group.size()\n"),
            ("total[0] / total[1]", "total[0] / group.size()"),
        ),
        "mean of means",
    ),
    "own means averaged": (
        mean(
            ("    dist.all_reduce(total, group=group)\n", ""),
            (
                SUM_ALL + "        p.grad /= total[1]\n",
                "        p.grad /= total[1].clamp(min=1)\n"
                + SUM_ALL
                + "        p.grad /= group.size()\n",
            ),
            ("    return total[0] / total[1]", "    return total[0] / total[1].clamp(min=1)"),
        ),
        "mean of means",
    ),
    "torch's mean": (
        mean(
            ("per_token.sum()", "F.cross_entropy(model(ids).transpose(1, 2), targets)"),
            ("        p.grad /= total[1]\n", "        p.grad /= len(batches) * group.size()\n"),
        ),
        "rows of others",
    ),
    "torch's mean, once": (
        mean(
            (
                'targets, reduction="none")\n        loss = per_token.sum()',
                "targets)\n        loss = per_token",
            ),
            ("        p.grad /= total[1]\n", "        p.grad /= len(batches) * group.size()\n"),
        ),
        "mean of an empty batch",
    ),
    "a sum": (
        mean(("        p.grad /= total[1]\n", ""), ("total[0] / total[1]", "total[0]")),
        "a sum",
    ),
    "a loss that is a sum": (mean(("total[0] / total[1]", "total[0]")), "a sum"),
    "padding counted": (
        mean(("(targets != -100).sum()", "torch.tensor(targets.numel())")),
        "padding counted",
    ),
    "averaged as well": (
        mean(("        p.grad /= total[1]\n", "        p.grad /= total[1] * group.size()\n")),
        "divided by the ranks as well",
    ),
    "by micro-batches as well": (
        mean(("        p.grad /= total[1]\n", "        p.grad /= total[1] * len(batches)\n")),
        "divided by the micro-batches as well",
    ),
    "its own count": (
        mean(
            (
                "    dist.all_reduce(total, group=group)\n",
                "    mine = total[1].clamp(min=1).item()\n"
                "    dist.all_reduce(total, group=group)\n",
            ),
            ("        p.grad /= total[1]\n", "        p.grad /= mine\n"),
        ),
        "divided by its own tokens",
    ),
    "gradients not summed": (mean((SUM_ALL, "")), "gradients not summed"),
    "nothing summed": (
        mean(
            (SUM_ALL, ""),
            ("    dist.all_reduce(total, group=group)\n", "    total[1].clamp_(min=1)\n"),
        ),
        "gradients not summed",
    ),
    "its own loss": (
        mean(
            ("    return total[0] / total[1]", "    return mine"),
            (
                "    dist.all_reduce(total, group=group)\n",
                "    mine = total[0] / total[1].clamp(min=1)\n"
                "    dist.all_reduce(total, group=group)\n",
            ),
        ),
        "a rank's own loss",
    ),
    "the last micro-batch": (
        mean(("        loss.backward()\n", "        model.zero_grad()\n        loss.backward()\n")),
        "only the last micro-batch",
    ),
    "summed after each micro-batch": (
        mean(
            (
                "        count = (targets",
                "        for p in model.parameters():\n"
                "            every = p.grad.clone()\n"
                "            dist.all_reduce(every, group=group)\n"
                "        count = (targets",
            )
        ),
        "sent for each micro-batch",
    ),
    "twice": (
        mean(
            (
                SUM_ALL,
                SUM_ALL + "        again = p.grad[:2].clone()\n"
                "        dist.all_reduce(again, group=group)\n",
            )
        ),
        "too much sent",
    ),
    "nobody without tokens": (
        mean(
            (
                "        loss.backward()\n",
                "        if (targets >= 0).any():\n            loss.backward()\n",
            ),
            (
                SUM_ALL,
                "        if p.grad is None:\n            p.grad = None\n            continue\n"
                + SUM_ALL,
            ),
        ),
        "left out by an empty rank",  # two ranks in one all-reduce, one in the next
    ),
    "a rank without tokens leaves": (
        mean(
            (
                "    dist.all_reduce(total, group=group)\n    for p",
                "    dist.all_reduce(total, group=group)\n"
                "    idle = not any((t >= 0).any() for _, t in batches)\n"
                "    for p in model.parameters():\n"
                "        every = torch.zeros_like(p) if p.grad is None else p.grad\n"
                "        dist.all_reduce(every, group=group)\n"
                "        p.grad = None if idle else every / total[1]\n"
                "    return total[0] / total[1]\n    for p",
            )
        ),
        "no gradients",
    ),
    "everybody's rows": (
        mean(
            (
                "    for ids, targets in batches:\n",
                "    every = [None] * group.size()\n"
                "    dist.all_gather_object(every, batches, group=group)\n"
                "    for ids, targets in sum(every, []):\n",
            )
        ),
        "rows of others",
    ),
    "padding overwritten": (
        mean(("        loss.backward()\n", "        loss.backward()\n        targets.clamp_(0)\n")),
        "input changed",
    ),
    "nothing": (mean(("    return total[0] / total[1]", "    return")), "nothing returned"),
    "both": (mean(("    return total[0] / total[1]", "    return total")), "not a number"),
}

WRONG_CLIP |= {
    "head.weight left out": (
        clip((SKIP, '        if name == "head.weight":\n            continue\n')),
        "head skipped by its name",
    ),
    "head.weight not counted": (
        clip(("        seen.append(g)\n", "        seen.append(g)\n"
              '        if name == "head.weight":\n            continue\n')),
        "head skipped by its name",
    ),
    "a head is always tied": (
        clip(("        square =", '        name = name.replace("head.weight", "tokens.weight")\n'
              "        square ="),
             ("    seen, own, copies = [], 0.0, 0.0\n", "    seen, own, copies = [], 0.0, 0.0\n"
              "    names = set()\n"),
             ("        if name in cut:\n", "        square *= name not in names\n"
              "        names.add(name)\n        if name in cut:\n")),
        "head skipped by its name",
    ),
    "no cut means all": (
        clip(("        if name in cut:", "        if name in (cut or gradients):")),
        "copies counted n times",
    ),
    "all replicated: nothing is counted": (
        clip(("    norm = ", "    if not cut:\n        return 0.0\n    norm = ")),
        "replicated gradients left out",
    ),
    "all replicated: a share": (
        clip(("    norm = ", "    copies /= 1 + (not cut)\n    norm = ")), "nothing sharded"
    ),
    "all cut: nobody asked": (
        clip((REDUCE, "    if len(cut) < len(gradients):\n    " + REDUCE)), "a rank's own norm"
    ),
    "all cut: averaged": (
        clip((REDUCE, REDUCE + "    total /= 1 + (len(cut) == len(gradients))\n")), "all sharded"
    ),
}  # fmt: skip
FIRST = {
    "clip_as_one": ("everything summed", "nothing sent", "by names", "everybody's gradients"),
    "token_mean_step": ("mean of means", "a sum", "padding counted", "its own count"),
}
RIGHT: dict = {
    "clip_as_one": {
        "as it comes": CLIP,
        "by pieces": BY_PIECES,
        "by division": BY_DIVISION,
        "by a ledger": BY_KINDS,
    },
    "token_mean_step": {"sums first": MEAN, "the count first": COUNT_FIRST},
}
WRONG: dict = {
    "clip_as_one": {how: WRONG_CLIP[how] for how in (*FIRST["clip_as_one"], *WRONG_CLIP)},
    "token_mean_step": {how: WRONG_MEAN[how] for how in (*FIRST["token_mean_step"], *WRONG_MEAN)},
}
