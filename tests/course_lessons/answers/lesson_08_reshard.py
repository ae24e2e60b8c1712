"""Answers to `reshard` of lesson 08: right ones, and likely wrong ones with their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

# Merge to the dense model first, then cut it.
TWO_STEPS = '''
from course_lib.layout import cut
from course_lib.layout import kv_heads as spans


def sizes(name, config, n):
    kv = [(b - a) * config.head_size for a, b in spans(config.kv_heads, n)]
    q = [config.heads // config.kv_heads * one for one in kv]
    inner, words = cut(config.inner, n), cut(config.vocabulary, n)
    for part, dim, found in (
        ("qkv", 0, [q, kv, kv]),
        ("attention.out.weight", 1, [q]),
        ("gate_up", 0, [inner, inner]),
        ("mlp.up", 0, [inner]),
        ("mlp.down.weight", 1, [inner]),
        ("tokens.weight", 0, [words]),
        ("head.weight", 0, [words]),
    ):
        if part in name:
            return dim, found
    return 0, None


def merged(name, pieces, config):
    dim, parts = sizes(name, config, len(pieces))
    if parts is None:
        return pieces[0]
    found = []
    for k in range(len(parts)):
        for r, piece in enumerate(pieces):
            start = sum(part[r] for part in parts[:k])
            found.append(piece.narrow(dim, start, parts[k][r]))
    return torch.cat(found, dim)


def piece_of(name, whole, config, n, r):
    dim, parts = sizes(name, config, n)
    if parts is None:
        return whole.clone()
    found, start = [], 0
    for part in parts:
        found.append(whole.narrow(dim, start + sum(part[:r]), part[r]))
        start += sum(part)
    return torch.cat(found, dim)


def reshard(shards, config, n):
    """m ranks' pieces to n."""
    made = [{} for _ in range(n)]
    for name in shards[0]:
        whole = merged(name, [shard[name] for shard in shards], config)
        for r in range(n):
            made[r][name] = piece_of(name, whole, config, n, r)
    for one in made:
        if config.tied:
            one["head.weight"] = one["tokens.weight"]
    return made
'''
# Another style: which rows of the dense weight a rank holds, as an index.
BY_INDEX = """
from course_lib.layout import kv_heads as spans
from course_lib.layout import span


def held(name, config, n, r):
    d, each = config.head_size, config.heads // config.kv_heads
    a, b = spans(config.kv_heads, n)[r]
    if "attention" in name and not name.endswith("out.bias"):
        q = list(range(a * each * d, b * each * d))
        if "out" in name:
            return 1, q
        first, second = config.heads * d, (config.heads + config.kv_heads) * d
        kv = range(a * d, b * d)
        return 0, q + [first + i for i in kv] + [second + i for i in kv]
    if name in ("tokens.weight", "head.weight"):
        return 0, list(range(*span(config.vocabulary, n, r)))
    a, b = span(config.inner, n, r)
    if "gate_up" in name:
        return 0, [*range(a, b), *range(config.inner + a, config.inner + b)]
    if "up" in name or name.endswith("down.weight"):
        return (1 if "down" in name else 0), list(range(a, b))
    return 0, None


def reshard(shards, config, n):
    dense = {}
    for name in shards[0]:
        dim, rows = held(name, config, 1, 0)
        if rows is None:
            dense[name] = shards[-1][name]
            continue
        pieces = [shard[name].movedim(dim, 0) for shard in shards]
        whole = pieces[0].new_empty((len(rows), *pieces[0].shape[1:]))
        for r, piece in enumerate(pieces):
            whole[held(name, config, len(shards), r)[1]] = piece
        dense[name] = whole.movedim(0, dim)
    made = []
    for r in range(n):
        one = {}
        for name, whole in dense.items():
            dim, rows = held(name, config, n, r)
            every = range(whole.shape[dim]) if rows is None else rows
            one[name] = whole.index_select(dim, torch.tensor(list(every)).long())
        if config.tied:
            one["head.weight"] = one["tokens.weight"]
        made.append(one)
    return made
"""


def wrong(*changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    return changed(TWO_STEPS, *changes)


JOIN = "            whole = "
MERGE = "merged(name, [shard[name] for shard in shards], config)"
COPY = "        return pieces[0]\n"
WRONG_CUTS = {
    "qkv in one piece": (
        wrong(("[q, kv, kv])", "[[sum(one) for one in zip(q, kv, kv)]])")),
        "fused straight across",
    ),
    "gate_up in one piece": (
        wrong(("[inner, inner])", "[[2 * one for one in inner]])")),
        "fused straight across",
    ),
    "pieces joined end to end": (
        wrong((MERGE, "torch.cat([s[name] for s in shards], sizes(name, config, 1)[0]) "
                      f"if sizes(name, config, 1)[1] else {MERGE}")),
        "fused straight across",
    ),
    "replicas added": (wrong((COPY, "        return sum(pieces)\n")), "replicas added"),
    "copies averaged": (
        wrong((COPY, "        return (sum(pieces) / 3 * 3) / len(pieces)\n")),
        "not bit by bit",
    ),
    "replicas joined": (wrong((COPY, "        return torch.cat(pieces)\n")), "replicas joined"),
    "everything sharded": (
        wrong(("return whole.clone()\n", "return whole.tensor_split(n)[r].clone()\n")),
        "wrong shape",
    ),
    "row biases cut": (
        wrong(
            (
                "        return whole.clone()\n",
                "        if name.endswith('out.bias'):\n"
                "            parts = list(whole.split(cut(len(whole), n)))\n"
                "            return (parts + [whole[:0]] * n)[r].clone()\n"
                "        return whole.clone()\n",
            )
        ),
        "replicated tensor sharded",
    ),
    "out by rows": (
        wrong(('("attention.out.weight", 1, [q])', '("attention.out.weight", 0, [q])')),
        "wrong dim",
    ),
    "down by rows": (
        wrong(
            (
                '("mlp.down.weight", 1, [inner])',
                '("mlp.down.weight", 0, [cut(config.hidden, n)])',
            )
        ),
        "wrong dim",
    ),
    "heads by ceiling": (
        wrong(("kv = [(b - a) * config.head_size for a, b in spans(config.kv_heads, n)]",
               "kv = [one * config.head_size for one in cut(config.kv_heads, n)]")),
        "wrong split rule",
    ),
    "words spread evenly": (
        wrong(("cut(config.inner, n), cut(config.vocabulary, n)",
               "cut(config.inner, n), [b - a for a, b in spans(config.vocabulary, n)]")),
        "wrong split rule",
    ),
    "k and v as many rows as q": (wrong(("[q, kv, kv])", "[q, q, q])")), "raised"),
    "everything everywhere": (
        wrong(
            (
                "    dim, parts = sizes(name, config, n)\n    if parts is None:\n"
                "        return whole.clone()",
                "    dim, parts = sizes(name, config, n)\n    if True:\n"
                "        return whole.clone()",
            )
        ),
        "nothing sharded",
    ),
    "ranks from behind": (
        wrong(("        for r in range(n):\n            made[r][name]",
               "        for r in range(n):\n            made[n - 1 - r][name]")),
        "piece of a different rank",
    ),
    "the head torn off": (wrong(("        if config.tied:\n", "        if False:\n")),
                          "tied weight no longer shared"),
    "the head forgotten": (
        wrong(('            one["head.weight"] = one["tokens.weight"]\n',
               '            one.pop("head.weight")\n')),
        "wrong names",
    ),
    "always tied": (
        wrong(("        if config.tied:\n", "        if True:\n")),
        "tied although untied",
    ),
    "views": (
        wrong(("        return whole.clone()\n    found, start = [], 0",
               "        return whole.clone()\n    if len(parts) == 1:\n"
               "        return whole.split(parts[0], dim)[r]\n    found, start = [], 0")),
        "keeps the checkpoint alive",
    ),
    "in float32": (wrong(("    return torch.cat(found, dim)\n\n\ndef reshard",
                          "    return torch.cat(found, dim).float()\n\n\ndef reshard")),
                   "wrong dtype"),
    "rounded on the way": (
        wrong(("    return torch.cat(found, dim)\n\n\ndef reshard",
               "    return torch.cat(found, dim).float().double()\n\n\ndef reshard")),
        "not bit by bit",
    ),
    "the pieces spoilt": (
        wrong((COPY, "        pieces[0].mul_(1.5)\n        return pieces[0] / 1.5\n")),
        "input changed",
    ),
    "m dictionaries": (wrong(("made = [{} for _ in range(n)]",
                              "made = [{} for _ in range(n + 1)]"),
                             ("        if config.tied:\n", "        if config.tied and one:\n")),
                       "wrong number of ranks"),
    "one dictionary": (wrong(("    return made\n", "    return made[0]\n")), "not a list"),
    "nothing": (wrong(("    return made\n", "    return\n")), "nothing returned"),
    "names for tensors": (
        wrong(("made[r][name] = piece_of", "made[r][name] = piece_of and str(n) if 'norm.' in name "
               "else piece_of")),
        "not a tensor",
    ),
}  # fmt: skip
FIRST = ("qkv in one piece", "replicas added", "everything everywhere", "views")
RIGHT: dict = {"reshard": {"two steps": TWO_STEPS, "by index": BY_INDEX}}
WRONG: dict = {"reshard": {how: WRONG_CUTS[how] for how in (*FIRST, *WRONG_CUTS)}}
