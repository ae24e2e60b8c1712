"""Answers to lesson 05's exercises on heads: rows of q, k and v, and plans for fewer kv heads."""

from tests.course_lessons.answers import changed

QKV = '''
from course_lib.layout import kv_heads as spread


def shard_qkv(weights, heads, kv_heads, rank, n):
    """This rank's (weight, bias)."""
    bias = None
    if "c_attn.weight" in weights:
        q, k, v = weights["c_attn.weight"].t().chunk(3)
        bias = weights["c_attn.bias"].chunk(3)
    else:
        q, k, v = (weights[f"{name}_proj.weight"] for name in "qkv")
    size, each = len(q) // heads, heads // kv_heads
    start, stop = spread(kv_heads, n)[rank]
    kv = slice(start * size, stop * size)
    mine = slice(start * each * size, stop * each * size)
    weight = torch.cat((q[mine], k[kv], v[kv]))
    if bias is not None:
        bias = torch.cat((bias[0][mine], bias[1][kv], bias[2][kv]))
    return weight, bias
'''
# Another style: whole heads as an index, and one joined weight.
QKV_BY_INDEX = """
def shard_qkv(weights, heads, kv_heads, rank, n):
    if "c_attn.weight" in weights:
        whole, bias = weights["c_attn.weight"].T, weights["c_attn.bias"]
    else:
        whole, bias = torch.cat(list(weights.values())), None
    size = len(whole) // (heads + 2 * kv_heads)
    counts = [kv_heads // n + (r < kv_heads % n) for r in range(n)]
    kv = torch.arange(sum(counts[:rank]), sum(counts[: rank + 1]))
    each = heads // kv_heads
    q = (kv[:, None] * each + torch.arange(each)).flatten()
    wanted = torch.cat((q, heads + kv, heads + kv_heads + kv))
    rows = (wanted[:, None] * size + torch.arange(size)).flatten()
    return [torch.nn.Parameter(whole[rows]), None if bias is None else bias[rows]]
"""

# And another: tensors of whole heads, (heads, size, h), and lists of them.
QKV_BY_HEADS = """
def of_heads(part, count):
    return part.unflatten(0, (count, -1))


def shard_qkv(weights, heads, kv_heads, rank, n):
    from course_lib.layout import kv_heads as spread

    first, last = spread(kv_heads, n)[rank]
    counts = {"q": heads, "k": kv_heads, "v": kv_heads}
    match weights:
        case {"c_attn.weight": whole, "c_attn.bias": bias}:
            parts = dict(zip("qkv", whole.t().contiguous().tensor_split(3), strict=True))
            biases = dict(zip("qkv", bias.tensor_split(3), strict=True))
        case _:
            parts, biases = {x: weights[x + "_proj.weight"] for x in "qkv"}, None

    def mine(tensors):
        found = []
        for x, count in counts.items():
            each = count // kv_heads
            found += [*of_heads(tensors[x], count)[first * each : last * each]]
        return torch.cat(found)

    return mine(parts), None if biases is None else mine(biases)
"""


def qkv(*changes: tuple[str, str]) -> str:
    return changed(QKV, *changes)


BOTH = "torch.cat((q, k, v))"
JOIN = "weight = torch.cat((q[mine], k[kv], v[kv]))"
JOIN_BIAS = "bias = torch.cat((bias[0][mine], bias[1][kv], bias[2][kv]))"
STRAIGHT = qkv(
    (JOIN, f"weight = {BOTH}.chunk(n)[rank].clone()"),
    (JOIN_BIAS, "bias = torch.cat(bias).chunk(n)[rank].clone()"),
)
STRIDED = qkv(
    (
        "    weight = ",
        "    kv = [h * size + i for h in range(rank, kv_heads, n) for i in range(size)]\n"
        "    mine = [h * size + i for h in range(rank, heads, n) for i in range(size)]\n"
        "    weight = ",
    )
)
WHERE = "    start, stop = spread(kv_heads, n)[rank]\n"
SIZES_LAST = (
    "    some = [kv_heads // n + (n - 1 - r < kv_heads % n) for r in range(n)]\n"
    "    start, stop = sum(some[:rank]), sum(some[: rank + 1])\n"
)
WRONG_QKV = {
    "straight across the fused dim": (STRAIGHT, "straight across"),
    "through a head": (
        qkv((JOIN, "weight = torch.cat([w.chunk(n)[rank] for w in (q, k, v)])")),
        "through a head",
    ),
    "everything": (
        qkv((JOIN, f"weight = {BOTH}"), (JOIN_BIAS, "bias = torch.cat(bias)")),
        "nothing sharded",
    ),
    "a view": (
        qkv(
            (
                "    return weight, bias",
                "    whole = torch.cat((weight, q, k, v))\n    return whole[: len(weight)], bias",
            )
        ),
        "keeps the checkpoint alive",
    ),
    "not transposed": (qkv((JOIN, JOIN + ".t()")), "not transposed"),
    "reshaped": (
        qkv(
            (
                '["c_attn.weight"].t()',
                '["c_attn.weight"].reshape(3 * len(weights["c_attn.weight"]), -1)',
            )
        ),
        "reshaped, not transposed",
    ),
    "sharded along h": (
        qkv((JOIN, f"weight = {BOTH}.chunk(n, 1)[rank].clone()"), (JOIN_BIAS, "bias = None")),
        "sharded along h",
    ),
    "heads dealt out": (STRIDED, "every n-th head"),
    "head by head": (
        qkv(
            (
                JOIN,
                "split = [w.view(-1, size, w.shape[1]) for w in (q, k, v)]\n"
                "    weight = torch.cat([p for h in range(start, stop) for p in\n"
                "        (*split[0][h * each : (h + 1) * each], split[1][h], split[2][h])])",
            )
        ),
        "head by head",
    ),
    "ceiling division": (
        qkv(
            (
                WHERE,
                "    each_rank = -(-kv_heads // n)\n"
                "    start, stop = (min(r * each_rank, kv_heads) for r in (rank, rank + 1))\n",
            )
        ),
        "ceiling division",
    ),
    "the remainder dropped": (
        qkv((WHERE, "    start, stop = rank * (kv_heads // n), (rank + 1) * (kv_heads // n)\n")),
        "heads left over",
    ),
    "q spread by itself": (
        qkv(
            (
                "    weight = ",
                "    counts = [heads // n + (r < heads % n) for r in range(n)]\n"
                "    mine = slice(sum(counts[:rank]) * size, sum(counts[: rank + 1]) * size)\n"
                "    weight = ",
            )
        ),
        "q without its k and v",
    ),
    "k and v sharded like q": (
        qkv(("    weight = ", "    kv = mine\n    weight = ")),
        "k and v sharded like q",
    ),
    "k and v not sharded": (
        qkv((JOIN, "weight = torch.cat((q[mine], k, v))")), "k and v not sharded"
    ),
    "k before q": (
        qkv((JOIN, "weight = torch.cat((k[kv], q[mine], v[kv]))")),
        "parts in the wrong order",
    ),
    "ranks counted from the end": (
        qkv((WHERE, "    start, stop = spread(kv_heads, n)[n - 1 - rank]\n")),
        "wrong rank's heads",
    ),
    "bias not sharded": (qkv((JOIN_BIAS, "bias = torch.cat(bias)")), "bias not sharded"),
    "bias straight": (
        qkv((JOIN_BIAS, "bias = torch.cat(bias).chunk(n)[rank].clone()")),
        "bias of other rows",
    ),
    "bias forgotten": (qkv((JOIN_BIAS, "bias = None")), "bias left out"),
    "zeros for a bias": (
        qkv(
            ("    bias = None\n", "    bias = None\n    rows = None\n"),
            (
                "    return weight",
                "    bias = torch.zeros(len(weight)) if bias is None else bias\n    return weight",
            ),
        ),
        "unexpected bias",
    ),
    "only the weight": (qkv(("return weight, bias", "return weight")), "not a pair"),
    "nothing": (qkv(("    return weight, bias\n", "")), "nothing returned"),
    "in place": (
        qkv(
            (
                JOIN,
                "q, k, v = (w.mul_(1.0 if w is not k else -1.0) for w in (q, k, v))\n    " + JOIN,
            )
        ),
        "input changed",
    ),
    "as float": (qkv((JOIN, JOIN + ".float()")), "wrong shape"),
    "numpy": (qkv((JOIN, JOIN + ".numpy()")), "not a pair"),
    "only what divides": (qkv((WHERE, "    assert kv_heads % n == 0\n" + WHERE)), "uneven heads"),
    "the last rank has more": (
        qkv((WHERE, WHERE + SIZES_LAST)), "heads left over"
    ),
    "through float32": (qkv((JOIN, JOIN + ".float().to(q.dtype)")), "rounded on the way"),
    "bias popped": (qkv(('weights["c_attn.bias"]', 'weights.pop("c_attn.bias")')), "input changed"),
    "weights popped": (
        qkv(('(weights[f"{name}_proj.weight"]', '(weights.pop(f"{name}_proj.weight")')),
        "input changed",
    ),
    "the checkpoint's own on one rank": (
        qkv(("    size, each", "    if n == 1 and bias:\n        return "
             'weights["c_attn.weight"].t(), weights["c_attn.bias"]\n    size, each')),
        "keeps the checkpoint alive",
    ),
    "one buffer for each shape": (
        qkv(("def shard", "buffers = {}\n\n\ndef shard"),
            ("    return weight, ", "    some = buffers.setdefault((weight.shape, weight.dtype), "
             "torch.empty_like(weight))\n    weight = some.copy_(weight)\n    return weight, ")),
        "one buffer for all calls",
    ),
    "a cache without the weights in its key": (
        qkv(("def shard", "seen = {}\n\n\ndef shard"),
            ("    bias = None\n", "    weights = seen.setdefault((heads, kv_heads, n), weights)\n"
             "    bias = None\n")),
        "weights of an earlier call",
    ),
    "another tensor in the dictionary": (
        qkv(("    bias = None\n", "    bias = None\n    for name in list(weights):\n"
             "        weights[name] = weights[name].clone()\n")),
        "input changed",
    ),
    "another entry in the dictionary": (
        qkv(("    bias = None\n", '    bias = None\n    weights["rank"] = rank\n')),
        "input changed",
    ),
    "the first call's size": (
        qkv(("def shard", "sizes = []\n\n\ndef shard"),
            ("    start, stop", "    sizes.append(size)\n    size = sizes[0]\n    start, stop")),
        "wrong rows",
    ),
    "spread once for each number of heads": (
        qkv(("def shard", "met = {}\n\n\ndef shard"),
            ("spread(kv_heads, n)[rank]", "met.setdefault((heads, n), spread(kv_heads, n))[rank]")),
        "wrong rows",
    ),
    "a bias of single precision": (qkv((JOIN_BIAS, JOIN_BIAS + ".float()")), "wrong shape"),
    "a bias through single precision": (
        qkv((JOIN_BIAS, JOIN_BIAS + ".float().to(q.dtype)")),
        "rounded on the way",
    ),
    "a head of h // heads": (
        qkv(("size, each = len(q) // heads", "size, each = q.shape[1] // heads")),
        "size of a head from h",
    ),
    "a head of h // heads in k and v": (
        qkv(("    kv = slice(start * size, stop * size)\n",
             "    less = k.shape[1] // heads\n    kv = slice(start * less, stop * less)\n")),
        "size of a head from h",
    ),
    "h rows of q": (
        qkv(("    size, each", "    q = q[: q.shape[1]]\n    size, each")), "size of a head from h"
    ),
    "a sparse one": (qkv((JOIN, JOIN + ".to_sparse()")), "not a pair"),
}  # fmt: skip

RIGHT = {"shard_qkv": {"by slices": QKV, "by index": QKV_BY_INDEX, "by heads": QKV_BY_HEADS}}
WRONG = {"shard_qkv": WRONG_QKV}
