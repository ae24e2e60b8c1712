"""Answers to `kv_heads_on_ranks` of lesson 05."""

from tests.course_lessons.answers import changed

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
READERS = "count = each // copies + (rank - first < each % copies)"
CEILING = (
    "most = -(-each // copies)\n        count = max(0, min(most, each - most * (rank - first)))"
)
PLAN_OF_HALVES = "plan.append((q, [rank // copies + 0.5]"


def plan(*changes: tuple[str, str]) -> str:
    return changed(PLAN, *changes)


WRONG_PLAN = {
    "no sum": (plan(("list(range(first, first + copies))", "[rank]")), "no sum"),
    "all ranks sum": (
        plan(
            ("list(range(first, first + copies))", "list(range(n))"),
            ("(q, kv, [rank])", "(q, kv, list(range(n)))"),
        ),
        "all ranks sum",
    ),
    "neighbours in pairs": (
        plan(("list(range(first, first + copies))", "[rank, (rank + 1) % n]")),
        "the wrong ranks sum",
    ),
    "all of them everywhere": (
        plan(("[rank // copies]", "list(range(kv_heads))")),
        "all of them everywhere",
    ),
    "an empty list": (
        plan(("list(range(first, first + copies))", "[]"), ("(q, kv, [rank])", "(q, kv, [])")),
        "no sum",
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
    "a rank too many": (
        plan(("list(range(first, first + copies))", "list(range(first, first + copies + 1))")),
        "no such rank",
    ),
    "dealt out": (plan(("[rank // copies]", "[rank % kv_heads]")), "dealt out like cards"),
    "the rest forgotten": (
        plan(("each // copies + (rank - first < each % copies)", "each // copies")),
        "missing query head",
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
    "impossible case accepted": (
        plan(('raise ValueError("cannot be placed")', "return []")),
        "impossible case accepted",
    ),
    "possible case refused": (
        plan(("if n > kv_heads and n % kv_heads", "if kv_heads % n")),
        "possible case refused",
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
    "queries by ceiling": (plan((READERS, CEILING)), "spread unevenly"),
    "kv heads by ceiling": (
        plan(
            (
                "            count = kv_heads // n + (rank < kv_heads % n)\n",
                "            most = -(-kv_heads // n)\n"
                "            count = max(0, min(most, kv_heads - start))\n",
            )
        ),
        "spread unevenly",
    ),
    "as torch.chunk cuts": (
        plan((READERS, "count = len(torch.arange(each).chunk(copies)[rank - first])")),
        "raised",
    ),
    "refused for one rank too many alone": (
        plan(("if n > kv_heads and", "if n == kv_heads + 1 and")), "impossible case accepted"
    ),
    "a generator": (
        "def kv_heads_on_ranks(heads, kv_heads, n):\n    yield from plan(heads, kv_heads, n)\n"
        + PLAN.replace("def kv_heads_on_ranks", "\n\ndef plan"),
        "not a plan",
    ),
    "a list that outlives the call": (
        plan(
            ("(heads, kv_heads, n):", "(heads, kv_heads, n, plan=[]):"),
            ("each, plan = heads // kv_heads, []", "each = heads // kv_heads"),
        ),
        "not a plan",
    ),
    "halves of heads": (plan(("plan.append((q, [rank // copies]", PLAN_OF_HALVES)), "not a plan"),
}  # fmt: skip

RIGHT = {"kv_heads_on_ranks": {"by hand": PLAN, "by the library": PLAN_BY_LIBRARY}}
WRONG = {"kv_heads_on_ranks": WRONG_PLAN}
