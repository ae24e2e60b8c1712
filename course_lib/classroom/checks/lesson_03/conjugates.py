"""`conjugates` of lesson 03: what right means for f and g, and how wrong pairs are recognised.

A pair is tried alone, beside others that need the same tensors, and in a net that learns; held
against dense results (values and gradients) and against one message each, in its own phase.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_world_numbers
from course_lib.classroom.checks.lesson_03 import pair_in_use, trial
from course_lib.classroom.checks.lesson_03.pair_case import Trial, refuse_ready_made
from course_lib.classroom.checks.looking import (
    THREE,
    TWO,
    counted,
    fresh_seed,
    near,
    refuse_general,
)
from course_lib.ledger import forms

ITEM = 8  # bytes of a float64


def judge_conjugates(answer: Answer, judge: Judge) -> None:
    """Try f and g; raise the Finding that explains best what is wrong."""
    refuse_ready_made(answer)
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    shape = [4 + seed % 2, 7 + seed % 2]

    def tried(what: str, members: list[int], *more: object) -> Trial:
        given, how = more or (shape,), {"members": members, "when": on(members)}
        reports = judge.trial(answer, getattr(trial, what), seed, *given, **how)
        return Trial(members, seed, shape, reports, on(members))

    _look_alone(answer, tried("alone", THREE))
    try:
        with _named(pair_in_use.two_at_once):
            both = tried("at_once", THREE)
        pair_in_use.look_at_once(both)
    except Finding:
        _refuse_no_group(lambda: _look_alone(answer, tried("alone", TWO)))
        raise
    _look_alone(answer, tried("alone", TWO))
    pair_in_use.look_shared(tried("shared", THREE))
    pair_in_use.look_layouts(tried("layouts", THREE))
    kinds = [([], "float64"), ([5], "float64"), ([2, 5, 4], "float64"), ([6, 5], "float32")]
    with _named(pair_in_use.another_shape):
        several = tried("shapes", TWO, kinds)
    pair_in_use.look_shapes(several, kinds)
    for members, hidden in ((THREE, 7), (TWO, 5)):
        dims = [6, 3 + seed % 2, hidden, 9]
        pair_in_use.look_net(tried("net", members, dims), dims)


def _refuse_no_group(smaller_group: Callable[[], None]) -> None:
    """A Finding where it is not a second pair that is in the way, but any smaller group."""
    try:
        smaller_group()
    except Finding as found:
        if found.name in ("group left out", "not of the group"):
            raise


@contextlib.contextmanager
def _named(finding: Callable[[str], Finding]) -> Iterator[None]:
    """An answer that was right before and fails in here, by what is tried here."""
    try:
        yield
    except Finding as found:
        if found.name not in ("raised", "deadlock", "not called by all", "group left out"):
            raise
        raise finding(found.text) from None


def _look_alone(answer: Answer, trial: Trial) -> None:
    for report in trial.reports:
        if not report["pair"]:
            raise Finding(
                "not a pair",
                f"`conjugates(group)` gave a {report['kind']} back; expected are two functions, "
                "`return f, g`. Each takes one tensor, and the group is the one given here.",
            )
    for which in "fg":
        _refuse_no_tensor(trial, which)
    x, total = trial.same("x"), sum(trial.each("p"))
    if _all(trial, "f", "out", lambda r: trial.n * x) and _all(
        trial, "g", "out", lambda r: trial.each("p")[r]
    ):
        raise Finding(
            "swapped",
            "The two are exchanged: the first sums in the forward, the second does not. f stands "
            "at the entrance and hands x on; g stands at the exit and sums.",
        )
    _refuse_changed(trial)
    _look_at_values(answer, trial, x, total)
    for which in "fg":
        _look_at_way_back(trial, which)
    _look_at_gradients(trial)
    _look_at_traffic(trial)


def _refuse_no_tensor(trial: Trial, which: str) -> None:
    for rank, report in enumerate(trial.reports):
        found = report[which]
        if found["out"] is None:
            got = found["kind"]
            if found["shape"] is not None:
                got = f"a tensor of shape {found['shape']} and dtype {found['dtype']}"
            advice = " Did you forget `return`?" if got == "NoneType" else ""
            raise Finding(
                "not like x",
                f"{which}(x) gave {got} on rank {rank}, {trial.when}; both f and g give a tensor "
                f"of x's shape {trial.shape} and dtype float64.{advice}",
            )


def _refuse_changed(trial: Trial) -> None:
    for which in "fg":
        if any(report[which]["changed"] for report in trial.reports):
            raise Finding(
                f"{which} in place",
                f"{which}(x) changed the x that it was given. `dist.all_reduce(t)` writes its "
                "result into t. The step that made x may have kept it for the backward, as exp "
                "keeps its result, and autograd is not told: sum a copy.",
            )


def _all(trial: Trial, which: str, key: str, expected: Callable[[int], Tensor]) -> bool:
    """Whether on every rank a tensor of f's or g's report is what is expected there."""
    found = [report[which][key] for report in trial.reports]
    return all(near(one, expected(r)) for r, one in enumerate(found))


def _refuse_general(trial: Trial, which: str, key: str, right: Callable[[int], Tensor]) -> None:
    seen = [report[which][key] for report in trial.reports]
    what = "sum" if key == "out" else "gradient"
    refuse_general(seen, list(map(right, range(trial.n))), trial.when, what=what)


def _look_at_values(answer: Answer, trial: Trial, x: Tensor, total: Tensor) -> None:
    if not _all(trial, "f", "out", lambda r: x):
        summed = _all(trial, "f", "out", lambda r: trial.n * x)
        more = " It is n times x: a sum over ranks that all hold the same." if summed else ""
        raise Finding(
            "f changes its values",
            f"f(x) is not x, {trial.when}. In the forward f does nothing.{more}",
        )
    if _all(trial, "g", "out", lambda r: total):
        return
    if _all(trial, "g", "out", lambda r: trial.each("p")[r]):
        raise Finding(
            "nothing summed",
            f"g(p) is p, {trial.when}. The ranks hold parts of a sum, and g is where it is made.",
        )
    if _all(trial, "g", "out", lambda r: total / trial.n):
        raise Finding(
            "mean", f"g(p) is the mean, the sum divided by {trial.n}. The parts make a sum."
        )
    if trial.n == 2:
        refuse_world_numbers(answer, trial.when)
    _refuse_general(trial, "g", "out", lambda r: total)
    raise Finding("not the sum", f"g(p) is not the sum of all ranks' p, {trial.when}.")


def _look_at_way_back(trial: Trial, which: str) -> None:
    if any(report[which]["grad"] is None for report in trial.reports):
        raise Finding(
            "no way back",
            f"No gradient came back through {which}, {trial.when}. What is made from x.detach() "
            "or under no_grad has no history; a torch.autograd.Function that is called by "
            "`.apply(x)` and whose backward returns a gradient has.",
        )


def _look_at_gradients(trial: Trial) -> None:
    n, w, v = trial.n, trial.each("w"), trial.same("v")
    if not _all(trial, "f", "grad", lambda r: sum(w)):
        if _all(trial, "f", "grad", lambda r: w[r]):
            raise Finding(
                "nothing summed on the way back",
                "Through f each rank gets its own part of x's gradient. All ranks used x, so its "
                "gradient is the sum of what all of them send back: a broadcast, transposed.",
            )
        if _all(trial, "f", "grad", lambda r: sum(w) / n):
            raise Finding(
                "mean on the way back",
                f"Through f comes the mean of the ranks' gradients, the sum divided by {n}. The "
                "mean belongs to ranks that see different data; here all are parts of one net.",
            )
        _refuse_general(trial, "f", "grad", lambda r: sum(w))
        raise Finding(
            "gradient of f",
            f"The gradient of x through f is not the sum of the ranks' gradients, {trial.when}.",
        )
    if not _all(trial, "g", "grad", lambda r: v):
        if _all(trial, "g", "grad", lambda r: n * v):
            raise Finding(
                "summed on the way back as well",
                f"Through g comes {n} times the gradient. After g every rank holds the same sum "
                "and goes on alike, so the gradient that comes is complete, on each of them.",
            )
        if _all(trial, "g", "grad", lambda r: v / n):
            raise Finding(
                "mean on the way back",
                f"Through g comes the gradient divided by {n}. Each part of a sum has the whole "
                "gradient of the sum.",
            )
        _refuse_general(trial, "g", "grad", lambda r: v)
        raise Finding(
            "gradient of g",
            f"The gradient of a term of g's sum is not that of the sum, {trial.when}.",
        )


def _look_at_traffic(trial: Trial) -> None:
    payload = torch.Size(trial.shape).numel() * ITEM
    may_send = forms.all_reduce(trial.n, payload)
    for which, phase, silent in (("f", "back", "there"), ("g", "there", "back")):
        for rank, report in enumerate(trial.reports):
            one, other = report[which][phase], report[which][silent]
            ways = {"there": "on the way there", "back": "on the way back"}
            if other["ops"]:
                raise Finding(
                    "sends where nothing is owed",
                    f"The numbers are right, but {which} also calls {counted(other['ops'])} "
                    f"{ways[silent]} (rank {rank}, {trial.when}). What is the same on every rank "
                    "need not be sent.",
                )
            if sum(one["ops"].values()) != 1 or one["bytes"] > may_send:
                raise Finding(
                    "more than one all-reduce",
                    f"The numbers are right, but {which} calls {counted(one['ops'])} "
                    f"{ways[phase]} and has to send {one['bytes']} bytes (rank {rank}, "
                    f"{trial.when}); one all-reduce, {may_send:g} bytes, is enough.",
                )


CONJUGATES = Exercise(
    name="conjugates",
    title="f and g, with what torch gives you",
    points=4,
    judge=judge_conjugates,
    when_right=(
        "f hands on and sums in the backward, g sums and hands back: one all-reduce each, in its "
        "own phase. Nothing that others need was written into, neither a tensor that an operation "
        "had kept nor a gradient that two branches share, and the sharded net learns what the "
        "dense one learns, with its activations kept or computed again."
    ),
    hints=(
        "Write down for each of the two what the ranks hold before it and after it: the same x on "
        "all, or of each rank its own. The way back goes from the second to the first.",
        "A torch.autograd.Function has two static methods: forward(ctx, x, group), which may put "
        "the group on ctx, and backward(ctx, dy), which returns one gradient for each argument of "
        "forward; None for those that have none.",
        "dist.all_reduce writes into the tensor that it is given. What else may hold that tensor? "
        "In the forward the operation that made it, in the backward another branch that the "
        "same gradient goes to.",
        "f's forward and g's backward return what they are given (x.view_as(x) is enough). f's "
        "backward and g's forward are the same three lines: copy, sum the copy, return it.",
    ),
)
