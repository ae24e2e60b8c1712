"""`fuse_gate_up` of lesson 04: gate and up as one weight, cut so that no unit loses its gate.

What came back is read row by row: which rows of which weight a rank holds says what was thought.
Then it is trained with, and held against the dense layer.
"""

from __future__ import annotations

import torch

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none, refuse_world_numbers
from course_lib.classroom.checks.lesson_04 import trial
from course_lib.classroom.checks.lesson_04.rows import Rows, look_at_rows
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.layout import span

TOLERANCE = 1e-10  # float64
WHOLE = "this rank's fused part"
_NO_ROWS = ("raised", "not returned everywhere", "wrong numbers")


def judge_fuse(answer: Answer, judge: Judge) -> None:
    """Try fuse_gate_up; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    even, uneven, odd = 6 + 6 * (seed % 2), 10 + 3 * (seed % 2), 9 + 4 * (seed % 2)
    few = 2 + 2 * (seed // 2 % 2)
    # Sizes that divide come first: what is wrong there is the fusing, not the cut. 10 over 3 and 4
    # over 3 tell the course's cut from an even one; of 4 and of 2 rows the last rank has none.
    cases = [(THREE, even), (TWO, even), (THREE, uneven), (TWO, odd), (THREE, few)]
    tried = []
    for members, f in cases:
        try:
            tried.append(_try(answer, judge, members, _sizes(f, seed), seed))
        except Finding as finding:
            if f == few and tried[2].right and finding.name in _NO_ROWS:
                raise _no_rows(f, finding) from None
            raise
        if tried[-1].right:
            _look_at_others(tried[-1], _sizes(f, seed), seed)
    wrong = [one for one in tried if not one.right]
    if wrong and all(one.n == 2 for one in wrong):
        refuse_world_numbers(answer, wrong[0].when)
    for one in wrong:
        look_at_rows(one, [other for other in tried if other.right])
    for one in tried:
        _look_at_keeping(one)
    for k in (0, 3, 4):
        members, f = cases[k]
        _try_biases(answer, judge, members, _sizes(f, seed), seed, tried[k].when)


def _sizes(f: int, seed: int) -> trial.Sizes:
    return trial.Sizes(5, 11, 8 + seed % 2, f)


def _no_rows(f: int, finding: Finding) -> Finding:
    return Finding(
        "no rows for a rank",
        f"Where every rank has rows, they come out right. Of {f} rows over 3 ranks the last rank "
        "has none: span gives it an empty slice, and its part is a tensor without rows. "
        f"torch.chunk and split give fewer pieces than ranks there.\n{finding.text}",
    )


def _try(answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int) -> Rows:
    when = f"{on(members)} with gate and up of {sizes.f} rows each"
    reports = judge.trial(answer, trial.fuse, list(sizes), seed, False, members=members, when=when)
    _look_at_results(reports, when)
    dense = trial.numbers(sizes, seed)
    return Rows(reports, dense.gate, dense.up, when)


def _look_at_others(one: Rows, sizes: trial.Sizes, seed: int) -> None:
    """Other weights of the same size, then float32 ones: every bit is that of the checkpoint."""
    dense = trial.numbers(sizes, seed)
    singles = [t.float() for t in (dense.gate, dense.up)]
    for k, given in enumerate((trial.wide(trial.numbers(sizes, seed + 1)), singles)):
        again = Rows([report["others"][k] for report in one.reports], *given, one.when)
        dtype = str(given[0].dtype).removeprefix("torch.")
        for rank, report in enumerate(again.reports):
            if report["dtype"] != dtype:
                raise Finding(
                    "another dtype",
                    f"Rank {rank} got {report['dtype']} back {one.when}, for a gate and an up of "
                    f"{dtype}; a weight keeps its dtype.",
                )
        if not again.right:
            raise Finding(
                "other training",
                f"The first call gives the right rows; a call with other weights of the same size, "
                f"{dtype} and far apart in size, does not ({one.when}). Does your function keep "
                "something between calls, or compute with the values? They are to be copied, bit "
                "by bit.",
            )
    if not all(report["still"] for report in one.reports):
        raise Finding(
            "one buffer for all",
            f"After a second call the first part is not what it was ({one.when}): both lie in the "
            "same memory. Each layer needs a weight of its own.",
        )


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
        if report["beside"] and report["shape"][0] > 2:  # a unit or none may well be a view
            raise Finding(
                "keeps the whole",
                f"The rows are right, but on rank {rank} they are a view {one.when}: the memory "
                f"under them has {report['beside']} numbers more, and lives as long as they do. A "
                "rank that keeps the whole has saved nothing. Let the part have memory of its own.",
            )
        if report["kept"]:
            raise Finding(
                "keeps the whole",
                f"The rows are right, but after the call {report['kept']} bytes besides them are "
                f"kept alive on rank {rank} {one.when}: by a name outside of the function, an "
                "attribute, a closure or the history of the result. A rank keeps its part alone.",
            )


def _try_biases(
    answer: Answer, judge: Judge, members: list[int], sizes: trial.Sizes, seed: int, when: str
) -> None:
    """The same function on biases, then two steps of training with both."""
    about = f"{on(members)} with the biases of gate and up, {sizes.f} numbers each"
    try:
        reports = judge.trial(
            answer, trial.fuse, list(sizes), seed, True, members=members, when=about
        )
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
        pairs = zip(report["trained"], right, strict=True)
        far = max(float((a - b).abs().max() / (1 + b.abs().max())) for a, b in pairs if b.numel())
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
