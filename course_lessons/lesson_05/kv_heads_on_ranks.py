"""`kv_heads_on_ranks` of lesson 05: holders of each key/value head, and the sum of its gradient.

Each plan is compared with the rule, and its execution, partly on real ranks, with one process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TOLERANCE, fresh_seed
from course_classroom.judge.words import Page
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group
from course_lib.tensor_parallel.qkv_layout import shares

SIZE, HIDDEN, BATCH, LENGTH = 3, 7, 2, 4
MOST = 100  # entries to read of one part of a triple
Case = tuple[int, int, int]  # heads, kv heads, n
Plan = list[tuple[list[int], list[int], list[int]]]  # for each rank: q heads, kv heads, partners
# Fewer key/value heads than ranks. 7 and 4 over 3: an even spread differs from a ceiling cut.
SHARED = [(5, 1, 3), (3, 1, 2), (4, 2, 4), (6, 2, 4), (14, 2, 6), (8, 2, 6)]
REAL = SHARED[:2]  # run on ranks; one process simulates the others
POSSIBLE = [*SHARED, (6, 3, 3), (9, 3, 2), (14, 7, 3), (8, 4, 3), (4, 2, 1)]
IMPOSSIBLE = [(6, 2, 3), (6, 3, 4), (6, 2, 5), (9, 3, 5)]
SAYS = Page(__file__, "kv_heads_on_ranks")


def plans(function: Callable, group: Group, cases: list[Case]) -> list[dict]:
    """Return the function's plan for each case, or its ValueError."""
    return [_plan(function, case) for case in cases]


def _plan(function: Callable, case: Case) -> dict:
    try:
        out, _ = bench.watched(lambda: function(*case))
    except ValueError:
        return {"refused": True}
    rows = out if isinstance(out, (list, tuple)) else ()
    report = {"refused": False, "kind": bench.kind(out), "length": len(rows), "n": case[2]}
    report["plan"] = None
    with contextlib.suppress(Exception):  # any error of an object that is not a list of numbers
        rows = [tuple(map(_numbers, islice(row, 4))) for row in rows]
        report["plan"] = rows if rows and all(len(row) == 3 for row in rows) else None
    return report


def _numbers(part: Iterable) -> list[int]:
    if isinstance(part, (str, bytes, dict)):
        raise TypeError
    some = list(islice(sorted(part) if isinstance(part, (set, frozenset)) else part, MOST))
    if any(one != int(one) for one in some):
        raise ValueError
    return list(map(int, some))


class Attention:
    """Grouped attention in float64 with random weights, which are equal on all ranks."""

    def __init__(self, heads: int, kv_heads: int, seed: int):
        made = torch.Generator().manual_seed(seed * 1019 + heads * 7 + kv_heads)

        def numbers(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=made, dtype=torch.float64)

        self.each = heads // kv_heads
        self.x = numbers(BATCH, LENGTH, HIDDEN)
        self.q, self.k, self.v = (numbers(n, SIZE, HIDDEN) for n in (heads, kv_heads, kv_heads))
        self.pull = numbers(heads, BATCH, LENGTH, SIZE)  # the loss is the product with this
        self.dense = self.gradients(list(range(heads)))

    def gradients(self, queries: list[int]) -> Tensor:
        """Return dL/dk and dL/dv, (2, kv heads, SIZE, HIDDEN), if only `queries` are computed."""
        k, v = (w.clone().requires_grad_() for w in (self.k, self.v))
        read = [head // self.each for head in queries]  # the key/value head of each
        weights = (self.q[queries], k[read], v[read])  # (heads, SIZE, HIDDEN) each
        parts = [torch.einsum("bsh,ndh->nbsd", self.x, w) for w in weights]
        y = F.scaled_dot_product_attention(*parts, is_causal=True)  # (heads, b, s, SIZE)
        (y * self.pull[queries]).sum().backward()
        return torch.stack((k.grad, v.grad))

    def gaps(self, plan: Plan, own: list[Tensor]) -> list[float]:
        """Return each rank's relative distance between the summed gradients of its heads and the
        dense gradients; infinite if shapes differ."""
        found = []
        for _, kv, partners in plan:
            whole = self.dense[:, kv]
            theirs = [own[partner][:, plan[partner][1]] for partner in partners]
            alike = all(one.shape == whole.shape for one in theirs)
            off = sum(theirs, -whole).norm() / whole.norm() if alike else float("inf")
            found.append(float(off))
        return found


def played(plan: Plan, heads: int, kv_heads: int, seed: int) -> list[float]:
    """Return each rank's gap for a plan whose ranks this process simulates."""
    attention = Attention(heads, kv_heads, seed)
    return attention.gaps(plan, [attention.gradients(queries) for queries, _, _ in plan])


def run(function: Callable, group: Group, plan: Plan, *given: int) -> list[float]:
    """Return each rank's gap for a plan that real ranks execute, each with its own heads."""
    attention = Attention(*given)
    mine = attention.gradients(plan[group.rank()][0])
    own = all_gather(mine[None], group)  # the sum over *some* ranks, by hand
    return attention.gaps(plan, list(own))


def right(case: Case) -> Plan:
    """Return the plan by the library's rule, in the exercise's format."""
    return [([*range(*one.q)], [*range(*one.kv)], [*one.holders]) for one in shares(*case)]


def judge_kv_heads(answer: Answer, judge: Judge) -> None:
    """Request the answer's plans, compare their heads with the rule, then run the plans."""
    judge.take(answer, __name__)
    seed, cases = fresh_seed(), POSSIBLE + IMPOSSIBLE
    found = judge.trial(answer, plans, cases, members=THREE, when=on(THREE))
    SAYS.refuse({"ranks disagree": found[1:] != found[:-1]})
    reports = dict(zip(cases, found[0], strict=True))
    looks = {
        "possible case refused": lambda r: r["refused"],
        "nothing returned": lambda r: r["kind"] == "NoneType",
        "not a plan #1": lambda r: r["length"] not in (0, r["n"]),
        "not a plan #2": lambda r: r["plan"] is None,
    }
    for case in POSSIBLE:
        SAYS.refuse_each([reports[case]], looks, where=_words(case))
        _look_at_heads(case, reports[case]["plan"])
    for case in POSSIBLE:
        _look_at_sums(case, reports[case]["plan"], seed, judge, answer)
    for case in IMPOSSIBLE:
        SAYS.refuse({"impossible case accepted": not reports[case]["refused"]}, where=_words(case))


def _words(case: Case) -> str:
    heads, kv, n = case
    many = "" if kv == 1 else "s"
    return f"With {heads} query heads, {kv} key/value head{many} and {n} ranks"


def _look_at_heads(case: Case, plan: Plan) -> None:
    (heads, kv, n), wanted = case, right(case)
    other = [r for r in range(n) if plan[r][:2] != wanted[r][:2]]
    if not other:
        return
    computed, each = [head for row in plan for head in row[0]], heads // kv
    missing = [head for head in range(heads) if head not in computed]
    twice = [head for head in computed if computed.count(head) > 1]
    lacking = [r for r in range(n) if {q // each for q in plan[r][0]} - set(plan[r][1])]
    holds = {
        "all of them everywhere": 1 not in (n, kv) and all(p[1] == list(range(kv)) for p in plan),
        "dealt out like cards": 1 < kv < n and all(plan[r][1] == [r % kv] for r in range(n)),
        "missing query head": missing,
        "a query head twice": twice,
        "q without its k and v": lacking,
        "out of order": computed != list(range(heads)),
        "spread unevenly": True,
    }
    rank, head = (lacking or other)[0], (missing or twice or [0])[0]
    about = {"where": _words(case), "rank": rank, "q": plan[rank][0], "mine": plan[rank][1]}
    SAYS.refuse(holds, kv=kv, each=each, head=head, **about)


def _look_at_sums(case: Case, plan: Plan, seed: int, judge: Judge, answer: Answer) -> None:
    """Run the plan and compare the summed gradients with one process's gradients."""
    (heads, kv, n), where, partners = case, _words(case), [sorted(row[2]) for row in plan]
    outside = [p for ranks in partners for p in ranks if not 0 <= p < n]
    SAYS.refuse({"no such rank": outside}, where=where, rank=outside and outside[0], last=n - 1)
    how, given = f"with {n} ranks in one process", (plan, heads, kv, seed)
    if case in REAL:
        how, members = f"on {n} real ranks", THREE[-n:]
        gaps, *_ = judge.trial(answer, run, *given, members=members, when=on(members))
    else:
        gaps = played(*given)
    worst = max(range(n), key=lambda r: gaps[r])
    if gaps[worst] <= TOLERANCE:
        return
    torn = "cannot be summed, because the shapes of the tensors differ."
    off = torn if gaps[worst] == float("inf") else f"is off by {gaps[worst]:.0%} of its size."
    seen = f"{where}, the plan was tried {how}. On rank {worst} the gradient of k and v {off}"
    wanted = [row[2] for row in right(case)]
    holds = {
        "no sum": all(ranks in ([], [r]) for r, ranks in enumerate(partners)),
        "without itself": partners == [[p for p in wanted[r] if p != r] for r in range(n)],
        "all ranks sum": partners == [list(range(n))] * n,
        "the wrong ranks sum": True,
    }
    SAYS.refuse(holds, seen=seen, partners=plan[worst][2])


KV_HEADS = Exercise(judge=judge_kv_heads, **SAYS.about)
