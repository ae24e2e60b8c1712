"""The checks of lesson 05 about where heads are: right answers pass, mistakes go by their names.

Every answer here runs on the judge's real ranks.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_05 import kv_plan, kv_trial, qkv_readings
from course_lib.tensor_parallel.qkv_layout import shares
from tests.likeliest import likeliest

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "05_attention"

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


def qkv(*changes: tuple[str, str]) -> str:
    return changed(QKV, *changes)


def changed(text: str, *changes: tuple[str, str]) -> str:
    """A right answer with a mistake in it."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


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
WRONG_QKV = {
    "straight across the fused dim": (STRAIGHT, "straight across"),
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
    "cut along h": (
        qkv((JOIN, f"weight = {BOTH}.chunk(n, 1)[rank].clone()"), (JOIN_BIAS, "bias = None")),
        "cut along h",
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
    "through a head": (
        qkv((JOIN, "weight = torch.cat([w.chunk(n)[rank] for w in (q, k, v)])")),
        "through a head",
    ),
    "ceiling division": (
        qkv(
            (
                WHERE,
                "    each_rank = -(-kv_heads // n)\n"
                "    start, stop = (min(r * each_rank, kv_heads) for r in (rank, rank + 1))\n",
            )
        ),
        "an idle rank",
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
    "k and v cut like q": (
        qkv(("    weight = ", "    kv = mine\n    weight = ")),
        "k and v cut like q",
    ),
    "k and v whole": (qkv((JOIN, "weight = torch.cat((q[mine], k, v))")), "k and v whole"),
    "everything": (
        qkv((JOIN, f"weight = {BOTH}"), (JOIN_BIAS, "bias = torch.cat(bias)")),
        "nothing cut",
    ),
    "k before q": (
        qkv((JOIN, "weight = torch.cat((k[kv], q[mine], v[kv]))")),
        "parts in another order",
    ),
    "ranks counted from the end": (
        qkv((WHERE, "    start, stop = spread(kv_heads, n)[n - 1 - rank]\n")),
        "another rank's heads",
    ),
    "bias whole": (qkv((JOIN_BIAS, "bias = torch.cat(bias)")), "bias whole"),
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
        "a bias from nowhere",
    ),
    "a view": (
        qkv(
            (
                "    return weight, bias",
                "    whole = torch.cat((weight, q, k, v))\n    return whole[: len(weight)], bias",
            )
        ),
        "still holds the whole",
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
}

PLAN = '''
def kv_heads_on_ranks(heads, kv_heads, n):
    """For each rank (its query heads, its kv heads, the ranks that sum)."""
    each, plan = heads // kv_heads, []
    if n > kv_heads and n % kv_heads:
        raise ValueError("cannot be placed")
    if kv_heads >= n:
        start = 0
        for rank in range(n):
            count = kv_heads // n + (rank < kv_heads % n)
            kv = list(range(start, start + count))
            q = list(range(start * each, (start + count) * each))
            plan.append((q, kv, [rank]))
            start += count
        return plan
    copies, start = n // kv_heads, 0
    for rank in range(n):
        first = rank // copies * copies
        count = each // copies + (rank - first < each % copies)
        q = list(range(start, start + count))
        start += count
        plan.append((q, [rank // copies], list(range(first, first + copies))))
    return plan
'''
PLAN_BY_LIBRARY = """
from course_lib.tensor_parallel.qkv_layout import shares


def kv_heads_on_ranks(heads, kv_heads, n):
    return [{0: range(*s.q), 1: range(*s.kv), 2: s.holders}.values()
            for s in shares(heads, kv_heads, n)]
"""


def plan(*changes: tuple[str, str]) -> str:
    return changed(PLAN, *changes)


WRONG_PLAN = {
    "nobody sums": (plan(("list(range(first, first + copies))", "[rank]")), "nobody sums"),
    "an empty list": (
        plan(("list(range(first, first + copies))", "[]"), ("(q, kv, [rank])", "(q, kv, [])")),
        "nobody sums",
    ),
    "everybody sums": (
        plan(
            ("list(range(first, first + copies))", "list(range(n))"),
            ("(q, kv, [rank])", "(q, kv, list(range(n)))"),
        ),
        "everybody sums",
    ),
    "all but itself": (
        plan(
            (
                "list(range(first, first + copies))",
                "[p for p in range(first, first + copies) if p != rank]",
            ),
            ("(q, kv, [rank])", "(q, kv, [])"),
        ),
        "without itself",
    ),
    "neighbours in pairs": (
        plan(("list(range(first, first + copies))", "[rank, (rank + 1) % n]")),
        "the wrong ranks sum",
    ),
    "a rank too many": (
        plan(("list(range(first, first + copies))", "list(range(first, first + copies + 1))")),
        "no such rank",
    ),
    "dealt out": (plan(("[rank // copies]", "[rank % kv_heads]")), "dealt out like cards"),
    "all of them everywhere": (
        plan(("[rank // copies]", "list(range(kv_heads))")),
        "all of them everywhere",
    ),
    "the rest forgotten": (
        plan(("each // copies + (rank - first < each % copies)", "each // copies")),
        "a query head that nobody has",
    ),
    "every holder all queries": (
        plan(
            (
                "        q = list(range(start, start + count))\n"
                "        start += count\n        plan",
                "        q = [rank // copies * each + i for i in range(each)]\n        plan",
            )
        ),
        "a query head twice",
    ),
    "q by itself": (
        plan(
            (
                "            q = list(range(start * each, (start + count) * each))\n",
                "            counts = [heads // n + (r < heads % n) for r in range(n)]\n"
                "            q = list(range(sum(counts[:rank]), sum(counts[: rank + 1])))\n",
            )
        ),
        "q without its k and v",
    ),
    "the first two ranks change places": (
        plan(("    return plan\n    copies", "    return plan[1::-1] + plan[2:]\n    copies")),
        "out of order",
    ),
    "the last ranks have more": (
        plan(("(rank < kv_heads % n)", "(n - 1 - rank < kv_heads % n)")),
        "spread unevenly",
    ),
    "placed what cannot be": (
        plan(('raise ValueError("cannot be placed")', "return []")),
        "placed what cannot be",
    ),
    "refused too much": (
        plan(("if n > kv_heads and n % kv_heads", "if kv_heads % n")),
        "refused too much",
    ),
    "one rank's": (
        plan(
            (
                "        plan.append((q, [rank // copies]",
                "        return (q, [], [])\n        plan.append((q, [rank // copies]",
            )
        ),
        "not a plan",
    ),
    "nothing": (
        plan(
            (
                "        start += count\n        plan",
                "        start += count\n        return\n        plan",
            )
        ),
        "nothing returned",
    ),
    "another on each rank": (
        plan(
            (
                "    return plan\n    copies",
                "    return plan[rank_of() :] + plan[: rank_of()]\n    copies",
            )
        )
        + "\n\ndef rank_of():\n    return dist.get_rank()\n",
        "ranks disagree",
    ),
}

RIGHT = {
    "shard_qkv": (QKV, QKV_BY_INDEX),
    "kv_heads_on_ranks": (PLAN, PLAN_BY_LIBRARY),
}


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_right_whatever_their_style(desk, name):
    for source in RIGHT[name]:
        verdict = judged(desk, name, source)
        assert verdict.outcome == "right", str(verdict)
        assert verdict.points == frame.find(name).points


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert judged(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_QKV, first=("straight across the fused dim", "through a head", "everything", "a view")
    ),
)
def test_a_wrong_cut_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_QKV[mistake]
    verdict = judged(desk, "shard_qkv", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_PLAN,
        first=("nobody sums", "everybody sums", "neighbours in pairs", "all of them everywhere"),
    ),
)
def test_a_wrong_plan_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_PLAN[mistake]
    verdict = judged(desk, "kv_heads_on_ranks", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    arguments = {"shard_qkv": "weights, heads, kv_heads, rank, n"}.get(name, "heads, kv_heads, n")
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("raise SystemExit", "raised"),
        ("return 'heads'", {"shard_qkv": "not a pair"}.get(name, "not a plan")),
        ("return [(float('nan'), 0)]", {"shard_qkv": "not a pair"}.get(name, "not a plan")),
    ):
        verdict = judged(desk, name, f"def {name}({arguments}):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, RIGHT[name][0]).outcome == "right"


def test_the_rows_wanted_are_those_of_attention_by_heads():
    """An oracle of its own: a head computed from its rows alone is that head of all of them."""
    made = torch.Generator().manual_seed(3)
    case = qkv_readings.Case("llama", 6, 3, 2, 2)
    x = torch.randn(4, case.hidden, generator=made, dtype=torch.float64)
    weight = torch.randn(case.rows, case.hidden, generator=made, dtype=torch.float64)

    def attend(rows, heads, kv):
        q, k, v = (x @ weight[rows].t()).split([heads * 2, kv * 2, kv * 2], 1)
        q, k, v = (part.view(4, -1, 2).transpose(0, 1)[None] for part in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)[0]

    whole = attend(list(range(case.rows)), 6, 3)
    parts = [attend(qkv_readings.right(case, r), h, kv) for r, h, kv in ((0, 4, 2), (1, 2, 1))]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_a_plan_carried_out_gives_the_gradient_of_one_process_only_with_the_right_sum():
    made = kv_plan.right((6, 2, 4))
    assert [share.q for share in shares(6, 2, 4)] == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert max(kv_trial.played(made, 6, 2, 5)) < 1e-10
    alone = [(q, kv, [rank]) for rank, (q, kv, _) in enumerate(made)]
    assert min(kv_trial.played(alone, 6, 2, 5)) > 0.05


def test_a_finding_shows_what_the_plan_did_to_the_gradient(desk):
    verdict = judged(desk, "kv_heads_on_ranks", WRONG_PLAN["nobody sums"][0])
    assert "on 3 real ranks" in verdict.text
    assert "% of its size" in verdict.text
    verdict = judged(desk, "kv_heads_on_ranks", WRONG_PLAN["everybody sums"][0])
    assert "played by one process" in verdict.text


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(name):
    said = " ".join(frame.find(name).hints) + frame.find(name).when_right
    for piece in ("torch.cat", "chunk(3)", ".t()", "rank //", "shares", "n // "):
        assert piece not in said
