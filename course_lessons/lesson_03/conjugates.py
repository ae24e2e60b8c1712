"""`conjugates` of lesson 03: the right f and g, and the recognition of wrong pairs.

A pair is tried by itself, with operations that need the same tensors, and in a network that learns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from course_classroom.judge import looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_world_numbers
from course_classroom.judge.looking import THREE, TWO, alike, all_alike, all_near, counted, near
from course_classroom.judge.words import Page
from course_lessons.lesson_00.trial import told
from course_lessons.lesson_03 import trial as runs
from course_lessons.lesson_03.trial import FACTOR, STEPS, Shape, nearly, numbers
from course_lib.layout import span
from course_lib.ledger import forms

SAYS = Page(__file__, "conjugates")
PASS = {"there": "in the forward pass", "back": "in the backward pass"}


class Trial:
    """One run of the learner's pair on a group, and each rank's report."""

    def __init__(self, seed: int, shape: Shape, reports: list, when: str):
        self.seed, self.shape, self.reports, self.when = seed, shape, reports, when
        self.n = len(reports)
        self.each = each = {  # all ranks' numbers by name
            name: [numbers(seed, name, rank, *shape) for rank in range(self.n)] for name in "xwpvcq"
        }
        self.right = {  # of only f and g, the same on every rank: first forward, then backward
            ("f", "out"): each["x"][0],
            ("g", "out"): sum(each["p"]),
            ("f", "grad"): sum(each["w"]),
            ("g", "grad"): each["v"][0],
        }

    def of(self, shape: Shape) -> Trial:
        return Trial(self.seed, shape, self.reports, self.when)


def judge_conjugates(answer: Answer, judge: Judge) -> None:
    """Try f and g; raise the Finding that explains the error best."""
    runs.refuse_ready_made(answer)
    judge.take(answer, runs.__name__)
    seed = looking.fresh_seed()
    shape = [4 + seed % 2, 7 + seed % 2]

    def tried(run: Callable, members: list[int], given: list = shape) -> Trial:
        reports = judge.trial(answer, run, seed, given, members=members, when=on(members))
        return Trial(seed, shape, reports, on(members))

    _look_alone(tried(runs.alone, THREE))
    try:
        with told(SAYS, "several calls at once", _stopped):
            both = tried(runs.at_once, THREE)
        _look_at_once(both)
    except Finding:
        try:  # is the cause the second pair, or any smaller group?
            _look_alone(tried(runs.alone, TWO))
        except Finding as found:
            refuse_world_numbers(answer, on(TWO))
            if found.name == "group left out":
                raise
        raise
    _look_alone(tried(runs.alone, TWO))
    _look_shared(tried(runs.shared, THREE))
    _look_layouts(tried(runs.layouts, THREE))
    kinds = [([], "float64"), ([5], "float64"), ([2, 5, 4], "float64"), ([6, 5], "float32")]
    with told(SAYS, "wrong for other shapes", _stopped):
        several = tried(runs.shapes, TWO, kinds)
    _look_shapes(several, kinds)
    for members, hidden in ((THREE, 7), (TWO, 5)):
        dims = [6, 3 + seed % 2, hidden, 9]
        _look_net(tried(runs.net, members, dims), dims)


def _stopped(finding: Finding) -> bool:
    return finding.name in ("raised", "deadlock", "not called by all", "group left out")


def _look_alone(trial: Trial) -> None:
    n, reports, when = trial.n, trial.reports, trial.when
    SAYS.refuse_each(reports, {"not a pair": lambda r: r["kind"]})
    each = [(which, rank, r[which]) for which in "fg" for rank, r in enumerate(reports)]
    for which, rank, report in each:
        advice = " Did you forget `return`?" if report["kind"] == "NoneType" else ""
        about = {"which": which, "rank": rank, "shape": trial.shape, "advice": advice}
        lost = {"not like x": report["out"] is None}
        SAYS.refuse(lost, got=looking.came_back(report), when=when, **about)
    (x, total, gradient, v), ps, ws = trial.right.values(), trial.each["p"], trial.each["w"]
    seen = {stage: [report[stage[0]][stage[1]] for report in reports] for stage in trial.right}
    changed = {which for which, _, report in each if report["changed"]}
    named = {
        "swapped": all_alike(seen["f", "out"], [n * x] * n) and all_alike(seen["g", "out"], ps),
        "f in place": "f" in changed,
        "g in place #1": "g" in changed,
    }
    SAYS.refuse(named)
    wrong = [  # the values of wrong ideas at each stage, and the entry if none is recognised
        ({"f changes its values #1": [n * x] * n}, "f changes its values #2"),
        ({"nothing summed": ps, "mean": [total / n] * n}, "not the sum"),
        (
            {"nothing summed on the way back": ws, "mean on the way back #1": [gradient / n] * n},
            "gradient of f",
        ),
        (
            {"summed on the way back as well": [n * v] * n, "mean on the way back #2": [v / n] * n},
            "gradient of g",
        ),
    ]
    for ((which, key), right), (gives, otherwise) in zip(trial.right.items(), wrong, strict=True):
        found = seen[which, key]
        lost = key == "grad" and any(one is None for one in found)
        SAYS.refuse({"no gradient": lost}, which=which, when=when)
        if not all_near(found, [right] * n):
            looking.refuse_idea(found, looking.ideas(SAYS, gives, n=n), when)
            what = "gradient" if key == "grad" else "sum"
            looking.refuse_general(found, [right] * n, when, what=what)
            raise SAYS(otherwise, when=when)
    most = forms.all_reduce(n, prod(trial.shape) * looking.ITEM)
    for which, rank, report in each:
        sends, silent = ("back", "there") if which == "f" else ("there", "back")
        ops, sent = report[sends]["ops"], report[sends]["bytes"]
        named = {
            "unnecessary message": report[silent]["ops"],
            "more than one all-reduce": sum(ops.values()) != 1 or sent > most,
        }
        about = {"which": which, "rank": rank, "when": when, "bytes": sent, "most": most}
        more = {"silent": PASS[silent], "more": counted(report[silent]["ops"])}
        SAYS.refuse(named, ops=counted(ops), sends=PASS[sends], **about, **more)


def _look_at_once(trial: Trial) -> None:
    """Check a pair of one group while a pair of a different group is in use."""
    ws, v, x = trial.each["w"], trial.each["v"][0], trial.each["x"][0]
    for rank, report in enumerate(trial.reports):
        pairs = zip(report, (sum(ws), ws[rank]), strict=True)
        wrong = not all(all_near(seen, (x * w, v * w)) for seen, w in pairs)
        details = f"On rank {rank} one of the two gives a different result than in a separate run."
        SAYS.refuse({"several calls at once": wrong}, details=details)


def _look_shared(trial: Trial) -> None:
    """Check gradients of a branch of f's input and of an operation before g for overwriting."""
    c, v, n = trial.each["c"], trial.each["v"][0], trial.n
    ps = [q.exp() for q in trial.each["q"]]
    total, both = sum(ps), sum(c) + sum(trial.each["w"])
    for rank, (report, p) in enumerate(zip(trial.reports, ps, strict=True)):
        q = p * (3 * v + c[rank])
        named = {
            "f in place on the way back": not near(report["u"], FACTOR * c[rank]),
            "f with a second branch": not near(report["x"], sum(c)),
            "g in place #2": not all_near((report["p"], report["q"]), (p, q)),
            "one buffer for all #1": not all_near(report["sums"], (total, 2 * total)),
            "a hook on x itself": alike(report["twice"], n * both),
            "one buffer for all #2": not near(report["twice"], both),
        }
        summed = alike(report["u"], FACTOR * sum(c))
        what = f"the sum over {n} ranks" if summed else "a different value"
        SAYS.refuse(named, n=n, rank=rank, when=trial.when, what=what)


def _look_shapes(trial: Trial, kinds: list[tuple[Shape, str]]) -> None:
    """Check results for tensors of other shapes and dtypes."""
    for (shape, dtype), *reports in zip(kinds, *trial.reports, strict=True):
        alike = near if dtype == "float64" else nearly
        for (which, key), right in trial.of(shape).right.items():
            for rank, report in enumerate(report[which] for report in reports):
                seen = report[key]
                named = {
                    "wrong dtype": report["dtype"] != dtype,
                    "wrong for other shapes": seen is None or not alike(seen.double(), right),
                }
                about = {"which": which, "dtype": dtype, "got": report["dtype"], "rank": rank}
                details = f"The result or gradient is wrong for {dtype} of shape {shape}."
                SAYS.refuse(named, when=trial.when, details=details, **about)


def _look_layouts(trial: Trial) -> None:
    """Check results for noncontiguous tensors."""
    total, turned = sum(trial.each["p"]), trial.of(trial.shape[::-1])
    gradient, ones = sum(turned.each["w"]).t(), torch.full_like(total, float(trial.n))
    blocks = {"ones": ones, "y": total.t(), "x": gradient}
    looks = {
        "g in place #3": lambda r: r["changed"],
        "wrong without a gradient": lambda r: not near(r["data"], trial.each["x"][0] + total),
        "wrong for other layouts #1": lambda r: (
            not all(near(r[key], blocks[key]) for key in blocks)
        ),
        "wrong for other layouts #2": lambda r: not all_near(r["apart"], (total, gradient)),
    }
    SAYS.refuse_each(trial.reports, looks, when=trial.when)


def _look_net(trial: Trial, dims: Shape) -> None:
    """Compare the weights after steps of SGD with the weights of the dense network."""
    dense = runs.trained(torch.clone, torch.clone, trial.seed, dims, slice(None))
    entries = ("not the dense net", "not the dense net under torch.utils.checkpoint")
    for again, entry in enumerate(entries):
        for rank, report in enumerate(trial.reports):
            mine = slice(*span(dims[2], trial.n, rank))
            cut = {"the first weight": (slice(None), mine), "the second weight": mine}
            right = {what: one[cut.get(what, ...)] for what, one in dense.items()}
            wrong = [what for what in right if not near(report[again][what], right[what])]
            about = {"steps": STEPS, "rank": rank, "when": trial.when}
            SAYS.refuse({entry: wrong}, wrong=" and ".join(wrong), **about)


CONJUGATES = Exercise(judge=judge_conjugates, **SAYS.about)
