"""Answers to `cheapest_plan` of lesson 15: right by two roads, and wrong in likely ways."""

from __future__ import annotations

from tests.course_lessons.answers import changed

CHEAP = """
from math import inf


def cheapest_plan(case):
    p, k = case["parameters"], case["tokens"] / case["batch"]
    kept = (None, inf, inf)
    for i, m in enumerate(case["machines"]):
        for n in m["sizes"]:
            for stage, held in enumerate((16, 4 + 12 / n, 2 + 14 / n, 16 / n)):
                if held * p + case["activations"] > m["memory"]:
                    continue
                work = 6 * p * case["batch"] / n / m["flops"]
                sent = (2, 2, 2, 3)[stage] * 2 * p * (n - 1) / n
                late = max(sent / m["link"], 2 * work / 3) - 2 * work / 3
                days = k * (work + late) / 86400
                cost = 24 * days * n * m["price"]
                if days <= case["days"] and cost < kept[2]:
                    kept = ([i, n, stage], days, cost)
                break
    if kept[0] is None:
        return {"choice": None, "days": None, "cost": None}
    return {"choice": kept[0], "days": kept[1], "cost": kept[2]}
"""

# The largest numbers first, and the least of a list: no two plans may cost the same.
LEAST = """
def step(case, m, n, stage):
    work = 6 * case["parameters"] * case["batch"] / (n * m["flops"])
    sent = (4, 4, 4, 6)[stage] * case["parameters"] * (n - 1) / (n * m["link"])
    return max(work, work / 3 + sent)


def cheapest_plan(case):
    found = []
    for i, m in enumerate(case["machines"]):
        for n in reversed(m["sizes"]):
            room = (m["memory"] - case["activations"]) / case["parameters"]
            stages = [k for k, cut in enumerate((0, 12, 14, 16)) if 16 - cut + cut / n <= room]
            if stages:
                hours = step(case, m, n, stages[0]) * case["tokens"] / case["batch"] / 3600
                found.append((hours * n * m["price"], hours / 24, (i, n, stages[0])))
    best = min((plan for plan in found if plan[1] <= case["days"]), default=(None,) * 3)
    return dict(zip(("cost", "days", "choice"), best))
"""


def cheap(*changes: tuple[str, str]) -> str:
    return changed(CHEAP, *changes)


_IN_TIME = 'if days <= case["days"] and cost < kept[2]:'
_DONE = 'done = days <= case["days"]\n                if done and cost < kept[2]:'
WRONG_CHEAP = {
    "no deadline": (cheap((_IN_TIME, "if cost < kept[2]:")), "the deadline forgotten"),
    "the fastest": (cheap((_IN_TIME, 'if days <= case["days"] and days < kept[1]:')),
                    "the fastest"),
    "no messages": (cheap(("work + late", "work")), "nothing is sent"),
    "no gradients": (cheap(("(16, 4 + 12 / n, 2 + 14 / n, 16 / n)",
                            "(14, 2 + 12 / n, 2 + 12 / n, 14 / n)")), "gradients forgotten"),
    "all of it shows": (cheap(("work + late", "work + sent / m['link']")), "nothing hides"),
    "gradients in 32": (cheap(("(16, 4 + 12 / n, 2 + 14 / n, 16 / n)",
                               "(18, 6 + 12 / n, 2 + 16 / n, 18 / n)")), "gradients in 32 bits"),
    "elements": (cheap(("* 2 * p * (n - 1)", "* p * (n - 1)")), "parameters, not bytes"),
    "stage 3": (cheap(("                if held * p",
                       "                if stage < 3:\n                    continue\n"
                       "                if held * p")), "stage 3 always"),
    "any memory": (cheap(('> m["memory"]', "> inf")), "memory forgotten"),
    "not shared out": (cheap(('case["batch"] / n / m', 'case["batch"] / m')), "one GPU computes"),
    "hours": (cheap(('"days": kept[1]', '"days": 24 * kept[1]')), "hours"),
    "a step": (cheap(('"days": kept[1]', '"days": kept[1] / k')), "only one step checked"),
    "of one": (cheap(('"cost": kept[2]', '"cost": kept[2] / kept[0][1]')), "of one GPU"),
    "a day's price": (cheap(('"cost": kept[2]', '"cost": kept[2] / 24')), "a price a day"),
    "to the end": (cheap(('"cost": kept[2]', '"cost": kept[2] / kept[1] * case["days"]')),
                   "up to the deadline"),
    "the first size in time": (
        cheap(('m["sizes"]:\n', 'm["sizes"]:\n            done = False\n'),
              (_IN_TIME, _DONE),
              ("                break\n", "                break\n"
               "            if done:\n                break\n")),
        "the first size in time",
    ),
    "the fewest in time": (
        cheap(('m["sizes"]:\n', 'sorted(m["sizes"]):\n            done = False\n'),
              (_IN_TIME, _DONE),
              ("                break\n", "                break\n"
               "            if done:\n                break\n")),
        "the fewest in time",
    ),
    "never none": (cheap(("    if kept[0] is None:\n", "    if kept[0] is None:\n"
                          "        kept = ([0, 8, 0], 1, 1)\n    if kept[0] is None:\n")),
                   "choice wrong"),
    "the first in time": (cheap(("and cost < kept[2]", "and kept[0] is None")),
                          "the first in time"),
    "no stage 0": (cheap(("if held * p", "if not stage or held * p")), "no stage 0"),
    "stages up to 2": (
        cheap((", 2 + 14 / n, 16 / n)):", ", 2 + 14 / n)):")), "no stage 3"
    ),
    "no activations": (cheap(('held * p + case["activations"]', "held * p")),
                       "activations forgotten"),
    "activations cut": (cheap(('+ case["activations"]', '+ case["activations"] / n')),
                        "activations shared out"),
    "activations of all": (cheap(('+ case["activations"]', '+ case["activations"] * n')),
                           "activations of all"),
    "states of 8": (cheap(("(16, 4 + 12 / n, 2 + 14 / n, 16 / n)",
                           "(12, 4 + 8 / n, 2 + 10 / n, 12 / n)")), "states of 8 bytes"),
    "a GPU's cost decides": (cheap(("and cost < kept[2]:", "and cost / n < best:\n"
                                    "                    best = cost / n"),
                                   ("    kept = (None", "    best = inf\n    kept = (None")),
                             "of one GPU"),
    "behind all of it": (cheap(("2 * work / 3) - 2 * work / 3", "work) - work")),
                         "all of it hides"),
    "behind a third": (cheap(("2 * work / 3) - 2 * work / 3", "work / 3) - work / 3")),
                       "a third hides"),
    "less than the memory": (cheap(('> m["memory"]', '>= m["memory"]')), "what fits exactly"),
    "room is left": (
        cheap(('held * p + case["activations"] > m["memory"]',
               'm["memory"] - case["activations"] - held * p <= 0')),
        "what fits exactly",
    ),
    "before the deadline": (
        cheap((_IN_TIME, _IN_TIME.replace('days <= case', 'days < case'))),
        "what is done exactly in time",
    ),
    "a day is left": (
        cheap((_IN_TIME, _IN_TIME.replace('days <= case["days"]', 'case["days"] - days > 0'))),
        "what is done exactly in time",
    ),
    "the first machine with a plan": (
        cheap(('        for n in m["sizes"]:\n', '        if kept[0]:\n            break\n'
               '        for n in m["sizes"]:\n')),
        "the first machine with a plan",
    ),
    "another machine where there is none": (
        cheap(('        for n in m["sizes"]:\n', '        for n in m["sizes"] * (not kept[0] or '
               'kept[0][0] == i):\n')),
        "the first machine with a plan",
    ),
}  # fmt: skip

# In GB and hours, with a class; and by a generator of all plans.
IN_GB = """
from dataclasses import asdict, dataclass


@dataclass(order=True)
class Plan:
    cost: float
    days: float
    choice: tuple

    @classmethod
    def of(cls, case, i, n):
        machine, p = case["machines"][i], case["parameters"] / 1e9
        need = [16 * p, 4 * p + 12 * p / n, 2 * p + 14 * p / n, 16 * p / n]
        room = machine["memory"] / 1e9 - case["activations"] / 1e9
        stage = next((k for k in range(4) if need[k] <= room), None)
        if stage is None:
            return None
        compute = 6 * case["parameters"] * case["batch"] / (n * machine["flops"])
        data = (6 if stage == 3 else 4) * case["parameters"] * (n - 1) / n
        step = compute / 3 + max(compute * 2 / 3, data / machine["link"])
        hours = step / 3600 * (case["tokens"] / case["batch"])
        return cls(hours * n * machine["price"], hours / 24, (i, n, stage))


def cheapest_plan(case):
    plans = [Plan.of(case, i, n) for i, m in enumerate(case["machines"]) for n in m["sizes"]]
    # A day has some rounding in it.
    fine = sorted(x for x in plans if x and x.days <= case["days"] * (1 + 1e-9))
    return asdict(fine[0]) if fine else dict.fromkeys(("cost", "days", "choice"))
"""
RIGHT = {"cheapest_plan": {"kept": CHEAP, "the least": LEAST, "in GB": IN_GB}}
WRONG = {"cheapest_plan": WRONG_CHEAP}
