"""Answers to lesson 15's functions: right by another road, and wrong in likely ways."""

from __future__ import annotations

from tests.course_lessons.answers import changed

PLACE = """
def place_ranks(case):
    gpus, tp, dp = case["gpus"], case["tp"], case["dp"]
    nodes = range(case["nodes"])
    found = []
    a = 1
    while a <= gpus:
        b = gpus // a
        if a <= tp and b <= dp:
            per_row = tp // a
            ranks = [(n // per_row * b + k // a, n % per_row * a + k % a)
                     for n in nodes for k in range(gpus)]
            over_dp = a * case["dp_bytes"] if b < dp else 0
            over_tp = b * case["tp_bytes"] if a < tp else 0
            found.append((over_dp + over_tp, ranks))
        a *= 2
    sent, ranks = min(found)
    return {"ranks": ranks, "sent": sent}
"""


def place(*changes: tuple[str, str]) -> str:
    return changed(PLACE, *changes)


_END = '    return {"ranks": ranks, "sent": sent}'
WRONG_PLACE = {
    "tp inside": (
        place((_END, '    ranks = [(r // tp, r % tp) for r in range(tp * dp)]\n' + _END)),
        "tp inside, always",
    ),
    "dp inside": (
        place((_END, '    ranks = [(r % dp, r // dp) for r in range(tp * dp)]\n' + _END)),
        "tp laid across nodes",
    ),
    "one ring": (
        place((_END, _END.replace("sent}", "max(case['tp_bytes'], case['dp_bytes'])}"))),
        "sent wrong",
    ),
    "a ring a node": (
        place(
            ("    sent, ranks = min(found)", "    ranks = min(found)[1]\n"
             "    first = ranks[:gpus]\n"
             "    sent = case['dp_bytes'] * (len({d for d, _ in first}) < dp)\n"
             "    sent += case['tp_bytes'] * (len({t for _, t in first}) < tp)"),
        ),
        "one ring",
    ),
    "each rank": (
        place(
            ("    sent, ranks = min(found)", "    ranks = min(found)[1]\n"
             "    first = ranks[:gpus]\n"
             "    sent = gpus * case['dp_bytes'] * (len({d for d, _ in first}) < dp)\n"
             "    sent += gpus * case['tp_bytes'] * (len({t for _, t in first}) < tp)"),
        ),
        "every rank sends out",
    ),
    "all nodes": (place((_END, _END.replace("sent}", "sent * len(nodes)}"))), "all nodes"),
    "inside too": (
        place(
            ("    sent, ranks = min(found)", "    ranks = min(found)[1]\n"
             "    first = ranks[:gpus]\n"
             "    sent = case['dp_bytes'] * len({t for _, t in first})\n"
             "    sent += case['tp_bytes'] * len({d for d, _ in first})"),
        ),
        "rings inside counted",
    ),
    "tp inside counted": (
        place(("b * case[\"tp_bytes\"] if a < tp else 0", "b * case[\"tp_bytes\"]")),
        "rings inside counted",
    ),
    "dp inside counted": (
        place(("a * case[\"dp_bytes\"] if b < dp else 0", "a * case[\"dp_bytes\"]")),
        "rings inside counted",
    ),
    "chosen with what is inside": (
        place(
            ("found.append((over_dp + over_tp, ranks))",
             "found.append((a * case['dp_bytes'] + b * case['tp_bytes'], over_dp + over_tp, ranks))"
             ),
            ("    sent, ranks = min(found)", "    _, sent, ranks = min(found)"),
        ),
        "rings inside counted",
    ),
    "the dearest": (place(("min(found)", "max(found)")), "not the cheapest"),
    "swapped": (place((_END, _END.replace('ranks,', '[(t, d) for d, t in ranks],'))),
                "coordinates swapped"),
    "twice": (place((_END, _END.replace("ranks,", "ranks[:1] + ranks[:1] + ranks[2:],"))),
              "coordinates twice"),
    "from one on": (place((_END, _END.replace("ranks,", "[(d + 1, t) for d, t in ranks],"))),
                    "outside the mesh"),
    "a node alone": (place((_END, _END.replace("ranks,", "ranks[:gpus],"))), "not every rank"),
    "numbers": (place((_END, _END.replace("ranks,", "list(range(tp * dp)),"))),
                "no list of pairs"),
    "a key lost": (place((_END, '    return {"ranks": ranks}')), "a key missing"),
    "a tuple": (place((_END, "    return ranks, sent")), "not a dictionary"),
    "nothing": (place((_END, "    made = ranks")), "nothing returned"),
    "written to": (place(("    a = 1\n", "    a = 1\n    case['dp_bytes'] += 1\n")),
                   "input changed"),
    "no square of 16": (
        place(("        if a <= tp and b <= dp:\n",
               "        if a <= tp and b <= dp and (a, b) != (4, 4):\n")),
        "not the cheapest",
    ),
    "two neighbours or all": (
        place(("        if a <= tp and b <= dp:\n",
               "        if a <= tp and b <= dp and not 2 < min(a, b):\n")),
        "not the cheapest",
    ),
    "a node has 8 at most": (
        place(('gpus, tp, dp = case["gpus"]', 'gpus, tp, dp = min(case["gpus"], 8)')),
        "not every rank",
    ),
    "one axis inside": (
        place(("        if a <= tp and b <= dp:\n",
               "        if a <= tp and b <= dp and (a == min(gpus, tp) or b == min(gpus, dp)):\n")),
        "one axis inside, always",
    ),
}  # fmt: skip

MFU = """
def mfu_of_log(case):
    rows, took = 0, []
    for line in case["log"].splitlines():
        if "elapsed" in line:
            took.append(float(line.split("(ms):")[1].split("|")[0]) / 1000)
            rows = int(line.split("size:")[1].split("|")[0])
    took = sorted(took[1:])
    half = len(took) // 2
    step = took[half] if len(took) % 2 else (took[half - 1] + took[half]) / 2
    h, s, L, v = (case[name] for name in ("hidden", "length", "layers", "vocabulary"))
    tokens = rows * s
    blocks = 24 * tokens * L * h**2 * (1 + s / (6 * h))
    head = 2 * tokens * h * v
    peak = case["peak"] * case["gpus"]
    mfu = 3 * (blocks + head) / step / peak
    hfu = mfu + case["recompute"] * blocks / step / peak
    return {"seconds": step, "tokens/s": tokens / step / case["gpus"], "mfu": mfu, "hfu": hfu}
"""


def mfu(*changes: tuple[str, str]) -> str:
    return changed(MFU, *changes)


_MFU = "    mfu = 3 * (blocks + head) / step / peak\n"
_HFU = '    hfu = mfu + case["recompute"] * blocks / step / peak\n'
_STEP = "    half = len(took) // 2\n"
_SET = "    step = took[half] if len(took) % 2 else (took[half - 1] + took[half]) / 2\n"
WRONG_MFU = {
    "all of them": (mfu(("took[1:]", "took")), "the first iteration counted"),
    "a mean": (mfu((_SET, "    step = sum(took) / len(took)\n")), "a mean"),
    "recomputation in it": (
        mfu((_MFU, _MFU.replace("(blocks + head)", "(blocks + head) / step / peak + "
                                "case['recompute'] * blocks"))),
        "recomputation counted",
    ),
    "no attention": (mfu((_MFU, "    mfu = 3 * (24 * tokens * L * h**2 + head) / step / peak\n"),
                         (_HFU, "    hfu = mfu\n")), "no attention"),
    "a mean of all": (mfu(("took[1:]", "took"), (_SET, "    step = sum(took) / len(took)\n")),
                      "the first iteration counted"),
    "the best": (mfu((_SET, "    step = took[0]\n")), "the best one"),
    "ms": (mfu((" / 1000", "")), "milliseconds"),
    "tokens of all": (mfu(('tokens / step / case["gpus"]', "tokens / step")), "of all GPUs"),
    "rows": (mfu(('tokens / step / case["gpus"]', 'rows / step / case["gpus"]')), "sequences"),
    "a batch each": (mfu(('tokens / step / case["gpus"]', 'tokens / step * case["gpus"]')),
                     "a batch for each GPU"),
    "no head": (mfu((_MFU, _MFU.replace("(blocks + head)", "blocks"))), "no head"),
    "weights alone": (mfu((_MFU, "    mfu = 3 * 24 * tokens * L * h**2 / step / peak\n")),
                      "only the layers' weights"),
    "the forward": (mfu((_MFU, _MFU.replace("3 * ", ""))), "only the forward pass"),
    "one GPU": (mfu((' * case["gpus"]\n', "\n")), "one GPU's peak"),
    "percent": (mfu((_MFU, _MFU.replace("3 *", "300 *"))), "in percent"),
    "the same": (mfu((_HFU, "    hfu = mfu\n")), "recomputation forgotten"),
    "the head too": (mfu((_HFU, _HFU.replace("* blocks", "* (blocks + head)"))), "the head again"),
    "always": (mfu((_HFU, _HFU.replace('case["recompute"]', "1"))), "recomputed in every run"),
    "an error": (mfu(('case["log"]', 'case["text"]')), "stopped by an error"),
    "iteration 1 left out": (
        mfu(("took[1:]", "took[' 1/' in case['log'] :]")), "iteration 1 left out"
    ),
    "the lower": (mfu((_SET, "    step = took[(len(took) - 1) // 2]\n")), "not the middle"),
    "the upper": (mfu((_SET, "    step = took[half]\n")), "not the middle"),
    "the second": (mfu(("sorted(took[1:])", "took[1:2]")), "one iteration"),
    "not sorted": (mfu(("sorted(took[1:])", "took[1:]"), (_SET, "    step = took[half]\n")),
                   "not sorted"),
    "without the slowest": (mfu(("sorted(took[1:])", "sorted(took)[:-1]")),
                            "the slowest left out"),
    "without outliers": (
        mfu(("took = sorted(took[1:])",
             "took = sorted(t for t in took if t < 10 * sorted(took)[len(took) // 2])")),
        "outliers left out",
    ),
    "without all outliers": (
        mfu(("took = sorted(took[1:])",
             "took = sorted(t for t in took if t < 2 * sorted(took)[len(took) // 2])")),
        "outliers left out",
    ),
    "warmed up": (mfu(("took[1:]", "took[2:]")), "more left out"),
    "without the last": (mfu(("took[1:]", "took[1:-1]")), "more left out"),
    "one row": (mfu(('"tokens/s": tokens /', '"tokens/s": s /')), "one sequence"),
    "by the mean": (mfu(("tokens / step / case", "tokens / sum(took) * len(took) / case")),
                    "by the mean"),
    "half the pairs": (mfu(("24 * tokens * L * h**2 * (1 + s / (6 * h))",
                            "24 * tokens * L * h**2 * (1 + s / (12 * h))")), "the pairs halved"),
    "L heads": (mfu((_MFU, _MFU.replace("head", "L * head"))), "a head in each layer"),
    "backward as forward": (mfu((_MFU, _MFU.replace("3 *", "2 *"))), "two forwards"),
    "weights again": (
        mfu((_HFU, _HFU.replace("blocks", "24 * tokens * L * h**2"))), "attention not again"
    ),
    "attention again": (
        mfu((_HFU, _HFU.replace("blocks", "4 * tokens * L * s * h"))), "only attention again"
    ),
}  # fmt: skip

RIGHT = {"place_ranks": {"rows and columns": PLACE}, "mfu_of_log": {"by splitting": MFU}}
WRONG = {"place_ranks": WRONG_PLACE, "mfu_of_log": WRONG_MFU}
