"""`kv_heads_on_ranks` of lesson 05: who holds which key/value head, and who sums its gradient.

Where the heads are is held against the rule; who sums is held against the gradients themselves:
the plan is carried out, on real ranks where there are as many, and compared with one process.
"""

from __future__ import annotations

import os

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_05 import kv_trial
from course_lib.classroom.checks.lesson_05.kv_trial import Plan, played
from course_lib.tensor_parallel.qkv_layout import shares

ALL = [0, 1, 2]
TOLERANCE = 1e-10  # float64
# Fewer key/value heads than ranks. Seven and four over three: even spread is no ceiling cut.
SHARED = [(5, 1, 3), (3, 1, 2), (4, 2, 4), (6, 2, 4), (14, 2, 6), (8, 2, 6)]
REAL = SHARED[:2]  # carried out on ranks; the rest is played by one process
OWNED = [(6, 3, 3), (9, 3, 2), (14, 7, 3), (8, 4, 3)]
ALONE = [(4, 2, 1)]
IMPOSSIBLE = [(6, 2, 3), (6, 3, 4), (6, 2, 5), (9, 3, 5)]


def judge_kv_heads(answer: Answer, judge: Judge) -> None:
    """Ask for the plans, hold heads against the rule, then carry the plans out."""
    judge.take(answer, kv_trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    possible = SHARED + OWNED + ALONE
    cases = possible + IMPOSSIBLE
    found = judge.trial(answer, kv_trial.plans, cases, members=ALL, when=on(ALL))
    if found[1:] != found[:-1]:
        raise Finding(
            "ranks disagree",
            "The plan is not the same on all ranks. It is a rule: every caller gets the answer for "
            "all n ranks.",
        )
    reports = dict(zip(possible + IMPOSSIBLE, found[0], strict=True))
    for case in possible:
        _look_at_result(case, reports[case])
        _look_at_heads(case, reports[case]["plan"])
    for case in possible:
        _look_at_sums(case, reports[case]["plan"], seed, judge, answer)
    for case in IMPOSSIBLE:
        if not reports[case]["refused"]:
            raise Finding(
                "placed what cannot be",
                f"{_words(case)}: some key/value head would have more copies than another. Raise a "
                "ValueError there, or a model is trained with an attention that it does not have.",
            )


def _words(case: tuple[int, int, int]) -> str:
    heads, kv, n = case
    many = "" if kv == 1 else "s"
    return f"With {heads} query heads, {kv} key/value head{many} and {n} ranks"


def _look_at_result(case: tuple, report: dict) -> None:
    """Refuse what is no plan at all."""
    where, n = _words(case), case[2]
    if report["refused"]:
        raise Finding("refused too much", f"{where} a ValueError was raised; this can be placed.")
    if report["kind"] == "NoneType":
        raise Finding("nothing returned", f"{where} None came back. Did you forget `return`?")
    plan = report["plan"]
    if plan is None or len(plan) != n:
        raise Finding(
            "not a plan",
            f"{where} what came back ({report['kind']}) is not a list of {n} triples: for each "
            "rank its query heads, its key/value heads, and the ranks that sum, each as numbers."
            + _why(report, n),
        )


def _why(report: dict, n: int) -> str:
    """What is known beside that it is no plan."""
    if report["kind"] == "generator":
        return " A generator has worked out nothing yet, and raises nothing: join it to a list."
    length = report["length"]
    if length and length != n:
        return f" It has {length} entries. Does a list outlive the call, with what was in it?"
    return ""


def right(case: tuple[int, int, int]) -> Plan:
    """The library's rule, in the words of the exercise."""
    return [
        (list(range(*share.q)), list(range(*share.kv)), list(share.holders))
        for share in shares(*case)
    ]


def _look_at_heads(case: tuple[int, int, int], plan: Plan) -> None:
    heads, kv, n = case
    where, wanted = _words(case), right(case)
    if all(plan[r][:2] == wanted[r][:2] for r in range(n)):
        return
    holds = [row[1] for row in plan]
    if n > 1 and all(row == list(range(kv)) for row in holds) and kv > 1:
        raise Finding(
            "all of them everywhere",
            f"{where} every rank holds every key/value head. A rank needs those that its own "
            "queries read; with more it holds, and computes, what it never uses.",
        )
    if kv < n and all(holds[r] == [r % kv] for r in range(n)) and kv > 1:
        raise Finding(
            "dealt out like cards",
            f"{where} rank r holds head r mod {kv}. Then ranks 0 and {kv} share a head, and their "
            "query heads are not neighbours. Copies of a head belong on neighbouring ranks.",
        )
    computed = [head for row in plan for head in row[0]]
    missing = sorted(set(range(heads)) - set(computed))
    if missing:
        raise Finding(
            "a query head that nobody has",
            f"{where} no rank computes query head {missing[0]}. Where the number does not divide, "
            "the first ranks take one more.",
        )
    if len(computed) > heads:
        twice = next(head for head in computed if computed.count(head) > 1)
        raise Finding(
            "a query head twice",
            f"{where} query head {twice} is computed {computed.count(twice)} times, and the output "
            "projection's sum will count it as often. Ranks that share a key/value head divide its "
            "queries among themselves.",
        )
    each = heads // kv
    for rank, (queries, mine, _) in enumerate(plan):
        lacking = [head for head in queries if head // each not in mine]
        if lacking:
            raise Finding(
                "q without its k and v",
                f"{where} rank {rank} computes query head {lacking[0]}, which reads key/value head "
                f"{lacking[0] // each}, and holds {mine}. Each key/value head serves "
                f"{each} neighbouring query heads.",
            )
    if computed != list(range(heads)):
        raise Finding(
            "out of order",
            f"{where} the heads do not follow each other from rank to rank. The output projection "
            "is cut in order: rank 0 holds the first heads.",
        )
    rank = next(r for r in range(n) if plan[r][:2] != wanted[r][:2])
    raise Finding(
        "spread unevenly",
        f"{where} rank {rank} computes {len(plan[rank][0])} query heads with {len(plan[rank][1])} "
        "key/value heads: not as evenly as it goes (counts differ by one at most, the first ranks "
        "have more; ranks with copies of the same head divide its queries in the same way).",
    )


def _look_at_sums(case: tuple, plan: Plan, seed: int, judge: Judge, answer: Answer) -> None:
    """Carry the plan out and hold the summed gradients against those of one process."""
    heads, kv, n = case
    where, wanted = _words(case), right(case)
    outside = [p for row in plan for p in row[2] if not 0 <= p < n]
    if outside:
        raise Finding(
            "no such rank", f"{where} there is no rank {outside[0]}: ranks are 0 to {n - 1}."
        )
    real = case in REAL
    if real:
        members = ALL[-n:]
        given = (plan, heads, kv, seed)
        gaps = judge.trial(answer, kv_trial.run, *given, members=members, when=on(members))
    else:
        gaps = played(plan, heads, kv, seed)
    worst = max(range(n), key=lambda r: gaps[r])
    if gaps[worst] <= TOLERANCE:
        return
    how = f"on {n} real ranks" if real else f"with {n} ranks played by one process"
    seen = f"{where} the plan was carried out {how}: on rank {worst} the gradient of k and v " + (
        "cannot be summed: the tensors do not have one shape."
        if gaps[worst] == float("inf")
        else f"is off by {gaps[worst]:.0%} of its size."
    )
    partners = [sorted(row[2]) for row in plan]
    if all(partners[r] == [] for r in range(n)):
        raise Finding(
            "nobody sums", f"{seen} The list of ranks that sum is empty: a rank counts itself in."
        )
    if all(partners[r] == [r] for r in range(n)):
        raise Finding(
            "nobody sums",
            f"{seen} Each rank keeps the gradient of its own queries. A head that several ranks "
            "hold was used by all of them, and its gradient is the sum of theirs.",
        )
    if all(partners[r] == [p for p in wanted[r][2] if p != r] for r in range(n)):
        raise Finding(
            "without itself",
            f"{seen} Each rank adds what the others have and leaves its own out. It is in the sum.",
        )
    if all(partners[r] == list(range(n)) for r in range(n)):
        raise Finding(
            "everybody sums",
            f"{seen} All ranks sum, also those that hold another head: their gradients belong to "
            "other weights. Only holders of the same head sum.",
        )
    raise Finding(
        "the wrong ranks sum",
        f"{seen} It sums over {plan[worst][2]}. Which ranks hold the same key/value head?",
    )


KV_HEADS = Exercise(
    name="kv_heads_on_ranks",
    title="Two kv heads on four ranks",
    points=3,
    judge=judge_kv_heads,
    when_right=(
        "Every query finds its key and value, no rank holds a head that it does not use, and each "
        "plan, carried out, gave the gradients of one process: on two and three real ranks for "
        "one shared head, played for the rest. The sum over the holders of a head is the price of "
        "the copy."
    ),
    hints=(
        "Query head i reads key/value head i // (heads / kv_heads). Draw two kv heads and four "
        "query heads, join them, then draw the borders of four ranks.",
        "As many kv heads as ranks, or more: `course_lib.layout.kv_heads(kv_heads, n)` spreads "
        "them, and the queries follow. Fewer: the same function says who has a copy of which, and "
        "refuses what cannot be.",
        "The holders of one head divide its query heads as evenly as they go: "
        "`course_lib.layout.heads(how_many, holders)` gives the counts.",
        "Whose gradients are summed? A weight that several ranks hold took part in what each of "
        "them computed. One that a single rank holds has a list with one rank in it.",
    ),
)
