"""`fuse_gate_up` of lesson 04: gate and up as one weight, cut so that no unit loses its gate.

What came back is read row by row: which rows of which weight a rank holds says what was thought.
Then it is trained with, and held against the dense layer.
"""

from __future__ import annotations

import os

import torch

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_04 import trial
from course_lib.classroom.checks.lesson_04.ready import take
from course_lib.classroom.checks.lesson_04.rows import Rows, look_at_rows
from course_lib.layout import span

TOLERANCE = 1e-10  # float64
WHOLE = "this rank's fused part"


def judge_fuse(answer: Answer, judge: Judge) -> None:
    """Try fuse_gate_up; raise the Finding that explains best what is wrong."""
    take(answer, judge)
    seed = int.from_bytes(os.urandom(3), "big")
    three, two = [0, 1, 2], [1, 2]  # the two are not the notebook's first two: numbers of the group
    part = 3 + seed % 3
    # Sizes that divide come first: what is wrong there is the fusing, not the cut.
    cases = [(three, 3 * part), (two, 2 * part + 2), (three, 3 * part + 1), (two, 2 * part + 1)]
    tried = []
    for members, f in cases:
        tried.append(_try(answer, judge, members, trial.Sizes(2, 3, 5 + seed % 2, f), seed))
    wrong = [one for one in tried if not one.right]
    if wrong and all(one.n == 2 for one in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    for one in wrong:
        look_at_rows(one, [other for other in tried if other.right])
    for one in tried:
        _look_at_keeping(one)
    for (members, f), one in zip(cases, tried, strict=True):
        _try_biases(answer, judge, members, trial.Sizes(2, 3, 5 + seed % 2, f), seed, one.when)


def _try(answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int) -> Rows:
    when = f"{on(members)} with gate and up of {sizes.f} rows each"
    reports = judge.trial(answer, _call(answer, sizes, seed, False), members, when)
    _look_at_results(reports, when)
    dense = trial.numbers(sizes, seed)
    return Rows(reports, dense.gate, dense.up, when)


def _call(answer: Answer, sizes: trial.Sizes, seed: int, biases: bool) -> str:
    part = 'bench.part("lesson_04.trial")'
    return f"{part}.fuse({answer.name}, {part}.{sizes!r}, {seed}, {biases}, __trial__)"


def _look_at_results(reports: list[dict], when: str) -> None:
    """Refuse what is no tensor, and changed weights, whatever the numbers are."""
    refuse_none(reports, when, WHOLE)
    for rank, report in enumerate(reports):
        if report["several"]:
            raise Finding(
                "not fused",
                f"Rank {rank} got a {report['kind']} of tensors back {when}. Fused is one tensor, "
                "so that the layer needs one product and its gradient one all-reduce.",
            )
        if report["shape"] is None:
            raise Finding(
                "no tensor",
                f"Rank {rank} got a {report['kind']} back {when}; expected is a tensor, {WHOLE}.",
            )
        if report["dtype"] != "float64":
            raise Finding(
                "another dtype",
                f"Rank {rank} got {report['dtype']} back {when}; a weight keeps its dtype.",
            )
        if report["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed gate or up on rank {rank}, {when}. They belong to the "
                "caller, who may read them again.",
            )


def _look_at_keeping(one: Rows) -> None:
    """The right rows: do they hold no more memory than they need, and did they come by no wire?"""
    for rank, report in enumerate(one.reports):
        if report["ops"]:
            raise Finding(
                "over the wire",
                f"The rows are right, but rank {rank} called {' and '.join(report['ops'])} "
                f"{one.when}. Every rank has read gate and up: no rank has to send anything.",
            )
        if report["beside"]:
            raise Finding(
                "keeps the whole",
                f"The rows are right, but on rank {rank} they are a view {one.when}: the memory "
                f"under them has {report['beside']} numbers more, and lives as long as they do. A "
                "rank that keeps the whole has saved nothing. Let the part have memory of its own.",
            )


def _try_biases(
    answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int, when: str
) -> None:
    """The same function on biases, then two steps of training with both."""
    about = f"{on(members)} with the biases of gate and up, {sizes.f} numbers each"
    try:
        reports = judge.trial(answer, _call(answer, sizes, seed, True), members, about)
        _look_at_results(reports, about)
    except Finding as finding:
        details = finding.text.split("\n", 1)[-1]
        raise Finding(
            "biases",
            "The weights come out right, the biases do not: they have one dim, (f,), and are cut "
            f"and joined along it like the rows of a weight.\n{details}",
        ) from None
    dense = trial.numbers(sizes, seed)
    look_at_rows(Rows(reports, dense.gate_bias[:, None], dense.up_bias[:, None], about), [])
    for rank, report in enumerate(reports):
        right = _dense(sizes, seed, rank, len(members))
        far = max((a - b).abs().max().item() for a, b in zip(report["trained"], right, strict=True))
        if not far <= TOLERANCE:
            raise Finding(
                "other training",
                f"After {trial.STEPS} steps of training rank {rank} is {far:.1g} away from the "
                f"dense layer {when}.",
            )


def _dense(sizes: trial.Sizes, seed: int, rank: int, n: int) -> list[torch.Tensor]:
    """What training with the dense layer gives, of the parameters what belongs to this rank."""
    dense, own = trial.numbers(sizes, seed), slice(*span(sizes.f, n, rank))
    gate, up, down = dense.gate, dense.up, dense.down
    gate_bias, up_bias = dense.gate_bias, dense.up_bias
    seen: list[torch.Tensor] = []
    for x, dy in zip(dense.xs, dense.dys, strict=True):
        leaves = [
            t.detach().clone().requires_grad_() for t in (x, gate, up, down, gate_bias, up_bias)
        ]
        x, gate, up, down, gate_bias, up_bias = leaves
        bent = torch.nn.functional.silu(x @ gate.t() + gate_bias)  # (b, s, f)
        y = bent * (x @ up.t() + up_bias) @ down.t()
        y.backward(dy)
        seen += [y.detach(), x.grad]
        gate, up, down, gate_bias, up_bias = (t.detach() - trial.RATE * t.grad for t in leaves[1:])
    weight, bias = torch.cat((gate[own], up[own])), torch.cat((gate_bias[own], up_bias[own]))
    return [*seen, weight, bias, down[:, own]]


FUSE_GATE_UP = Exercise(
    name="fuse_gate_up",
    title="Fuse gate and up",
    points=3,
    judge=judge_fuse,
    when_right=(
        "On every rank the rows of gate that are its own, then the same rows of up, in memory of "
        "their own; weights and biases, also where the rows do not divide. Two steps of training "
        "with them are those of the dense layer. One product, so one f: what it saves is an "
        "all-reduce in every backward."
    ),
    hints=(
        "A unit of the inner layer is one row of gate and one row of up, which are multiplied with "
        "each other. Which units belong to this rank, and which rows does it need for them?",
        "The units are cut as torch.chunk cuts, because the columns of `down` are: "
        "`course_lib.layout.span(f, n, rank)` gives where a rank's begin and end.",
        "The layer's forward takes its output apart in the middle: the first half is gate, the "
        "second up. In which order do the rows have to stand for that?",
        "A slice is a view: it keeps alive all of the tensor that it was cut from. Joining two "
        "slices makes a tensor of its own. Dim 0 is there in weights and in biases.",
    ),
)
