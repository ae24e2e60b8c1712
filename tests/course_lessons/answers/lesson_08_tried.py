"""Answers to lesson 08's exercises: right ones, and likely wrong ones with the name that each is
refused by.

Found by trying; `lesson_08.py` has the likeliest.
"""

from __future__ import annotations

from tests.course_lessons.answers import changed

BOX = "torch.as_tensor(shards, dtype=torch.float64).reshape(1)"
CLIP = f"""from course_lib.collectives import all_reduce


def clip_as_one(gradients, cut, group, most):
    seen, shards, copies = set(), 0.0, 0.0
    for name, grad in gradients.items():
        if id(grad) in seen:
            continue
        seen.add(id(grad))
        square = (grad.double() ** 2).sum()
        if name in cut:
            shards = shards + square
        else:
            copies = copies + square
    shards = all_reduce({BOX}, group)[0]
    norm = (shards + copies) ** 0.5
    if norm > most:
        done = set()
        for grad in gradients.values():
            if id(grad) not in done:
                done.add(id(grad))
                grad.mul_(most / (norm + 1e-6))
    return norm
"""
DIVIDED = """from course_lib.collectives import all_reduce


def clip_as_one(gradients, cut, group, most):
    unique = {id(g): (name in cut, g) for name, g in gradients.items()}
    n, total = group.size(), torch.zeros(1, dtype=torch.float64)
    for is_cut, g in unique.values():
        total += g.square().sum() / (1 if is_cut else n)
    norm = float(all_reduce(total, group)) ** 0.5
    factor = min(1.0, most / (norm + 1e-6)) if norm > most else 1.0
    for _, g in unique.values():
        g *= factor
    return norm
"""
ON_RANK_0 = """
def once(gradients):
    found = []
    for name, g in gradients.items():
        if all(g is not other for _, other in found):
            found.append((name, g))
    return found


def clip_as_one(gradients, cut, group, most):
    pairs = once(gradients)
    here = [g for name, g in pairs if name in cut or group.rank() == 0]
    mine = sum((float(torch.linalg.vector_norm(g)) ** 2 if g.numel() else 0.0) for g in here)
    box = torch.tensor([mine], dtype=torch.float64)
    torch.distributed.all_reduce(box, group=group)
    norm = box.sqrt().item()
    if norm > most:
        torch._foreach_mul_([g for _, g in pairs], most / (norm + 1e-6))
    return torch.tensor(norm)
"""
RESHARD = """from course_lib.layout import cut, kv_heads


def lengths(config, kind, n):
    kv = [z - a for a, z in kv_heads(config.kv_heads, n)]
    per = config.heads // config.kv_heads
    return {
        "q": [k * per * config.head_size for k in kv],
        "kv": [k * config.head_size for k in kv],
        "inner": cut(config.inner, n),
        "vocabulary": cut(config.vocabulary, n),
    }[kind]


TABLE = {
    "attention.qkv": (0, ("q", "kv", "kv")),
    "attention.out.weight": (1, ("q",)),
    "mlp.up": (0, ("inner",)),
    "mlp.gate_up": (0, ("inner", "inner")),
    "mlp.down.weight": (1, ("inner",)),
    "tokens.weight": (0, ("vocabulary",)),
    "head.weight": (0, ("vocabulary",)),
}


def rule(name):
    return next((v for k, v in TABLE.items() if k in name), None)


def join(shards, config):
    m, dense = len(shards), {}
    for name, first in shards[0].items():
        found = rule(name)
        if found is None:
            dense[name] = first
            continue
        dim, kinds = found
        sizes = [lengths(config, k, m) for k in kinds]
        split = [s[name].split([one[r] for one in sizes], dim) for r, s in enumerate(shards)]
        dense[name] = torch.cat([split[r][b] for b in range(len(kinds)) for r in range(m)], dim)
    return dense


def deal(dense, config, n):
    out = []
    for r in range(n):
        one = {}
        for name, full in dense.items():
            found = rule(name)
            if found is None:
                one[name] = full.clone()
                continue
            dim, kinds = found
            pieces, at = [], 0
            for k in kinds:
                size = lengths(config, k, n)
                pieces.append(full.narrow(dim, at + sum(size[:r]), size[r]))
                at += sum(size)
            one[name] = torch.cat(pieces, dim).clone()
        if config.tied:
            one["head.weight"] = one["tokens.weight"]
        out.append(one)
    return out


def reshard(shards, config, n):
    return deal(join(shards, config), config, n)
"""
SUMS = "all_reduce(torch.tensor([loss, count], dtype=torch.float64), group).tolist()"
DIVISION = "parameter.grad = all_reduce(parameter.grad, group) / count"
MEAN = f"""import torch.nn.functional as F

from course_lib.collectives import all_reduce


def token_mean_step(model, batches, group):
    loss, count = 0.0, 0
    for ids, targets in batches:
        logits = model(ids)
        own = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        own.backward()
        loss += own.item()
        count += int((targets != -100).sum())
    loss, count = {SUMS}
    for parameter in model.parameters():
        {DIVISION}
    return loss / count
"""
FLAT = """from course_lib.collectives import all_reduce


def tokens(batches):
    return sum((targets >= 0).sum() for _, targets in batches)


def token_mean_step(model, batches, group):
    count = all_reduce(tokens(batches).reshape(1).double(), group)[0]
    parameters = list(model.parameters())
    loss = torch.zeros((), dtype=parameters[0].dtype)
    for ids, targets in batches:
        logs = model(ids).log_softmax(-1)
        picked = logs.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        part = -(picked * (targets != -100)).sum() / count
        part.backward()
        loss = loss + part.detach()
    flat = all_reduce(torch.cat([p.grad.flatten() for p in parameters]), group)
    at = 0
    for p in parameters:
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    return all_reduce(loss.reshape(1), group)[0]
"""
ONE_GRAPH = """import torch.distributed as dist
import torch.nn.functional as F


def token_mean_step(model, batches, group):
    total = sum(F.cross_entropy(model(i).transpose(1, 2), y, reduction="sum") for i, y in batches)
    total.backward()
    count = torch.tensor(sum(int((y != -100).sum()) for _, y in batches))
    dist.all_reduce(count, group=group)
    work = [dist.all_reduce(p.grad, group=group, async_op=True) for p in model.parameters()]
    loss = torch.tensor([float(total)])
    dist.all_reduce(loss, group=group)
    for w, p in zip(work, model.parameters()):
        w.wait()
        p.grad /= count
    return float(loss) / int(count)
"""


def clip(*pairs: tuple[str, str]) -> str:
    return changed(CLIP, *pairs)


def reshard(*pairs: tuple[str, str]) -> str:
    return changed(RESHARD, *pairs)


def mean(*pairs: tuple[str, str]) -> str:
    return changed(MEAN, *pairs)


RIGHT: dict = {
    "clip_as_one": {
        "copies divided by the ranks": DIVIDED,
        "copies on rank 0, float32 for the log": ON_RANK_0,
        "a set of ids": CLIP,
    },
    "reshard": {"a table of rules": RESHARD},
    "token_mean_step": {
        "logged as a float32": mean(("return loss / count", "return torch.tensor(loss / count)")),
        "divided before": FLAT,
        "one graph, float32 for the log": ONE_GRAPH,
    },
}
WRONG: dict = {
    "clip_as_one": {
        "wrong dtype": (clip(("grad.mul_(", "grad.data = grad.data * (")), "wrong factor"),
        "an empty rank sends nothing": (
            clip(
                (
                    f"    shards = all_reduce({BOX}, group)[0]",
                    "    if any(gradients[name].numel() for name in cut):\n"
                    f"        shards = all_reduce({BOX}, group)[0]",
                )
            ),
            "left out by an empty rank",
        ),
        "the last is left": (
            clip(("in gradients.values()", "in list(gradients.values())[:-1]")),
            "only some scaled",
        ),
        "not where it is a little too long": (
            clip(("if norm > most", "if norm > 1.1 * most")),
            "nothing scaled",
        ),
        "the head taken out": (
            clip(("    seen, shards", "    gradients.pop('head.weight', None)\n    seen, shards")),
            "input changed",
        ),
        "the first call's norm": (
            clip(
                (
                    "norm = (shards + copies) ** 0.5",
                    "norm = KEPT.setdefault(0, (shards + copies) ** 0.5)",
                ),
                ("def clip", "KEPT = {}\n\ndef clip"),
            ),
            "wrong second step",
        ),
        "a set as a default": (
            clip(
                ("group, most):", "group, most, seen=set()):"),
                ("seen, shards, copies = set(), 0.0, 0.0", "shards, copies = 0.0, 0.0"),
            ),
            "wrong second step",
        ),
        "a reduce to rank 0": (
            clip(
                (
                    f"    shards = all_reduce({BOX}, group)[0]",
                    f"    box = {BOX}.clone()\n"
                    "    torch.distributed.reduce(box, group_dst=0, group=group)\n"
                    "    shards = box[0]",
                )
            ),
            "on one rank only",
        ),
        "rows of two dims": (
            clip(("(grad.double() ** 2).sum()", "sum((row.double() ** 2).sum() for row in grad)")),
            "raised",
        ),
        "squares in float32": (clip(("grad.double()", "grad.float()")), "rounded"),
    },
    "reshard": {
        "through bfloat16": (
            reshard(("(pieces, dim).clone()", "(pieces, dim).bfloat16().to(full.dtype)")),
            "not bit by bit",
        ),
        "copies are the caller's": (changed(RESHARD, ("full.clone()", "full")), "shared memory"),
        "a copy for all ranks": (
            reshard(
                ("    out = []\n", "    out, kept = [], {}\n"),
                ("full.clone()", "kept.setdefault(name, full.clone())"),
            ),
            "shared memory",
        ),
        "as many as before": (
            reshard(
                (
                    "    return deal(join",
                    "    if len(shards) == n:\n"
                    "        return [dict(one) for one in shards]\n    return deal(join",
                )
            ),
            "shared memory",
        ),
        "the caller's head is another": (
            reshard(
                (
                    "    return deal(join",
                    "    for one in shards:\n"
                    "        if config.tied:\n"
                    "            one['head.weight'] = one['tokens.weight'].clone()\n"
                    "    return deal(join",
                )
            ),
            "input changed",
        ),
        "torch.chunk": (
            reshard(
                (
                    "full.narrow(dim, at + sum(size[:r]), size[r])",
                    "full.narrow(dim, at, sum(size)).chunk(n, dim)[r]",
                )
            ),
            "raised",
        ),
        "a buffer for each copy": (
            reshard(
                (
                    "full.clone()",
                    "BUFFER.setdefault((r, n, name), torch.empty_like(full)).copy_(full)",
                ),
                ("TABLE =", "BUFFER = {}\nTABLE ="),
            ),
            "one buffer for two results",
        ),
        "always float64": (
            reshard(("torch.cat(pieces, dim).clone()", "torch.cat(pieces, dim).double().clone()")),
            "wrong dtype",
        ),
    },
    "token_mean_step": {
        "through bfloat16": (
            mean(
                (
                    DIVISION,
                    DIVISION.replace("grad, group)", "grad.bfloat16(), group).to(parameter.dtype)"),
                )
            ),
            "rounded on the way",
        ),
        "entry 0 is padding": (
            mean(("(targets != -100).sum", "(targets > 0).sum")),
            "an entry taken for padding",
        ),
        "the largest rank's count": (
            mean(
                (
                    f"    loss, count = {SUMS}\n",
                    '    most = all_reduce(torch.tensor(count), group, "max")\n'
                    f"    loss, count = {SUMS}\n    count = int(most)\n",
                )
            ),
            "divided by its own tokens",
        ),
        "shifted by one": (
            mean(
                (
                    "logits.flatten(0, 1), targets.flatten()",
                    "logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()",
                ),
                ("(targets != -100).sum", "(targets[:, 1:] != -100).sum"),
            ),
            "targets shifted",
        ),
        "the list is emptied": (
            mean(
                (
                    "    for ids, targets in batches:",
                    "    while batches:\n        ids, targets = batches.pop(0)",
                )
            ),
            "input changed",
        ),
        "only matrices": (
            mean(
                ("        " + DIVISION, "        if parameter.dim() > 1:\n            " + DIVISION)
            ),
            "only some parameters",
        ),
        "the first parameter": (
            mean(("in model.parameters()", "in list(model.parameters())[:1]")),
            "only some parameters",
        ),
        "a reduce to rank 0": (
            mean(
                (
                    DIVISION,
                    "torch.distributed.reduce(parameter.grad, group_dst=0, group=group)\n"
                    "        parameter.grad /= count",
                )
            ),
            "on one rank only",
        ),
        "an empty rank returns": (
            mean(
                (
                    "    for ids",
                    "    if not any((y != -100).any() for _, y in batches):\n"
                    "        return 0.0\n    for ids",
                )
            ),
            "left out by an empty rank",
        ),
        "float32 gradients": (
            mean(
                (
                    DIVISION,
                    "whole = all_reduce(parameter.grad.float(), group) / count\n"
                    "        parameter.grad = whole.to(parameter.dtype)",
                )
            ),
            "rounded on the way",
        ),
        "float64 gradients": (
            changed(FLAT, ("p.grad.flatten() for", "p.grad.double().flatten() for")),
            "raised",
        ),
        "one flat buffer": (
            changed(
                FLAT,
                ("def tokens", "BUFFER = {}\n\ndef tokens"),
                (
                    "    at = 0\n",
                    "    kept = BUFFER.setdefault(flat.dtype, flat.clone())\n"
                    "    flat, at = kept.copy_(flat), 0\n",
                ),
            ),
            "one buffer for two results",
        ),
        "the optimizer's step": (
            mean(
                (
                    "    return loss",
                    "    torch.optim.SGD(model.parameters(), 0.1).step()\n    return loss",
                )
            ),
            "wrong weights",
        ),
        "in evaluation mode": (
            mean(("    loss, count = 0.0, 0\n", "    loss, count = 0.0, 0\n    model.eval()\n")),
            "model changed",
        ),
        "the first micro-batch": (
            mean(("targets in batches:", "targets in batches[:1]:")),
            "only the first micro-batch",
        ),
    },
}
